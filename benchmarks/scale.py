"""What every command takes - time, the processor's time, memory, output - as the capture grows: a table in Markdown.

    python benchmarks/scale.py                                   1 M kernels, 8 ranks, CUDA graphs: a few minutes
    python benchmarks/scale.py --kernels 1M,10M,40M              and how time and memory grow
    python benchmarks/scale.py --launch graph,eager --files one,each --ranks 8,64,512
    python benchmarks/scale.py --launch eager --ranges 10M       with ten million NVTX rows
    python benchmarks/scale.py --commands bucket,skew --ways cached,warm --repeats 5 --options "--memory 1GB"
    python benchmarks/scale.py EXPORT.sqlite                     a capture that is there

Captures are simulated, each in a temporary folder, and removed. Times are ratios to the floor, measured between the
commands of the same capture: SQLite stepping through eight integer columns of the kernel tables in C, one after the
other (`read_floor.c`), with the files in the page cache. Of each figure the median of the repeats counts.

    cold      a process that reads the capture, and stores the load
    cached    a process that begins from the stored load; start-up and imports are included in both
    warm      the question alone, in a process that has loaded the capture

A cell like `0.90 (1.41)` is elapsed time, and in brackets processor time of all threads, both over the floor's. `MB` is
the peak of memory that the process and its children held and the system could not take back, in samples 20 ms apart; in
brackets, where it is over 10 % more, the peak with the pages of files that lie in memory as long as there is room: of
programs, and of arrays beyond `--memory`. `time ^` and `memory ^` are the growth from the next smaller capture of the
same kind, cold: the exponent of processor time and of memory held over the number of kernels; 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.captures import Shape, count  # noqa: E402
from benchmarks.process_tree import Run, run  # noqa: E402
from benchmarks.read_floor import Floor, Reading  # noqa: E402

_QUERY = """
    SELECT rank, bucket, count(*) AS n, sum(end_ns - start_ns)::BIGINT AS ns FROM event JOIN kernel_name USING (name_id)
    GROUP BY ALL ORDER BY ALL
"""
_RANGES_QUERY = "SELECT text, count(*) AS n FROM nvtx GROUP BY text ORDER BY n DESC, text LIMIT 20"
COMMANDS = ("info", "bucket", "steps", "gaps", "collectives", "skew", "compare", "report", "export", "sql")
_FILES = {"report": "report.html", "export": "tables.parquet"}
WAYS = ("cold", "cached", "warm")
_MUCH_MORE = 1.1
_HEAD = (
    "kernels", "ranks", "launch", "files", "command", "cold", "cached", "warm",
    "cold MB", "cached MB", "output MB", "time ^", "memory ^",
)  # fmt: skip


@dataclass
class Figures:
    """What one command took on one capture, repeat by repeat.

    Attributes:
        runs: by way; warm runs hold the question's time alone.
        output_bytes: what it printed, or the file that it wrote.
    """

    runs: dict[str, list[Run]] = field(default_factory=dict)
    output_bytes: int = 0

    def cell(self, way: str, floor: tuple[float, float], files: int = 1) -> str:
        """Elapsed and processor time over the floor's of so many captures."""
        runs = self.runs.get(way)
        if not runs:
            return ""
        elapsed, processor = median(one.elapsed_s for one in runs), median(one.processor_s for one in runs)
        return f"{elapsed / floor[0] / files:.2f} ({processor / floor[1] / files:.2f})"

    def held_bytes(self, way: str) -> float | None:
        """Median peak of the memory that could not be taken back."""
        runs = self.runs.get(way)
        return median(one.held_bytes for one in runs) if runs else None

    def memory_cell(self, way: str) -> str:
        """That peak in MB, and the one with the pages of files where it is much more."""
        runs = self.runs.get(way)
        if not runs:
            return ""
        held, resident = (median(getattr(one, name) for one in runs) for name in ("held_bytes", "resident_bytes"))
        return f"{held / 1e6:,.0f}" + (f" ({resident / 1e6:,.0f})" if resident > _MUCH_MORE * held else "")

    def processor_s(self, way: str) -> float | None:
        """Median processor time."""
        runs = self.runs.get(way)
        return median(one.processor_s for one in runs) if runs else None


class Bench:
    """One capture - and, to compare with, another - and all that is measured on it."""

    def __init__(self, folder: Path, captures: Sequence[Sequence[Path]], ranges: bool, options: Sequence[str]) -> None:
        self.folder, self.options = folder, options
        self.query = _RANGES_QUERY if ranges else _QUERY
        self.captures = captures
        self.traces = [str(paths[0] if len(paths) == 1 else paths[0].parent) for paths in captures]
        self.home = folder / "home"
        self.floor = Floor(folder)
        self.floors: list[Reading] = []
        self.floor.read(captures[0])  # fills the page cache

    def floor_s(self) -> tuple[float, float]:
        """The floor's elapsed and processor time."""
        return median(one.elapsed_s for one in self.floors), median(one.processor_s for one in self.floors)

    def measure(self, command: str, ways: Sequence[str], repeats: int) -> Figures:
        """Runs a command in every way that is wanted.

        Raises:
            SystemExit: it failed, or a stored load gave another answer.
        """
        environment = os.environ | {"XDG_CACHE_HOME": str(self.home)}
        figures = Figures()
        out = self.folder / "out"
        written = out / _FILES.get(command, "")
        for _ in range(repeats):
            self.floors.append(self.floor.read(self.captures[0]))
            shutil.rmtree(self.home, ignore_errors=True)
            answers: list[bytes] = []
            for way in ("cold", "cached"):
                # A question that is asked of a stored load needs one.
                if way in ways or way == "cold":
                    _empty(out)
                    done = run(self._call(command, written), environment)
                    answers.append(done.output)
                    if way in ways:
                        figures.runs.setdefault(way, []).append(done)
            if "warm" in ways and command != "export":
                _empty(out)
                call = [
                    sys.executable,
                    __file__,
                    "warm",
                    command,
                    str(written),
                    self.query,
                    *self.traces[: self._sides(command)],
                ]
                figures.runs.setdefault("warm", []).append(_warm_run(run(call, environment)))
            if len(set(answers)) > 1:
                raise SystemExit(f"{command}: the stored load gave another answer")
            figures.output_bytes = sum(one.stat().st_size for one in out.iterdir()) or len(answers[0])
        return figures

    def _sides(self, command: str) -> int:
        return 2 if command == "compare" else 1

    def _call(self, command: str, written: Path) -> list[str]:
        call = [sys.executable, str(ROOT / "cli.py"), command, *self.traces[: self._sides(command)]]
        if command == "sql":
            call.append(self.query)
        return [*call, *(["-o", str(written)] if command in _FILES else ["--format", "json"]), *self.options]


def answer(command: str, written: str, query: str, traces: Sequence[str]) -> None:
    """Loads captures, then asks: prints what the question alone took."""
    import tracelens

    loaded = [tracelens.load(trace) for trace in traces]
    (trace, *_) = loaded
    questions = {
        "info": trace.info,
        "bucket": trace.buckets,
        "steps": trace.steps,
        "gaps": trace.gaps,
        "collectives": trace.collectives,
        "skew": trace.skew,
        "compare": lambda: tracelens.compare(*loaded),
        "report": lambda: trace.report(written),
        "sql": lambda: trace.sql(query),
    }
    begin, used = time.perf_counter(), time.process_time()
    questions[command]()
    print(json.dumps([time.perf_counter() - begin, time.process_time() - used]))


def _warm_run(whole: Run) -> Run:
    elapsed_s, processor_s = json.loads(whole.output)
    return replace(whole, elapsed_s=elapsed_s, processor_s=processor_s)


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def rows_of(shape: Shape | None, kernels: int, bench: Bench, measured: dict[str, Figures], before: dict[str, tuple[float, float, float]]) -> list[list[str]]:  # fmt: skip
    """The table's rows of one capture; `before` holds kernels, time and memory of the next smaller one, and gets its."""
    floor = bench.floor_s()
    what = [_short(kernels), *([str(shape.ranks), shape.launch, shape.files] if shape else ["", "", ""])]
    rows = [[*what, "floor", f"1 = {floor[0]:.3f} s", "", "", "", "", "", "", ""]]
    for command, figures in measured.items():
        files = len(bench.captures) if command == "compare" else 1
        cells = [figures.cell(way, floor, files) for way in WAYS]
        growth = ["", ""]
        time_s, held = figures.processor_s("cold"), figures.held_bytes("cold")
        if time_s is not None and held is not None:
            if command in before:
                ratio = math.log(kernels / before[command][0])
                growth = [f"{math.log(new / old) / ratio:.2f}" for new, old in zip((time_s, held), before[command][1:], strict=True)]  # fmt: skip
            before[command] = (kernels, time_s, held)
        shown = [figures.memory_cell(way) for way in WAYS[:2]]
        rows.append([*what, command, *cells, *shown, f"{figures.output_bytes / 1e6:.2f}", *growth])
    return rows


def _short(number: int) -> str:
    return f"{number / 1e6:.1f} M" if number >= 100_000 else f"{number:,}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table with its head."""
    lines = [_HEAD, ["---"] * 5 + ["---:"] * (len(_HEAD) - 5), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    """What it was measured on."""
    cpu = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    packages = ", ".join(f"{name} {version(name)}" for name in ("duckdb", "polars", "pyarrow", "numpy"))
    return f"{os.cpu_count()} cores ({cpu}), {memory:.0f} GB of memory; Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {packages}."  # fmt: skip


def _measure(shape: Shape, words: argparse.Namespace, folder: Path) -> tuple[Bench, int, dict[str, Figures]]:
    compared = "compare" in words.commands
    if words.export:
        captures = [[words.export.resolve()]] * (1 + compared)
    else:
        shapes = [shape, replace(shape, seed=1)] if compared else [shape]
        captures = [one.make(folder / f"capture{one.seed}") for one in shapes]
    bench = Bench(folder, captures, bool(shape.ranges), words.options.split())
    measured = {}
    for command in words.commands:
        print(
            f"{shape.kernels:,} kernels, {shape.ranks} ranks, {shape.launch}, {shape.files}: {command}", file=sys.stderr
        )
        measured[command] = bench.measure(command, words.ways, words.repeats)
    base: Reading = bench.floors[0]
    return bench, base.rows, measured


def main(arguments: Sequence[str]) -> None:
    def listed(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", nargs="?", type=Path)
    parser.add_argument("--kernels", type=listed, default=["1M"])
    parser.add_argument("--ranks", type=listed, default=["8"])
    parser.add_argument("--launch", type=listed, default=["graph"], help="graph, eager")
    parser.add_argument("--files", type=listed, default=["one"], help="one, each")
    parser.add_argument("--ranges", type=count, default=0, help="NVTX rows beside those of steps")
    parser.add_argument("--commands", type=listed, default=list(COMMANDS), help=",".join(COMMANDS))
    parser.add_argument("--ways", type=listed, default=list(WAYS), help=",".join(WAYS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--options", default="", help="more words for every command, e.g. '--threads 1 --memory 1GB'")
    words = parser.parse_args(arguments)
    if strange := (set(words.commands) - set(COMMANDS)) | (set(words.ways) - set(WAYS)):
        parser.error(f"neither a command nor a way: {', '.join(sorted(strange))}")
    rows: list[list[str]] = []
    for launch, files, ranks in product(words.launch, words.files, map(int, words.ranks)):
        before: dict[str, tuple[float, float, float]] = {}
        for kernels in sorted(count(one) for one in words.kernels):
            shape = Shape(kernels, ranks, launch, files, words.ranges)
            with tempfile.TemporaryDirectory() as name:
                bench, found, measured = _measure(shape, words, Path(name))
                rows += rows_of(None if words.export else shape, found, bench, measured, before)
    print(f"{machine()}\nMedian of {words.repeats}.\n\n{markdown(rows)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["warm"]:
        answer(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
    else:
        main(sys.argv[1:])
