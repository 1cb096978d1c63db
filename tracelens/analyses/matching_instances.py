"""Instances: the members' collectives that are one operation, found once all clocks are known to microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.analyses.clock import Floats, Ints
from tracelens.analyses.matching_tracks import CLIP_NS

Bools = npt.NDArray[np.bool_]

_KEY_SPAN = 1 << 44


@dataclass(frozen=True)
class Instances:
    """The operations of one communicator in the order of their ends.

    Attributes:
        row: int64 [instances, members], the caller's row of each member's part in it; -1 where it has none.
        key: int64 [instances], what it is.
    """

    row: Ints
    key: Ints

    @property
    def complete(self) -> Bools:
        """Which instances every member takes part in."""
        return np.asarray((self.row >= 0).all(axis=1))


def pair_instances(ends: Sequence[Floats], keys: Sequence[Ints], rows: Sequence[Ints]) -> Instances:
    """Pair the members' collectives by mutually nearest aligned end of the same key, at most 20 us apart.

    Args:
        ends: per member, aligned ends in ns (any order).
        keys: per member, the key of each.
        rows: per member, the caller's row numbers.

    Returns:
        Every collective in exactly one instance; what only some members hold keeps a row with gaps.
    """
    origin = min(float(e.min()) for e in ends)
    names, codes = np.unique(np.concatenate(keys), return_inverse=True)
    cuts = np.cumsum([len(k) for k in keys])[:-1]
    axes = [
        code.astype(np.int64) * _KEY_SPAN + np.rint(end - origin).astype(np.int64)
        for code, end in zip(np.split(codes, cuts), ends, strict=True)
    ]
    # The longest member is the timeline; what others have beyond it is added, so a loss in one costs no instance.
    order = sorted(range(len(ends)), key=lambda m: (-len(ends[m]), m))
    by_time = [np.argsort(axis, kind="stable") for axis in axes]
    timeline = axes[order[0]][by_time[order[0]]]
    columns: dict[int, Ints] = {order[0]: np.arange(len(timeline))}
    for member in order[1:]:
        axis = axes[member][by_time[member]]
        forward, distance = _nearest(timeline, axis)
        backward, _ = _nearest(axis, timeline)
        mutual = (distance <= CLIP_NS) & (backward[forward] == np.arange(len(axis)))
        entry = np.where(mutual, forward, -1)
        extra = np.flatnonzero(~mutual)
        if len(extra):
            merged = np.concatenate((timeline, axis[extra]))
            place = np.argsort(merged, kind="stable")
            now_at = np.empty(len(merged), dtype=np.int64)
            now_at[place] = np.arange(len(merged))
            entry[extra] = len(timeline) + np.arange(len(extra))
            columns = {m: now_at[c] for m, c in columns.items()}
            entry = now_at[entry]
            timeline = merged[place]
        columns[member] = entry
    # Back from (key, time) to time alone; ties keep the order of keys.
    sequence = np.argsort(timeline % _KEY_SPAN, kind="stable")
    position = np.empty(len(timeline), dtype=np.int64)
    position[sequence] = np.arange(len(timeline))
    row = np.full((len(timeline), len(ends)), -1, dtype=np.int64)
    for member, entry in columns.items():
        row[position[entry], member] = rows[member][by_time[member]]
    return Instances(row, names[(timeline // _KEY_SPAN)[sequence]])


def _nearest(axis: Ints, query: Ints) -> tuple[Ints, Ints]:
    """Index of the nearest entry of a sorted axis, and its distance, for each query."""
    after = np.searchsorted(axis, query)
    before = np.maximum(after - 1, 0)
    after = np.minimum(after, len(axis) - 1)
    up, down = np.abs(axis[after] - query), np.abs(query - axis[before])
    # Ties go to the earlier one, on both sides alike.
    later = up < down
    return np.where(later, after, before), np.where(later, up, down)
