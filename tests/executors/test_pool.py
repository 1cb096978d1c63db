"""A pool of real processes: the same answer from any number of them, and nothing left of them however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.executors.drawn import LIFTED, lift, rank_files, tables
from tests.running import edit, refused, tracelens
from tracelens.executors import pool
from tracelens.executors.means import Means
from tracelens.executors.portion import Portion
from tracelens.ingest.discover import Found

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return rank_files(tmp_path_factory.mktemp("made"))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that pools start."""
    lift(monkeypatch)
    processes: list[subprocess.Popen[bytes]] = []

    class Listed(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            processes.append(self)

    monkeypatch.setattr(pool.subprocess, "Popen", Listed)
    return processes


def test_several_processes_give_the_same(made: list[str], started: list[Any]) -> None:
    expected = tables(made, threads=1)
    assert started == []
    assert tables(made, threads=4) == expected
    assert len(started) == 4 * 3  # for events, launches and ranges
    assert all(one.returncode == -signal.SIGKILL for one in started)


def test_where_a_pool_pays() -> None:
    def count(threads: int, files: int, size: int, kind: Any = "sqlite", memory: int = 10**10) -> int:
        portions = [Portion(n, (Found(Path(f"{n}"), f"{n}", kind),)) for n in range(files)]
        return pool.worker_count(Means(threads=threads, memory_bytes=memory), portions, size)

    assert count(8, 16, 10**9) == 8
    assert count(8, 5, 10**9) == 5  # no more than there is to do
    assert count(64, 64, 10**9, memory=2 * 10**9) == 5  # each with memory enough
    assert count(3, 16, 10**9) == 1  # one process already uses two threads
    assert count(8, 16, 10**7) == 1  # read before the others have begun
    assert count(8, 512, 10**7) == 8  # small files, but many
    assert count(8, 16, 10**9, "report") == 1


def test_of_several_bad_files_the_first_is_told(
    tmp_path: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one process tells it, though another comes upon the later one first."""
    paths = rank_files(tmp_path)
    edit(Path(paths[1]), "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
    Path(paths[2]).write_bytes(b"no database")
    told = [refused(tracelens("info", *paths, "--no-cache", "--threads", str(count))) for count in (1, 4)]
    assert started
    assert told[0] == told[1]
    assert "rank1.sqlite" in told[0]


def test_a_process_that_is_killed(made: list[str], started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system does for lack of memory."""
    sending = pool.Pool._ask

    def ask(self: pool.Pool, worker: int, task: int, what: str, arguments: Any) -> None:
        if task == 2:
            self._workers[worker].process.kill()
        sending(self, worker, task, what, arguments)

    monkeypatch.setattr(pool.Pool, "_ask", ask)
    told = refused(tracelens("info", *made, "--no-cache", "--threads", "4"))
    assert "the process that read " in told
    assert "rank2.sqlite was killed by signal 9" in told
    assert "--threads" in told
    assert all(one.returncode is not None for one in started)


def test_a_disk_that_is_full_elsewhere(made: list[str], started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """What the processes cannot write, this one reads in memory."""
    expected = tracelens("info", *made, "--no-cache", "--threads", "1", "--format", "json")
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(nowhere))
    nowhere.chmod(0o500)
    if os.access(nowhere, os.W_OK):  # root may write anywhere
        nowhere.rmdir()
        nowhere.write_text("")
    ran = tracelens("info", *made, "--no-cache", "--threads", "4", "--format", "json")
    assert (ran.code, ran.out) == (0, expected.out)
    assert "no temporary file could be written" in ran.err


def _children(parent: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False)
    return [int(one) for one in found.stdout.split()]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-C", "killed"])
@pytest.mark.parametrize("delay", [0.0, 0.4])
def test_the_processes_end_with_the_one_that_started_them(
    made: list[str], tmp_path: Path, number: signal.Signals, delay: float
) -> None:
    """Ctrl-C, or a kill that nobody can clean up after: no process outlives it, and ctrl-C leaves no file."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    running = subprocess.Popen(
        [sys.executable, "-c", LIFTED, "skew", *made, "--threads", "4", "--no-cache"],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    deadline = time.monotonic() + 60
    children: list[int] = []
    while len(children) < 4 and time.monotonic() < deadline and running.poll() is None:
        children = _children(running.pid)
        time.sleep(0.02)
    assert len(children) == 4
    time.sleep(delay)
    running.send_signal(number)
    _, err = running.communicate(timeout=60)
    while any(map(_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_alive, children))
    if number == signal.SIGINT:
        assert running.returncode == 130, err
        assert "Traceback" not in err
        assert list(folder.iterdir()) == []
