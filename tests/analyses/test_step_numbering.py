"""Steps numbered alike on all ranks of a set."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracelens.analyses.step_numbering import number_steps


def number(rows: list[tuple[int, int, int, list[int]]]) -> list[int]:
    """Rows: (set, rank, aligned edge, instances of communicator 0 that the step holds)."""
    shared = [
        {"step": row, "communicator": 0, "instance": instance}
        for row, (_, _, _, instances) in enumerate(rows)
        for instance in instances
    ]
    schema = {"step": pl.Int64, "communicator": pl.Int64, "instance": pl.Int64}
    columns = [np.array([row[place] for row in rows], np.int64) for place in range(3)]
    return number_steps(columns[0], columns[1], columns[2], pl.DataFrame(shared, schema=schema)).tolist()


def test_heads_that_are_cut_differently() -> None:
    """rank 0 sees steps A B C, rank 1 B C D."""
    rows = [
        (0, 0, 0, [1, 2]),
        (0, 0, 100, [3, 4]),
        (0, 0, 200, [5, 6]),
        (0, 1, 101, [3, 4]),
        (0, 1, 201, [5, 6]),
        (0, 1, 301, [7, 8]),
    ]
    assert number(rows) == [0, 1, 2, 1, 2, 3]


def test_collectives_decide_although_edges_lie_far_apart() -> None:
    """rank 1 reaches each step 80 after rank 0: nearer to rank 0's next edge."""
    rows = [
        (0, rank, 100 * step + 80 * rank, [10 * step + k for k in range(3)]) for rank in (0, 1) for step in range(5)
    ]
    assert number(rows) == [0, 1, 2, 3, 4] * 2


def test_without_collectives_time_decides() -> None:
    rows = [(0, 0, 0, []), (0, 0, 100, []), (0, 0, 200, []), (0, 1, 98, []), (0, 1, 203, []), (0, 1, 300, [])]
    assert number(rows) == [0, 1, 2, 1, 2, 3]


def test_sets_are_numbered_apart() -> None:
    rows = [(0, 0, 0, []), (0, 0, 100, []), (1, 1, 50, []), (1, 1, 150, [])]
    assert number(rows) == [0, 1, 0, 1]


def test_a_step_that_a_marker_split_on_one_rank_keeps_numbers_unique() -> None:
    """rank 1's marker cut the middle step in two; the others' numbers stay those of rank 0."""
    rows = [
        (0, 0, 0, [1, 2]),
        (0, 0, 100, [3, 4, 5]),
        (0, 0, 200, [6, 7]),
        (0, 1, 0, [1, 2]),
        (0, 1, 100, [3, 4]),
        (0, 1, 160, [5]),
        (0, 1, 200, [6, 7]),
    ]
    numbers = number(rows)
    assert numbers[:3] == [0, 1, numbers[6]]
    assert len(set(numbers[3:])) == 4
    assert numbers[3:5] == [0, 1]


def test_one_slipped_collective_joins_nothing() -> None:
    """The first collective of each step of rank 1 falls to the step before."""
    rows = [(0, 0, 100 * step, [10 * step + k for k in range(10)]) for step in range(4)]
    rows += [(0, 1, 100 * step, [*(10 * step + k for k in range(1, 10)), 10 * step + 10]) for step in range(4)]
    assert number(rows) == [0, 1, 2, 3] * 2


def test_what_is_left_of_a_step_at_the_head_of_a_capture_is_that_step() -> None:
    """rank 1's capture begins late in step B: one instance of five is left of it, and its edge lies with the next."""
    rows = [(0, rank, 100 * step, [10 * step + k for k in range(5)]) for rank in (0, 2) for step in range(4)]
    rows += [(0, 1, 190, [14])] + [(0, 1, 100 * step, [10 * step + k for k in range(5)]) for step in (2, 3)]
    assert number(rows) == [0, 1, 2, 3, 0, 1, 2, 3, 1, 2, 3]


def test_no_steps() -> None:
    assert number([]) == []
