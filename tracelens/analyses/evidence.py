"""How sure a difference between two runs is: intervals that respect that steps resemble their neighbours.

Steps are not independent: clocks, batch composition and context drift, so neighbouring steps are alike and an interval
from single steps is too narrow (at a lag-1 autocorrelation of 0.6 a plain bootstrap calls a third of equal pairs
different). Steps are therefore averaged in blocks long enough to forget, and the blocks are compared by Welch's test
(B. L. Welch, Biometrika 34, 1947; batch means: G. S. Fishman, Management Science 24, 1978).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracelens.units import plural

Floats = NDArray[np.float64]

CORRELATED = 0.1
FEWEST_BLOCKS = 6
FEWEST_CORRELATED_STEPS = 60
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Blocks:
    """How two runs' steps are averaged before they are compared.

    Attributes:
        length: steps per block; 1 where steps are independent, 0 where captures are the blocks.
        before, after: number of blocks on each side.
        reason: why no interval can be given; empty where one can.
    """

    length: int
    before: int
    after: int
    reason: str = ""


def autocorrelation(series: Floats, lag: int) -> float:
    """The sample autocorrelation of a series at a lag; 0 for a constant or too short one."""
    if len(series) <= lag + 1:
        return 0.0
    centred = series - series.mean()
    power = float(centred @ centred)
    return float(centred[:-lag] @ centred[lag:]) / power if power > 0 else 0.0


def block_length(series: Floats) -> int:
    """Steps per block: 1 if neighbours are not alike, else twice the first lag at which they no longer are.

    At most a sixth of the series, so that six blocks remain.
    """
    if abs(autocorrelation(series, 1)) < CORRELATED or autocorrelation(series, 1) < 0:
        return 1
    longest = max(1, len(series) // FEWEST_BLOCKS)
    for lag in range(2, longest + 1):
        if autocorrelation(series, lag) < CORRELATED:
            return min(2 * lag, longest)
    return longest


def blocks_for(before: list[Floats], after: list[Floats]) -> Blocks:
    """The blocks in which two sides are compared, from the durations of their steps.

    Args:
        before, after: one series of step durations per capture, in order of time.
    """
    if len(before) >= 2 and len(after) >= 2:
        return Blocks(0, len(before), len(after))
    length = max(block_length(series) for series in [*before, *after])
    counts = [sum(_count(len(series), length) for series in side) for side in (before, after)]
    correlated = any(autocorrelation(series, 1) > CORRELATED for series in [*before, *after])
    shortest = min(sum(len(series) for series in side) for side in (before, after))
    if min(counts) < FEWEST_BLOCKS:
        reason = f"{plural(min(counts), 'independent block')} of {plural(length, 'step')} on one side, {FEWEST_BLOCKS} are needed"
    elif correlated and shortest < FEWEST_CORRELATED_STEPS:
        reason = (
            f"{plural(shortest, 'step')} on one side, each like its neighbours, {FEWEST_CORRELATED_STEPS} are needed"
        )
    else:
        reason = ""
    return Blocks(length, counts[0], counts[1], reason)


def block_means(side: list[Floats], length: int) -> Floats:
    """Means over blocks, along the first axis of each series; the remainder is spread over the blocks.

    Args:
        side: one array (steps, ...) per capture.
        length: steps per block; 0: a capture is one block.

    Returns:
        array (blocks, ...).
    """
    parts = []
    for series in side:
        count = 1 if length == 0 else _count(len(series), length)
        if not count:
            continue
        edges = np.linspace(0, len(series), count + 1).round().astype(np.int64)
        sums = np.add.reduceat(series, edges[:-1], axis=0)
        sizes = np.diff(edges).reshape(-1, *([1] * (series.ndim - 1)))
        parts.append(sums / sizes)
    return np.concatenate(parts) if parts else np.zeros((0, *side[0].shape[1:]))


def welch_interval(before: Floats, after: Floats, comparisons: int = 1) -> tuple[Floats, Floats]:
    """The confidence interval of mean(after) - mean(before), for each trailing index.

    Args:
        before, after: arrays (blocks, ...) of block means, two blocks or more.
        comparisons: how many intervals one table holds; each is widened so that all hold together (Bonferroni).

    Returns:
        (low, high), both of the trailing shape; equal where neither side varies.
    """
    from scipy.special import stdtrit  # Student's t quantile; scipy.stats alone costs half a second to import

    mean = after.mean(axis=0) - before.mean(axis=0)
    spread = [side.var(axis=0, ddof=1) / len(side) for side in (before, after)]
    variance = spread[0] + spread[1]
    denominator = spread[0] ** 2 / (len(before) - 1) + spread[1] ** 2 / (len(after) - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.where(denominator > 0, variance**2 / denominator, 1.0)
    quantile = stdtrit(np.maximum(freedom, 1.0), 1 - (1 - CONFIDENCE) / (2 * max(comparisons, 1)))
    half = np.where(variance > 0, quantile * np.sqrt(variance), 0.0)
    return mean - half, mean + half


def _count(steps: int, length: int) -> int:
    return steps // length if length else 1
