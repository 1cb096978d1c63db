"""One GPU clock as seen from another: a line in time, broken where the clock was stepped.

GPU clocks of one job disagree by microseconds inside a file and by milliseconds between files, they drift apart by
tens of parts per million, and a driver may step one of them inside a capture. All ranks leave a synchronising
collective together, so the differences of its ends are readings of the clock difference. This module turns such
readings into a clock, robustly: medians first, then least squares on what is left inside the scatter.

Times here are int64 or float64 nanoseconds, rebased by the caller so that float64 holds them exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tracelens.analyses.blocks import blocks

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

JUMP_FLOOR_NS = 1_000.0
"""A step of a clock below this is not told from scatter and slow bending."""

JUMP_LIMIT = 4
"""More steps than this in one capture are not clock steps but a wrong pairing."""

DRIFT_LIMIT = 250e-6
"""Two GPU oscillators drift by up to 100 ppm each; a steeper line pairs things that never met."""

DRIFT_CHANGE = 20e-6
"""The drift of one oscillator changes by less than this within a capture."""

SEGMENT_MINIMUM = 30
"""Readings that a stretch between two steps must hold: fewer do not fix an offset."""

_BLOCK_MINIMUM = 8
_BLOCKS = 128
_SORTED = 1 << 14  # readings that are put in order at once: they fit the cache of a core


@dataclass(frozen=True)
class Clock:
    """The difference of one clock to its reference as a function of the clock's own time.

    difference(t) = offset[s] + drift[s] * (t - t0), where s is the last segment with valid_from[s] <= t; what lies
    before the first segment belongs to it. A reading on this clock becomes a reference time by subtraction.

    Attributes:
        t0: the time at which the offsets hold.
        valid_from: float64 [segments], ascending; the first is -inf.
        offset: float64 ns [segments].
        drift: float64 [segments], ns per ns (1e-6 is one ppm).
    """

    t0: float
    valid_from: Floats
    offset: Floats
    drift: Floats

    def difference(self, time: Floats) -> Floats:
        """Own time minus reference time, in ns, at the own times `time`."""
        if len(self.offset) == 1:
            result = np.subtract(time, self.t0, dtype=np.float64)
            result *= self.drift[0]
            result += self.offset[0]
            return np.asarray(result)
        segment = np.searchsorted(self.valid_from[1:], time, side="right")
        return np.asarray(self.offset[segment] + self.drift[segment] * (time - self.t0), dtype=np.float64)

    def at(self, time: float) -> float:
        """`difference` at one time."""
        return float(self.difference(np.array([time], dtype=np.float64))[0])

    def moved(self, t0: float) -> Clock:
        """The same clock with its offsets given at another `t0`."""
        return replace(self, t0=t0, offset=self.offset + self.drift * (t0 - self.t0))

    def plus(self, other: Clock) -> Clock:
        """The sum of two clocks that run on (nearly) the same time axis: differences add, steps unite."""
        other = other.moved(self.t0)
        starts = np.union1d(self.valid_from, other.valid_from)
        mine = np.searchsorted(self.valid_from[1:], starts, side="right")
        theirs = np.searchsorted(other.valid_from[1:], starts, side="right")
        return Clock(self.t0, starts, self.offset[mine] + other.offset[theirs], self.drift[mine] + other.drift[theirs])

    def where_read(self, time: Floats) -> Clock:
        """The same clock without the segments that hold none of the times `time`."""
        if len(self.offset) == 1:
            return self
        segment = np.searchsorted(self.valid_from[1:], time, side="right")
        kept = np.unique(segment) if len(time) else np.zeros(1, dtype=np.int64)
        valid_from = self.valid_from[kept].copy()
        valid_from[0] = -np.inf
        return Clock(self.t0, valid_from, self.offset[kept], self.drift[kept])

    def inverted(self) -> Clock:
        """The reference as seen from this clock, on the reference's time axis (to first order in the drift)."""
        there = np.where(np.isfinite(self.valid_from), self.valid_from, self.t0)
        return Clock(
            self.t0 - self.at(self.t0),
            self.valid_from - np.where(np.isfinite(self.valid_from), self.difference(there), 0.0),
            -self.offset,
            -self.drift,
        )

    def over(self, under: Clock) -> Clock:
        """This clock against the reference of `under`, where `under` is the clock that this one refers to."""
        # `under` runs on its own time; what it shows at u stands at u + difference on this clock's time.
        there = np.where(np.isfinite(under.valid_from), under.valid_from, under.t0)
        back = self.inverted()
        lifted = Clock(
            under.t0 - back.at(under.t0),
            under.valid_from - np.where(np.isfinite(under.valid_from), back.difference(there), 0.0),
            under.offset,
            under.drift,
        )
        return self.plus(lifted)


def constant(offset: float = 0.0, t0: float = 0.0) -> Clock:
    """A clock that is off by the same amount for ever."""
    return Clock(t0, np.array([-np.inf]), np.array([offset], dtype=np.float64), np.zeros(1))


def scatter(values: Floats) -> float:
    """Robust standard deviation: 1.4826 times the median distance from the median; 0.0 for no values."""
    if len(values) == 0:
        return 0.0
    off = values - median(values)
    return 1.4826 * median_of(np.abs(off, out=off))


def median(values: Floats) -> float:
    """The median of one or more values; numpy's own spends most of its time on checks."""
    return median_of(values.copy())


def median_of(values: Floats) -> float:
    """The same, of values that it puts into another order."""
    middle = len(values) // 2
    values.partition(middle)
    if len(values) % 2:
        return float(values[middle])
    return (float(values[:middle].max()) + float(values[middle])) / 2


def _upper_end(values: Floats) -> float:
    """The 95th percentile, the nearest value above, of values that it puts into another order."""
    place = min(len(values) - 1, int(0.95 * len(values)))
    values.partition(place)
    return float(values[place])


def fit_line(time: Floats, value: Floats, *, with_drift: bool = True) -> tuple[float, float, float]:
    """A robust straight line through readings.

    Args:
        time: float64 ns, ascending.
        value: float64 ns, the readings.
        with_drift: false fits a level only.

    Returns:
        (value at the mean time, slope, mean time). The slope is 0 where its standard error times the length of the
        readings would exceed their 95th percentile of deviation: then the readings carry no drift.
    """
    middle = float(time.mean())
    centred = time - middle
    level = median(value)
    slope = 0.0
    length = float(time[-1] - time[0])
    fits_drift = with_drift and length > 0 and len(time) >= 4
    if fits_drift:
        level, slope = _median_line(centred, value, level)
    # Fresh memory costs more than the sums: all rounds work in these.
    rest, off, spare = (np.empty_like(centred) for _ in range(3))
    for _ in range(3):
        _less_line(value, level, slope, centred, out=rest, spare=spare)
        spare[:] = rest
        np.subtract(rest, median_of(spare), out=off)
        np.abs(off, out=off)
        spare[:] = off
        near = off <= _scatter_width(spare)
        x, y = centred[near], value[near]
        x_mean, y_mean = float(x.mean()), float(y.mean())
        x_off, product = np.subtract(x, x_mean, out=off[: len(x)]), spare[: len(x)]
        spread = float(np.square(x_off, out=product).sum())
        old = (level, slope)
        if fits_drift and spread > 0:
            y_off = np.subtract(y, y_mean, out=rest[: len(x)])
            slope = float(np.multiply(x_off, y_off, out=product).sum() / spread)
        level = y_mean - slope * x_mean
        if abs(level - old[0]) < 0.05 and abs(slope - old[1]) * length < 0.05:
            break
    if fits_drift and spread > 0:
        rest, spare = rest[: len(x)], spare[: len(x)]
        _less_line(y, level, slope, x, out=rest, spare=spare)
        error = float(np.sqrt(np.square(rest, out=spare).sum() / max(len(x) - 2, 1) / spread))
        if error * length > max(_upper_end(np.abs(rest, out=rest)), 1.0):
            return fit_line(time, value, with_drift=False)
    return level, slope, middle


def _less_line(value: Floats, level: float, slope: float, x: Floats, *, out: Floats, spare: Floats) -> None:
    """What a line leaves of the values."""
    np.multiply(x, slope, out=spare)
    np.subtract(value, level, out=out)
    out -= spare


def _scatter_width(off: Floats) -> float:
    """Three standard deviations of distances from the median; coarse clocks put more than half of them at 0.

    Args:
        off: the distances, which it puts into another order.
    """
    kept = (3 * len(off) + 3) // 4
    off.partition(kept - 1)
    least = 4.0 * float(off[:kept].mean())
    return max(3.0 * 1.4826 * median_of(off), least, 1.0)


def _median_line(centred: Floats, value: Floats, level: float) -> tuple[float, float]:
    """A first line that outliers cannot tilt: the median slope between block medians half the readings apart."""
    x, y, _ = _block_medians(centred, value)
    half = len(x) // 2
    if half < 1:
        return level, 0.0
    run = x[-half:] - x[:half]
    usable = run > 0
    if not usable.any():
        return level, 0.0
    slope = median((y[-half:] - y[:half])[usable] / run[usable])
    return median(value - slope * centred), slope


def _block_medians(time: Floats, value: Floats) -> tuple[Floats, Floats, int]:
    """Medians of equal blocks of consecutive readings, and the block length; the last block takes the remainder."""
    size = max(_BLOCK_MINIMUM, len(time) // _BLOCKS) if len(time) >= 4 * _BLOCK_MINIMUM else max(1, len(time) // 8)
    count = len(time) // size
    cut = count * size
    return (
        np.asarray(time[:cut].reshape(count, size).mean(axis=1)),
        _row_medians(value[:cut].reshape(count, size)),
        size,
    )


def _row_medians(values: Floats) -> Floats:
    """Median of each row of a matrix."""
    count, size = values.shape
    middle = size // 2
    result = np.empty(count)
    for part in blocks(0, count, max(1, _SORTED // size)):
        ordered = np.partition(values[part], middle, axis=1)
        result[part] = ordered[:, middle]
        if size % 2 == 0:
            result[part] += ordered[:, :middle].max(axis=1)
            result[part] /= 2
    return result


def fit_clock(time: Floats, value: Floats, *, jumps: bool = True, with_drift: bool = True) -> Clock:
    """The clock behind readings of its difference: a robust line, or several where the clock was stepped.

    Args:
        time: float64 ns, ascending, the clock's own time of each reading.
        value: float64 ns, own minus reference time.
        jumps: look for steps. One is believed where two lines differ at the break by more than 1 us, four times the
            scatter of single readings, and explain the readings far better than one line.
        with_drift: false fits levels only.

    Raises:
        ValueError: no readings.
    """
    if len(time) == 0:
        raise ValueError("a clock needs at least one reading")
    breaks = _find_breaks(time, value, JUMP_LIMIT) if jumps else []
    edges = [0, *breaks, len(time)]
    stretches = list(pairwise(edges))
    lines = [fit_line(time[a:b], value[a:b], with_drift=with_drift) for a, b in stretches]
    longest = max(range(len(lines)), key=lambda k: time[stretches[k][1] - 1] - time[stretches[k][0]])
    for k, (a, b) in enumerate(stretches):
        # A step leaves the oscillator as it was; a short stretch cannot claim another drift.
        if b - a < SEGMENT_MINIMUM or abs(lines[k][1] - lines[longest][1]) > DRIFT_CHANGE:
            slope = lines[longest][1]
            level, _, middle = fit_line(time[a:b], value[a:b] - slope * time[a:b], with_drift=False)
            lines[k] = (level + slope * middle, slope, middle)
    t0 = float(time[0] + time[-1]) / 2
    return Clock(
        t0,
        np.array([-np.inf] + [float(time[i - 1] + time[i]) / 2 for i in breaks]),
        np.array([level + slope * (t0 - middle) for level, slope, middle in lines]),
        np.array([slope for _, slope, _ in lines]),
    )


def _find_breaks(time: Floats, value: Floats, limit: int) -> list[int]:
    """Indices at which a new stretch of readings begins, ascending; at most `limit` of them."""
    breaks: list[int] = []
    stretches = [(0, len(time))]
    while stretches and len(breaks) < limit:
        begin, end = stretches.pop()
        found = _find_break(time[begin:end], value[begin:end])
        if found is not None:
            breaks.append(begin + found)
            stretches += [(begin, begin + found), (begin + found, end)]
    return sorted(breaks)


def _find_break(time: Floats, value: Floats) -> int | None:
    """The index where one line through the readings should be two, or None."""
    if len(time) < 2 * SEGMENT_MINIMUM:
        return None
    x, y, size = _block_medians(time, value)
    block_count = len(x)
    margin = max(3, -(-SEGMENT_MINIMUM // size))
    if block_count < 2 * margin:
        return None
    x = x - x.mean()
    # Sums over the first k blocks give the residual of a line through any stretch in constant time.
    unit = max(float(np.abs(x).max()), 1.0)
    x = x / unit
    shift = median(y)
    y = y - shift
    sums = [np.concatenate(([0.0], np.cumsum(term))) for term in (np.ones(block_count), x, y, x * x, x * y, y * y)]
    cuts = np.arange(margin, block_count - margin + 1)
    left = [s[cuts] for s in sums]
    right = [s[-1] - s[cuts] for s in sums]
    whole = _line_from_sums(*(np.array([s[-1]]) for s in sums))
    level_l, slope_l, error_l = _line_from_sums(*left)
    level_r, slope_r, error_r = _line_from_sums(*right)
    best = int(np.argmin(error_l + error_r))
    cut = int(cuts[best])
    inner = value[: block_count * size].reshape(block_count, size) - (y + shift)[:, None]
    single = scatter(inner.ravel())
    at = (x[cut - 1] + x[cut]) / 2
    step = abs(level_r[best] + slope_r[best] * at - level_l[best] - slope_l[best] * at)
    two = float(error_l[best] + error_r[best])
    # The blocks of a clock without a step are explained by one line nearly as well as by two.
    if step < max(JUMP_FLOOR_NS, 4.0 * single) or float(whole[2][0]) < 4.0 * max(two, 1e-9):
        return None
    # The step lies within a few blocks of the cut: find the reading after it by the lines of clean readings.
    begin = max(_BLOCK_MINIMUM, (cut - 2) * size)
    end = min((cut + 3) * size, len(time) - _BLOCK_MINIMUM)
    longer = slice(0, begin) if begin >= len(time) - end else slice(end, None)
    level, slope, middle = fit_line(time[longer], value[longer])
    rest = value - level - slope * (time - middle)
    before, after = median(rest[:begin]), median(rest[end:])
    near = rest[begin:end]
    to_left, to_right = np.minimum(np.abs(near - before), step), np.minimum(np.abs(near - after), step)
    cost = np.concatenate(([0.0], np.cumsum(to_left))) + np.concatenate((np.cumsum(to_right[::-1])[::-1], [0.0]))
    return begin + int(np.argmin(cost))


def _line_from_sums(
    n: Floats, x: Floats, y: Floats, xx: Floats, xy: Floats, yy: Floats
) -> tuple[Floats, Floats, Floats]:
    """Least-squares level, slope and squared error from sums, one line per element."""
    spread = np.maximum(xx - x * x / n, 1e-12)
    cross = xy - x * y / n
    slope = cross / spread
    level = (y - slope * x) / n
    return level, slope, np.maximum(yy - y * y / n - slope * cross, 0.0)
