"""Marks of steps: each that a rank launched anything under is a step of that rank, in the order of time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.analyses import blocks
from tracelens.analyses.step_markers import OUTSIDE, UNKNOWN, _followed, _marks_of_calls, _used_marks
from tracelens.analyses.timeline import Timeline
from tracelens.array_room import ArrayRoom

TRACE = SimpleNamespace(room=ArrayRoom(1 << 20, Path()), threads=2)


class Drawn(SimpleNamespace):
    """What is needed of a timeline: ranks with their events and calls."""

    stretches, place_of, each = Timeline.stretches, Timeline.place_of, Timeline.each

    def __len__(self) -> int:
        return len(self.launch)


@st.composite
def marked_calls(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[list[int]]]:
    """Per mark its process, ascending; per rank its process; per call its mark or -1; per rank the calls of its events,
    -1 for none: a call has a mark of the process that its ranks belong to."""
    marks = sorted(draw(st.lists(st.integers(0, 3), min_size=1, max_size=12)))
    ranks = draw(st.lists(st.integers(0, 3), min_size=1, max_size=5))
    calls = draw(st.lists(st.integers(-1, len(marks) - 1), max_size=20))
    events = []
    for process in ranks:
        own = [call for call, mark in enumerate(calls) if mark < 0 or marks[mark] == process]
        events.append(draw(st.lists(st.sampled_from([-1, *own]), min_size=1, max_size=12)))
    return marks, ranks, calls, events


@settings(deadline=None)
@given(marked_calls())
def test_steps_are_the_used_marks_of_each_rank_in_time(
    drawn: tuple[list[int], list[int], list[int], list[list[int]]],
) -> None:
    marks, ranks, calls, events = drawn
    tl = Drawn(
        trace=TRACE,
        rank_table=pl.DataFrame({"process": ranks}, schema={"process": pl.Int32}),
        first=np.cumsum([0, *map(len, events)]),
        launch=np.array([call for own in events for call in own], np.int32),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", 5)
        member, place, mark = _used_marks(tl, np.array(marks), np.array([*calls, UNKNOWN], np.int32))
    right = sorted({(rank, calls[call]) for rank, own in enumerate(events) for call in own if call >= 0 <= calls[call]})
    assert list(zip(place.tolist(), mark.tolist(), strict=True)) == right
    number = {step: at for at, step in enumerate(right)}
    assert member.tolist() == [
        UNKNOWN if call < 0 else number.get((rank, calls[call]), OUTSIDE)
        for rank, own in enumerate(events)
        for call in own
    ]


THREADS = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
"""(process, thread); the last of process 0 launches nothing."""


@settings(deadline=None)
@given(
    calls=st.lists(st.tuples(st.sampled_from([0, 1, 3, 4]), st.integers(0, 9)), max_size=30),
    marks=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=12),
)
def test_a_call_follows_the_last_mark_of_its_thread_or_process(
    calls: list[tuple[int, int]], marks: list[tuple[int, int]]
) -> None:
    """Threads of process 0: two that launch, one that only marks; of process 1 two. Times are equal now and then."""
    calls = sorted(calls, key=lambda call: (THREADS[call[0]][0], call[1]))
    marks = sorted(marks, key=lambda mark: (THREADS[mark[0]][0], mark[1], mark[0]))
    launching = sorted({thread for thread, _ in calls})
    codes = {thread: code for code, thread in enumerate([*launching, *({0, 1, 2, 3, 4} - set(launching))])}
    tl = SimpleNamespace(
        trace=TRACE,
        launches=SimpleNamespace(
            begin=np.array([begin for _, begin in calls], np.int64),
            thread=np.array([codes[thread] for thread, _ in calls], np.uint8),
            threads=pl.DataFrame({"process": [THREADS[one][0] for one in launching]}, schema={"process": pl.Int32}),
        ),
    )
    start = np.array([begin for _, begin in marks], np.int64)
    process = np.array([THREADS[thread][0] for thread, _ in marks])
    code = np.array([codes[thread] for thread, _ in marks])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", 5)
        found = _marks_of_calls(tl, start, _followed(tl.launches, process, code))
    expected = []
    for thread, begin in calls:
        followed = {other for other, _ in marks if other == thread}
        if not followed:
            own = [other for other, _ in calls if THREADS[other][0] == THREADS[thread][0]]
            on_marked = sum(any(other == one for one, _ in marks) for other in own)
            if on_marked < len(own) / 2:
                followed = {other for other in range(5) if THREADS[other][0] == THREADS[thread][0]}
        before = [at for at, (other, time) in enumerate(marks) if other in followed and time <= begin]
        expected.append(max(before, default=OUTSIDE))
    assert found.tolist() == [*expected, UNKNOWN]
