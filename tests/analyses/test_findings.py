"""Findings: one line a cause however often it shows, largest first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from tracelens.analyses.findings import findings
from tracelens.api import Trace, load

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module")
def trace() -> Iterator[Trace]:
    with load(next((FIXTURES / "decode_tp2").glob("*.sqlite")), use_cache=False) as loaded:
        yield loaded


def verdict(straggler: int | None, late: str | None, cost: int | None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "members": ["0-7"],
            "straggler_rank": [straggler],
            "late_ranks": [late],
            "cause": ["host"],
            "recoverable_per_step_ns": [cost],
        },
        schema_overrides={"straggler_rank": pl.Int32, "late_ranks": pl.String, "recoverable_per_step_ns": pl.Int64},
    )


CAUSES = pl.DataFrame(
    {
        "rank": [0, 0, 0, 1, 1, 1],
        "cause": ["host_late", "idle", "in_graph", "host_late", "idle", "in_graph"],
        "per_step_ns": [100_000, 9_000_000, 500, 50_000, 9_000_000, 700],
    }
)


def operations(same_stream: bool) -> pl.DataFrame:
    """Two ranks, each 30 + 10 us exposed in two operations, of which 5 us wait; nothing hidden."""
    return pl.DataFrame(
        {
            "rank": [0, 0, 1, 1],
            "collective": ["all_reduce", "all_gather"] * 2,
            "exposed_per_step_ns": [30_000, 10_000] * 2,
            "hidden_per_step_ns": [0, 0] * 2,
            "wait_per_step_ns": [5_000, None] * 2,
            "same_stream": [same_stream] * 4,
        }
    )


def test_sorted_by_cost_small_ones_and_client_idle_left_out(trace: Trace) -> None:
    """Of a step of 1 ms: host late 75 us (mean of 100 and 50), sharing a stream 35 us, a straggler 60 us;
    gaps in a graph of 0.6 us are below a thousandth; idle between requests is no part of a step."""
    tables = {"verdict": verdict(3, None, 60_000), "rank_operations": operations(True), "causes": CAUSES}
    rows = findings(trace, tables, 1_000_000.0).select("finding", "kind", "per_step_ns", "per_step_frac").rows()
    assert [row[1:] for row in rows] == [
        ("host_late", 75_000, 0.075),
        ("waiting", 60_000, 0.06),
        ("overlap", 35_000, 0.035),
    ]
    assert rows[1][0] == "Rank 3 makes ranks 0-7 wait (cause: host)"
    assert rows[2][0].startswith("Compute and collectives share stream ")
    assert rows[2][0].endswith(": 0% overlap")


@pytest.mark.parametrize(
    ("straggler", "late", "said"),
    [
        (None, "4-7", "Ranks 4-7 make the other ranks of 0-7 wait"),
        (None, None, "Ranks 0-7 arrive apart, none of them persistently late"),
    ],
)
def test_waiting_without_a_straggler(trace: Trace, straggler: int | None, late: str | None, said: str) -> None:
    assert findings(trace, {"verdict": verdict(straggler, late, 5)}, None).rows() == [(said, "waiting", 5, None)]


def test_nothing_to_say_is_an_empty_frame(trace: Trace) -> None:
    assert findings(trace, {}, 1.0).is_empty()
    assert findings(trace, {"verdict": verdict(3, None, None), "rank_operations": operations(False)}, 1.0).is_empty()
