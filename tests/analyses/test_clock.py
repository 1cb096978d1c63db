"""A clock is found from readings of its difference, however dirty they are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.analyses.clock import Clock, constant, fit_clock, fit_line, median


def readings(count=2000, offset=9_000.0, ppm=12.0, noise=150.0, seed=0, length=2e9):
    rng = np.random.default_rng(seed)
    time = np.sort(rng.uniform(0, length, count))
    return time, offset + ppm * 1e-6 * (time - length / 2) + rng.normal(0, noise, count), rng


def test_a_line_survives_one_fifth_of_outliers():
    """2,000 readings of a clock 9 us ahead that gains 12 ppm; every fifth is up to 40 us wrong, to one side."""
    time, value, rng = readings()
    value[::5] += rng.uniform(5_000, 40_000, len(value[::5]))
    clock = fit_clock(time, value).moved(1e9)
    assert clock.offset == pytest.approx([9_000], abs=15)
    assert clock.drift * 1e6 == pytest.approx([12], abs=0.05)


def test_too_short_a_stretch_carries_no_drift():
    """30 readings within 1 ms, scattered by 150 ns: a slope would be noise, so it is 0."""
    rng = np.random.default_rng(3)
    time = np.sort(rng.uniform(0, 1e6, 4))
    _, slope, _ = fit_line(time, rng.normal(0, 150, 4))
    assert slope == 0.0


@pytest.mark.parametrize("size", [-12_400, 2_000, 9_000])
def test_a_step_is_found_where_it_happened(size):
    """The difference jumps after 40 % of the capture:  ______
    ______|
    """
    time, value, _ = readings(seed=1)
    after = time >= 0.8e9
    clock = fit_clock(time, value + np.where(after, size, 0.0))
    assert len(clock.offset) == 2
    assert np.count_nonzero((time >= clock.valid_from[1]) != after) <= 1
    assert clock.at(1.9e9) - clock.at(0.1e9) == pytest.approx(size + 12e-6 * 1.8e9, abs=60)


@pytest.mark.parametrize("seed", range(20))
def test_scatter_and_drift_alone_give_no_step(seed):
    time, value, _ = readings(seed=seed, noise=300.0)
    assert len(fit_clock(time, value).offset) == 1


def test_inverse_and_sum():
    """b is 5 ms ahead of a and drifts; c is 2 us behind b and was stepped: c against a, and back."""
    b_of_a = Clock(1e9, np.array([-np.inf]), np.array([5e6]), np.array([20e-6]))
    c_of_b = Clock(1.2e9, np.array([-np.inf, 1.1e9]), np.array([-2e3, 7e3]), np.array([-10e-6, -10e-6]))
    c_of_a = c_of_b.over(b_of_a)
    on_c = np.array([0.9e9, 1.3e9])
    on_b = on_c - c_of_b.difference(on_c)
    on_a = on_b - b_of_a.difference(on_b)
    assert on_c - c_of_a.difference(on_c) == pytest.approx(on_a, abs=0.2)
    back = c_of_a.inverted()
    assert on_a - back.difference(on_a) == pytest.approx(on_c, abs=0.2)


def test_a_constant_clock():
    assert constant(3.0).difference(np.array([0.0, 1e12])).tolist() == [3.0, 3.0]


def test_no_readings_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        fit_clock(np.empty(0), np.empty(0))


@given(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=50))
@settings(max_examples=100, deadline=None)
def test_median_is_numpys(values):
    assert median(np.array(values, float)) == np.median(values)
