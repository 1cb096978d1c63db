"""Collectives cut at the last arrival; exclusive time as runs."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analyses.export import bucket_runs
from tracelens.analyses.slices import parted

COLUMNS = ["event_id", "rank", "stream", "kind", "bucket", "name", "start_ns", "duration_ns"]


def test_a_collective_is_wait_until_the_last_arrival_then_transfer() -> None:
    """rank 0: gemm 0-10, all_reduce 10-50; rank 1: gemm 0-30, all_reduce 30-50 (last); rank 2: two kernels of one.

    rank 0  |gemm     |all_reduce                     |      event 0, 1
    rank 1  |gemm                |all_reduce          |      event 2, 3
    rank 2  |first of two 5-20 |..|second 25-50       |      event 4, 5
    """
    events = pl.DataFrame(
        [
            (0, 0, 7, "kernel", "gemm", "g", 0, 10),
            (1, 0, 7, "kernel", "collective", "r", 10, 40),
            (2, 1, 7, "kernel", "gemm", "g", 0, 30),
            (3, 1, 7, "kernel", "collective", "r", 30, 20),
            (4, 2, 7, "kernel", "collective", "r", 5, 15),
            (5, 2, 7, "kernel", "collective", "s", 25, 25),
        ],
        schema=COLUMNS,
        orient="row",
    )
    waits = pl.DataFrame({"event_id": [1, 3, 4], "last_arrival_ns": [30, 30, 30]})
    shown = parted(events, waits).select("event_id", "kind", "start_ns", "duration_ns").rows()
    assert shown == [
        (0, "kernel", 0, 10),
        (1, "wait", 10, 20),
        (1, "transfer", 30, 20),
        (2, "kernel", 0, 30),
        (3, "transfer", 30, 20),
        (4, "wait", 5, 15),
        (5, "kernel", 25, 25),
    ]


def runs(events: list[tuple[int, int, int]], sizes: int) -> list[tuple[int, int, int]]:
    """(start, length, bucket) of the runs of events that come in parts of so many."""
    columns = [np.array(column, np.int64) for column in zip(*events, strict=True)]
    parts = [(*(column[low : low + sizes] for column in columns),) for low in range(0, len(events), sizes)]
    return [
        row
        for start, length, bucket in bucket_runs(parts)
        for row in zip(start.tolist(), length.tolist(), bucket.tolist(), strict=True)
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_runs_follow_the_first_starter(size: int) -> None:
    """a 0-10, b 5-20 (owns 10-20), b 20-25 joins it, a 30-31 after a gap; zero-length events own nothing."""
    a, b, c = 0, 1, 2
    events = [(0, 10, a), (5, 15, b), (20, 5, b), (22, 0, c), (30, 1, a)]
    assert runs(events, size) == [(0, 10, a), (10, 15, b), (30, 1, a)]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, 2)), min_size=1, max_size=30),
    st.integers(1, 8),
)
def test_runs_are_the_instants_that_their_first_starter_owns(rows: list[tuple[int, int, int]], size: int) -> None:
    ordered = sorted(rows, key=lambda row: (row[0], -row[1]))
    owner: dict[int, int] = {}
    for start, length, bucket in ordered:
        for instant in range(start, start + length):
            owner.setdefault(instant, bucket)
    expected: list[tuple[int, int, int]] = []
    for instant in sorted(owner):
        start, length, bucket = expected[-1] if expected else (-1, 0, -1)
        if start + length == instant and bucket == owner[instant]:
            expected[-1] = (start, length + 1, bucket)
        else:
            expected.append((instant, 1, owner[instant]))
    assert runs(ordered, size) == expected
