"""The benchmark runs and prints its table; how long anything takes is not looked at."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.captures import Shape, count
from benchmarks.process_tree import run
from benchmarks.read_floor import EIGHT, TABLE, Floor, _floor_in_python, read

ROOT = Path(__file__).parents[2]


def test_a_table_of_tiny_captures() -> None:
    """Two sizes in one file per rank: the larger one tells how time and memory grow."""
    words = "--kernels 1k,2k --ranks 2 --files each --commands bucket --repeats 1"
    done = subprocess.run(
        [sys.executable, "benchmarks/scale.py", *words.split()], cwd=ROOT, capture_output=True, text=True, check=True
    )
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line.startswith("|")]  # fmt: skip
    assert [row[head.index("command")] for row in rows] == ["floor", "bucket"] * 2
    told = dict(zip(head, rows[3], strict=True))
    assert told["cold"]
    assert told["cached"]
    assert told["warm"]
    held, resident = map(float, re.fullmatch(r"(\d+) \((\d+)\)", told["cold MB"]).groups())
    assert 10 < held < resident < 1000  # the libraries alone are files of over 100 MB
    assert float(told["memory ^"]) < 5


@pytest.mark.parametrize(("text", "number"), [("2000", 2000), ("300k", 300_000), ("1.5M", 1_500_000)])
def test_counts(text: str, number: int) -> None:
    assert count(text) == number


def test_ranges_stand_around_launches(tmp_path: Path) -> None:
    (path,) = Shape(1000, 2, "eager", ranges=5000).make(tmp_path)
    ((ranges,),) = _rows(path, "SELECT count(*) FROM NVTX_EVENTS")
    assert 4500 < ranges < 6500
    assert {kind for (kind,) in _rows(path, "SELECT DISTINCT typeof(text) FROM NVTX_EVENTS")} == {"null", "text"}
    with pytest.raises(SystemExit, match="--launch eager"):
        Shape(1000, 2, "graph", ranges=5000).make(tmp_path)


def test_every_way_of_reading_sums_the_same(tmp_path: Path) -> None:
    (path,) = Shape(1000, 2).make(tmp_path)
    floors = [Floor(tmp_path).read([path]), _floor_in_python(f"file:{path}?mode=ro", TABLE, EIGHT)]
    ours = [read(path, TABLE, EIGHT, way) for way in ("pages", "adbc", "sqlite")]
    assert len({(one.rows, one.total) for one in (*floors, *ours)}) == 1
    assert Floor(tmp_path).read([path, path]).rows == 2 * floors[0].rows


def test_memory_is_that_of_a_process_and_its_children() -> None:
    """The parent holds little, two children about 80 MB each at once; that we hold much ourselves counts nothing."""
    mine = b"x" * 500_000_000
    child = "import sys, time; held = b'x' * 80_000_000; time.sleep(1)"
    parent = f"import subprocess, sys; [one.wait() for one in [subprocess.Popen([sys.executable, '-c', {child!r}]) for _ in 'ab']]"
    done = run([sys.executable, "-c", parent])
    assert 150e6 < done.held_bytes <= done.resident_bytes < 400e6
    del mine
    with pytest.raises(SystemExit, match="exit code 3"):
        run([sys.executable, "-c", "raise SystemExit(3)"])


@pytest.mark.parametrize("fork", ["", "os.fork()"], ids=["one process", "two"])
def test_pages_of_files_can_be_taken_back(tmp_path: Path, fork: str) -> None:
    """200 MB of a mapped file beside 80 MB of memory: held are 80, resident 280, however many share them."""
    child = (
        "import mmap, os, sys, time\nheld = bytearray(b'x' * 80_000_000)\nfile = open(sys.argv[1], 'w+b')\n"
        "file.truncate(200_000_000)\npages = mmap.mmap(file.fileno(), 0)\n"
        f"for at in range(0, len(pages), 4096): pages[at] = 1\n{fork}\ntime.sleep(1)"
    )
    done = run([sys.executable, "-c", child, str(tmp_path / "pages")])
    assert 80e6 < done.held_bytes < 190e6
    assert 280e6 < done.resident_bytes < 400e6


def _rows(path: Path, query: str) -> list[tuple[object, ...]]:
    import sqlite3

    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    rows = connection.execute(query).fetchall()
    connection.close()
    return rows
