"""Files that are no capture: exit 2, at most three lines that say what was seen, and nothing written anywhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.commands import WRITE_FILES, registered, words
from tests.running import REAL, needs_real, refused, snapshot, tracelens
from tracelens.simulate import Kernel, write_events


def good(path: Path) -> Path:
    return write_events([Kernel("gemm", 1_000, 2_000, launch=(1, 2)) for _ in range(500)], path)


def text_file(path: Path) -> None:
    path.write_text("hello\n")


def half(path: Path) -> None:
    content = good(path).read_bytes()
    path.write_bytes(content[: len(content) // 2])


def zeroed_header(path: Path) -> None:
    content = good(path).read_bytes()
    path.write_bytes(bytes(100) + content[100:])


def foreign(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as con:
        con.execute("CREATE TABLE users (name TEXT)")


def wal_beside(path: Path) -> None:
    """Changes that are in the log only: an immutable read would miss them."""
    good(path)
    (path.parent / f"{path.name}-wal").write_bytes(b"\x37\x7f\x06\x82" + bytes(500))


def journal_beside(path: Path) -> None:
    good(path)
    (path.parent / f"{path.name}-journal").write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(504))


CASES: dict[str, Callable[[Path], object]] = {
    "text": text_file,
    "empty": lambda path: path.touch(),
    "magic alone": lambda path: path.write_bytes(b"SQLite format 3\0"),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 40),
    "half": half,
    "zeroed header": zeroed_header,
    "foreign": foreign,
    "folder": lambda path: path.mkdir(),
    "fifo": lambda path: os.mkfifo(path),
    "missing": lambda path: None,
    "dangling link": lambda path: path.symlink_to(path.parent / "nowhere"),
    "gzip": lambda path: path.write_bytes(b"\x1f\x8b\x08" + bytes(60)),
    "wal": wal_beside,
    "journal": journal_beside,
    "database without rows": lambda path: write_events([], path),
    "report": lambda path: path.write_bytes(b"not really"),
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("case", list(CASES))
def test_a_file_that_is_no_capture(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / ("x.nsys-rep" if case == "report" else "x.sqlite")
    CASES[case](path)
    monkeypatch.setenv("PATH", "")
    before = snapshot(tmp_path)
    with patience(20):
        said = refused(tracelens("bucket", "x.nsys-rep" if case == "report" else "x.sqlite", cwd=tmp_path))
    assert path.name in said
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("command", registered())
@pytest.mark.parametrize("case", ["half"])
def test_every_command_refuses_alike(command: str, case: str, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    CASES[case](path)
    out = tmp_path / "out"
    out.mkdir()
    form = [] if command in WRITE_FILES else ["--format", "json"]
    refused(tracelens(*words(command, path, out), *form))
    assert list(out.iterdir()) == []


@needs_real
@pytest.mark.parametrize("name", ["no_kernels_2025_5", "no_cuda_2023_1"])
def test_real_exports_without_gpu_work(name: str, tmp_path: Path) -> None:
    shutil.copyfile(REAL / f"{name}.sqlite", tmp_path / "x.sqlite")
    before = snapshot(tmp_path)
    said = refused(tracelens("bucket", "x.sqlite", cwd=tmp_path))
    assert "--trace" in said
    assert snapshot(tmp_path) == before


def test_a_good_file_is_left_as_it_was(tmp_path: Path) -> None:
    """Read from a folder that holds nothing else, and that must hold nothing else afterwards."""
    path = good(tmp_path / "x.sqlite")
    path.chmod(0o444)
    before = snapshot(tmp_path)
    for command in registered():
        if command not in WRITE_FILES:
            assert tracelens(*words(command, "x.sqlite"), cwd=tmp_path).code in (0, 2)
    assert snapshot(tmp_path) == before


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    path = good(tmp_path / "x.sqlite")
    tmp_path.chmod(0o555)
    try:
        assert tracelens("bucket", path).code == 0
        ran = tracelens("bucket", path, "-o", tmp_path / "x.json")
        assert ran.code == (0 if os.geteuid() == 0 else 2)
    finally:
        tmp_path.chmod(0o755)


def test_a_database_that_someone_writes(tmp_path: Path) -> None:
    path = good(tmp_path / "x.sqlite")
    child = os.fork()  # locks are not seen by the process that holds them
    if child == 0:
        con = sqlite3.connect(path, isolation_level=None)
        con.execute("BEGIN EXCLUSIVE")
        (tmp_path / "ready").touch()
        signal.pause()
    try:
        while not (tmp_path / "ready").exists():
            pass
        assert "being written" in refused(tracelens("bucket", path))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert tracelens("bucket", path).code == 0


@contextlib.contextmanager
def patience(seconds: int) -> Iterator[None]:
    """Fails instead of hanging for ever."""

    def late(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
