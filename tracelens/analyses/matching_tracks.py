"""A rank's collectives as a sequence of ends, and how two such sequences lie to each other."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.analyses.clock import Clock, Floats, Ints

CLIP_NS = 20_000.0
"""An end further away than this is as wrong as can be; it must not outvote the rest."""

MATCH_LIMIT_NS = 5_000.0
"""Ranks that leave together do so within this on average; what scores above it never met."""

APART_NS = 500.0
"""Ends that scatter by less than this are together, whatever the starts do."""

MARGIN_FACTOR = 2.0
"""The best offset must score at most 1/2 of the next one ..."""

DISTINCT_NS = 5_000.0
"""... whose offset differs by more than this."""

INSTANCE_MINIMUM = 30
"""Instances that an offset needs: fewer can be aligned by chance."""

WINDOW_EXPORT_NS = 100_000
WINDOW_BOOT_NS = 1_000_000
WINDOW_ELSE_NS = 1_000_000_000

KEY_SPAN = 1 << 44  # ns between the time axes of two keys: 4.8 hours


@dataclass(frozen=True)
class Track:
    """One rank's collectives that may belong to one communicator, in the order of their ends.

    Attributes:
        end: int64 ns, ascending, on any epoch; the end of the kernel at which all ranks leave together.
        key: int64, one number per (operation, implementation, launch shape), equal on all ranks.
        start: int64 ns, the start of each.
        family: tracks of different families are never compared: payload communicator, operation, implementation.
    """

    end: Ints
    key: Ints
    start: Ints
    family: Hashable = None

    def __len__(self) -> int:
        return len(self.end)


class Target:
    """A track to look nearest ends up in: one sorted axis for all keys."""

    def __init__(self, track: Track, origin: int, keys: Ints) -> None:
        self.code = np.searchsorted(keys, track.key).astype(np.int64)
        self.time: Floats = (track.end - origin).astype(np.float64)
        self.start: Floats = (track.start - origin).astype(np.float64)
        axis = self.code * KEY_SPAN + (track.end - origin)
        self.order = np.argsort(axis, kind="stable")
        self.axis = axis[self.order]

    def nearest(self, code: Ints, time: Floats) -> tuple[Ints, Floats]:
        """For each query the index of the nearest end of the same key, and that end minus the query, in ns."""
        query = code * KEY_SPAN + np.rint(time).astype(np.int64)
        after = np.searchsorted(self.axis, query)
        before = np.maximum(after - 1, 0)
        after = np.minimum(after, len(self.axis) - 1)
        up = self.axis[after] - query
        down = query - self.axis[before]
        later = np.abs(up) < np.abs(down)
        index = self.order[np.where(later, after, before)]
        return index, np.where(later, up, -down).astype(np.float64)


def thin(begin: int, end: int, count: int) -> Ints:
    """Ascending indices of about `count` instances of [begin, end), spread so that no period is favoured."""
    if end - begin <= count:
        return np.arange(begin, end)
    golden = (np.arange(count) * 0.6180339887498949) % 1.0
    return np.unique(begin + (golden * (end - begin)).astype(np.int64))


@dataclass(frozen=True)
class Apart:
    """How another track lies to a base track, at some of the base's instances, ns on the base's time.

    Attributes:
        place: int64, which instances of the base.
        end: nearest end of the other minus the base's end.
        start: that operation's start minus the base's start.
        begun: that operation's start minus the base's end.
        near: whether the two ends lie within 20 us of each other.
    """

    place: Ints
    end: Floats
    start: Floats
    begun: Floats
    near: npt.NDArray[np.bool_]


def apart(base: Track, other: Track, clock: Clock, count: int) -> Apart:
    """Pair about `count` instances of `base` with the nearest ends of `other`, whose clock against base's is given."""
    origin = int(base.end[0])
    keys = np.union1d(base.key, other.key)
    moved = np.rint(clock.difference(other.end.astype(np.float64))).astype(np.int64)
    source = Target(base, origin, keys)
    target = Target(Track(other.end - moved, other.key, other.start - moved), origin, keys)
    place = thin(0, len(base), count)
    index, end = target.nearest(source.code[place], source.time[place])
    start = target.start[index] - source.start[place]
    return Apart(place, end, start, target.start[index] - source.time[place], np.abs(end) < CLIP_NS)
