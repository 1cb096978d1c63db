"""From members to windows: the edge of each step on its main stream, the time until the next, and what cuts it short.

rank 0   |k k k k k|k k k k k|k k k k k          |k k k        step edges at |
window    `---0---´ `---1---´ `---2---´           `-3-´
                                      `- idle ---´             between requests: outside every window
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.aligned_clock import AlignedClock
from tracelens.analyses.blocks import blocks, run_starts
from tracelens.analyses.occupancy import Occupancy
from tracelens.analyses.step_idle import LEAST_NS, STEPS_LONG, CommonIdle, common_idle
from tracelens.analyses.step_numbering import number_steps
from tracelens.analyses.timeline import GRAPH, KERNEL, Codes, Ints, Timeline

_VOTES = 8
"""So many instances a step tell which steps of two ranks are the same."""


@dataclass(frozen=True)
class Windows:
    """Steps with their windows, still without phase and rung.

    Attributes:
        rows: one row per rank and step, in the order of (place, edge): row (of the marking), place, set, step, edge,
            next_edge (null for a rank's last), window_end (axis), idle_after_ns (0 where no idle between requests
            follows), kernel_count, graph_node_count, last_end.
        member: int32 [events], row in `rows` or -1.
        idle_gaps: one row per rank and idle between requests: place, set, start, end (axis).
        idle: the common idle stretches.
    """

    rows: pl.DataFrame
    member: Codes
    idle_gaps: pl.DataFrame
    idle: CommonIdle


def cut_windows(tl: Timeline, occ: Occupancy, clock: AlignedClock, member: Codes, count: int) -> Windows:
    """The windows of `count` steps, given the step of each event.

    Args:
        tl: the timeline.
        occ: its occupancy.
        clock: the aligned clock.
        member: int32 [events], step or -1; a step belongs to one rank. It is written over, and the answer's `member`.
        count: number of steps.
    """
    edges = _edges(tl, member)
    row_of = np.full(count + 1, -1, np.int32)
    row_of[edges["row"].to_numpy()] = np.arange(edges.height, dtype=np.int32)
    renumber(tl, member, row_of)
    place = edges["place"].to_numpy()
    edge = edges["edge"].to_numpy()
    sets_of_place = np.array([clock.rank_set[int(rank)] for rank in tl.ranks], np.int64)
    sets = sets_of_place[place]
    ranks = tl.ranks[place]
    aligned_edge = clock.aligned(ranks, tl.own_time(place, edge))
    shared = _shared_instances(clock, member)
    step = number_steps(sets, place, aligned_edge, shared)
    has_next = np.zeros(len(edge), bool)
    has_next[:-1] = place[1:] == place[:-1]
    next_edge = np.where(has_next, np.concatenate([edge[1:], edge[-1:]]), edges["last_end"].to_numpy())
    threshold = _thresholds(sets, next_edge - edge, has_next, len(sets_of_place))
    idle_gaps, idle = _idle_gaps(tl, occ, clock, sets_of_place, threshold)
    window_end, idle_after = _cut_at_idle(place, edge, next_edge, has_next, idle_gaps)
    rows = edges.with_columns(
        set=pl.Series(sets, dtype=pl.Int32),
        step=pl.Series(step, dtype=pl.Int32),
        next_edge=pl.Series(np.where(has_next, next_edge, -1)),
        has_next=pl.Series(has_next),
        window_end=pl.Series(window_end),
        idle_after_ns=pl.Series(idle_after),
    )
    return Windows(rows, member, idle_gaps, idle)


def renumber(tl: Timeline, member: Codes, number: Codes) -> None:
    """Writes `number` of each member over it; the last number is that of -1."""

    def write(part: slice) -> None:
        member[part] = number[member[part]]

    deque(tl.each(write), 0)


def _edges(tl: Timeline, member: Codes) -> pl.DataFrame:
    """Per step: its rank, edge and main stream, its counts and its last event's end; in the order of (place, edge).

    The edge is the start of the step's first event with a length on the stream that carries most of its kernel time;
    a step without kernels goes by all its events.
    """
    runs = _runs(tl, member)
    by_stream = runs.group_by("row", "stream").agg(
        pl.col("kernel_ns", "all_ns", "kernel_count", "node_count").sum(),
        pl.col("edge").min(),
        pl.col("last_end").max(),
    )
    by_stream = by_stream.filter(pl.col("all_ns") > 0)
    counts = runs.group_by("row").agg(pl.col("kernel_count", "node_count").sum())
    ends = by_stream.group_by("row").agg(pl.col("last_end").max())
    main = (
        by_stream.sort("row", -pl.col("kernel_ns"), -pl.col("all_ns"), "stream")
        .unique("row", keep="first", maintain_order=True)
        .select("row", "stream", "edge")
        .join(ends, on="row", how="left", maintain_order="left")
    )
    main = main.join(counts, on="row", how="left", maintain_order="left")
    return main.with_columns(
        place=pl.Series(tl.stream_rank[main["stream"].to_numpy()], dtype=pl.Int64),
        kernel_count=pl.col("kernel_count").cast(pl.Int64),
        graph_node_count=pl.col("node_count").cast(pl.Int64),
    ).sort("place", "edge", "row")


def _runs(tl: Timeline, member: Codes) -> pl.DataFrame:
    """Consecutive events of one step on one stream: their sums, the start of the first with a length, the last end."""
    parts = list(tl.each(lambda part: _runs_of(tl, member, part))) or [_runs_of(tl, member, slice(0, 0))]
    return pl.DataFrame({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def _runs_of(tl: Timeline, member: Codes, part: slice) -> dict[str, npt.NDArray[Any]]:
    row, stream = member[part], tl.stream[part]
    begins = run_starts(row, stream)
    start, length, kind = tl.start[part], tl.length[part], tl.kind[part]
    end = start + length
    kernel = kind == KERNEL
    sums = {
        "kernel_ns": np.where(kernel | (kind == GRAPH), length, 0),
        "all_ns": length,
        "kernel_count": kernel,
        "node_count": tl.in_graph[part],
    }
    columns = {name: _sums_from(begins, values) for name, values in sums.items()}
    edge = start[begins]
    if not bool((length > 0).all()):
        # An event without a length is no edge and ends nothing.
        edge = np.minimum.reduceat(np.where(length > 0, start, np.iinfo(np.int64).max), begins)
        end = np.where(length > 0, end, np.iinfo(np.int64).min)
    last = np.maximum.reduceat(end, begins) if len(begins) else end
    found = {"row": row[begins], "stream": stream[begins], **columns, "edge": edge, "last_end": last}
    held = found["row"] >= 0
    return {name: values[held] for name, values in found.items()}


def _sums_from(begins: Ints, values: npt.NDArray[Any]) -> Ints:
    """Sum of the values from each of `begins` to the next."""
    result: Ints = np.add.reduceat(values, begins, dtype=np.int64) if len(begins) else np.empty(0, np.int64)
    return result


def _shared_instances(clock: AlignedClock, member: Codes) -> pl.DataFrame:
    """Which step holds which matched collective instance; of many, a share that is the same on all ranks."""
    found = clock.operations
    total, held = 0, np.zeros(int(member.max(initial=-1)) + 1, bool)
    for part in blocks(0, len(found)):
        step = member[found.recorded.place[part]]
        shared = (found.instance[part] >= 0) & (step >= 0)
        total += int(np.count_nonzero(shared))
        held[step[shared]] = True
    share = max(total // max(int(np.count_nonzero(held)), 1) // _VOTES, 1)
    columns: dict[str, list[npt.NDArray[Any]]] = {"communicator": [], "instance": [], "step": []}
    for part in blocks(0, len(found)):
        step, instance = member[found.recorded.place[part]], found.instance[part]
        shared = (instance >= 0) & (step >= 0) & (instance % share == 0)
        columns["communicator"].append(found.communicator[part][shared])
        columns["instance"].append(instance[shared])
        columns["step"].append(step[shared].astype(np.int64))
    return pl.DataFrame({name: np.concatenate([np.empty(0, np.int32), *parts]) for name, parts in columns.items()})


def _thresholds(sets: Ints, lengths: Ints, has_next: npt.NDArray[np.bool_], set_bound: int) -> Ints:
    """Per set, the length that an idle between requests exceeds; from all steps, before any is cut."""
    # Without steps nothing tells a pause of the client from one of the host.
    result = np.full(max(set_bound, int(sets.max(initial=-1)) + 1), np.iinfo(np.int64).max, np.int64)
    medians = (
        pl.DataFrame({"set": sets[has_next], "length": lengths[has_next]})
        .group_by("set")
        .agg(pl.col("length").median())
    )
    for number, median in medians.iter_rows():
        result[number] = max(LEAST_NS, int(np.floor(STEPS_LONG * median)))
    return result


def _idle_gaps(
    tl: Timeline, occ: Occupancy, clock: AlignedClock, sets_of_place: Ints, threshold: Ints
) -> tuple[pl.DataFrame, CommonIdle]:
    long = occ.longer_than(LEAST_NS)
    start, end = tl.end[occ.before[long]], tl.start[occ.after[long]]
    places = tl.rank_place[occ.before[long]].astype(np.int64)
    exceeds = end - start > threshold[sets_of_place[places]]
    places, start, end = places[exceeds], start[exceeds], end[exceeds]
    everyone = np.arange(len(tl.ranks))

    def aligned(place: Ints, axis: Ints) -> Ints:
        return clock.aligned(tl.ranks[place], tl.own_time(place, axis))

    idle = common_idle(
        sets_of_place,
        aligned(everyone, occ.span_start),
        aligned(everyone, occ.span_end),
        sets_of_place[places],
        aligned(places, start),
        aligned(places, end),
        threshold,
    )
    chosen = idle.gap_is_idle
    gaps = pl.DataFrame(
        {"place": places[chosen], "set": sets_of_place[places[chosen]], "start": start[chosen], "end": end[chosen]}
    ).sort("start")
    return gaps, idle


def _cut_at_idle(
    place: Ints, edge: Ints, next_edge: Ints, has_next: npt.NDArray[np.bool_], idle_gaps: pl.DataFrame
) -> tuple[Ints, Ints]:
    """(window end, length of the idle gap that ends it or 0) per step."""
    window_end = next_edge.copy()
    idle_after = np.zeros(len(edge), np.int64)
    if idle_gaps.is_empty() or len(edge) == 0:
        return window_end, idle_after
    start, end = idle_gaps["start"].to_numpy(), idle_gaps["end"].to_numpy()
    row = np.searchsorted(edge, start, side="right") - 1
    # A last step ends with its last event: an idle gap may follow it at once or only after what no step holds.
    mine = (row >= 0) & (place[np.maximum(row, 0)] == idle_gaps["place"].to_numpy())
    row, start, end = row[mine], start[mine], end[mine]
    first = np.concatenate([np.ones(1, bool), row[1:] != row[:-1]]) if len(row) else np.zeros(0, bool)
    row, start, end = row[first], start[first], end[first]
    window_end[row] = np.minimum(window_end[row], start)
    idle_after[row] = np.where(has_next[row] | (window_end[row] == start), end - start, 0)
    return window_end, idle_after
