"""One joint fit of all clocks of a connected set, and what the ends that it rests on say about its error."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from tracelens.analyses.blocks import blocks, each
from tracelens.analyses.clock import Clock, Floats, Ints, fit_clock, median_of
from tracelens.analyses.clock_order import middles, put_in_order
from tracelens.analyses.matching_instances import Bools
from tracelens.analyses.matching_tracks import CLIP_NS, INSTANCE_MINIMUM, thin
from tracelens.array_room import ArrayRoom

ACCEPT_NS = 5_000.0
"""Ends of one instance agree within this, or within 10 residuals where the residual is large."""

_FIRST_PASS = 4_000
_BLOCK_READINGS, _BLOCK_LEAST = 1 << 16, 1 << 11
_ROUNDS = 12
_SETTLED_NS = 0.5


@dataclass(frozen=True)
class Readings:
    """The complete instances of one communicator, own times rebased per clock, in ns.

    Attributes:
        members: [members], index of each member's clock.
        start, end, leave: float64 [members, instances]: own start, own end, and the end of the kernel at which all
            leave together.
        group: [instances], one number per (operation, implementation).
    """

    members: Ints
    start: Floats
    end: Floats
    leave: Floats
    group: npt.NDArray[np.integer]

    @property
    def count(self) -> int:
        """Number of instances."""
        return int(self.leave.shape[1])

    def of(self, chosen: Bools | Ints | slice) -> Readings:
        """Some of the instances."""
        return Readings(
            self.members, self.start[:, chosen], self.end[:, chosen], self.leave[:, chosen], self.group[chosen]
        )

    def blocks(self) -> Iterator[slice]:
        """Consecutive instances, as many as the cache of a core holds."""
        return self.shares(self.count)

    def shares(self, count: int) -> Iterator[slice]:
        """The same of so many instances."""
        return blocks(0, count, max(_BLOCK_LEAST, _BLOCK_READINGS // max(len(self.members), 1)))


@dataclass(frozen=True)
class JointFit:
    """The clocks of a set, fitted together.

    Attributes:
        clocks: per clock of the set, its difference to the reference; clocks of no accepted instance are unchanged.
        accepted: per communicator, which instances carry the fit.
        residual_ns: 95th percentile of |end - the median of the other members' ends|, over ranks and instances.
        asymmetry_ns: largest difference, over ranks, between the mean end deviations of two groups of 30 instances
            or more, less 3 standard errors, not below 0; null with one such group.
        counts: accepted instances per clock.
        typical_ns: median of the same deviations; a residual far above it means that some pairs are wrong.
    """

    clocks: list[Clock]
    accepted: list[Bools]
    residual_ns: float | None
    asymmetry_ns: float | None
    counts: Ints
    typical_ns: float | None = None

    @property
    def doubtful(self) -> bool:
        """Whether the ends deviate as no scatter does: as if part of the instances were paired wrongly."""
        return (self.residual_ns or 0.0) > 6.0 * (self.typical_ns or 0.0) + 500.0

    @property
    def resolution_ns(self) -> float:
        """residual + asymmetry; what is null counts as 0."""
        return (self.residual_ns or 0.0) + (self.asymmetry_ns or 0.0)


def aligned(time: Floats, members: Ints, clocks: Sequence[Clock]) -> Floats:
    """Own times [members, instances] on the reference's clock."""
    own = [clocks[member] for member in members]
    if all(len(clock.offset) == 1 for clock in own):
        t0 = np.array([[clock.t0] for clock in own])
        offset, drift = np.array([clock.offset for clock in own]), np.array([clock.drift for clock in own])
        difference = time - t0
        difference *= drift
        difference += offset
    else:
        difference = np.stack([clock.difference(row) for clock, row in zip(own, time, strict=True)])
    return np.asarray(np.subtract(time, difference, out=difference))


def accept(
    readings: Readings, clocks: Sequence[Clock], arrival_slack: float, spread_limit: float, threads: int
) -> tuple[Bools, Bools]:
    """Which instances are one barrier: (last arrival before every end, ends together)."""
    causal, together = np.empty(readings.count, dtype=bool), np.empty(readings.count, dtype=bool)

    def judge(part: slice) -> None:
        some = readings.of(part)
        arrival = aligned(some.start, some.members, clocks)
        last = arrival.max(axis=0)
        leave = aligned(some.leave, some.members, clocks)
        arrival += some.end - some.start
        causal[part] = last <= arrival.min(axis=0) + arrival_slack
        together[part] = leave.max(axis=0) - leave.min(axis=0) <= spread_limit

    deque(each(judge, readings.blocks(), threads), 0)
    return causal, together


def fit_set(
    communicators: Sequence[Readings], clocks: Sequence[Clock], reference: int, room: ArrayRoom, threads: int
) -> JointFit:
    """Fit all clocks of one connected set to the ends of its instances.

    Args:
        communicators: their complete instances.
        clocks: first clocks from the matching, good to a microsecond but for instances around a clock step.
        reference: the clock whose offset and drift are 0.
        room: for what has an element for each reading.
        threads: how many threads may work at once.

    Returns:
        The fit after two passes: instances whose last arrival precedes every end and whose ends agree within 5 us,
        then within the figures of the first pass.
    """
    current = list(clocks)
    # A step of a clock is located among all that pairs at all: near it, the first clocks may be wrong by the step.
    few = [_thinned(r) for r in communicators]
    masks = [_within(r, current, CLIP_NS) for r in few]
    current = _settle(few, current, masks, reference, rounds=2, threads=1)
    masks = [_both(accept(r, current, ACCEPT_NS, ACCEPT_NS, 1)) for r in few]
    current = _settle(few, current, masks, reference, rounds=_ROUNDS, threads=1)
    residual, asymmetry, _ = _deviations(few, current, masks, room, 1)
    slack = (residual or 0.0) + (asymmetry or 0.0)
    spread = max(ACCEPT_NS, 10 * (residual or 0.0))
    masks = [_both(accept(r, current, slack, spread, threads)) for r in communicators]
    current = _settle(communicators, current, masks, reference, rounds=_ROUNDS, threads=threads)
    residual, asymmetry, typical = _deviations(communicators, current, masks, room, threads)
    counts = np.zeros(len(clocks), dtype=np.int64)
    for readings, mask in zip(communicators, masks, strict=True):
        counts[readings.members] += int(mask.sum())
    return JointFit(current, masks, residual, asymmetry, counts, typical)


def _thinned(readings: Readings) -> Readings:
    """At most some thousand of the instances: enough for the first pass."""
    return readings.of(thin(0, readings.count, _FIRST_PASS))


def _both(pair: tuple[Bools, Bools]) -> Bools:
    return np.asarray(pair[0] & pair[1])


def _within(readings: Readings, clocks: Sequence[Clock], limit: float) -> Bools:
    leave = aligned(readings.leave, readings.members, clocks)
    return np.asarray(leave.max(axis=0) - leave.min(axis=0) <= limit)


def _settle(
    communicators: Sequence[Readings],
    clocks: list[Clock],
    masks: Sequence[Bools],
    reference: int,
    *,
    rounds: int,
    threads: int,
) -> list[Clock]:
    """Refit every clock to the instances' middles until nothing moves; the reference stays where it is."""
    current = list(clocks)
    chosen = [
        (r, slice(None) if m.all() else np.flatnonzero(m)) for r, m in zip(communicators, masks, strict=True) if m.any()
    ]
    read: list[list[tuple[int, int]]] = [[] for _ in clocks]  # per clock its communicators, and its column there
    for number, (readings, _) in enumerate(chosen):
        for column, member in enumerate(readings.members):
            read[member].append((number, column))

    def time_of(member: int) -> Floats:
        return _joined([chosen[number][0].leave[column, chosen[number][1]] for number, column in read[member]])

    def fitted(member: int, middle: Sequence[Floats]) -> Clock:
        time = time_of(member)
        value = time - _joined([middle[number] for number, _ in read[member]])
        if len(read[member]) > 1:
            order = np.argsort(time, kind="stable")
            time, value = time[order], value[order]
        return fit_clock(time, value)

    for _ in range(min(rounds, 3) if len(chosen) <= 1 else rounds):
        middle = [_middles(readings, current, threads)[some] for readings, some in chosen]
        following = list(current)
        members = [member for member in range(len(current)) if read[member]]
        for member, clock in zip(members, each(partial(fitted, middle=middle), members, threads), strict=True):
            following[member] = clock
        # Readings are against the instance's middle, which moves with the members: refer all to the reference.
        base = following[reference].inverted()
        referred = list(following)
        for member in members:
            referred[member] = following[member].over(base)
            if len(referred[member].offset) > 1:
                referred[member] = referred[member].where_read(time_of(member))
        origin = following[reference]
        referred[reference] = Clock(origin.t0, np.array([-np.inf]), np.zeros(1), np.zeros(1))
        moved = max(_distance(a, b) for a, b in zip(current, referred, strict=True))
        current = referred
        if moved < _SETTLED_NS:
            break
    return current


def _distance(one: Clock, other: Clock) -> float:
    """Largest difference of two versions of a clock at their t0 and ends of segments."""
    if len(one.offset) != len(other.offset):
        return np.inf
    at = np.concatenate(([other.t0], other.valid_from[1:]))
    return float(np.abs(one.difference(at) - other.difference(at)).max())


def _joined(parts: Sequence[Floats]) -> Floats:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _middles(readings: Readings, clocks: Sequence[Clock], threads: int) -> Floats:
    """Median over the members of each instance's aligned ends."""
    result = np.empty(readings.count)

    def fill(part: slice) -> None:
        ends = aligned(readings.leave[:, part], readings.members, clocks)
        put_in_order(ends)
        result[part] = middles(ends)

    deque(each(fill, readings.blocks(), threads), 0)
    return result


def median_of_others(values: Floats) -> Floats:
    """For each element of [members, instances] the median of its column without it; needs two members or more."""
    ordered = values.copy()
    put_in_order(ordered)

    def without(k: int) -> Floats:
        return np.asarray(np.where(values > ordered[k], ordered[k], ordered[k + 1]))

    rest = len(values) - 1
    low, high = (rest - 1) // 2, rest // 2
    if low == high:
        return without(low)
    return np.asarray((without(low) + without(high)) / 2)


def _deviations(
    communicators: Sequence[Readings],
    clocks: Sequence[Clock],
    masks: Sequence[Bools],
    room: ArrayRoom,
    threads: int,
) -> tuple[float | None, float | None, float | None]:
    """Residual, asymmetry and median deviation of the accepted instances."""
    every = room.empty(
        sum(len(r.members) * int(m.sum()) for r, m in zip(communicators, masks, strict=True)), np.float64
    )
    if not len(every):
        return None, None, None
    sums: dict[tuple[int, int], list[float]] = {}
    low = 0
    for readings, mask in zip(communicators, masks, strict=True):
        chosen = np.flatnonzero(mask)
        own = every[low : low + len(readings.members) * len(chosen)].reshape(len(readings.members), len(chosen))
        low += own.size
        for member, group, figures in _deviate(readings, clocks, chosen, own, threads):
            entry = sums.setdefault((member, group), [0.0, 0.0, 0.0])
            for k, figure in enumerate(figures):
                entry[k] += figure
    residual, typical = _residual_and_typical(every)
    asymmetry: float | None = None
    by_member: dict[int, list[tuple[float, float]]] = {}
    for (member, _), (count, total, squares) in sums.items():
        if count >= INSTANCE_MINIMUM:
            mean = total / count
            variance = max(squares / count - mean * mean, 0.0) * count / (count - 1)
            by_member.setdefault(member, []).append((mean, variance / count))
    for of_groups in by_member.values():
        for k, (mean, error) in enumerate(of_groups):
            for other_mean, other_error in of_groups[:k]:
                excess = max(abs(mean - other_mean) - 3.0 * float(np.sqrt(error + other_error)), 0.0)
                asymmetry = excess if asymmetry is None else max(asymmetry, excess)
    return residual, asymmetry, typical


def _deviate(
    readings: Readings, clocks: Sequence[Clock], chosen: Ints, deviation: Floats, threads: int
) -> list[tuple[int, int, tuple[float, float, float]]]:
    """Fill in how far each member's end is from the others' median, without its sign.

    Args:
        readings: of one communicator.
        clocks: the clocks.
        chosen: its accepted instances.
        deviation: [members, accepted instances], to be filled.
        threads: how many threads may work at once.

    Returns:
        (member, group, (count, sum, sum of squares)) of the deviations with their signs.
    """
    groups = readings.group[chosen]
    whole = len(chosen) == readings.count

    def fill(part: slice) -> None:
        ends = aligned(readings.leave[:, part if whole else chosen[part]], readings.members, clocks)
        np.subtract(ends, median_of_others(ends), out=deviation[:, part])

    def added(column: int) -> list[tuple[int, int, tuple[float, float, float]]]:
        member, own = int(readings.members[column]), deviation[column]
        figures = []
        for group in np.unique(groups):
            values = own[groups == group]
            figures.append((member, int(group), (float(len(values)), float(values.sum()), float((values**2).sum()))))
        np.abs(own, out=own)
        return figures

    deque(each(fill, readings.shares(len(chosen)), threads), 0)
    return [figures for found in each(added, range(len(readings.members)), threads) for figures in found]


def _residual_and_typical(values: Floats) -> tuple[float, float]:
    """The 95th percentile, as `numpy.quantile` tells it, and the median of values that it puts into another order."""
    place = 0.95 * (len(values) - 1)
    below = int(place)
    values.partition((len(values) // 2, below))
    above = values[below + 1 :].min(initial=np.inf) if below + 1 < len(values) else values[below]
    residual = float(np.quantile([values[below], above], place - below))
    return residual, median_of(values)
