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

from tracelens.analyses.replays import Replays, find_replays
from tracelens.analyses.step_markers import OUTSIDE
from tracelens.analyses.timeline import KERNEL, Codes, Flags, Ints, Timeline

SUBSTANTIAL = 0.25
"""An eager stretch with this share of the kernels or kernel time of a usual cycle is a forward pass of its own."""

_LEAST_KERNELS = 8
"""And one of fewer kernels than this is none, beside a replay or a read-back of its own group."""


@dataclass(frozen=True)
class Landmarks:
    """What may end a step. All arrays but `order` are [events] in issue order.

    Attributes:
        order: places of the events in the order (rank, issue).
        place: place of the rank.
        replay: replay of each, -1 outside.
        replay_begins: first event of a replay.
        eager_kernel: kernels outside graphs.
        kernel_ns: length of each kernel, 0 for other events.
        to_device: copies to the device, outside graphs.
        read_back: copies to the host; of a replay that holds one, its last event.
        sampling: the same for kernels that pick tokens.
    """

    order: Ints
    place: npt.NDArray[np.int16]
    replay: Codes
    replay_begins: Flags
    eager_kernel: Flags
    kernel_ns: Ints
    to_device: Flags
    read_back: Flags
    sampling: Flags


@dataclass(frozen=True)
class Segments:
    """The steps between closings.

    Attributes:
        member: int32 [events of the timeline], step or -1.
        place: [steps] place of the rank.
        replay_step: [replays] step of each, -1 for none.
        replay_count: [steps] graph launches of each.
        closes: bool [events in issue order], the closings.
    """

    member: Codes
    place: Ints
    replay_step: Ints
    replay_count: Ints
    closes: Flags

    def __len__(self) -> int:
        return len(self.place)


def landmarks(tl: Timeline) -> Landmarks:
    """The landmarks of a timeline, found once."""
    result: Landmarks = tl.trace.memo("landmarks", lambda: _landmarks(tl, find_replays(tl)))
    return result


def _landmarks(tl: Timeline, replays: Replays) -> Landmarks:
    order = replays.order
    of_event = replays.of_event[order]
    count = len(replays.first)
    begins = np.zeros(len(tl), bool)
    begins[positions(order)[replays.first]] = True
    copies, kinds = tl.copies
    to_device = np.zeros(len(tl), bool)
    to_device[copies[kinds == 1]] = True
    to_host = np.zeros(len(tl), bool)
    to_host[copies[kinds == 2]] = True
    kernel = (tl.kind == KERNEL)[order]
    eager = of_event < 0
    # A replay that reads back itself ends its step at its last node.
    inside = np.flatnonzero(~eager)
    final = np.full(count, -1)
    final[of_event[inside]] = inside
    back_inside = np.zeros(len(tl), bool)
    back_inside[final[replays.to_host]] = True
    picks_inside = np.zeros(len(tl), bool)
    picks_inside[final[replays.samples]] = True
    picks = tl.sampling_names[tl.name[order]] & kernel
    return Landmarks(
        order=order,
        place=tl.rank_place[order],
        replay=of_event,
        replay_begins=begins,
        eager_kernel=kernel & eager,
        kernel_ns=np.where(kernel, (tl.end - tl.start)[order], 0),
        to_device=to_device[order] & eager,
        read_back=(to_host[order] & eager) | back_inside,
        sampling=(picks & eager) | picks_inside,
    )


def positions(order: Ints) -> Ints:
    """Where each event stands in `order`."""
    result = np.empty(len(order), np.int64)
    result[order] = np.arange(len(order))
    return result


def cut_segments(tl: Timeline, marks: Landmarks, closes: Flags, *, through: bool) -> Segments:
    """Steps that end with the last of each group of `closes`.

    Args:
        tl: the timeline.
        marks: its landmarks.
        closes: bool [events in issue order], read-backs or sampling kernels.
        through: whether a group reaches on to the read-back that follows it.
    """
    place, order = marks.place, marks.order
    closing = _last_of_groups(tl, marks, closes)
    if through:
        closing = _through_read_back(marks, closing)
    edges = np.zeros(len(order), bool)
    edges[1:] = closing[:-1] | (place[1:] != place[:-1])
    segment = np.cumsum(edges)
    count = int(segment[-1]) + 1 if len(segment) else 0
    begins = np.flatnonzero(marks.replay_begins)
    replay_count = np.bincount(segment[begins], minlength=count)
    eager = segment[marks.eager_kernel]
    eager_count = np.bincount(eager, minlength=count)
    eager_ns = np.bincount(eager, marks.kernel_ns[marks.eager_kernel], minlength=count)
    all_count = np.bincount(segment[(marks.kernel_ns > 0) | (marks.replay >= 0)], minlength=count)
    all_ns = np.bincount(segment, marks.kernel_ns, minlength=count)
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
    held = in_rank & ~(opening & ~is_step & closed)
    step = np.where(held, step_of, OUTSIDE)
    member = np.full(len(tl), OUTSIDE, np.int32)
    member[order] = step[segment]
    replay_step = np.full(len(begins), OUTSIDE, np.int64)
    replay_step[marks.replay[begins]] = step[segment[begins]]
    return Segments(member, step_place, replay_step, replay_count[is_step], closing)


def _usual_size(sizes: npt.NDArray[np.integer | np.floating]) -> float:
    """The size of the segment that half of everything lies below: small leftovers between closings do not move it."""
    if len(sizes) == 0:
        return 0.0
    ascending = np.sort(sizes).astype(np.float64)
    return float(ascending[np.searchsorted(np.cumsum(ascending), ascending.sum() / 2)])


def _breaks(marks: Landmarks) -> Ints:
    """Running count of what a new step begins with: a replay, or a copy to the device."""
    return np.cumsum(marks.replay_begins | marks.to_device)


def _last_of_groups(tl: Timeline, marks: Landmarks, closes: Flags) -> Flags:
    """The last of each run of `closes` that no replay, no copy to the device and no forward pass interrupts."""
    at = np.flatnonzero(closes)
    result = np.zeros(len(closes), bool)
    if len(at) == 0:
        return result
    breaks, kernels = _breaks(marks), np.cumsum(marks.eager_kernel)
    usual = np.count_nonzero(marks.kernel_ns) / max(len(at), len(tl.ranks), 1)
    least = max(SUBSTANTIAL * usual, _LEAST_KERNELS)
    same = marks.place[at[1:]] == marks.place[at[:-1]]
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
    breaks = _breaks(marks)
    following = np.searchsorted(copies, at)
    target = copies[np.minimum(following, len(copies) - 1)]
    moved = (following < len(copies)) & (marks.place[target] == marks.place[at]) & (breaks[target] == breaks[at])
    result[np.where(moved, target, at)] = True
    return result
