"""Which part of a collective the step pays for: that without a non-collective kernel of another stream.

stream 7    gggg|cccccccccccc|gggg      c: collective
stream 9         . . mmmm . .           m: another kernel, not a collective
exposed         |----|    |--|          copies hide nothing, nor does what overlaps on the collective's own stream
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracelens.analyses.coverage import Coverage
from tracelens.analyses.timeline import KERNEL, Flags, Ints, Timeline, timeline
from tracelens.analyses.timeline_columns import run_starts
from tracelens.trace import LoadedTrace


@dataclass(frozen=True)
class Exposure:
    """Collective time of all ranks on the timeline's axis.

    Attributes:
        collective: union of the collectives.
        exposed: union of their exposed parts.
        event: int64, places of the collectives' events, ascending.
        exposed_ns: int64 ns, the exposed part of each.
    """

    collective: Coverage
    exposed: Coverage
    event: Ints
    exposed_ns: Ints


def exposure(trace: LoadedTrace) -> Exposure:
    """The exposure of a trace's collectives, found once."""
    result: Exposure = trace.memo("exposure", lambda: _build(timeline(trace)))
    return result


def _build(tl: Timeline) -> Exposure:
    event, works = _collectives(tl)
    exposed_ns = np.zeros(len(event), np.int64)
    # Ranks with several collective streams take one turn per stream, all ranks together.
    streams = np.unique(tl.stream[event])
    ranks = tl.stream_rank[streams]
    turn = np.arange(len(streams)) - np.searchsorted(ranks, ranks)
    starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for nth in range(int(turn.max(initial=-1)) + 1):
        chosen = streams[turn == nth]
        of_rank = np.full(len(tl.ranks), -1, np.int64)
        of_rank[tl.stream_rank[chosen]] = chosen
        mine = np.flatnonzero(of_rank[tl.rank_place[event]] == tl.stream[event])
        elsewhere = (of_rank[tl.stream_rank] >= 0) & (of_rank[tl.stream_rank] != np.arange(len(tl.stream_rank)))
        hiding = _working_on(tl, works & elsewhere)
        cover = Coverage.of_events(tl.start[hiding], tl.end[hiding])
        own = event[mine]
        exposed_ns[mine] = tl.end[own] - tl.start[own] - cover.within(tl.start[own], tl.end[own])
        pieces = Coverage.of_events(tl.start[own], tl.end[own]).without(cover)
        starts.append(pieces.starts)
        ends.append(pieces.ends)
    start, end = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(start, kind="stable")
    return Exposure(
        collective=Coverage.of_events(tl.start[event], tl.end[event]),
        exposed=Coverage.of_events(start[order], end[order]),
        event=event,
        exposed_ns=exposed_ns,
    )


def _collectives(tl: Timeline) -> tuple[Ints, Flags]:
    """(places of the collectives with a length, whether each stream runs any other kernel with one)."""
    found = [np.empty(0, np.int64)]
    works = np.zeros(len(tl.stream_number), bool)
    for part in tl.stretches():
        collective = tl.is_collective[part]
        found.append(part.start + np.flatnonzero(collective & (tl.end[part] > tl.start[part])))
        runs = run_starts(tl.stream[part])
        works[tl.stream[part][runs[np.logical_or.reduceat(_working(tl, part), runs)]]] = True
    return np.concatenate(found), works


def _working_on(tl: Timeline, streams: Flags) -> Ints:
    """Places of the kernels with a length on these streams that are no collectives."""
    places = set(tl.stream_rank[streams].tolist())
    found = [
        part.start + np.flatnonzero(_working(tl, part) & streams[tl.stream[part]])
        for part in tl.stretches()
        if tl.place_of(part) in places
    ]
    return np.concatenate([np.empty(0, np.int64), *found])


def _working(tl: Timeline, part: slice) -> Flags:
    result: Flags = (tl.kind[part] == KERNEL) & ~tl.is_collective[part] & (tl.end[part] > tl.start[part])
    return result
