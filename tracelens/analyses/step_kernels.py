"""Steps from kernels alone: an anchor that begins each step, or the period of the kernel sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import numpy.typing as npt

from tracelens.analyses.blocks import blocks, each
from tracelens.analyses.replays import find_replays
from tracelens.analyses.step_closings import (
    SUBSTANTIAL,
    Landmarks,
    Segments,
    contents_of_steps,
    cut_segments,
    landmarks,
)
from tracelens.analyses.step_cycles import Cycles, cycle_starts, regularity_at, regularity_of
from tracelens.analyses.step_markers import SQL, Marking, blank_steps, nothing
from tracelens.analyses.step_replays import steps_from
from tracelens.analyses.timeline import KERNEL, Codes, Flags, Ints, Timeline
from tracelens.errors import SelectionError, UsageError
from tracelens.ruleset.spelling import short_name

if TYPE_CHECKING:
    from tracelens.trace import LoadedTrace

EMBEDDING = r"(?i)embedding|index_?select(small|large)?|vectorized_gather_kernel"
"""Kernels that look tokens up: the first of a forward pass."""

NOT_EMBEDDING = r"(?i)rotary|rope|position_?embed|backward"
"""Names that the pattern above would take although they run once per layer."""

_FITS = 0.8
_LEAST_KERNELS = 8
"""A period of fewer kernels is no forward pass."""

_MANY = 1.5
"""One marker comes several times per cycle of another from this ratio on."""


def by_anchor(trace: LoadedTrace, tl: Timeline, pattern: str | None) -> Marking:
    """Steps that begin at kernels whose name matches.

    Without a pattern, kernels that look tokens up are tried; what was issued between the read-back before one and the
    kernel itself (the input copies) then belongs to its step.

    Args:
        trace: the trace.
        tl: its timeline.
        pattern: a user's regular expression for kernel names, or None.

    Raises:
        UsageError: the pattern is no regular expression.
        SelectionError: a user's pattern matches no kernel.
    """
    try:
        found = trace.rows(SQL, "names_matching", pattern=pattern or EMBEDDING)
    except duckdb.Error as error:
        raise UsageError(
            f"--step-marker {pattern!r} is not a regular expression: {error}", "RE2 syntax: no look-around"
        ) from error
    wanted = tl.names["name"].is_in(found["name"].implode())
    if pattern is None:
        wanted &= ~tl.names["name"].str.contains(NOT_EMBEDDING)
    kernels = _in_issue_order(tl, lambda events: tl.kind[events] == KERNEL)
    tokens, groups = _gathered(tl, tl.name, kernels), _gathered(tl, tl.rank_place, kernels)
    hits = wanted.to_numpy()
    found_at = [part.start + np.flatnonzero(hits[tokens[part]]) for part in blocks(0, len(tokens))]
    places = np.concatenate([np.empty(0, np.int64), *found_at])
    if len(places) == 0:
        if pattern is None:
            return nothing("anchor", tl, "no embedding kernel")
        raise SelectionError(
            f"--step-marker {pattern!r} matches no kernel name",
            "`tracelens bucket --kernels` lists the names of the capture",
        )
    if pattern is not None:
        regularity = regularity_at(trace.room, tokens, groups, places)
        return _marking("anchor", tl, kernels[places], regularity, f"kernels that match {pattern!r}", None)
    cycles = cycle_starts(trace.room, tokens, groups, only=hits)
    if cycles is None:
        return nothing("anchor", tl, "embedding kernels do not come once per step")
    closed = _closed_cycles(tl)
    if closed is not None and len(cycles.places) > _MANY * len(closed.segments):
        return nothing("anchor", tl, "embedding kernels come several times per read-back")
    name = tl.names["name"][cycles.token]
    return _marking(
        "anchor", tl, kernels[cycles.places], cycles.regularity, f"kernel {short_name(name)}", landmarks(tl)
    )


def by_period(tl: Timeline) -> Marking:
    """Steps from the period of the kernel sequence: cut at read-backs or sampling groups, else by the sequence alone."""
    main = _main_streams(tl)
    kernels = _in_issue_order(tl, lambda events: (tl.kind[events] == KERNEL) & main[tl.stream[events]])
    cycles = _cycles(tl, kernels)
    closed = _closed_cycles(tl)
    # Several read-backs in each cycle of the sequence: some are taken in the middle of a step.
    if closed is not None and (
        cycles is None or len(closed.segments) < _MANY * len(cycles.places) or cycles.regularity < closed.regularity
    ):
        steps = blank_steps(closed.segments.place)
        return Marking("period", closed.segments.member(), steps, closed.regularity, closed.detail)
    if cycles is None or cycles.length < _LEAST_KERNELS:
        return nothing("period", tl, "the kernel sequence does not repeat")
    name = tl.names["name"][cycles.token]
    detail = f"a period of {cycles.length} kernels from {short_name(name)} on"
    return _marking("period", tl, kernels[cycles.places], cycles.regularity, detail, landmarks(tl))


def _cycles(tl: Timeline, kernels: Codes) -> Cycles | None:
    """The cycles of kernels in issue order, each from where the device idles most."""
    tokens, groups = _gathered(tl, tl.name, kernels), _gathered(tl, tl.rank_place, kernels)
    idle = _idle_before(tl)
    return cycle_starts(tl.trace.room, tokens, groups, lambda places: idle[kernels[places]])


class _Closed:
    """Cycles that end in a read-back or a sampling group, and how alike they are."""

    def __init__(self, segments: Segments, regularity: float, detail: str) -> None:
        self.segments = segments
        self.regularity = regularity
        self.detail = detail


def _closed_cycles(tl: Timeline) -> _Closed | None:
    """The kernel sequence cut at read-backs, or at sampling groups where those fit better; None where neither does."""
    marks = landmarks(tl)
    found = []
    for closes, what, through in ((marks.read_back, "read-back", False), (marks.sampling, "sampling group", True)):
        if len(closes) == 0:
            continue
        segments = cut_segments(marks, closes, through=through)
        regularity, usual = _likeness(tl, segments)
        if regularity >= _FITS and len(segments) >= 3 * len(np.unique(segments.place)):
            found.append(_Closed(segments, regularity, f"a period of {usual} kernels, each with one {what}"))
    if not found:
        return None
    # More read-backs than sampling groups: some are taken in the middle of a step.
    return found[-1] if len(found[0].segments) >= _MANY * len(found[-1].segments) else found[0]


def _likeness(tl: Timeline, segments: Segments) -> tuple[float, int]:
    """(share of kernels in steps like others of their rank, usual number of kernels in a step)."""
    lengths, contents = contents_of_steps(tl, segments.member(), len(segments))
    return regularity_of(lengths, contents, segments.place) if bool(lengths.any()) else (0.0, 0)


def _in_issue_order(tl: Timeline, wanted: Callable[[Ints], Flags]) -> Codes:
    """Places of the wanted events, in issue order; those of one launch by their start."""
    units = find_replays(tl).units
    events: Codes = tl.trace.room.empty(len(tl), np.int32)

    def of_block(part: slice) -> Ints:
        sizes = units.sizes(part)
        ends = np.cumsum(sizes, dtype=np.int64)
        own: Ints = np.repeat(units.bounds[units.order[part]] - ends + sizes, sizes) + np.arange(ends[-1])
        return own[wanted(own)]

    # As many blocks as of events: launches differ in size, but not by that much.
    at_once = -(-len(units) // max(len(list(tl.stretches())), 1))
    count = 0
    for found in each(of_block, blocks(0, len(units), at_once), tl.trace.threads):
        events[count : count + len(found)] = found
        count += len(found)
    return events[:count]


def _gathered(tl: Timeline, values: npt.NDArray[Any], places: Codes) -> npt.NDArray[Any]:
    """The values at some places."""
    result = tl.trace.room.empty(len(places), values.dtype)
    for part in blocks(0, len(places)):
        result[part] = values[places[part]]
    return result


def _main_streams(tl: Timeline) -> Flags:
    """Whether each stream is the one with most kernel time on its rank."""
    spent = np.zeros(len(tl.stream_number))
    for part in tl.stretches():
        length = np.where(tl.kind[part] == KERNEL, tl.length[part], 0)
        spent += np.bincount(tl.stream[part], length, minlength=len(spent))
    main = np.zeros(len(spent), bool)
    # Streams ascend by rank; of equals the first.
    by_rank = np.lexsort((np.arange(len(spent)), -spent, tl.stream_rank))
    ranks = tl.stream_rank[by_rank]
    main[by_rank[np.concatenate([np.ones(min(len(ranks), 1), bool), ranks[1:] != ranks[:-1]])]] = True
    return main


def _idle_before(tl: Timeline) -> Ints:
    """Idle time of the device right before each event; 0 where it was busy, and at a rank's first event."""
    result: Ints = tl.trace.room.empty(len(tl), np.int64)
    rank_starts = set(tl.first[:-1].tolist())
    reached = 0
    for part in tl.stretches():
        start = tl.start[part]
        if part.start in rank_starts:
            reached = int(start[0])
        before = np.maximum.accumulate(np.append(reached, tl.end[part]))
        np.maximum(start - before[:-1], 0, out=result[part])
        reached = int(before[-1])
    return result


def _marking(
    marker: str, tl: Timeline, begins: Codes | Ints, regularity: float, detail: str, marks: Landmarks | None
) -> Marking:
    """Steps that begin with the launches of the events `begins`; a kernel inside a replay begins with its replay.

    With landmarks, a beginning moves back to just after the read-back before it, if no forward pass lies between.
    """
    replays = find_replays(tl)
    at: Ints = replays.units.of_events(begins).astype(np.int64)
    replay = replays.units.replay[at]
    if len(replays):
        at = np.where(replay >= 0, replays.first[np.maximum(replay, 0)], at)
    at = np.unique(at)
    if marks is not None:
        at = _after_read_back(marks, at)
    steps, member = steps_from(replays.units, at)
    return Marking(marker, member, steps, regularity, detail)


def _after_read_back(marks: Landmarks, begins: Ints) -> Ints:
    units = marks.units
    closing = cut_segments(marks, marks.read_back, through=False).closing
    if len(closing) == 0 or len(begins) == 0:
        return begins
    # The capture's beginning stands for the read-back before a rank's first step.
    closing = np.union1d(closing, units.first[:-1] - 1)
    last = closing[np.searchsorted(closing, begins) - 1]

    def kernels(part: slice) -> tuple[npt.NDArray[np.integer], ...]:
        return (np.where(units.replay[part] >= 0, units.sizes(part), marks.eager_kernels(part)),)

    usual = float(np.median(units.sums(begins + 1, kernels)[0, :-1])) if len(begins) > 1 else 0.0
    points = np.union1d(begins, last + 1)
    passed = np.cumsum(np.append(0, units.sums(points, kernels)[0]))
    between: Ints = passed[np.searchsorted(points, begins)] - passed[np.searchsorted(points, last + 1)]
    previous = np.concatenate([np.full(1, -2), begins[:-1]])
    # `last` may be the end of the rank before, whose next unit is this rank's first.
    near = (last >= previous) & (units.places(last + 1) == units.places(begins)) & (between < SUBSTANTIAL * usual)
    return np.where(near & (begins > 0), last + 1, begins)
