"""Gaps counted: by cause, by the kernels on both sides, and one by one.

Ten million gaps are ordinary in a capture with node-level graphs: what is grouped here are narrow columns, and what
few gaps have (a launch call, parts) is kept apart from what all have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracelens.analyses.gap_causes import CAUSES, NULL
from tracelens.analyses.gap_search import Gaps, nullable
from tracelens.analyses.selection import select
from tracelens.analyses.step_search import search_steps
from tracelens.analyses.step_summary import whole_ns
from tracelens.analyses.timeline import Codes, Ints, Timeline
from tracelens.trace import LoadedTrace


@dataclass(frozen=True)
class CutGaps:
    """Gaps, or the parts of them inside the selection. All arrays are [parts], ascending on the axis.

    Attributes:
        gap: int32, place of the gap.
        start, end: int64 ns on the axis.
    """

    gap: Codes
    start: Ints
    end: Ints


def cut_gaps(trace: LoadedTrace, tl: Timeline, found: Gaps, hidden: list[int]) -> CutGaps:
    """The gaps inside the selection's windows, without those of ranks whose work is hidden."""
    start, end = found.occupancy.gap_start, found.occupancy.gap_end
    gap = np.arange(len(start), dtype=np.int32)
    selection = select(trace)
    if not selection.whole:
        windows = selection.windows.sort("rank", "start_ns")
        place = np.searchsorted(tl.ranks, windows["rank"].to_numpy())
        low = windows["start_ns"].to_numpy() + tl.shift[place]
        high = windows["end_ns"].to_numpy() + tl.shift[place]
        first = np.searchsorted(high, start, side="right")
        last = np.searchsorted(low, end, side="left")
        times = np.maximum(last - first, 0)
        gap = np.repeat(gap, times)
        window = np.arange(int(times.sum())) - np.repeat(np.cumsum(times) - times, times) + np.repeat(first, times)
        start, end = np.maximum(start[gap], low[window]), np.minimum(end[gap], high[window])
    if hidden:
        shown = ~np.isin(tl.ranks[tl.rank_place[found.occupancy.after[gap]]], hidden)
        gap, start, end = gap[shown], start[shown], end[shown]
    return CutGaps(gap, start, end)


def by_cause(tl: Timeline, found: Gaps, cut: CutGaps) -> pl.DataFrame:
    """One row per rank and cause that has gaps: gap_count, gap_ns, p50_ns, p99_ns, max_ns, host_ and launch_part_ns."""
    place = tl.rank_place[found.occupancy.after[cut.gap]]
    lengths = pl.DataFrame({"key": place * np.int32(len(CAUSES)) + found.cause[cut.gap], "gap_ns": cut.end - cut.start})
    each = lengths.group_by("key").agg(
        pl.len().cast(pl.Int64).alias("gap_count"),
        pl.col("gap_ns").sum(),
        whole_ns(pl.col("gap_ns").median()).alias("p50_ns"),
        whole_ns(pl.col("gap_ns").quantile(0.99, "linear")).alias("p99_ns"),
        pl.col("gap_ns").max().alias("max_ns"),
    )
    at, host, launched = _parts(tl, found, cut)
    parts = pl.DataFrame(
        {"key": lengths["key"].gather(at), "host_part_ns": nullable(host), "launch_part_ns": nullable(launched)}
    )
    sums = parts.drop_nulls().group_by("key").agg(pl.col("host_part_ns", "launch_part_ns").sum())
    return each.join(sums, on="key", how="left").with_columns(
        rank=pl.Series(tl.ranks.astype(np.int32)).gather(each["key"] // len(CAUSES)),
        cause=pl.Series(CAUSES).gather(each["key"] % len(CAUSES)),
    )


def by_neighbours(tl: Timeline, found: Gaps, cut: CutGaps) -> pl.DataFrame:
    """One row per cause, kernel before, kernel after and API, most costly first."""
    names, apis = len(tl.names), len(tl.launches.api_names) + 1
    before, after = found.occupancy.before[cut.gap], found.occupancy.after[cut.gap]
    code = found.cause[cut.gap].astype(np.int64)
    call = tl.launch[after]
    if len(tl.launches.api):
        api = np.where(call >= 0, tl.launches.api[np.maximum(call, 0)] + 1, 0)
    else:
        api = np.zeros(len(call), np.int32)
    for values, width in ((api, apis), (tl.name[before], names), (tl.name[after], names)):
        code *= width
        code += values
    del before, after, call, api
    grouped = (
        pl.DataFrame({"code": code, "gap_ns": cut.end - cut.start})
        .group_by("code")
        .agg(
            pl.len().cast(pl.Int64).alias("gap_count"),
            pl.col("gap_ns").sum(),
            whole_ns(pl.col("gap_ns").median()).alias("p50_ns"),
        )
        .sort(-pl.col("gap_ns"), "code")
    )
    code = grouped["code"].to_numpy()
    told = pl.Series([None, *tl.launches.api_names], dtype=pl.String)
    return grouped.drop("code").with_columns(
        cause=pl.Series(CAUSES).gather(code // (names * names * apis)),
        api_name=told.gather(code // (names * names) % apis),
        before_kernel=tl.names["name"].gather(code // names % names),
        after_kernel=tl.names["name"].gather(code % names),
    )


def every_gap(trace: LoadedTrace, tl: Timeline, found: Gaps, cut: CutGaps) -> pl.DataFrame:
    """One row per gap of the selection, by rank and start."""
    number = search_steps(trace).table["step"].to_numpy()
    after = found.occupancy.after[cut.gap]
    place = tl.rank_place[after]
    row = found.row[cut.gap]
    at, host, launched = _parts(tl, found, cut)
    full = {name: np.full(len(cut.gap), NULL) for name in ("launch_start_ns", "host_part_ns", "launch_part_ns")}
    led = np.searchsorted(found.led, cut.gap[at])
    full["launch_start_ns"][at] = found.launch_start[led] - tl.shift[place[at]]
    full["host_part_ns"][at], full["launch_part_ns"][at] = host, launched
    step = number[np.maximum(row, 0)] if len(number) else np.zeros(len(row), np.int32)
    return pl.DataFrame(
        {
            "rank": tl.ranks[place],
            "start_ns": cut.start - tl.shift[place],
            "gap_ns": cut.end - cut.start,
            "cause": pl.Series(CAUSES).gather(found.cause[cut.gap]),
            "after_kernel": tl.names["name"].gather(tl.name[after]),
            **{name: nullable(values) for name, values in full.items()},
        }
    ).with_columns(step=pl.when(pl.Series(row >= 0)).then(pl.Series(step)))


def _parts(tl: Timeline, found: Gaps, cut: CutGaps) -> tuple[Ints, Ints, Ints]:
    """(places in the cut of gaps that a launch call ended, host part, launch part), clipped with their gaps."""
    none = np.empty(0, np.int64)
    if len(found.led) == 0 or len(cut.gap) == 0:
        return none, none, none
    led = np.minimum(np.searchsorted(found.led, cut.gap), len(found.led) - 1)
    at = np.flatnonzero(found.led[led] == cut.gap)
    led = led[at]
    dry = tl.end[found.occupancy.before[cut.gap[at]]]
    begins = np.maximum(found.launch_start[led], dry)
    low, high = cut.start[at], cut.end[at]
    host = np.minimum(dry + found.host_part[led], high) - np.maximum(dry, low)
    launched = np.minimum(begins + found.launch_part[led], high) - np.maximum(begins, low)
    has_parts = found.host_part[led] != NULL
    return at, np.where(has_parts, np.maximum(host, 0), NULL), np.where(has_parts, np.maximum(launched, 0), NULL)
