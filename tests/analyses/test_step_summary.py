"""How many steps an answer rests on, in words."""

from __future__ import annotations

import polars as pl
import pytest

from tracelens.analyses.step_summary import steps_counted


@pytest.mark.parametrize(
    ("steps_of_rank", "ranks_of_set", "told"),
    [
        ([59], [[0, 1, 2, 3]], "59"),
        ([59, 59], [[0], [1]], "118: 59 on each of 2 ranks, which no matched collective links"),
        ([59, 58], [[0], [1]], "117: 58 to 59 on each of 2 ranks, which no matched collective links"),
        ([50, 50], [[0, 1], [2, 3]], "100: 50 in each of 2 groups of ranks, which no matched collective links"),
        ([1500], [[0]], "1,500"),
    ],
)
def test_a_step_counts_once_for_each_set_of_ranks(
    steps_of_rank: list[int], ranks_of_set: list[list[int]], told: str
) -> None:
    rows = [
        {"set": number, "step": step, "rank": rank}
        for number, (steps, ranks) in enumerate(zip(steps_of_rank, ranks_of_set, strict=True))
        for step in range(steps)
        for rank in ranks
    ]
    assert steps_counted(pl.DataFrame(rows)) == told
