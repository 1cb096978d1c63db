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

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tracelens.analyses.blocks import run_starts

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
        self._first = np.full(lanes, -_NOTHING_YET, np.int64)
        self._last = np.full(lanes, _NOTHING_YET, np.int64)

    def span_ns(self) -> Ints:
        """Per lane, from its first event's start to its last event's end; events of no length extend no span."""
        spans: Ints = np.maximum(self._last - self._first, 0)
        return spans

    def widen(self, other: Sweep) -> None:
        """Lets the events of another sweep extend the spans."""
        np.minimum(self._first, other._first, out=self._first)
        np.maximum(self._last, other._last, out=self._last)

    def add(
        self, lane: Ints, code: Ints, start_ns: Ints, end_ns: Ints, counted: NDArray[np.bool_] | None = None
    ) -> None:
        """Adds a batch.

        Args:
            lane, code: per event; lanes ascending within a batch and over batches.
            start_ns, end_ns: per event; within a lane ascending by start, in the order that decides ties.
            counted: events that count; None: all. Clipped parts of one event count once.
        """
        if not len(lane):
            return
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
        self._unite(lane[some], code[some], start_ns[some], end_ns[some])

    def _unite(self, lane: Ints, code: Ints, start_ns: Ints, end_ns: Ints) -> None:
        """Adds what events add to the union of their group."""
        group = lane * self._group_count + self._groups[code]
        # Numbers of 16 bits are sorted by radix, several times as fast.
        order = np.argsort(group.astype(np.uint16 if len(self._group_end) <= 1 << 16 else np.int32), kind="stable")
        group = group[order]
        within = beyond_earlier(group, start_ns[order], end_ns[order], self._group_end)
        self.union_ns += _sums(group, within, self.union_ns.shape)

    def _stretch(self, lane: Ints, start_ns: Ints, end_ns: Ints, length: Ints) -> None:
        """Lets events with a length extend the spans of their lanes."""
        if int(length.min()) <= 0:
            some = length > 0
            lane, start_ns, end_ns = lane[some], start_ns[some], end_ns[some]
        if len(lane):
            begins = run_starts(lane)
            mine = lane[begins]
            self._first[mine] = np.minimum(self._first[mine], start_ns[begins])
            self._last[mine] = np.maximum(self._last[mine], np.maximum.reduceat(end_ns, begins))


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
