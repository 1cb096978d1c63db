"""The one cause of each gap, in the order of the rules, and the parts of it that the host and the launch cost.

device   kkkk|~~~~~~~~~~~~~~~~|kkkk          | the device ran dry, | the next event starts
host            |call|                       call begin .. call end
parts        |--|                            host part: dry until the call begins
                |--------------|             launch part: call begins until the event starts
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.analyses.blocks import blocks, each
from tracelens.analyses.launch_clock import LaunchClock
from tracelens.analyses.occupancy import LONG_NS, Occupancy
from tracelens.analyses.timeline import Codes, Ints, Timeline

CAUSES = (
    "idle",
    "step_boundary",
    "in_graph",
    "unknown",
    "host_late",
    "launch_latency",
    "back_to_back",
    "dependency",
)
"""In the order in which they are tried; a cause's code is its place."""

IDLE, STEP_BOUNDARY, IN_GRAPH, UNKNOWN, HOST_LATE, LAUNCH_LATENCY, BACK_TO_BACK, DEPENDENCY = range(8)

NULL = np.iinfo(np.int64).min
"""Stands for null in a slice."""


@dataclass(frozen=True)
class GapSlice:
    """Consecutive gaps with their causes.

    Attributes:
        low: place of the first in the occupancy's gaps.
        length: int64 ns [gaps].
        row: int32 [gaps], row of the step windows that holds the gap, -1 outside.
        cause: uint8 [gaps], place in `CAUSES`.
        led: int64, places in the slice of the gaps that a usable launch call ended; the next three go with it.
        launch_start: int64 ns on the axis, begin of the call.
        host_part, launch_part: int64 ns; NULL where the cause has none.
    """

    low: int
    length: Ints
    row: Codes
    cause: npt.NDArray[np.uint8]
    led: Ints
    launch_start: Ints
    host_part: Ints
    launch_part: Ints


@dataclass(frozen=True)
class StepEdges:
    """The windows that gaps fall into, ascending on the axis.

    Attributes:
        start, end: int64 ns [windows].
        row: int64 [windows], their rows in the table of steps.
        idle_start: int64 ns, starts of the gaps between requests, ascending.
    """

    start: Ints
    end: Ints
    row: Ints
    idle_start: Ints


def explain(tl: Timeline, occ: Occupancy, launches: LaunchClock, typical: Ints, edges: StepEdges) -> Iterator[GapSlice]:
    """Every gap with its cause, in slices that bound the memory.

    Args:
        tl: the timeline.
        occ: its gaps.
        launches: launch calls on the devices' clocks.
        typical: int64 ns [ranks, 2], launch latency of other calls and of graph launches.
        edges: windows and idle between requests.
    """
    return each(lambda part: _explain(tl, occ, launches, typical, edges, part), blocks(0, len(occ)), tl.trace.threads)


def _explain(
    tl: Timeline, occ: Occupancy, launches: LaunchClock, typical: Ints, edges: StepEdges, part: slice
) -> GapSlice:
    before, after = occ.before[part], occ.after[part]
    dry, start = tl.end[before], tl.start[after]
    length = start - dry
    row, boundary = _windows(edges, dry, start)
    inside = tl.in_graph[after] & tl.in_graph[before]
    inside &= tl.one_launch(before, after)
    cause = np.where(boundary, STEP_BOUNDARY, IN_GRAPH).astype(np.uint8)
    cause[_is_idle(edges, dry)] = IDLE
    # Most gaps of a captured decode lie between nodes of one replay: only the rest asks for launch calls.
    rest = np.flatnonzero(~inside | (cause != IN_GRAPH))
    dry, start, before, after = dry[rest], start[rest], before[rest], after[rest]
    if len(launches.begin) == 0:
        cause[rest] = np.where(cause[rest] == IN_GRAPH, UNKNOWN, cause[rest])
        none = np.empty(0, np.int64)
        return GapSlice(part.start, length, row, cause, none, none, none, none)
    call = tl.launch[after]
    safe = np.maximum(call, 0)
    usable = (call >= 0) & launches.usable[safe]
    leads = usable & (launches.first[safe] == after)
    begin, end = launches.begin[safe], launches.end[safe]
    latency = typical[tl.rank_place[after], tl.launches.graph[safe].astype(np.int8)]
    in_flight = (dry < begin + latency) | (dry < end)
    queued = (tl.stream[before] == tl.stream[after]) & (start - dry <= LONG_NS)
    told = np.select(
        [~usable, leads & (begin >= dry), leads & in_flight, queued],
        [UNKNOWN, HOST_LATE, LAUNCH_LATENCY, BACK_TO_BACK],
        DEPENDENCY,
    )
    cause[rest] = np.where(cause[rest] == IN_GRAPH, told, cause[rest])
    led = np.flatnonzero(leads)
    dry, start, begin, end, latency = dry[led], start[led], begin[led], end[led], latency[led]
    parts = np.isin(cause[rest[led]], (IDLE, STEP_BOUNDARY, HOST_LATE, LAUNCH_LATENCY))
    launched = np.minimum(start, np.maximum(end, begin + latency)) - np.maximum(begin, dry)
    return GapSlice(
        low=part.start,
        length=length,
        row=row,
        cause=cause,
        led=rest[led],
        launch_start=begin,
        host_part=np.where(parts, np.clip(begin - dry, 0, start - dry), NULL),
        launch_part=np.where(parts, np.maximum(launched, 0), NULL),
    )


def _windows(edges: StepEdges, dry: Ints, start: Ints) -> tuple[Codes, npt.NDArray[np.bool_]]:
    """(row of the window that holds each gap or -1, whether the gap ends at an edge or contains one)."""
    if len(edges.start) == 0:
        return np.full(len(dry), -1, np.int32), np.zeros(len(dry), bool)
    # Both ascend: as many windows have begun at a gap as have their first gap at or before it.
    begun = np.searchsorted(dry, edges.start, side="left")
    window = np.cumsum(np.bincount(begun, minlength=len(dry) + 1))[: len(dry)] - 1
    own = np.maximum(window, 0)
    row = np.where((window >= 0) & (dry < edges.end[own]), edges.row[own], -1).astype(np.int32)
    following = np.minimum(window + 1, len(edges.start) - 1)
    return row, (window + 1 < len(edges.start)) & (edges.start[following] <= start)


def _is_idle(edges: StepEdges, dry: Ints) -> Ints:
    """Places of the gaps that are idle between requests: they begin where one of those does."""
    return np.flatnonzero(np.isin(dry, edges.idle_start)) if len(edges.idle_start) else np.empty(0, np.int64)
