"""Idle between requests: all ranks of a set idle at once, for longer than a host ever needs between two steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.analyses.coverage import Ints

LEAST_NS = 5_000_000
"""No shorter idle is one between requests."""

STEPS_LONG = 3
"""Nor one shorter than so many median steps."""


@dataclass(frozen=True)
class CommonIdle:
    """The idle stretches that all ranks of a set share, and the gaps of the ranks that contain them.

    Attributes:
        sets: [stretches] set of each.
        starts, ends: int64 ns [stretches], on the aligned clock.
        gap_is_idle: bool [gaps], whether a rank's gap contains a common idle.
    """

    sets: Ints
    starts: Ints
    ends: Ints
    gap_is_idle: npt.NDArray[np.bool_]


def common_idle(
    span_set: Ints,
    span_start: Ints,
    span_end: Ints,
    gap_set: Ints,
    gap_start: Ints,
    gap_end: Ints,
    threshold_ns: Ints,
) -> CommonIdle:
    """Find idle between requests.

    A rank takes part while the capture shows it: before its first and after its last event nothing is known of it.

    Args:
        span_set: [ranks] set of each rank; its span on the aligned clock follows.
        span_start: ns [ranks].
        span_end: ns [ranks].
        gap_set: [gaps] set of the rank of each gap longer than its set's threshold; its ends follow.
        gap_start: ns [gaps].
        gap_end: ns [gaps].
        threshold_ns: ns [sets] by set number; a common idle is longer.
    """
    sets = np.concatenate([span_set, span_set, gap_set, gap_set])
    times = np.concatenate([span_start, span_end, gap_start, gap_end])
    change = np.concatenate(
        [
            np.ones(len(span_set), np.int64),
            np.full(len(span_set), -1, np.int64),
            np.full(len(gap_set), -1, np.int64),
            np.ones(len(gap_set), np.int64),
        ]
    )
    order = np.lexsort((times, sets))
    sets, times, active = sets[order], times[order], np.cumsum(change[order])
    # A stretch without width says nothing; what remains is cut into runs of "nobody works".
    wide = np.concatenate([(times[1:] > times[:-1]) & (sets[1:] == sets[:-1]), np.zeros(1, bool)])
    at = np.flatnonzero(wide)
    quiet = active[at] == 0
    starts, ends, owner = times[at], times[at + 1], sets[at]
    continues = np.zeros(len(at), bool)
    continues[1:] = quiet[1:] & quiet[:-1] & (owner[1:] == owner[:-1]) & (starts[1:] == ends[:-1])
    heads = np.flatnonzero(quiet & ~continues)
    run = np.cumsum(quiet & ~continues) - 1
    last = np.zeros(len(heads), np.int64)
    if len(heads):
        np.maximum.at(last, run[quiet], ends[quiet])
    begin, owner = starts[heads], owner[heads]
    long = last - begin > threshold_ns[owner] if len(heads) else np.zeros(0, bool)
    begin, last, owner = begin[long], last[long], owner[long]
    return CommonIdle(owner, begin, last, _contains(gap_set, gap_start, gap_end, owner, begin, last))


def _contains(
    gap_set: Ints, gap_start: Ints, gap_end: Ints, sets: Ints, starts: Ints, ends: Ints
) -> npt.NDArray[np.bool_]:
    """Whether each gap meets one of the stretches of its set: they lie inside gaps, so that meeting is containing."""
    if len(sets) == 0:
        return np.zeros(len(gap_set), bool)
    low = min(int(starts.min()), int(gap_start.min(initial=0)))
    stride = max(int(ends.max()), int(gap_end.max(initial=0))) - low + 1
    key_end = sets * stride + (ends - low)
    following = np.searchsorted(key_end, gap_set * stride + (gap_start - low), side="right")
    place = np.minimum(following, len(sets) - 1)
    result: npt.NDArray[np.bool_] = (following < len(sets)) & (sets[place] == gap_set) & (starts[place] < gap_end)
    return result
