"""Which marker a trace's steps go by: the one asked for, else the best that fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analyses.step_closings import contents_of_steps, cut_segments, landmarks
from tracelens.analyses.step_kernels import by_anchor, by_period
from tracelens.analyses.step_markers import OUTSIDE, Marking, by_range, nothing
from tracelens.analyses.step_replays import by_replay
from tracelens.analyses.timeline import KERNEL, Timeline
from tracelens.errors import SelectionError

if TYPE_CHECKING:
    from tracelens.trace import LoadedTrace

ACCEPTED = 0.8
"""A marker that fits less of the evidence is refused when the choice is free."""

_ORDER = ("nvtx", "graph", "anchor", "period")


@dataclass(frozen=True)
class Choice:
    """The marker in use and what became of the others.

    Attributes:
        marking: the steps; without any if no marker fits.
        refused: (marker, why) of those tried before.
    """

    marking: Marking
    refused: tuple[tuple[str, str], ...]


def choose_marker(trace: LoadedTrace, tl: Timeline) -> Choice:
    """The marking that the options ask for.

    Raises:
        SelectionError: a marker that was asked for by name marks nothing here.
        UsageError: `--step-marker` is no regular expression.
    """
    options = trace.options
    if options.steps_by != "auto":
        marking = _mark(trace, tl, options.steps_by, options.step_marker)
        if not len(marking):
            raise SelectionError(
                f"--steps-by {options.steps_by} finds no step: {marking.detail}",
                "Without --steps-by, every marker is tried.",
            )
        return Choice(marking, ())
    if options.step_marker is not None:
        return Choice(by_range(trace, tl, options.step_marker), ())
    refused: list[tuple[str, str]] = []
    for marker in _ORDER:
        marking = _mark(trace, tl, marker, None)
        if len(marking) and marking.regularity >= ACCEPTED:
            return Choice(marking, tuple(refused))
        why = f"{marking.detail}, which fits {marking.regularity:.0%}" if len(marking) else marking.detail
        refused.append((marker, why))
    return Choice(nothing("none", tl, "no marker fits"), tuple(refused))


def _marked_share(tl: Timeline, marking: Marking) -> float:
    """Share of the forward passes that end in a read-back which have a range of their own.

    A range that stands on every tenth step makes steps of ten equal passes. Passes that differ, inside one range, are
    parts of a step that reads back in its middle.
    """
    copies, kinds = tl.copies
    held = marking.member[copies[kinds == 2]]
    if np.median(np.bincount(held[held >= 0], minlength=len(marking))) < 2:
        return 1.0
    marks = landmarks(tl)
    segments = cut_segments(marks, marks.read_back, through=False)
    member = segments.member()
    _, content = contents_of_steps(tl, member, len(segments))
    range_of = np.full(len(segments), OUTSIDE, np.int32)
    for part in tl.stretches():
        kernels = np.flatnonzero((tl.kind[part] == KERNEL) & (member[part] >= 0))
        range_of[member[part][kernels]] = marking.member[part][kernels]
    same = (content[1:] == content[:-1]) & (range_of[1:] == range_of[:-1]) & (range_of[1:] >= 0)
    return 1.0 - np.count_nonzero(same) / max(len(segments), 1)


def _mark(trace: LoadedTrace, tl: Timeline, marker: str, pattern: str | None) -> Marking:
    if marker == "nvtx":
        marking = by_range(trace, tl, pattern)
        if pattern is None and len(marking):
            marking = replace(marking, regularity=min(marking.regularity, _marked_share(tl, marking)))
        return marking
    if marker == "graph":
        return by_replay(tl)
    if marker == "anchor":
        return by_anchor(trace, tl, pattern)
    return by_period(tl)
