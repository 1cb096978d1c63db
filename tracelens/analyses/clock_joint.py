"""One joint fit of all clocks of a connected set, and what the ends that it rests on say about its error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracelens.analyses.clock import Clock, Floats, Ints, fit_clock, median
from tracelens.analyses.matching_instances import Bools, Rows
from tracelens.analyses.matching_tracks import CLIP_NS, INSTANCE_MINIMUM, thin

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
        group: int32 [instances], one number per (operation, implementation).
    """

    members: Ints
    start: Floats
    end: Floats
    leave: Floats
    group: Rows

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
        size = max(_BLOCK_LEAST, _BLOCK_READINGS // max(len(self.members), 1))
        return (slice(low, low + size) for low in range(0, self.count, size))


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
    readings: Readings, clocks: Sequence[Clock], arrival_slack: float, spread_limit: float
) -> tuple[Bools, Bools]:
    """Which instances are one barrier: (last arrival before every end, ends together)."""
    causal, together = np.empty(readings.count, dtype=bool), np.empty(readings.count, dtype=bool)
    for part in readings.blocks():
        some = readings.of(part)
        arrival = aligned(some.start, some.members, clocks)
        leave = aligned(some.leave, some.members, clocks)
        end = arrival + (some.end - some.start)
        causal[part] = arrival.max(axis=0) <= end.min(axis=0) + arrival_slack
        together[part] = leave.max(axis=0) - leave.min(axis=0) <= spread_limit
    return causal, together


def fit_set(communicators: Sequence[Readings], clocks: Sequence[Clock], reference: int) -> JointFit:
    """Fit all clocks of one connected set to the ends of its instances.

    Args:
        communicators: their complete instances.
        clocks: first clocks from the matching, good to a microsecond but for instances around a clock step.
        reference: the clock whose offset and drift are 0.

    Returns:
        The fit after two passes: instances whose last arrival precedes every end and whose ends agree within 5 us,
        then within the figures of the first pass.
    """
    current = list(clocks)
    # A step of a clock is located among all that pairs at all: near it, the first clocks may be wrong by the step.
    few = [_thinned(r) for r in communicators]
    masks = [_within(r, current, CLIP_NS) for r in few]
    current = _settle(few, current, masks, reference, rounds=2)
    masks = [_both(accept(r, current, ACCEPT_NS, ACCEPT_NS)) for r in few]
    current = _settle(few, current, masks, reference, rounds=_ROUNDS)
    residual, asymmetry, _ = _deviations(few, current, masks)
    slack = (residual or 0.0) + (asymmetry or 0.0)
    masks = [_both(accept(r, current, slack, max(ACCEPT_NS, 10 * (residual or 0.0)))) for r in communicators]
    current = _settle(communicators, current, masks, reference, rounds=_ROUNDS)
    residual, asymmetry, typical = _deviations(communicators, current, masks)
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
    communicators: Sequence[Readings], clocks: list[Clock], masks: Sequence[Bools], reference: int, *, rounds: int
) -> list[Clock]:
    """Refit every clock to the instances' middles until nothing moves; the reference stays where it is."""
    current = list(clocks)
    chosen = [
        (r.members, r.leave if m.all() else r.leave[:, m]) for r, m in zip(communicators, masks, strict=True) if m.any()
    ]
    single = len(chosen) <= 1
    for _ in range(min(rounds, 3) if single else rounds):
        times: list[list[Floats]] = [[] for _ in current]
        values: list[list[Floats]] = [[] for _ in current]
        for members, leave in chosen:
            middle = _middles(leave, members, current)
            for own, member in zip(leave, members, strict=True):
                times[member].append(own)
                values[member].append(own - middle)
        following = list(current)
        for member in range(len(current)):
            if not times[member]:
                continue
            time, value = _joined(times[member]), _joined(values[member])
            if len(times[member]) > 1:
                order = np.argsort(time, kind="stable")
                time, value = time[order], value[order]
            following[member] = fit_clock(time, value)
        # Readings are against the instance's middle, which moves with the members: refer all to the reference.
        base = following[reference].inverted()
        referred = [
            clock.over(base).where_read(_joined(times[member])) if times[member] and member != reference else clock
            for member, clock in enumerate(following)
        ]
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


def _middles(leave: Floats, members: Ints, clocks: Sequence[Clock]) -> Floats:
    """Median over the members of each instance's aligned ends."""
    count = len(members)
    result = np.empty(leave.shape[1])
    size = max(_BLOCK_LEAST, _BLOCK_READINGS // count)
    for low in range(0, leave.shape[1], size):
        ordered = np.ascontiguousarray(aligned(leave[:, low : low + size], members, clocks).T)
        ordered.sort(axis=1)
        result[low : low + size] = (ordered[:, (count - 1) // 2] + ordered[:, count // 2]) / 2
    return result


def median_of_others(values: Floats) -> Floats:
    """For each element of [members, instances] the median of its column without it; needs two members or more."""
    ordered = np.sort(values.T, axis=1)
    count = len(values)

    def without(k: int) -> Floats:
        low, high = np.ascontiguousarray(ordered[:, k]), np.ascontiguousarray(ordered[:, k + 1])
        return np.where(values > low, low, high)

    rest = count - 1
    low, high = (rest - 1) // 2, rest // 2
    if low == high:
        return without(low)
    return np.asarray((without(low) + without(high)) / 2)


def _deviations(
    communicators: Sequence[Readings], clocks: Sequence[Clock], masks: Sequence[Bools]
) -> tuple[float | None, float | None, float | None]:
    """Residual, asymmetry and median deviation of the accepted instances."""
    pooled: list[Floats] = []
    sums: dict[tuple[int, int], list[float]] = {}
    for readings, mask in zip(communicators, masks, strict=True):
        if not mask.any():
            continue
        leave = readings.leave if mask.all() else readings.leave[:, mask]
        deviation = np.empty_like(leave)
        for part in readings.blocks():
            ends = aligned(leave[:, part], readings.members, clocks)
            deviation[:, part] = ends - median_of_others(ends)
        groups = readings.group[mask]
        for group in np.unique(groups):
            of_group = groups == group
            for own, member in zip(deviation, readings.members, strict=True):
                values = own[of_group]
                entry = sums.setdefault((int(member), int(group)), [0.0, 0.0, 0.0])
                entry[0] += len(values)
                entry[1] += float(values.sum())
                entry[2] += float((values**2).sum())
        pooled.append(np.abs(deviation, out=deviation).ravel())
    if not pooled:
        return None, None, None
    every = _joined(pooled)
    residual, typical = float(np.quantile(every, 0.95)), median(every)
    asymmetry: float | None = None
    by_member: dict[int, list[tuple[float, float]]] = {}
    for (member, _), (count, total, squares) in sums.items():
        if count >= INSTANCE_MINIMUM:
            mean = total / count
            variance = max(squares / count - mean * mean, 0.0) * count / (count - 1)
            by_member.setdefault(member, []).append((mean, variance / count))
    for figures in by_member.values():
        for k, (mean, error) in enumerate(figures):
            for other_mean, other_error in figures[:k]:
                excess = max(abs(mean - other_mean) - 3.0 * float(np.sqrt(error + other_error)), 0.0)
                asymmetry = excess if asymmetry is None else max(asymmetry, excess)
    return residual, asymmetry, typical
