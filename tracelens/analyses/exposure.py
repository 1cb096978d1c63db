"""Which part of a collective the step pays for: that without a non-collective kernel of another stream.

stream 7    gggg|cccccccccccc|gggg      c: collective
stream 9         . . mmmm . .           m: another kernel, not a collective
exposed         |----|    |--|          copies hide nothing, nor does what overlaps on the collective's own stream
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracelens.analyses.blocks import each, run_starts
from tracelens.analyses.coverage import Coverage
from tracelens.analyses.timeline import KERNEL, Flags, Ints, Timeline


@dataclass(frozen=True)
class Exposure:
    """Collective time in windows.

    Attributes:
        collective_ns: int64 ns [windows], length of the union of the collectives.
        exposed_ns: int64 ns [windows], length of the union of their exposed parts.
    """

    collective_ns: Ints
    exposed_ns: Ints


def exposure(tl: Timeline, start: Ints, end: Ints) -> Exposure:
    """The collective time in windows of the ranks.

    Rank by rank, so that the unions of one are forgotten before those of another are found: a decode's collectives
    are a fifth of its events.

    Args:
        tl: the timeline.
        start: int64 ns [windows] on its axis.
        end: int64 ns [windows].
    """
    result = Exposure(np.zeros(len(start), np.int64), np.zeros(len(start), np.int64))
    of_rank = np.searchsorted(tl.start[tl.first[:-1]], start, side="right") - 1
    found = each(
        lambda place: _of_rank(tl, place, start, end, of_rank == place), range(len(tl.ranks)), tl.trace.threads
    )
    for place, (collective, exposed) in enumerate(found):
        result.collective_ns[of_rank == place] = collective
        result.exposed_ns[of_rank == place] = exposed
    return result


def _of_rank(tl: Timeline, place: int, start: Ints, end: Ints, windows: Flags) -> tuple[Ints, Ints]:
    """(collective time, exposed time) in the windows of one rank."""
    collective, exposed = _unions(tl, place)
    start, end = start[windows], end[windows]
    return collective.within(start, end), exposed.within(start, end)


def _unions(tl: Timeline, place: int) -> tuple[Coverage, Coverage]:
    """(union of the collectives, union of their exposed parts) of one rank."""
    event, works = _collectives(tl, place)
    collective = Coverage.of_events(tl.start[event], tl.end[event])
    stream = tl.stream[event]
    streams = np.unique(stream)
    starts, ends = [], []
    for own in streams.tolist():
        elsewhere = works.copy()
        elsewhere[own] = False
        hiding = _working_on(tl, place, elsewhere)
        mine = collective if len(streams) == 1 else _union(tl, event[stream == own])
        pieces = mine.without(_union(tl, hiding))
        if len(streams) == 1:
            return collective, pieces
        starts.append(pieces.starts)
        ends.append(pieces.ends)
    if not starts:
        return collective, collective
    start, end = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(start, kind="stable")
    return collective, Coverage.of_events(start[order], end[order])


def _union(tl: Timeline, events: Ints) -> Coverage:
    return Coverage.of_events(tl.start[events], tl.end[events])


def _collectives(tl: Timeline, place: int) -> tuple[Ints, Flags]:
    """(events of a rank's collectives that have a length, whether each stream runs any other kernel that has)."""
    found = [np.empty(0, np.int64)]
    works = np.zeros(len(tl.stream_number), bool)
    for part in tl.stretches(place):
        collective = tl.is_collective[part]
        found.append(part.start + np.flatnonzero(collective & (tl.length[part] > 0)))
        runs = run_starts(tl.stream[part])
        works[tl.stream[part][runs[np.logical_or.reduceat(_working(tl, part), runs)]]] = True
    return np.concatenate(found), works


def _working_on(tl: Timeline, place: int, streams: Flags) -> Ints:
    """A rank's kernels that have a length, are no collectives and run on these streams."""
    found = [np.empty(0, np.int64)]
    if bool(streams.any()):
        found += [
            part.start + np.flatnonzero(_working(tl, part) & streams[tl.stream[part]]) for part in tl.stretches(place)
        ]
    return np.concatenate(found)


def _working(tl: Timeline, part: slice) -> Flags:
    result: Flags = (tl.kind[part] == KERNEL) & ~tl.is_collective[part] & (tl.length[part] > 0)
    return result
