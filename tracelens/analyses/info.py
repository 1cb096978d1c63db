"""What is in a capture, which ranks, how each was identified, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from tracelens.analyses.buckets import IDLE, buckets
from tracelens.analyses.selection import select
from tracelens.frames import Column, Result, Schema
from tracelens.trace import LoadedTrace

if TYPE_CHECKING:
    from tracelens.analyses.timeline import Timeline

_SQL = Path(__file__).with_suffix(".sql")


class InfoResult(Result):
    """Exports, ranks and the ledger of rows read."""

    command: ClassVar[str] = "info"
    schemas: ClassVar = {
        "exports": Schema(
            "one capture file",
            Column("path", pl.String, "The file as typed"),
            Column("nsys_version", pl.String, "Version of the nsys that exported it"),
            Column("schema_version", pl.String, "Version of its table layout"),
            Column("hostname", pl.String, "Machine that was captured"),
            Column("start_utc_ns", pl.Int64, "UTC at time 0, since 1970", "ns"),
            Column("graph_trace", pl.String, "How CUDA graphs were traced: node, graph or none"),
            Column("size_bytes", pl.Int64, "Size of the file", "bytes"),
        ),
        "ranks": Schema(
            "one rank",
            Column("rank", pl.Int32, "Rank"),
            Column("dp", pl.Int32, "Data-parallel coordinate, where the title gives it"),
            Column("pp", pl.Int32, "Pipeline-parallel coordinate, where the title gives it"),
            Column("tp", pl.Int32, "Tensor-parallel coordinate, where the title gives it"),
            Column("path", pl.String, "Its file as typed"),
            Column("hostname", pl.String, "Its machine"),
            Column("pid", pl.Int64, "Its process id"),
            Column("device", pl.Int32, "CUDA ordinal of its GPU in that process"),
            Column("gpu_name", pl.String, "Name of its GPU"),
            Column("rank_source", pl.String, "What numbered the ranks"),
            Column("kernel_count", pl.Int64, "Kernels", "count"),
            Column("memcpy_count", pl.Int64, "Copies", "count"),
            Column("memset_count", pl.Int64, "Memsets", "count"),
            Column("stream_count", pl.Int64, "Streams with events", "count"),
            Column("start_ns", pl.Int64, "Start of its first event, the export's own time", "ns"),
            Column("end_ns", pl.Int64, "End of its last event, the export's own time", "ns"),
            Column("span_ns", pl.Int64, "From the first to the last, or the selected windows", "ns"),
            Column("busy_ns", pl.Int64, "Length of the union of its events", "ns"),
            Column("idle_frac", pl.Float64, "Share of the span in which nothing runs", "frac"),
        ),
        "ledger": Schema(
            "one table of the exports",
            Column("table", pl.String, "Its name"),
            Column("rows_read", pl.Int64, "Rows that it holds", "count"),
            Column("rows_used", pl.Int64, "Rows that became part of the answer", "count"),
            Column("rows_excluded", pl.Int64, "Rows that did not", "count"),
            Column("reason", pl.String, "Why not, with a count for each reason"),
        ),
    }


def info(trace: LoadedTrace) -> InfoResult:
    """What a capture holds. Loads every table, so that the ledger covers all that any command may read."""
    trace.ensure("launch")
    trace.ensure("nvtx")
    selection = select(trace)
    busy = (
        buckets(trace)
        .tables["buckets"]
        .group_by("rank")
        .agg(
            pl.col("elapsed_ns").filter(pl.col("bucket") != IDLE).sum().alias("busy_ns"),
            pl.col("elapsed_frac").filter(pl.col("bucket") == IDLE).first().alias("idle_frac"),
            pl.col("elapsed_ns").filter(pl.col("bucket") == IDLE).first().alias("idle_ns"),
        )
    )
    bounds = selection.windows.group_by("rank").agg(
        pl.col("start_ns").min(), pl.col("end_ns").max(), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("span_ns")
    )
    ranks = (
        trace.rows(_SQL, "ranks")
        .join(_event_counts(trace), on="rank")
        .join(bounds, on="rank", how="left")
        .join(busy, on="rank", how="left")
        .with_columns(pl.when(pl.col("idle_ns").is_not_null()).then(pl.col("busy_ns")).alias("busy_ns"))
        .sort("rank")
    )
    tables = {
        "exports": InfoResult.schemas["exports"].frame(trace.rows(_SQL, "exports")),
        "ranks": InfoResult.schemas["ranks"].frame(ranks),
        "ledger": InfoResult.schemas["ledger"].frame(trace.rows(_SQL, "ledger")),
    }
    exports, count = tables["exports"].height, tables["ranks"].height
    source = tables["ranks"]["rank_source"][0]
    told = {
        "rank-map": "the given map",
        "nccl": "their NCCL communicator",
        "title": "their workers' titles",
        "environment": "their environment",
        "file-name": "their file names",
        "device": "their device ordinals",
        "first-kernel": "the order of their first kernels",
    }[source]
    sentence = (
        f"{count} rank{'s' if count > 1 else ''} in {exports} export{'s' if exports > 1 else ''}, numbered by {told}."
    )
    evidence = trace.detection.evidence
    engine = f"Engine: {trace.detection.engine or 'unknown'}; {evidence}."
    return InfoResult(tables, trace.notices, trace.provenance() | {"window": selection.words}, (sentence, engine))


def _event_counts(trace: LoadedTrace) -> pl.DataFrame:
    """rank, kernel_count, memcpy_count, memset_count, stream_count of the ranks in the answer that have events.

    Taken from the timeline where it is there already: that saves a pass over the table of events.
    """
    along: Timeline | None = trace.known("timeline")
    if along is None:
        return trace.rows(_SQL, "event_counts", ranks=trace.ranks)
    kinds = {"kernel_count": 0, "memcpy_count": 1, "memset_count": 2}
    counts = {name: np.zeros(len(along.ranks), np.int64) for name in kinds}
    for part in along.stretches():
        for name, kind in kinds.items():
            counts[name][along.place_of(part)] += np.count_nonzero(along.kind[part] == kind)
    streams = np.bincount(along.stream_rank[along.stream_number >= 0], minlength=len(along.ranks))
    return pl.DataFrame(
        {"rank": along.ranks, **counts, "stream_count": streams}, schema_overrides={"rank": pl.Int32}
    ).with_columns(pl.col("stream_count").replace(0, None))
