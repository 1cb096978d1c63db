"""Collectives cut at the last arrival; exclusive time as runs."""

from __future__ import annotations

import polars as pl
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


def test_runs_follow_the_first_starter() -> None:
    """a 0-10, b 5-20 (owns 10-20), b 20-25 joins it, a 30-31 after a gap; zero-length events own nothing."""
    events = pl.DataFrame(
        [
            (0, 3, 7, "kernel", "a", "n", 0, 10),
            (1, 3, 8, "kernel", "b", "n", 5, 15),
            (2, 3, 7, "kernel", "b", "n", 20, 5),
            (3, 3, 7, "kernel", "c", "n", 22, 0),
            (4, 3, 7, "kernel", "a", "n", 30, 1),
        ],
        schema=COLUMNS,
        orient="row",
    )
    assert bucket_runs(events).rows() == [(3, "a", 0, 10), (3, "b", 10, 15), (3, "a", 30, 1)]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.sampled_from("abc")), min_size=1, max_size=30))
def test_runs_sum_to_the_union(rows: list[tuple[int, int, str]]) -> None:
    ordered = sorted(rows, key=lambda row: (row[0], -row[1]))
    events = pl.DataFrame(
        [(index, 0, 7, "kernel", bucket, "n", start, length) for index, (start, length, bucket) in enumerate(ordered)],
        schema=COLUMNS,
        orient="row",
    )
    runs = bucket_runs(events)
    busy = {instant for start, length, _ in ordered for instant in range(start, start + length)}
    assert runs["duration_ns"].sum() == len(busy)
    ends = (runs["start_ns"] + runs["duration_ns"]).to_list()
    assert all(end <= start for end, start in zip(ends, runs["start_ns"].to_list()[1:], strict=False))
