"""The search for clock offsets: lags propose, fits refine, a clipped mean over everything decides."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

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
    median,
)
from tracelens.analyses.matching_tracks import (
    CLIP_NS,
    CONVINCING_FACTOR,
    CONVINCING_NS,
    DISTINCT_NS,
    INSTANCE_MINIMUM,
    MARGIN_FACTOR,
    MATCH_LIMIT_NS,
    Axis,
    thin,
)

_ANCHOR_REACH = 96
_FINGERPRINT_NS = 30_000.0
_HOLES, _HOLE_MINIMUM, _HOLE_SHARE = 2, 8, 0.2
_STEP_LIMIT_NS = 25_000.0  # a clock that is stepped moves by less than this
_HOPELESS_NS = 8_000.0  # a lag that is this far off while its range grows is given up


@dataclass(frozen=True)
class Candidate:
    """One proposed clock and how it fits a thinned source.

    Attributes:
        clock: longer track's time minus shorter track's time, on the shorter's time axis.
        score: mean clipped end deviation, ns.
        typical: median end deviation, ns.
    """

    clock: Clock
    score: float
    typical: float

    @property
    def convincing(self) -> bool:
        """Scatter alone keeps the mean near the median; step edges that do not fit pull them apart."""
        return self.score <= CONVINCING_FACTOR * self.typical + CONVINCING_NS


def search(source: Axis, target: Axis, around: float, window: float) -> list[tuple[Clock, int]]:
    """The distinct clocks under which two tracks fit best, mostly best first, each with the instances it covers.

    Clocks that cover too little are left out.

    Args:
        source: the shorter track.
        target: the longer one.
        around: expected time on the target minus time on the source, ns.
        window: how far it may be from that, ns.
    """
    middle = median(source.time)
    needed = max(INSTANCE_MINIMUM, len(source.time) / 2)
    kept: list[tuple[Candidate, int]] = []
    for candidate in sorted(_candidates(source, target, around, window), key=lambda c: c.score):
        if any(abs(candidate.clock.at(middle) - c.clock.at(middle)) <= DISTINCT_NS for c, _ in kept):
            continue
        refined = _mend_segments(source, target, candidate)
        covered = _covered(source, target, refined)
        if covered >= needed:
            kept.append((replace(candidate, clock=refined), covered))
        if len(kept) == 4:
            break
    return [(candidate.clock, covered) for candidate, covered in kept]


def _covered(source: Axis, target: Axis, clock: Clock) -> int:
    """How many of the source's instances lie in the common time range."""
    low, high = target.time[0] - CLIP_NS, target.time[-1] + CLIP_NS
    ends = source.time[[0, -1]]
    ends = ends + clock.difference(ends)
    if len(clock.offset) == 1 and ends[0] >= low and ends[1] <= high:
        return len(source.time)
    moved = source.time + clock.difference(source.time)
    return int(np.count_nonzero((moved >= low) & (moved <= high)))


def clipped_mean(source: Axis, target: Axis, clock: Clock) -> tuple[float, int]:
    """Mean of min(|end deviation|, 20 us) over the source's instances in the common time range, and their number."""
    off = target.clipped_deviations(source, clock)
    if len(off) == 0:
        return CLIP_NS, 0
    return float((off[_outside_holes(off)] if float(off.max()) >= CLIP_NS else off).mean()), len(off)


def _outside_holes(off: Floats) -> npt.NDArray[np.bool_]:
    """All deviations but those of up to two long runs without a partner: kernels that the target's capture lost.

    A wrong lag misses its partners at every step edge, a few at a time; it gains nothing by this.
    """
    kept = np.ones(len(off), dtype=bool)
    alone = np.concatenate(([False], off >= CLIP_NS, [False]))
    begins, ends = np.flatnonzero(~alone[:-1] & alone[1:]), np.flatnonzero(alone[:-1] & ~alone[1:])
    long = np.flatnonzero(ends - begins >= _HOLE_MINIMUM)
    for run in sorted(long, key=lambda k: int(begins[k] - ends[k]))[:_HOLES]:
        if ends[run] - begins[run] > _HOLE_SHARE * len(off):
            continue
        kept[begins[run] : ends[run]] = False
    return kept


def _candidates(source: Axis, target: Axis, around: float, window: float) -> list[Candidate]:
    """Clocks fitted from the lags that fit best around a few anchors, with scores on a thinned source."""
    fitted: list[Candidate] = []
    # Two anchors, because the partner of one may be lost; more only where those find nothing convincing.
    for batch in ((0.5, 0.3), (0.75,)):
        for quantile in batch:
            anchor = _anchor(source, quantile)
            at = float(source.time[anchor])
            for offset in _local_offsets(source, target, anchor, around, window):
                if any(abs(c.clock.at(at) - offset) < DISTINCT_NS / 2 for c in fitted):
                    continue
                candidate = _fit(source, target, anchor, offset, around, window)
                if candidate is not None:
                    fitted.append(candidate)
        if fitted and min(fitted, key=lambda c: c.score).convincing:
            break
    return fitted


def _anchor(source: Axis, quantile: float) -> int:
    """The instance near a quantile that follows the largest gap: the start of a step has fewest look-alikes."""
    count = len(source.time)
    centre = int(quantile * (count - 1))
    # Anchors of a short track must not all be the same instance: its partner may be lost.
    reach = max(1, min(_ANCHOR_REACH, count // 12))
    begin, end = max(1, centre - reach), max(2, min(count, centre + reach))
    return begin + int(np.argmax(np.diff(source.time[begin - 1 : end])))


def _local_offsets(source: Axis, target: Axis, anchor: int, around: float, window: float) -> list[float]:
    """Offsets under which the neighbourhood of the anchor fits, best first."""
    at, last = source.time[anchor], len(target.time) - 1
    # The look-up may be off by a rounding; what it finds is asked itself.
    slack = 1.0 + 1e-12 * (abs(around) + float(at))
    low, high = np.searchsorted(target.time, [at + around - window - slack, at + around + window + slack])
    difference = target.time[low:high] - at
    possible = np.flatnonzero((target.key[low:high] == source.key[anchor]) & (np.abs(difference - around) <= window))
    if len(possible) > 400 and 0 < anchor < len(source.time) - 1:
        # Thousands of lags: the partner follows and precedes a gap like the anchor's.
        place = low + possible
        before = target.time[place] - target.time[np.maximum(place - 1, 0)]
        after = target.time[np.minimum(place + 1, last)] - target.time[place]
        alike = (place == 0) | (np.abs(before - (at - source.time[anchor - 1])) <= _FINGERPRINT_NS)
        alike &= (place == last) | (np.abs(after - (source.time[anchor + 1] - at)) <= _FINGERPRINT_NS)
        if alike.any():
            possible = possible[alike]
    offsets = difference[possible]
    for reach, keep in ((12, 300), (64, 48), (256, 4)):
        if len(offsets) == 0:
            break
        begin, end = max(0, anchor - reach), min(len(source.time), anchor + reach)
        near, code = source.time[begin:end], source.key[begin:end]
        costs = []
        for chunk in np.array_split(offsets, max(1, len(offsets) * len(near) // 1_000_000)):
            moved = (near[None, :] + chunk[:, None]).ravel()
            deviation = target.nearest(np.tile(code, len(chunk)), moved)[1].reshape(len(chunk), len(near))
            inside = (moved >= target.time[0] - CLIP_NS) & (moved <= target.time[-1] + CLIP_NS)
            inside = inside.reshape(deviation.shape)
            clipped = np.clip(deviation, -CLIP_NS, CLIP_NS)
            middle = clipped.shape[1] // 2
            off = np.abs(clipped - np.partition(clipped, middle, axis=1)[:, middle : middle + 1])
            if np.ptp(near) * DRIFT_LIMIT > DISTINCT_NS:
                # So far apart that clocks drift: a lag that overlaps less would seem to fit better.
                off = np.minimum(off, _off_line(clipped))
            cost = np.where(inside, np.minimum(off, CLIP_NS), 0.0).sum(axis=1) / np.maximum(inside.sum(axis=1), 1)
            cost[inside.sum(axis=1) < min(8, len(near))] = CLIP_NS
            costs.append(cost)
        cost = np.concatenate(costs)
        best = np.argsort(cost, kind="stable")[:keep]
        offsets, cost = offsets[best], cost[best]
    else:
        return [float(offset) for offset in offsets[cost <= MATCH_LIMIT_NS]]
    return []


def _off_line(deviation: Floats) -> Floats:
    """Distance from a line through the medians of the first and the second half, per row."""
    count = deviation.shape[1]
    half = count // 2
    first, second = np.median(deviation[:, :half], axis=1), np.median(deviation[:, -half:], axis=1)
    along = (np.arange(count) - (count - 1) / 2) / max(count - half, 1)
    line = (first + second)[:, None] / 2 + (second - first)[:, None] * along[None, :]
    return np.asarray(np.abs(deviation - line), dtype=np.float64)


def _fit(source: Axis, target: Axis, anchor: int, offset: float, around: float, window: float) -> Candidate | None:
    """Follow one offset outwards from the anchor, refitting as the range grows; null when it leads nowhere."""
    count = len(source.time)
    clock = constant(offset, float(source.time[anchor]))
    reach = 256
    while True:
        begin, end = max(0, anchor - reach), min(count, anchor + reach)
        whole = end - begin == count
        for _ in range(2 if whole else 1):
            chosen = thin(begin, end, 2000 if whole else 600)
            clock_next, off = _refit(source, target, chosen, clock, jumps=reach > 256 or whole)
            if clock_next is None or off > _HOPELESS_NS:
                return None
            clock = clock_next
        if whole:
            break
        reach *= 4
    length = float(source.time[-1] - source.time[0])
    if np.abs(clock.difference(source.time[[0, -1]]) - around).max() > window + 2 * DRIFT_LIMIT * length:
        return None
    moved = source.time[chosen] + clock.difference(source.time[chosen])
    common = (moved >= target.time[0] - CLIP_NS) & (moved <= target.time[-1] + CLIP_NS)
    if not common.any():
        return None
    deviation = target.nearest(source.key[chosen][common], moved[common])[1]
    clipped = np.minimum(np.abs(deviation), CLIP_NS)
    return Candidate(clock, float(clipped.mean()), median(clipped))


def _refit(source: Axis, target: Axis, chosen: Ints, clock: Clock, *, jumps: bool) -> tuple[Clock | None, float]:
    """One round: pair by nearest end under `clock`, fit again; null when nothing pairs or the drift is absurd.

    Returns:
        The clock, and the mean clipped deviation from it of what lies in the common time range.
    """
    time = source.time[chosen]
    moved = time + clock.difference(time)
    _, deviation = target.nearest(source.key[chosen], moved)
    paired = np.abs(deviation) <= CLIP_NS
    if int(paired.sum()) < 8:
        return None, CLIP_NS
    readings = (moved + deviation - time)[paired]
    fitted = fit_clock(time[paired], readings, jumps=jumps)
    if np.abs(fitted.drift).max() > DRIFT_LIMIT:
        if float(np.ptp(time[paired])) * DRIFT_LIMIT >= DISTINCT_NS:
            return None, CLIP_NS
        fitted = fit_clock(time[paired], readings, jumps=jumps, with_drift=False)
    rest = np.minimum(np.abs(readings - fitted.difference(time[paired])), CLIP_NS)
    common = (moved >= target.time[0] - CLIP_NS) & (moved <= target.time[-1] + CLIP_NS)
    lost = int((common & ~paired).sum())
    return fitted, (float(rest.sum()) + lost * CLIP_NS) / (len(rest) + lost)


def _mend_segments(source: Axis, target: Axis, candidate: Candidate) -> Clock:
    """The candidate's clock with steps that nearest ends hide: larger than half the spacing, they pair neighbours."""
    clock = candidate.clock
    for _ in range(JUMP_LIMIT):
        chosen = thin(0, len(source.time), 2000)
        time, code = source.time[chosen], source.key[chosen]
        moved = time + clock.difference(time)
        off = np.minimum(np.abs(target.nearest(code, moved)[1]), CLIP_NS)
        off[(moved < target.time[0] - CLIP_NS) | (moved > target.time[-1] + CLIP_NS)] = 0.0
        bad = _bad_stretch(off, np.searchsorted(time, clock.valid_from[1:]))
        if bad is None:
            break
        begin, end = bad
        stretch = slice(begin, end)
        middle = (begin + end) // 2
        near = target.time[(target.key == code[middle]) & (np.abs(target.time - moved[middle]) <= _STEP_LIMIT_NS)]
        best, readings = float(off[stretch].mean()), None
        for step in near - moved[middle]:
            deviation = target.nearest(code[stretch], moved[stretch] + step)[1]
            close = np.abs(deviation) <= CLIP_NS
            extra = median(deviation[close]) if close.any() else 0.0
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
