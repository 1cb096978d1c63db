"""Instances: the members' collectives that are one operation, found once all clocks are known to microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.analyses.blocks import blocks
from tracelens.analyses.clock import Floats, Ints
from tracelens.analyses.matching_tracks import BLOCK, CLIP_NS, KEY_SPAN, guess_nearest, reach_of, search_nearest

Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Instances:
    """The operations of one communicator in the order of their ends.

    Attributes:
        row: int32 [instances, members], the caller's row of each member's part in it; -1 where it has none.
    """

    row: Rows

    @property
    def complete(self) -> Bools:
        """Which instances every member takes part in."""
        return np.asarray((self.row >= 0).all(axis=1))


def pair_instances(ends: Sequence[Floats], keys: Sequence[Ints], rows: Sequence[Rows]) -> Instances:
    """Pair the members' collectives by mutually nearest aligned end of the same key, at most 20 us apart.

    Args:
        ends: per member, aligned ends in ns (any order).
        keys: per member, the key of each, small numbers.
        rows: per member, the caller's row numbers.

    Returns:
        Every collective in exactly one instance; what only some members hold keeps a row with gaps.
    """
    origin = min(float(e.min()) for e in ends)
    used = np.zeros(max(int(key.max()) for key in keys) + 1, dtype=bool)
    for key in keys:
        used[key] = True
    code = np.cumsum(used) - 1
    axes: list[Ints] = []
    ordered: list[Rows] = []
    for end, key, row in zip(ends, keys, rows, strict=True):
        axis = code[key] * KEY_SPAN + np.rint(end - origin).astype(np.int64)
        if bool((axis[1:] >= axis[:-1]).all()):
            by_time: Ints | slice = slice(None)
        else:
            by_time = np.argsort(axis, kind="stable")
        axes.append(axis[by_time])
        ordered.append(row[by_time])
    # The longest member is the timeline; what others have beyond it is added, so a loss in one costs no instance.
    order = sorted(range(len(ends)), key=lambda m: (-len(ends[m]), m))
    timeline = axes[order[0]]
    reach = reach_of(timeline)
    columns: dict[int, Ints | None] = {order[0]: None}  # None: the first so many of the timeline, one by one
    for member in order[1:]:
        entry, mutual = _partners(timeline, reach, axes[member])
        if not bool(mutual.all()):
            extra = np.flatnonzero(~mutual)
            merged = np.concatenate((timeline, axes[member][extra]))
            place = np.argsort(merged, kind="stable")
            now_at = np.empty(len(merged), dtype=np.int64)
            now_at[place] = np.arange(len(merged))
            entry[extra] = len(timeline) + np.arange(len(extra))
            columns = {m: now_at[: len(axes[m])] if c is None else now_at[c] for m, c in columns.items()}
            entry = now_at[entry]
            timeline = merged[place]
            reach = reach_of(timeline)
        one_by_one = len(entry) > 0 and entry[0] == 0 and bool((entry[1:] - entry[:-1] == 1).all())
        columns[member] = None if one_by_one else entry
    # Back from (key, time) to time alone; ties keep the order of keys.
    time = timeline % KEY_SPAN
    position: Ints | None = None
    if not bool((time[1:] >= time[:-1]).all()):
        sequence = np.argsort(time, kind="stable")
        position = np.empty(len(timeline), dtype=np.int64)
        position[sequence] = np.arange(len(timeline))
    row = np.full((len(timeline), len(ends)), -1, dtype=np.int32)
    for member, found in columns.items():
        at: Ints | slice = slice(0, len(axes[member])) if found is None else found
        row[at if position is None else position[at], member] = ordered[member]
    return Instances(row)


def _partners(timeline: Ints, reach: Ints, axis: Ints) -> tuple[Ints, Bools]:
    """For each entry of a member's axis the nearest of the timeline, and whether each is the other's nearest."""
    own_reach = reach_of(axis)
    entry = np.empty(len(axis), dtype=np.int64)
    mutual = np.empty(len(axis), dtype=bool)
    for part in blocks(0, len(axis), BLOCK):
        entry[part], distance = guess_nearest(timeline, reach, axis[part])
        mutual[part] = distance < own_reach[part]
        unsure = np.flatnonzero(~mutual[part])
        if len(unsure):
            back, _ = search_nearest(axis, timeline[entry[part][unsure]])
            mutual[part.start + unsure] = back == part.start + unsure
        mutual[part] &= distance <= CLIP_NS
    return entry, mutual
