"""The way from the collective before: which it was, and the work in between, against counting by hand."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.analyses.coverage import Coverage
from tracelens.analyses.skew_ways import begun_before, covered_before, previous_operations, worked_before

EVENTS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9), st.booleans()), min_size=1, max_size=40)


def drawn(ranks, block):
    """What the functions read of a timeline: events of each rank as (start, length, whether a collective).

    Ranks lie 1,000 apart on the axis; `block` events are looked at at a time.
    """
    events = [(1000 * rank + s, n, c) for rank, own in enumerate(ranks) for s, n, c in sorted(own)]
    start, length, collective = (np.array(column, dtype=np.int64) for column in zip(*events, strict=True))
    first = np.cumsum([0, *map(len, ranks)])

    def stretches(rank):
        low, high = first[rank : rank + 2]
        return (slice(at, min(at + block, high)) for at in range(low, high, block))

    return SimpleNamespace(
        start=start, end=start + length, is_collective=collective.astype(bool), first=first, stretches=stretches
    )


@given(st.lists(EVENTS, min_size=1, max_size=3), st.integers(1, 7), st.lists(st.integers(-3, 75), max_size=20))
@settings(max_examples=200, deadline=None)
def test_work_is_counted_instant_by_instant(ranks, block, moments):
    tl = drawn(ranks, block)
    for rank, (low, high) in enumerate(pairwise(tl.first.tolist())):
        times = 1000 * rank + np.array(moments, dtype=np.int64)
        own = slice(low, high)
        columns = zip(tl.start[own], tl.end[own], tl.is_collective[own], strict=True)
        busy = {t for a, b, collective in columns if not collective for t in range(int(a), int(b))}
        asked = [
            (low + np.searchsorted(tl.start[own], times), times),
            (np.arange(low, high), tl.start[own]),
            (begun_before(tl, rank, np.arange(low, high), tl.end[own]), tl.end[own]),
        ]
        found = worked_before(tl, rank, lambda part: ~tl.is_collective[part], asked)
        for result, (_, when) in zip(found, asked, strict=True):
            assert result.tolist() == [sum(t < moment for t in busy) for moment in when]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.booleans()), min_size=1, max_size=30),
    st.integers(1, 7),
)
@settings(max_examples=200, deadline=None)
def test_work_one_after_the_other(pieces, block):
    """Events as (gap before, length, whether a collective): none overlaps another, in whatever block they lie."""
    ends = np.cumsum([gap + length for gap, length, _ in pieces])
    events = [
        (end - length, length, collective) for end, (_, length, collective) in zip(ends.tolist(), pieces, strict=True)
    ]
    tl = drawn([events], block)
    busy = [length if not collective else 0 for _, length, collective in pieces]
    times = np.arange(int(ends[-1]) + 2)
    (found,) = worked_before(tl, 0, lambda part: ~tl.is_collective[part], [(np.searchsorted(tl.start, times), times)])
    expected = [
        sum(min(max(t - start, 0), own) for (start, _, _), own in zip(events, busy, strict=True))
        for t in times.tolist()
    ]
    assert found.tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.booleans(), st.integers(0, 99)), max_size=30))
@settings(max_examples=300, deadline=None)
def test_the_one_before_is_the_last_that_ended(calls):
    """Calls as (start, length, usable, instance), each of an instance of its own."""
    calls = sorted(calls)
    start, length, usable, drawn_instance = (np.array([call[k] for call in calls], dtype=np.int64) for k in range(4))
    usable, end = usable.astype(bool), start + length
    instance = np.argsort(np.argsort(drawn_instance, kind="stable"))
    expected = []
    for row in range(len(calls)):
        ended = [k for k in range(len(calls)) if usable[k] and end[k] <= start[row]]
        best = max(ended, key=lambda k: (end[k], instance[k]), default=-1)
        expected.append(best if best != row else -1)
    assert previous_operations(start, end, usable, instance).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.booleans()), max_size=20))
@settings(max_examples=200, deadline=None)
def test_the_one_before_on_one_stream(pieces):
    """Calls as (gap before, length, usable): each begins after the one ahead has ended."""
    ends = np.cumsum([gap + length for gap, length, _ in pieces], dtype=np.int64)
    starts = ends - np.array([length for _, length, _ in pieces], dtype=np.int64)
    usable = [one for _, _, one in pieces]
    expected = [max((k for k in range(row) if usable[k]), default=-1) for row in range(len(pieces))]
    found = previous_operations(starts, ends, np.array(usable, dtype=bool), np.arange(len(pieces)))
    assert found.tolist() == expected


@given(
    st.lists(st.integers(1, 9), max_size=20),
    st.lists(st.lists(st.integers(-5, 120), max_size=30), min_size=1, max_size=3),
    st.integers(1, 5),
)
@settings(max_examples=200, deadline=None)
def test_covered_before_many_moments(lengths, moments, block):
    """Pieces and holes in turn, `block` pieces at a time."""
    edges = np.cumsum(np.array([0, *lengths]))[: (len(lengths) + 1) // 2 * 2].reshape(-1, 2)
    pieces = Coverage.of_pieces(edges[:, 0], edges[:, 1])
    asked = [np.array(times, dtype=np.int64) for times in [*moments, *map(sorted, moments)]]
    parts = ((edges[at : at + block, 0], edges[at : at + block, 1]) for at in range(0, len(edges) + 1, block))
    found = covered_before(parts, asked)
    assert [one.tolist() for one in found] == [pieces.upto(times).tolist() for times in asked]
