"""Gaps: one cause each, drawn; conserved; counted on real captures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.analyses.drawn_steps import GEMM, NORM, SAMPLE, US, copy, kernel, load, mark, replay
from tests.analyses.gap_rows import device_ahead, drawn, totals
from tests.running import REAL, needs_real
from tracelens.analyses.gap_search import _overlaps_on_stream, find_gaps
from tracelens.analyses.gap_tables import _Lengths
from tracelens.analyses.gaps import CAUSES, gaps
from tracelens.analyses.occupancy import _build, occupancy
from tracelens.analyses.step_summary import whole_ns
from tracelens.analyses.steps import find_steps, steps
from tracelens.analyses.timeline import Timeline, timeline
from tracelens.array_room import ArrayRoom
from tracelens.simulate import (
    GraphTrace,
)
from tracelens.trace import open_trace

DECODE = "execute_context_0(0)_generation_8(8)"


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
        assert (occ.lengths(slice(0, len(occ))) > 0).all()
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
    """h100x2_before, GPU 1: 2,662 gaps, of which 2,260 are ordinary; 7.5 us from a call to an idle device, not 235."""
    with open_trace([str(REAL / "h100x2_before.sqlite")]) as trace:
        answer = gaps(trace).causes.filter(pl.col("rank") == 1)
        count = dict(answer.select("cause", "gap_count").rows())
        assert sum(count.values()) == 2662
        # 12 of the 17 step boundaries are such gaps too: the steps here are layers without a pause in between.
        assert 2240 <= count["back_to_back"] <= 2260 <= count["back_to_back"] + count["step_boundary"]
        assert count["dependency"] == 0
        found = find_gaps(trace)
        typical = dict(found.typical.filter(~pl.col("graph_launch")).select("rank", "typical_ns").rows())
        # By the recorded clocks it was 20.7 and 8.5 us: GPU 0 is ahead by 14 us until its clock is set right.
        assert typical == {0: pytest.approx(7_000, abs=100), 1: pytest.approx(7_500, abs=100)}
        assert [(ranks, round(ahead_us)) for ranks, ahead_us, _ in device_ahead(trace)] == [
            ((0,), 14),
            ((0,), 1),
            ((1,), 1),
        ]
        tl, occ = timeline(trace), occupancy(trace)
        call = tl.launch[occ.after]
        own = (call >= 0) & (tl.rank_place[occ.after] == 1)
        naive = np.median(
            tl.own_time(tl.rank_place[occ.after[own]], tl.start[occ.after[own]]) - tl.launches.begin[call[own]]
        )
        assert naive == pytest.approx(235_900, abs=500)
        assert find_steps(trace).facts["marker"] == "period"


# Figures of many gaps


LENGTHS = st.lists(
    st.tuples(st.sampled_from([0, 1, 2, 3, 4, 700]), st.sampled_from([1, 2, 3, 7, 1000, 2**31, 2**40])), max_size=60
)


class DrawnGaps:
    """Gaps of the given lengths, all of one rank."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = np.array(lengths, np.int64)
        trace = SimpleNamespace(threads=2)
        self.occupancy = SimpleNamespace(
            longer_than=lambda least_ns: np.flatnonzero(self.lengths > least_ns), timeline=SimpleNamespace(trace=trace)
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def parts(self, part: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.arange(part.start, part.stop), 5 * self.lengths[part], 6 * self.lengths[part]


@settings(deadline=None)
@given(rows=LENGTHS, block=st.integers(1, 20))
def test_lengths_put_together_block_by_block(rows: list[tuple[int, int]], block: int) -> None:
    codes = np.array([code for code, _ in rows], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracelens.analyses.blocks.BLOCK", block)
        lengths = _Lengths(DrawnGaps([ns for _, ns in rows]), ArrayRoom(1 << 30, Path()))  # type: ignore[arg-type]
        lengths.add(lambda gaps: codes[gaps])
        told = lengths.frame(lambda code: code // 2)
    every = pl.DataFrame([(code // 2, ns) for code, ns in rows], schema=["code", "ns"], orient="row")
    expected = (
        every.cast(pl.Int64)
        .group_by("code")
        .agg(
            pl.len().cast(pl.Int64).alias("gap_count"),
            pl.col("ns").sum().alias("gap_ns"),
            whole_ns(pl.col("ns").median()).alias("p50_ns"),
            whole_ns(pl.col("ns").quantile(0.99, "linear")).alias("p99_ns"),
            pl.col("ns").max().alias("max_ns"),
        )
        .sort("code")
    )
    assert told.rows() == expected.rows()


EVENTS_OF_RANK = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=25)


@settings(deadline=None)
@given(ranks=st.lists(EVENTS_OF_RANK, min_size=1, max_size=3), block=st.integers(1, 8), threads=st.integers(1, 3))
def test_gaps_do_not_depend_on_blocks(ranks: list[list[tuple[int, int]]], block: int, threads: int) -> None:
    """Against walking the events one by one: a gap stands between who ended last, of equals the later, and who starts."""
    ranks = [sorted(events, key=lambda one: one[0]) for events in ranks if events]
    tl = timeline_of(ranks, threads)
    expected, low, spans = [], 0, []
    for number, events in enumerate(ranks):
        last, span = -1, [1000 * number + events[0][0]] * 2
        for place, (start, length) in enumerate(events):
            if length == 0:
                continue
            if last < 0:
                span[0] = 1000 * number + start
            elif start > sum(events[last]):
                expected.append((low + last, low + place))
            if last < 0 or start + length >= sum(events[last]):
                last = place
                span[1] = 1000 * number + start + length
        low += len(events)
        spans.append(span)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracelens.analyses.blocks.BLOCK", block)
        patch.setattr("tracelens.analyses.occupancy.LONG_NS", 5)
        found = _build(tl)
    assert list(zip(found.before.tolist(), found.after.tolist(), strict=True)) == expected
    lengths = [tl.start[after] - tl.end[before] for before, after in expected]
    assert found.long.tolist() == [place for place, length in enumerate(lengths) if length > 5]
    assert np.stack([found.span_start, found.span_end], axis=1).tolist() == spans


def timeline_of(ranks: list[list[tuple[int, int]]], threads: int) -> Timeline:
    """(start, length) of the events of each rank, in the order of starts; a rank's axis begins at 1000 times its place."""
    start = np.array([1000 * place + start for place, events in enumerate(ranks) for start, _ in events], np.int64)
    none = np.empty(0, np.int64)
    return Timeline(
        rank_table=pl.DataFrame({"rank": range(len(ranks))}, schema={"rank": pl.Int32}),
        first=np.cumsum([0, *map(len, ranks)]),
        first_id=none,
        shift=none,
        start=start,
        length=np.array([length for events in ranks for _, length in events], np.uint32),
        kind=none.astype(np.uint8),
        in_graph=none.astype(bool),
        stream=none.astype(np.uint8),
        name=none.astype(np.uint8),
        graph_runs=(none, none),
        copies=(none, none.astype(np.uint8)),
        stream_number=none,
        stream_rank=none.astype(np.int32),
        names=pl.DataFrame(),
        trace=SimpleNamespace(room=ArrayRoom(1 << 30, Path()), threads=threads),  # type: ignore[arg-type]
    )


def test_overlaps_on_a_stream_are_counted_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """stream 7  aaaa  cccc dd     b begins in the middle of a, and e before f ends; what runs on two streams at once
                bbb       eee   overlaps nothing
    stream 9        ffffffff
                       g        g begins before f ends
    """
    rows = [
        kernel("a", 0, 10),
        kernel("b", 5, 12),
        kernel("c", 20, 30),
        kernel("d", 30, 33),
        kernel("f", 15, 40, stream=9),
        copy("H2D", 16, 50, stream=9),
        kernel("g", 25, 41, stream=9),
        kernel("e", 32, 36),
    ]
    for block in (1, 2, 3, 100):
        monkeypatch.setattr("tracelens.analyses.blocks.BLOCK", block)
        with load(rows, tmp_path) as trace:
            assert _overlaps_on_stream(timeline(trace)) == 3
