"""Which part of a collective the step pays for: that without a non-collective kernel of another stream.

stream 7    gggg|cccccccccccc|gggg      c: collective
stream 9         . . mmmm . .           m: another kernel, not a collective
exposed         |----|    |--|          copies hide nothing, nor does what overlaps on the collective's own stream
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracelens.analyses.coverage import Coverage
from tracelens.analyses.timeline import KERNEL, Ints, Timeline, timeline
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
    event = np.flatnonzero(tl.is_collective & (tl.end > tl.start))
    exposed_ns = np.zeros(len(event), np.int64)
    working = (tl.kind == KERNEL) & ~tl.is_collective & (tl.end > tl.start)
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
        hiding = np.flatnonzero(working & elsewhere[tl.stream])
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
