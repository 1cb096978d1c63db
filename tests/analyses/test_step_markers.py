"""Marks of steps: each that a rank launched anything under is a step of that rank, in the order of time."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.analyses.step_markers import _used_marks


@st.composite
def marked_calls(draw: st.DrawFn) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Marks as (process, start), and calls as (mark or -1, place of a rank or -1); a rank is of one process."""
    marks = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=12))
    process_of_place = draw(st.lists(st.integers(0, 3), min_size=1, max_size=5))
    calls = []
    for _ in range(draw(st.integers(0, 20))):
        mark = draw(st.integers(-1, len(marks) - 1))
        own = [place for place, process in enumerate(process_of_place) if mark >= 0 and process == marks[mark][0]]
        calls.append((mark, draw(st.sampled_from([-1, *own]))))
    return [process for process, _ in marks], [start for _, start in marks], calls


@settings(deadline=None)
@given(marked_calls())
def test_steps_are_the_used_marks_of_each_rank_in_time(drawn: tuple[list[int], list[int], list[tuple[int, int]]]) -> None:  # fmt: skip
    processes, starts, calls = drawn
    marks = pl.DataFrame({"process": processes}, schema={"process": pl.Int32})
    of_call = np.array([mark for mark, _ in calls], np.int64)
    place = np.array([where for _, where in calls], np.int64)
    _, step_of_call, of_place, mark = _used_marks(marks, np.array(starts, np.int64), of_call, place)
    right = sorted(
        {(where, starts[one], one) for one, where in calls if one >= 0 and where >= 0},
    )
    assert list(zip(of_place.tolist(), mark.tolist(), strict=True)) == [(where, one) for where, _, one in right]
    steps = {(where, one): number for number, (where, _, one) in enumerate(right)}
    assert step_of_call.tolist() == [steps.get((where, one), -1) for one, where in calls]
