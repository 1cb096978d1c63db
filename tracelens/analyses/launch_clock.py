"""Launch calls on the clocks of the devices, and how long a launch takes.

The devices of one export whose collectives end together are put on one clock first. How far such a clock is ahead of its
host's is bounded from both sides (`host_offset`): by launches, which come before their events, and by waits, which end
after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.aligned_clock import AlignedClock
from tracelens.analyses.blocks import blocks, each, run_starts
from tracelens.analyses.host_offset import BEGIN, Observed, Offset, Told, offsets
from tracelens.analyses.host_waits import DeviceClocks, waits_of
from tracelens.analyses.occupancy import Occupancy
from tracelens.analyses.timeline import Codes, Flags, Ints, Narrow, Timeline
from tracelens.analyses.timeline_columns import narrowest

TYPICAL_NS = 10_000
"""Launch latency of a rank that shows too few launches into an idle device."""

TYPICAL_LEAST = 20


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
        clock: [calls], place in `clocks`, in the fewest bytes; 0 where the call has no event.
        clocks: clocks of devices against their hosts', by lowest rank and time.
        early_count: launches that start before their call on these clocks.
    """

    first: Codes
    begin: Ints
    end: Ints
    usable: Flags
    clock: Narrow
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
    count, room = len(calls.begin), tl.trace.room
    seen = _Seen(tl, occ, DeviceClocks.of(tl, clock))
    clocks: list[HostClock] = []
    bases, found = [], seen.offsets()
    for one, stretches in enumerate(found):
        bases.append(len(clocks))
        ranks = tuple(tl.ranks[seen.devices.group == one].tolist())
        clocks += [HostClock(ranks, each_one) for each_one in stretches]
    starts = [np.array([one.start_ns for one in stretches], np.int64) for stretches in found]
    aheads = [np.array([one.ahead_ns for one in stretches], np.int64) for stretches in found]
    end, usable = room.empty(count, np.int64), room.empty(count, bool)
    number = room.empty(count, narrowest(len(clocks)))

    def place(part: slice) -> int:
        """Puts calls on their clocks; how many launches start before them."""
        end[part] = usable[part] = number[part] = 0
        early = 0
        for one, call, event in seen.launched(part):
            start, begin = seen.start[call], calls.begin[call]
            which = np.searchsorted(starts[one], start, side="right") - 1
            ahead = aheads[one][which]
            in_time = start - begin >= ahead
            to_axis = tl.start[event] - start + ahead
            # What was the start of the event becomes the begin of its call.
            seen.start[call] = begin + to_axis
            end[call] = calls.end[call] + to_axis
            usable[call] = in_time
            number[call] = bases[one] + which
            early += len(in_time) - int(np.count_nonzero(in_time))
        return early

    early_count = sum(each(place, blocks(0, count), tl.trace.threads))
    return LaunchClock(seen.first, seen.start, end, usable, number, tuple(clocks), early_count)


class _Seen:
    """What is seen of the launches of a trace on the clocks of their devices.

    Attributes:
        devices: those clocks.
        first: int32 [calls], the first event of each call, or the number of events where it has none.
        start: int64 ns [calls], its start on the clock of its device; 0 where it has none.
    """

    def __init__(self, tl: Timeline, occ: Occupancy, devices: DeviceClocks) -> None:
        self._tl = tl
        self.devices = devices
        self.first = _first_events(tl)
        self.start: Ints = tl.trace.room.empty(len(self.first), np.int64)
        self._idle = _ends_long_gap(tl, occ)

    def launched(self, part: slice) -> Iterator[tuple[int, slice | Ints, Codes]]:
        """(group, places, first events) of the calls in a block that launched something, by group."""
        event = self.first[part]
        call = np.flatnonzero(event < len(self._tl))
        if len(call) == 0:
            return
        event = event[call]
        group = self.devices.group[self._tl.rank_place[event]]
        if bool((group == group[0]).all()):
            whole = len(call) == part.stop - part.start
            yield int(group[0]), part if whole else part.start + call, event
            return
        for one in np.unique(group).tolist():
            mine = group == one
            yield one, part.start + call[mine], event[mine]

    def offsets(self) -> list[list[Offset]]:
        """The offset of each group in each stretch of time."""
        tl, count = self._tl, len(self.first)
        waits = waits_of(tl, self.devices)
        told = [Told(max(count, len(waits.lag))) for _ in range(int(self.devices.group.max(initial=-1)) + 1)]

        def look(part: slice) -> list[tuple[int, tuple[Ints, Ints, Flags, Flags]]]:
            self.start[part] = 0
            found = []
            for one, call, event in self.launched(part):
                self.start[call] = self.devices.time(event, tl.start[event])
                found.append((one, self._launches(call, event)))
            return found

        for found in each(look, blocks(0, count), tl.trace.threads):
            for one, launches in found:
                told[one].launches(*launches)
        result = []
        for one, group in enumerate(told):
            here = np.flatnonzero(waits.group == one)
            group.waits(waits.lag[here])
            if group.agrees:
                result.append([group.offset(BEGIN)])
                continue
            # The clock was corrected: only the order of time tells when.
            here = here[np.argsort(waits.ended[here], kind="stable")]
            call = self._in_order(one)
            start, launches = self.start[call], self._launches(call, self.first[call])
            result.append(offsets(Observed(start, *launches, waits.ended[here], waits.lag[here])))
        return result

    def _launches(self, call: slice | Codes | Ints, event: Codes) -> tuple[Ints, Ints, Flags, Flags]:
        """Delays, lengths of the calls, whether they replay a graph, and whether the device had been idle for long."""
        calls = self._tl.launches
        begin = calls.begin[call]
        return self.start[call] - begin, calls.end[call] - begin, calls.graph[call], self._idle[event]

    def _in_order(self, group: int) -> Codes:
        """The calls of a group that launched something, in the order of what they launched."""
        found: list[npt.NDArray[np.integer]] = [np.empty(0, np.int32)]
        for part in blocks(0, len(self.first)):
            for one, call, _ in self.launched(part):
                if one == group:
                    found.append(np.arange(part.start, part.stop, dtype=np.int32) if isinstance(call, slice) else call)
        calls = np.concatenate(found).astype(np.int32)
        result: Codes = calls[np.argsort(self.start[calls], kind="stable")]
        return result


def _first_events(tl: Timeline) -> Codes:
    """The first event of each call, int32; the number of events where it has none."""
    first: Codes = tl.trace.room.empty(len(tl.launches.begin), np.int32)
    first.fill(len(tl))
    # The last write stands: going backwards leaves the first event.
    for part in reversed(list(tl.stretches())):
        launch = tl.launch[part]
        runs = run_starts(launch)[::-1]
        runs = runs[launch[runs] >= 0]
        first[launch[runs]] = part.start + runs
    return first


def _ends_long_gap(tl: Timeline, occ: Occupancy) -> Flags:
    """Whether each event found its device idle for longer than queued kernels leave it: no clock of a host decides."""
    result: Flags = tl.trace.room.empty(len(tl), bool)
    result.fill(False)
    for part in blocks(0, len(occ.long)):
        result[occ.after[occ.long[part]]] = True
    return result


def typical_latency(tl: Timeline, occ: Occupancy, launches: LaunchClock) -> tuple[npt.NDArray[np.int64], pl.DataFrame]:
    """Median delay from call to start over calls that began when the device had run dry, per rank.

    Returns:
        (int64 ns [ranks, 2]: other calls, graph launches; the same as a frame: rank, graph_launch, launch_count,
        typical_ns, with 10 us where fewer than 20 launches tell).
    """

    def delays(part: slice) -> tuple[Ints, Ints]:
        """Delays of other calls and of graph launches, of the gaps that the first event of a call ended."""
        after = occ.after[part]
        call = tl.launch[after]
        # Of a replay only its first event tells how long its launch took. Events without a call have code -1, which is
        # some call that they are not the first event of.
        told = np.flatnonzero(launches.first[call] == after)
        told = told[(call[told] >= 0) & launches.usable[call[told]]]
        after, call = after[told], call[told]
        begin = launches.begin[call]
        dry = begin >= tl.end[occ.before[part][told]]
        delay, graph = (tl.start[after] - begin)[dry], tl.launches.graph[call[dry]]
        return delay[~graph], delay[graph]

    table = np.full((len(tl.ranks), 2), TYPICAL_NS, np.int64)
    counts = np.zeros((len(tl.ranks), 2), np.int64)
    gaps = np.searchsorted(occ.after, tl.first) if len(launches.first) else np.zeros(len(tl.first), np.int64)
    for place, (low, high) in enumerate(pairwise(gaps.tolist())):
        for graph, parts in enumerate(zip(*each(delays, blocks(low, high), tl.trace.threads), strict=True)):
            found = np.concatenate(parts)
            counts[place, graph] = len(found)
            if len(found) >= TYPICAL_LEAST:
                table[place, graph] = round(float(np.median(found)))
    shown = pl.DataFrame(
        {
            "rank": np.repeat(tl.ranks, 2),
            "graph_launch": [False, True] * len(tl.ranks),
            "launch_count": counts.reshape(-1),
            "typical_ns": table.reshape(-1),
        }
    )
    return table, shown
