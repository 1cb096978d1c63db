"""How far the clock of a device is ahead of its host's, from events and calls that cannot have happened otherwise.

As in a two-way transfer of time: a launch goes from the host to the device, the end of a wait comes back.

    host      |launch|          |wait for it .........|
    device         .....|KKKKKKKKK|....
              |<- delay ->|        |<----- lag ----->|

Seen on two clocks, delay = latency of the launch + offset, and lag = latency of the return - offset. Both latencies have
a least value, so the shortest delay bounds the offset from above and the shortest lag from below. What is in between
can be told by nothing in the capture: the middle is taken, but no launch latency above that of the quickest launches
elsewhere. Without a wait that figure stands alone.

Tools correct the clocks of devices now and then, by 14 us at once in a public capture. Where the bounds contradict each
other the offset changed in between: the time is cut in two, where that contradicts least.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LIMIT_NS = 100_000
"""No offset is larger."""

LEAST_LAUNCH_NS, LEAST_RETURN_NS = 1_500, 500
"""Nothing runs sooner after its call begins, no wait returns sooner after what it waited for has ended. A single launch
also takes as long as the shortest call: calls hand over near their end, and the device takes another microsecond."""

_LEAST_NS = LEAST_LAUNCH_NS + LEAST_RETURN_NS

QUICKEST_NS = 5_000
"""From the call to the start on an idle device, quickest launch of a single kernel or copy in a capture."""

SPREAD_NS = 3_500
"""Quickest launches of two machines differ from those by so much."""

RETURN_NS = 5_000
"""From the end of the work to the return of the wait, quickest in a capture."""

UNKNOWN_NS = 25_000
"""Recorded clocks differ by no more, unless something says so."""

EARLY_SHARE = 0.001
"""Share of stamps that may be wrong; of twenty or more, always one."""

FEW = 20

_MOST_STRETCHES = 256
BEGIN, _END = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Observed:
    """What bounds the offset of one clock; all int64 ns, each pair in the order of time.

    Attributes:
        launch_ns: starts of launched events, on the device's clock.
        delay_ns: start - begin of the call.
        call_ns: length of the call.
        graph: whether the call replays a graph.
        idle: whether the device had been idle for long when the event started.
        wait_ns: ends of events that a thread then waited for, on the device's clock.
        lag_ns: end of the wait - end of the event.
    """

    launch_ns: Ints
    delay_ns: Ints
    call_ns: Ints
    graph: Flags
    idle: Flags
    wait_ns: Ints
    lag_ns: Ints

    def between(self, low: int, high: int) -> Observed:
        """What was observed in [low, high) on the device's clock."""
        one = slice(*np.searchsorted(self.launch_ns, [low, high]))
        other = slice(*np.searchsorted(self.wait_ns, [low, high]))
        return Observed(
            self.launch_ns[one],
            self.delay_ns[one],
            self.call_ns[one],
            self.graph[one],
            self.idle[one],
            self.wait_ns[other],
            self.lag_ns[other],
        )


@dataclass(frozen=True)
class Offset:
    """The offset of a device's clock over a stretch of time, ns.

    Attributes:
        start_ns: where the stretch begins, on the device's clock; it ends where the next one begins.
        ahead_ns: time of the device - time of the host.
        least_ns, most_ns: what it can be.
        launch_count, wait_count: launches and waits that say so.
    """

    start_ns: int
    ahead_ns: int
    least_ns: int
    most_ns: int
    launch_count: int
    wait_count: int


class Lowest:
    """The lowest of values that are told part by part, but for stamps that may be wrong.

    Args:
        most: as many values as there may be; all but the lowest of them are forgotten.
    """

    def __init__(self, most: int) -> None:
        self._room = _allowed(most) + 1
        self._kept = np.empty(0, np.int64)
        self.count = 0

    def add(self, values: Ints) -> None:
        """Tells more values."""
        self.count += len(values)
        if len(self._kept) == self._room:
            values = values[values < self._kept[-1]]
        kept = np.concatenate([self._kept, values])
        if len(kept) >= self._room:
            # The largest of them stands last.
            kept = np.partition(kept, self._room - 1)[: self._room]
        self._kept = kept

    @property
    def value(self) -> int:
        """That value, of those told so far; there must be one."""
        allowed = _allowed(self.count)
        return int(np.partition(self._kept, allowed)[allowed])


class Told:
    """What all launches and waits of a clock say together, told part by part in any order.

    Args:
        most: as many launches, or waits, as there may be.
    """

    def __init__(self, most: int) -> None:
        self._delay, self._lag, self._eager_delay, self._eager_call = (Lowest(most) for _ in range(4))
        self._idle_count = 0

    def launches(self, delay_ns: Ints, call_ns: Ints, graph: Flags, idle: Flags) -> None:
        """Tells launches, as in `Observed`."""
        self._delay.add(delay_ns)
        if bool(graph.any()):
            eager = ~graph
            delay_ns, call_ns, idle = delay_ns[eager], call_ns[eager], idle[eager]
        self._eager_delay.add(delay_ns)
        self._eager_call.add(call_ns)
        self._idle_count += int(np.count_nonzero(idle))

    def waits(self, lag_ns: Ints) -> None:
        """Tells waits, as in `Observed`."""
        self._lag.add(lag_ns)

    @property
    def agrees(self) -> bool:
        """Whether some offset serves launches and waits."""
        if not self._delay.count or not self._lag.count:
            return True
        return self._delay.value + self._lag.value >= _LEAST_NS

    def offset(self, start: int) -> Offset:
        """One offset for all of them, from `start` on."""
        launches = self._delay.count
        if launches == 0:
            return Offset(start, 0, -UNKNOWN_NS, UNKNOWN_NS, 0, 0)
        # Where no offset serves the waits, they were for something else.
        waits = self._lag.count if self.agrees else 0
        most = self._delay.value - LEAST_LAUNCH_NS
        least = LEAST_RETURN_NS - self._lag.value if waits else -UNKNOWN_NS
        most = most if waits else min(most, UNKNOWN_NS)
        # A wait that came back long after its event only bounds.
        ahead = least - LEAST_RETURN_NS + RETURN_NS if waits and least >= -UNKNOWN_NS else 0
        # Of a device that never was idle every launch waited in its queue; a graph's first node takes as long as it
        # likes.
        if self._idle_count >= FEW:
            delay = self._eager_delay.value
            if waits:
                floor = min(max(LEAST_LAUNCH_NS, min(self._eager_call.value, QUICKEST_NS)), delay - least)
                most = min(most, delay - floor)
                ahead = max((least + delay - floor) // 2, delay - QUICKEST_NS)
            elif delay - QUICKEST_NS <= UNKNOWN_NS:
                ahead = delay - QUICKEST_NS
                least, most = ahead - SPREAD_NS, min(most, ahead + SPREAD_NS)
        least, most = _clip(min(least, most)), _clip(most)
        return Offset(start, min(max(ahead, least), most), least, most, launches, waits)


def offsets(seen: Observed) -> list[Offset]:
    """The offset in each stretch of time, in order; one stretch unless the clock was corrected."""
    edges = [BEGIN]
    while len(edges) < _MOST_STRETCHES and (cut := _next_cut(seen.between(edges[-1], _END))) is not None:
        edges.append(cut)
    return [_told(seen.between(low, high)).offset(low) for low, high in pairwise([*edges, _END])]


def _told(seen: Observed) -> Told:
    told = Told(max(len(seen.delay_ns), len(seen.lag_ns)))
    told.launches(seen.delay_ns, seen.call_ns, seen.graph, seen.idle)
    told.waits(seen.lag_ns)
    return told


def _clip(offset: int) -> int:
    return min(max(offset, -LIMIT_NS), LIMIT_NS)


def _allowed(count: int) -> int:
    """How many of the lowest of so many values are left out, because their stamps may be wrong."""
    return max(int(count * EARLY_SHARE), int(count >= FEW))


def _next_cut(seen: Observed) -> int | None:
    """Where the bounds of a first stretch end; None where one stretch holds all, or nothing helps."""
    if _told(seen).agrees:
        return None
    waits = np.searchsorted(seen.wait_ns, seen.launch_ns, side="right")
    told = np.flatnonzero(waits)
    room = _second_lowest(seen.delay_ns)[told] + _second_lowest(seen.lag_ns)[waits[told] - 1]
    against = told[room < _LEAST_NS]
    # What follows soon shows where it was; later there may be another one.
    last = int(against[0]) + 2 * FEW if len(against) else len(waits)
    while last < len(waits) and waits[last] < waits[against[0]] + 3:
        last += 2 * FEW
    return _best_cut(seen.between(BEGIN, int(seen.launch_ns[last])) if last < len(waits) else seen)


def _best_cut(seen: Observed) -> int | None:
    """The launch before which a cut contradicts least; None where a cut does not help."""
    if len(seen.delay_ns) < 2 * FEW:
        return None
    at = np.arange(FEW, len(seen.delay_ns) - FEW + 1)
    at = at[seen.launch_ns[at] > seen.launch_ns[at - 1]]
    waits = np.searchsorted(seen.wait_ns, seen.launch_ns[at])
    at, waits = (each[(waits >= 2) & (waits <= len(seen.lag_ns) - 2)] for each in (at, waits))
    if len(at) == 0:
        return None
    left = 0
    missing = np.zeros(len(at), np.int64)
    room = np.full(len(at), np.iinfo(np.int64).max)
    # One bad stamp decides the lowest values, but not the second lowest.
    for lowest in (np.minimum.accumulate, _second_lowest):
        left += max(_LEAST_NS - int(lowest(seen.delay_ns)[-1] + lowest(seen.lag_ns)[-1]), 0)
        before = lowest(seen.delay_ns)[at - 1] + lowest(seen.lag_ns)[waits - 1]
        after = lowest(seen.delay_ns[::-1])[::-1][at] + lowest(seen.lag_ns[::-1])[::-1][waits]
        missing += np.maximum(_LEAST_NS - before, 0) + np.maximum(_LEAST_NS - after, 0)
        room = np.minimum(room, np.minimum(before, after))
    best = int(np.lexsort((-room, missing))[0])
    return int(seen.launch_ns[at[best]]) if missing[best] < left else None


def _second_lowest(values: Ints) -> Ints:
    """The lowest but one of each value and those before it."""
    lowest = np.minimum.accumulate(values)
    return np.minimum.accumulate(np.concatenate([[np.iinfo(np.int32).max], np.maximum(values[1:], lowest[:-1])]))
