"""The way from the collective before: which it was, and the work in between, against counting by hand."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.analyses.coverage import Coverage
from tracelens.analyses.skew_ways import begun_before, covered_before, previous_operations, worked_before

EVENTS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9), st.booleans()), min_size=1, max_size=40)


def drawn(events, block):
    """What the functions read of a timeline: events as (start, length, whether a collective), `block` at a time."""
    start, length, collective = (np.array(column) for column in zip(*sorted(events), strict=True))

    def stretches():
        return (slice(low, min(low + block, len(start))) for low in range(0, len(start), block))

    class Drawn(SimpleNamespace):
        def __len__(self):
            return len(start)

    return Drawn(start=start, end=start + length, is_collective=collective.astype(bool), stretches=stretches)


@given(EVENTS, st.integers(1, 7), st.lists(st.integers(-3, 75), max_size=20))
@settings(max_examples=200, deadline=None)
def test_work_is_counted_instant_by_instant(events, block, moments):
    tl = drawn(events, block)
    times = np.array(moments, dtype=np.int64)
    busy = {
        t for a, b, c in zip(tl.start, tl.end, tl.is_collective, strict=True) if not c for t in range(int(a), int(b))
    }
    ends, last = tl.end, np.arange(len(tl))
    asked = [
        (np.searchsorted(tl.start, times), times),
        (np.arange(len(tl)), tl.start),
        (begun_before(tl, last, ends), ends),
    ]
    for found, (_, when) in zip(worked_before(tl, asked), asked, strict=True):
        assert found.tolist() == [sum(t < moment for t in busy) for moment in when]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 12), st.booleans()), max_size=30),
    st.randoms(),
)
@settings(max_examples=300, deadline=None)
def test_the_one_before_is_the_last_that_ended(calls, chance):
    """Calls as (rank, start, length, usable); ranks lie 100 apart on the axis."""
    calls = sorted(calls)
    owner, start, length, usable = (np.array([call[k] for call in calls], dtype=np.int64) for k in range(4))
    start, usable = start + 100 * owner, usable.astype(bool)
    end = start + length
    order = list(range(len(calls)))
    chance.shuffle(order)
    rank_in_order = {row: place for place, row in enumerate(order)}
    expected = []
    for row in range(len(calls)):
        ended = [k for k in range(len(calls)) if usable[k] and end[k] <= start[row]]
        best = max(ended, key=lambda k: (end[k], rank_in_order[k]), default=-1)
        expected.append(best if best >= 0 and owner[best] == owner[row] and best != row else -1)
    found = previous_operations(start, end, owner, usable, np.array(order, dtype=np.int32))
    assert found.tolist() == expected


@given(st.lists(st.integers(1, 9), max_size=20), st.lists(st.integers(-5, 120), max_size=30).map(sorted), st.booleans())
@settings(max_examples=200, deadline=None)
def test_covered_before_many_times(lengths, times, shuffled):
    """Pieces and holes in turn."""
    edges = np.cumsum(np.array([0, *lengths]))[: (len(lengths) + 1) // 2 * 2].reshape(-1, 2)
    pieces = Coverage.of_pieces(edges[:, 0], edges[:, 1])
    asked = np.array(times[::-1] if shuffled else times, dtype=np.int64)
    assert covered_before(pieces, asked).tolist() == pieces.upto(asked).tolist()
