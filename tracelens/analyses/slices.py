"""Events of chosen windows on the aligned clock, collectives cut into the wait and the transfer.

own clocks                            aligned
rank 0  |gemm |all_reduce     |       rank 0  |gemm |wait    |transfer|
rank 1     |gemm    |all_reduce  |    rank 1  |gemm          |transfer|
                                                             last arrival
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelens.analyses.alignment import Alignment, find_alignment
from tracelens.sqlfiles import queries
from tracelens.trace import LoadedTrace

_SQL = Path(__file__).with_suffix(".sql")
_KINDS = {0: "kernel", 1: "memcpy", 2: "memset", 3: "graph"}


def event_slices(trace: LoadedTrace, windows: pl.DataFrame) -> pl.DataFrame:
    """Every event that starts in a window, on the aligned clock.

    Args:
        trace: the capture.
        windows: rank, start_ns, end_ns on each rank's own time; disjoint within a rank.

    Returns:
        event_id, rank, stream (-1: none recorded), kind (kernel, memcpy, memset, graph), bucket, name, start_ns and
        duration_ns (aligned, int64), correlation, graph_node, bytes; by rank, stream, start.
    """
    alignment = find_alignment(trace)
    rows = in_windows(trace, queries(_SQL)["events"], windows)
    return (
        rows.with_columns(
            pl.col("kind").replace_strict(_KINDS, return_dtype=pl.String),
            _aligned(alignment, rows, "start_ns"),
            (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
        )
        .drop("end_ns")
        .sort("rank", "stream", "start_ns", "event_id")
    )


def wait_slices(trace: LoadedTrace, windows: pl.DataFrame) -> pl.DataFrame:
    """Every matched collective operation that starts in a window, with its arrivals.

    Returns:
        event_id (its first kernel), communicator, instance, rank, operation, implementation, arrival_ns,
        last_arrival_ns, end_ns (aligned), is_last (null where the lead is below resolution); by event_id.
    """
    found = find_alignment(trace).operations
    own, instances = found.recorded, found.instances
    edges = np.searchsorted(own.owner, np.arange(len(found.ranks) + 1))
    inside = np.zeros(len(found), bool)
    for rank, start_ns, end_ns in windows.select("rank", "start_ns", "end_ns").iter_rows():
        for owner in np.flatnonzero(found.ranks == rank):
            starts = own.start[edges[owner] : edges[owner + 1]]
            low, high = edges[owner] + np.searchsorted(starts, [start_ns, end_ns])
            inside[low:high] = True
    at = np.flatnonzero(inside)
    at = at[np.append(instances.accepted, False)[found.instance[at]]]
    instance, family = found.instance[at], own.family[at]
    arrival_ns, last_ns = found.arrival[at], instances.last_ns[instance]
    is_last = pl.when(pl.Series(instances.lead_known[instance])).then(pl.Series(arrival_ns == last_ns))
    return pl.DataFrame(
        {
            "event_id": own.event_id[at],
            "communicator": instances.communicator[instance],
            "instance": instance.astype(np.int64),
            "rank": found.ranks[own.owner[at]],
            "operation": _texts([operation for operation, _, _ in own.families], family),
            "implementation": _texts([implementation for _, implementation, _ in own.families], family),
            "arrival_ns": arrival_ns,
            "last_arrival_ns": last_ns,
            "end_ns": arrival_ns + own.end[at] - own.start[at],
            "is_last": pl.select(is_last).to_series(),
        }
    )


def _texts(texts: Sequence[str], codes: NDArray[np.int32]) -> pl.Series:
    return pl.Series(texts, dtype=pl.String).gather(codes)


def parted(events: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """`events` in which the first kernel of a matched collective is cut at the last arrival.

    A kernel that ends before the last arrival (the first of several of one operation) is all `wait`; one whose rank
    came last is all `transfer`. Times of one rank still sum to what they were.

    Returns:
        the columns of `event_slices`; kind is also `wait` or `transfer`.
    """
    cut = events.join(waits.select("event_id", "last_arrival_ns"), on="event_id", how="left", maintain_order="left")
    end = pl.col("start_ns") + pl.col("duration_ns")
    at = pl.col("last_arrival_ns").clip(pl.col("start_ns"), end)
    matched = cut.filter(pl.col("last_arrival_ns").is_not_null()).with_columns(at.alias("at"), end.alias("end"))
    wait = matched.filter(pl.col("at") > pl.col("start_ns")).with_columns(
        pl.lit("wait").alias("kind"), (pl.col("at") - pl.col("start_ns")).alias("duration_ns")
    )
    transfer = matched.filter(pl.col("end") > pl.col("at")).with_columns(
        pl.lit("transfer").alias("kind"),
        pl.col("at").alias("start_ns"),
        (pl.col("end") - pl.col("at")).alias("duration_ns"),
    )
    rest = cut.filter(pl.col("last_arrival_ns").is_null())
    columns = events.columns
    return pl.concat([part.select(columns) for part in (rest, wait, transfer)]).sort(
        "rank", "stream", "start_ns", "event_id", "kind"
    )


def aligned_windows(trace: LoadedTrace, windows: pl.DataFrame) -> pl.DataFrame:
    """`windows` with start_ns and end_ns on the aligned clock; other columns as they are."""
    alignment = find_alignment(trace)
    return windows.with_columns(_aligned(alignment, windows, "start_ns"), _aligned(alignment, windows, "end_ns"))


def _aligned(alignment: Alignment, rows: pl.DataFrame, column: str) -> pl.Series:
    moved = alignment.to_aligned(rows["rank"].to_numpy().astype(np.int64), rows[column].to_numpy())
    return pl.Series(column, moved, dtype=pl.Int64)


def in_windows(trace: LoadedTrace, query: str, windows: pl.DataFrame) -> pl.DataFrame:
    """The answer of a query that reads `slice_window` (rank, start_ns, end_ns): windows on each rank's own time."""
    trace.db.register("slice_window", windows.select("rank", "start_ns", "end_ns").to_arrow())
    try:
        frame = pl.from_arrow(trace.db.sql(query).to_arrow_table())
    finally:
        trace.db.unregister("slice_window")
    return frame if isinstance(frame, pl.DataFrame) else frame.to_frame()
