"""Fits: a known lambda is found within its interval, published tables are reproduced, and what cannot be is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analyses.scaling_fit import affine_fit, curve_fit, lambda_at
from tracelens.errors import NotIdentifiableError

T1_US = 4480.6
ALL_REDUCES = 64
SIZES = np.array([1, 2, 4, 8])
NO_BANDWIDTH = [0.0] * 4


def steps(lambda_us: float) -> np.ndarray:
    return T1_US / SIZES + np.where(SIZES > 1, ALL_REDUCES * lambda_us, 0.0)


@pytest.mark.parametrize("known_t1_us", [None, T1_US], ids=["t1-free", "t1-from-bytes"])
@pytest.mark.parametrize("lambda_us", [5.0, 10.0, 20.0])
def test_a_known_lambda_is_found_through_noise(lambda_us: float, known_t1_us: float | None) -> None:
    """1,000 draws with 1 % noise: unbiased, the 95 % interval covers in 93 to 97 %, and 95 % lie within 5 % from 10 us."""
    draws = np.random.default_rng(7).normal(1, 0.01, (1000, 4))
    fits = [
        curve_fit(SIZES, row, all_reduces=ALL_REDUCES, bandwidths_us=NO_BANDWIDTH, known_t1_us=known_t1_us).lambda_us
        for row in steps(lambda_us) * draws
    ]
    values = np.array([fit.value for fit in fits])
    covered = np.mean(
        [fit.low is not None and fit.low <= lambda_us <= fit.high for fit in fits if fit.high is not None]
    )
    assert np.mean(values) == pytest.approx(lambda_us, rel=0.01)
    assert 0.93 <= covered <= 0.97
    if lambda_us >= 10:
        assert np.mean(abs(values / lambda_us - 1) < 0.05) >= 0.95


def test_weights_are_those_of_the_definition() -> None:
    """A brute-force minimum of sum(((t - model) / t)^2) over a grid is where the fit says."""
    measured = steps(7.0) * np.array([1.01, 0.98, 1.02, 0.99])
    fit = curve_fit(SIZES, measured, all_reduces=ALL_REDUCES, bandwidths_us=NO_BANDWIDTH)

    def cost(t1_us: float, lambda_us: float) -> float:
        model = t1_us / SIZES + np.where(SIZES > 1, ALL_REDUCES * lambda_us, 0.0)
        return float(np.sum(((measured - model) / measured) ** 2))

    best = cost(fit.t1_us.value, fit.lambda_us.value)
    for t1_factor in (0.999, 1.0, 1.001):
        for lambda_shift in (-0.05, 0.0, 0.05):
            assert best <= cost(fit.t1_us.value * t1_factor, fit.lambda_us.value + lambda_shift) + 1e-15


PUBLISHED = [
    ("7B bs1 H100", [153.8, 128.6, 107.4, 97.6], 63.8, 91.9, 0.983),
    ("7B bs1 A100", [234.0, 171.7, 143.7, 136.5], 114.2, 117.9, 0.993),
    ("7B bs8 H100", [199.2, 156.2, 134.6, 129.1], 82.1, 116.3, 0.996),
    ("7B bs8 A100", [329.5, 237.6, 196.4, 181.9], 171.4, 156.0, 0.996),
    ("13B bs1 H100", [86.4, 69.7, 61.4], 33.3, 53.1, 1.000),
]


@pytest.mark.parametrize(("name", "times_ms", "a", "c", "r2"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_published_whole_generation_tables(name: str, times_ms: list[float], a: float, c: float, r2: float) -> None:
    fit = affine_fit([1, 2, 4, 8][: len(times_ms)], times_ms)
    assert not fit.refusal
    assert fit.a.value == pytest.approx(a, abs=0.051)
    assert fit.c.value == pytest.approx(c, abs=0.051)
    assert fit.r2 == pytest.approx(r2, abs=0.0005)


def test_a_published_outlier_is_refused() -> None:
    fit = affine_fit([1, 2, 4], [142.5, 100.4, 207.8])
    assert fit.a.value == pytest.approx(-62.6, abs=0.05)
    assert fit.r2 == pytest.approx(0.195, abs=0.0005)
    assert "negative" in fit.refusal


def test_lambda_at_the_largest_size_swallows_waiting() -> None:
    """300 us of waiting at TP 8 look like 4.7 us more per all-reduce."""
    assert lambda_at(8, T1_US / 8 + 320 + 1.02 + 300, T1_US, 64, 1.02) == pytest.approx(9.69, abs=0.005)


@pytest.mark.parametrize(
    ("sizes", "known", "reason"),
    [
        ([8], T1_US, "1 distinct TP size cannot carry lambda"),
        ([8, 8], T1_US, "1 distinct TP size cannot carry lambda"),
        ([1, 1], None, "cannot carry lambda"),
        ([1, 8], None, "needs three"),
        ([4, 8], None, "needs three"),
        ([1, 1, 8, 8], None, "needs three"),
    ],
)
def test_too_few_sizes_are_refused(sizes: list[int], known: float | None, reason: str) -> None:
    with pytest.raises(NotIdentifiableError, match=reason):
        curve_fit(sizes, [900.0] * len(sizes), all_reduces=64, bandwidths_us=[0.0] * len(sizes), known_t1_us=known)


def test_an_affine_fit_needs_three_sizes() -> None:
    with pytest.raises(NotIdentifiableError, match="2 distinct TP sizes"):
        affine_fit([1, 8, 8], [100, 50, 51])


def test_two_sizes_carry_lambda_once_t1_is_known() -> None:
    fit = curve_fit([4, 8], steps(5)[2:], all_reduces=64, bandwidths_us=[0, 0], known_t1_us=T1_US)
    assert fit.lambda_us.value == pytest.approx(5)
    assert fit.t1_us.low is None
    assert fit.r2 is None


def test_no_degree_of_freedom_no_interval() -> None:
    fit = curve_fit([1, 2, 8], steps(5)[[0, 1, 3]], all_reduces=64, bandwidths_us=[0, 0, 0])
    assert fit.lambda_us.low is not None  # three points, two unknowns: one degree of freedom
    two = curve_fit([1, 8], [T1_US, 900.0], all_reduces=64, bandwidths_us=[0, 0], known_t1_us=T1_US)
    assert two.lambda_us.low is None


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        ([4000, 1900, 900, 400], "lambda comes out negative"),
        ([4000, 2000, 3500, 600], "R^2 is"),
    ],
)
def test_fits_that_may_not_predict(measured: list[float], reason: str) -> None:
    fit = curve_fit(SIZES, measured, all_reduces=64, bandwidths_us=NO_BANDWIDTH)
    assert reason in fit.refusal


def test_a_step_that_grows_with_the_size_gives_a_negative_t1() -> None:
    fit = curve_fit([2, 4, 8], [1000, 1500, 1750], all_reduces=64, bandwidths_us=[0, 0, 0])
    assert "t(1) comes out negative" in fit.refusal


@given(
    lambda_us=st.floats(0.1, 100),
    t1_us=st.floats(100, 1e6),
    sizes=st.lists(st.sampled_from([1, 2, 4, 6, 8, 16]), min_size=3, max_size=8).filter(
        lambda found: len(set(found)) >= 3
    ),
)
def test_exact_points_give_back_what_made_them(lambda_us: float, t1_us: float, sizes: list[int]) -> None:
    measured = [t1_us / p + (2 * 80 * lambda_us if p > 1 else 0) for p in sizes]
    fit = curve_fit(sizes, measured, all_reduces=160, bandwidths_us=[0.0] * len(sizes))
    # Points at p = 1 and one other size leave lambda to the other sizes; all of these have two above 1.
    assert fit.lambda_us.value == pytest.approx(lambda_us, rel=1e-4, abs=1e-6 * t1_us / 160)
    assert fit.t1_us.value == pytest.approx(t1_us, rel=1e-6)
