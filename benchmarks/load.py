"""How fast a capture answers its first question, the next one and one from the stored load, against the floor.

    python benchmarks/load.py                          makes a capture of 1 M kernels in a temporary folder, and removes it
    python benchmarks/load.py --repeat 32              of 10 M kernels; 128: of 40 M
    python benchmarks/load.py EXPORT.sqlite            measures a capture that is there
    python benchmarks/load.py --commands bucket,skew   other questions than `bucket`

The floor is SQLite stepping through eight integer columns of the kernel table in C (`read_floor.c`), measured in the
same run. Each question is a process of its own, start-up and imports included:

    --no-cache   reads the capture, stores nothing         cold     reads the capture and stores the load
    cached       begins from the stored load               floor    1

Ratios of elapsed time depend on what else the machine does; those of processor time (user and system, all threads)
hardly do. Memory is the peak of the process, which has no children.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.read_floor import EIGHT, TABLE  # noqa: E402

_RUNS = 3


class Run:
    """What one process took.

    Attributes:
        elapsed_s, processor_s: time, s.
        peak_mb: largest resident size, MB.
        answer: what it printed.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        self.answer = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        self.elapsed_s = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
        self.processor_s = used.ru_utime + used.ru_stime
        self.peak_mb = used.ru_maxrss / 1000


def make_capture(folder: Path, repeat: int) -> Path:
    """A node-level graph capture of eight ranks in one export; 312,000 kernels times `repeat`."""
    command = [sys.executable, str(ROOT / "cli.py"), "simulate", "-o", str(folder), "--tp", "8", "--steps", "100"]
    subprocess.run([*command, "--set", f"repeat={repeat}"], check=True, stdout=subprocess.DEVNULL)
    (path,) = folder.glob("*.sqlite")
    return path


def floor(path: Path, folder: Path) -> list[Run]:
    """SQLite stepping through eight columns, several times."""
    program = folder / "read_floor"
    subprocess.run(["gcc", "-O2", "-o", str(program), str(ROOT / "benchmarks/read_floor.c"), "-lsqlite3"], check=True)
    listed = ", ".join(f'"{column}"' for column in EIGHT)
    sql = f"SELECT {listed} FROM {TABLE}"
    return [Run([str(program), f"file:{path}?mode=ro&immutable=1", sql], dict(os.environ)) for _ in range(_RUNS + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", nargs="?", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--commands", default="bucket")
    parser.add_argument("--options", default="", help="more words for every command, e.g. '--threads 1 --memory 1GB'")
    parser.add_argument("--runs", type=int, default=_RUNS)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = words.export.resolve() if words.export else make_capture(folder / "made", words.repeat)
        base = floor(path, folder)[1:]
        floor_s, floor_cpu_s = min(one.elapsed_s for one in base), min(one.processor_s for one in base)
        size_mb = path.stat().st_size / 1e6
        print(f"{size_mb:,.0f} MB; floor {floor_s:.2f} s elapsed, {floor_cpu_s:.2f} s processor; best of {words.runs}")
        print(f"{'command':14} {'way':10} {'s':>7} {'x floor':>8} {'cpu s':>7} {'x floor':>8} {'peak MB':>8}")
        environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
        for command in words.commands.split(","):
            call = [
                sys.executable,
                str(ROOT / "cli.py"),
                command,
                str(path),
                "--format",
                "json",
                *words.options.split(),
            ]
            ways: dict[str, list[Run]] = {"--no-cache": [], "cold": [], "cached": []}
            for _ in range(words.runs):
                ways["--no-cache"].append(Run([*call, "--no-cache"], environment))
                subprocess.run([sys.executable, str(ROOT / "cli.py"), "cache", "clear"], env=environment, check=True, stdout=subprocess.DEVNULL)  # fmt: skip
                ways["cold"].append(Run(call, environment))
                ways["cached"].append(Run(call, environment))
            answers = {one.answer for runs in ways.values() for one in runs}
            if len(answers) > 1:
                raise SystemExit(f"{command}: the answers differ")
            for way, runs in ways.items():
                elapsed, cpu = min(one.elapsed_s for one in runs), min(one.processor_s for one in runs)
                peak = max(one.peak_mb for one in runs)
                print(f"{command:14} {way:10} {elapsed:7.2f} {elapsed / floor_s:8.2f} {cpu:7.2f} {cpu / floor_cpu_s:8.2f} {peak:8.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
