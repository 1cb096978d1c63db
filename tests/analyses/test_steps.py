"""Steps: markers, membership, edges and windows on drawn captures; whole simulated ones against their truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.analyses.drawn_steps import GEMM, NORM, SAMPLE, US, copy, kernel, load, mark, replay
from tests.running import REAL, needs_real
from tracelens.analyses.steps import figures_per_step, find_steps, step_windows, steps
from tracelens.errors import SelectionError, UsageError
from tracelens.simulate import CaptureSpec, ClockJump, GraphTrace, LostRun, Stall, Stretch, simulate, write
from tracelens.trace import LoadedTrace, Options, open_trace

DECODE = "execute_context_0(0)_generation_8(8)"


def windows_us(trace: LoadedTrace) -> list[tuple[int, float, float]]:
    """(step, edge, window end) in us, of rank 0."""
    table = find_steps(trace).table.filter(pl.col("rank") == 0)
    return [(step, edge / US, end / US) for step, edge, end in table.select("step", "edge_ns", "window_end_ns").rows()]


def members(trace: LoadedTrace) -> dict[str, int | None]:
    """Name -> step of the events of rank 0; the names must be distinct."""
    find_steps(trace)
    rows = trace.db.execute(
        "SELECT n.name, m.step FROM event e JOIN kernel_name n USING (name_id) LEFT JOIN step_member m USING (event_id)"
    ).fetchall()
    return dict(rows)


# Membership and edges


def test_an_event_belongs_to_the_last_range_before_its_launch(tmp_path: Path) -> None:
    """The kernels run 300 us after their ranges have closed; c and d are launched between ranges.

    host    |= 0 =| c  |= 1 =|  d
             a   b     |e        launches
    device                  a  b  c  e  d
    """
    rows = [
        mark(DECODE, 10, 20),
        mark(DECODE, 40, 50),
        kernel("before", 5, 6, launch=1),
        kernel("a", 310, 320, launch=11),
        kernel("b", 321, 330, launch=19),
        kernel("c", 331, 340, launch=30),
        kernel("e", 341, 350, launch=41),
        kernel("d", 351, 360, launch=60),
    ]
    with load(rows, tmp_path) as trace:
        assert members(trace) == {"before": None, "a": 0, "b": 0, "c": 0, "e": 1, "d": 1}
        assert windows_us(trace) == [(0, 310, 341), (1, 341, 360)]
        assert find_steps(trace).facts["outside_count"] == 1


@pytest.mark.parametrize(
    "more", [{"type": 60, "range_id": 4}, {"registered": True}, {"type": 34}, {"end_tid": 9, "type": 60}]
)
def test_every_kind_of_range_marks(tmp_path: Path, more: dict[str, Any]) -> None:
    rows: list[Any] = []
    for step in range(3):
        rows += [
            mark(DECODE, 100 * step, 100 * step + 10, **more),
            kernel(GEMM, 100 * step + 20, 100 * step + 90, 100 * step + 5),
        ]
    with load(rows, tmp_path) as trace:
        assert windows_us(trace) == [(0, 20, 120), (1, 120, 220), (2, 220, 290)]


def test_ranges_mark_on_their_own_thread(tmp_path: Path) -> None:
    """Another thread of the process has ranges of its own; each kernel follows its launching thread."""
    rows: list[Any] = []
    for step in range(4):
        at = 100 * step
        rows += [
            mark(DECODE, at, at + 10, tid=1),
            mark(DECODE, at + 6, at + 16, tid=2),
            kernel(f"first{step}", at + 20, at + 50, at + 8, launch_tid=1),
            kernel(f"second{step}", at + 50, at + 60, at + 9, launch_tid=2, stream=9),
        ]
    with load(rows, tmp_path) as trace:
        held = members(trace)
        assert [held[f"first{step}"] for step in range(4)] == [0, 2, 4, 6]
        assert [held[f"second{step}"] for step in range(4)] == [1, 3, 5, 7]


def test_long_captures_of_many_threads(tmp_path: Path) -> None:
    """Minutes apart, on five threads: the keys of threads and times must not run over."""
    rows: list[Any] = []
    for step in range(10):
        at, tid = 60_000_000 * step, 1 + step % 5
        rows += [
            mark(DECODE, at, at + 3, tid=tid),
            kernel(f"k{step}", at + 20, at + 59_000_000, at + 5, launch_tid=tid),
        ]
    with load(rows, tmp_path) as trace:
        assert members(trace) == {f"k{step}": step for step in range(10)}
        assert find_steps(trace).table["step_ns"].to_list()[:9] == [60_000_000 * US] * 9


@pytest.mark.parametrize("launches", ["none", "some"])
def test_a_thread_may_mark_for_another_that_launches(tmp_path: Path, launches: str) -> None:
    """A scheduler's thread marks, a worker's thread of the same process launches nearly everything."""
    rows: list[Any] = []
    for step in range(4):
        at = 100 * step
        rows += [mark(DECODE, at, at + 3, tid=1)]
        rows += [kernel(f"k{step}{k}", at + 20 + 20 * k, at + 38 + 20 * k, at + 5 + k, launch_tid=2) for k in range(3)]
        if launches == "some":
            rows += [copy("H2D", at + 10, at + 11, at + 1, launch_tid=1)]
    with load(rows, tmp_path) as trace:
        held = members(trace)
        assert all(held[f"k{step}{k}"] == step for step in range(4) for k in range(3))


def test_events_without_a_launch_go_with_their_stream(tmp_path: Path) -> None:
    rows: list[Any] = [kernel("head", 1, 2)]
    for step in range(3):
        at = 100 * step
        rows += [
            mark(DECODE, at + 3, at + 9),
            kernel(f"k{step}", at + 20, at + 50, at + 5),
            kernel(f"lost{step}", at + 51, at + 60),
        ]
    with load(rows, tmp_path) as trace:
        assert members(trace) == {"head": None} | {f"{n}{step}": step for step in range(3) for n in ("k", "lost")}


def test_an_early_copy_on_another_stream_moves_no_edge(tmp_path: Path) -> None:
    """The input of step k + 1 is copied on its own stream while step k still computes.

    stream 7   |==== 0 ====|==== 1 ====|==== 2 ====
    stream 9          [1]         [2]                   input copies
    """
    rows: list[Any] = []
    for step in range(3):
        at = 100 * step
        rows += [
            mark(DECODE, at - 50 + 60, at + 20),
            copy("H2D", at + 30, at + 35, at + 11, stream=9),
            kernel(GEMM, at + 100, at + 190, at + 15),
        ]
    with load(rows, tmp_path) as trace:
        assert windows_us(trace) == [(0, 100, 200), (1, 200, 300), (2, 300, 390)]
        figures = figures_per_step(trace)
        # step 0's window holds the copy of step 1? It ran at 130..135 beside the kernel: no time of its own.
        assert figures["busy_ns"].to_list() == [90 * US] * 3
        assert figures["kernel_count"].to_list() == [1, 1, 1]


def test_straddling_events_are_clipped_and_told(tmp_path: Path) -> None:
    """A copy on another stream runs across the edge at 120."""
    rows: list[Any] = [copy("D2H", 95, 130, 11, stream=9)]
    for step in range(3):
        rows += [
            mark(DECODE, 100 * step, 100 * step + 9),
            kernel(GEMM, 100 * step + 20, 100 * step + 90, 100 * step + 5),
        ]
    with load(rows, tmp_path) as trace:
        figures = figures_per_step(trace)
        assert figures["busy_ns"].to_list() == [(70 + 25) * US, 70 * US, 70 * US]
        assert figures["step_ns"].to_list() == [100 * US, 100 * US, 70 * US]
        assert find_steps(trace).facts["straddling_count"] == 1


def test_zero_length_events_make_no_edge(tmp_path: Path) -> None:
    rows: list[Any] = []
    for step in range(3):
        at = 100 * step
        rows += [
            mark(DECODE, at, at + 9),
            kernel(NORM, at + 12, at + 12, at + 4),
            kernel(GEMM, at + 20, at + 90, at + 5),
        ]
    with load(rows, tmp_path) as trace:
        assert windows_us(trace) == [(0, 20, 120), (1, 120, 220), (2, 220, 290)]
        assert figures_per_step(trace)["kernel_count"].to_list() == [2, 2, 2]


# Idle between requests, completeness, warm-up


def requests(ranks: int, gap_us: float, per_request: int = 6, late_us: float = 0) -> list[Any]:
    """Two requests with `gap_us` between; rank 1 works `late_us` longer before it."""
    rows: list[Any] = []
    for rank in range(ranks):
        for step in range(2 * per_request):
            at = 1000 * step + (gap_us if step >= per_request else 0)
            length = 900 + (late_us if rank == 1 and step == per_request - 1 else 0)
            where = {"pid": 1000 + rank, "device": rank}
            rows += [
                mark(DECODE, at, at + 5, pid=1000 + rank),
                kernel(GEMM, at + 10, at + 10 + length, at + 2, **where),
            ]
    return rows


def test_idle_between_requests_lies_outside_every_window(tmp_path: Path) -> None:
    """Steps of 1 ms: an idle of 7 ms and 100 us exceeds 5 ms."""
    with load(requests(1, 7000), tmp_path) as trace:
        found = find_steps(trace)
        rows = found.table.select("step", "step_ns", "complete", "idle_after_ns").rows()
        assert rows[4:7] == [(4, 1000 * US, True, 0), (5, 900 * US, False, 7100 * US), (6, 1000 * US, True, 0)]
        assert rows[-1] == (11, 900 * US, False, 0)
        facts = found.facts
        assert (facts["idle_between_count"], facts["idle_between_ns"]) == (1, 7100 * US)
        assert facts["partial_steps"] == 2
        summary = steps(trace).summary.row(0, named=True)
        assert (summary["step_count"], summary["p50_ns"], summary["p99_ns"]) == (10, 1000 * US, 1000 * US)
        assert summary["p99_with_idle_ns"] > 1000 * US


@pytest.mark.parametrize(("gap_us", "late_us", "count"), [(4000, 0, 0), (7000, 0, 1), (7000, 3000, 0), (9000, 2000, 1)])
def test_only_what_all_ranks_share_is_idle(tmp_path: Path, gap_us: float, late_us: float, count: int) -> None:
    """Rank 1 works on while rank 0 idles: the common part decides; shorter ones stay gaps."""
    text = "execute_context_0(0)_generation_8(8)"
    reduce = "void vllm::cross_device_reduce_2stage<float, (int)2>(int)"
    rows = requests(2, gap_us, per_request=20, late_us=late_us)
    for rank in range(2):
        for step in range(40):
            at = 1000 * step + (gap_us if step >= 20 else 0)
            # Both leave together, so that the two ranks are one set on one clock.
            rows.append(kernel(reduce, at + 3, at + 9, at + 2.5, pid=1000 + rank, device=rank))
    assert text == DECODE
    with load(rows, tmp_path) as trace:
        found = find_steps(trace)
        assert found.table["set"].n_unique() == 1
        assert found.facts["idle_between_count"] == count


def test_the_threshold_follows_the_median_step(tmp_path: Path) -> None:
    """Steps of 10 ms: an idle of 25 ms is a stall of some step, one of 35 ms is not."""
    rows: list[Any] = []
    at = 0.0
    for step in range(12):
        at += 10_000 + (25_000 if step == 4 else 35_000 if step == 8 else 0)
        rows += [mark(DECODE, at, at + 5), kernel(GEMM, at + 10, at + 9_900, at + 2)]
    with load(rows, tmp_path) as trace:
        assert find_steps(trace).facts["idle_between_count"] == 1
        assert find_steps(trace).facts["idle_between_max_ns"] == 35_110 * US


def test_warm_up_is_the_slow_leading_run(tmp_path: Path) -> None:
    """16 steps: 2, 2, 1 ... 1 ms; `--skip 5` counts by hand."""
    rows: list[Any] = []
    at = 0
    for step in range(17):
        rows += [mark(DECODE, at, at + 5), kernel(GEMM, at + 10, at + 500, at + 2)]
        at += 2000 if step < 2 else 1000
    with load(rows, tmp_path) as trace:
        assert find_steps(trace).table.filter("warm_up")["step"].to_list() == [0, 1]
        assert steps(trace).summary["step_count"].to_list() == [14]
        skipped = trace.with_options(skip=5)
        assert find_steps(skipped).table.filter("warm_up")["step"].to_list() == [0, 1, 2, 3, 4]
        assert steps(skipped).summary["step_count"].to_list() == [11]


def test_a_third_of_slow_steps_is_no_warm_up(tmp_path: Path) -> None:
    rows: list[Any] = []
    at = 0
    for step in range(13):
        rows += [mark(DECODE, at, at + 5), kernel(GEMM, at + 10, at + 500, at + 2)]
        at += 2000 if step < 6 else 1000
    with load(rows, tmp_path) as trace:
        assert find_steps(trace).table.filter("warm_up")["step"].to_list() == [0, 1, 2]


# Phases, rungs, selection


def test_phases_and_rungs_stay_apart(tmp_path: Path) -> None:
    """28 decode steps of 10 ms and 4 mixed ones of 60 ms: the mean of all, 16.25 ms, is no headline."""
    rows: list[Any] = []
    at = 0
    for step in range(33):
        mixed = step % 8 == 7
        text = "execute_context_1(1000)_generation_8(8)" if mixed else DECODE
        rows += [mark(text, at, at + 5), kernel(GEMM, at + 10, at + (59_000 if mixed else 9_000), at + 2)]
        at += 60_000 if mixed else 10_000
    with load(rows, tmp_path) as trace:
        answer = steps(trace)
        shown = answer.summary.select("phase", "rung", "step_count", "p50_ns").rows()
        assert shown == [("decode", "bs=8", 28, 10_000 * US), ("mixed", "bs=1024", 4, 60_000 * US)]
        assert answer.sentences[0].startswith("Decode step bs=8: p50 10.000 ms")
        assert "800.0 tokens/s" in answer.sentences[0]
        only = trace.with_options(phase="mixed")
        assert steps(only).steps["phase"].unique().to_list() == ["mixed"]
        assert step_windows(trace.with_options(steps=(2, 3))).rows() == [
            (0, 20_010 * US, 30_010 * US),
            (0, 30_010 * US, 40_010 * US),
        ]
        assert steps(trace.with_options(time_s=(0.05, 0.07))).steps["step"].to_list() == [5, 6]


def test_draft_tokens_leave_the_rate_unknown(tmp_path: Path) -> None:
    rows: list[Any] = []
    for step in range(5):
        rows += [
            mark("execute_context_0(0)_generation_4(16)", 100 * step, 100 * step + 5),
            kernel(GEMM, 100 * step + 9, 100 * step + 90, 100 * step + 2),
        ]
    with load(rows, tmp_path) as trace:
        assert "tokens/s" not in steps(trace).sentences[0]


# The choice of the marker


def test_a_marker_on_some_steps_only_is_refused(tmp_path: Path) -> None:
    """Ranges stand on 2 of 40 graph steps: the replays decide."""
    rows: list[Any] = []
    for step in range(40):
        at = 1000 * step
        if step in (10, 20):
            rows.append(mark(DECODE, at, at + 5))
        rows += replay(100 + step, at + 20, [NORM, GEMM, NORM], launch=at + 6)
        rows += [kernel(SAMPLE, at + 60, at + 70, at + 50), copy("D2H", at + 75, at + 80, at + 60)]
    with load(rows, tmp_path) as trace:
        facts = steps(trace).provenance
        assert (facts["marker"], facts["regularity"]) == ("graph", 1.0)
        assert find_steps(trace).table.height == 40


def test_a_pattern_of_ones_own(tmp_path: Path) -> None:
    rows: list[Any] = []
    for step in range(4):
        rows += [
            mark(f"iteration {step}", 100 * step, 100 * step + 5),
            kernel(GEMM, 100 * step + 9, 100 * step + 90, 100 * step + 2),
        ]
    with load(rows, tmp_path, step_marker=r"^iteration \d+$") as trace:
        assert find_steps(trace).table.height == 4
        with pytest.raises(SelectionError, match="matches no NVTX range") as refused:
            find_steps(trace.with_options(step_marker="nothing like it"))
        assert "iteration 0" in refused.value.hint
        with pytest.raises(UsageError, match="not a regular expression"):
            find_steps(trace.with_options(step_marker="(["))
        anchored = trace.with_options(steps_by="anchor", step_marker="gemm")
        assert find_steps(anchored).facts["marker"] == "anchor"
        with pytest.raises(SelectionError, match="--steps-by graph finds no step"):
            find_steps(trace.with_options(steps_by="graph", step_marker=None))


def test_nothing_that_repeats_is_said_not_guessed(tmp_path: Path) -> None:
    rows = [kernel(f"k{at}", 10 * at, 10 * at + 5, 10 * at - 4) for at in range(1, 30)]
    with load(rows, tmp_path) as trace:
        answer = steps(trace)
        assert dict(answer.tables) == {}
        assert [notice.code for notice in answer.notices if notice.severity == "warning"] == ["no-steps"]
        assert find_steps(trace).table.is_empty()


def test_eager_prefill_between_replays_is_its_own_step(tmp_path: Path) -> None:
    """decode, decode, prefill (eager, reads back itself), decode ...; a few kernels after a read-back are none."""
    rows: list[Any] = []
    for step in range(9):
        at = 1000 * step
        if step == 2:
            rows += [copy("H2D", at, at + 2, at - 9)]
            rows += [kernel(f"prefill_{GEMM}", at + 20 + 40 * k, at + 55 + 40 * k, at + 5 + k) for k in range(8)]
            rows += [kernel(SAMPLE, at + 360, at + 370, at + 20), copy("D2H", at + 371, at + 375, at + 25)]
            continue
        rows += [copy("H2D", at, at + 2, at - 9), *replay(100 + step, at + 20, [NORM, GEMM, NORM, GEMM], launch=at + 4)]
        rows += [kernel(SAMPLE, at + 70, at + 80, at + 50), copy("D2H", at + 81, at + 85, at + 55)]
        rows += [
            kernel("void log_softmax<float>(float *)", at + 90, at + 92, at + 60),
            copy("D2H", at + 93, at + 95, at + 65),
        ]
    with load(rows, tmp_path) as trace:
        table = find_steps(trace).table
        assert table["phase"].to_list() == ["decode"] * 2 + ["prefill"] + ["decode"] * 6
        assert table["edge_ns"].to_list() == [1000 * US * step for step in range(9)]
        assert table["kernel_count"].to_list() == [6, 6, 9] + [6] * 6


@pytest.mark.parametrize("pieces", [1, 3])
def test_ranks_that_read_nothing_back_follow_those_that_do(tmp_path: Path, pieces: int) -> None:
    """Rank 0 samples and reads back; rank 1 only replays."""
    rows: list[Any] = []
    for rank in range(2):
        where = {"pid": 1000 + rank, "device": rank}
        for step in range(12):
            at = 1000 * step
            rows += [copy("H2D", at, at + 2, at - 9, **where)]
            for piece in range(pieces):
                names = [NORM, GEMM] * (1 + (piece > 0)) + [NORM] * (piece == 2)
                start = at + 20 + 100 * piece
                rows += replay(100 + 10 * step + piece, start, names, launch=start - 16, **where)
            if rank == 0:
                rows += [
                    kernel(SAMPLE, at + 400, at + 410, at + 300, **where),
                    copy("D2H", at + 411, at + 415, at + 310, **where),
                ]
    with load(rows, tmp_path) as trace:
        table = find_steps(trace).table
        assert find_steps(trace).facts["marker"] == "graph"
        assert table.group_by("rank").len().sort("rank").rows() == [(0, 12), (1, 12)]
        for rank in range(2):
            assert table.filter(pl.col("rank") == rank)["edge_ns"].to_list() == [1000 * US * step for step in range(12)]


@pytest.mark.parametrize(
    ("spec", "markers"),
    [
        (CaptureSpec(steps=20, prefill_every=5), ("nvtx", "graph", "anchor", "period")),
        (CaptureSpec(steps=20, prefill_every=5, launch="eager", nvtx="none"), ("anchor", "period")),
        (CaptureSpec(steps=20, speculative=3, launch="piecewise"), ("nvtx", "graph", "period")),
    ],
)
def test_all_markers_find_the_same_steps(tmp_path: Path, spec: CaptureSpec, markers: tuple[str, ...]) -> None:
    paths = write(simulate(spec), tmp_path, truth=False)
    with open_trace([str(path) for path in paths]) as trace:
        found = [find_steps(trace.with_options(steps_by=marker)).table for marker in markers]
        for table in found:
            assert table.select("step", "rank", "edge_ns", "step_ns", "complete", "phase").equals(
                found[0].select("step", "rank", "edge_ns", "step_ns", "complete", "phase")
            )


def test_some_ranks_can_be_looked_at_alone(tmp_path: Path) -> None:
    paths = write(simulate(CaptureSpec(steps=12)), tmp_path, truth=False)
    with open_trace([str(path) for path in paths]) as trace:
        every = steps(trace).steps
        two = steps(trace.with_options(ranks=(1, 3))).steps
        columns = ["rank", "step", "step_ns", "busy_ns", "gap_ns", "kernel_count", "collective_count"]
        assert two.select(columns).equals(every.filter(pl.col("rank").is_in([1, 3])).select(columns))


def test_graph_rungs_are_kept_apart(tmp_path: Path) -> None:
    """Three graphs in turn whose matrix products have one shape; their small kernels grow with the batch."""
    rows: list[Any] = []
    for step in range(13):
        at, graph = 1000 * step, step % 3
        for place, name in enumerate((NORM, GEMM, NORM)):
            rows.append(
                kernel(
                    name,
                    at + 20 + 11 * place,
                    at + 30 + 11 * place,
                    correlation=100 + step,
                    graph_node=10 * graph + place + 1,
                    graph=graph + 2,
                    grid=(132, 1, 1) if name == GEMM else (8 << graph, 1, 1),
                )
            )
        rows += [copy("D2H", at + 81, at + 85, at + 55)]
    with load(rows, tmp_path, write={"nsys_version": "2026.2.1"}) as trace:
        table = find_steps(trace).table
        assert table["rung"].str.slice(8).to_list() == [f"-{1 + step % 3}" for step in range(13)]
        assert table["graph_id"].to_list() == [2 + step % 3 for step in range(13)]
        assert steps(trace).summary["step_count"].to_list() == [4, 4, 4]


def test_a_graph_level_capture_gives_latency_but_no_collectives(tmp_path: Path) -> None:
    rows: list[Any] = []
    for step in range(6):
        at = 1000 * step
        rows += [
            GraphTrace(
                (at + 20) * US, (at + 900) * US, graph=3, correlation=50 + step, launch=((at + 5) * US, (at + 15) * US)
            )
        ]
        rows += [kernel(SAMPLE, at + 910, at + 920, at + 30), copy("D2H", at + 921, at + 925, at + 35)]
    with load(rows, tmp_path, write={"graph_trace": "Graph"}) as trace:
        answer = steps(trace)
        row = answer.steps.row(1, named=True)
        assert (row["step_ns"], row["busy_ns"], row["rung"]) == (1000 * US, (880 + 10 + 4) * US, "graph 3")
        assert all(row[name] is None for name in ("collective_ns", "exposed_ns", "wait_ns", "collective_count"))
        assert "graph-level-figures" in {notice.code for notice in answer.notices}


def test_tables_follow_the_trace_that_asks_last(tmp_path: Path) -> None:
    rows: list[Any] = []
    for step in range(6):
        rows += [
            mark(DECODE, 100 * step, 100 * step + 5),
            kernel(GEMM, 100 * step + 9, 100 * step + 90, 100 * step + 2),
        ]
    with load(rows, tmp_path) as trace:
        other = trace.with_options(skip=3)
        for one, warm in ((trace, 0), (other, 3), (trace, 0)):
            find_steps(one)
            assert trace.db.execute("SELECT count(*) FROM step WHERE warm_up").fetchall() == [(warm,)]


# Whole captures against their truth

CAPTURES = {
    "one full graph": CaptureSpec(nvtx="none"),
    "ranges": CaptureSpec(),
    "start jitter": CaptureSpec(nvtx="none", tp=8, start_jitter_ns=50_000),
    "pieces per layer": CaptureSpec(nvtx="none", launch="piecewise"),
    "six launches a step": CaptureSpec(nvtx="none", launch="pieces"),
    "draft and verify": CaptureSpec(nvtx="none", speculative=3),
    "draft and verify, eager": CaptureSpec(nvtx="none", speculative=3, launch="eager"),
    "eager, no ranges": CaptureSpec(nvtx="none", launch="eager"),
    "eager, host ahead": CaptureSpec(nvtx="none", launch="eager", host_ahead=True),
    "eager, 32 layers": CaptureSpec(nvtx="none", launch="eager", layers=32, steps=12),
    "copy stream, host ahead": CaptureSpec(nvtx="none", input_stream="copy", host_ahead=True),
    "ranges close early": CaptureSpec(nvtx_close="early", nvtx_type=60, nvtx_registered=True),
    "sampling outside ranges": CaptureSpec(nvtx_close="model"),
    "prefills": CaptureSpec(nvtx="none", prefill_every=5),
    "prefills, sglang": CaptureSpec(engine="sglang", prefill_every=5),
    "prefills, trtllm": CaptureSpec(engine="trtllm", prefill_every=5),
    "mixed, replayed": CaptureSpec(
        nvtx="none",
        launch="piecewise",
        eager_prefill=False,
        mixed_factor=6.0,
        schedule=(Stretch("decode", 14), Stretch("mixed", 2)) * 2,
    ),
    "requests": CaptureSpec(nvtx="none", requests=5, steps=20, prefill_first=True),
    "warm-up": CaptureSpec(nvtx="none", steps=80, warm_up_steps=16),
    "second stream": CaptureSpec(side_stream="collective"),
    "dependent launch": CaptureSpec(pdl_ns=1_500),
    "heads and tails cut": CaptureSpec(nvtx="none", lost_head=(0, 100, 300, 77), lost_tail=(50, 0, 33, 200)),
    "heads cut, eager": CaptureSpec(
        nvtx="none", launch="eager", lost_head=(0, 100, 300, 77), lost_tail=(50, 0, 33, 200)
    ),
    "whole steps missing": CaptureSpec(nvtx="none", lost_head_steps=(0, 3, 5, 1), lost_tail_steps=(2, 0, 0, 7)),
    "one process": CaptureSpec(one_process=True),
    "experts, two replicas": CaptureSpec(nvtx="none", moe=True, ep="deep_ep", dp=2, tp=2),
    "host stalls": CaptureSpec(launch="eager", faults=(Stall(ranks=(0,), stall_ns=176_000, per_step=8),)),
    "a clock jumps": CaptureSpec(nvtx="none", gpu_jumps=(ClockJump(1, 0.5, 20_000),)),
}


@pytest.mark.parametrize("name", CAPTURES)
def test_simulated_steps_are_those_of_the_truth(tmp_path: Path, name: str) -> None:
    """Number, completeness, phases, latency, busy, collective and exposed time, and counts of every step and rank."""
    capture = simulate(CAPTURES[name])
    paths = write(capture, tmp_path, truth=False)
    with open_trace([str(path) for path in paths], Options()) as trace:
        truth = capture.truth.steps
        found = figures_per_step(trace)
        assert found["step"].n_unique() == len(truth.phase)
        step, rank = found["step"].to_numpy(), found["rank"].to_numpy()
        assert found["phase"].to_list() == [truth.phase[one] for one in step]
        complete = found["complete_on_all"].to_numpy()
        assert sorted(set(step[complete].tolist())) == np.flatnonzero(truth.complete).tolist()
        for column in ("step_ns", "busy_ns", "collective_ns", "exposed_ns"):
            error = np.abs(found[column].to_numpy() - getattr(truth, column)[step, rank])[complete]
            # A clock that jumps shows in the one step that it jumps in.
            assert np.quantile(error, 0.98) <= 2, column
        for column in ("kernel_count", "collective_count"):
            assert (found[column].to_numpy() == getattr(truth, column)[step, rank])[complete].all(), column
        decode = steps(trace).summary.filter(pl.col("phase") == "decode").row(0, named=True)
        use = [
            one
            for one in range(len(truth.phase))
            if truth.phase[one] == "decode" and truth.complete[one] and not truth.warm_up[one]
        ]
        assert decode["p50_ns"] == pytest.approx(np.median(np.median(truth.step_ns[use], axis=1)), rel=5e-4)
        if name == "warm-up":
            assert 14 <= found.filter("warm_up")["step"].n_unique() <= 18
        if name == "requests":
            facts = find_steps(trace).facts
            assert facts["idle_between_count"] == 4
            assert facts["idle_between_ns"] == pytest.approx(320e6, rel=0.002)


def test_lost_graph_nodes_are_told(tmp_path: Path) -> None:
    """All replays of a graph have the same nodes; 20 of one rank are missing in the middle."""
    spec = CaptureSpec(steps=20, lost_runs=(LostRun(rank=2, at_frac=0.5, count=20),))
    for lost in (spec, CaptureSpec(steps=20, rungs=(8, 16), prefill_every=4)):
        paths = write(simulate(lost), tmp_path / str(len(lost.lost_runs)), truth=False)
        with open_trace([str(path) for path in paths]) as trace:
            told = [notice for notice in steps(trace).notices if notice.code == "graph-nodes-missing"]
            assert len(told) == len(lost.lost_runs)
            assert all(15 <= (notice.count or 0) <= 20 and "on rank 2" in notice.message for notice in told)


def test_one_file_per_rank_numbers_alike(tmp_path: Path) -> None:
    spec = CaptureSpec(nvtx="none", lost_head=(0, 100, 300, 77), session_spread_ns=12_000_000)
    capture = simulate(spec)
    answers = []
    for one_file in (True, False):
        paths = write(capture, tmp_path / str(one_file), one_file=one_file, truth=False)
        with open_trace([str(path) for path in paths]) as trace:
            answers.append(
                find_steps(trace).table.select("step", "rank", "phase", "step_ns", "complete", "kernel_count")
            )
    assert answers[0].drop("step_ns").equals(answers[1].drop("step_ns"))


def test_without_graph_ids_and_in_any_row_order(tmp_path: Path) -> None:
    """Exports before 2026 have no graph ids; the order of rows says nothing."""
    capture = simulate(CaptureSpec(nvtx="none", steps=12))
    answers = []
    for version, shuffle in (("2026.2.1", None), ("2026.2.1", 3), ("2025.3.2", None)):
        paths = write(capture, tmp_path / f"{version}{shuffle}", nsys_version=version, shuffle=shuffle, truth=False)
        with open_trace([str(path) for path in paths]) as trace:
            answers.append(steps(trace).steps)
    assert answers[0].equals(answers[1])
    assert answers[2]["graph_id"].null_count() == answers[2].height
    assert answers[0].drop("graph_id").equals(answers[2].drop("graph_id"))


# Conservation

BLOCKS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 60), st.sampled_from([7, 7, 9]), st.integers(0, 30), st.booleans()),
    min_size=2,
    max_size=24,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(blocks=BLOCKS, every=st.integers(1, 5))
def test_time_is_conserved_on_random_captures(tmp_path: Path, blocks: list[Any], every: int) -> None:
    """busy + gaps by cause = window = step_ns; exposed + hidden = collective; steps + idle between + outside = span."""
    rows: list[Any] = []
    at = {7: 100, 9: 100}
    clock = 100
    for place, (gap, length, stream, lead, collective) in enumerate(blocks):
        start = max(at[stream] + gap, clock)
        name = "void vllm::cross_device_reduce_2stage<float, (int)2>(int)" if collective else GEMM
        if place % every == 0:
            rows.append(mark(DECODE, start - lead - 3, start - lead - 2))
        rows.append(kernel(name, start, start + length, launch=start - lead - 1, stream=stream))
        at[stream] = start + length
        clock = max(clock, start - 20)
    with load(rows, tmp_path) as trace:
        found = find_steps(trace)
        figures = figures_per_step(trace)
        causes = [
            name
            for name in figures.columns
            if name.endswith("_ns")
            and name.split("_ns")[0]
            in ("host_late", "launch_latency", "in_graph", "back_to_back", "step_boundary", "other_gap")
        ]
        assert (figures["busy_ns"] + figures["gap_ns"] == figures["step_ns"]).all()
        assert (figures.select(pl.sum_horizontal(causes)).to_series() == figures["gap_ns"]).all()
        events = trace.db.execute(
            "SELECT start_ns, end_ns, operation IS NOT NULL, stream FROM event JOIN kernel_name USING (name_id)"
        ).fetchall()
        for edge, end, busy, collective, exposed in figures.select(
            "edge_ns", "window_end_ns", "busy_ns", "collective_ns", "exposed_ns"
        ).rows():
            line = [set() for _ in range(3)]
            for start, stop, is_collective, stream in events:
                covered = range(max(start, edge) // US, min(stop, end) // US)
                line[0].update(covered)
                if is_collective:
                    line[1].update(covered)
                    hidden = set().union(
                        *(range(s // US, e // US) for s, e, c, other in events if not c and other != stream)
                    )
                    line[2].update(set(covered) - hidden)
            assert [busy, collective, exposed] == [len(one) * US for one in line]
        kept = found.conservation
        assert (kept["span_ns"] == kept["steps_ns"] + kept["idle_between_ns"] + kept["outside_ns"]).all()
        assert (kept["outside_ns"] >= 0).all()


# Real exports


@needs_real
@pytest.mark.parametrize(("name", "count", "p50_ms"), [("before", 32, 16.7), ("after", 28, 19.3)])
def test_a_real_slice_without_steps_shows_its_period_and_says_what_it_is(name: str, count: int, p50_ms: float) -> None:
    """0.3 s of a diffusion model: 119 kernels repeat; no range, no graph, nothing read back."""
    with open_trace([str(REAL / f"h100x2_{name}.sqlite")]) as trace:
        answer = steps(trace)
        assert answer.provenance["marker"] == "period"
        shown = answer.summary.row(0, named=True)
        assert (shown["phase"], shown["step_count"]) == ("other", count)
        assert shown["p50_ns"] / 1e6 == pytest.approx(p50_ms, abs=0.1)
        assert {"period-only", "no-alignment"} <= {notice.code for notice in answer.notices}
        assert (answer.steps["busy_ns"] + answer.steps["gap_ns"] == answer.steps["step_ns"]).all()
