"""Figures per collective operation: durations, waits, transfers, exposure, bandwidth."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from tracelens.analyses.skew_context import Context
from tracelens.analyses.skew_schemas import OPERATIONS, SET_ASIDE
from tracelens.analyses.straggler import classify

WARM_UP = "warm-up step"
NOT_SELECTED = "outside the selection"


def member_rows(known: Context) -> pl.DataFrame:
    """The collective operations of the selection outside warm-up, with step, exposure and name.

    Columns beside those of `Alignment.members`: row, step (null outside steps), summed (in a step that summaries
    use), set, hidden_ns, duration_ns, shares_stream, kernel_name.
    """
    table = known.steps.table
    step = np.append(table["step"].to_numpy().astype(np.int64), -1)[known.step_row]
    summed = np.append(known.summed_step, False)[known.step_row]
    sets = pl.DataFrame(
        {
            "rank": [rank for one in known.alignment.sets for rank in one.ranks],
            "set": [number for number, one in enumerate(known.alignment.sets) for _ in one.ranks],
        },
        schema={"rank": pl.Int32, "set": pl.Int32},
    )
    return (
        known.members.with_columns(
            row=pl.int_range(pl.len()),
            step=pl.Series(step),
            summed=pl.Series(summed),
            hidden_ns=pl.Series(known.hidden_ns),
            duration_ns=pl.col("end_ns") - pl.col("start_ns"),
            shares_stream=pl.Series(known.shares_stream),
            kernel_name=known.kernel_names,
            used=pl.Series(known.selected & ~known.warm),
        )
        .filter("used")
        .join(sets, on="rank", how="left", maintain_order="left")
        .with_columns(step=pl.when(pl.col("step") >= 0).then("step"))
    )


def operations_table(known: Context, *, synchronising_only: bool) -> pl.DataFrame:
    """One row per communicator, operation, implementation, kernel and message size."""
    rows = known.rows
    if synchronising_only:
        rows = rows.filter("accepted")
    keys = ["communicator", "operation", "implementation", "kernel_name", "message_bytes"]
    result: list[dict[str, Any]] = []
    for (communicator, operation, implementation, name, size), group in rows.group_by(keys, maintain_order=True):
        result.append(
            {
                "communicator": communicator,
                "collective": operation,
                "implementation": implementation,
                "kernel_name": name,
                "message_bytes": size,
                **_figures(known, str(operation), size, group),
            }
        )
    frame = OPERATIONS.frame(result)
    return frame.sort("communicator", "collective", "implementation", "kernel_name", "message_bytes", nulls_last=True)


def _figures(known: Context, operation: str, size: Any, group: pl.DataFrame) -> dict[str, Any]:
    ranks = group["rank"].n_unique()
    per_rank = group["rank"].value_counts()["count"]
    steps = known.step_counts.get(int(group["set"][0]), 0) if group["set"][0] is not None else 0
    summed = group.filter("summed")
    matched = group.filter("accepted")
    figures: dict[str, Any] = {
        "call_count": int(per_rank.max() or 0),  # type: ignore[arg-type]
        "calls_per_step": summed.height / ranks / steps if steps else None,
        "rank_count": ranks,
        "duration_p50_ns": whole(group["duration_ns"].median()),
        "exposed_per_step_ns": (
            round(int((summed["duration_ns"] - summed["hidden_ns"]).sum()) / ranks / steps) if steps else None
        ),
        "bus_bw_gbps": None,
        "wait_frac": None,
        "class": "inconclusive",
    }
    each = matched.unique("instance", keep="first", maintain_order=True)
    for name in ("transfer", "transfer_min", "completion"):
        figures[f"{name}_p50_ns"] = whole(each[f"{name}_ns"].median())
    figures["wait_p50_ns"] = whole(matched["wait_ns"].median())
    skews = each["skew_ns"]
    figures["skew_p50_ns"] = whole(skews.median())
    figures["skew_p90_ns"] = whole(skews.quantile(0.9, "linear"))
    figures["skew_p99_ns"] = whole(skews.quantile(0.99, "linear"))
    figures["skew_max_ns"] = skews.max()
    if matched.height:
        communicator = int(matched["communicator"][0])
        in_set = known.alignment.sets[int(group["set"][0])]
        members = len(known.ranks_of(communicator))
        figures["wait_frac"], figures["class"] = classify(
            int(matched["wait_ns"].sum()),
            int(matched["duration_ns"].sum()),
            matched.height,
            each.height,
            in_set.resolution_ns,
            whole=not known.missing_of(communicator),
        )
        figures["bus_bw_gbps"] = _bus_bandwidth(operation, size, members, each)
    return figures


def _bus_bandwidth(operation: str, size: Any, members: int, each: pl.DataFrame) -> float | None:
    """nccl-tests' bus bandwidth from the completion of instances whose skew is less than their transfer."""
    factor = {"all_reduce": 2 * (members - 1) / members, "all_gather": (members - 1) / members}
    factor["reduce_scatter"] = factor["all_gather"]
    if size is None or operation not in factor:
        return None
    # NCCL records what one rank sends (all-gather) or receives (reduce-scatter); nccl-tests counts the whole buffer.
    total = int(size) * (members if operation != "all_reduce" else 1)
    quiet = each.filter(pl.col("skew_ns") < pl.col("transfer_ns"))
    time = quiet["completion_ns"].median()
    if not isinstance(time, int | float) or time <= 0:
        return None
    return total / float(time) * factor[operation]


def set_aside_table(known: Context) -> pl.DataFrame:
    """What carries no wait, by reason: instances of communicators once, calls of unmatched ranks each."""
    members = known.members.with_columns(selected=pl.Series(known.selected), warm=pl.Series(known.warm))
    left = members.with_columns(
        reason=pl.when(~pl.col("selected"))
        .then(pl.lit(NOT_SELECTED))
        .when(~pl.col("accepted"))
        .then("set_aside_reason")
        .when("warm")
        .then(pl.lit(WARM_UP))
    ).filter(pl.col("reason").is_not_null())
    # An instance counts once, under its lowest member's reason.
    first = left.sort("communicator", "instance", "rank", nulls_last=True)
    instances = first.filter(pl.col("instance").is_not_null()).unique("instance", keep="first", maintain_order=True)
    calls = first.filter(pl.col("instance").is_null())
    counted = pl.concat([instances.select("reason"), calls.select("reason")]).group_by("reason").len("count")
    return SET_ASIDE.frame(counted).sort("reason")


def whole(value: Any) -> int | None:
    """A median or quantile as whole ns, half to even; null stays null."""
    return None if value is None else round(value)
