"""The model's tables: which rows become events, on which device, and what a process is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.running import edit, tracelens
from tracelens.model.build import _portions
from tracelens.simulate import Copy, GraphTrace, Kernel, Launch, Process, write_events
from tracelens.trace import empty_trace, open_trace

K = "CUPTI_ACTIVITY_KIND_KERNEL"


def events(path: Path, columns: str = "start_ns, end_ns") -> list[tuple[Any, ...]]:
    with open_trace([str(path)]) as trace:
        return trace.db.execute(f"SELECT {columns} FROM event ORDER BY event_id").fetchall()


def test_impossible_times_are_left_out_and_counted_once_over_all_tables(tmp_path: Path) -> None:
    """Kept: before the session began, of no length, up to 60 s beyond its end.

    session  0 |--------------------| 1 s
    """
    second = 1_000_000_000
    rows: list[Any] = [
        Kernel("kept", -2_000, -1_000),
        Kernel("kept", 5, 5),
        Kernel("kept", second, 61 * second),
        Kernel("bad", 0, 0),
        Kernel("bad", 9, 8),
        Kernel("bad", second, 61 * second + 1),
        Kernel("bad", -60 * second - 1, 5),
        Copy("D2H", 7, 6),
        GraphTrace(0, 0),
    ]
    path = write_events(rows, tmp_path / "x.sqlite", duration_ns=second)
    assert events(path) == [(-2_000, -1_000), (5, 5), (second, 61 * second)]
    (told,) = [
        one for one in tracelens("bucket", path, "--format", "json").json["notices"] if one["code"] == "bad-timestamps"
    ]
    assert told["count"] == 6


def test_without_a_sessions_length_garbage_stretches_no_span(tmp_path: Path) -> None:
    """Old exports do not tell it: a stamp 142 years away from all others is none."""
    rows = [Kernel("gemm", 1_000 * n, 1_000 * n + 500) for n in range(1, 20)]
    path = write_events(rows, tmp_path / "x.sqlite", nsys_version="old_unknown")
    edit(path, f'UPDATE {K} SET "end" = 4500000000000000000 WHERE start = 5000')
    assert len(events(path)) == 18
    ran = tracelens("info", path, "--format", "json").json
    assert ran["ranks"][0]["span_ns"] == 18_500
    assert "bad-timestamps" in {one["code"] for one in ran["notices"]}


def test_the_smallest_number_of_64_bits_is_no_time(tmp_path: Path) -> None:
    """What a profiler out of buffers was seen to write."""
    path = write_events([Kernel("gemm", 1_000 * n, 1_000 * n + 500) for n in range(1, 4)], tmp_path / "x.sqlite")
    edit(path, (f"UPDATE {K} SET start = ? WHERE start = 2000", (-(2**63),)))
    edit(path, (f'UPDATE {K} SET "end" = ? WHERE start = 3000', (2**63 - 1,)))
    assert events(path) == [(1_000, 1_500)]


def test_a_graph_that_began_on_the_host_lies_on_its_processs_busiest_device(tmp_path: Path) -> None:
    rows: list[Any] = [Kernel("a", 10, 20, device=1), Kernel("b", 10, 90, device=2)]
    rows += [GraphTrace(100, 150, device=2**31 - 1)]
    path = write_events(rows, tmp_path / "x.sqlite")
    with open_trace([str(path)]) as trace:
        assert trace.db.execute(
            "SELECT device, start_ns FROM event JOIN rank USING (rank) WHERE kind = 3"
        ).fetchall() == [(2, 100)]


def test_devices_that_no_machine_has(tmp_path: Path) -> None:
    path = write_events([Kernel("a", 10, 20), Kernel("b", 30, 40), Kernel("c", 50, 60)], tmp_path / "x.sqlite")
    edit(
        path,
        f"UPDATE {K} SET deviceId = 4611686018427387904 WHERE start = 30",
        f"UPDATE {K} SET deviceId = -3 WHERE start = 50",
    )
    assert events(path) == [(10, 20)]


def test_correlation_ids_that_cupti_cannot_give_join_nothing(tmp_path: Path) -> None:
    rows = [Kernel("a", 10, 20, launch=(1, 2), correlation=7), Kernel("b", 30, 40, launch=(3, 4), correlation=8)]
    path = write_events(rows, tmp_path / "x.sqlite")
    for table in (K, "CUPTI_ACTIVITY_KIND_RUNTIME"):
        edit(path, f"UPDATE {table} SET correlationId = 4611686018427387904 WHERE correlationId = 8")
    assert events(path, "correlation") == [(7,), (None,)]


def test_order_of_events(tmp_path: Path) -> None:
    """By rank, start, longest first, kind, stream: values of the event."""
    rows: list[Any] = [
        Copy("D2H", 100, 200, stream=3),
        Kernel("b", 100, 200, stream=9),
        Kernel("a", 100, 300, stream=9),
        Kernel("a", 100, 200, stream=2),
        Kernel("z", 50, 60),
    ]
    path = write_events(rows, tmp_path / "x.sqlite", shuffle=3)
    assert events(path, "start_ns, end_ns, kind, stream") == [
        (50, 60, 0, 7),
        (100, 300, 0, 9),
        (100, 200, 0, 2),
        (100, 200, 0, 9),
        (100, 200, 1, 3),
    ]


def test_calls_of_exports_whose_kernels_name_no_process(tmp_path: Path) -> None:
    rows = [Kernel("a", 10, 20, launch=(1, 2)), Kernel("b", 30, 40, launch=(3, 4))]
    path = write_events(rows, tmp_path / "x.sqlite", without_columns={K: ["globalPid"]})
    with open_trace([str(path)]) as trace:
        trace.ensure("launch")
        assert trace.db.execute("SELECT start_ns FROM launch ORDER BY ALL").fetchall() == [(1,), (3,)]


def test_processes_keep_their_coordinates_and_lose_their_titles(tmp_path: Path) -> None:
    rows: list[Any] = [
        Kernel("a", 10, 20, pid=7),
        Process("VLLM::Worker_TP3 --key=hunter2", 7),
        Launch("cudaMalloc", 1, 2, pid=9),
    ]
    with open_trace([str(write_events(rows, tmp_path / "x.sqlite"))]) as trace:
        found = trace.db.execute("SELECT pid, title FROM process ORDER BY pid").fetchall()
    assert found == [(7, "TP3"), (9, None)]


def test_a_capture_without_exports_has_all_tables_and_no_rows() -> None:
    with empty_trace() as trace:
        for part in ("launch", "nvtx"):
            trace.ensure(part)  # type: ignore[arg-type]
        for table in (
            "export",
            "process",
            "rank",
            "kernel_name",
            "event",
            "other_event",
            "launch",
            "nvtx",
            "notice",
            "ledger",
        ):
            assert trace.db.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]


def test_launches_of_many_processes_are_put_in_order_in_portions() -> None:
    assert _portions([]) == []
    assert _portions([(3, 10)]) == [(3, 3)]
    assert _portions([(1, 600_000), (2, 600_000), (5, 5_000_000), (6, 1), (9, 2)]) == [(1, 2), (5, 5), (6, 9)]
