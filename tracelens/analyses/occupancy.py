"""When each rank's device works, and the gaps in between with the events on both sides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracelens.analyses.coverage import Coverage
from tracelens.analyses.timeline import Codes, Ints, Timeline, timeline
from tracelens.trace import LoadedTrace


@dataclass(frozen=True)
class Occupancy:
    """The union of all events, and its gaps.

    Attributes:
        busy: the union of the events on the timeline's axis.
        gap_start: int64 ns [gaps] on the axis: the device ran dry.
        gap_end: int64 ns [gaps]: the next event began.
        before: int32 [gaps], the event that ended last.
        after: int32 [gaps], the event that ended the gap.
        span_start, span_end: int64 ns [ranks]; equal where a rank has no event with a length.
    """

    busy: Coverage
    gap_start: Ints
    gap_end: Ints
    before: Codes
    after: Codes
    span_start: Ints
    span_end: Ints


def occupancy(trace: LoadedTrace) -> Occupancy:
    """The occupancy of a trace, built once."""
    result: Occupancy = trace.memo("occupancy", lambda: _build(timeline(trace)))
    return result


def _build(tl: Timeline) -> Occupancy:
    # Zero-length events take no time, end no gap and extend no span.
    real = tl.end > tl.start
    whole = bool(real.all())
    places = None if whole else np.flatnonzero(real)
    start = tl.start if places is None else tl.start[places]
    end = tl.end if places is None else tl.end[places]
    count = len(start)
    if count == 0:
        none = np.empty(0, np.int64)
        at = tl.start[tl.first[:-1]] if len(tl) else none
        return Occupancy(
            Coverage.of_pieces(none, none), none, none, none.astype(np.int32), none.astype(np.int32), at, at
        )
    reached = np.maximum.accumulate(end)
    opens = np.flatnonzero(start[1:] > reached[:-1]) + 1
    firsts = np.concatenate([np.zeros(1, np.int64), opens])
    lasts = np.concatenate([opens - 1, np.array([count - 1])])
    busy = Coverage.of_pieces(start[firsts], reached[lasts])
    top = np.where(end == reached, np.arange(count, dtype=np.int32), np.int32(0))
    np.maximum.accumulate(top, out=top)
    before = top[lasts[:-1]]
    after = opens.astype(np.int32)
    if places is not None:
        before, after = places[before].astype(np.int32), places[after].astype(np.int32)
    del reached, top
    inner = tl.rank_place[before] == tl.rank_place[after]
    edges = tl.first if places is None else np.searchsorted(places, tl.first)
    some = edges[1:] > edges[:-1]
    span_start = np.where(some, start[np.minimum(edges[:-1], count - 1)], 0)
    span_end = np.zeros(len(tl.ranks), np.int64)
    if bool(some.any()):
        span_end[some] = np.maximum.reduceat(end, edges[:-1][some])
    empty = ~some
    span_start[empty] = tl.start[tl.first[:-1][empty]]
    span_end[empty] = span_start[empty]
    return Occupancy(
        busy=busy,
        gap_start=busy.ends[:-1][inner],
        gap_end=busy.starts[1:][inner],
        before=before[inner],
        after=after[inner],
        span_start=span_start,
        span_end=span_end,
    )
