"""Instances: the members' collectives that are one operation, found once all clocks are known to microseconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tracelens.analyses.blocks import blocks, each
from tracelens.analyses.clock import Floats, Ints
from tracelens.analyses.matching_tracks import BLOCK, CLIP_NS, KEY_SPAN, guess_nearest, reach_of, search_nearest
from tracelens.array_room import ArrayRoom

Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Instances:
    """The operations of one communicator in the order of their ends.

    Attributes:
        row: int32 [instances, members], the caller's row of each member's part in it; -1 where it has none. The rows
            of one member follow each other in memory.
    """

    row: Rows

    @cached_property
    def complete(self) -> Bools:
        """Which instances every member takes part in."""
        result = np.ones(len(self.row), dtype=bool)
        for of_member in self.row.T:
            result &= of_member >= 0
        return result


@dataclass(frozen=True)
class Member:
    """One member's collectives of a communicator, in the order of its parts.

    Attributes:
        end: float64 ns, aligned ends; `pair_instances` writes its own numbers over them.
        key: small numbers.
        row: int32, the caller's rows.
    """

    end: Floats
    key: npt.NDArray[np.integer]
    row: Rows


def pair_instances(members: Sequence[Member], room: ArrayRoom, threads: int) -> Instances:
    """Pair the members' collectives by mutually nearest aligned end of the same key, at most 20 us apart.

    Args:
        members: what each holds.
        room: for what has an element for each of them.
        threads: how many threads may work at once.

    Returns:
        Every collective in exactly one instance; what only some members hold keeps a row with gaps.
    """
    origin = min(float(member.end.min()) for member in members)
    used = np.zeros(max(int(member.key.max()) for member in members) + 1, dtype=bool)
    for member in members:
        used[member.key] = True
    code = np.cumsum(used) - 1
    axes, ordered = zip(*each(lambda member: _by_key(member, code, origin), members, threads), strict=True)
    # The longest member is the timeline; what others have beyond it is added, so a loss in one costs no instance.
    order = sorted(range(len(members)), key=lambda m: (-len(axes[m]), m))
    timeline = axes[order[0]]
    reach = reach_of(timeline)
    columns: dict[int, Rows | None] = {order[0]: None}  # None: the first so many of the timeline, one by one
    for number in order[1:]:
        entry, mutual = _partners(timeline, reach, axes[number], threads)
        if not bool(mutual.all()):
            extra = np.flatnonzero(~mutual)
            merged = np.concatenate((timeline, axes[number][extra]))
            place = np.argsort(merged, kind="stable")
            now_at = np.empty(len(merged), dtype=np.int32)
            now_at[place] = np.arange(len(merged), dtype=np.int32)
            entry[extra] = len(timeline) + np.arange(len(extra), dtype=np.int32)
            columns = {m: now_at[: len(axes[m])] if c is None else now_at[c] for m, c in columns.items()}
            entry = now_at[entry]
            timeline = merged[place]
            reach = reach_of(timeline)
        one_by_one = len(entry) > 0 and entry[0] == 0 and bool((entry[1:] - entry[:-1] == 1).all())
        columns[number] = None if one_by_one else entry
    # Back from (key, time) to time alone; ties keep the order of keys.
    time = timeline % KEY_SPAN
    position: Rows | None = None
    if not bool((time[1:] >= time[:-1]).all()):
        sequence = np.argsort(time, kind="stable")
        position = np.empty(len(timeline), dtype=np.int32)
        position[sequence] = np.arange(len(timeline), dtype=np.int32)
    row: Rows = room.empty(len(members) * len(timeline), np.int32).reshape(len(members), len(timeline))

    def fill(number: int) -> None:
        found = columns[number]
        at: Rows | slice = slice(0, len(axes[number])) if found is None else found
        row[number] = -1
        row[number, at if position is None else position[at]] = ordered[number]

    deque(each(fill, range(len(members)), threads), 0)
    return Instances(row.T)


def _by_key(member: Member, code: Ints, origin: float) -> tuple[Ints, Rows]:
    """A member's ends on one axis for all keys, in the memory where they were, and its rows in that order."""
    axis = member.end.view(np.int64)
    for part in blocks(0, len(axis), BLOCK):
        time = member.end[part] - origin
        own = code[member.key[part]] * KEY_SPAN
        own += np.rint(time, out=time).astype(np.int64)
        axis[part] = own
    if bool((axis[1:] >= axis[:-1]).all()):
        return axis, member.row
    by_time = np.argsort(axis, kind="stable")
    axis[:] = axis[by_time]
    return axis, member.row[by_time]


def _partners(timeline: Ints, reach: Ints, axis: Ints, threads: int) -> tuple[Rows, Bools]:
    """For each entry of a member's axis the nearest of the timeline, and whether each is the other's nearest."""
    entry = np.empty(len(axis), dtype=np.int32)
    mutual = np.empty(len(axis), dtype=bool)

    def fill(part: slice) -> None:
        entry[part], distance = guess_nearest(timeline, reach, axis[part])
        around = slice(max(part.start - 1, 0), part.stop + 1)
        own_reach = reach_of(axis[around])[part.start - around.start :][: len(distance)]
        mutual[part] = distance < own_reach
        unsure = np.flatnonzero(~mutual[part])
        if len(unsure):
            back, _ = search_nearest(axis, timeline[entry[part][unsure]])
            mutual[part.start + unsure] = back == part.start + unsure
        mutual[part] &= distance <= CLIP_NS

    deque(each(fill, blocks(0, len(axis), BLOCK), threads), 0)
    return entry, mutual
