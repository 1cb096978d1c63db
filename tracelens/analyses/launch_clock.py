"""Launch calls on the clocks of the devices, and how long a launch takes.

The devices of one export whose collectives end together are put on one clock first. How far such a clock is ahead of its
host's is bounded from both sides (`host_offset`): by launches, which come before their events, and by waits, which end
after them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.aligned_clock import AlignedClock
from tracelens.analyses.blocks import blocks
from tracelens.analyses.host_offset import Observed, Offset, offsets
from tracelens.analyses.host_waits import DeviceClocks, waits_of
from tracelens.analyses.occupancy import Occupancy
from tracelens.analyses.timeline import Codes, Flags, Ints, Timeline

TYPICAL_NS = 10_000
"""Launch latency of a rank that shows too few launches into an idle device."""

TYPICAL_LEAST = 20

QUEUED_NS = 5_000
"""Queued kernels of one stream follow each other within this."""


@dataclass(frozen=True)
class HostClock:
    """What is known of the clocks of devices against their host's.

    Attributes:
        ranks: those whose devices show this clock.
        offset: over a stretch of time.
    """

    ranks: tuple[int, ...]
    offset: Offset


@dataclass(frozen=True)
class LaunchClock:
    """Launch calls as the device of their events sees them.

    Attributes:
        first: int32 [calls], the first event of each call, or the number of events where it has none.
        begin: int64 ns [calls], the call's begin on the timeline's axis.
        end: int64 ns [calls], its end there.
        usable: bool [calls], false where the event still starts before its call.
        clock: int32 [calls], place in `clocks`; 0 where the call has no event.
        clocks: clocks of devices against their hosts', by lowest rank and time.
        early_count: launches that start before their call on these clocks.
    """

    first: Codes
    begin: Ints
    end: Ints
    usable: Flags
    clock: Codes
    clocks: tuple[HostClock, ...]
    early_count: int

    def doubt(self, calls: Codes) -> tuple[Ints, Ints]:
        """By how many ns each call may have begun earlier, and later, than `begin` says."""
        ends = [
            (one.offset.ahead_ns - one.offset.least_ns, one.offset.most_ns - one.offset.ahead_ns) for one in self.clocks
        ]
        table = np.array(ends or [(0, 0)], np.int64)[self.clock[calls]]
        return table[:, 0], table[:, 1]


def launch_clock(tl: Timeline, occ: Occupancy, clock: AlignedClock) -> LaunchClock:
    """Put the launch calls of a trace on the clocks of their devices."""
    calls = tl.launches
    count = len(calls.begin)
    first = np.full(count, len(tl), np.int32)
    runs = tl.runs(tl.launch)[::-1]
    runs = runs[tl.launch[runs] >= 0]
    # The last write stands: going backwards leaves the first event.
    first[tl.launch[runs]] = runs
    devices = DeviceClocks.of(tl, clock)
    group = devices.group
    idle = _ends_long_gap(tl, occ)
    waits = waits_of(tl, devices)
    begin = np.zeros(count, np.int64)
    end = np.zeros(count, np.int64)
    usable = np.zeros(count, bool)
    stretch = np.zeros(count, np.int32)
    early = 0
    clocks: list[HostClock] = []
    for one in range(int(group.max(initial=-1)) + 1):
        # The group's calls that launched something, in the order of what they launched.
        call = _calls_of(tl, first, group == one)
        start = devices.time(first[call], tl.start[first[call]])
        order = np.argsort(start, kind="stable")
        start, call = start[order], call[order]
        del order
        event = first[call]
        delay = start - calls.begin[call]
        here = np.flatnonzero(waits.group == one)
        here = here[np.argsort(waits.ended[here], kind="stable")]
        found = offsets(
            Observed(
                start,
                delay,
                calls.end[call] - calls.begin[call],
                calls.graph[call],
                idle[event],
                waits.ended[here],
                waits.lag[here],
            )
        )
        for part in blocks(0, len(call)):
            own = call[part]
            which = np.searchsorted([each.start_ns for each in found], start[part], side="right") - 1
            ahead = np.array([each.ahead_ns for each in found], np.int64)[which]
            to_axis = tl.start[event[part]] - start[part] + ahead
            begin[own] = calls.begin[own] + to_axis
            end[own] = calls.end[own] + to_axis
            usable[own] = delay[part] >= ahead
            early += int(np.count_nonzero(delay[part] < ahead))
            stretch[own] = which + len(clocks)
        ranks = tuple(tl.ranks[group == one].tolist())
        clocks += [HostClock(ranks, each) for each in found]
    return LaunchClock(first, begin, end, usable, stretch, tuple(clocks), early)


def _calls_of(tl: Timeline, first: Codes, wanted: Flags) -> Codes:
    """The calls whose first event is on one of the `wanted` ranks, ascending."""
    found = [np.empty(0, np.int32)]
    for part in blocks(0, len(first)):
        event = first[part]
        launched = np.flatnonzero(event < len(tl))
        mine = launched[wanted[tl.rank_place[event[launched]]]]
        found.append((part.start + mine).astype(np.int32))
    return np.concatenate(found)


def _ends_long_gap(tl: Timeline, occ: Occupancy) -> Flags:
    """Whether each event found its device idle for longer than queued kernels leave it: no clock of a host decides."""
    result = np.zeros(len(tl), bool)
    result[occ.after[occ.longer_than(QUEUED_NS)]] = True
    return result


def _ended_by_a_launch(tl: Timeline, occ: Occupancy, launches: LaunchClock) -> Ints:
    """Places of the gaps that the first event of a call ended: of a replay only that tells how long its launch took."""
    found = [np.empty(0, np.int64)]
    if len(launches.first):
        for part in blocks(0, len(occ)):
            after = occ.after[part]
            call = tl.launch[after]
            # Events without a call have code -1, which is some call that they are not the first event of.
            found.append(part.start + np.flatnonzero((launches.first[call] == after) & (call >= 0)))
    return np.concatenate(found)


def typical_latency(tl: Timeline, occ: Occupancy, launches: LaunchClock) -> tuple[npt.NDArray[np.int64], pl.DataFrame]:
    """Median delay from call to start over calls that began when the device had run dry, per rank.

    Returns:
        (int64 ns [ranks, 2]: other calls, graph launches; the same as a frame: rank, graph_launch, launch_count,
        typical_ns, with 10 us where fewer than 20 launches tell).
    """
    at = _ended_by_a_launch(tl, occ, launches)
    call = tl.launch[occ.after[at]]
    told = launches.usable[call] & (launches.begin[call] >= tl.end[occ.before[at]])
    at, call = at[told], call[told]
    frame = pl.DataFrame(
        {
            "place": tl.rank_place[occ.after[at]].astype(np.int64),
            "graph": tl.launches.graph[call].astype(np.int64),
            "delay": tl.start[occ.after[at]] - launches.begin[call],
        }
    )
    medians = frame.group_by("place", "graph").agg(pl.col("delay").median(), pl.len()).sort("place", "graph")
    table = np.full((len(tl.ranks), 2), TYPICAL_NS, np.int64)
    counts = np.zeros((len(tl.ranks), 2), np.int64)
    for place, graph, delay, size in medians.iter_rows():
        counts[place, graph] = size
        if size >= TYPICAL_LEAST:
            table[place, graph] = round(delay)
    shown = pl.DataFrame(
        {
            "rank": np.repeat(tl.ranks, 2),
            "graph_launch": [False, True] * len(tl.ranks),
            "launch_count": counts.reshape(-1),
            "typical_ns": table.reshape(-1),
        }
    )
    return table, shown
