"""Union, complement and difference of intervals on one sorted axis.

Every length that an analysis adds up is a length of disjoint pieces: summing the events themselves would count
overlapping work twice. `Coverage` holds such pieces with their running total, so that the covered part of any window
is two look-ups, whatever the number of events in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Coverage:
    """Disjoint, ascending, half-open pieces [start, end) with the length covered before each.

    Attributes:
        starts: int64 ns [pieces].
        ends: int64 ns [pieces], each after its start and before the next start.
        before: int64 ns [pieces + 1], covered length before piece i; the last is the total.
    """

    starts: Ints
    ends: Ints
    before: Ints

    @classmethod
    def of_pieces(cls, starts: Ints, ends: Ints) -> Coverage:
        """From pieces that are disjoint and ascending already."""
        before = np.zeros(len(starts) + 1, dtype=np.int64)
        np.cumsum(ends - starts, out=before[1:])
        return cls(starts, ends, before)

    @classmethod
    def of_events(cls, starts: Ints, ends: Ints) -> Coverage:
        """The union of intervals sorted by start; empty ones take no time, touching ones become one piece."""
        if not bool(np.all(ends > starts)):
            real = ends > starts
            starts, ends = starts[real], ends[real]
        if len(starts) == 0:
            return cls.of_pieces(np.empty(0, np.int64), np.empty(0, np.int64))
        reached = np.maximum.accumulate(ends)
        opens = np.flatnonzero(starts[1:] > reached[:-1]) + 1
        firsts = np.concatenate([np.zeros(1, np.int64), opens])
        lasts = np.concatenate([opens - 1, np.array([len(starts) - 1])])
        return cls.of_pieces(starts[firsts], reached[lasts])

    @property
    def total_ns(self) -> int:
        """Length of all pieces together."""
        return int(self.before[-1])

    def upto(self, times: Ints) -> Ints:
        """Covered length before each of `times`."""
        if len(self.starts) == 0:
            return np.zeros(len(times), np.int64)
        begun = np.searchsorted(self.starts, times, side="right")
        beyond = np.maximum(self.ends[np.maximum(begun - 1, 0)] - times, 0)
        result: Ints = self.before[begun] - np.where(begun > 0, beyond, 0)
        return result

    def within(self, starts: Ints, ends: Ints) -> Ints:
        """Covered length in each window [start, end)."""
        return self.upto(ends) - self.upto(starts)

    def without(self, other: Coverage) -> Coverage:
        """The part of these pieces that `other` does not cover."""
        if len(self.starts) == 0 or len(other.starts) == 0:
            return self
        # Only the other's pieces that meet one of ours matter: they may be few among millions.
        place = np.searchsorted(self.ends, other.starts, side="right")
        meets = (place < len(self.starts)) & (self.starts[np.minimum(place, len(self.starts) - 1)] < other.ends)
        cut_starts, cut_ends = other.starts[meets], other.ends[meets]
        if len(cut_starts) == 0:
            return self
        times = np.concatenate([self.starts, self.ends, cut_starts, cut_ends])
        inside = np.concatenate(
            [
                np.ones(len(self.starts), np.int8),
                np.full(len(self.ends), -1, np.int8),
                np.zeros(2 * len(cut_starts), np.int8),
            ]
        )
        cut = np.concatenate(
            [
                np.zeros(2 * len(self.starts), np.int8),
                np.ones(len(cut_starts), np.int8),
                np.full(len(cut_starts), -1, np.int8),
            ]
        )
        order = np.argsort(times, kind="stable")
        times = times[order]
        open_here = (np.cumsum(inside[order], dtype=np.int32) > 0) & (np.cumsum(cut[order], dtype=np.int32) == 0)
        kept = open_here[:-1] & (times[1:] > times[:-1])
        return Coverage.of_events(times[:-1][kept], times[1:][kept])
