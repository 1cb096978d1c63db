"""Where each rank's time went: the bucket table on a terminal."""

from __future__ import annotations

import polars as pl

from tracelens.frames import Result, Schema
from tracelens.views.terminal import Screen

_KERNELS_SHOWN = 8
_BUCKET_WIDTH = 14
_RANK_WIDTH = 10
_RANKS_IN_FULL = 4


def show(result: Result, screen: Screen, *, kernels_per_bucket: int = _KERNELS_SHOWN) -> None:
    """Draw a bucket result.

    With two ranks or more, first one table of all ranks side by side (elapsed time by bucket); up to four, then each
    rank's own table: kernels, kernel time, busy time, elapsed time, share; a total row, in which elapsed time is the span.
    If the result has `kernels`, the largest kernels stand under each bucket.
    """
    screen.sentences(result.sentences)
    buckets = result.tables.get("buckets")
    if buckets is None:
        return
    schema = result.schemas["buckets"]
    ranks = buckets["rank"].unique(maintain_order=True).to_list()
    if len(ranks) > 1:
        wide = side_by_side(buckets)
        fitting = max(1, (screen.width - _BUCKET_WIDTH) // _RANK_WIDTH)
        for start in range(0, len(ranks), fitting):
            names = [_rank_column(rank) for rank in ranks[start : start + fitting]]
            screen.table(
                wide,
                columns=["bucket", *names],
                title="" if start else "Elapsed time by rank (each instant in one bucket; the total is the span)",
                total=names,
                one_unit=names,
                labels={_rank_column(rank): f"rank {rank}" for rank in ranks},
                quiet=("bucket", "idle"),
            )
    if len(ranks) > _RANKS_IN_FULL:
        screen.line(f"Kernels, kernel time and busy time of one rank: --ranks {ranks[0]}")
        screen.line()
    else:
        _show_ranks(buckets, schema, screen)
    kernels = result.tables.get("kernels")
    if kernels is not None:
        _show_kernels(kernels, result, screen, kernels_per_bucket)


def _show_ranks(buckets: pl.DataFrame, schema: Schema, screen: Screen) -> None:
    screen.table(
        buckets,
        schema,
        title="Budget per rank",
        columns=["rank", "bucket", "kernel_count", "kernel_ns", "busy_ns", "elapsed_ns", "elapsed_frac"],
        labels={"kernel_ns": "kernel time", "busy_ns": "busy", "elapsed_ns": "elapsed", "elapsed_frac": "share"},
        optional=["busy_ns", "kernel_ns"],
        one_unit=["kernel_ns", "busy_ns", "elapsed_ns"],
        group="rank",
        total=["kernel_count", "kernel_ns", "elapsed_ns", "elapsed_frac"],
        bar="elapsed_frac",
        quiet=("bucket", "idle"),
    )


def side_by_side(buckets: pl.DataFrame) -> pl.DataFrame:
    """One row per bucket, one column of elapsed time per rank; buckets in order of their largest rank, idle last."""
    order = (
        buckets.group_by("bucket")
        .agg(pl.col("elapsed_ns").max())
        .sort(pl.col("bucket") == "idle", -pl.col("elapsed_ns"), "bucket")["bucket"]
        .to_list()
    )
    rows = {name: {"bucket": name} for name in order}
    for rank, bucket, elapsed_ns in buckets.select("rank", "bucket", "elapsed_ns").iter_rows():
        rows[bucket][_rank_column(rank)] = elapsed_ns
    names = [_rank_column(rank) for rank in buckets["rank"].unique(maintain_order=True)]
    schema = {"bucket": pl.String, **dict.fromkeys(names, pl.Int64)}
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows.values()], schema=schema)


def _rank_column(rank: int | None) -> str:
    return f"rank_{rank}_ns" if rank is not None else "all_ns"


def _show_kernels(kernels: pl.DataFrame, result: Result, screen: Screen, per_bucket: int) -> None:
    keys = ["rank", "bucket"]
    ordered = kernels.sort("rank", "bucket", -pl.col("elapsed_ns"), "kernel_name", nulls_last=True)
    ranked = ordered.with_columns(pl.int_range(pl.len()).over(keys).alias("_place"), pl.len().over(keys).alias("_all"))
    shown = ranked.filter(pl.col("_place") < per_bucket)
    for rank in shown["rank"].unique(maintain_order=True).to_list():
        mine = shown.filter(pl.col("rank").eq_missing(rank))
        where = "" if rank is None else f" of rank {rank}"
        screen.table(
            mine,
            result.schemas["kernels"],
            title=f"Largest kernels{where} (at most {per_bucket} a bucket)",
            columns=["bucket", "kernel_name", "kernel_count", "kernel_ns", "elapsed_ns"],
            optional=["kernel_ns"],
            one_unit=["kernel_ns", "elapsed_ns"],
            labels={"kernel_name": "kernel", "kernel_ns": "kernel time", "elapsed_ns": "elapsed"},
            group="bucket",
        )
