"""Thousands of damaged and impossible exports: nothing may crash, hang, or give a wrong total in silence.

    python benchmarks/fuzz_exports.py --mutations 5000

Each mutation changes one drawn capture: bytes flipped, pages zeroed, swapped or torn, the file cut or padded, cells set
to values that no column should hold. The loader then either refuses it (one error of its own), or its answer must be
what a plain walk over SQLite's rows of the same file gives: for every rank, busy time and events, to the nanosecond;
for every table, rows read = rows used + rows left out = COUNT(*). Workers run in processes of their own, so that a
crash is seen and counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

PATIENCE_S = 30
MARGIN_NS, FARTHEST_NS, END_OF_TIME_NS = 60_000_000_000, 2**52, 2**62
EVENT_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": 0,
    "CUPTI_ACTIVITY_KIND_MEMCPY": 1,
    "CUPTI_ACTIVITY_KIND_MEMSET": 2,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": 3,
}
NO_DEVICE = 2**31 - 1


def draw(path: Path) -> Path:
    """A capture of two ranks with rows in every table that is read: some 40 pages."""
    from tracelens.simulate import Copy, Diagnostic, GraphTrace, Kernel, Memset, Process, Range, Thread, write_events

    rows: list[Any] = [Diagnostic("fine")]
    for rank in range(2):
        place: dict[str, Any] = {"pid": 100 + rank, "device": rank}
        rows += [Process(f"Worker_TP{rank}", 100 + rank), Thread(f"Worker_TP{rank}", 100 + rank)]
        payload = {"NCCL communicator ID": 77, "No. of ranks": 2, "Rank": rank}
        rows.append(
            Range(
                "ncclCommInitRank",
                1,
                2,
                pid=100 + rank,
                domain="NCCL",
                registered=True,
                payload=payload,
                payload_as="both",
            )
        )
        for step in range(40):
            at = 100_000 * (step + 1)
            rows.append(Range(f"step[DECODE bs={step % 3}]", at, at + 40_000, pid=100 + rank))
            for place_in_step, name in enumerate(("gemm", "void norm<float>(float *)", "cross_device_reduce_1stage")):
                begin = at + 10_000 * (place_in_step + 1)
                rows.append(Kernel(name, begin, begin + 9_000 + step, launch=(begin - 9_000, begin - 8_000), **place))
            rows.append(Copy("D2H", at + 45_000, at + 46_000, launch=(at + 30_000, at + 31_000), **place))
            if step % 8 == 0:
                rows.append(Memset(at + 46_500, at + 47_000, **place))
                rows.append(GraphTrace(at + 47_000, at + 49_000, **place))
    return write_events(rows, path)


# Mutations: each takes the file's bytes and a source of chance, and gives other bytes.


def flip_bytes(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 2, 4, 16, 64))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def random_bytes(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 3, 10, 40))):
        data[chance.randrange(len(data))] = chance.randrange(256)


def overwrite_stretch(data: bytearray, chance: random.Random) -> None:
    begin, length = chance.randrange(len(data)), chance.choice((4, 16, 100, 1000))
    filler = chance.choice((b"\x00", b"\xff", b"\x80", bytes([chance.randrange(256)])))
    data[begin : begin + length] = filler * len(data[begin : begin + length])


def swap_pages(data: bytearray, chance: random.Random) -> None:
    pages = len(data) // 4096
    one, other = (4096 * chance.randrange(1, pages) for _ in range(2))
    data[one : one + 4096], data[other : other + 4096] = data[other : other + 4096], data[one : one + 4096]


def repeat_page(data: bytearray, chance: random.Random) -> None:
    pages = len(data) // 4096
    source, target = 4096 * chance.randrange(pages), 4096 * chance.randrange(1, pages)
    data[target : target + 4096] = data[source : source + 4096]


def page_heads(data: bytearray, chance: random.Random) -> None:
    """Where a b-tree page says what it is, how many cells it has and where they begin."""
    begin = 4096 * chance.randrange(1, len(data) // 4096)
    for _ in range(chance.choice((1, 2, 5))):
        data[begin + chance.randrange(40)] = chance.randrange(256)


def cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def pad(data: bytearray, chance: random.Random) -> None:
    data += bytes(chance.randrange(256) for _ in range(chance.choice((1, 100, 5000))))


def header(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(100)] = chance.randrange(256)


BYTES: list[Callable[[bytearray, random.Random], None]] = [
    flip_bytes, flip_bytes, flip_bytes, random_bytes, overwrite_stretch, swap_pages, repeat_page, page_heads, page_heads, cut, pad, header,
]  # fmt: skip
CELLS: list[Any] = [None, "x", "12", 1.5, b"\xff\x00", 0, -1, 1, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63), "", float("inf"), 10**12]  # fmt: skip


def set_cells(path: Path, chance: random.Random) -> str:
    """Cells of one column set to what it should not hold, in a copy whose tables forbid nothing."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as con:
        con.execute("PRAGMA writable_schema = ON")
        con.execute("UPDATE sqlite_master SET sql = replace(replace(sql, 'NOT NULL', ''), 'PRIMARY KEY', '')")
        con.execute("PRAGMA writable_schema = RESET")
        names = [name for (name,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        done = []
        for _ in range(chance.choice((1, 1, 2, 4))):
            table = chance.choice(names)
            column = chance.choice([row[1] for row in con.execute(f'PRAGMA table_info("{table}")')])
            value = chance.choice(CELLS)
            where = chance.choice(("", f"WHERE rowid % {chance.randrange(2, 9)} = 0", "WHERE rowid = 1"))
            with contextlib.suppress(sqlite3.Error):
                con.execute(f'UPDATE "{table}" SET "{column}" = ? {where}', (value,))
            done.append(f"{table}.{column} = {value!r} {where}")
    return "; ".join(done)


def mutate(base: bytes, path: Path, number: int) -> str:
    """Writes mutation `number` of the base; the number alone decides what it is."""
    chance = random.Random(number)
    for companion in ("-wal", "-journal", "-shm"):
        path.with_name(path.name + companion).unlink(missing_ok=True)
    if number % 4 == 0:
        path.write_bytes(base)
        return f"cells: {set_cells(path, chance)}"
    data = bytearray(base)
    chosen = chance.choice(BYTES)
    chosen(data, chance)
    path.write_bytes(data)
    return chosen.__name__


# What the answer must be.


def union_ns(intervals: list[tuple[int, int]]) -> int:
    total, reach = 0, -(2**63)
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


def walked(path: Path, shift_ns: int, session_ns: int | None) -> dict[tuple[int, int], tuple[int, int]]:
    """(globalPid, device) -> (events, busy ns), from SQLite's rows."""
    rows: list[tuple[int, int, int, int, int]] = []
    main: dict[int, Counter[int]] = {}
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as con:
        con.text_factory = bytes
        present = {str(name, "utf-8", "replace") for (name,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}  # fmt: skip
        for table, kind in EVENT_TABLES.items():
            if table not in present:
                continue
            columns = {row[1].decode("utf-8", "replace") for row in con.execute(f'PRAGMA table_info("{table}")')}
            if not {"start", "end", "deviceId"} <= columns:
                continue
            pid = "globalPid" if "globalPid" in columns else "0"
            for cells in con.execute(f'SELECT {pid}, deviceId, start, "end" FROM "{table}" NOT INDEXED'):
                process, device, start, end = (cell if isinstance(cell, int) else None for cell in cells)
                process = process or 0
                if None in (device, start, end):
                    continue
                start, end = start - shift_ns, end - shift_ns  # type: ignore[operator]
                if not -(2**63) <= min(start, end) <= max(start, end) < 2**63 or not (0 <= device <= 1_000_000 or (kind == 3 and device == NO_DEVICE)):  # type: ignore[operator]  # fmt: skip
                    continue
                if start == end == 0 or end < start or start < -MARGIN_NS or end > END_OF_TIME_NS:
                    continue
                rows.append((process, device, start, end, kind))  # type: ignore[arg-type]
    if session_ns is not None:
        rows = [row for row in rows if row[3] <= min(session_ns + MARGIN_NS, END_OF_TIME_NS)]
    else:
        middles = sorted(row[2] for row in rows)
        middle = middles[(len(middles) - 1) // 2] if middles else 0
        rows = [row for row in rows if abs(row[2] - middle) <= FARTHEST_NS and abs(row[3] - middle) <= FARTHEST_NS]
    for process, device, start, end, kind in rows:
        if kind == 0:
            main.setdefault(process, Counter())[device] += end - start
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for process, device, start, end, kind in rows:
        if kind == 3 and device == NO_DEVICE:
            ranked = main.get(process) or Counter(row[1] for row in rows if row[0] == process and row[1] != NO_DEVICE)
            device = min((one for one in ranked if ranked[one] == max(ranked.values())), default=0)
        found.setdefault((process, device), []).append((start, end))
    return {place: (len(intervals), union_ns(intervals)) for place, intervals in found.items()}


def judge(path: Path) -> str:
    """`refused: <kind>`, `right`, or what is wrong."""
    from tracelens.analyses.buckets import buckets
    from tracelens.errors import TracelensError
    from tracelens.trace import Options, open_trace

    try:
        with open_trace([str(path)], Options(use_cache=False)) as trace:
            table = buckets(trace).buckets
            trace.ensure("launch")
            trace.ensure("nvtx")
            shift_ns, session_ns = trace.db.execute("SELECT shift_ns, session_ns FROM raw_export").fetchall()[0]
            ranks = trace.db.execute("SELECT rank, global_pid, device FROM rank_place").fetchall()
            ledger = trace.db.execute("SELECT table_name, rows_read, rows_used, rows_excluded FROM ledger").fetchall()
            told = {notice.code for notice in trace.notices}
    except TracelensError as error:
        return (
            f"refused: {type(error).__name__}" if str(error).count("\n") <= 1 else f"WRONG: error of many lines {error}"
        )
    try:
        truth = walked(path, shift_ns, session_ns)
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as con:
            counts = {
                name: con.execute(f'SELECT COUNT(*) FROM "{name}" NOT INDEXED').fetchone()[0] for name, *_ in ledger
            }
    except sqlite3.Error as error:
        return f"WRONG: answered what SQLite cannot read ({error})"
    for rank, pid, device in ranks:
        mine = {row["bucket"]: row for row in table.rows(named=True) if row["rank"] == rank}
        events = sum(row["kernel_count"] for row in mine.values())
        busy = sum(row["elapsed_ns"] for name, row in mine.items() if name != "idle")
        if (events, busy) != truth.get((pid, device), (0, 0)):
            return f"WRONG: rank {rank} has {events} events, {busy} ns; the rows say {truth.get((pid, device))}"
    for name, read, used, excluded in ledger:
        if read != counts[name] or used + excluded != read or min(used, excluded) < 0:
            return f"WRONG: {name} holds {counts[name]} rows; read {read}, used {used}, left out {excluded}"
    return f"right, {len(told)} notices" if told else "right"


def work(numbers: range, base_path: Path, folder: Path) -> Iterator[dict[str, Any]]:
    base = base_path.read_bytes()
    path = folder / "mutated.sqlite"

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    for number in numbers:
        what = mutate(base, path, number)
        begun = time.monotonic()
        signal.alarm(PATIENCE_S)
        try:
            verdict = judge(path)
        except TimeoutError:
            verdict = f"HUNG for {PATIENCE_S} s"
        except Exception as error:
            import traceback

            place = traceback.extract_tb(error.__traceback__)[-1]
            verdict = (
                f"CRASHED: {type(error).__name__}: {str(error)[:200]} at {Path(place.filename).name}:{place.lineno}"
            )
        finally:
            signal.alarm(0)
        yield {"number": number, "what": what, "verdict": verdict, "s": round(time.monotonic() - begun, 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=5000)
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first mutation; the number decides what it is"
    )
    parser.add_argument("--worker", nargs=4, metavar=("FIRST", "END", "BASE", "FOLDER"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        first, end, base, folder = asked.worker
        for one in work(range(int(first), int(end)), Path(base), Path(folder)):
            print(json.dumps(one), flush=True)
        return 0
    verdicts: Counter[str] = Counter()
    bad: list[dict[str, Any]] = []
    slowest = 0.0
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        base = draw(Path(folder) / "base.sqlite")
        number, end = asked.first, asked.first + asked.mutations
        while number < end:
            command = [sys.executable, __file__, "--worker", str(number), str(end), str(base), folder]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
                assert worker.stdout is not None
                for line in worker.stdout:
                    one = json.loads(line)
                    number = one["number"] + 1
                    slowest = max(slowest, one["s"])
                    kind = (
                        one["verdict"].split(",")[0]
                        if one["verdict"].startswith("right")
                        else one["verdict"].split(" at ")[0]
                    )
                    if not one["verdict"].startswith(("right", "refused")):
                        bad.append(one)
                        kind = kind.split(":")[0]
                    verdicts[kind] += 1
            if worker.returncode and number < end:
                bad.append({"number": number, "verdict": f"DIED with {worker.returncode}"})
                verdicts["DIED"] += 1
                number += 1
    for kind, count in sorted(verdicts.items()):
        print(f"{count:6}  {kind}")
    print(f"{sum(verdicts.values()):6}  mutations in {time.monotonic() - begun:.0f} s, the slowest {slowest:.2f} s")
    for one in bad[:40]:
        print(json.dumps(one))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
