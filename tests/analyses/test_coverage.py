"""Unions and differences of intervals, against painting every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analyses.coverage import Coverage

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=25)


def coverage(intervals: list[tuple[int, int]]) -> Coverage:
    ordered = sorted((start, start + length) for start, length in intervals)
    starts = np.array([start for start, _ in ordered], np.int64)
    ends = np.array([end for _, end in ordered], np.int64)
    return Coverage.of_events(starts, ends)


def painted(intervals: list[tuple[int, int]]) -> np.ndarray:
    """One flag per nanosecond."""
    line = np.zeros(80, bool)
    for start, length in intervals:
        line[start : start + length] = True
    return line


def test_touching_intervals_are_one_piece_and_empty_ones_are_none() -> None:
    """0-5, 5-8, 6-7 inside, 10-10 empty, 12-13."""
    found = coverage([(0, 5), (5, 3), (6, 1), (10, 0), (12, 1)])
    assert list(zip(found.starts.tolist(), found.ends.tolist(), strict=True)) == [(0, 8), (12, 13)]
    assert found.total_ns == 9


def test_nothing_covers_nothing() -> None:
    empty = coverage([])
    assert empty.total_ns == 0
    assert empty.within(np.array([0, 5]), np.array([5, 9])).tolist() == [0, 0]
    assert coverage([(1, 2)]).without(empty).total_ns == 2
    assert empty.without(coverage([(1, 2)])).total_ns == 0


@given(INTERVALS, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 19)), max_size=5))
def test_windows_hold_what_is_painted_in_them(intervals: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    line = painted(intervals)
    low = np.array([start for start, _ in windows], np.int64)
    high = np.array([start + length for start, length in windows], np.int64)
    expected = [int(line[start : start + length].sum()) for start, length in windows]
    assert coverage(intervals).within(low, high).tolist() == expected


@given(INTERVALS, INTERVALS)
def test_a_difference_is_what_only_the_first_paints(ours: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    left = coverage(ours).without(coverage(others))
    expected = painted(ours) & ~painted(others)
    line = np.zeros(80, bool)
    for start, end in zip(left.starts, left.ends, strict=True):
        assert not line[start:end].any()
        line[start:end] = True
    assert line.tolist() == expected.tolist()
    assert left.total_ns == int(expected.sum())
