"""Figures that only the report needs: which steps to draw, waiting by step, the split of collective time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

STEPS_SHOWN = 5_000
STEP_BINS = 300
CELLS_SHOWN = 16_000
"""Of a heat-map: with many ranks there are fewer columns, so that a page stays small."""


@dataclass(frozen=True)
class ChosenSteps:
    """The steps that stand for a capture.

    Attributes:
        set: the connected set of ranks with most steps of the main kind.
        phase, rung: the main kind: decode if there is any, else the phase, and of it the rung, with most steps.
        typical: per set that has that kind, the step whose latency is nearest the kind's median there (ties: the
            earliest).
        worst: per set, the one with the largest latency (ties: the earliest).
        count: complete steps of that kind outside warm-up, of `set`.
    """

    set: int
    phase: str
    rung: str | None
    typical: Mapping[int, int]
    worst: Mapping[int, int]
    count: int


def step_latencies(figures: pl.DataFrame) -> pl.DataFrame:
    """One row per set and step: phase, rung, start_ns (earliest rank), step_ns (median over ranks, half to even),
    spread_ns (largest less smallest), complete (on all ranks), warm_up; by set and step."""
    return (
        figures.group_by("set", "step", maintain_order=True)
        .agg(
            pl.col("phase", "rung").first(),
            pl.col("edge_ns").min().alias("start_ns"),
            _whole(pl.col("step_ns").median()).alias("step_ns"),
            (pl.col("step_ns").max() - pl.col("step_ns").min()).alias("spread_ns"),
            pl.col("complete_on_all").all().alias("complete"),
            pl.col("warm_up").any(),
        )
        .sort("set", "step")
    )


def choose_steps(latencies: pl.DataFrame) -> ChosenSteps | None:
    """The main kind of step, its typical and its worst one; null if no step is complete outside warm-up."""
    kept = latencies.filter(pl.col("complete") & ~pl.col("warm_up"))
    if kept.is_empty():
        return None
    kinds = (
        kept.group_by("set", "phase", "rung")
        .agg(pl.len().alias("count"))
        .sort(
            (pl.col("phase") == "decode").fill_null(False),
            "count",
            "set",
            "phase",
            "rung",
            descending=[True, True, False, False, False],
        )
    )
    main = kinds.row(0, named=True)
    alike = kept.filter(
        pl.col("phase").eq_missing(pl.lit(main["phase"], pl.String))
        & pl.col("rung").eq_missing(pl.lit(main["rung"], pl.String))
    )
    distance = (pl.col("step_ns") - pl.col("step_ns").median().over("set")).abs()
    return ChosenSteps(
        main["set"],
        main["phase"],
        main["rung"],
        _first_of_each_set(alike.sort(distance, "step")),
        _first_of_each_set(alike.sort(-pl.col("step_ns"), "step")),
        alike.filter(pl.col("set") == main["set"]).height,
    )


def _first_of_each_set(latencies: pl.DataFrame) -> dict[int, int]:
    return dict(latencies.group_by("set", maintain_order=True).agg(pl.col("step").first()).sort("set").rows())


def mean_step_ns(latencies: pl.DataFrame, chosen: ChosenSteps) -> float | None:
    """Mean latency of the main kind's complete steps outside warm-up, ns."""
    alike = of_main_kind(latencies.rename({"complete": "complete_on_all"}), chosen)
    mean = alike.filter(pl.col("set") == chosen.set)["step_ns"].mean()
    return float(mean) if isinstance(mean, (int, float)) else None


def shown_steps(latencies: pl.DataFrame, limit: int = STEPS_SHOWN) -> pl.DataFrame:
    """At most `limit` rows: the slowest fifth of them by latency, and every n-th of the others; by set and step."""
    if latencies.height <= limit:
        return latencies
    slow = latencies.with_row_index("_at").sort(-pl.col("step_ns"), "_at").head(limit // 5)
    others = latencies.with_row_index("_at").join(slow.select("_at"), on="_at", how="anti", maintain_order="left")
    every = -(-others.height // (limit - slow.height))
    return pl.concat([slow, others.gather_every(every)]).sort("_at").drop("_at")


def collective_split(figures: pl.DataFrame, chosen: ChosenSteps) -> pl.DataFrame:
    """Per rank, means over the main kind's steps: wait_ns, transfer_ns, unsplit_ns and hidden_ns, which sum to collective time.

    Hidden is collective time less its exposed part; waiting counts up to the exposed part, and transfer is what is
    left of it. Where waits are unknown they are null, and unsplit_ns holds the exposed time; else that is null.
    """
    waiting = pl.min_horizontal("wait_ns", "exposed_ns")
    return (
        of_main_kind(figures, chosen)
        .group_by("rank", maintain_order=True)
        .agg(
            _whole(pl.when(pl.col("wait_ns").is_not_null()).then(waiting).mean()).alias("wait_ns"),
            _whole(pl.when(pl.col("wait_ns").is_not_null()).then(pl.col("exposed_ns") - waiting).mean()).alias(
                "transfer_ns"
            ),
            _whole(pl.when(pl.col("wait_ns").is_null()).then(pl.col("exposed_ns")).mean()).alias("unsplit_ns"),
            _whole((pl.col("collective_ns") - pl.col("exposed_ns")).mean()).alias("hidden_ns"),
        )
        .sort("rank")
    )


def waits_by_step(figures: pl.DataFrame, chosen: ChosenSteps, bins: int = STEP_BINS) -> pl.DataFrame:
    """Waiting of each rank whose set has the main kind, steps together so that at most `bins` columns are left.

    One row per rank and bin: rank, first_step, last_step, wait_ns (mean per step).
    """
    mine = figures.filter(pl.col("set").is_in(list(chosen.typical)))
    if mine.is_empty() or mine["wait_ns"].null_count() == mine.height:
        return mine.select(
            "rank", first_step="step", last_step="step", wait_ns=pl.col("wait_ns").cast(pl.Int64)
        ).clear()
    low, high = int(str(mine["step"].min())), int(str(mine["step"].max()))
    wide = -(-(high - low + 1) // max(1, min(bins, CELLS_SHOWN // mine["rank"].n_unique())))
    return (
        mine.with_columns(((pl.col("step") - low) // wide).alias("_bin"))
        .group_by("rank", "_bin")
        .agg(_whole(pl.col("wait_ns").mean()).alias("wait_ns"))
        .with_columns((low + pl.col("_bin") * wide).alias("first_step"))
        .with_columns((pl.col("first_step") + wide - 1).clip(upper_bound=high).alias("last_step"))
        .sort("rank", "first_step")
        .select("rank", "first_step", "last_step", "wait_ns")
    )


def step_windows(figures: pl.DataFrame, step_of: Mapping[int, int]) -> pl.DataFrame:
    """The window of one step of each set on its ranks' own time: rank, set, step, start_ns, end_ns; by rank."""
    drawn = pl.DataFrame(
        {"set": list(step_of), "step": list(step_of.values())}, schema=figures.select("set", "step").schema
    )
    return (
        figures.join(drawn, on=["set", "step"], how="semi", maintain_order="left")
        .select("rank", "set", "step", pl.col("edge_ns").alias("start_ns"), pl.col("window_end_ns").alias("end_ns"))
        .sort("rank")
    )


def of_main_kind(figures: pl.DataFrame, chosen: ChosenSteps) -> pl.DataFrame:
    """The rows of complete steps of the main kind outside warm-up."""
    return figures.filter(
        pl.col("phase").eq_missing(chosen.phase)
        & pl.col("rung").eq_missing(pl.lit(chosen.rung, pl.String))
        & pl.col("complete_on_all")
        & ~pl.col("warm_up")
    )


def _whole(value: pl.Expr) -> pl.Expr:
    """A time rounded half to even, to whole ns."""
    return value.round(mode="half_to_even").cast(pl.Int64)
