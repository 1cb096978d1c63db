"""Blocks of long arrays, and work on them by several threads."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from tracelens.analyses.blocks import blocks, each, run_starts


def test_blocks_cover_a_range_in_order() -> None:
    assert list(blocks(3, 10, 3)) == [slice(3, 6), slice(6, 9), slice(9, 10)]
    assert list(blocks(3, 3, 3)) == []


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_answers_come_in_the_order_of_the_parts(threads: int) -> None:
    """The first parts take longest."""

    def slow(part: int) -> int:
        time.sleep(0.02 / (part + 1))
        return part * part

    assert list(each(slow, range(12), threads)) == [part * part for part in range(12)]
    assert list(each(slow, [], threads)) == []


def test_work_is_spread_over_threads() -> None:
    meet = threading.Barrier(2, timeout=10)
    assert len(set(each(lambda _: (meet.wait(), threading.get_ident())[1], range(2), 2))) == 2


def test_an_error_in_a_part_is_the_callers() -> None:
    done = []

    def work(part: int) -> None:
        if part == 3:
            raise ValueError("part 3")
        done.append(part)

    with pytest.raises(ValueError, match="part 3"):
        list(each(work, range(1000), 2))
    assert len(done) < 20  # those that had not begun never do


def test_runs_begin_where_any_column_changes() -> None:
    assert run_starts(np.array([1, 1, 2, 2]), np.array([5, 6, 6, 6])).tolist() == [0, 1, 2]
    assert run_starts(np.empty(0, np.int64)).tolist() == []
