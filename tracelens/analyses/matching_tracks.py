"""A rank's collectives as a sequence of ends, and how two such sequences lie to each other."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tracelens.analyses.blocks import blocks
from tracelens.analyses.clock import Clock, Floats, Ints, median

CLIP_NS = 20_000.0
"""An end further away than this is as wrong as can be; it must not outvote the rest."""

MATCH_LIMIT_NS = 5_000.0
"""Ranks that leave together do so within this on average; what scores above it never met."""

APART_NS = 500.0
"""Ends that scatter by less than this are together, whatever the starts do."""

CONVINCING_FACTOR, CONVINCING_NS = 3.0, 200.0
"""A mean deviation up to 3 medians + 200 ns is scatter; step edges that do not fit push it beyond."""

MARGIN_FACTOR = 2.0
"""The best offset must score at most 1/2 of the next one ..."""

DISTINCT_NS = 5_000.0
"""... whose offset differs by more than this."""

INSTANCE_MINIMUM = 30
"""Instances that an offset needs: fewer can be aligned by chance."""

WINDOW_EXPORT_NS = 100_000
WINDOW_BOOT_NS = 1_000_000
WINDOW_ELSE_NS = 1_000_000_000

KEY_SPAN = np.int64(1 << 44)  # ns between the time axes of two keys: 4.8 hours
BLOCK = 1 << 14  # ends looked up at once: their arrays fit the cache of a core
_PROBES = 9  # of these, searched to guess how far the rest of a block lies apart on the two axes


@dataclass(frozen=True)
class Track:
    """One rank's collectives that may belong to one communicator, in the order of their ends.

    Attributes:
        end: int64 ns, ascending, on any epoch; the end of the kernel at which all ranks leave together.
        key: one small number (below 2^19) per (operation, implementation, launch shape), equal on all ranks.
        duration: ns, how long before its end each began.
        family: tracks of different families are never compared: payload communicator, operation, implementation.
    """

    end: Ints
    key: npt.NDArray[np.integer]
    duration: npt.NDArray[np.integer]
    family: Hashable = None

    def __len__(self) -> int:
        return len(self.end)

    @cached_property
    def axis(self) -> Axis:
        """The same sequence, ready for look-ups."""
        return Axis(self)

    @cached_property
    def limit_ns(self) -> float:
        """Half of what ends score by chance, at most 5 us: a partner's that score more do not end together with these."""
        if len(self.end) < 2:
            return MATCH_LIMIT_NS
        return min(MATCH_LIMIT_NS, float(np.minimum(np.diff(self.end) / 4, CLIP_NS).mean()) / 2)

    def forget(self) -> None:
        """Give back the memory of `axis`."""
        self.__dict__.pop("axis", None)


class Axis:
    """A track counted from its first end, to look nearest ends up in: one sorted axis for all keys.

    Attributes:
        origin: int ns, the first end.
        key: as in the track.
        time: float64 ns, ends counted from the origin.
    """

    def __init__(self, track: Track) -> None:
        """Sort once; look-ups are guesses from neighbours, else binary searches."""
        self.origin = int(track.end[0])
        self.key = track.key
        self._duration = track.duration
        axis = track.end - self.origin
        self.time: Floats = axis.astype(np.float64)
        axis += track.key * KEY_SPAN
        self._order: Ints | None = None
        if not bool(np.all(axis[1:] >= axis[:-1])):
            self._order = np.argsort(axis, kind="stable")
            axis = axis[self._order]
        self._axis = axis

    def start(self, index: Ints) -> Floats:
        """Starts of some, float64 ns counted from the origin."""
        return self.time[index] - self._duration[index]

    def nearest(self, key: npt.NDArray[np.integer], time: Floats) -> tuple[Ints, Floats]:
        """For each query the index of the nearest end of the same key, and that end minus the query, in ns.

        Args:
            key: of the queries.
            time: float64 ns counted from this axis's origin.
        """
        index, deviation = search_nearest(self._axis, key * KEY_SPAN + np.rint(time).astype(np.int64))
        if self._order is not None:
            index = self._order[index]
        return index, deviation.astype(np.float64)

    @cached_property
    def _reach(self) -> Ints:
        return reach_of(self._axis)

    def clipped_deviations(self, source: Axis, clock: Clock) -> Floats:
        """Distance from each end of `source` to the nearest end of the same key here, at most 20 us.

        Args:
            source: the other track.
            clock: what to add to its times to find them here.

        Returns:
            float64 ns in the order of the source, without what lies outside the common time range.
        """
        count = len(source.time)
        time, key = source.time, source.key
        if source._order is not None:
            time, key = time[source._order], key[source._order]
        off = np.empty(count, dtype=np.float64)
        common = np.ones(count, dtype=bool)
        low, high = self.time[0] - CLIP_NS, self.time[-1] + CLIP_NS
        for part in blocks(0, count, BLOCK):
            own = time[part]
            moved = clock.difference(own)
            moved += own
            if moved.min() < low or moved.max() > high:
                common[part] = (moved >= low) & (moved <= high)
            query = np.rint(moved, out=moved).astype(np.int64)
            query += key[part] * KEY_SPAN
            np.minimum(nearest_distance(self._axis, self._reach, query), CLIP_NS, out=off[part])
        if source._order is not None:
            in_time = np.empty(count, dtype=np.int64)
            in_time[source._order] = np.arange(count)
            off, common = off[in_time], common[in_time]
        return off if bool(common.all()) else off[common]


def search_nearest(axis: Ints, query: Ints) -> tuple[Ints, Ints]:
    """Index of the entry of a sorted axis nearest to each query (of two the earlier), and that entry minus the query."""
    after = np.searchsorted(axis, query)
    before = np.maximum(after - 1, 0)
    np.minimum(after, len(axis) - 1, out=after)
    up = axis[after] - query
    down = query - axis[before]
    later = np.abs(up) < np.abs(down)
    return np.where(later, after, before), np.where(later, up, -down)


def reach_of(axis: Ints) -> Ints:
    """Per entry of a sorted axis: half the distance to its neighbours. No other is nearer to what is less far away."""
    apart = np.diff(axis)
    far = np.full(1, np.iinfo(np.int64).max >> 1)
    return np.asarray((np.minimum(np.concatenate((far, apart)), np.concatenate((apart, far))) + 1) >> 1)


def guess_nearest(axis: Ints, reach: Ints, query: Ints) -> tuple[Ints, Ints]:
    """`search_nearest` for ascending queries that run along the axis, with distances instead of differences.

    The k-th query mostly belongs to the (k+n)-th entry: the guess stands where it lies within the entry's reach, and
    the axis is searched only where it does not.
    """
    ahead, distance, rest = _guessed(axis, reach, query)
    index = np.arange(ahead, ahead + len(query))
    if len(rest):
        index[rest], apart = search_nearest(axis, query[rest])
        distance[rest] = np.abs(apart)
    return index, distance


def nearest_distance(axis: Ints, reach: Ints, query: Ints) -> Ints:
    """The distances of `guess_nearest`."""
    _, distance, rest = _guessed(axis, reach, query)
    if len(rest):
        distance[rest] = np.abs(search_nearest(axis, query[rest])[1])
    return distance


def _guessed(axis: Ints, reach: Ints, query: Ints) -> tuple[int, Ints, Ints]:
    """How many entries ahead the queries' own lie, the distances to those, and the queries for which that fails."""
    probes = thin(0, len(query), _PROBES)
    ahead = int(median((search_nearest(axis, query[probes])[0] - probes).astype(np.float64)))
    first = min(max(0, -ahead), len(query))
    last = max(first, min(len(query), len(axis) - ahead))
    guessed = slice(first + ahead, last + ahead)
    distance = np.empty(len(query), dtype=np.int64)
    np.subtract(axis[guessed], query[first:last], out=distance[first:last])
    np.abs(distance[first:last], out=distance[first:last])
    unsure = np.ones(len(query), dtype=bool)
    np.greater_equal(distance[first:last], reach[guessed], out=unsure[first:last])
    return ahead, distance, np.flatnonzero(unsure)


def thin(begin: int, end: int, count: int) -> Ints:
    """Ascending indices of about `count` instances of [begin, end), spread so that no period is favoured."""
    if end - begin <= count:
        return np.arange(begin, end)
    # One of each stretch, at a place that moves by the golden ratio.
    within = (np.arange(count) * 0.6180339887498949) % 1.0
    return begin + ((np.arange(count) + within) * ((end - begin) / count)).astype(np.int64)


@dataclass(frozen=True)
class Apart:
    """How another track lies to a base track, at some of the base's instances, ns on the base's time.

    Attributes:
        place: int64, which instances of the base.
        end: nearest end of the other minus the base's end.
        start: that operation's start minus the base's start.
        begun: that operation's start minus the base's end.
        near: whether the two ends lie within 20 us of each other, inside what both tracks cover.
    """

    place: Ints
    end: Floats
    start: Floats
    begun: Floats
    near: npt.NDArray[np.bool_]


def apart(base: Track, other: Track, clock: Clock, count: int) -> Apart:
    """Pair about `count` instances of `base` with the nearest ends of `other`, whose clock against base's is given."""
    source, target = base.axis, other.axis
    place = thin(0, len(base), count)
    time = source.time[place]
    moved = onto(source, target, clock)
    there = time + moved.difference(time)
    index, end = target.nearest(source.key[place], there)
    there_start = target.start(index) - moved.difference(time)
    common = (there >= target.time[0] - MATCH_LIMIT_NS) & (there <= target.time[-1] + MATCH_LIMIT_NS)
    near = common & (np.abs(end) < CLIP_NS)
    return Apart(place, end, there_start - source.start(place), there_start - time, near)


def onto(source: Axis, target: Axis, clock: Clock) -> Clock:
    """What to add to a time of `source` to find it on `target`, from the target's clock against the source's."""
    # `clock` runs on raw own time of the target; raw target = raw source - inverted(raw source).
    back = clock.inverted()
    shift = source.origin - target.origin
    return Clock(back.t0 - source.origin, back.valid_from - source.origin, shift - back.offset, -back.drift)
