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

from tracelens.analyses.blocks import run_starts
from tracelens.analyses.replays import Replays, Units, find_replays, sampling_events
from tracelens.analyses.step_cycles import scrambled
from tracelens.analyses.step_markers import OUTSIDE
from tracelens.analyses.timeline import KERNEL, Codes, Ints, Timeline

SUBSTANTIAL = 0.25
"""An eager stretch with this share of the kernels or kernel time of a usual cycle is a forward pass of its own."""

_LEAST_KERNELS = 8
"""And one of fewer kernels than this is none, beside a replay or a read-back of its own group."""


@dataclass(frozen=True)
class Landmarks:
    """What may end a step. All but the units are int64, places of units in issue order, ascending.

    Attributes:
        units: the units.
        replay_begins: first units of the replays.
        breaks: those and the copies to the device outside graphs: what a new step begins with.
        read_back: copies to the host; of a replay that holds one, its last unit.
        sampling: the same for kernels that pick tokens.
    """

    units: Units
    replay_begins: Ints
    breaks: Ints
    read_back: Ints
    sampling: Ints

    def eager_kernels(self, part: slice) -> Codes:
        """Number of kernels outside graphs of each unit of a block: 0 or 1."""
        units = self.units
        return np.where(units.replay[part] < 0, units.kernel_count[part], np.int32(0))


@dataclass(frozen=True)
class Segments:
    """The steps between closings.

    Attributes:
        opens: int64 [stretches between closings], first unit of each in issue order.
        step: int32 [stretches between closings], step that each belongs to, or -1.
        place: [steps] place of the rank.
        replay_step: [replays] step of each, -1 for none.
        replay_count: [steps] graph launches of each.
        closing: int64, the units that close, ascending.
        units: the units.
    """

    opens: Ints
    step: Codes
    place: Ints
    replay_step: Ints
    replay_count: Ints
    closing: Ints
    units: Units

    def __len__(self) -> int:
        return len(self.place)

    def member(self) -> Codes:
        """int32 [events of the timeline], step or -1; made anew each time."""
        return self.units.to_events(self.opens, self.step)


def landmarks(tl: Timeline) -> Landmarks:
    """The landmarks of a timeline, found once."""
    result: Landmarks = tl.trace.memo("landmarks", lambda: _landmarks(tl, find_replays(tl)))
    return result


def _landmarks(tl: Timeline, replays: Replays) -> Landmarks:
    units = replays.units
    copies, kinds = tl.copies

    def at(events: Ints) -> Ints:
        found = units.of_events(events)
        return np.unique(found[units.replay[found] < 0]).astype(np.int64)

    # A replay that reads back itself ends its step at its last node.
    return Landmarks(
        units=units,
        replay_begins=replays.first,
        breaks=np.union1d(replays.first, at(copies[kinds == 1])),
        read_back=np.union1d(at(copies[kinds == 2]), replays.last[replays.to_host]),
        sampling=np.union1d(at(sampling_events(tl)), replays.last[replays.samples]),
    )


def cut_segments(marks: Landmarks, closes: Ints, *, through: bool) -> Segments:
    """Steps that end with the last of each group of `closes`.

    Args:
        marks: the landmarks.
        closes: places of units in issue order, ascending: read-backs or sampling kernels.
        through: whether a group reaches on to the read-back that follows it.
    """
    units = marks.units
    closing = _last_of_groups(marks, closes)
    if through:
        closing = _through_read_back(marks, closing)
    opens = np.union1d(closing[closing < len(units) - 1] + 1, units.first[:-1])
    count = len(opens)

    def sizes(part: slice) -> tuple[npt.NDArray[np.integer], ...]:
        eager = marks.eager_kernels(part)
        held = (units.kernel_count[part] > 0) | (units.replay[part] >= 0)
        spent = units.kernel_ns[part]
        return eager, np.where(eager > 0, spent, 0), np.where(held, units.sizes(part), 0), spent

    eager_count, eager_ns, all_count, all_ns = units.sums(opens, sizes)
    of_replay = np.searchsorted(opens, marks.replay_begins, side="right") - 1
    replay_count = np.bincount(of_replay, minlength=count)
    with_replay = replay_count > 0
    usual = with_replay if with_replay.any() else all_count > 0
    own = ~with_replay & (eager_count > 0)
    own &= (eager_count >= SUBSTANTIAL * _usual_size(all_count[usual])) | (
        eager_ns >= SUBSTANTIAL * _usual_size(all_ns[usual])
    )
    closed = np.zeros(count, bool)
    closed[np.searchsorted(opens, closing, side="right") - 1] = True
    place = units.places(opens)
    last = np.concatenate([place[1:] != place[:-1], np.ones(min(count, 1), bool)])
    # The capture's end may cut an eager pass before its read-back; where there are graphs, what follows the last
    # step is more likely the input of a step whose replay was not recorded.
    is_step = with_replay | (own & (closed | (last & ~with_replay.any())))
    step_of: Ints = np.cumsum(is_step) - is_step
    step_place = place[is_step]
    # What no step holds falls to the next step of its rank; before a rank's first step and after its last, to none.
    ahead = np.minimum(step_of, max(len(step_place) - 1, 0))
    in_rank = (step_of < len(step_place)) & (step_place[ahead] == place) if len(step_place) else is_step
    opening = np.concatenate([np.ones(min(count, 1), bool), place[1:] != place[:-1]])
    step = np.where(in_rank & ~(opening & ~is_step & closed), step_of, OUTSIDE).astype(np.int32)
    return Segments(opens, step, step_place, step[of_replay].astype(np.int64), replay_count[is_step], closing, units)


def _usual_size(sizes: npt.NDArray[np.integer | np.floating]) -> float:
    """The size of the segment that half of everything lies below: small leftovers between closings do not move it."""
    if len(sizes) == 0:
        return 0.0
    ascending = np.sort(sizes).astype(np.float64)
    return float(ascending[np.searchsorted(np.cumsum(ascending), ascending.sum() / 2)])


def _last_of_groups(marks: Landmarks, closes: Ints) -> Ints:
    """The last of each run of `closes` that no replay, no copy to the device and no forward pass interrupts."""
    if len(closes) == 0:
        return closes
    units = marks.units
    place, breaks = units.places(closes), np.searchsorted(marks.breaks, closes, side="right")
    (kernels,) = units.sums(closes + 1, lambda part: (marks.eager_kernels(part),))
    every = int(units.kernel_count.sum(dtype=np.int64))
    least = max(SUBSTANTIAL * every / max(len(closes), len(units.first) - 1), _LEAST_KERNELS)
    follows = (place[1:] == place[:-1]) & (breaks[1:] == breaks[:-1]) & (kernels[:-1] < least)
    result: Ints = closes[~np.append(follows, False)]
    return result


def _through_read_back(marks: Landmarks, closing: Ints) -> Ints:
    """Closings moved on to the read-back that follows before anything of the next step does."""
    copies = marks.read_back
    if len(closing) == 0 or len(copies) == 0:
        return closing
    following = np.searchsorted(copies, closing)
    target = copies[np.minimum(following, len(copies) - 1)]
    moved = (following < len(copies)) & (marks.units.places(target) == marks.units.places(closing))
    moved &= np.searchsorted(marks.breaks, target, side="right") == np.searchsorted(marks.breaks, closing, side="right")
    return np.unique(np.where(moved, target, closing))


def contents_of_steps(tl: Timeline, member: Codes, count: int) -> tuple[Ints, npt.NDArray[np.uint64]]:
    """(kernels, a hash of their names whatever their order) of each of `count` steps."""
    lengths, contents = np.zeros(count, np.int64), np.zeros(count, np.uint64)

    def of_part(part: slice) -> tuple[Codes, Ints, npt.NDArray[np.uint64]]:
        held = np.flatnonzero((member[part] >= 0) & (tl.kind[part] == KERNEL))
        step = member[part][held]
        begins = run_starts(step)
        hashes = scrambled(tl.name[part][held])
        sums = np.add.reduceat(hashes, begins) if len(begins) else hashes
        return step[begins], np.diff(begins, append=len(held)), sums

    for step, size, sums in tl.each(of_part):
        np.add.at(lengths, step, size)
        np.add.at(contents, step, sums)
    return lengths, contents
