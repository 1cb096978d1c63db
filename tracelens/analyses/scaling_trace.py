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

from tracelens.analyses.alignment_members import MatchedOperations
from tracelens.analyses.blocks import blocks
from tracelens.analyses.clock import Ints
from tracelens.analyses.gap_causes import CAUSES, IDLE
from tracelens.analyses.ladder_rungs import padded_batch
from tracelens.analyses.late_hosts import late_hosts_ns
from tracelens.analyses.matching_instances import Bools
from tracelens.analyses.residual import ALL_REDUCE, TracedCollective, TracedStep
from tracelens.analyses.scaling_presets import ModelShape
from tracelens.analyses.skew_context import Context, context
from tracelens.analyses.step_figures import step_figures
from tracelens.analyses.step_search import search_steps
from tracelens.analyses.timeline import Flags
from tracelens.analyses.timeline_columns import narrowest
from tracelens.errors import SelectionError
from tracelens.frames import Notice
from tracelens.trace import LoadedTrace

SQL = Path(__file__).with_suffix(".sql")

_FEW_UNMATCHED = 0.05

_MEMBERS = {
    "operation": pl.String,
    "implementation": pl.String,
    "message_bytes": pl.Int64,
    "call_count": pl.Int64,
    "matched_count": pl.Int64,
    "duration_ns": pl.Int64,
    "wait_ns": pl.Int64,
    "transfer_p50_ns": pl.Float64,
}
_ALL_REDUCES = {
    "family": pl.Int64,
    "message_bytes": pl.Int64,
    "tokens": pl.Int64,
    "in_graph": pl.Boolean,
    "call_count": pl.Int64,
}


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
    known = context(trace)
    # One more row stands for no step at all.
    chosen = np.zeros(known.steps.table.height + 1, bool)
    chosen[rows["row"].to_numpy()] = True
    by_cause = known.gaps.step_cause_ns[chosen[:-1]].sum(axis=0)
    members = _members(known, chosen)
    matched = bool(known.operations.instances.accepted.any())
    message = None
    if shape is not None and shape.width and known_tokens is not None:
        message = known_tokens * shape.width * shape.dtype_bytes
    step = TracedStep(
        tp=tp,
        step_ns=float(rows["step_ns"].sum()) * share,
        step_count=rows["step"].n_unique(),
        tokens=known_tokens,
        compute_ns=compute,
        gaps_ns={
            cause: gap_ns * share
            for cause, gap_ns in sorted(zip(CAUSES, by_cause.tolist(), strict=True))
            if gap_ns and cause != CAUSES[IDLE]
        },
        skew_ns=_skew_ns(known, chosen) / rows.height if matched else None,
        late_host_ns=late_hosts_ns(known, chosen) * share if matched or len(trace.ranks) == 1 else None,
        collectives=_collectives(members, share, collective_ns, message),
    )
    return step, _notices(known, tp, members)


def _chosen_steps(trace: LoadedTrace, tokens: int | None) -> tuple[pl.DataFrame, int | None]:
    """The rows of the steps to average, and their tokens where the markers say."""
    phase = trace.options.phase or "decode"
    rows = (
        search_steps(trace)
        .table.with_row_index("row")
        .filter(
            pl.col("complete_on_all")
            & ~pl.col("warm_up")
            & (pl.col("phase") == phase)
            & pl.col("rank").is_in(trace.ranks)
        )
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


def _members(known: Context, chosen: Flags) -> pl.DataFrame:
    """The collective operations of the chosen steps, summed over ranks and steps.

    Args:
        known: the capture.
        chosen: bool [rows of `Steps.table` + 1], the last of no step.

    Returns:
        operation, implementation, message_bytes (null where unknown), call_count, matched_count (calls whose wait is
        known), duration_ns, wait_ns, transfer_p50_ns (median over the matched calls, null without); in this order.
    """
    found = known.operations
    calls, instances, accepted = found.recorded, found.instances, known.accepted
    sizes = np.unique(
        np.concatenate([np.empty(0, np.int64), *known.each(lambda part: np.unique(calls.message_bytes[part]))])
    )
    # Those of one operation and implementation, whether or not they synchronise.
    names = sorted({family[:2] for family in calls.families})
    name_of_family = np.array([names.index(family[:2]) for family in calls.families], np.int64)
    kind_count = len(names) * len(sizes)
    room = known.trace.room
    kind, transfer_ns = room.empty(len(found), narrowest(kind_count)), room.empty(len(found), np.int64)

    def placed(part: slice) -> tuple[Ints, Ints]:
        """The operations of a rank that are in chosen steps, and the kind of each."""
        own = part.start + np.flatnonzero(chosen[known.step_rows(part)])
        return own, name_of_family[calls.family[own]] * len(sizes) + np.searchsorted(sizes, calls.message_bytes[own])

    sums = np.zeros((kind_count, 4), np.int64)
    filled = 0
    for own, of in known.each(placed):
        matched = accepted[own]
        for column, rows, values in (
            (0, of, 1),
            (1, of[matched], 1),
            (2, of, known.durations(own)),
            (3, of[matched], known.waits(own[matched])),
        ):
            np.add.at(sums[:, column], rows, values)
        into = slice(filled, filled + int(np.count_nonzero(matched)))
        kind[into], transfer_ns[into] = of[matched], instances.transfer_ns[found.instance[own[matched]]]
        filled = into.stop
    rows = []
    for of in np.flatnonzero(sums[:, 0]).tolist():
        (operation, implementation), size = names[of // len(sizes)], int(sizes[of % len(sizes)])
        count, matched_count, duration_ns, wait_ns = sums[of].tolist()
        own_ns = room.empty(matched_count, np.int64)
        at = 0
        for part in blocks(0, filled):
            some = transfer_ns[part][kind[part] == of]
            own_ns[at : at + len(some)] = some
            at += len(some)
        middle_ns = float(np.median(own_ns, overwrite_input=True)) if matched_count else None
        told_bytes = size if size >= 0 else None
        rows.append((operation, implementation, told_bytes, count, matched_count, duration_ns, wait_ns, middle_ns))
    return pl.DataFrame(rows, schema=_MEMBERS, orient="row").sort(
        "operation", "implementation", "message_bytes", nulls_last=True
    )


def _skew_ns(known: Context, chosen: Flags) -> int:
    """Last minus first arrival of the chosen steps' instances that are exposed for more than half.

    A rank's step holds the instances that it is a member of; the sum over ranks lets replicas stand side by side.
    """
    found, accepted, hidden_ns = known.operations, known.accepted, known.hidden_ns

    def placed(part: slice) -> tuple[Ints, Bools]:
        """The operations of a rank that have a wait and a step, and whether the step is a chosen one."""
        step = known.step_rows(part)
        own = np.flatnonzero(accepted[part] & (step >= 0))
        return part.start + own, chosen[step[own]]

    duration, hidden = (np.zeros(len(found.instances)) for _ in range(2))
    for operations, _ in known.each(placed):
        instance = found.instance[operations]
        duration += np.bincount(instance, known.durations(operations), len(duration))
        hidden += np.bincount(instance, hidden_ns[operations], len(hidden))
    skew_ns = np.where(2 * hidden < duration, found.instances.skew_ns, 0)
    return sum(int(skew_ns[found.instance[operations[inside]]].sum()) for operations, inside in known.each(placed))


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


def _notices(known: Context, tp: int, members: pl.DataFrame) -> list[Notice]:
    trace = known.trace
    notices = [notice for notice in trace.notices if notice.severity == "warning"]
    present = len(trace.ranks)
    # Replicas share the capture, and experts may couple them; who sums partial results together is the TP group.
    together = _group_size(known)
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
    elif together > tp:
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


def _group_size(known: Context) -> int:
    """The ranks of the largest communicator that all-reduces; 0 without one."""
    found, of_family = known.operations, _reduces(known.operations)
    seen = np.zeros((known.alignment.communicators.height, len(found.ranks)), bool)
    for owner in range(len(found.ranks)):
        for part in blocks(found.recorded.first[owner], found.recorded.first[owner + 1]):
            reducing = of_family[found.recorded.family[part]] & (found.instance[part] >= 0)
            seen[found.instances.communicator[found.instance[part][reducing]], owner] = True
    return int(seen.sum(axis=1).max(initial=0))


def _reduces(found: MatchedOperations) -> Flags:
    """Whether each of the families of operations is an all-reduce."""
    return np.array([operation == ALL_REDUCE for operation, _, _ in found.recorded.families], bool)


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
    found = _all_reduces(context(trace)).with_columns(pl.coalesce("tokens", pl.lit(tokens, pl.Int64)).alias("tokens"))
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


def _all_reduces(known: Context) -> pl.DataFrame:
    """The all-reduces of the lowest rank that has any: implementation, message_bytes, tokens of the step (both null
    where unknown), in_graph (whether a graph replayed it in a decode step), call_count."""
    calls, of_family = known.operations.recorded, _reduces(known.operations)
    table = known.steps.table.select(
        pl.coalesce("tokens", "requests").cast(pl.Int64).alias("tokens"), (pl.col("phase") == "decode").alias("decode")
    )
    # One more row stands for no step at all.
    table = pl.concat([table, pl.DataFrame({"tokens": [None], "decode": [False]}, schema=table.schema)])

    def counted(part: slice) -> pl.DataFrame:
        own = part.start + np.flatnonzero(of_family[calls.family[part]])
        told: pl.DataFrame = table[known.step_rows(part)[own - part.start] % len(table)]
        replayed = known.timeline.in_graph[calls.place[own]]
        return (
            told.select(
                pl.Series("family", calls.family[own].astype(np.int64)),
                pl.Series("message_bytes", calls.message_bytes[own]),
                "tokens",
                (pl.Series(replayed) & pl.col("decode").fill_null(False)).alias("in_graph"),
            )
            .group_by(pl.all())
            .agg(pl.len().cast(pl.Int64).alias("call_count"))
        )

    rows = pl.DataFrame(schema=_ALL_REDUCES)
    for owner in range(len(known.operations.ranks)):
        rows = pl.concat([rows, *map(counted, blocks(calls.first[owner], calls.first[owner + 1]))])
        if rows.height:
            break
    implementations: pl.Series = pl.Series([implementation for _, implementation, _ in calls.families], dtype=pl.String)
    result: pl.DataFrame = rows.with_columns(
        implementations.gather(rows["family"]).alias("implementation"),
        pl.when(pl.col("message_bytes") >= 0).then("message_bytes"),
    )
    return result
