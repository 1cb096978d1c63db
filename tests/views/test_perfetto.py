"""The exported trace keeps the JSON trace format's rules, and its counts and times are those of the frames."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.views.report_tp8 import HOSTILE
from tracelens.views.perfetto import TraceFrames, lines, write_trace

EVENT = ["rank", "stream", "kind", "bucket", "name", "start_ns", "duration_ns"]


def small() -> TraceFrames:
    """Ranks 0 and 3 meet in one all-reduce; rank 3 comes last. Times in ns, origin 1000.

    rank 0   stream 7   |gemm 1000-1400|  |all-reduce 1500 ......... 2600|
    rank 3   stream 7   |gemm 1000-2000        |  |all-reduce 2100 - 2600|
             stream 7           |copy 1900-2050|   crosses the gemm: a second lane
    """
    events = [
        (0, 7, "kernel", "gemm", HOSTILE, 1000, 400),
        (0, 7, "kernel", "collective", "all_reduce", 1500, 1100),
        (3, 7, "kernel", "gemm", "gemm", 1000, 1000),
        (3, 7, "memcpy", "memcpy", "copy", 1900, 150),
        (3, 7, "kernel", "collective", "all_reduce", 2100, 500),
    ]
    waits = pl.DataFrame(
        {
            "rank": [0, 3],
            "communicator": [0, 0],
            "instance": [5, 5],
            "operation": ["all_reduce", "all_reduce"],
            "implementation": ["custom_1stage", "custom_1stage"],
            "arrival_ns": [1500, 2100],
            "last_arrival_ns": [2100, 2100],
            "end_ns": [2600, 2600],
        }
    )
    steps = pl.DataFrame(
        {
            "rank": [0, 3],
            "step": [9, 9],
            "phase": ["decode", None],
            "rung": ["bs=1", None],
            "start_ns": [1000, 1000],
            "duration_ns": [1600, 1600],
        }
    )
    return TraceFrames(
        pl.DataFrame({"rank": [0, 3], "label": ["H100", None]}),
        [pl.DataFrame(events, schema=EVENT, orient="row")],
        1000,
        steps=steps,
        waits=[waits.head(1), waits.tail(1)],
        arrows=[pl.DataFrame({"from_rank": [3], "to_rank": [0], "at_ns": [2100]})],
        buckets=[pl.DataFrame({"rank": [0], "bucket": ["gemm"], "start_ns": [1000], "duration_ns": [400]})],
        gaps=[pl.DataFrame({"rank": [0], "cause": ["host_late"], "start_ns": [1400], "duration_ns": [100]})],
        metadata={"clock": "ends"},
    )


def parsed(frames: TraceFrames) -> list[dict[str, Any]]:
    return [json.loads(line, parse_float=Decimal) for line in lines(frames)]


def check_rules(events: list[dict[str, Any]]) -> None:
    """Complete events have a time and a length of at least 0; those of a thread nest or follow, and never cross;
    a flow has one start and one end, each inside a slice of its thread; every thread and process has a name."""
    threads = defaultdict(list)
    for event in events:
        assert event["ph"] in {"X", "M", "s", "f"}
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0  # noqa: PT018
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in threads.values():
        stack: list[Decimal] = []
        for start, end in sorted(slices, key=lambda one: (one[0], -one[1])):
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1], "slices cross"
            stack.append(end)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert set(threads) <= named
    assert {pid for pid, _ in threads} <= {event["pid"] for event in events if event["name"] == "process_name"}
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            flows[event["id"]].append(event["ph"])
            assert any(start <= event["ts"] <= end for start, end in threads[event["pid"], event["tid"]])
    assert all(sorted(phases) == ["f", "s"] for phases in flows.values())


def test_slices_are_the_rows() -> None:
    events = parsed(small())
    check_rules(events)
    slices = [(e["cat"], e["name"], e["pid"], str(e["ts"]), str(e["dur"])) for e in events if e["ph"] == "X"]
    assert slices == [
        ("step", "decode 9", 1, "0.000", "1.600"),
        ("step", "step 9", 2, "0.000", "1.600"),
        ("wait", "wait: all_reduce", 1, "0.500", "0.600"),
        ("transfer", "transfer: all_reduce", 1, "1.100", "0.500"),
        ("transfer", "transfer: all_reduce", 2, "1.100", "0.500"),
        ("bucket", "gemm", 1, "0.000", "0.400"),
        ("gap", "host_late", 1, "0.400", "0.100"),
        ("gemm", HOSTILE, 1, "0.000", "0.400"),
        ("collective", "all_reduce", 1, "0.500", "1.100"),
        ("gemm", "gemm", 2, "0.000", "1.000"),
        ("memcpy", "copy", 2, "0.900", "0.150"),
        ("collective", "all_reduce", 2, "1.100", "0.500"),
    ]


def test_ranks_are_processes_and_streams_threads() -> None:
    events = parsed(small())
    assert [(e["pid"], e["args"]["name"]) for e in events if e["name"] == "process_name"] == [
        (1, "rank 0 (H100)"),
        (2, "rank 3"),
    ]
    assert [(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"] == [
        (1, "steps"),
        (1, "collectives"),
        (1, "buckets"),
        (1, "gaps"),
        (1, "stream 7"),
        (2, "steps"),
        (2, "collectives"),
        (2, "stream 7"),
        (2, "stream 7 (2)"),
    ]


def test_an_arrow_runs_from_the_last_arriver_to_each_waiter() -> None:
    arrows = [(e["ph"], e["id"], e["pid"], str(e["ts"])) for e in parsed(small()) if e["ph"] in "sf"]
    assert arrows == [("s", 1, 2, "1.100"), ("f", 1, 1, "1.100")]


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 5), max_size=6))
def test_arrows_stand_in_the_same_order_however_they_are_parted(sizes: list[int]) -> None:
    """What is written at once: three arrows. All their starts come before all their ends."""
    whole = pl.DataFrame(
        {"from_rank": [3] * sum(sizes), "to_rank": [0] * sum(sizes), "at_ns": range(2100, 2100 + sum(sizes))}
    )
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    parts = [whole.slice(end - size, size) for end, size in zip(ends, sizes, strict=True)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tracelens.views.perfetto._ROWS_PER_WRITE", 3)
        found = [(e["ph"], e["id"]) for e in parsed(replace(small(), arrows=parts)) if e["ph"] in "sf"]
    groups = [range(low, min(low + 3, whole.height + 1)) for low in range(1, whole.height + 1, 3)]
    assert found == [(phase, number) for group in groups for phase in "sf" for number in group]


def test_files_plain_and_packed_hold_the_same(tmp_path: Path) -> None:
    write_trace(small(), tmp_path / "x.json")
    write_trace(small(), tmp_path / "x.json.gz")
    write_trace(small(), tmp_path / "y.json.gz")
    plain = (tmp_path / "x.json").read_bytes()
    assert gzip.decompress((tmp_path / "x.json.gz").read_bytes()) == plain
    assert (tmp_path / "x.json.gz").read_bytes() == (tmp_path / "y.json.gz").read_bytes()
    whole = json.loads(plain)
    assert whole["displayTimeUnit"] == "ns"
    assert whole["otherData"] == {"clock": "ends"}
    assert len(whole["traceEvents"]) == len(parsed(small()))
    assert b"\x1b" not in plain


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 300), st.integers(0, 100)), max_size=40))
def test_no_slices_cross_and_none_is_lost(rows: list[tuple[int, int, int, int]]) -> None:
    table = [(rank, stream, "kernel", "b", "n", start, length) for rank, stream, start, length in rows]
    frame = pl.DataFrame(table, schema=EVENT, orient="row").sort("rank", "stream", "start_ns", "duration_ns")
    frames = TraceFrames(
        pl.DataFrame({"rank": [0, 1, 2], "label": [None] * 3}, schema={"rank": pl.Int64, "label": pl.String}),
        [frame],
        0,
    )
    events = parsed(frames)
    check_rules(events)
    kept = sorted((e["pid"] - 1, int(e["ts"] * 1000), int(e["dur"] * 1000)) for e in events if e["ph"] == "X")
    assert kept == sorted((rank, start, length) for rank, _, start, length in rows)
