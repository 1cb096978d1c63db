"""The mean decode step of a capture, cut for the residual of a TP sweep.

Chosen are the complete steps of one rung, warm-up excluded. Each instant of their windows is compute of one bucket, a
collective, or a gap, so the parts sum to the step; collectives are the exclusive time of what the collective table
names, split into wait and transfer in proportion to their members' sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracelens.analyses.alignment import align
from tracelens.analyses.clock import Ints
from tracelens.analyses.gaps import find_gaps
from tracelens.analyses.ladder_rungs import padded_batch
from tracelens.analyses.matching_instances import Bools
from tracelens.analyses.residual import ALL_REDUCE, TracedCollective, TracedStep
from tracelens.analyses.scaling_presets import ModelShape
from tracelens.analyses.skew_context import context
from tracelens.analyses.step_figures import step_figures
from tracelens.analyses.steps import find_steps
from tracelens.errors import SelectionError
from tracelens.frames import Notice
from tracelens.trace import LoadedTrace

SQL = Path(__file__).with_suffix(".sql")

_FEW_UNMATCHED = 0.05


def traced_step(
    trace: LoadedTrace, tp: int, *, tokens: int | None = None, shape: ModelShape | None = None
) -> tuple[TracedStep, list[Notice]]:
    """The mean decode step of a capture.

    Args:
        trace: the capture of one TP size.
        tp: that size; fewer ranks in the capture are noticed.
        tokens: chooses the rung with that many tokens, and gives message sizes where markers do not say.
        shape: gives message sizes where the capture has no payload.

    Raises:
        SelectionError: no complete decode step, or none with that many tokens.
    """
    rows, told_tokens = _chosen_steps(trace, tokens)
    known_tokens = told_tokens if told_tokens is not None else tokens
    share = 1.0 / rows.height
    compute, collective_ns = _exclusive(trace, rows, share)
    find_gaps(trace)
    align(trace)
    trace.db.register("scaling_window", rows.select("rank", "step").to_arrow())
    try:
        gap_rows = trace.rows(SQL, "gaps")
        members = trace.rows(SQL, "collectives")
        late_host_ns, accepted_count = trace.rows(SQL, "late_host").row(0)
    finally:
        trace.db.unregister("scaling_window")
    message = None
    if shape is not None and shape.width and known_tokens is not None:
        message = known_tokens * shape.width * shape.dtype_bytes
    step = TracedStep(
        tp=tp,
        step_ns=float(rows["step_ns"].sum()) * share,
        step_count=rows["step"].n_unique(),
        tokens=known_tokens,
        compute_ns=compute,
        gaps_ns={cause: gap_ns * share for cause, gap_ns in gap_rows.select("cause", "gap_ns").iter_rows()},
        skew_ns=_skew_ns(trace, rows),
        late_host_ns=float(late_host_ns) * share if accepted_count or len(trace.ranks) == 1 else None,
        collectives=_collectives(members, share, collective_ns, message),
    )
    return step, _notices(trace, tp, members)


def _chosen_steps(trace: LoadedTrace, tokens: int | None) -> tuple[pl.DataFrame, int | None]:
    """The rows of the steps to average, and their tokens where the markers say."""
    phase = trace.options.phase or "decode"
    rows = find_steps(trace).table.filter(
        pl.col("complete_on_all") & ~pl.col("warm_up") & (pl.col("phase") == phase) & pl.col("rank").is_in(trace.ranks)
    )
    if trace.options.steps is not None:
        rows = rows.filter(pl.col("step").is_between(*trace.options.steps))
    rows = rows.with_columns(pl.coalesce("tokens", "requests").alias("_tokens"))
    if tokens is not None and rows["_tokens"].null_count() < rows.height:
        rows = rows.filter(pl.col("_tokens") == tokens)
    if rows.is_empty():
        wanted = f" of {tokens} tokens" if tokens is not None else ""
        raise SelectionError(
            f"the capture holds no complete {phase} step{wanted}", "`tracelens steps` shows what is there"
        )
    # One rung of one set: that with the most steps, the lowest on a tie.
    counts = (
        rows.group_by("set", "rung")
        .agg(pl.len().alias("count"))
        .sort("count", "set", "rung", descending=[True, False, False])
    )
    set_number, rung = counts.row(0)[:2]
    rows = rows.filter((pl.col("set") == set_number) & pl.col("rung").eq_missing(rung))
    told = rows["_tokens"].drop_nulls()
    return rows.drop("_tokens"), int(told.mode().sort()[0]) if told.len() else None


def _exclusive(trace: LoadedTrace, rows: pl.DataFrame, share: float) -> tuple[dict[str, float], float]:
    """(bucket -> exclusive compute, exclusive collective time), means per rank and step."""
    names = trace.rows(SQL, "names")
    windows = (
        rows.select("rank", "step", "edge_ns", "window_end_ns")
        .rename({"edge_ns": "start_ns", "window_end_ns": "end_ns"})
        .with_columns((pl.col("step").rank("dense") - 1).cast(pl.Int64).alias("step"))
        .sort("rank", "start_ns")
    )
    figures = step_figures(trace, windows, names.height)
    by_name = pl.Series("elapsed_ns", figures.elapsed_ns.sum(axis=0), dtype=pl.Int64)
    totals = names.with_columns(by_name).filter(pl.col("elapsed_ns") > 0)
    compute = totals.filter(~pl.col("collective")).group_by("bucket").agg(pl.col("elapsed_ns").sum()).sort("bucket")
    collective_ns = totals.filter(pl.col("collective"))["elapsed_ns"].sum()
    return {bucket: elapsed * share for bucket, elapsed in compute.iter_rows()}, float(collective_ns) * share


def _skew_ns(trace: LoadedTrace, rows: pl.DataFrame) -> float | None:
    """Last minus first arrival, summed over the instances of a step that are exposed for more than half; null without.

    A rank's step holds the instances that it is a member of; the mean over ranks lets replicas stand side by side.
    """
    known = context(trace)
    found = known.operations
    if not found.instances.accepted.any():
        return None
    accepted, hidden_ns = known.accepted, known.hidden_ns
    steps = known.steps.table.select("rank", "step").with_row_index("row")
    # One more row stands for no step at all.
    chosen = np.zeros(len(steps) + 1, dtype=bool)
    chosen[steps.join(rows.select("rank", "step"), on=["rank", "step"], how="semi")["row"].to_numpy()] = True

    def placed(part: slice) -> tuple[Ints, Bools]:
        """The operations of a rank that have a wait and a step, and whether the step is one of `rows`."""
        step = known.step_rows(part)
        own = np.flatnonzero(accepted[part] & (step >= 0))
        return part.start + own, chosen[step[own]]

    duration, hidden = (np.zeros(len(found.instances)) for _ in range(2))
    for operations, _ in known.each(placed):
        instance = found.instance[operations]
        duration += np.bincount(instance, known.durations(operations), len(duration))
        hidden += np.bincount(instance, hidden_ns[operations], len(hidden))
    skew_ns = np.where(2 * hidden < duration, found.instances.skew_ns, 0)
    total = sum(int(skew_ns[found.instance[operations[inside]]].sum()) for operations, inside in known.each(placed))
    return total / rows.height


def _collectives(
    members: pl.DataFrame, share: float, collective_ns: float, message_bytes: int | None
) -> list[TracedCollective]:
    """The groups, scaled so that they sum to the exclusive collective time."""
    total_ns = float(members["duration_ns"].sum()) * share
    exposed = collective_ns / total_ns if total_ns > 0 else 0.0
    merged: dict[tuple[str, str, int | None], dict[str, Any]] = {}
    for row in members.iter_rows(named=True):
        size = row["message_bytes"]
        if size is None and row["operation"] == ALL_REDUCE:
            size = message_bytes
        key = (row["operation"], row["implementation"], size)
        into = merged.setdefault(key, {"calls": 0, "duration": 0, "wait": 0, "transfer": None, "most": 0})
        into["calls"] += row["call_count"]
        into["duration"] += row["duration_ns"]
        into["wait"] += row["wait_ns"]
        if row["transfer_p50_ns"] is not None and row["matched_count"] > into["most"]:
            into["transfer"], into["most"] = row["transfer_p50_ns"], row["matched_count"]
    return [
        TracedCollective(
            operation,
            implementation,
            size,
            found["calls"] * share,
            found["wait"] * share * exposed,
            (found["duration"] - found["wait"]) * share * exposed,
            found["transfer"],
        )
        for (operation, implementation, size), found in merged.items()
    ]


def _notices(trace: LoadedTrace, tp: int, members: pl.DataFrame) -> list[Notice]:
    notices = [notice for notice in trace.notices if notice.severity == "warning"]
    present = len(trace.ranks)
    # Replicas share the capture, and experts may couple them; who sums partial results together is the TP group.
    together = trace.rows(SQL, "group_size")["rank_count"].item()
    if present < tp:
        notices.append(
            Notice(
                "ranks-missing",
                "warning",
                f"the capture of TP {tp} shows {present} rank{'s' if present != 1 else ''}: what it waits for cannot be "
                "told from what it transfers",
                "record all ranks: --trace-fork-before-exec=true, or one export a rank",
                count=tp - present,
            )
        )
    elif together is not None and together > tp:
        notices.append(
            Notice(
                "more-ranks-than-tp",
                "warning",
                f"in the capture given for TP {tp} {together} ranks all-reduce together",
                "is it the capture of another TP size?",
                count=together,
            )
        )
    calls = int(members["call_count"].sum() or 0)
    unmatched = calls - int(members["matched_count"].sum() or 0)
    if present >= tp > 1 and calls and unmatched > _FEW_UNMATCHED * calls:
        notices.append(
            Notice(
                "waits-unknown",
                "warning",
                f"{unmatched:,} of {calls:,} collective calls of the chosen steps matched no other rank: they count as "
                "transfer",
                "`tracelens skew` says why",
                count=unmatched,
            )
        )
    return notices


def all_reduces_by_size(
    trace: LoadedTrace,
    *,
    width: int,
    dtype_bytes: int,
    tokens: int | None = None,
    graph_batches: Sequence[int] = (),
) -> pl.DataFrame:
    """All-reduces of one rank by implementation and message size.

    A payload gives the size; else tokens x width x bytes, with the step's tokens from its marker, else `tokens`.

    Args:
        trace: the capture.
        width: model width.
        dtype_bytes: bytes per element.
        tokens: tokens of steps whose markers do not say.
        graph_batches: captured batch sizes: a replayed decode step may have been padded to the next one.

    Returns:
        implementation, message_bytes, tokens, padded_bytes (null where nothing was padded), call_count.
    """
    find_steps(trace)
    align(trace)
    found = trace.rows(SQL, "all_reduces").with_columns(pl.coalesce("tokens", pl.lit(tokens, pl.Int64)).alias("tokens"))
    padded = [
        padded_batch(count, graph_batches) if in_graph and count is not None and size is None else None
        for count, in_graph, size in found.select("tokens", "in_graph", "message_bytes").iter_rows()
    ]
    token_bytes = width * dtype_bytes
    return (
        found.with_columns(
            pl.coalesce("message_bytes", pl.col("tokens") * token_bytes).alias("message_bytes"),
            (pl.Series("padded_bytes", padded, dtype=pl.Int64) * token_bytes).alias("padded_bytes"),
        )
        .group_by("implementation", "message_bytes", "tokens", "padded_bytes")
        .agg(pl.col("call_count").sum())
        .sort("message_bytes", "tokens", "implementation", "padded_bytes", nulls_last=True)
    )
