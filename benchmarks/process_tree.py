"""One command as a process: its time, the processor's, the peak memory of it and of all that it starts, its output."""

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
        peak_bytes: the most memory that the command and its children held at once; pages that several of them share
            count once.
        output: what it printed.
    """

    elapsed_s: float
    processor_s: float
    peak_bytes: int
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
    sampled = [0]
    done = threading.Event()
    sampler = threading.Thread(target=_sample, args=(process.pid, sampled, done))
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
    return Run(elapsed_s, used.ru_utime + used.ru_stime, sampled[0], output)


def _sample(pid: int, peak: list[int], done: threading.Event) -> None:
    """Of a single process the kernel keeps the peak; of several at once only samples tell.

    Not the peak that wait4 tells: that includes what the process was before it became this program, a copy of ours.
    """
    while not done.wait(_PAUSE_S):
        members = _tree(pid)
        together = sum(map(_proportional_bytes, members)) if len(members) > 1 else 0
        peak[0] = max(peak[0], together, _kilobytes(pid, "status", "VmHWM:"))


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


def _proportional_bytes(pid: int) -> int:
    """Memory of a process, pages shared by n processes counted 1/n; 0 once it has ended."""
    return _kilobytes(pid, "smaps_rollup", "Pss:")


def _kilobytes(pid: int, file: str, word: str) -> int:
    """A figure that the kernel tells of a process in kB, in bytes; 0 once it has ended."""
    try:
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(word):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
