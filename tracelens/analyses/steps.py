"""What each step cost: latency, busy time, collectives, waits and gaps, per rank and step, and per phase and rung."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import polars as pl

from tracelens.analyses.aligned_clock import aligned_clock
from tracelens.analyses.blocks import blocks, each
from tracelens.analyses.exposure import exposure
from tracelens.analyses.gap_causes import CAUSES
from tracelens.analyses.gap_search import Gaps, search_gaps
from tracelens.analyses.overhead import profiler_overhead
from tracelens.analyses.selection import select
from tracelens.analyses.step_search import Steps, find_steps, search_steps, selected_steps, step_windows
from tracelens.analyses.step_summary import SUMMARY, sentences, summarise
from tracelens.analyses.timeline import Ints, timeline
from tracelens.frames import Column, Notice, Result, Schema
from tracelens.trace import LoadedTrace

__all__ = ["STEPS", "Steps", "StepsResult", "figures_per_step", "find_steps", "step_windows", "steps"]

_NAMED = ("host_late", "launch_latency", "in_graph", "back_to_back", "step_boundary")

STEPS = Schema(
    "one rank's view of one step",
    Column("rank", pl.Int32, "rank"),
    Column("step", pl.Int32, "number of the step, equal on all ranks of a set"),
    Column("phase", pl.String, "prefill, decode, mixed or other"),
    Column("rung", pl.String, "bs=N from the marker, else a hash of collective and GEMM launch shapes"),
    Column("graph_id", pl.Int64, "graph that ran most of the step; null where none is recorded"),
    Column("complete", pl.Boolean, "whether this rank shows the whole step"),
    Column("warm_up", pl.Boolean, "whether the step belongs to the slow beginning, or to --skip"),
    Column("start_ns", pl.Int64, "edge: start of the first event on the main stream, in the export's own time", "ns"),
    Column("step_ns", pl.Int64, "from the edge to the next edge, or to where idle or the capture's end cuts it", "ns"),
    Column("busy_ns", pl.Int64, "union of all events in the window", "ns"),
    Column("collective_ns", pl.Int64, "union of the collectives in the window", "ns"),
    Column("exposed_ns", pl.Int64, "part of it without a non-collective kernel of another stream", "ns"),
    Column("wait_ns", pl.Int64, "sum over the step's collectives of the time until the last rank arrived", "ns"),
    Column("gap_ns", pl.Int64, "time in the window with no event running", "ns"),
    *(Column(f"{cause}_ns", pl.Int64, f"gaps of cause {cause} in the window", "ns") for cause in _NAMED),
    Column("other_gap_ns", pl.Int64, "gaps of the other causes: dependency, unknown", "ns"),
    Column("kernel_count", pl.Int64, "kernels that belong to the step", "count"),
    Column("collective_count", pl.Int64, "collective operations that belong to the step", "count"),
    Column("unmatched_count", pl.Int64, "of those, operations without a counterpart on the other ranks", "count"),
)


class StepsResult(Result):
    """Steps and their summary.

    Tables:
        steps: one row per rank and step, ordered by set, step, rank.
        summary: one row per phase and rung over complete steps outside warm-up.
    """

    command: ClassVar[str] = "steps"
    schemas: ClassVar[Mapping[str, Schema]] = {"steps": STEPS, "summary": SUMMARY}


def steps(trace: LoadedTrace) -> StepsResult:
    """Latency, collective time and gaps per step.

    Every time is clipped to the step's window, so that busy_ns + gap_ns = step_ns; counts follow membership. The
    summary takes each step's step_ns as the median over its ranks and its other figures as the mean, over steps that
    are complete on every rank and not warm-up.

    Raises:
        SelectionError, UsageError: the marker that was asked for marks nothing, or is no regular expression.
    """
    found = search_steps(trace)
    gaps = search_gaps(trace)
    provenance = trace.provenance() | found.facts | gaps.clock_facts
    notices = (*trace.notices, *aligned_clock(trace).alignment.notices, *found.notices, *gaps.notices, *_opaque(gaps))
    if not len(found.marking):
        return StepsResult(tables={}, notices=notices, provenance=provenance)
    # First, because it refuses windows that hold nothing, in the words of every other command.
    provenance["window"] = select(trace).words
    rows = selected_steps(trace, figures_per_step(trace))
    summary = summarise(trace, rows)
    return StepsResult(
        tables={"steps": STEPS.frame(rows.rename({"edge_ns": "start_ns"})), "summary": SUMMARY.frame(summary)},
        notices=(*notices, *profiler_overhead(trace, summary)),
        provenance=provenance,
        sentences=sentences(rows, summary, found),
    )


def figures_per_step(trace: LoadedTrace) -> pl.DataFrame:
    """`Steps.table` with every figure of a step beside it, nothing selected: the columns of `STEPS` and set,
    complete_on_all, window_end_ns, idle_after_ns, requests, tokens."""
    result: pl.DataFrame = trace.memo("step figures", lambda: _figures(trace))
    return result


def _figures(trace: LoadedTrace) -> pl.DataFrame:
    found, gaps = search_steps(trace), search_gaps(trace)
    start, end = found.window_start, found.window_end
    exposed = exposure(timeline(trace), start, end)
    by_cause = gaps.step_cause_ns
    named = [CAUSES.index(cause) for cause in _NAMED]
    others = [code for code in range(len(CAUSES)) if code not in named]
    table = found.table.with_columns(
        busy_ns=pl.Series(end - start - by_cause.sum(axis=1)),
        collective_ns=pl.Series(exposed.collective_ns),
        exposed_ns=pl.Series(exposed.exposed_ns),
        gap_ns=pl.Series(by_cause.sum(axis=1)),
        **{f"{cause}_ns": pl.Series(by_cause[:, code]) for cause, code in zip(_NAMED, named, strict=True)},
        other_gap_ns=pl.Series(by_cause[:, others].sum(axis=1)),
    ).with_columns(_collective_counts(trace, found))
    hidden = [rank for rank, shown in gaps.opaque.items() if not shown]
    inside = list(gaps.opaque)
    figures = ["collective_ns", "exposed_ns", "wait_ns", "collective_count", "unmatched_count"]
    table = table.with_columns(
        pl.when(~pl.col("rank").is_in(inside)).then(pl.col(name)).alias(name) for name in figures
    )
    times = ["busy_ns", "gap_ns", *(f"{cause}_ns" for cause in _NAMED), "other_gap_ns"]
    return table.with_columns(pl.when(~pl.col("rank").is_in(hidden)).then(pl.col(name)).alias(name) for name in times)


def _collective_counts(trace: LoadedTrace, found: Steps) -> list[pl.Series]:
    """Operations, unmatched operations and waits per row of the table, by membership of an operation's first kernel."""
    calls = aligned_clock(trace).operations
    count = np.zeros((4, found.table.height), np.int64)

    def counted(part: slice) -> Ints:
        """[operations, unmatched ones, accepted ones, their waits in ns; rows]"""
        row = found.member[calls.recorded.place[part]]
        alone, waiting = calls.instance[part] < 0, calls.accepted[part]
        shown = row >= 0
        row, alone, waiting, wait_ns = row[shown], alone[shown], waiting[shown], calls.wait_ns[part][shown]
        weights = (None, alone, waiting, wait_ns)
        # The sums of a block are far below 2^53, up to which numbers of bincount are exact.
        return np.array([np.bincount(row, one, minlength=count.shape[1]) for one in weights]).astype(np.int64)

    for one in each(counted, blocks(0, len(calls)), trace.threads):
        count += one
    wait_ns = pl.when(pl.Series(count[2] > 0)).then(pl.Series(count[3])).alias("wait_ns")
    return [
        pl.Series("collective_count", count[0]),
        pl.Series("unmatched_count", count[1]),
        pl.select(wait_ns).to_series(),
    ]


def _opaque(gaps: Gaps) -> list[Notice]:
    notices = []
    if any(gaps.opaque.values()):
        notices.append(
            Notice(
                "graph-level-figures",
                "warning",
                "graph replays hide their kernels: collective, exposed and waiting time are unknown, not zero",
                "Record again with: nsys profile --cuda-graph-trace=node",
                sum(gaps.opaque.values()),
            )
        )
    hidden = [rank for rank, shown in gaps.opaque.items() if not shown]
    if hidden:
        notices.append(
            Notice(
                "graph-level-no-times",
                "warning",
                "graph replays left no trace in this export: busy, idle and gaps are unknown too",
                "Record again with: nsys profile --cuda-graph-trace=node",
                len(hidden),
            )
        )
    return notices
