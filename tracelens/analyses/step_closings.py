"""What ends a step: the read-back of its tokens, or the sampling kernels where nothing is read back.

    eager   H2D            sample D2H  H2D            sample D2H  H2D  prefill ... sample D2H
    graph       [replay A]                 [replay A]
    segment `--------- 0 ----------´   `--------- 1 ----------´   `------ 2 ----------------´

Events are taken in the order in which the host issued them, so that a copy on its own stream falls to the step that
asked for it. A segment is what lies between two closings of a rank; one with a forward pass in it is a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.analyses.replays import Replays, Units, find_replays
from tracelens.analyses.step_markers import OUTSIDE
from tracelens.analyses.timeline import KERNEL, Codes, Flags, Ints, Timeline

SUBSTANTIAL = 0.25
"""An eager stretch with this share of the kernels or kernel time of a usual cycle is a forward pass of its own."""

_LEAST_KERNELS = 8
"""And one of fewer kernels than this is none, beside a replay or a read-back of its own group."""


@dataclass(frozen=True)
class Landmarks:
    """What may end a step. All arrays are [units] in issue order.

    Attributes:
        units: the units.
        replay_begins: first unit of a replay.
        eager_kernels: number of kernels outside graphs: 0 or 1.
        to_device: copies to the device, outside graphs.
        read_back: copies to the host; of a replay that holds one, its last unit.
        sampling: the same for kernels that pick tokens.
    """

    units: Units
    replay_begins: Flags
    eager_kernels: Ints
    to_device: Flags
    read_back: Flags
    sampling: Flags


@dataclass(frozen=True)
class Segments:
    """The steps between closings.

    Attributes:
        step: int32 [units in issue order], step or -1.
        place: [steps] place of the rank.
        replay_step: [replays] step of each, -1 for none.
        replay_count: [steps] graph launches of each.
        closes: bool [units in issue order], the closings.
        units: the units.
    """

    step: Codes
    place: Ints
    replay_step: Ints
    replay_count: Ints
    closes: Flags
    units: Units

    def __len__(self) -> int:
        return len(self.place)

    @property
    def member(self) -> Codes:
        """int32 [events of the timeline], step or -1."""
        return self.units.to_events(self.step)


def landmarks(tl: Timeline) -> Landmarks:
    """The landmarks of a timeline, found once."""
    result: Landmarks = tl.trace.memo("landmarks", lambda: _landmarks(tl, find_replays(tl)))
    return result


def _landmarks(tl: Timeline, replays: Replays) -> Landmarks:
    units = replays.units
    count = len(units)
    eager = units.replay < 0

    def at(events: Ints) -> Flags:
        flags = np.zeros(count, bool)
        flags[units.of_events(events)] = True
        return flags & eager

    def inside(which: Flags) -> Flags:
        # A replay that reads back itself ends its step at its last node.
        flags = np.zeros(count, bool)
        flags[replays.last[which]] = True
        return flags

    begins = np.zeros(count, bool)
    begins[replays.first] = True
    copies, kinds = tl.copies
    picks = np.flatnonzero(tl.sampling_names[tl.name] & (tl.kind == KERNEL))
    return Landmarks(
        units=units,
        replay_begins=begins,
        eager_kernels=np.where(eager, units.kernel_count, 0),
        to_device=at(copies[kinds == 1]),
        read_back=at(copies[kinds == 2]) | inside(replays.to_host),
        sampling=at(picks) | inside(replays.samples),
    )


def cut_segments(marks: Landmarks, closes: Flags, *, through: bool) -> Segments:
    """Steps that end with the last of each group of `closes`.

    Args:
        marks: the landmarks.
        closes: bool [units in issue order], read-backs or sampling kernels.
        through: whether a group reaches on to the read-back that follows it.
    """
    units = marks.units
    place = units.place
    closing = _last_of_groups(marks, closes)
    if through:
        closing = _through_read_back(marks, closing)
    edges = np.zeros(len(units), bool)
    edges[1:] = closing[:-1] | (place[1:] != place[:-1])
    segment = np.cumsum(edges)
    count = int(segment[-1]) + 1 if len(segment) else 0
    begins = np.flatnonzero(marks.replay_begins)
    replay_count = np.bincount(segment[begins], minlength=count)
    eager_count = np.bincount(segment, marks.eager_kernels, minlength=count)
    eager_ns = np.bincount(segment, np.where(marks.eager_kernels > 0, units.kernel_ns, 0), minlength=count)
    held = (units.kernel_count > 0) | (units.replay >= 0)
    all_count = np.bincount(segment, np.where(held, units.size, 0), minlength=count)
    all_ns = np.bincount(segment, units.kernel_ns, minlength=count)
    with_replay = replay_count > 0
    usual = with_replay if with_replay.any() else all_count > 0
    own = ~with_replay & (eager_count > 0)
    own &= (eager_count >= SUBSTANTIAL * _usual_size(all_count[usual])) | (
        eager_ns >= SUBSTANTIAL * _usual_size(all_ns[usual])
    )
    closed = np.zeros(count, bool)
    closed[segment[closing]] = True
    segment_place = np.zeros(count, np.int64)
    segment_place[segment] = place
    last = np.concatenate([segment_place[1:] != segment_place[:-1], np.ones(min(count, 1), bool)])
    # The capture's end may cut an eager pass before its read-back; where there are graphs, what follows the last
    # step is more likely the input of a step whose replay was not recorded.
    is_step = with_replay | (own & (closed | (last & ~with_replay.any())))
    step_of: Ints = np.cumsum(is_step) - is_step
    step_place = segment_place[is_step]
    # What no step holds falls to the next step of its rank; before a rank's first step and after its last, to none.
    ahead = np.minimum(step_of, max(len(step_place) - 1, 0))
    in_rank = (step_of < len(step_place)) & (step_place[ahead] == segment_place) if len(step_place) else is_step
    opening = np.concatenate([np.ones(min(count, 1), bool), segment_place[1:] != segment_place[:-1]])
    held_by = np.where(in_rank & ~(opening & ~is_step & closed), step_of, OUTSIDE)
    step = held_by[segment].astype(np.int32) if count else np.empty(0, np.int32)
    replay_step = np.full(len(begins), OUTSIDE, np.int64)
    replay_step[units.replay[begins]] = step[begins]
    return Segments(step, step_place, replay_step, replay_count[is_step], closing, units)


def _usual_size(sizes: npt.NDArray[np.integer | np.floating]) -> float:
    """The size of the segment that half of everything lies below: small leftovers between closings do not move it."""
    if len(sizes) == 0:
        return 0.0
    ascending = np.sort(sizes).astype(np.float64)
    return float(ascending[np.searchsorted(np.cumsum(ascending), ascending.sum() / 2)])


def _breaks(marks: Landmarks) -> Ints:
    """Running count of what a new step begins with: a replay, or a copy to the device."""
    return np.cumsum(marks.replay_begins | marks.to_device)


def _last_of_groups(marks: Landmarks, closes: Flags) -> Flags:
    """The last of each run of `closes` that no replay, no copy to the device and no forward pass interrupts."""
    at = np.flatnonzero(closes)
    result = np.zeros(len(closes), bool)
    if len(at) == 0:
        return result
    place = marks.units.place
    breaks, kernels = _breaks(marks), np.cumsum(marks.eager_kernels)
    usual = int(marks.units.kernel_count.sum()) / max(len(at), len(np.unique(place)), 1)
    least = max(SUBSTANTIAL * usual, _LEAST_KERNELS)
    same = place[at[1:]] == place[at[:-1]]
    follows = same & (breaks[at[1:]] == breaks[at[:-1]]) & (kernels[at[1:]] - kernels[at[:-1]] < least)
    result[at[~np.concatenate([follows, np.zeros(1, bool)])]] = True
    return result


def _through_read_back(marks: Landmarks, closing: Flags) -> Flags:
    """Closings moved on to the read-back that follows before anything of the next step does."""
    at = np.flatnonzero(closing)
    copies = np.flatnonzero(marks.read_back)
    result = np.zeros(len(closing), bool)
    if len(at) == 0 or len(copies) == 0:
        return closing
    breaks, place = _breaks(marks), marks.units.place
    following = np.searchsorted(copies, at)
    target = copies[np.minimum(following, len(copies) - 1)]
    moved = (following < len(copies)) & (place[target] == place[at]) & (breaks[target] == breaks[at])
    result[np.where(moved, target, at)] = True
    return result
