"""How fast integer columns of a large table are read, against the floor: SQLite stepping through them in C.

    python benchmarks/read_floor.py --kernels 10M     makes a capture in a temporary folder, and removes it
    python benchmarks/read_floor.py EXPORT.sqlite     measures a capture that is there

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
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
EIGHT = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName", "graphNodeId"]
SHAPE = ["contextId", "shortName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "graphId"]
WAYS = ("pages", "adbc", "sqlite")
_RUNS = 3


@dataclass(frozen=True, order=True)
class Reading:
    """One reading of a table.

    Attributes:
        elapsed_s, processor_s: how long it took, opening the file excluded.
        rows: how many.
        total: the wrapped sum of all values, as integers; nulls count 0.
    """

    elapsed_s: float
    processor_s: float
    rows: int
    total: int


class Floor:
    """SQLite stepping through columns; compiled once, into a folder."""

    def __init__(self, folder: Path) -> None:
        self._program: Path | None = folder / "read_floor"
        command = ["gcc", "-O2", "-o", str(self._program), str(Path(__file__).with_suffix(".c")), "-lsqlite3"]
        if shutil.which("gcc") is None or subprocess.run(command, capture_output=True, check=False).returncode:
            self._program = None

    def read(self, paths: Sequence[Path], columns: Sequence[str] = EIGHT, table: str = TABLE) -> Reading:
        """One reading of all files, one after the other."""
        read = [self._read_one(f"file:{path}?mode=ro&immutable=1", table, columns) for path in paths]
        return Reading(
            sum(one.elapsed_s for one in read),
            sum(one.processor_s for one in read),
            sum(one.rows for one in read),
            sum(one.total for one in read) % 2**64,
        )

    def _read_one(self, uri: str, table: str, columns: Sequence[str]) -> Reading:
        if self._program is None:
            return _floor_in_python(uri, table, columns)
        listed = ", ".join(f'"{column}"' for column in columns)
        sql = f"SELECT {listed} FROM {table}"
        told = subprocess.run([self._program, uri, sql], capture_output=True, text=True, check=True).stdout.split()
        return Reading(float(told[0]), float(told[1]), int(told[2]), int(told[3]))


def _floor_in_python(uri: str, table: str, columns: Sequence[str]) -> Reading:
    connection = sqlite3.connect(uri, uri=True)
    # Halves, so that no sum of nanoseconds leaves 64 bits.
    sums = ", ".join(f'sum("{column}" & 4294967295), sum("{column}" >> 32)' for column in columns)
    begin, used = time.perf_counter(), time.process_time()
    count, *halves = connection.execute(f"SELECT count(*), {sums} FROM {table}").fetchone()
    elapsed_s, processor_s = time.perf_counter() - begin, time.process_time() - used
    connection.close()
    low, high = sum(half or 0 for half in halves[::2]), sum(half or 0 for half in halves[1::2])
    return Reading(elapsed_s, processor_s, count, (low + (high << 32)) % 2**64)


def read(path: Path, table: str, columns: Sequence[str], way: str) -> Reading:
    """One reading by a way of ours; batches are dropped as they come."""
    from tracelens.ingest.readers import ReadReport, read_columns
    from tracelens.ingest.sqlite_file import open_export

    report = ReadReport()
    row_count = total = 0
    begin, used = time.perf_counter(), time.process_time()
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
    elapsed_s, processor_s = time.perf_counter() - begin - summing, time.process_time() - used - summing
    if report.loader_used != way:
        raise SystemExit(f"asked for {way}, read by {report.loader_used}: {report.fallback_reason}")
    return Reading(elapsed_s, processor_s, row_count, total % 2**64)


def main() -> None:
    from benchmarks.captures import Shape, count

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", nargs="?", type=Path)
    parser.add_argument("--kernels", type=count, default=1_000_000)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--columns", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.one:
        best = min([read(words.export, TABLE, words.columns.split(","), words.one) for _ in range(_RUNS + 1)][1:])
        print(best.elapsed_s, best.rows, best.total, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export = words.export or Shape(words.kernels).make(folder / "made")[0]
        floor = Floor(folder)
        print(f"{'columns':>7} {'way':8} {'seconds':>8} {'M rows/s':>9} {'x floor':>8} {'peak MB':>8}")
        for columns in (EIGHT, EIGHT + SHAPE):
            base = min([floor.read([export], columns) for _ in range(_RUNS + 1)][1:])
            rate = base.rows / base.elapsed_s / 1e6
            print(f"{len(columns):>7} {'floor':8} {base.elapsed_s:8.3f} {rate:9.2f} {1:8.2f}")
            for way in words.ways.split(","):
                command = [sys.executable, __file__, str(export), "--one", way, "--columns", ",".join(columns)]
                answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
                if [int(answer[1]), int(answer[2])] != [base.rows, base.total]:
                    raise SystemExit(f"{way} reads other values than SQLite")
                ours = float(answer[0])
                rate = base.rows / ours / 1e6
                print(f"{len(columns):>7} {way:8} {ours:8.3f} {rate:9.2f} {ours / base.elapsed_s:8.2f} {answer[3]:>8}")


if __name__ == "__main__":
    main()
