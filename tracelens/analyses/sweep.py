"""Who owns each instant: one pass over events in order of their start, in bounded memory.

Intervals are half-open. Of events that overlap, the one that started first owns the common time, so an event owns
what lies beyond every earlier event's end: `max(0, end - max(start, latest end so far))`. Owned times of all events
add up to the length of their union, exactly. The same pass, apart for each (lane, group), gives the union within a
group.

    A  |----------|            owns |----------|
    B      |----------|        owns            |---|
    C        |---|             owns nothing
"""

from __future__ import annotations

from copy import copy
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tracelens.analyses.blocks import run_starts
from tracelens.analyses.coverage import Coverage

Ints = NDArray[np.int64]

_NOTHING_YET = np.iinfo(np.int64).min // 2


class Sweep:
    """Adds up owned, summed and unioned time per (lane, code), batch by batch.

    A lane is what has one timeline, usually a rank; a code is what time is counted for, usually a name; a group is
    what several codes belong to, usually a bucket.

    Args:
        lanes: number of lanes.
        codes: number of codes.
        groups: for every code, its group.

    Attributes:
        count, summed_ns, owned_ns: arrays of shape (lanes, codes).
        union_ns: array of shape (lanes, groups): length of the union of a group's events.
    """

    def __init__(self, lanes: int, codes: int, groups: Ints) -> None:
        self._groups = groups.astype(np.int64)
        self._group_count = int(groups.max()) + 1 if len(groups) else 0
        self.count = np.zeros((lanes, codes), np.int64)
        self.summed_ns = np.zeros((lanes, codes), np.int64)
        self.owned_ns = np.zeros((lanes, codes), np.int64)
        self.union_ns = np.zeros((lanes, self._group_count), np.int64)
        self._lane_end = np.full(lanes, _NOTHING_YET, np.int64)
        self._group_end = np.full(lanes * self._group_count, _NOTHING_YET, np.int64)
        self._begun = np.full(lanes, -_NOTHING_YET, np.int64)
        self._first = np.full(lanes, -_NOTHING_YET, np.int64)
        self._last = np.full(lanes, _NOTHING_YET, np.int64)

    def span_ns(self) -> Ints:
        """Per lane, from its first event's start to its last event's end; events of no length extend no span."""
        start_ns, end_ns = self.bounds_ns()
        spans: Ints = end_ns - start_ns
        return spans

    def bounds_ns(self) -> tuple[Ints, Ints]:
        """Per lane, where its span begins and ends; both at the first event where none has a length."""
        empty = self._last < self._first
        return np.where(empty, self._begun, self._first), np.where(empty, self._begun, self._last)

    def add(
        self, lane: Ints, code: Ints, start_ns: Ints, end_ns: Ints, counted: NDArray[np.bool_] | None = None
    ) -> Ints:
        """Adds a batch. Batches of different lanes may be added by different threads at once.

        Args:
            lane, code: per event; lanes ascending within a batch, and a lane's batches in order.
            start_ns, end_ns: per event; within a lane ascending by start, in the order that decides ties.
            counted: events that count; None: all. Clipped parts of one event count once.

        Returns:
            what each event owns, ns; it is the last part of the event.
        """
        if not len(lane):
            return np.zeros(0, np.int64)
        lanes = slice(int(lane[0]), int(lane[-1]) + 1)
        shape = self.count[lanes].shape
        cell = code if shape[0] == 1 else (lane - lane[0]) * shape[1] + code
        length = end_ns - start_ns
        seen = cell if counted is None else cell[counted]
        self.count[lanes] += np.bincount(seen, minlength=shape[0] * shape[1]).reshape(shape)
        summed = _sums(cell, length, shape)
        self.summed_ns[lanes] += summed
        self._stretch(lane, start_ns, end_ns, length)

        # An event that begins after all earlier ones have ended owns all of its length, in its group too. The others,
        # each with the one before it, go through both sweeps; so does a lane's last event, which the next may overlap.
        owned = beyond_earlier(lane, start_ns, end_ns, self._lane_end)
        shared = (owned != length) | (length == 0)
        shared[:-1] |= shared[1:]
        shared[:-1] |= lane[1:] != lane[:-1]
        shared[-1] = True
        some = np.flatnonzero(shared)
        self.owned_ns[lanes] += summed - _sums(cell[some], (length - owned)[some], shape)
        alone = summed - _sums(cell[some], length[some], shape)
        np.add.at(self.union_ns[lanes].T, self._groups, alone.T)
        self._unite(lanes, lane[some], code[some], start_ns[some], end_ns[some])
        return owned

    def _unite(self, lanes: slice, lane: Ints, code: Ints, start_ns: Ints, end_ns: Ints) -> None:
        """Adds what events add to the union of their group."""
        group = lane * self._group_count + self._groups[code]
        # Numbers of 16 bits are sorted by radix, several times as fast.
        order = np.argsort(group.astype(np.uint16 if len(self._group_end) <= 1 << 16 else np.int32), kind="stable")
        group = group[order]
        within = beyond_earlier(group, start_ns[order], end_ns[order], self._group_end)
        union = self.union_ns[lanes]
        union += _sums(group - lanes.start * self._group_count, within, union.shape)

    def _stretch(self, lane: Ints, start_ns: Ints, end_ns: Ints, length: Ints) -> None:
        """Lets events with a length extend the spans of their lanes."""
        begins = run_starts(lane)
        self._begun[lane[begins]] = np.minimum(self._begun[lane[begins]], start_ns[begins])
        if int(length.min()) <= 0:
            some = length > 0
            lane, start_ns, end_ns = lane[some], start_ns[some], end_ns[some]
            begins = run_starts(lane)
        if len(lane):
            mine = lane[begins]
            self._first[mine] = np.minimum(self._first[mine], start_ns[begins])
            self._last[mine] = np.maximum(self._last[mine], np.maximum.reduceat(end_ns, begins))


class ComputeFirst(Sweep):
    """As `Sweep`, but compute owns every instant it runs in, and a collective what it owns among collectives beside that.

        collective  |-----------------|     owns |---|   |------|
        compute         |----|                   |   |---|

    Args:
        collective: for every code, whether it is of collectives.
    """

    def __init__(self, lanes: int, codes: int, groups: Ints, collective: NDArray[np.bool_]) -> None:
        super().__init__(lanes, codes, groups)
        self._collective = collective
        # Adds to the same totals, with ends of its own.
        self._among = copy(self)
        self._among._lane_end = self._lane_end.copy()
        self._among._group_end = self._group_end.copy()
        none = np.zeros(0, np.int64)
        self._open = [(none, none, none)] * lanes

    def add(
        self, lane: Ints, code: Ints, start_ns: Ints, end_ns: Ints, counted: NDArray[np.bool_] | None = None
    ) -> Ints:
        """As `Sweep.add`; what a collective owns is what it does among collectives."""
        owned = np.zeros(len(lane), np.int64)
        reach_ns = self._lane_end.copy()
        theirs = self._collective[code]
        for chosen, sweep in ((~theirs, self), (theirs, self._among)):
            some = None if counted is None else counted[chosen]
            owned[chosen] = Sweep.add(sweep, lane[chosen], code[chosen], start_ns[chosen], end_ns[chosen], some)
        for begin, end in pairwise([*run_starts(lane).tolist(), len(lane)]):
            one = int(lane[begin])
            taking = begin + np.flatnonzero(owned[begin:end])
            pieces = code[taking], end_ns[taking] - owned[taking], end_ns[taking]
            self._give_to_compute(one, int(reach_ns[one]), pieces, int(start_ns[end - 1]))
        return owned

    def _give_to_compute(self, lane: int, reach_ns: int, pieces: tuple[Ints, Ints, Ints], last_ns: int) -> None:
        """Takes from a lane's collectives what compute covers of what they own.

        Args:
            lane: the lane.
            reach_ns: how far compute of earlier batches reaches, without a gap from where this batch begins.
            pieces: code, begin and end of what the events of this batch own, compute and collectives each among their own.
            last_ns: where the last of them starts; later ones own nothing before.
        """
        theirs = self._collective[pieces[0]]
        compute = Coverage.of_pieces(*(times[~theirs] for times in pieces[1:]))
        fresh = tuple(values[theirs] for values in pieces)
        code, begin_ns, end_ns = (np.concatenate(both) for both in zip(self._open[lane], fresh, strict=True))
        lost_ns = compute.within(begin_ns, end_ns)
        new = slice(len(self._open[lane][0]), None)
        lost_ns[new] += np.maximum(np.minimum(end_ns[new], reach_ns) - begin_ns[new], 0)
        self.owned_ns[lane] -= _sums(code, lost_ns, self.owned_ns[lane].shape)
        later = end_ns > last_ns
        self._open[lane] = (code[later], begin_ns[later], end_ns[later])


#: Batches of so few lanes are gone through lane by lane.
_FEW_LANES = 64
#: Sums of floats are exact up to here; beyond, whole numbers are added one by one.
_EXACT = 2**53
#: Numbers below here can be added and shifted without leaving 64 bits.
_SAFE = 2**61


def _sums(cell: Ints, values: Ints, shape: tuple[int, ...]) -> Ints:
    """Exact sums by cell."""
    size = int(np.prod(shape))
    if len(values) and int(values.max()) < _EXACT // len(values):
        totals: Ints = np.bincount(cell, weights=values, minlength=size).astype(np.int64)
    else:
        totals = np.zeros(size, np.int64)
        np.add.at(totals, cell, values)
    return totals.reshape(shape)


def beyond_earlier(lane: Ints, start_ns: Ints, end_ns: Ints, latest: Ints) -> Ints:
    """What each event adds beyond the ends of all earlier ones of its lane; updates `latest`, the ends so far.

    The running maximum restarts at each lane: ends are taken relative to the batch's first start and raised by a
    multiple of the lane's place that no end can reach. Lanes for which that multiple would leave 64 bits go one by one.
    """
    first = run_starts(lane)
    if len(first) <= _FEW_LANES:
        return _lane_by_lane(lane, start_ns, end_ns, latest, first)
    base = int(start_ns.min())
    carried = np.maximum(latest[lane[first]] - base, 0)
    reach = max(int(end_ns.max()) - base, int(carried.max())) + 1
    if reach > _SAFE // len(first) and len(first) > 1:
        edges = [*first.tolist(), len(lane)]
        parts = [slice(begin, end) for begin, end in pairwise(edges)]
        return np.concatenate([beyond_earlier(lane[one], start_ns[one], end_ns[one], latest) for one in parts])
    place = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(lane))))
    ends = end_ns - base + place * reach
    earlier = np.empty_like(ends)
    earlier[1:] = ends[:-1]
    earlier[first] = carried + np.arange(len(first)) * reach
    running = np.maximum.accumulate(earlier) - place * reach
    last = np.append(first[1:], len(lane)) - 1
    latest[lane[last]] = np.maximum(running[last], end_ns[last] - base) + base
    beyond: Ints = np.maximum(end_ns - base - np.maximum(running, start_ns - base), 0)
    return beyond


def _lane_by_lane(lane: Ints, start_ns: Ints, end_ns: Ints, latest: Ints, first: Ints) -> Ints:
    """As `beyond_earlier`; `first` says where each lane begins."""
    beyond = np.empty_like(end_ns)
    for begin, end in pairwise([*first.tolist(), len(lane)]):
        mine = beyond[begin:end]
        mine[0] = latest[lane[begin]]
        mine[1:] = end_ns[begin : end - 1]
        np.maximum.accumulate(mine, out=mine)
        latest[lane[begin]] = max(int(mine[-1]), int(end_ns[end - 1]))
    np.maximum(beyond, start_ns, out=beyond)
    np.subtract(end_ns, beyond, out=beyond)
    return np.maximum(beyond, 0, out=beyond)
