"""Who owns each instant: the sweep against a walk over every single nanosecond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.analyses.sweep import ComputeFirst, Sweep

EVENT = st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(-30, 40), st.integers(0, 25))
GROUPS = np.array([0, 0, 1, 1])


COLLECTIVE = np.array([False, True, False, True])


def swept(
    events: list[tuple[int, int, int, int]], sizes: list[int], base: int = 0, *, compute_first: bool = False
) -> Sweep:
    """Events (lane, code, start, end) in batches of the given sizes."""
    sweep = ComputeFirst(3, 4, GROUPS, COLLECTIVE) if compute_first else Sweep(3, 4, GROUPS)
    ordered = sorted(events, key=lambda event: (event[0], event[2], -event[3], event[1]))
    table = np.array(ordered, np.int64).reshape(-1, 4)
    table[:, 2:] += base
    begin = 0
    for size in [*sizes, len(table)]:
        sweep.add(*(table[begin : begin + size, place].copy() for place in range(4)))
        begin += size
    return sweep


def walked(events: list[tuple[int, int, int, int]]) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
    """Owned ns by (lane, code) and union ns by (lane, group), one nanosecond at a time."""
    owned: dict[tuple[int, int], int] = {}
    union: dict[tuple[int, int], int] = {}
    for lane in range(3):
        mine = sorted((event for event in events if event[0] == lane), key=lambda one: (one[2], -one[3], one[1]))
        for instant in range(-30, 70):
            running = [event for event in mine if event[2] <= instant < event[3]]
            if running:
                code = running[0][1]
                owned[lane, code] = owned.get((lane, code), 0) + 1
            for group in {int(GROUPS[event[1]]) for event in running}:
                union[lane, group] = union.get((lane, group), 0) + 1
    return owned, union


@settings(deadline=None, max_examples=300)
@given(
    st.lists(EVENT.map(lambda one: (one[0], one[1], one[2], one[2] + one[3])), max_size=25),
    st.lists(st.integers(1, 6), max_size=6),
    st.sampled_from([0, 2**61, -(2**61)]),
)
def test_against_a_walk_over_every_instant(
    events: list[tuple[int, int, int, int]], sizes: list[int], base: int
) -> None:
    sweep = swept(events, sizes, base)
    owned, union = walked(events)
    for lane in range(3):
        for code in range(4):
            mine = [event for event in events if event[:2] == (lane, code)]
            assert sweep.count[lane, code] == len(mine)
            assert sweep.summed_ns[lane, code] == sum(event[3] - event[2] for event in mine)
            assert sweep.owned_ns[lane, code] == owned.get((lane, code), 0)
        for group in range(2):
            assert sweep.union_ns[lane, group] == union.get((lane, group), 0)
        taking = [event for event in events if event[0] == lane and event[3] > event[2]]
        span = max(event[3] for event in taking) - min(event[2] for event in taking) if taking else 0
        assert sweep.span_ns()[lane] == span


@settings(deadline=None, max_examples=300)
@given(
    st.lists(EVENT.map(lambda one: (one[0], one[1], one[2], one[2] + one[3])), max_size=25),
    st.lists(st.integers(1, 6), max_size=6),
    st.sampled_from([0, 2**61, -(2**61)]),
)
def test_compute_first_against_a_walk_over_every_instant(
    events: list[tuple[int, int, int, int]], sizes: list[int], base: int
) -> None:
    """Whoever of compute started first owns an instant; without compute, whoever of the collectives did."""
    sweep = swept(events, sizes, base, compute_first=True)
    plain = swept(events, sizes, base)
    owned: dict[tuple[int, int], int] = {}
    ordered = sorted(events, key=lambda event: (event[0], event[2], -event[3], event[1]))
    for lane in range(3):
        for instant in range(-30, 70):
            running = [code for own, code, start, end in ordered if own == lane and start <= instant < end]
            running.sort(key=lambda code: bool(COLLECTIVE[code]))
            if running:
                owned[lane, running[0]] = owned.get((lane, running[0]), 0) + 1
    assert {(*cell,): int(sweep.owned_ns[cell]) for cell in zip(*np.nonzero(sweep.owned_ns), strict=True)} == owned
    assert (sweep.count == plain.count).all()
    assert (sweep.summed_ns == plain.summed_ns).all()
    assert [bounds.tolist() for bounds in sweep.bounds_ns()] == [bounds.tolist() for bounds in plain.bounds_ns()]
    apart = [swept([event for event in events if COLLECTIVE[event[1]] == kind], sizes, base) for kind in (False, True)]
    assert (sweep.union_ns == apart[0].union_ns + apart[1].union_ns).all()


@pytest.mark.parametrize("length", [10**9, 2**53 - 1, 2**58])
def test_sums_stay_exact(length: int) -> None:
    """Three lanes of long events: floats lose ns beyond 2^53, offsets by lane leave 64 bits beyond 2^61."""
    events = [(lane, 1, lane * 7, lane * 7 + length + lane) for lane in range(3)]
    sweep = swept(events, [2])
    assert sweep.owned_ns[:, 1].tolist() == [length, length + 1, length + 2]
    assert sweep.summed_ns[:, 1].tolist() == [length, length + 1, length + 2]
    assert sweep.union_ns[:, 0].tolist() == [length, length + 1, length + 2]


def test_events_that_do_not_count_still_take_time() -> None:
    sweep = Sweep(1, 1, np.array([0]))
    numbers = (np.array(values, np.int64) for values in ([0, 0], [0, 0], [0, 10], [5, 20]))
    sweep.add(*numbers, np.array([True, False]))
    assert (sweep.count.item(), sweep.summed_ns.item(), sweep.owned_ns.item()) == (1, 15, 15)


def test_nothing_at_all() -> None:
    sweep = swept([], [])
    assert sweep.owned_ns.sum() == sweep.count.sum() == 0
