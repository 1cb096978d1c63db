"""A loaded capture: its events in order, its parts on demand, its options.

rank 0   |gemm 1..3|   |norm 4..5|  |copy 6..7|
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from tests.running import shuffled
from tracelens import loading
from tracelens.analyses.gap_search import search_gaps
from tracelens.analyses.step_search import search_steps
from tracelens.errors import RankError
from tracelens.memory import bytes_of, default_bytes
from tracelens.simulate import CaptureSpec, Copy, Kernel, write, write_events
from tracelens.trace import Options, empty_trace, open_trace

ROWS = [
    Kernel("gemm", 1_000, 3_000, launch=(100, 200)),
    Kernel("norm", 4_000, 5_000, launch=(300, 400)),
    Copy("D2H", 6_000, 7_000, launch=(500, 600), bytes=64),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_events(ROWS, tmp_path / "x.sqlite")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = write(CaptureSpec(tp=2, layers=2, steps=8), tmp_path_factory.mktemp("made"), truth=False)
    return path


def test_an_event_is_numbered_by_its_place(path: Path) -> None:
    with open_trace([str(path)]) as trace:
        query = "SELECT event_id, name, start_ns, bytes FROM event JOIN kernel_name USING (name_id) ORDER BY event_id"
        assert trace.db.sql(query).fetchall() == [
            (0, "gemm", 1_000, None),
            (1, "norm", 4_000, None),
            (2, "[CUDA memcpy Device-to-Host]", 6_000, 64),
        ]


@pytest.mark.parametrize("few", [0, 1 << 40], ids=["in files", "in memory"])
def test_event_row_lies_in_the_order_of_event(few: int, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank, start, longest first, kind, ...: every event stands after the one before it, in the view and under it."""
    monkeypatch.setattr(loading, "_FEW_EVENTS", few)
    monkeypatch.setattr(loading, "_SMALL_BYTES", 0)
    with open_trace([str(made)], Options(use_cache=False)) as trace:
        rows = trace.db.sql("SELECT * EXCLUDE (event_id) FROM event ORDER BY event_id").fetchall()
        assert trace.db.sql("SELECT * FROM event_row").fetchall() == rows
        keys = trace.db.sql("SELECT rank, start_ns, -end_ns, kind, stream FROM event ORDER BY event_id").fetchall()
        assert keys == sorted(keys)
        assert trace.db.sql("SELECT event_id FROM event").fetchall() == [(place,) for place in range(len(rows))]


def test_the_order_of_rows_in_the_capture_changes_nothing(made: Path, tmp_path: Path) -> None:
    mixed = shuffled(made, tmp_path / made.name)
    answers = []
    for one in (made, mixed):
        with open_trace([str(one)]) as trace:
            answers.append(trace.db.sql("SELECT * FROM event ORDER BY event_id").fetchall())
    assert answers[0] == answers[1]


def test_memory_that_does_not_hold_the_events_costs_no_answer(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one event may stay in memory: all of them go through the disk, which is said, and the rows are the same."""
    monkeypatch.setattr(loading, "_SMALL_BYTES", 0)
    with open_trace([str(made)], Options(use_cache=False)) as trace:
        expected = trace.db.sql("SELECT * FROM event ORDER BY event_id").fetchall()
        assert trace.remarks == ()
    monkeypatch.setattr(loading, "RUNS_SHARE", 0.0)
    with open_trace([str(made)], Options(use_cache=False)) as trace:
        assert trace.db.sql("SELECT * FROM event ORDER BY event_id").fetchall() == expected
        assert [one.code for one in trace.remarks] == ["memory-exceeded"]
        assert "memory-exceeded" not in {one.code for one in trace.notices}


def test_parts_are_loaded_on_demand(path: Path) -> None:
    with open_trace([str(path)]) as trace:
        tables = "SELECT table_name FROM information_schema.tables WHERE table_name IN ('launch', 'nvtx') ORDER BY ALL"
        assert trace.db.sql(tables).fetchall() == []
        trace.ensure("launch")
        trace.ensure("launch")
        assert trace.db.sql("SELECT start_ns FROM launch ORDER BY 1").fetchall() == [(100,), (300,), (500,)]
        trace.ensure("nvtx")
        assert trace.db.sql(tables).fetchall() == [("launch",), ("nvtx",)]


def test_asked_differently_the_tables_are_shared(path: Path) -> None:
    with open_trace([str(path)]) as trace:
        other = trace.with_options(attribution="compute-first")
        assert other.db is trace.db
        assert other.provenance()["attribution"] == "compute-first"
        assert trace.memo("one", lambda: 1) == other.memo("one", lambda: 2) - 1
        with pytest.raises(ValueError, match="loader"):
            trace.with_options(loader="sqlite")


def test_what_is_worked_out_briefly_is_given_back(made: Path) -> None:
    """known before |steps|   briefly |steps|gaps|   known after |steps|"""
    with open_trace([str(made)]) as trace:
        steps = search_steps(trace)
        with trace.briefly() as brief:
            assert search_steps(brief) is steps
            gone = weakref.ref(search_gaps(brief))
        assert gone() is None
        assert trace.known("gaps") is None
        assert search_steps(trace) is steps


def test_ranks_that_are_not_there(path: Path) -> None:
    with open_trace([str(path)], Options(ranks=(0, 3))) as trace, pytest.raises(RankError, match="rank 3 is not"):
        _ = trace.ranks


def test_an_empty_trace_has_every_table() -> None:
    with empty_trace() as trace:
        for table in ("event", "other_event", "rank", "export", "process", "kernel_name"):
            assert trace.db.sql(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]


@pytest.mark.parametrize(
    ("text", "size"), [("4GB", 4 * 10**9), ("800 MB", 8 * 10**8), ("1.5g", 15 * 10**8), ("64000000", 64_000_000)]
)
def test_sizes_of_memory(text: str, size: int) -> None:
    assert bytes_of(text) == size


def test_no_size_of_memory() -> None:
    with pytest.raises(ValueError, match="no size"):
        bytes_of("much")
    assert 0 < default_bytes() <= 4 * 10**9


def test_threads_share_one_heap() -> None:
    """glibc counts its heaps: one for eight threads that all hold memory at once."""
    if not hasattr(ctypes.CDLL(None), "malloc_info"):
        pytest.skip("another C library")
    script = """
import ctypes, threading
from tracelens.memory import share_one_heap
libc = ctypes.CDLL(None)
libc.fopen.restype = libc.malloc.restype = ctypes.c_void_p
{call}
together = threading.Barrier(8)
def hold():
    together.wait(); libc.malloc(100_000); together.wait()
threads = [threading.Thread(target=hold) for _ in range(8)]
[one.start() for one in threads]; [one.join() for one in threads]
out = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, out); libc.fclose(out)
"""
    counts = []
    for call in ("", "share_one_heap()"):
        ran = subprocess.run(
            [sys.executable, "-c", script.format(call=call)], capture_output=True, text=True, check=True
        )
        counts.append(ran.stdout.count("<heap nr="))
    assert counts[1] == 1 < counts[0]
