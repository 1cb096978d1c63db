"""Blocks and intervals: when neighbours are alike, and how sure a difference is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.analyses.evidence import autocorrelation, block_length, block_means, blocks_for, welch_interval


def ar1(rng: np.random.Generator, count: int, rho: float) -> np.ndarray:
    """A series whose neighbours correlate by rho."""
    noise = rng.standard_normal(count + 200)
    series = np.zeros(count + 200)
    for place in range(1, len(series)):
        series[place] = rho * series[place - 1] + noise[place]
    return series[200:]


def test_autocorrelation_of_an_alternating_series_is_minus_one():
    series = np.array([1.0, -1.0] * 500)
    assert autocorrelation(series, 1) == pytest.approx(-1, abs=0.01)
    assert autocorrelation(series, 2) == pytest.approx(1, abs=0.01)
    assert autocorrelation(np.full(10, 3.0), 1) == 0.0


def test_independent_steps_are_their_own_blocks_and_correlated_ones_are_not():
    rng = np.random.default_rng(1)
    assert block_length(rng.standard_normal(1000)) == 1
    long = block_length(ar1(rng, 1000, 0.6))
    assert 6 <= long <= 24  # 0.6^k falls under 0.1 at k = 5: twice that, give or take the scatter


def test_blocks_never_leave_fewer_than_six():
    trend = np.arange(60.0)
    assert block_length(trend) == 10


def test_block_means_spread_the_remainder():
    """Seven steps in blocks of two: three blocks of 2, 3 and 2 steps.

    steps   0 1 | 2 3 4 | 5 6
    """
    series = np.arange(7.0)
    assert block_means([series], 2).tolist() == [0.5, 3.0, 5.5]
    assert block_means([np.array([1.0, 3.0]), np.array([5.0])], 0).tolist() == [2.0, 5.0]


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (5, 50, "5 independent blocks"),
        (50, 50, ""),
    ],
)
def test_too_few_blocks_give_no_interval(before: int, after: int, reason: str):
    rng = np.random.default_rng(5)
    blocks = blocks_for([rng.standard_normal(before)], [rng.standard_normal(after)])
    assert blocks.reason.startswith(reason)
    assert bool(blocks.reason) == bool(reason)


def test_few_correlated_steps_give_no_interval():
    blocks = blocks_for([ar1(np.random.default_rng(2), 50, 0.8)], [ar1(np.random.default_rng(3), 50, 0.8)])
    assert "like its neighbours" in blocks.reason or "blocks" in blocks.reason


def test_two_captures_on_both_sides_are_the_blocks():
    rng = np.random.default_rng(4)
    blocks = blocks_for(
        [rng.standard_normal(9), rng.standard_normal(9)], [rng.standard_normal(9), rng.standard_normal(9)]
    )
    assert (blocks.length, blocks.before, blocks.after, blocks.reason) == (0, 2, 2, "")


def test_welch_interval_of_known_samples():
    """Five against five with unit variance: t(8) = 2.306, standard error sqrt(2/5)."""
    before = np.array([-1.0, 1.0, 0.0, -1.0, 1.0])
    after = before + 10
    low, high = welch_interval(before, after)
    half = 2.306 * np.sqrt(2 * before.var(ddof=1) / 5)
    assert low == pytest.approx(10 - half, rel=1e-3)
    assert high == pytest.approx(10 + half, rel=1e-3)


def test_an_interval_of_constants_is_a_point():
    low, high = welch_interval(np.full((6, 2), 3.0), np.full((6, 2), [3.0, 5.0]))
    assert low.tolist() == high.tolist() == [0.0, 2.0]


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_more_rows_widen_every_interval(seed: int):
    rng = np.random.default_rng(seed)
    before, after = rng.standard_normal(12), rng.standard_normal(9)
    one, many = welch_interval(before, after, 1), welch_interval(before, after, 20)
    assert many[0] <= one[0] <= one[1] <= many[1]


def test_equal_runs_with_steps_alike_are_rarely_called_different():
    """400 pairs of equal runs whose steps correlate at 0.6: a plain Welch test on steps would find a third of them."""
    rng = np.random.default_rng(6)
    found = plain = 0
    for _ in range(400):
        before, after = ar1(rng, 300, 0.6), ar1(rng, 300, 0.6)
        blocks = blocks_for([before], [after])
        assert not blocks.reason
        low, high = welch_interval(block_means([before], blocks.length), block_means([after], blocks.length))
        found += bool(low > 0 or high < 0)
        low, high = welch_interval(before, after)
        plain += bool(low > 0 or high < 0)
    assert found / 400 < 0.08
    assert plain / 400 > 0.2
