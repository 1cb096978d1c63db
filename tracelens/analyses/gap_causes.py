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

from tracelens.analyses.launch_clock import LaunchClock
from tracelens.analyses.occupancy import Occupancy
from tracelens.analyses.timeline import Ints, Timeline

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

QUEUED_NS = 5_000
"""Queued kernels of one stream follow each other within this."""

NULL = np.iinfo(np.int64).min
"""Stands for null in a slice."""

_SLICE = 1 << 20


@dataclass(frozen=True)
class GapSlice:
    """Consecutive gaps with their causes; every array is [gaps of the slice].

    Attributes:
        low: place of the first in the occupancy's gaps.
        row: int64, row of the step windows that holds the gap, -1 outside.
        cause: uint8, place in `CAUSES`.
        launch_start: int64 ns on the axis, begin of the launch call; NULL without a usable one.
        host_part, launch_part: int64 ns; NULL where the cause has none.
    """

    low: int
    row: Ints
    cause: npt.NDArray[np.uint8]
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
    for low in range(0, len(occ.gap_start), _SLICE):
        yield _explain(tl, occ, launches, typical, edges, low)


def _explain(
    tl: Timeline, occ: Occupancy, launches: LaunchClock, typical: Ints, edges: StepEdges, low: int
) -> GapSlice:
    part = slice(low, low + _SLICE)
    dry, start = occ.gap_start[part], occ.gap_end[part]
    before, after = occ.before[part], occ.after[part]
    length = start - dry
    call = tl.launch[after].astype(np.int64)
    has_call = call >= 0
    safe = np.maximum(call, 0)
    some = len(launches.begin) > 0
    usable = has_call & launches.usable[safe] if some else has_call
    leads = usable & (launches.first[safe] == after) if some else usable
    begin = launches.begin[safe] if some else np.zeros(len(after), np.int64)
    end = launches.end[safe] if some else begin
    latency = typical[tl.rank_place[after], tl.launches.graph[safe].astype(np.int64) if some else 0]

    window = np.searchsorted(edges.start, dry, side="right") - 1
    held = (window >= 0) & (dry < edges.end[np.maximum(window, 0)]) if len(edges.start) else np.zeros(len(dry), bool)
    row = np.where(held, edges.row[np.maximum(window, 0)], -1) if len(edges.start) else np.full(len(dry), -1)
    following = np.minimum(window + 1, max(len(edges.start) - 1, 0))
    boundary = (
        (window + 1 < len(edges.start)) & (edges.start[following] <= start)
        if len(edges.start)
        else np.zeros(len(dry), bool)
    )
    at = np.searchsorted(edges.idle_start, dry)
    idle = (
        (at < len(edges.idle_start)) & (edges.idle_start[np.minimum(at, len(edges.idle_start) - 1)] == dry)
        if len(edges.idle_start)
        else np.zeros(len(dry), bool)
    )
    in_graph = (
        tl.in_graph[before]
        & tl.in_graph[after]
        & (tl.correlation[before] == tl.correlation[after])
        & (tl.correlation[after] >= 0)
    )
    in_flight = (dry < begin + latency) | (dry < end)
    cause = np.select(
        [
            idle,
            boundary,
            in_graph,
            ~usable,
            leads & (begin >= dry),
            leads & in_flight,
            (tl.stream[before] == tl.stream[after]) & (length <= QUEUED_NS),
        ],
        [IDLE, STEP_BOUNDARY, IN_GRAPH, UNKNOWN, HOST_LATE, LAUNCH_LATENCY, BACK_TO_BACK],
        DEPENDENCY,
    ).astype(np.uint8)
    parts = leads & np.isin(cause, (IDLE, STEP_BOUNDARY, HOST_LATE, LAUNCH_LATENCY))
    host = np.clip(begin - dry, 0, length)
    launched = np.minimum(start, np.maximum(end, begin + latency)) - np.maximum(begin, dry)
    return GapSlice(
        low=low,
        row=row,
        cause=cause,
        launch_start=np.where(leads, begin, NULL),
        host_part=np.where(parts, host, NULL),
        launch_part=np.where(parts, np.maximum(launched, 0), NULL),
    )
