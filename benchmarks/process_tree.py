"""One command as a process: its time, the processor's, the peak memory of it and of all that it starts, its output.

A page of a mapped file that fits into memory stays there for the next who reads it, and leaves when memory is short.
The kernel counts it as the process's all the same; so there are two peaks.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_PAUSE_S = 0.02


@dataclass(frozen=True)
class Run:
    """What a command took.

    Attributes:
        elapsed_s: from its start to its end.
        processor_s: user and system time, of all threads and of children that ended.
        held_bytes: the most memory that the command and its children held at once and that the system could not take
            back: not the pages of files, which it can read again.
        resident_bytes: the most memory with those pages; what several processes share counts once, here as there.
        output: what it printed.
    """

    elapsed_s: float
    processor_s: float
    held_bytes: int
    resident_bytes: int
    output: bytes


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Run:
    """Runs a command to its end.

    Raises:
        SystemExit: it failed.
    """
    with tempfile.TemporaryFile() as said:
        return _run(command, environment, said)


def _run(command: Sequence[str], environment: Mapping[str, str] | None, said: IO[bytes]) -> Run:
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, env=environment)
    assert process.stdout is not None
    peak = _Peak()
    done = threading.Event()
    sampler = threading.Thread(target=_sample, args=(process.pid, peak, done))
    sampler.start()
    try:
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
    finally:
        elapsed_s = time.perf_counter() - begin
        done.set()
        sampler.join()
    process.stdout.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        said.seek(0)
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}\n{said.read().decode(errors='replace')}")
    return Run(elapsed_s, used.ru_utime + used.ru_stime, peak.held_bytes, peak.resident_bytes, output)


@dataclass
class _Peak:
    """The most of all samples so far; as in `Run`."""

    held_bytes: int = 0
    resident_bytes: int = 0


def _sample(pid: int, peak: _Peak, done: threading.Event) -> None:
    """Of a single process the kernel keeps the peak of all its pages; all else only samples tell.

    Not the peak that wait4 tells: that includes what the process was before it became this program, a copy of ours.
    """
    while not done.wait(_PAUSE_S):
        members = _tree(pid)
        own = _figures_bytes(pid, "status")
        held, resident = own.get("RssAnon", 0) + own.get("RssShmem", 0), own.get("VmHWM", 0)
        if len(members) > 1:
            # Pages that n processes share count 1/n in each.
            shares = [_figures_bytes(one, "smaps_rollup") for one in members]
            held = sum(one.get("Pss_Anon", 0) + one.get("Pss_Shmem", 0) for one in shares)
            resident = max(resident, sum(one.get("Pss", 0) for one in shares))
        peak.held_bytes, peak.resident_bytes = max(peak.held_bytes, held), max(peak.resident_bytes, resident)


def _tree(pid: int) -> list[int]:
    """A process and all below it; those that end meanwhile may be missing."""
    members = [pid]
    for one in members:
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                members += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return members


def _figures_bytes(pid: int, file: str) -> dict[str, int]:
    """What the kernel tells of a process in kB, in bytes by word; nothing once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines]
    return {one[0].removesuffix(":"): int(one[1]) * 1024 for one in words if one[-1:] == ["kB"]}
