"""Gaps: one cause each, drawn; in total against simulated truth; conserved; counted on real captures."""

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
from tracelens.analyses.gap_search import find_gaps
from tracelens.analyses.gaps import CAUSES, gaps
from tracelens.analyses.occupancy import occupancy
from tracelens.analyses.steps import find_steps, steps
from tracelens.analyses.timeline import timeline
from tracelens.simulate import CaptureSpec, GraphTrace, Stall, simulate, write
from tracelens.trace import LoadedTrace, Options, open_trace

DECODE = "execute_context_0(0)_generation_8(8)"


def drawn(trace: LoadedTrace) -> list[tuple[float, float, str, float | None, float | None]]:
    """(start, length, cause, host part, launch part) in us of the gaps of rank 0."""
    rows = gaps(trace, all=True).gaps.filter(pl.col("rank") == 0)
    return [
        (start / US, length / US, cause, None if host is None else host / US, None if launch is None else launch / US)
        for start, length, cause, host, launch in rows.select(
            "start_ns", "gap_ns", "cause", "host_part_ns", "launch_part_ns"
        ).rows()
    ]


def totals(trace: LoadedTrace) -> dict[str, int]:
    """Cause -> ns over all ranks, causes without gaps left out."""
    sums = gaps(trace).causes.group_by("cause").agg(pl.col("gap_ns").sum()).filter(pl.col("gap_ns") > 0)
    return dict(sums.rows())


# Causes


def test_each_cause_by_the_first_rule_that_holds(tmp_path: Path) -> None:
    """Stream 7, but for the kernel at 190; launches begin at the given times and last 2 us; typical latency 10 us.

    10-20  launched at 4
    50-60  launched at 45: after the device ran dry at 20          host_late: 25 host, 5 launch
    68-80  launched at 58, before 60, dry before 58 + 10           launch_latency: 8 of launch
    83-90  launched at 20: queued, 3 us behind on the same stream  back_to_back
    110-120 launched at 22: queued long ago, 20 us                 dependency
    123-130 launched at 24 on stream 9: 3 us, another stream       dependency
    140-150 no call in the capture                                 unknown
    """
    rows = [
        kernel("a", 10, 20, 4),
        kernel("b", 50, 60, 45),
        kernel("c", 68, 80, 58),
        kernel("d", 83, 90, 20),
        kernel("e", 110, 120, 22),
        kernel("f", 123, 130, 24, stream=9),
        kernel("g", 140, 150),
    ]
    with load(rows, tmp_path) as trace:
        assert drawn(trace) == [
            (20, 30, "host_late", 25, 5),
            (60, 8, "launch_latency", 0, 8),
            (80, 3, "back_to_back", None, None),
            (90, 20, "dependency", None, None),
            (120, 3, "dependency", None, None),
            (130, 10, "unknown", None, None),
        ]
        answer = gaps(trace)
        assert answer.causes.filter(pl.col("gap_count") > 0)["cause"].to_list() == [
            cause for cause in CAUSES if cause in totals(trace)
        ]
        first = answer.edges.row(0, named=True)
        assert (first["before_kernel"], first["after_kernel"], first["api_name"], first["gap_ns"]) == (
            "a",
            "b",
            "cudaLaunchKernel_v7000",
            30 * US,
        )


def test_a_call_still_running_is_a_launch_in_flight(tmp_path: Path) -> None:
    """The launching thread is descheduled inside the call: begin 15, end 90; the device runs dry at 40."""
    rows = [kernel("a", 10, 40, 4)]
    rows += [kernel("b", 95, 99, 15)]
    rows[1] = type(rows[1])("b", 95 * US, 99 * US, launch=(15 * US, 90 * US))
    with load(rows, tmp_path) as trace:
        # In flight until the call ends at 90; what is left to 95 is in neither part.
        assert drawn(trace) == [(40, 55, "launch_latency", 0, 50)]


def test_a_replay_is_one_launch(tmp_path: Path) -> None:
    """1,065 nodes share one call: gaps between them are in_graph, the call's time counts once."""
    rows = [kernel("a", 0, 10, -9), *replay(77, 100, [NORM, GEMM, NORM] * 355, launch=60)]
    with load(rows, tmp_path) as trace:
        found = gaps(trace).causes.filter(pl.col("gap_count") > 0)
        assert found.select("cause", "gap_count", "gap_ns", "host_part_ns", "launch_part_ns").rows() == [
            ("in_graph", 1064, 1064 * US, None, None),
            ("host_late", 1, 90 * US, 50 * US, 30 * US),
        ]
        assert gaps(trace).edges.filter(pl.col("cause") == "host_late")["api_name"].to_list() == [
            "cudaGraphLaunch_v10000"
        ]


def test_a_node_after_an_event_of_another_stream_has_no_launch_of_its_own(tmp_path: Path) -> None:
    """The copy on stream 9 ends last before the second node, whose replay was launched long before."""
    rows = [*replay(77, 100, [NORM, GEMM], launch=60), copy("D2D", 105, 110.5, 50, stream=9)]
    with load(rows, tmp_path) as trace:
        assert drawn(trace) == [(110.5, 0.5, "dependency", None, None)]


def test_api_time_beside_work_costs_nothing(tmp_path: Path) -> None:
    """1,490 launches of 2 us each run while the device works through its queue without a pause."""
    rows = [kernel(GEMM, 100 + 10 * place, 110 + 10 * place, 3 * place) for place in range(1490)]
    with load(rows, tmp_path) as trace:
        assert totals(trace) == {}
        assert gaps(trace).sentences == ("No rank idled.",)


def test_overlap_on_a_stream_makes_no_negative_gap(tmp_path: Path) -> None:
    """Programmatic dependent launch: each kernel starts 2 us before the one ahead ends."""
    rows = [kernel(GEMM, 100 + 8 * place, 110 + 8 * place, place) for place in range(50)]
    with load(rows, tmp_path) as trace:
        answer = gaps(trace)
        assert totals(trace) == {}
        noted = [notice for notice in answer.notices if notice.code == "overlap-on-stream"]
        assert [notice.count for notice in noted] == [49]


def test_a_bubble_before_each_replay_is_a_step_boundary(tmp_path: Path) -> None:
    """51 replays with 2 ms between the read-back and the next one."""
    rows: list[Any] = []
    for step in range(51):
        at = 3000 * step
        rows += replay(100 + step, at, [NORM, GEMM, NORM], launch=at - 40)
        rows += [kernel(SAMPLE, at + 40, at + 900, at + 5), copy("D2H", at + 901, at + 1000, at + 8)]
    with load(rows, tmp_path) as trace:
        row = gaps(trace).causes.row(CAUSES.index("step_boundary"), named=True)
        assert (row["gap_count"], row["p50_ns"], row["per_step_ns"]) == (50, 2000 * US, 2000 * US)
        assert row["host_part_ns"] == 50 * 1960 * US
        # From the call until the start: as long as graph launches typically take here.
        assert row["launch_part_ns"] == 50 * 40 * US


# Clocks


def test_the_host_moves_by_the_smallest_shift_that_serves_nearly_all(tmp_path: Path) -> None:
    """1,999 launches start 8 us before their call: the device's clock is early; one more is wrong by 300 us."""
    rows = [kernel(GEMM, 50 * place - 8, 50 * place + 12, 50 * place) for place in range(1, 2000)]
    rows.append(kernel("bad", 120_000, 120_010, 120_300))
    with load(rows, tmp_path) as trace:
        found = find_gaps(trace)
        assert list(found.shift_ns.values()) == [8 * US]
        assert [notice.count for notice in found.notices if notice.code == "starts-before-launch"] == [1]
        # With calls at the start of their kernels every gap is the host's, but the bad one's.
        assert set(totals(trace)) == {"host_late", "unknown"}


def test_the_shift_ends_at_100_us(tmp_path: Path) -> None:
    rows = [kernel(GEMM, 500 * place - 150, 500 * place - 100, 500 * place) for place in range(1, 50)]
    with load(rows, tmp_path) as trace:
        found = find_gaps(trace)
        assert list(found.shift_ns.values()) == [100 * US]
        assert set(totals(trace)) == {"unknown"}


def test_typical_latency_is_that_into_an_idle_device(tmp_path: Path) -> None:
    """30 launches into an idle device take 8 us; 60 queued ones wait 200 us; graph launches are counted apart."""
    rows: list[Any] = [kernel(GEMM, 1000 * place + 8, 1000 * place + 400, 1000 * place) for place in range(30)]
    rows += [
        kernel(NORM, 1000 * place + 401 + 30 * k, 1000 * place + 430 + 30 * k, 1000 * place + 201 + 30 * k)
        for place in range(30)
        for k in range(2)
    ]
    for place in range(30):
        rows += replay(500 + place, 1000 * place + 615, [NORM, NORM], launch=1000 * place + 600)
    with load(rows, tmp_path) as trace:
        assert find_gaps(trace).typical.rows() == [(0, False, 29, 8 * US), (0, True, 30, 15 * US)]


def test_devices_without_collectives_meet_at_equal_first_percentiles(tmp_path: Path) -> None:
    """GPU 1's clock is 9 us late; its launches into an idle device take 8 us as on GPU 0."""
    rows: list[Any] = []
    for rank, late in ((0, 0), (1, 9)):
        rows += [
            kernel(GEMM, 100 * place + 8 + late, 100 * place + 50 + late, 100 * place, pid=1000 + rank, device=rank)
            for place in range(1, 60)
        ]
    with load(rows, tmp_path, clock="auto") as trace:
        typical = find_gaps(trace).typical.filter(pl.col("launch_count") > 0)
        assert typical.select("rank", "typical_ns").rows() == [(0, 8 * US), (1, 8 * US)]
    with load(rows, tmp_path, clock="trust") as trace:
        typical = find_gaps(trace).typical.filter(pl.col("launch_count") > 0)
        assert typical.select("rank", "typical_ns").rows() == [(0, 8 * US), (1, 17 * US)]


# Selection, refusals


def test_a_selection_clips_gaps_and_their_parts(tmp_path: Path) -> None:
    """One gap 20..60, launched at 45; the window ends at 50: 25 of host, 5 of launch."""
    rows = [kernel("a", 0, 20, -5), kernel("b", 60, 80, 45)]
    with load(rows, tmp_path) as trace:
        assert drawn(trace) == [(20, 40, "host_late", 25, 10)]
        assert drawn(trace.with_options(time_s=(0.0, 50e-6))) == [(20, 30, "host_late", 25, 5)]
        assert drawn(trace.with_options(time_s=(30e-6, 40e-6))) == [(30, 10, "host_late", 10, 0)]
        assert gaps(trace.with_options(time_s=(30e-6, 40e-6))).causes["gap_ns"].sum() == 10 * US


def test_steps_choose_windows(tmp_path: Path) -> None:
    rows: list[Any] = []
    for step in range(6):
        at = 100 * step
        rows += [
            mark(DECODE, at, at + 5),
            kernel(GEMM, at + 10, at + 40, at + 2),
            kernel(NORM, at + 60, at + 90, at + 50),
        ]
    with load(rows, tmp_path) as trace:
        chosen = gaps(trace.with_options(steps=(1, 2))).causes.filter(pl.col("gap_count") > 0)
        assert chosen.select("cause", "gap_count", "gap_ns", "per_step_ns").rows() == [
            ("step_boundary", 2, 40 * US, 20 * US),
            ("host_late", 2, 40 * US, 20 * US),
        ]


def test_replays_that_left_no_trace_leave_gaps_unknown(tmp_path: Path) -> None:
    """A graph-level capture of an old version: the launches are there, the work is not."""
    rows: list[Any] = []
    for step in range(20):
        at = 1000 * step
        rows += [mark(DECODE, at, at + 5), kernel(SAMPLE, at + 900, at + 950, at + 20)]
        rows += [
            GraphTrace((at + 20) * US, (at + 890) * US, correlation=50 + step, launch=((at + 5) * US, (at + 15) * US))
        ]
    without = {"without": ["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"], "graph_trace": "Graph"}
    with load(rows, tmp_path, write=without) as trace:
        answer = gaps(trace)
        assert dict(answer.tables) == {}
        assert "graph-level-no-times" in {notice.code for notice in answer.notices}
        shown = steps(trace).steps
        assert shown["busy_ns"].null_count() == shown["gap_ns"].null_count() == shown.height
        assert shown["step_ns"].to_list()[:2] == [1000 * US] * 2
    with load(rows, tmp_path, write={"graph_trace": "Graph"}) as trace:
        assert gaps(trace).causes["gap_ns"].sum() > 0


# Totals against the truth

CAPTURES = {
    "graph": CaptureSpec(steps=30),
    "graph, no ranges": CaptureSpec(steps=30, nvtx="none"),
    "eager": CaptureSpec(steps=30, launch="eager"),
    "eager, no ranges": CaptureSpec(steps=30, launch="eager", nvtx="none"),
    "eager, host ahead": CaptureSpec(steps=30, launch="eager", host_ahead=True),
    "dependencies": CaptureSpec(steps=30, launch="eager", dependency_gap_ns=8_000, host_ahead=True),
    "pieces per layer": CaptureSpec(steps=30, launch="piecewise"),
    "bubble": CaptureSpec(steps=51, bubble_ns=2_000_000, nvtx="none"),
    "requests": CaptureSpec(steps=20, requests=4),
    "second stream": CaptureSpec(steps=30, side_stream="compute", launch="eager"),
    "dependent launch": CaptureSpec(steps=30, pdl_ns=1_500),
    "stalls of one host": CaptureSpec(
        steps=30, launch="eager", faults=(Stall(ranks=(0,), stall_ns=176_000, per_step=8),)
    ),
    "device clocks late": CaptureSpec(steps=30, launch="eager", gpu_offset_ns=(0, 5_000, 12_000, 9_000)),
    "device clocks early": CaptureSpec(steps=30, launch="eager", gpu_offset_ns=(0, -3_000, -12_000, -7_000)),
}


@pytest.mark.parametrize("name", CAPTURES)
def test_every_cause_in_total_is_that_of_the_truth(tmp_path: Path, name: str) -> None:
    capture = simulate(CAPTURES[name])
    paths = write(capture, tmp_path, truth=False)
    with open_trace([str(path) for path in paths], Options()) as trace:
        found = totals(trace)
        # One launch in a thousand may start before its call once the clocks are shifted: those have no cause.
        spare = 0.001 * sum(int(per_rank.sum()) for per_rank in capture.truth.gap_total_ns.values())
        for cause in CAUSES:
            expected = int(capture.truth.gap_total_ns[cause].sum()) if cause in capture.truth.gap_total_ns else 0
            assert found.get(cause, 0) == pytest.approx(expected, rel=0.01, abs=spare), cause


# Conservation, and the naive count

BLOCKS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 25), st.integers(0, 1), st.integers(0, 40)), min_size=1, max_size=30
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(blocks=BLOCKS, calls=st.booleans())
def test_every_idle_nanosecond_has_one_cause(
    tmp_path: Path, blocks: list[tuple[int, int, int, int]], calls: bool
) -> None:
    """Random events on two ranks; idle painted per us; gaps between two events are maximal."""
    rows, at = [], [100, 100]
    for ahead, length, rank, lead in blocks:
        start = at[rank] + ahead - 8
        rows.append(
            kernel(
                GEMM,
                start,
                start + length,
                start - lead if calls else None,
                pid=1000 + rank,
                device=rank,
                stream=7 + length % 2,
            )
        )
        at[rank] = max(at[rank], start)
    with load([*rows, *(kernel(NORM, 0, 1, None, pid=1000 + r, device=r) for r in range(2))], tmp_path) as trace:
        every = gaps(trace, all=True)
        for rank in range(2):
            mine = [one for one in rows if one.device == rank] + [kernel(NORM, 0, 1)]
            busy = set().union(*(range(one.start // US, one.end // US) for one in mine))
            idle = set(range(max(busy) + 1)) - busy
            shown = every.gaps.filter(pl.col("rank") == rank)
            listed = [
                range(start // US, (start + length) // US)
                for start, length in shown.select("start_ns", "gap_ns").rows()
            ]
            assert sum(len(one) for one in listed) == len(idle)
            assert set().union(*listed) == idle
            assert all(one.start - 1 in busy and one.stop in busy for one in listed)
            assert every.causes.filter(pl.col("rank") == rank)["gap_ns"].sum() == len(idle) * US
        parts = every.gaps.filter(pl.col("host_part_ns").is_not_null())
        assert (parts["host_part_ns"] + parts["launch_part_ns"] <= parts["gap_ns"]).all()
        occ, tl = occupancy(trace), timeline(trace)
        assert (occ.gap_end > occ.gap_start).all()
        assert (tl.rank_place[occ.before] == tl.rank_place[occ.after]).all()


def test_the_table_gap_holds_what_the_answer_tells(tmp_path: Path) -> None:
    rows = [kernel("a", 10, 20, 4), kernel("b", 50, 60, 45), kernel("c", 63, 80, 20)]
    with load(rows, tmp_path) as trace:
        find_gaps(trace)
        shown = trace.db.execute(
            "SELECT start_ns, end_ns, gap_ns, cause, before_event_id, after_event_id, launch_start_ns, host_part_ns, launch_part_ns FROM gap"
        ).fetchall()
        assert shown == [
            (20 * US, 50 * US, 30 * US, "host_late", 0, 1, 45 * US, 25 * US, 5 * US),
            (60 * US, 63 * US, 3 * US, "back_to_back", 1, 2, 20 * US, None, None),
        ]


# Real exports


@needs_real
def test_queued_kernels_of_a_real_capture_are_back_to_back() -> None:
    """h100x2_before, GPU 1: 2,662 gaps, of which 2,260 are ordinary; 8 us from a call to an idle device, not 235."""
    with open_trace([str(REAL / "h100x2_before.sqlite")]) as trace:
        answer = gaps(trace).causes.filter(pl.col("rank") == 1)
        count = dict(answer.select("cause", "gap_count").rows())
        assert sum(count.values()) == 2662
        # 12 of the 17 step boundaries are such gaps too: the steps here are layers without a pause in between.
        assert 2240 <= count["back_to_back"] <= 2260 <= count["back_to_back"] + count["step_boundary"]
        assert count["dependency"] == 0
        found = find_gaps(trace)
        typical = dict(found.typical.filter(~pl.col("graph_launch")).select("rank", "typical_ns").rows())
        assert typical[1] == pytest.approx(8_500, abs=100)
        tl, occ = timeline(trace), occupancy(trace)
        call = tl.launch[occ.after]
        own = (call >= 0) & (tl.rank_place[occ.after] == 1)
        naive = np.median(
            tl.own_time(tl.rank_place[occ.after[own]], tl.start[occ.after[own]]) - tl.launches.begin[call[own]]
        )
        assert naive == pytest.approx(235_900, abs=500)
        assert find_steps(trace).facts["marker"] == "period"
