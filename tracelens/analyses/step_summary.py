"""Steps in summary: one row per phase and rung, and the sentences that open the answer."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracelens.analyses.aligned_clock import aligned_clock
from tracelens.analyses.blocks import blocks
from tracelens.analyses.step_search import Steps, search_steps
from tracelens.frames import Column, Schema
from tracelens.trace import LoadedTrace
from tracelens.units import plural

_MEANS = ("collective", "exposed", "wait", "gap", "host_late")

SUMMARY = Schema(
    "one phase and rung, over complete steps outside warm-up; a step's step_ns is the median over its ranks",
    Column("phase", pl.String, "prefill, decode, mixed or other"),
    Column("rung", pl.String, "batch size or shape class"),
    Column("step_count", pl.Int64, "steps in the statistics; ranks that nothing links count theirs apart", "count"),
    Column("mean_ns", pl.Int64, "mean of step_ns", "ns"),
    Column("p10_ns", pl.Int64, "10th percentile of step_ns, linear between ranks", "ns"),
    Column("p50_ns", pl.Int64, "median of step_ns", "ns"),
    Column("p90_ns", pl.Int64, "90th percentile of step_ns", "ns"),
    Column("p99_ns", pl.Int64, "99th percentile of step_ns", "ns"),
    Column(
        "p99_with_idle_ns",
        pl.Int64,
        "the same with the steps that idle between requests follows, that idle added",
        "ns",
    ),
    Column("spread_p50_ns", pl.Int64, "median over steps of the largest less the smallest step_ns of the ranks", "ns"),
    *(
        Column(f"{name}_mean_ns", pl.Int64, f"mean over steps of the mean over ranks of {name}_ns", "ns")
        for name in _MEANS
    ),
    Column("worst_rank", pl.Int32, "rank for which the others waited longest in these steps; null without waits"),
)


def summarise(trace: LoadedTrace, rows: pl.DataFrame) -> pl.DataFrame:
    """The summary of `figures_per_step` rows: columns of `SUMMARY`, ordered by phase and rung."""
    whole = rows.filter(pl.col("complete_on_all") & ~pl.col("warm_up"))
    each = _per_step(whole)
    summary = (
        each.group_by("phase", "rung")
        .agg(
            pl.len().cast(pl.Int64).alias("step_count"),
            whole_ns(pl.col("step_ns").mean()).alias("mean_ns"),
            *(
                whole_ns(pl.col("step_ns").quantile(share, "linear")).alias(name)
                for name, share in (("p10_ns", 0.1), ("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99))
            ),
            whole_ns(pl.col("spread_ns").median()).alias("spread_p50_ns"),
            *(whole_ns(pl.col(f"{name}_ns").mean()).alias(f"{name}_mean_ns") for name in _MEANS),
        )
        .join(_with_idle(rows), on=["phase", "rung"], how="left", nulls_equal=True)
        .join(_worst_ranks(trace, whole), on=["phase", "rung"], how="left", nulls_equal=True)
    )
    return summary.sort("phase", -pl.col("step_count"), "rung", nulls_last=True)


def whole_ns(value: pl.Expr) -> pl.Expr:
    """A figure in whole ns, halves to the even one."""
    return value.round(0, mode="half_to_even").cast(pl.Int64)


def _per_step(rows: pl.DataFrame) -> pl.DataFrame:
    """One row per step: the median over ranks of step_ns, the means of the other figures."""
    return rows.group_by("set", "step", "phase", "rung").agg(
        whole_ns(pl.col("step_ns").median()).alias("step_ns"),
        (pl.col("step_ns").max() - pl.col("step_ns").min()).alias("spread_ns"),
        *(pl.col(f"{name}_ns").mean() for name in _MEANS),
        whole_ns(pl.col("idle_after_ns").median()).alias("idle_after_ns"),
    )


def _with_idle(rows: pl.DataFrame) -> pl.DataFrame:
    """99th percentile with the steps that are complete but for the idle between requests after them."""
    ranks = rows.group_by("set").agg(pl.col("rank").n_unique().alias("rank_count"))
    shown = rows.join(ranks, on="set").with_columns(
        usable=(pl.col("complete") | (pl.col("idle_after_ns") > 0)).all().over("set", "step")
        & (pl.len().over("set", "step") == pl.col("rank_count"))
    )
    each = _per_step(shown.filter(pl.col("usable") & ~pl.col("warm_up")))
    return each.group_by("phase", "rung").agg(
        whole_ns((pl.col("step_ns") + pl.col("idle_after_ns")).quantile(0.99, "linear")).alias("p99_with_idle_ns")
    )


def _worst_ranks(trace: LoadedTrace, rows: pl.DataFrame) -> pl.DataFrame:
    """Per phase and rung the rank that arrived last in the instances with the largest sum of the others' waits."""
    empty = pl.DataFrame(schema={"phase": rows.schema["phase"], "rung": rows.schema["rung"], "worst_rank": pl.Int32})
    calls, found = aligned_clock(trace).operations, search_steps(trace)
    if not bool(calls.accepted.any()) or rows.is_empty():
        return empty
    row_count = found.table.height
    waited_ns, late = np.zeros(len(calls.instances), np.int64), np.full(len(calls.instances), -1, np.int32)
    for part in blocks(0, len(calls)):
        row = found.member[calls.recorded.place[part]]
        within = np.flatnonzero((row >= 0) & calls.accepted[part])
        row, wait, instance = row[within], calls.wait_ns[part][within], calls.instance[part][within]
        np.add.at(waited_ns, instance, wait)
        last = (wait == 0) & calls.instances.lead_known[instance]
        late[instance[last]] = row[last]
    named = np.flatnonzero(late >= 0)
    caused_ns = np.bincount(late[named], waited_ns[named], minlength=row_count).astype(np.int64)
    caused = found.table.select("set", "step", "rank").with_columns(caused_ns=pl.Series(caused_ns))
    caused = caused.filter(pl.Series(np.bincount(late[named], minlength=row_count) > 0))
    of_step = rows.select("set", "step", "phase", "rung").unique()
    return (
        caused.join(of_step, on=["set", "step"], how="inner")
        .group_by("phase", "rung", "rank")
        .agg(pl.col("caused_ns").sum())
        .sort("phase", "rung", -pl.col("caused_ns"), "rank")
        .group_by("phase", "rung", maintain_order=True)
        .agg(pl.col("rank").first().cast(pl.Int32).alias("worst_rank"))
    )


def sentences(rows: pl.DataFrame, summary: pl.DataFrame, found: Steps) -> tuple[str, ...]:
    """The answer in words: the decode step, its tokens per second where the marker tells them, and where time goes."""
    if summary.is_empty():
        warm = "warm_up" in rows.columns and bool(rows.filter("complete_on_all")["warm_up"].any())
        none = "all whole ones counted as warm-up" if warm else "none of them whole on all ranks"
        return (f"{plural(rows.select('set', 'step').n_unique(), 'step')} by {found.marking.marker}, {none}.",)
    decode = summary.filter(pl.col("phase") == "decode")
    shown = (
        (decode if decode.height else summary).sort(-pl.col("step_count"), "rung", nulls_last=True).row(0, named=True)
    )
    rung = f" {shown['rung']}" if str(shown["rung"] or "").startswith("bs=") else ""
    step_ms = shown["p50_ns"] / 1e6
    kind = "Step" if shown["phase"] == "other" else f"{shown['phase'].capitalize()} step"
    head = f"{kind}{rung}: p50 {step_ms:.3f} ms (p90 {shown['p90_ns'] / 1e6:.3f} ms, n = {steps_counted(_of_rung(rows, shown))})"
    rate = _tokens_per_second(rows, shown)
    lines = [head + (f", {rate:,.1f} tokens/s" if rate is not None else "") + "."]
    mean = shown["mean_ns"]
    parts = []
    if shown["exposed_mean_ns"] is not None:
        part = f"{shown['exposed_mean_ns'] / 1e6:.3f} ms ({shown['exposed_mean_ns'] / mean:.1%}) in exposed collectives"
        if shown["wait_mean_ns"] is not None:
            part += f", of which up to {shown['wait_mean_ns'] / 1e6:.3f} ms waiting for other ranks"
        parts.append(part)
    if shown["gap_mean_ns"] is not None:
        part = f"{shown['gap_mean_ns'] / 1e6:.3f} ms ({shown['gap_mean_ns'] / mean:.1%}) idle"
        if shown["host_late_mean_ns"]:
            part += f", {shown['host_late_mean_ns'] / 1e6:.3f} ms of it because the host launched late"
        parts.append(part)
    if parts:
        lines.append(f"Of {mean / 1e6:.3f} ms in the mean: {'; '.join(parts)}.")
    facts = found.facts
    if facts["idle_between_count"]:
        lines.append(
            f"{plural(facts['idle_between_count'], 'idle stretch', 'idle stretches')} between requests, "
            f"{facts['idle_between_ns'] / 1e6:.1f} ms together, lie in no step; a capture cannot always tell a client's pause from a host's stall."
        )
    return tuple(lines)


def _of_rung(rows: pl.DataFrame, shown: dict[str, object]) -> pl.DataFrame:
    """The rows behind one row of the summary."""
    return rows.filter(
        (pl.col("phase") == shown["phase"])
        & pl.col("rung").eq_missing(pl.lit(shown["rung"]))
        & pl.col("complete_on_all")
        & ~pl.col("warm_up")
    )


def steps_counted(rows: pl.DataFrame) -> str:
    """How many steps rows of set, step and rank are, for sentences: `59`, or `472: 59 on each of 8 ranks, ...`.

    A step has one number on the ranks of its set. Where no matched collective links ranks, each is a set of its own,
    and what may be one forward pass counts once for each of them.
    """
    sets = rows.group_by("set").agg(pl.col("step").n_unique().alias("steps"), pl.col("rank").n_unique().alias("ranks"))
    total = int(sets["steps"].sum())
    if sets.height < 2:
        return f"{total:,}"
    counts = sorted(sets["steps"].to_list())
    each = f"{counts[0]:,}" if counts[0] == counts[-1] else f"{counts[0]:,} to {counts[-1]:,}"
    if sets["ranks"].max() == 1:
        return f"{total:,}: {each} on each of {sets.height} ranks, which no matched collective links"
    return f"{total:,}: {each} in each of {sets.height} groups of ranks, which no matched collective links"


def _tokens_per_second(rows: pl.DataFrame, shown: dict[str, object]) -> float | None:
    """Tokens per second of a decode rung: only where each request of a step yields one known token."""
    if shown["phase"] != "decode":
        return None
    mine = _of_rung(rows, shown)
    # With draft tokens a step holds more tokens than requests, and how many were accepted is not in the capture.
    if (
        mine.is_empty()
        or mine["requests"].null_count()
        or not (mine["requests"] == mine["tokens"]).fill_null(False).all()
    ):
        return None
    each = mine.group_by("set", "step").agg(pl.col("requests").first())
    return float(each["requests"].mean() or 0.0) / (float(shown["p50_ns"]) / 1e9)  # type: ignore[arg-type]
