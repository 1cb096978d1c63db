"""Each operation's way from the one before it on its rank: which that was, and how much the rank worked in between.

previous ..]  compute ]--gap--[ compute ]---gap---|own start
           |----------|       |---------|           worked: union of all events but collectives
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tracelens.analyses.matching_instances import Bools, Rows
from tracelens.analyses.timeline import Ints, Timeline

_NEVER = -(1 << 62)


def previous_operations(start: Ints, end: Ints, usable: Bools, instance: npt.NDArray[np.integer]) -> Rows:
    """For each operation of a rank the last usable one that ended before it began, -1 for none.

    Args:
        start, end: int64 ns; starts ascend.
        usable: which may be the one before.
        instance: of operations that end at once, the one of the highest instance counts.

    Returns:
        int32, places among these operations.
    """
    rows = np.flatnonzero(usable).astype(np.int32)
    ends = end[rows]
    # On one stream the one before it is the last that begins before it.
    at = np.cumsum(usable, dtype=np.int32) - usable
    ascend = bool((ends[1:] > ends[:-1]).all())
    if not ascend or not bool((start[1:] >= end[:-1]).all() and (end > start).all()):
        if not ascend:
            by_end = np.lexsort((instance[rows], ends))
            rows, ends = rows[by_end], ends[by_end]
        bounded = np.concatenate((np.full(1, _NEVER), ends, np.full(1, -_NEVER)))
        wrong = np.flatnonzero((bounded[at] > start) | (bounded[at + 1] <= start))
        at[wrong] = np.searchsorted(ends, start[wrong], side="right")
    result: Rows = np.append(np.int32(-1), rows)[at]
    # An operation without a length ends as it begins.
    result[result == np.arange(len(result), dtype=np.int32)] = -1
    return result


def begun_before(tl: Timeline, rank: int, last: Ints, time: Ints) -> Ints:
    """How many events begin before each time, or more that begin at it.

    Args:
        tl: the events.
        rank: place of the rank that the times lie on.
        last: an event that begins before each time, mostly the last that does.
        time: int64 ns on the axis.
    """
    low, high = int(tl.first[rank]), int(tl.first[rank + 1])
    result = last + 1
    following = np.minimum(result, high - 1)
    wrong = np.flatnonzero((result < high) & (tl.start[following] < time))
    result[wrong] = low + np.searchsorted(tl.start[low:high], time[wrong], side="left")
    return result


def worked_before(
    tl: Timeline, rank: int, works: Callable[[slice], Bools], moments: Sequence[tuple[Ints, Ints]]
) -> list[Ints]:
    """Time in which certain events of a rank ran before each moment: length of their union, int64 ns.

    Args:
        tl: the events.
        rank: place of the rank.
        works: which events of a stretch count.
        moments: pairs of (how many events begin before it, int64 ns on the axis).
    """
    results = [np.zeros(len(time), dtype=np.int64) for _, time in moments]
    orders: list[Ints | None] = []
    sorted_places = []
    for places, _ in moments:
        ascends = bool((places[1:] >= places[:-1]).all())
        orders.append(None if ascends else np.argsort(places, kind="stable"))
        sorted_places.append(places if ascends else places[orders[-1]])
    high = int(tl.first[rank + 1])
    total, reached = 0, _NEVER
    for part in tl.stretches(rank):
        start, end, counted = tl.start[part], tl.end[part], works(part)
        worked = np.empty(len(start) + 1, dtype=np.int64)
        worked[0] = total
        latest: Ints | None = None
        if int(start[0]) >= reached and bool((start[1:] >= end[:-1]).all()):
            # One after the other, as most events are.
            added = end - start
            added *= counted
        else:
            latest = np.empty(len(start) + 1, dtype=np.int64)
            latest[0] = reached
            latest[1:] = np.where(counted, end, _NEVER)
            np.maximum.accumulate(latest, out=latest)
            added = latest[1:] - np.maximum(start, latest[:-1])
            np.maximum(added, 0, out=added)
        added[0] += total
        np.cumsum(added, out=worked[1:])
        for (_, time), result, order, places in zip(moments, results, orders, sorted_places, strict=True):
            first, last = np.searchsorted(places, [part.start, part.stop + (part.stop == high)])
            chosen = slice(first, last) if order is None else order[first:last]
            at = places[first:last] - part.start
            before, own = worked[at], time[chosen]
            if latest is not None:
                before -= np.maximum(latest[at] - own, 0)
            elif len(at) and (at[0] == 0 or not bool((end[at - 1] <= own).all())):
                ahead = np.maximum(at - 1, 0)
                runs_until = np.where(at > 0, np.where(counted[ahead], end[ahead], _NEVER), reached)
                before -= np.maximum(runs_until - own, 0)
            result[chosen] = before
        total = int(worked[-1])
        if latest is not None:
            reached = int(latest[-1])
        elif bool(counted.any()):
            reached = int(end[len(counted) - 1 - int(counted[::-1].argmax())])
    return results


def covered_before(pieces: Iterable[tuple[Ints, Ints]], moments: Sequence[Ints]) -> list[Ints]:
    """Length of the pieces before each moment, int64 ns.

    Args:
        pieces: (starts, ends), so many at a time: disjoint and ascending, none of no length.
        moments: int64 ns; quicker where they ascend.
    """
    orders: list[Ints | slice] = [
        slice(None) if bool((times[1:] >= times[:-1]).all()) else np.argsort(times, kind="stable") for times in moments
    ]
    results = [np.zeros(len(times), dtype=np.int64) for times in moments]
    ascending = [times[order] for times, order in zip(moments, orders, strict=True)]
    done = [0] * len(moments)
    total, reached = 0, _NEVER
    for starts, ends in pieces:
        if len(starts) == 0:
            continue
        before = np.empty(len(starts) + 1, dtype=np.int64)
        before[0] = total
        np.cumsum(ends - starts, out=before[1:])
        before[1:] += total
        runs_until = np.append(reached, ends)
        for number, times in enumerate(ascending):
            # Up to the last start all is known: what comes later may lie in the next pieces.
            part = slice(done[number], int(np.searchsorted(times, starts[-1], side="right")))
            first = np.searchsorted(times[part], starts, side="left")
            counts = np.diff(first, prepend=0, append=part.stop - part.start)
            beyond = np.repeat(runs_until, counts) - times[part]
            results[number][part] = np.repeat(before, counts) - np.maximum(beyond, 0, out=beyond)
            done[number] = part.stop
        total, reached = int(before[-1]), int(ends[-1])
    for result, order, times, since in zip(results, orders, ascending, done, strict=True):
        result[since:] = total - np.maximum(reached - times[since:], 0)
        if not isinstance(order, slice):
            result[order] = result.copy()
    return results
