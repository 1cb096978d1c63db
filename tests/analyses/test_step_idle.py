"""Idle between requests: all ranks at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analyses.step_idle import CommonIdle, common_idle


def find(
    spans: list[tuple[int, int, int]], gaps: list[tuple[int, int, int]], threshold: tuple[int, ...] = (5,)
) -> CommonIdle:
    """Spans and gaps as (set, start, end)."""
    one, other = (np.array(rows, np.int64).reshape(-1, 3) for rows in (spans, gaps))
    return common_idle(
        one[:, 0], one[:, 1], one[:, 2], other[:, 0], other[:, 1], other[:, 2], np.array(threshold, np.int64)
    )


def stretches(found: CommonIdle) -> list[tuple[int, int, int]]:
    return list(zip(found.sets.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True))


def test_what_all_ranks_share_counts_and_each_gap_around_it_is_idle() -> None:
    """rank 0  |====|..............|====|......|====|      second gap: rank 1 works on
    rank 1     |======|..........|======|======|====|
    """
    found = find([(0, 0, 100), (0, 0, 100)], [(0, 10, 40), (0, 50, 70), (0, 15, 35)])
    assert stretches(found) == [(0, 15, 35)]
    assert found.gap_is_idle.tolist() == [True, False, True]


def test_a_shared_idle_must_exceed_the_threshold() -> None:
    assert stretches(find([(0, 0, 100), (0, 0, 100)], [(0, 10, 20), (0, 15, 30)])) == []
    assert stretches(find([(0, 0, 100), (0, 0, 100)], [(0, 10, 21), (0, 15, 30)])) == [(0, 15, 21)]


def test_a_rank_outside_its_span_does_not_speak() -> None:
    """rank 1's capture ends at 20."""
    found = find([(0, 0, 100), (0, 0, 20)], [(0, 40, 60)])
    assert stretches(found) == [(0, 40, 60)]


def test_sets_do_not_wait_for_each_other() -> None:
    found = find([(0, 0, 100), (1, 0, 100)], [(0, 10, 40)], (5, 5))
    assert stretches(found) == [(0, 10, 40)]


def test_back_to_back_gaps_of_different_ranks_share_nothing() -> None:
    assert stretches(find([(0, 0, 100), (0, 0, 100)], [(0, 10, 30), (0, 30, 60)])) == []


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 15)), min_size=1, max_size=6), min_size=1, max_size=4)
)
def test_against_painting(ranks: list[list[tuple[int, int]]]) -> None:
    """Each rank: (work, gap) pairs, closed by work; a common idle is a run in which nobody in span works."""
    spans, gaps, active = [], [], np.zeros(200, np.int64)
    for pairs in ranks:
        at = 0
        for work, gap in pairs:
            active[at : at + work] += 1
            if gap > 5:
                gaps.append((0, at + work, at + work + gap))
            else:
                active[at + work : at + work + gap] += 1
            at += work + gap
        active[at : at + 1] += 1
        spans.append((0, 0, at + 1))
    end = max(high for _, _, high in spans)
    runs, since = [], None
    for at in range(end + 1):
        quiet = at < end and active[at] == 0
        if quiet and since is None:
            since = at
        elif not quiet and since is not None:
            if at - since > 5:
                runs.append((0, since, at))
            since = None
    assert stretches(find(spans, gaps)) == runs
