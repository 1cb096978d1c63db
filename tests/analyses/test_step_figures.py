"""Exclusive time per step and name, against counting every nanosecond."""

import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.analyses import step_figures as module
from tracelens.analyses.step_figures import step_figures


class Events:
    """The part of a trace that the figures read: the table event_row."""

    def __init__(self, rank, name, start, end):
        self.db = duckdb.connect()
        frame = {
            "rank": np.array(rank, np.int32),
            "name_id": np.array(name, np.int32),
            "start_ns": np.array(start, np.int64),
        }
        self.db.register("event_row", pl.DataFrame(frame | {"end_ns": np.array(end, np.int64)}).to_arrow())


def windows(*rows):
    return pl.DataFrame(list(rows), schema=["rank", "step", "start_ns", "end_ns"], orient="row")


def test_an_owned_interval_is_cut_at_the_edge():
    """One rank, two steps; B starts inside A, and runs over the edge at 20.

    ns       0        10        20        30
    A (0)    |---------------|16
    B (1)          |--8---------------|26
    steps    [ 0                 [20 1       [40
    owned    A 0-16, B 16-26: 4 ns in step 0, 6 in step 1
    """
    found = step_figures(Events([0, 0], [0, 1], [0, 8], [16, 26]), windows((0, 0, 0, 20), (0, 1, 20, 40)), 2)
    assert found.elapsed_ns.tolist() == [[16, 4], [0, 6]]
    assert found.calls.tolist() == [[1, 1], [0, 0]]
    assert found.rank_elapsed_ns.tolist() == [[16, 10]]


def test_the_part_before_a_time_is_summed_apart():
    """A collective from 5 to 25 whose last member arrives at 22: 17 ns of waiting, of which 15 in step 0.

    steps    [0 0            [20 1       [40
    event         |5----------22-|25
    """
    until = np.array([0]), np.array([22])
    found = step_figures(Events([0], [0], [5], [25]), windows((0, 0, 0, 20), (0, 1, 20, 40)), 1, until)
    assert found.elapsed_ns.tolist() == [[15], [5]]
    assert found.early_ns.tolist() == [[15], [2]]


@st.composite
def captures(draw):
    """Events of three ranks in order, and disjoint windows on two of them."""
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(-5, 60), st.integers(0, 25), st.integers(0, 2)),
            min_size=1,
            max_size=40,
        )
    )
    rows = sorted((rank, start, -(start + length), name) for rank, start, length, name in rows)
    steps = []
    for rank in (0, 2):
        at = -3
        for number in range(draw(st.integers(1, 4))):
            begin = at + draw(st.integers(0, 8))
            at = begin + draw(st.integers(1, 15))
            steps.append((rank, number, begin, at))
    return [(rank, start, -end, name) for rank, start, end, name in rows], steps


@given(captures(), st.sampled_from([1, 7, 1000]))
@settings(max_examples=150, deadline=None)
def test_figures_equal_counting_every_nanosecond(capture, batch_rows):
    rows, steps = capture
    rank, start, end, name = zip(*rows, strict=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BATCH_ROWS", batch_rows)
        found = step_figures(Events(rank, name, start, end), windows(*steps), 3)
    elapsed = np.zeros_like(found.elapsed_ns)
    calls = np.zeros_like(found.calls)
    for of in (0, 2):
        owner = {}
        for one, begin, stop, what in rows:
            if one == of:
                for instant in range(begin, stop):
                    owner.setdefault(instant, what)
        for one, step, begin, stop in steps:
            if one == of:
                for instant in range(begin, stop):
                    if instant in owner:
                        elapsed[step, owner[instant]] += 1
                for other, started, _, what in rows:
                    calls[step, what] += other == of and begin <= started < stop
    assert found.elapsed_ns.tolist() == elapsed.tolist()
    assert found.calls.tolist() == calls.tolist()
    assert found.rank_elapsed_ns.sum() == elapsed.sum()
