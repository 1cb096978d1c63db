"""Why the device idled: every idle nanosecond of a rank under one cause, and the kernels around the costliest gaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl

from tracelens.analyses.aligned_clock import aligned_clock
from tracelens.analyses.gap_causes import CAUSES, IDLE, NULL
from tracelens.analyses.gap_search import Gaps, find_gaps, search_gaps
from tracelens.analyses.selection import select
from tracelens.analyses.step_search import search_steps
from tracelens.analyses.step_summary import whole_ns
from tracelens.analyses.timeline import Ints, Timeline, timeline
from tracelens.frames import Column, Notice, Result, Schema
from tracelens.trace import LoadedTrace

__all__ = ["CAUSES", "Gaps", "GapsResult", "find_gaps", "gaps"]

_CAUSE = pl.Enum(CAUSES)

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


@dataclass(frozen=True)
class _Cut:
    """Gaps, or the parts of them inside the selection. All arrays are [parts]."""

    gap: Ints
    start: Ints
    end: Ints


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
    cut = _cut(trace, tl, found)
    hidden = [rank for rank, shown in found.opaque.items() if not shown]
    frame = _frame(tl, found, cut).filter(~pl.col("rank").is_in(hidden))
    causes = _causes(trace, frame, [rank for rank in tl.ranks.tolist() if rank not in hidden])
    edges = _edges(tl, frame)
    provenance = trace.provenance() | {
        "marker": steps.marking.marker,
        "regularity": steps.facts["regularity"],
        "host_shift_ns": [found.shift_ns[key] for key in sorted(found.shift_ns)],
        "launch_latency_ns": found.typical.filter(pl.col("launch_count") > 0).to_dicts(),
        "window": select(trace).words,
    }
    notices = (*trace.notices, *aligned_clock(trace).alignment.notices, *found.notices, *_hidden_notice(hidden))
    if frame.is_empty() and hidden:
        return GapsResult(tables={}, notices=notices, provenance=provenance)
    tables = {"causes": causes, "edges": edges}
    if all:
        tables["gaps"] = _every(trace, tl, found, frame)
    return GapsResult(tables=tables, notices=notices, provenance=provenance, sentences=_sentences(causes, edges, found))


def _cut(trace: LoadedTrace, tl: Timeline, found: Gaps) -> _Cut:
    """The gaps inside the selection's windows."""
    start, end = found.occupancy.gap_start, found.occupancy.gap_end
    selection = select(trace)
    if selection.whole:
        return _Cut(np.arange(len(start)), start, end)
    windows = selection.windows.sort("rank", "start_ns")
    place = np.searchsorted(tl.ranks, windows["rank"].to_numpy())
    low = windows["start_ns"].to_numpy() + tl.shift[place]
    high = windows["end_ns"].to_numpy() + tl.shift[place]
    first = np.searchsorted(high, start, side="right")
    last = np.searchsorted(low, end, side="left")
    times = np.maximum(last - first, 0)
    gap = np.repeat(np.arange(len(start)), times)
    window = np.arange(int(times.sum())) - np.repeat(np.cumsum(times) - times, times) + np.repeat(first, times)
    return _Cut(gap, np.maximum(start[gap], low[window]), np.minimum(end[gap], high[window]))


def _frame(tl: Timeline, found: Gaps, cut: _Cut) -> pl.DataFrame:
    """One row per cut gap: gap, rank, cause (code), length, names and API of its sides, and its parts."""
    before, after = found.occupancy.before[cut.gap], found.occupancy.after[cut.gap]
    call = tl.launch[after]
    has_api = call >= 0
    api = np.where(has_api, tl.launches.api[np.maximum(call, 0)], -1) if len(tl.launches.api) else call
    led = np.searchsorted(found.led, cut.gap)
    is_led = np.zeros(len(cut.gap), bool)
    if len(found.led):
        is_led = found.led[np.minimum(led, len(found.led) - 1)] == cut.gap
    at = led[is_led]
    host = np.full(len(cut.gap), NULL)
    launched = np.full(len(cut.gap), NULL)
    # A part is an interval too: it is clipped with its gap.
    dry = found.occupancy.gap_start[cut.gap[is_led]]
    host_end = dry + found.host_part[at]
    begins = np.maximum(found.launch_start[at], dry)
    has_parts = found.host_part[at] != NULL
    low, high = cut.start[is_led], cut.end[is_led]
    host[is_led] = np.where(has_parts, np.maximum(np.minimum(host_end, high) - np.maximum(dry, low), 0), NULL)
    launched[is_led] = np.where(
        has_parts, np.maximum(np.minimum(begins + found.launch_part[at], high) - np.maximum(begins, low), 0), NULL
    )
    return pl.DataFrame(
        {
            "gap": cut.gap.astype(np.int32),
            "start": cut.start,
            "rank": tl.ranks[tl.rank_place[after]].astype(np.int32),
            "cause": found.cause[cut.gap],
            "gap_ns": cut.end - cut.start,
            "before": tl.name[before],
            "after": tl.name[after],
            "api": api.astype(np.int32),
            "host_part_ns": host,
            "launch_part_ns": launched,
        }
    ).with_columns(
        pl.when(pl.col(name) != NULL).then(pl.col(name)).alias(name) for name in ("host_part_ns", "launch_part_ns")
    )


def _causes(trace: LoadedTrace, frame: pl.DataFrame, ranks: list[int]) -> pl.DataFrame:
    each = frame.group_by("rank", "cause").agg(
        pl.len().cast(pl.Int64).alias("gap_count"),
        pl.col("gap_ns").sum().alias("total"),
        whole_ns(pl.col("gap_ns").median()).alias("p50_ns"),
        whole_ns(pl.col("gap_ns").quantile(0.99, "linear")).alias("p99_ns"),
        pl.col("gap_ns").max().alias("max_ns"),
        *(
            pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name)
            for name in ("host_part_ns", "launch_part_ns")
        ),
    )
    every = pl.DataFrame(
        {"rank": np.repeat(np.array(ranks, np.int32), len(CAUSES)), "cause": list(range(len(CAUSES))) * len(ranks)}
    )
    full = (
        every.with_columns(pl.col("cause").cast(pl.UInt8))
        .join(each, on=["rank", "cause"], how="left", maintain_order="left")
        .join(_per_step(trace), on=["rank", "cause"], how="left", maintain_order="left")
        .with_columns(
            pl.col("gap_count", "total").fill_null(0),
            pl.Series("name", CAUSES)[pl.Series(every["cause"])].alias("name"),
        )
        .drop("cause")
        .rename({"name": "cause", "total": "gap_ns"})
    )
    return CAUSES_SCHEMA.frame(full)


def _per_step(trace: LoadedTrace) -> pl.DataFrame:
    """Mean gap time per rank and cause over the selected complete steps outside warm-up."""
    found, steps = search_gaps(trace), search_steps(trace).table
    use = pl.col("complete_on_all") & ~pl.col("warm_up")
    if trace.options.steps is not None:
        use &= pl.col("step").is_between(*trace.options.steps)
    if trace.options.phase is not None:
        use &= pl.col("phase") == trace.options.phase
    wide = steps.select("rank", use.alias("use")).with_columns(
        pl.Series(str(code), found.step_cause_ns[:, code], dtype=pl.Int64) for code in range(len(CAUSES))
    )
    means = wide.filter("use").group_by("rank").agg(whole_ns(pl.col(str(code)).mean()) for code in range(len(CAUSES)))
    return means.unpivot(index="rank", variable_name="cause", value_name="per_step_ns").with_columns(
        pl.col("cause").cast(pl.UInt8)
    )


def _edges(tl: Timeline, frame: pl.DataFrame) -> pl.DataFrame:
    grouped = (
        frame.group_by("cause", "before", "after", "api")
        .agg(
            pl.len().cast(pl.Int64).alias("gap_count"),
            pl.col("gap_ns").sum(),
            whole_ns(pl.col("gap_ns").median()).alias("p50_ns"),
        )
        .sort(-pl.col("gap_ns"), "cause", "before", "after", "api")
    )
    names = tl.names["name"]
    apis = pl.Series("api", tl.launches.api_names, dtype=pl.String)
    called = grouped["api"]
    return EDGES_SCHEMA.frame(
        grouped.select("gap_count", "gap_ns", "p50_ns").with_columns(
            cause=pl.Series(CAUSES)[grouped["cause"]],
            before_kernel=names[grouped["before"]],
            after_kernel=names[grouped["after"]],
            api_name=pl.Series([apis[code] if code >= 0 else None for code in called], dtype=pl.String),
        )
    )


def _every(trace: LoadedTrace, tl: Timeline, found: Gaps, frame: pl.DataFrame) -> pl.DataFrame:
    numbers = search_steps(trace).table["step"]
    gap = frame["gap"].to_numpy()
    row = found.row[gap]
    place = np.searchsorted(tl.ranks, frame["rank"].to_numpy())
    led = np.searchsorted(found.led, gap)
    is_led = np.zeros(len(gap), bool)
    launch = np.full(len(gap), NULL)
    if len(found.led):
        at = np.minimum(led, len(found.led) - 1)
        is_led = found.led[at] == gap
        launch = np.where(is_led, found.launch_start[at] - tl.shift[place], NULL)
    step = pl.Series(numbers.to_numpy()[np.maximum(row, 0)] if numbers.len() else np.zeros(len(row), np.int32))
    return GAPS_SCHEMA.frame(
        frame.select(
            "rank",
            "gap_ns",
            "host_part_ns",
            "launch_part_ns",
            step=pl.when(pl.Series(row >= 0)).then(step),
            start_ns=pl.Series(frame["start"].to_numpy() - tl.shift[place]),
            cause=pl.Series(CAUSES)[frame["cause"]],
            after_kernel=tl.names["name"][frame["after"]],
            launch_start_ns=pl.when(pl.Series(is_led)).then(pl.Series(launch)),
        ).sort("rank", "start_ns")
    )


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
            f"The costliest gaps that a launch ends stand before {one['after_kernel']} ({one['cause']}, {one['gap_count']:,} gaps, "
            f"{one['gap_ns'] / 1e6:.3f} ms)."
        )
    seen = sorted(
        typical for count, typical in found.typical.select("launch_count", "typical_ns").iter_rows() if count >= 20
    )
    if seen:
        times = f"{seen[0] / 1e3:.1f}" if seen[0] == seen[-1] else f"{seen[0] / 1e3:.1f} to {seen[-1] / 1e3:.1f}"
        lines.append(f"A launch into an idle device takes {times} us here (median per rank).")
    return tuple(lines)
