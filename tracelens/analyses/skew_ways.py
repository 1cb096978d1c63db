"""Each operation's way from the one before it on its rank: which that was, and how much the rank worked in between.

previous ..]  compute ]--gap--[ compute ]---gap---|own start
           |----------|       |---------|           worked: union of all events but collectives
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracelens.analyses.coverage import Coverage
from tracelens.analyses.matching_instances import Bools, Rows
from tracelens.analyses.timeline import Ints, Timeline

_NEVER = -(1 << 62)


def previous_operations(start: Ints, end: Ints, owner: Rows, usable: Bools, order: Rows) -> Rows:
    """For each operation the last usable one of its rank that ended before it began, -1 for none.

    Args:
        start, end: int64 ns on the timeline's axis; starts ascend.
        owner: rank of each.
        usable: which may be the one before.
        order: of operations that end at once, the one that comes last in this order counts.
    """
    rows = np.flatnonzero(usable).astype(np.int32)
    result = np.full(len(start), -1, dtype=np.int32)
    if len(rows) == 0:
        return result
    ends = end[rows]
    if not bool((ends[1:] > ends[:-1]).all()):
        place = np.empty(len(order), dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        by_end = np.lexsort((place[rows], ends))
        rows, ends = rows[by_end], ends[by_end]
    # On one stream the one before it is the last that begins before it.
    at = np.cumsum(usable, dtype=np.int32) - usable - np.int32(1)
    bounded = np.concatenate((np.full(1, _NEVER), ends, np.full(1, -_NEVER)))
    wrong = np.flatnonzero((bounded[at + 1] > start) | (bounded[at + 2] <= start))
    at[wrong] = np.searchsorted(ends, start[wrong], side="right") - 1
    found = rows[np.maximum(at, 0)]
    own = (at >= 0) & (owner[found] == owner) & (found != np.arange(len(start), dtype=np.int32))
    result[own] = found[own]
    return result


def begun_before(tl: Timeline, last: npt.NDArray[np.integer], time: Ints) -> Ints:
    """How many events begin before each time, or more that begin at it.

    Args:
        tl: the events.
        last: an event that begins before each time, mostly the last that does.
        time: int64 ns on the axis.
    """
    result = last.astype(np.int64) + 1
    following = np.minimum(result, len(tl) - 1)
    wrong = np.flatnonzero((result < len(tl)) & (tl.start[following] < time))
    result[wrong] = np.searchsorted(tl.start, time[wrong], side="left")
    return result


def worked_before(tl: Timeline, moments: Sequence[tuple[npt.NDArray[np.integer], Ints]]) -> list[Ints]:
    """Time in which anything but collectives ran before each moment: length of the union, int64 ns.

    Args:
        tl: the events.
        moments: pairs of (how many events begin before it, int64 ns on the axis).
    """
    results = [np.zeros(len(time), dtype=np.int64) for _, time in moments]
    orders: list[Ints | None] = []
    sorted_places = []
    for places, _ in moments:
        ascends = bool((places[1:] >= places[:-1]).all())
        orders.append(None if ascends else np.argsort(places, kind="stable"))
        sorted_places.append(places if ascends else places[orders[-1]])
    total, reached = 0, _NEVER
    for part in tl.stretches():
        start = tl.start[part]
        latest = np.empty(len(start) + 1, dtype=np.int64)
        latest[0] = reached
        latest[1:] = np.where(tl.is_collective[part], _NEVER, tl.end[part])
        np.maximum.accumulate(latest, out=latest)
        added = latest[1:] - np.maximum(start, latest[:-1])
        worked = np.empty(len(start) + 1, dtype=np.int64)
        worked[0] = total
        np.cumsum(np.maximum(added, 0), out=worked[1:])
        worked[1:] += total
        for (_, time), result, order, places in zip(moments, results, orders, sorted_places, strict=True):
            first, end = np.searchsorted(places, [part.start, part.stop + (part.stop == len(tl))])
            chosen = slice(first, end) if order is None else order[first:end]
            at = places[first:end] - part.start
            beyond = np.where(latest[at] > time[chosen], latest[at] - time[chosen], 0)
            result[chosen] = worked[at] - beyond
        total, reached = int(worked[-1]), int(latest[-1])
    return results


def covered_before(pieces: Coverage, times: Ints) -> Ints:
    """`Coverage.upto` for many times, most of them ascending, and few pieces."""
    if len(pieces.starts) == 0 or not bool((times[1:] >= times[:-1]).all()):
        return pieces.upto(times)
    first = np.searchsorted(times, pieces.starts, side="left")
    begun = np.cumsum(np.bincount(first, minlength=len(times) + 1), dtype=np.int64)[: len(times)]
    beyond = np.maximum(pieces.ends[np.maximum(begun - 1, 0)] - times, 0)
    result: Ints = pieces.before[begun] - np.where(begun > 0, beyond, 0)
    return result
