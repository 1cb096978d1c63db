"""Where two bucket maps disagree, name by name, on the same names."""

from __future__ import annotations

from typing import ClassVar

import polars as pl

from tracelens.frames import Column, Result, Schema
from tracelens.ruleset import RuleSet
from tracelens.units import plural


class RuleDiffResult(Result):
    """Names that two maps put into different buckets."""

    command: ClassVar[str] = "rules diff"
    schemas: ClassVar = {
        "differences": Schema(
            "one kernel name that two maps put into different buckets",
            Column("kernel_name", pl.String, "The name"),
            Column("bucket_a", pl.String, "Its bucket by the first map"),
            Column("pattern_a", pl.String, "The pattern that takes it there; null where none does"),
            Column("bucket_b", pl.String, "Its bucket by the second map"),
            Column("pattern_b", pl.String, "The pattern that takes it there; null where none does"),
            Column("kernel_ns", pl.Int64, "Sum of its durations; null without a capture", "ns"),
            Column("time_frac", pl.Float64, "Share of all kernel and copy time; null without a capture", "frac"),
        ),
        "moves": Schema(
            "one pair of buckets between which names move",
            Column("bucket_a", pl.String, "Bucket by the first map"),
            Column("bucket_b", pl.String, "Bucket by the second map"),
            Column("name_count", pl.Int64, "Distinct names", "count"),
            Column("kernel_ns", pl.Int64, "Sum of their durations; null without a capture", "ns"),
            Column("time_frac", pl.Float64, "Share of all kernel and copy time; null without a capture", "frac"),
        ),
    }


def diff_rules(first: RuleSet, second: RuleSet, names: pl.DataFrame) -> RuleDiffResult:
    """Classifies the same names by two maps.

    Args:
        first, second: the maps.
        names: `kernel_name` and `kernel_ns` (null where no capture gave the names); one row per name.

    Returns:
        tables `differences`, largest time first, and `moves`, its sums per pair of buckets.

    Raises:
        RuleError: a pattern takes too long.
    """
    texts = names["kernel_name"].to_list()
    known = names["kernel_ns"].null_count() < names.height
    total = _sum_ns(names) if known else 0
    columns: dict[str, list[str | None]] = {}
    for side, one in (("a", first), ("b", second)):
        taken = one.classify(texts)
        columns[f"bucket_{side}"] = [one.bucket(at) for at in taken]
        columns[f"pattern_{side}"] = [None if at is None else one.rules[at].pattern for at in taken]
    share = (pl.col("kernel_ns") / total if total else pl.lit(None)).cast(pl.Float64).alias("time_frac")
    differing = (
        names.select("kernel_name", pl.col("kernel_ns").cast(pl.Int64))
        .with_columns(pl.Series(name, values, dtype=pl.String) for name, values in columns.items())
        .filter(pl.col("bucket_a") != pl.col("bucket_b"))
        .sort(pl.col("kernel_ns").fill_null(0), "kernel_name", descending=[True, False])
    )
    moves = (
        differing.group_by("bucket_a", "bucket_b")
        .agg(
            pl.len().cast(pl.Int64).alias("name_count"),
            (pl.col("kernel_ns").sum() if known else pl.lit(None, dtype=pl.Int64)).alias("kernel_ns"),
        )
        .sort(
            pl.col("kernel_ns").fill_null(0),
            "name_count",
            "bucket_a",
            "bucket_b",
            descending=[True, True, False, False],
        )
    )
    tables = {
        name: RuleDiffResult.schemas[name].frame(frame.with_columns(share))
        for name, frame in (("differences", differing), ("moves", moves))
    }
    sentence = f"{first.name} and {second.name} disagree on {differing.height:,} of {plural(names.height, 'name')}"
    if total:
        sentence += f", {_sum_ns(differing) / total:.1%} of the time"
    provenance = {"rules": [first.name, second.name], "rules_sha256": [first.sha256, second.sha256]}
    return RuleDiffResult(tables, (), provenance, (sentence + ".",))


def _sum_ns(frame: pl.DataFrame) -> int:
    return sum(value or 0 for value in frame["kernel_ns"].to_list())
