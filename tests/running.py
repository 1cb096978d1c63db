"""Runs commands as a user would, in this process, and looks at what they leave behind."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REAL = Path(__file__).resolve().parents[2] / "shared" / "exports"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="no folder of real exports beside this checkout")


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.out)
        return answer

    @property
    def lines(self) -> int:
        return len(self.err.splitlines())


def tracelens(*arguments: str | Path, cwd: Path | None = None) -> Ran:
    """One command line, run in this process."""
    from tracelens.cli import run

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    with working_in(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(one) for one in arguments])
    out.flush()
    err.flush()
    return Ran(code, *(stream.buffer.getvalue().decode("utf-8", "surrogateescape") for stream in (out, err)))  # type: ignore[attr-defined]


@contextlib.contextmanager
def working_in(folder: Path | None) -> Iterator[None]:
    before = Path.cwd()
    if folder is not None:
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def refused(ran: Ran) -> str:
    """The refusal: exit 2, at most three lines, no traceback, nothing on stdout."""
    assert ran.code == 2, (ran.code, ran.out[:500], ran.err[-2000:])
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert 1 <= ran.lines <= 3, ran.err
    return ran.err


def snapshot(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Names, sizes, times and content of everything in a folder."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else ""
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_size, status.st_mtime_ns, digest)
    return found


def tables(path: Path) -> dict[str, list[str]]:
    """Tables of an SQLite file and their columns."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as con:
        names = [name for (name,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        return {name: [row[1] for row in con.execute(f'PRAGMA table_info("{name}")')] for name in names}


def shuffled(source: Path, target: Path, seed: int = 1) -> Path:
    """A copy whose tables hold the same rows in another order (and under other row ids)."""
    shutil.copyfile(source, target)
    draw = random.Random(seed)
    with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as con:
        con.text_factory = bytes
        con.execute("BEGIN")
        for (name,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            table = name.decode()
            rows = con.execute(f'SELECT * FROM "{table}"').fetchall()
            draw.shuffle(rows)
            con.execute(f'DELETE FROM "{table}"')
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                texts = [tuple(_as_text(value) for value in row) for row in rows]
                con.executemany(f'INSERT INTO "{table}" VALUES ({marks})', texts)
        con.execute("COMMIT")
    return target


def _as_text(value: Any) -> Any:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) and _is_text(value) else value


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def edit(path: Path, *statements: str | tuple[str, tuple[Any, ...]]) -> Path:
    """Changes a drawn export by SQL; `PRAGMA writable_schema` and the like are allowed."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as con:
        for one in statements:
            if isinstance(one, str):
                con.execute(one)
            else:
                con.execute(*one)
    return path


def count(path: Path, table: str, where: str = "") -> int:
    """COUNT(*) of a table, by SQLite."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as con:
        ((rows,),) = con.execute(f'SELECT COUNT(*) FROM "{table}" {where}').fetchall()
    return int(rows)


def by_rank(answer: dict[str, Any], field: str = "elapsed_ns") -> dict[int, dict[str, Any]]:
    """The bucket table of a JSON answer: rank -> bucket -> value."""
    found: dict[int, dict[str, Any]] = {}
    for row in answer["buckets"]:
        found.setdefault(row["rank"], {})[row["bucket"]] = row[field]
    return found


def python() -> str:
    return sys.executable
