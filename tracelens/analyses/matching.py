"""Which collective of one rank is which of another: the lag is searched, never assumed.

Two captures of one job start and end at different operations, lose kernels in the middle, and hold thousands of
kernels that look alike. A lag (my k-th is your k+n-th) only proposes a clock offset. For each proposal the clock is
fitted to the ends of the shorter sequence paired with the nearest ends of the other, and the proposal is judged by
the mean of min(|end deviation|, 20 us) over everything both captures cover. A lag wrong by one layer or one step
fits most instances perfectly and betrays itself only at step edges, so a mean decides, not a median; and the best
proposal must be twice as good as the next, else the answer is "ambiguous".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tracelens.analyses.clock import (
    DRIFT_LIMIT,
    JUMP_FLOOR_NS,
    JUMP_LIMIT,
    Clock,
    Floats,
    Ints,
    constant,
    fit_clock,
    fit_line,
)

CLIP_NS = 20_000.0
"""An end further away than this is as wrong as can be; it must not outvote the rest."""

MATCH_LIMIT_NS = 5_000.0
"""Ranks that leave together do so within this on average; what scores above it never met."""

MARGIN_FACTOR = 2.0
"""The best offset must score at most 1/2 of the next one ..."""

DISTINCT_NS = 5_000.0
"""... whose offset differs by more than this."""

INSTANCE_MINIMUM = 30
"""Instances that an offset needs: fewer can be aligned by chance."""

WINDOW_EXPORT_NS = 100_000
WINDOW_BOOT_NS = 1_000_000
WINDOW_ELSE_NS = 1_000_000_000

_KEY_SPAN = 1 << 44  # ns between the time axes of two keys: 4.8 hours
_ANCHOR_REACH = 96
_FINGERPRINT_NS = 30_000.0


@dataclass(frozen=True)
class Track:
    """One rank's collectives that may belong to one communicator, in the order of their ends.

    Attributes:
        end: int64 ns, ascending, on any epoch; the end of the kernel at which all ranks leave together.
        key: int64, one number per (operation, implementation, launch shape), equal on all ranks.
    """

    end: Ints
    key: Ints

    def __len__(self) -> int:
        return len(self.end)


@dataclass(frozen=True)
class PairMatch:
    """How two tracks fit together.

    Attributes:
        status: `matched`; `ambiguous` (two offsets explain the ends alike); `different` (no offset does: they do not
            synchronise); `short` (fewer than 30 common instances, or less than half of the shorter track).
        clock: the second track's clock as seen from the first, on the second's time; null unless matched.
        score_ns: mean clipped end deviation at the best offset; null when none could be tried.
        next_score_ns: the same at the best offset more than 5 us away; null when there is none.
        covered: instances of the shorter track inside the common time range.
    """

    status: Literal["matched", "ambiguous", "different", "short"]
    clock: Clock | None = None
    score_ns: float | None = None
    next_score_ns: float | None = None
    covered: int = 0


class _Target:
    """A track to look nearest ends up in: one sorted axis for all keys."""

    def __init__(self, track: Track, origin: int, keys: Ints) -> None:
        self.code = np.searchsorted(keys, track.key).astype(np.int64)
        self.time: Floats = (track.end - origin).astype(np.float64)
        axis = self.code * _KEY_SPAN + (track.end - origin)
        self.order = np.argsort(axis, kind="stable")
        self.axis = axis[self.order]

    def nearest(self, code: Ints, time: Floats) -> tuple[Ints, Floats]:
        """For each query the index of the nearest end of the same key, and that end minus the query, in ns."""
        query = code * _KEY_SPAN + np.rint(time).astype(np.int64)
        after = np.searchsorted(self.axis, query)
        before = np.maximum(after - 1, 0)
        after = np.minimum(after, len(self.axis) - 1)
        up = self.axis[after] - query
        down = query - self.axis[before]
        later = np.abs(up) < np.abs(down)
        index = self.order[np.where(later, after, before)]
        return index, np.where(later, up, -down).astype(np.float64)


@dataclass(frozen=True)
class _Candidate:
    clock: Clock  # longer track's time minus shorter track's time, on the shorter's time axis
    score: float
    typical: float  # median end deviation, ns

    @property
    def convincing(self) -> bool:
        return self.score <= 3.0 * self.typical + 200.0


def match_pair(first: Track, second: Track, *, window_ns: int | None, around_ns: int = 0) -> PairMatch:
    """Match two ranks' tracks by searching the offset between their clocks.

    Args:
        first, second: tracks of two different clocks.
        window_ns: how far the clocks can be apart beyond `around_ns`; null when nothing is known of them.
        around_ns: the expected second-minus-first clock difference (from session times).

    Returns:
        The match. Scores are in ns; the clock is that of `second` against `first`.
    """
    if min(len(first), len(second)) < INSTANCE_MINIMUM:
        return PairMatch("short")
    flipped = len(second) > len(first)
    short, long = (first, second) if flipped else (second, first)
    # Differences are long minus short: second minus first when flipped, else its negative.
    expected = around_ns if flipped else -around_ns
    origin = int(short.end[0])
    shift = expected if window_ns is not None else int(long.end[0]) - origin
    keys = np.union1d(first.key, second.key)
    target = _Target(long, origin + shift, keys)
    source = _Target(short, origin, keys)
    window = float(window_ns) if window_ns is not None else np.inf
    candidates = _candidates(source, target, window)
    if not candidates:
        return PairMatch("short")
    scored = _judge(source, target, candidates)
    if not scored:
        return PairMatch("short")
    best, covered = scored[0]
    middle = float(np.median(source.time))
    others = [c for c, _ in scored[1:] if abs(c.clock.at(middle) - best.clock.at(middle)) > DISTINCT_NS]
    following = others[0].score if others else None
    gaps = np.diff(target.time)
    by_chance = float(np.minimum(gaps / 4, CLIP_NS).mean())
    if best.score > min(MATCH_LIMIT_NS, by_chance / 2):
        return PairMatch("different", None, best.score, following, covered)
    if following is not None and best.score * MARGIN_FACTOR > following:
        return PairMatch("ambiguous", None, best.score, following, covered)
    # Back from long minus short on the short's rebased axis to second minus first on the second's own axis.
    total = Clock(best.clock.t0 + origin, best.clock.valid_from + origin, best.clock.offset + shift, best.clock.drift)
    # "short + difference = long": the inverse, "long - difference = short", has the same differences on long's axis.
    ahead = Clock(total.t0, total.valid_from, -total.offset, -total.drift)
    total = ahead if not flipped else ahead.inverted()
    return PairMatch("matched", total, best.score, following, covered)


def score_at(first: Track, second: Track, clock: Clock) -> tuple[float, int]:
    """Mean clipped end deviation of two tracks under a known clock of the second, and the instances it rests on."""
    origin = int(first.end[0])
    keys = np.union1d(first.key, second.key)
    aligned = second.end - np.rint(clock.difference(second.end.astype(np.float64))).astype(np.int64)
    one, two = _Target(first, origin, keys), _Target(Track(aligned, second.key), origin, keys)
    source, target = (one, two) if len(first) <= len(second) else (two, one)
    return _score(source, target, constant())


def _score(source: _Target, target: _Target, clock: Clock) -> tuple[float, int]:
    moved = source.time + clock.difference(source.time)
    common = (moved >= target.time[0] - CLIP_NS) & (moved <= target.time[-1] + CLIP_NS)
    count = int(common.sum())
    if count == 0:
        return CLIP_NS, 0
    _, deviation = target.nearest(source.code[common], moved[common])
    return float(np.minimum(np.abs(deviation), CLIP_NS).mean()), count


def _judge(source: _Target, target: _Target, candidates: list[_Candidate]) -> list[tuple[_Candidate, int]]:
    """Full scores of the distinct best candidates, best first; those that cover too little are left out."""
    middle = float(np.median(source.time))
    needed = max(INSTANCE_MINIMUM, len(source.time) / 2)
    kept: list[tuple[_Candidate, int]] = []
    for candidate in sorted(candidates, key=lambda c: c.score):
        if any(abs(candidate.clock.at(middle) - c.clock.at(middle)) <= DISTINCT_NS for c, _ in kept):
            continue
        refined = _mend_segments(source, target, candidate)
        score, covered = _score(source, target, refined)
        if covered >= needed:
            kept.append((replace(candidate, clock=refined, score=score), covered))
        if len(kept) == 4:
            break
    return sorted(kept, key=lambda pair: pair[0].score)


def _candidates(source: _Target, target: _Target, window: float) -> list[_Candidate]:
    """Clocks fitted from the lags that fit best around a few anchors, with scores on a thinned source."""
    fitted: list[_Candidate] = []
    # Two anchors, because the partner of one may be lost; more only where those find nothing convincing.
    for batch in ((0.5, 0.3), (0.7, 0.15, 0.85)):
        for quantile in batch:
            anchor = _anchor(source, quantile)
            for offset in _local_offsets(source, target, anchor, window):
                candidate = _fit(source, target, anchor, offset, window)
                if candidate is not None:
                    fitted.append(candidate)
        # Scatter alone keeps the mean near the median; step edges that do not fit pull them apart.
        if fitted and min(fitted, key=lambda c: c.score).convincing:
            break
    return fitted


def _anchor(source: _Target, quantile: float) -> int:
    """The instance near a quantile that follows the largest gap: the start of a step has fewest look-alikes."""
    count = len(source.time)
    centre = int(quantile * (count - 1))
    begin, end = max(1, centre - _ANCHOR_REACH), min(count, centre + _ANCHOR_REACH)
    return begin + int(np.argmax(np.diff(source.time[begin - 1 : end])))


def _local_offsets(source: _Target, target: _Target, anchor: int, window: float) -> list[float]:
    """Offsets under which the neighbourhood of the anchor fits, best first."""
    difference = target.time - source.time[anchor]
    possible = (target.code == source.code[anchor]) & (np.abs(difference) <= window)
    if int(possible.sum()) > 400:
        # Thousands of lags: the partner follows and precedes a gap like the anchor's.
        own, theirs = np.diff(source.time), np.diff(target.time)
        alike = np.ones(len(target.time), dtype=bool)
        if 0 < anchor < len(source.time) - 1:
            alike[1:] &= np.abs(theirs - own[anchor - 1]) <= _FINGERPRINT_NS
            alike[:-1] &= np.abs(theirs - own[anchor]) <= _FINGERPRINT_NS
        if (possible & alike).any():
            possible &= alike
    offsets = difference[possible]
    for reach, keep in ((12, 300), (64, 48), (256, 6)):
        if len(offsets) == 0:
            break
        begin, end = max(0, anchor - reach), min(len(source.time), anchor + reach)
        near, code = source.time[begin:end], source.code[begin:end]
        costs = []
        for chunk in np.array_split(offsets, max(1, len(offsets) * len(near) // 1_000_000)):
            moved = (near[None, :] + chunk[:, None]).ravel()
            deviation = target.nearest(np.tile(code, len(chunk)), moved)[1].reshape(len(chunk), len(near))
            inside = (moved >= target.time[0] - CLIP_NS) & (moved <= target.time[-1] + CLIP_NS)
            inside = inside.reshape(deviation.shape)
            clipped = np.clip(deviation, -CLIP_NS, CLIP_NS)
            off = np.abs(clipped - np.median(clipped, axis=1, keepdims=True))
            cost = np.where(inside, np.minimum(off, CLIP_NS), 0.0).sum(axis=1) / np.maximum(inside.sum(axis=1), 1)
            cost[inside.sum(axis=1) < min(8, len(near))] = CLIP_NS
            costs.append(cost)
        cost = np.concatenate(costs)
        best = np.argsort(cost, kind="stable")[:keep]
        offsets, cost = offsets[best], cost[best]
    else:
        return [float(offset) for offset in offsets]
    return []


def _thin(begin: int, end: int, count: int) -> Ints:
    """Ascending indices of about `count` instances of [begin, end), spread so that no period is favoured."""
    if end - begin <= count:
        return np.arange(begin, end)
    golden = (np.arange(count) * 0.6180339887498949) % 1.0
    return np.unique(begin + (golden * (end - begin)).astype(np.int64))


def _fit(source: _Target, target: _Target, anchor: int, offset: float, window: float) -> _Candidate | None:
    """Follow one offset outwards from the anchor, refitting as the range grows; null when it leads nowhere."""
    count = len(source.time)
    clock = constant(offset, float(source.time[anchor]))
    reach = 256
    while True:
        begin, end = max(0, anchor - reach), min(count, anchor + reach)
        whole = end - begin == count
        for _ in range(2 if whole else 1):
            chosen = _thin(begin, end, 2000 if whole else 600)
            clock_next = _refit(source, target, chosen, clock, jumps=reach > 256 or whole)
            if clock_next is None:
                return None
            clock = clock_next
        if whole:
            break
        reach *= 4
    if np.abs(clock.difference(source.time[[0, -1]])).max() > window + 2 * DRIFT_LIMIT * float(np.ptp(source.time)):
        return None
    moved = source.time[chosen] + clock.difference(source.time[chosen])
    common = (moved >= target.time[0] - CLIP_NS) & (moved <= target.time[-1] + CLIP_NS)
    if not common.any():
        return None
    deviation = target.nearest(source.code[chosen][common], moved[common])[1]
    off = np.minimum(np.abs(deviation), CLIP_NS)
    return _Candidate(clock, float(off.mean()), float(np.median(off)))


def _refit(source: _Target, target: _Target, chosen: Ints, clock: Clock, *, jumps: bool) -> Clock | None:
    """One round: pair by nearest end under `clock`, fit again; null when nothing pairs or the drift is absurd."""
    time = source.time[chosen]
    moved = time + clock.difference(time)
    _, deviation = target.nearest(source.code[chosen], moved)
    paired = np.abs(deviation) <= CLIP_NS
    if int(paired.sum()) < 8:
        return None
    readings = (moved + deviation - time)[paired]
    fitted = fit_clock(time[paired], readings, jumps=jumps)
    if np.abs(fitted.drift).max() > DRIFT_LIMIT:
        if float(np.ptp(time[paired])) * DRIFT_LIMIT < DISTINCT_NS:
            return fit_clock(time[paired], readings, jumps=jumps, with_drift=False)
        return None
    return fitted


def _mend_segments(source: _Target, target: _Target, candidate: _Candidate) -> Clock:
    """The candidate's clock with steps that nearest ends hide: larger than half the spacing, they pair neighbours."""
    clock = candidate.clock
    for _ in range(JUMP_LIMIT):
        chosen = _thin(0, len(source.time), 2000)
        time, code = source.time[chosen], source.code[chosen]
        moved = time + clock.difference(time)
        off = np.minimum(np.abs(target.nearest(code, moved)[1]), CLIP_NS)
        off[(moved < target.time[0] - CLIP_NS) | (moved > target.time[-1] + CLIP_NS)] = 0.0
        bad = _bad_stretch(off, np.searchsorted(time, clock.valid_from[1:]))
        if bad is None:
            break
        begin, end = bad
        stretch = slice(begin, end)
        middle = (begin + end) // 2
        near = target.time[(target.code == code[middle]) & (np.abs(target.time - moved[middle]) <= WINDOW_EXPORT_NS)]
        best, readings = float(off[stretch].mean()), None
        for step in near - moved[middle]:
            deviation = target.nearest(code[stretch], moved[stretch] + step)[1]
            close = np.abs(deviation) <= CLIP_NS
            extra = float(np.median(deviation[close])) if close.any() else 0.0
            deviation = target.nearest(code[stretch], moved[stretch] + step + extra)[1]
            score = float(np.minimum(np.abs(deviation), CLIP_NS).mean())
            if score * MARGIN_FACTOR < best:
                best, readings = score, moved[stretch] + step + extra + deviation - time[stretch]
        if readings is None:
            break
        level, slope, at = fit_line(time[stretch], readings)
        patch = Clock(at, np.array([-np.inf]), np.array([level]), np.array([slope])).moved(clock.t0)
        clock = _patched(clock, patch, float(time[begin]), float(time[end]) if end < len(time) else np.inf, begin == 0)
    return clock


def _bad_stretch(off: Floats, breaks: Ints) -> tuple[int, int] | None:
    """The worst stretch [begin, end) of clipped deviations, where another part of the capture fits well."""
    count = len(off)
    size = max(INSTANCE_MINIMUM, count // 64)
    if count < 2 * size:
        return None
    edges = np.unique(np.concatenate((np.arange(0, count - size + 1, size), breaks, [count])))
    level = np.add.reduceat(off, edges[:-1]) / np.diff(edges)
    if float(level.min()) > MATCH_LIMIT_NS / 2:
        return None
    bad = np.concatenate(([False], level > 4.0 * float(np.quantile(level, 0.25)) + JUMP_FLOOR_NS, [False]))
    begins = np.flatnonzero(~bad[:-1] & bad[1:])
    ends = np.flatnonzero(bad[:-1] & ~bad[1:])
    if len(begins) == 0:
        return None
    longest = int(np.argmax(edges[ends] - edges[begins]))
    begin, end = int(edges[begins[longest]]), int(edges[ends[longest]])
    return (begin, end) if end - begin >= INSTANCE_MINIMUM else None


def _patched(clock: Clock, patch: Clock, begin: float, end: float, from_start: bool) -> Clock:
    """`clock` with the line `patch` (same t0) between two times."""
    start = -np.inf if from_start else begin
    keep = (clock.valid_from < start) | (clock.valid_from > end)
    valid, offset, drift = clock.valid_from[keep], clock.offset[keep], clock.drift[keep]
    valid, offset, drift = np.append(valid, start), np.append(offset, patch.offset), np.append(drift, patch.drift)
    if np.isfinite(end):
        resumed = int(np.searchsorted(clock.valid_from[1:], end, side="right"))
        valid, offset = np.append(valid, end), np.append(offset, clock.offset[resumed])
        drift = np.append(drift, clock.drift[resumed])
    order = np.argsort(valid, kind="stable")
    return Clock(clock.t0, valid[order], offset[order], drift[order])
