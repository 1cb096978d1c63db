"""How fast integer columns of a large table are read, against the floor: SQLite stepping through them in C.

    python benchmarks/read_floor.py --rows 10000000            makes a capture in a temporary folder, and removes it
    python benchmarks/read_floor.py EXPORT.sqlite              measures a capture that is there

Each way runs in a process of its own, three times after one that warms the page cache; the best run counts. The
ratio is to the floor of the same run, the sum of all values must equal the floor's. Without a C compiler or SQLite's
header the floor is `SELECT sum(a), sum(b), ...` in Python, which steps in C as well.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
EIGHT = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName", "graphNodeId"]
SHAPE = ["contextId", "shortName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "graphId"]
WAYS = ("pages", "adbc", "sqlite")
_RUNS = 3


def make_kernels(path: Path, row_count: int, seed: int = 0) -> None:
    """A kernel table of 40 columns, 31 integers and a text behind them filled as a node-level graph capture fills them."""
    chance = np.random.default_rng(seed)
    columns = [
        "start",
        "end",
        "deviceId",
        "contextId",
        "greenContextId",
        "streamId",
        "correlationId",
        "globalPid",
        "demangledName",
        "shortName",
    ]
    columns += [
        "mangledName",
        "launchType",
        "cacheConfig",
        "registersPerThread",
        "gridX",
        "gridY",
        "gridZ",
        "blockX",
        "blockY",
        "blockZ",
    ]
    columns += ["staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "localMemoryTotal", "gridId"]
    columns += [
        "sharedMemoryExecuted",
        "graphNodeId",
        "sharedMemoryLimitConfig",
        "qmdBulkReleaseDone",
        "qmdPreexitDone",
    ]
    columns += [
        "qmdLastCtaDone",
        "graphId",
        "clusterX",
        "clusterY",
        "clusterZ",
        "clusterSchedulingPolicy",
        "maxPotentialClusterSize",
    ]
    columns += ["maxActiveClusters", "sharedMemoryRequestedPercentage"]
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    declared = ", ".join(f'"{column}" INTEGER' for column in columns)
    connection.execute(f"CREATE TABLE {TABLE} ({declared}, tensorSizeMinusOneElements TEXT NOT NULL)")
    now = 3_000_000_000
    for begin in range(0, row_count, 200_000):
        n = min(200_000, row_count - begin)
        start = now + np.cumsum(chance.integers(200, 9000, n))
        now = int(start[-1])
        device = chance.integers(0, 8, n)
        name = chance.integers(100, 400, n)
        zero, one = np.zeros(n, np.int64), np.ones(n, np.int64)
        filled = {
            "start": start,
            "end": start + chance.integers(900, 60_000, n),
            "deviceId": device,
            "contextId": one,
            "streamId": chance.choice([7, 7, 7, 20, 31], n),
            "correlationId": begin + np.arange(n),
            "globalPid": (1 << 48) + (148 + device) * 0x1000000,
            "demangledName": name,
            "shortName": name + 3,
            "mangledName": name + 5,
            "launchType": one,
            "registersPerThread": chance.choice([32, 64, 168, 255], n),
            "gridX": chance.choice([1, 8, 132, 4096, 128_256], n),
            "gridY": chance.choice([1, 1, 2, 64], n),
            "gridZ": one,
            "blockX": chance.choice([32, 128, 256, 384, 1024], n),
            "blockY": one,
            "blockZ": one,
            "staticSharedMemory": chance.choice([0, 16, 1024], n),
            "dynamicSharedMemory": chance.choice([0, 98_304, 227_328], n),
            "localMemoryTotal": np.full(n, 88_866_816),
            "gridId": begin + np.arange(n) + 1000,
            "sharedMemoryExecuted": chance.choice([8192, 102_400, 233_472], n),
            "graphNodeId": (chance.integers(1, 9, n) << 32) + chance.integers(1, 700, n),
            "graphId": chance.integers(1, 9, n),
        }
        null = {"greenContextId", "qmdBulkReleaseDone", "qmdPreexitDone", "qmdLastCtaDone"}
        values = [[None] * n if c in null else filled.get(c, zero).tolist() for c in columns]
        marks = ", ".join("?" * (len(columns) + 1))
        connection.executemany(f"INSERT INTO {TABLE} VALUES ({marks})", zip(*values, [""] * n, strict=True))
        connection.commit()
    connection.close()


def floor(path: Path, table: str, columns: Sequence[str]) -> tuple[float, int, int]:
    """Best of three: seconds, rows, wrapped sum of all values, of SQLite stepping through the columns."""
    uri = f"file:{path}?mode=ro&immutable=1"
    listed = ", ".join(f'"{column}"' for column in columns)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "read_floor"
        source = Path(__file__).with_suffix(".c")
        compiled = (
            shutil.which("gcc") is not None
            and not subprocess.run(
                ["gcc", "-O2", "-o", str(program), str(source), "-lsqlite3"], capture_output=True, check=False
            ).returncode
        )
        runs = []
        for _ in range(_RUNS + 1):
            if compiled:
                sql = f"SELECT {listed} FROM {table}"
                answer = subprocess.run([program, uri, sql], capture_output=True, text=True, check=True).stdout.split()
                runs.append((float(answer[0]), int(answer[1]), int(answer[2])))
            else:
                runs.append(_floor_in_python(uri, table, columns))
    return min(runs[1:])


def _floor_in_python(uri: str, table: str, columns: Sequence[str]) -> tuple[float, int, int]:
    connection = sqlite3.connect(uri, uri=True)
    # Halves, so that no sum of nanoseconds leaves 64 bits.
    sums = ", ".join(f'sum("{column}" & 4294967295), sum("{column}" >> 32)' for column in columns)
    begin = time.perf_counter()
    count, *halves = connection.execute(f"SELECT count(*), {sums} FROM {table}").fetchone()
    seconds = time.perf_counter() - begin
    connection.close()
    low, high = sum(half or 0 for half in halves[::2]), sum(half or 0 for half in halves[1::2])
    return seconds, count, (low + (high << 32)) % 2**64


def read(path: Path, table: str, columns: Sequence[str], way: str) -> tuple[float, int, int]:
    """Seconds, rows, wrapped sum of all values, of one way of ours; batches are dropped as they come."""
    from tracelens.ingest.readers import ReadReport, read_columns
    from tracelens.ingest.sqlite_file import open_export

    report = ReadReport()
    row_count = total = 0
    begin = time.perf_counter()
    summing = 0.0
    with open_export(path, str(path)) as file:
        where = "1" if way == "adbc" else ""
        loader = "sqlite" if way == "sqlite" else "auto"
        for batch in read_columns(file, table, columns, loader=loader, where=where, report=report):  # type: ignore[arg-type]
            paused = time.perf_counter()
            row_count += batch.num_rows
            for column in batch.columns:
                total += int(column.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64).sum(dtype=np.uint64))
            summing += time.perf_counter() - paused
    seconds = time.perf_counter() - begin - summing
    if report.loader_used != way:
        raise SystemExit(f"asked for {way}, read by {report.loader_used}: {report.fallback_reason}")
    return seconds, row_count, total % 2**64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", nargs="?", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--columns", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.one:
        runs = [read(words.export, TABLE, words.columns.split(","), words.one) for _ in range(_RUNS + 1)]
        print(*min(runs[1:]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        return
    with tempfile.TemporaryDirectory() as folder:
        export = words.export
        if export is None:
            export = Path(folder) / "kernels.sqlite"
            make_kernels(export, words.rows)
        print(f"{'columns':>7} {'way':8} {'seconds':>8} {'M rows/s':>9} {'x floor':>8} {'peak MB':>8}")
        for columns in (EIGHT, EIGHT + SHAPE):
            seconds, row_count, total = floor(export, TABLE, columns)
            print(f"{len(columns):>7} {'floor':8} {seconds:8.3f} {row_count / seconds / 1e6:9.2f} {1:8.2f}")
            for way in words.ways.split(","):
                command = [sys.executable, __file__, str(export), "--one", way, "--columns", ",".join(columns)]
                answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
                if [int(answer[1]), int(answer[2])] != [row_count, total]:
                    raise SystemExit(f"{way} reads other values than SQLite")
                ours = float(answer[0])
                rate = row_count / ours / 1e6
                print(f"{len(columns):>7} {way:8} {ours:8.3f} {rate:9.2f} {ours / seconds:8.2f} {answer[3]:>8}")


if __name__ == "__main__":
    main()
