"""Delays of arrivals, and waits by place in the step, against the same told with frames of all operations at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.analyses import report_arrivals
from tracelens.analyses.alignment import find_alignment
from tracelens.analyses.alignment_members import InstanceTable
from tracelens.analyses.report_arrivals import QUANTILES, ArrivalReader, Arrivals, arrival_tables, arrivals
from tracelens.analyses.report_parts import choose_steps, of_main_kind, step_latencies
from tracelens.analyses.step_search import search_steps
from tracelens.analyses.steps import figures_per_step
from tracelens.analyses.timeline import timeline
from tracelens.api import load

FIXTURES = Path(__file__).parents[1] / "fixtures"
OPERATIONS = ["all_gather", "all_reduce"]

Row = tuple[int, int, int, int, int, int]


def reader_of(rows: list[Row], communicator_of: list[int], ranks: int = 3, threads: int = 1) -> ArrivalReader:
    """Rows (rank, instance, wait, delay, step or -1, operation); a communicator's instances follow each other."""
    instances = InstanceTable.empty(len(communicator_of))
    instances.communicator[:] = communicator_of
    for communicator in set(communicator_of):
        mine = instances.communicator == communicator
        instances.position[mine] = np.arange(np.count_nonzero(mine))

    def read(rank: int) -> Arrivals:
        mine = np.array([row[1:] for row in rows if row[0] == rank], np.int64).reshape(-1, 5)
        instance, step, operation = (mine[:, place].astype(np.int32) for place in (0, 3, 4))
        return Arrivals(rank, instance, mine[:, 1], mine[:, 2], step, operation)

    return ArrivalReader(read, ranks, instances, OPERATIONS, threads)


def whole(value: pl.Expr) -> pl.Expr:
    return value.round(mode="half_to_even").cast(pl.Int64)


def delays_of(rows: pl.DataFrame) -> pl.DataFrame:
    quantiles = [whole(pl.col("delay").quantile(share, "linear")).alias(name) for name, share in QUANTILES.items()]
    return (
        rows.group_by("communicator", "rank")
        .agg(pl.len().cast(pl.Int64).alias("instance_count"), *quantiles)
        .sort("communicator", "rank")
    )


def waits_of(rows: pl.DataFrame, limit: int) -> list[tuple[object, ...]]:
    """`rows`: rank, communicator, position, step, wait, operation, of steps of the main kind."""
    if rows.is_empty():
        return []
    most = rows.group_by("communicator").agg(pl.col("wait").sum()).sort(-pl.col("wait"), "communicator")
    rows = rows.filter(pl.col("communicator") == most["communicator"][0])
    return (
        rows.with_columns(place=pl.col("position").rank("dense").over("step").cast(pl.Int64) - 1)
        .filter(pl.col("place") < limit)
        .group_by("communicator", "rank", "place")
        .agg(
            pl.col("operation").mode().sort().first(), whole(pl.col("wait").mean()), pl.len().cast(pl.Int64).alias("n")
        )
        .sort("rank", "place")
        .rows()
    )


def test_positions_are_places_within_a_step() -> None:
    """Communicator 0 meets twice in step 2 and twice in step 3; communicator 1 waits less.

    step          2           3
    instance      0     1     2     3       communicator 1: instance 4 in step 2, 5 in a step of another kind
    rank 0 waits  10    30    50    71      1
    rank 1 waits  20
    """
    rows = [(0, 0, 10, 5, 2, 1), (1, 0, 20, 0, 2, 1), (0, 1, 30, 5, 2, 1), (0, 2, 50, 5, 3, 1)]
    rows += [(0, 3, 71, 5, 3, 1), (0, 4, 1, 1, 2, 1), (0, 5, 900, 2, -1, 1)]
    delays, waits = arrival_tables(reader_of(rows, [0, 0, 0, 0, 1, 1]))
    assert waits.rows() == [
        (0, 0, 0, "all_reduce", 30, 2),
        (0, 0, 1, "all_reduce", 50, 2),
        (0, 1, 0, "all_reduce", 20, 1),
    ]
    assert delays.select("communicator", "rank", "instance_count", "p50_ns").rows() == [
        (0, 0, 4, 5),
        (0, 1, 1, 0),
        (1, 0, 2, 2),
    ]


MEMBER = st.tuples(st.integers(0, 40), st.integers(0, 10**6), st.integers(-1, 2), st.integers(0, 1))


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 6),
    st.integers(0, 6),
    st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 11)), MEMBER),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_against_frames(
    first: int, second: int, members: dict[tuple[int, int], tuple[int, int, int, int]], limit: int, threads: int
) -> None:
    """Any rank may miss any instance, and be in another step than the others when it runs."""
    communicator_of = [0] * first + [1] * second
    rows: list[Row] = [
        (rank, instance, wait, delay, step, operation)
        for (rank, instance), (wait, delay, step, operation) in sorted(members.items())
        if instance < len(communicator_of)
    ]
    frame = pl.DataFrame(rows, schema=["rank", "instance", "wait", "delay", "step", "letter"], orient="row").cast(
        pl.Int64
    )
    frame = frame.with_columns(
        communicator=(pl.col("instance") >= first).cast(pl.Int64),
        position=pl.col("instance") - first * (pl.col("instance") >= first).cast(pl.Int64),
        operation=pl.col("letter").replace_strict(dict(enumerate(OPERATIONS)), return_dtype=pl.String),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_arrivals, "POSITIONS_SHOWN", limit)
        delays, waits = arrival_tables(reader_of(rows, communicator_of, threads=threads))
    assert delays.rows() == delays_of(frame).rows()
    assert waits.rows() == waits_of(frame.filter(pl.col("step") >= 0), limit)


@pytest.mark.parametrize("name", ["slow_rank_tp4", "decode_tp2"])
def test_what_is_read_of_a_capture(name: str) -> None:
    """As its table of collectives has it: without warm-up, steps by the first kernel."""
    with load(next((FIXTURES / name).glob("*.sqlite")), use_cache=False) as trace:
        figures = figures_per_step(trace)
        chosen = choose_steps(step_latencies(figures))
        assert chosen is not None
        delays, waits = arrival_tables(arrivals(trace, figures, chosen))
        steps = search_steps(trace)
        rows = find_alignment(trace).members.filter(pl.col("wait_ns").is_not_null())
        row = steps.member[timeline(trace).places_of(rows["event_id"].to_numpy())]
        numbers = np.append(steps.table["step"].to_numpy(), 0)[row]
        rows = rows.with_columns(
            delay=pl.col("skew_ns") - pl.col("wait_ns"), wait="wait_ns", step=pl.Series(numbers, dtype=pl.Int32)
        ).with_columns(pl.when(pl.Series(row >= 0)).then("step").alias("step"))
        rows = rows.join(figures.filter("warm_up"), on=["rank", "step"], how="anti")
        main = rows.join(of_main_kind(figures, chosen), on=["rank", "step"], how="semi")
    assert delays.height
    assert delays.rows() == delays_of(rows).rows()
    assert waits.rows() == waits_of(main, report_arrivals.POSITIONS_SHOWN)


def test_without_a_main_kind_there_are_delays_alone() -> None:
    one = reader_of([(0, 0, 10, 5, 2, 1)], [0])
    delays, waits = arrival_tables(
        replace(one, read=lambda rank: replace(one.read(rank), step=one.read(rank).step - 3))
    )
    assert (delays.height, waits.height) == (1, 0)
