"""Members' times put in order for many instances at once, and the figures that are told from ordered times."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.analyses.clock_joint import _residual_and_typical, median_of_others
from tracelens.analyses.clock_order import middles, put_in_order

TIMES = st.integers(2, 24).flatmap(
    lambda members: st.lists(
        st.lists(st.integers(-5, 5), min_size=members, max_size=members), min_size=1, max_size=6
    )  # many equal times
)


@pytest.mark.parametrize("members", range(1, 20))
def test_every_pattern_of_early_and_late_is_put_in_order(members):
    """What sorts all columns of zeros and ones sorts everything; here all of up to 10 members, and drawn ones of more."""
    count = min(1 << members, 1024)
    drawn = np.arange(count) if members <= 10 else np.random.default_rng(members).integers(0, 1 << members, count)
    times = drawn[None, :] >> np.arange(members)[:, None] & 1
    expected = np.sort(times, axis=0)
    put_in_order(times)
    assert (times == expected).all()


@given(TIMES)
@settings(max_examples=200, deadline=None)
def test_medians_are_numpys(instances):
    times = np.array(instances, float).T
    others = [[np.median(np.delete(row, k)) for k in range(len(row))] for row in np.array(instances, float)]
    assert median_of_others(times).T.tolist() == others
    put_in_order(times)
    assert middles(times).tolist() == np.median(np.array(instances, float), axis=1).tolist()


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=80))
@settings(max_examples=300, deadline=None)
def test_residual_and_typical_deviation_are_numpys(values):
    every = np.array(values)
    assert _residual_and_typical(every.copy()) == (np.quantile(every, 0.95), np.median(every))
