"""Why the device idled: every idle nanosecond of a rank under one cause, and the kernels around the costliest gaps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import polars as pl

from tracelens.analyses.aligned_clock import aligned_clock
from tracelens.analyses.gap_causes import CAUSES, IDLE
from tracelens.analyses.gap_search import Gaps, find_gaps, search_gaps
from tracelens.analyses.gap_tables import count_gaps, cut_gaps, every_gap
from tracelens.analyses.launch_clock import TYPICAL_LEAST
from tracelens.analyses.overhead import profiler_overhead
from tracelens.analyses.selection import select
from tracelens.analyses.step_search import search_steps, selected_steps
from tracelens.analyses.step_summary import summarise, whole_ns
from tracelens.analyses.timeline import timeline
from tracelens.frames import Column, Notice, Result, Schema
from tracelens.ruleset.spelling import short_name
from tracelens.trace import LoadedTrace
from tracelens.units import plural

__all__ = ["CAUSES", "Gaps", "GapsResult", "find_gaps", "gaps"]

CAUSES_SCHEMA = Schema(
    "one cause on one rank",
    Column("rank", pl.Int32, "rank"),
    Column("cause", pl.String, "why the device idled: the first rule that holds"),
    Column("gap_count", pl.Int64, "gaps", "count"),
    Column("gap_ns", pl.Int64, "their total length", "ns"),
    Column("per_step_ns", pl.Int64, "mean per complete step outside warm-up; null without steps", "ns"),
    Column("p50_ns", pl.Int64, "median length; null without gaps", "ns"),
    Column("p99_ns", pl.Int64, "99th percentile of the lengths", "ns"),
    Column("max_ns", pl.Int64, "longest", "ns"),
    Column(
        "host_part_ns", pl.Int64, "total time from dry until the launch call began; null where the cause has none", "ns"
    ),
    Column("launch_part_ns", pl.Int64, "total time from the call until the start; null where the cause has none", "ns"),
)

EDGES_SCHEMA = Schema(
    "gaps of one cause between the same two kernels, all ranks together",
    Column("cause", pl.String, "why the device idled"),
    Column("before_kernel", pl.String, "what ended last before the gap"),
    Column("after_kernel", pl.String, "what ended the gap"),
    Column("api_name", pl.String, "the API that launched it; null without a launch row"),
    Column("gap_count", pl.Int64, "gaps", "count"),
    Column("gap_ns", pl.Int64, "their total length", "ns"),
    Column("p50_ns", pl.Int64, "median length", "ns"),
)

GAPS_SCHEMA = Schema(
    "one gap",
    Column("rank", pl.Int32, "rank"),
    Column("step", pl.Int32, "step whose window holds it; null outside"),
    Column("start_ns", pl.Int64, "the device ran dry, in the export's own time", "ns"),
    Column("gap_ns", pl.Int64, "length", "ns"),
    Column("cause", pl.String, "why"),
    Column("after_kernel", pl.String, "what ended it"),
    Column(
        "launch_start_ns", pl.Int64, "begin of the launch call on the device's clock; null without a usable one", "ns"
    ),
    Column("host_part_ns", pl.Int64, "dry until the call begins; null where the cause has none", "ns"),
    Column("launch_part_ns", pl.Int64, "call begins until the event starts; null where the cause has none", "ns"),
)


class GapsResult(Result):
    """Idle time by cause.

    Tables:
        causes: one row per rank and cause, in the order of the rules.
        edges: per cause and pair of kernels, most costly first.
        gaps: every gap, only with `all=True`.
    """

    command: ClassVar[str] = "gaps"
    schemas: ClassVar[Mapping[str, Schema]] = {"causes": CAUSES_SCHEMA, "edges": EDGES_SCHEMA, "gaps": GAPS_SCHEMA}


def gaps(trace: LoadedTrace, *, all: bool = False) -> GapsResult:
    """Idle time of every rank by cause.

    With a selection gaps are clipped to it, and their parts too. The sum of gap_ns over the causes of a rank is its
    idle time in the selection.

    Args:
        trace: the trace.
        all: whether every gap gets a row.

    Raises:
        SelectionError: the selection holds no time.
    """
    found = search_gaps(trace)
    steps = search_steps(trace)
    tl = timeline(trace)
    hidden = [rank for rank, shown in found.opaque.items() if not shown]
    cut = cut_gaps(trace, tl, found, hidden)
    provenance = (
        trace.provenance()
        | found.clock_facts
        | {
            "marker": steps.marking.marker,
            "regularity": steps.facts["regularity"],
            "launch_latency_ns": found.typical.filter(pl.col("launch_count") > 0).to_dicts(),
            "window": select(trace).words,
        }
    )
    notices = (
        *trace.notices,
        *aligned_clock(trace).alignment.notices,
        *found.notices,
        *_hidden_notice(hidden),
        *_overhead(trace),
    )
    if len(hidden) == len(tl.ranks):
        return GapsResult(tables={}, notices=notices, provenance=provenance)
    by_cause, by_neighbours = count_gaps(tl, found, cut)
    causes = _causes(trace, by_cause, [rank for rank in tl.ranks.tolist() if rank not in hidden])
    edges = EDGES_SCHEMA.frame(by_neighbours)
    tables = {"causes": causes, "edges": edges}
    if all:
        tables["gaps"] = GAPS_SCHEMA.frame(every_gap(trace, tl, found, cut))
    return GapsResult(tables=tables, notices=notices, provenance=provenance, sentences=_sentences(causes, edges, found))


def _overhead(trace: LoadedTrace) -> tuple[Notice, ...]:
    """What the profiler adds to a step shows in the gaps first."""
    if trace.options.expect_ms is None or not len(search_steps(trace).marking):
        return ()
    from tracelens.analyses.steps import figures_per_step

    return profiler_overhead(trace, summarise(trace, selected_steps(trace, figures_per_step(trace))))


def _causes(trace: LoadedTrace, by_cause: pl.DataFrame, ranks: list[int]) -> pl.DataFrame:
    every = pl.DataFrame({"rank": np.repeat(np.array(ranks, np.int32), len(CAUSES)), "cause": CAUSES * len(ranks)})
    full = (
        every.join(by_cause, on=["rank", "cause"], how="left", maintain_order="left")
        .join(_per_step(trace), on=["rank", "cause"], how="left", maintain_order="left")
        .with_columns(pl.col("gap_count", "gap_ns").fill_null(0))
    )
    return CAUSES_SCHEMA.frame(full)


def _per_step(trace: LoadedTrace) -> pl.DataFrame:
    """Mean gap time per rank and cause over the selected complete steps outside warm-up."""
    found, steps = search_gaps(trace), search_steps(trace).table
    wide = steps.with_columns(
        pl.Series(cause, found.step_cause_ns[:, code], dtype=pl.Int64) for code, cause in enumerate(CAUSES)
    )
    chosen = selected_steps(trace, wide).filter(pl.col("complete_on_all") & ~pl.col("warm_up"))
    means = chosen.group_by("rank").agg(whole_ns(pl.col(cause).mean()) for cause in CAUSES)
    return means.unpivot(index="rank", variable_name="cause", value_name="per_step_ns")


def _hidden_notice(hidden: list[int]) -> list[Notice]:
    if not hidden:
        return []
    return [
        Notice(
            "graph-level-no-times",
            "warning",
            "graph replays left no trace in this export: busy, idle and gaps are unknown",
            "Record again with: nsys profile --cuda-graph-trace=node",
            len(hidden),
        )
    ]


def _sentences(causes: pl.DataFrame, edges: pl.DataFrame, found: Gaps) -> tuple[str, ...]:
    paid = causes.filter(pl.col("cause") != CAUSES[IDLE])
    total = int(paid["gap_ns"].sum())
    ranks = causes["rank"].n_unique()
    if total == 0:
        return ("No rank idled.",)
    largest = (
        paid.group_by("cause").agg(pl.col("gap_ns").sum(), pl.col("gap_count").sum()).sort(-pl.col("gap_ns"), "cause")
    )
    shares = ", ".join(
        f"{cause} {gap_ns / total:.1%} ({count:,})"
        for cause, gap_ns, count in largest.filter(pl.col("gap_ns") > 0).head(4).iter_rows()
    )
    lines = [f"{total / 1e6 / ranks:.3f} ms of gaps per rank outside idle between requests: {shares}."]
    cost = edges.filter(pl.col("cause").is_in(["host_late", "launch_latency", "step_boundary"])).head(1)
    if cost.height:
        one = cost.row(0, named=True)
        lines.append(
            f"The costliest gaps that a launch ends stand before {short_name(one['after_kernel'])} ({one['cause']}, "
            f"{plural(one['gap_count'], 'gap')}, "
            f"{one['gap_ns'] / 1e6:.3f} ms)."
        )
    seen = found.typical.filter(pl.col("launch_count") >= TYPICAL_LEAST)
    for graph, what in ((False, "A launch into an idle device"), (True, "A graph launch")):
        times = sorted(seen.filter(pl.col("graph_launch") == graph)["typical_ns"].to_list())
        if times:
            low, high = f"{times[0] / 1e3:.1f}", f"{times[-1] / 1e3:.1f}"
            lines.append(f"{what} takes {low if low == high else f'{low} to {high}'} us here (median of each rank).")
    return tuple(lines)
