"""When each rank's device works, and the gaps in between with the events on both sides."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tracelens.analyses.timeline import Codes, Ints, Timeline, timeline
from tracelens.trace import LoadedTrace

_SLICE = 1 << 20


@dataclass(frozen=True)
class Occupancy:
    """The gaps of all ranks: maximal intervals in which no event runs.

    Attributes:
        before: int32 [gaps], the event that ended last: the device ran dry at its end.
        after: int32 [gaps], the event that ended the gap at its start.
        span_start, span_end: int64 ns [ranks] on the axis; equal where a rank has no event with a length.
        timeline: the events.
    """

    before: Codes
    after: Codes
    span_start: Ints
    span_end: Ints
    timeline: Timeline = field(repr=False)

    def __len__(self) -> int:
        return len(self.before)

    @property
    def gap_start(self) -> Ints:
        """When the device ran dry, int64 ns [gaps] on the axis, ascending."""
        return self.timeline.end[self.before]

    @property
    def gap_end(self) -> Ints:
        """When the next event began, int64 ns [gaps] on the axis, ascending."""
        return self.timeline.start[self.after]


def occupancy(trace: LoadedTrace) -> Occupancy:
    """The occupancy of a trace, built once."""
    result: Occupancy = trace.memo("occupancy", lambda: _build(timeline(trace)))
    return result


def _build(tl: Timeline) -> Occupancy:
    before: list[Codes] = [np.empty(0, np.int32)]
    after: list[Codes] = [np.empty(0, np.int32)]
    span_start = tl.start[tl.first[:-1]]
    span_end = span_start.copy()
    reached, top = -1, -1
    opening = set(tl.first[:-1].tolist())
    for part in tl.stretches(_SLICE):
        if part.start in opening:
            reached, top = -1, -1
        place = tl.rank_place[part.start]
        gaps_before, gaps_after, reached, leader, first = _gaps_of(
            tl.start[part], tl.end[part], part.start, reached, top
        )
        before.append(gaps_before)
        after.append(gaps_after)
        if top < 0 <= leader:
            span_start[place] = first
        top = leader
        if top >= 0:
            span_end[place] = reached
    return Occupancy(np.concatenate(before), np.concatenate(after), span_start, span_end, tl)


def _gaps_of(start: Ints, end: Ints, low: int, reached: int, top: int) -> tuple[Codes, Codes, int, int, int]:
    """(before, after, latest end, event that has it, first start) of consecutive events of a rank.

    Args:
        start: of the events, ascending.
        end: of the events.
        low: place of the first on the timeline.
        reached: latest end so far, on the same axis; ignored where `top` is negative.
        top: event that has it, negative where the rank has shown no event with a length.
    """
    # Zero-length events take no time, end no gap and extend no span.
    places: Ints | None = None
    if not bool((end > start).all()):
        places = np.flatnonzero(end > start)
        start, end = start[places], end[places]
    none = np.empty(0, np.int32)
    if len(start) == 0:
        return none, none, reached, top, 0
    latest = np.maximum.accumulate(end)
    leader = np.where(end == latest, np.arange(len(end), dtype=np.int32), np.int32(0))
    np.maximum.accumulate(leader, out=leader)
    if top >= 0:
        np.maximum(latest, reached, out=latest)
    opens = np.flatnonzero(start[1:] > latest[:-1]).astype(np.int32) + np.int32(1)
    ahead = leader[opens - 1]
    first = int(start[0])
    own = ahead if places is None else places[ahead].astype(np.int32)
    before, after = own + np.int32(low), (opens if places is None else places[opens].astype(np.int32)) + np.int32(low)
    if top >= 0:
        # Up to the first event that ends later than all before the slice, the gaps begin where that one ended.
        before = np.where(end[ahead] < reached, np.int32(top), before)
        if first > reached:
            place = low if places is None else low + int(places[0])
            before = np.concatenate([np.array([top], np.int32), before])
            after = np.concatenate([np.array([place], np.int32), after])
    final = int(leader[-1])
    if top >= 0 and int(end[final]) < reached:
        return before, after, reached, top, first
    return before, after, int(latest[-1]), low + (final if places is None else int(places[final])), first
