"""Steps on a terminal: the summary per phase and batch, the slowest steps, and what they consist of per rank."""

from __future__ import annotations

import polars as pl

from tracelens.frames import Result
from tracelens.views.terminal import Screen

_SLOWEST = 5


def show(result: Result, screen: Screen, *, every: bool = False) -> None:
    """Draw a steps result.

    Args:
        result: tables `steps` and `summary`; absent where no step was found.
        screen: where to.
        every: every rank's row of every step, in their order, instead of the slowest ones.
    """
    screen.sentences(result.sentences)
    summary, steps = result.tables.get("summary"), result.tables.get("steps")
    if summary is not None:
        screen.table(
            summary,
            result.schemas["summary"],
            title="By phase and batch (complete steps outside warm-up; collectives to host late: mean over ranks)",
            columns=[
                *("phase", "rung", "step_count", "p50_ns", "mean_ns", "p10_ns", "p90_ns", "p99_ns", "p99_with_idle_ns"),
                *("collective_mean_ns", "exposed_mean_ns", "wait_mean_ns", "gap_mean_ns", "host_late_mean_ns"),
                *("spread_p50_ns", "worst_rank"),
            ],
            labels={
                "p99_with_idle_ns": "p99 with idle",
                "collective_mean_ns": "collectives",
                "exposed_mean_ns": "exposed",
                "wait_mean_ns": "waiting",
                "gap_mean_ns": "gaps",
                "host_late_mean_ns": "host late",
                "spread_p50_ns": "spread",
                "worst_rank": "worst rank",
            },
            optional=["spread_p50_ns", "p10_ns", "worst_rank", "p99_with_idle_ns", "host_late_mean_ns", "mean_ns"],
            one_unit=[name for name in summary.columns if name.endswith("_ns")],
        )
    if steps is None or steps.is_empty():
        return
    shown = steps if every else _slowest(steps)
    screen.table(
        shown,
        result.schemas["steps"],
        title="Every step of every rank" if every else f"Slowest complete steps (at most {_SLOWEST}), every rank",
        columns=[
            *("step", "phase", "rung", "rank", "step_ns", "busy_ns", "collective_ns", "exposed_ns", "wait_ns"),
            *("gap_ns", "host_late_ns", "step_boundary_ns", "kernel_count"),
        ],
        labels={"step_ns": "latency", "collective_ns": "collectives", "wait_ns": "waiting", "gap_ns": "gaps"},
        optional=["kernel_count", "rung", "step_boundary_ns", "exposed_ns", "phase", "host_late_ns"],
        group="step",
        one_unit=[name for name in steps.columns if name.endswith("_ns") and name != "start_ns"],
        limit=None if every else 64,
    )


def _slowest(steps: pl.DataFrame) -> pl.DataFrame:
    """The rows of the complete steps outside warm-up whose slowest rank took longest, slowest step first."""
    kept = steps.filter(pl.col("complete") & ~pl.col("warm_up"))
    first = kept.group_by("step").agg(pl.col("step_ns").max().alias("_longest")).sort(-pl.col("_longest"), "step")
    chosen = first.head(_SLOWEST)
    return kept.join(chosen, on="step").sort(-pl.col("_longest"), "step", "rank").drop("_longest")
