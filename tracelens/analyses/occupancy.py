"""When each rank's device works, and the gaps in between with the events on both sides."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tracelens.analyses.blocks import blocks
from tracelens.analyses.timeline import Codes, Ints, Timeline, timeline
from tracelens.trace import LoadedTrace

LONG_NS = 5_000
"""Kernels that are queued on one stream follow each other within this: a longer gap has another reason."""

_NOTHING = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Occupancy:
    """The gaps of all ranks: maximal intervals in which no event runs.

    Attributes:
        before: int32 [gaps], the event that ended last: the device ran dry at its end.
        after: int32 [gaps], the event that ended the gap at its start.
        long: int32, places of the gaps longer than `LONG_NS`, ascending.
        span_start, span_end: int64 ns [ranks] on the axis; equal where a rank has no event with a length.
        timeline: the events.
    """

    before: Codes
    after: Codes
    long: Codes
    span_start: Ints
    span_end: Ints
    timeline: Timeline = field(repr=False)

    def __len__(self) -> int:
        return len(self.before)

    def longer_than(self, least_ns: int) -> Codes:
        """Places of the gaps longer than `least_ns`, which is no less than `LONG_NS`."""
        found = [self.long[part][self.lengths(self.long[part]) > least_ns] for part in blocks(0, len(self.long))]
        return np.concatenate([self.long[:0], *found])

    def lengths(self, part: slice | Codes) -> Ints:
        """Lengths of some gaps, int64 ns."""
        result: Ints = self.timeline.start[self.after[part]] - self.timeline.end[self.before[part]]
        return result


def occupancy(trace: LoadedTrace) -> Occupancy:
    """The occupancy of a trace, built once."""
    result: Occupancy = trace.memo("occupancy", lambda: _build(timeline(trace)))
    return result


def _build(tl: Timeline) -> Occupancy:
    # As many gaps as events at most; what is not filled takes no memory.
    before, after, long = (tl.trace.room.empty(len(tl), np.int32) for _ in range(3))
    count = long_count = 0
    span_start = tl.start[tl.first[:-1]]
    span_end = span_start.copy()
    opening = set(tl.first[:-1].tolist())
    reached, top = _NOTHING, -1
    parts = tl.stretches()
    for found in tl.each(lambda part: _gaps_of(tl, part, _NOTHING, -1)):
        part = next(parts)
        if part.start in opening:
            reached, top = _NOTHING, -1
        if found.top < 0:
            continue
        if top < 0:
            span_start[tl.place_of(part)] = tl.start[found.first]
        elif tl.start[found.first] > reached:
            before[count], after[count] = top, found.first
            if tl.start[found.first] - reached > LONG_NS:
                long[long_count] = count
                long_count += 1
            count += 1
        elif tl.start[found.first] < reached:
            # What ran before this block still runs in it.
            found = _gaps_of(tl, part, reached, top)
        filled = slice(count, count + len(found.before))
        before[filled], after[filled] = found.before, found.after
        long[long_count : long_count + len(found.long)] = found.long + np.int32(count)
        count, long_count = filled.stop, long_count + len(found.long)
        reached, top = found.reached, found.top
        span_end[tl.place_of(part)] = reached
    return Occupancy(before[:count], after[:count], long[:long_count], span_start, span_end, tl)


@dataclass(frozen=True)
class _Found:
    """Gaps between consecutive events: before and after of each, and which are long; the latest end and its event, the
    first with a length."""

    before: Codes
    after: Codes
    long: Codes
    reached: int
    top: int
    first: int


def _gaps_of(tl: Timeline, part: slice, reached: int, top: int) -> _Found:
    """The gaps between a rank's consecutive events, given what ran before them.

    Args:
        tl: the timeline.
        part: their places.
        reached: latest end so far, after the first of them begins.
        top: event that has it, negative where there is none.
    """
    start, length = tl.start[part], tl.length[part]
    # Zero-length events take no time, end no gap and extend no span.
    places: Ints | None = None
    if not bool((length > 0).all()):
        places = np.flatnonzero(length > 0)
        start, length = start[places], length[places]
    end = start + length
    if len(start) == 0:
        none = np.empty(0, np.int32)
        return _Found(none, none, none, reached, top, -1)
    gap = start[1:] - end[:-1]
    if int(start[0]) >= reached and int(gap.min(initial=0)) >= 0:
        # One after the other, as most events are: each gap begins where the event ahead ends.
        opens = np.flatnonzero(gap) + 1
        ahead = opens - 1
        final, reached = len(end) - 1, int(end[-1])
    else:
        latest = np.maximum.accumulate(end)
        np.maximum(latest, reached, out=latest)
        gap = start[1:] - latest[:-1]
        opens = np.flatnonzero(gap > 0) + 1
        # Of events that end last together the last stands; -1 where what came before these ends later.
        leads = np.append(-1, np.flatnonzero(end == latest))
        ahead = leads[np.searchsorted(leads, opens - 1, side="right") - 1]
        final, reached = int(leads[-1]), int(latest[-1])

    def place(index: Ints) -> Codes:
        own = index if places is None else places[index]
        result: Codes = (own + part.start).astype(np.int32)
        return result

    before = np.where(ahead >= 0, place(ahead), np.int32(top)).astype(np.int32)
    last = top if final < 0 else int(place(np.array([final]))[0])
    long = np.flatnonzero(gap[opens - 1] > LONG_NS).astype(np.int32)
    return _Found(before, place(opens), long, reached, last, int(place(np.array([0]))[0]))
