"""Gaps counted: by cause, by the kernels on both sides, and one by one.

Ten million gaps are ordinary in a capture with node-level graphs: what is grouped here are narrow columns, and what
few gaps have (a launch call, parts) is kept apart from what all have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from tracelens.analyses.blocks import blocks, run_starts
from tracelens.analyses.gap_causes import CAUSES, NULL
from tracelens.analyses.gap_search import Gaps, nullable
from tracelens.analyses.occupancy import Occupancy
from tracelens.analyses.selection import select
from tracelens.analyses.step_search import search_steps
from tracelens.analyses.timeline import Codes, Ints, Timeline
from tracelens.trace import LoadedTrace


@dataclass(frozen=True)
class CutGaps:
    """Gaps, or the parts of them inside the selection, ascending on the axis.

    Attributes:
        occupancy: the gaps.
        gap: int32 [parts], place of each part's gap; None where every gap is one whole part.
        start, end: int64 ns [parts] on the axis; empty where every gap is one whole part.
    """

    occupancy: Occupancy
    gap: Codes | None
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.occupancy) if self.gap is None else len(self.gap)

    def parts(self, part: slice) -> tuple[Codes | Ints, Ints, Ints]:
        """(gap, start, end) of some parts."""
        if self.gap is not None:
            return self.gap[part], self.start[part], self.end[part]
        occ = self.occupancy
        gap = np.arange(*part.indices(len(self)))
        return gap, occ.timeline.end[occ.before[part]], occ.timeline.start[occ.after[part]]

    def blocks(self) -> Iterator[tuple[Codes | Ints, Ints]]:
        """(gap, length in ns) of all parts, block by block."""
        for part in blocks(0, len(self)):
            gap, start, end = self.parts(part)
            yield gap, end - start

    def of_gaps(self, gaps: Ints) -> tuple[Ints, Ints]:
        """(parts of the ascending `gaps`, place of each one's gap among these), both ascending."""
        every = np.arange(len(gaps))
        if self.gap is None:
            return gaps, every
        first, last = np.searchsorted(self.gap, gaps), np.searchsorted(self.gap, gaps, side="right")
        times = last - first
        return np.arange(int(times.sum())) + np.repeat(first - np.cumsum(times) + times, times), every.repeat(times)


class _Lengths:
    """Lengths of gaps put together by code, block by block: a few hundred codes among ten million gaps."""

    def __init__(self) -> None:
        self._of_code: defaultdict[int, list[Ints | Codes]] = defaultdict(list)

    def add(self, code: Ints, length: Ints) -> None:
        """Adds gaps; codes are not negative."""
        # Codes of one byte are sorted by counting them.
        few = int(code.max(initial=0)) < 256
        order = np.argsort(code.astype(np.uint8), kind="stable") if few else np.argsort(code)
        code, length = code[order], length[order]
        # Half the memory: a gap of two seconds is rare.
        narrow = length.astype(np.int32) if int(length.max(initial=0)) < 2**31 else length
        bounds = np.append(run_starts(code), len(code))
        for low, high in pairwise(bounds.tolist()):
            self._of_code[int(code[low])].append(narrow[low:high])

    def frame(self) -> pl.DataFrame:
        """One row per code, ascending: code, gap_count, gap_ns, p50_ns, p99_ns, max_ns; gives the lengths back."""
        rows = []
        for code in sorted(self._of_code):
            length = pl.Series(np.concatenate(self._of_code.pop(code)))
            told = (length.median(), length.quantile(0.99, "linear"))
            total = int(length.to_numpy().sum(dtype=np.int64))
            rows.append((code, len(length), total, *(round(float(one or 0)) for one in told), length.max()))  # type: ignore[arg-type]
        names = ("code", "gap_count", "gap_ns", "p50_ns", "p99_ns", "max_ns")
        return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row")


def cut_gaps(trace: LoadedTrace, tl: Timeline, found: Gaps, hidden: list[int]) -> CutGaps:
    """The gaps inside the selection's windows, without those of ranks whose work is hidden."""
    selection = select(trace)
    none = np.empty(0, np.int64)
    if selection.whole and not hidden:
        return CutGaps(found.occupancy, None, none, none)
    start, end = found.occupancy.gap_start, found.occupancy.gap_end
    gap = np.arange(len(start), dtype=np.int32)
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
    return CutGaps(found.occupancy, gap, start, end)


def by_cause(tl: Timeline, found: Gaps, cut: CutGaps) -> pl.DataFrame:
    """One row per rank and cause that has gaps: gap_count, gap_ns, p50_ns, p99_ns, max_ns, host_ and launch_part_ns."""
    lengths = _Lengths()

    def key(gap: Codes | Ints) -> Ints:
        result: Ints = tl.rank_place[found.occupancy.after[gap]].astype(np.int64) * len(CAUSES) + found.cause[gap]
        return result

    for gap, length in cut.blocks():
        lengths.add(key(gap), length)
    _, led, host, launched = _parts(tl, found, cut)
    parts = pl.DataFrame(
        {"code": key(found.led[led]), "host_part_ns": nullable(host), "launch_part_ns": nullable(launched)}
    )
    sums = parts.drop_nulls().group_by("code").agg(pl.col("host_part_ns", "launch_part_ns").sum())
    each = lengths.frame().join(sums, on="code", how="left")
    return each.with_columns(
        rank=pl.Series(tl.ranks.astype(np.int32)).gather(each["code"] // len(CAUSES)),
        cause=pl.Series(CAUSES).gather(each["code"] % len(CAUSES)),
    )


def by_neighbours(tl: Timeline, found: Gaps, cut: CutGaps) -> pl.DataFrame:
    """One row per cause, kernel before, kernel after and API, most costly first."""
    names, apis = len(tl.names), len(tl.launches.api_names) + 1
    lengths = _Lengths()
    for gap, length in cut.blocks():
        after = found.occupancy.after[gap]
        code = found.cause[gap].astype(np.int64)
        call = tl.launch[after]
        api = tl.launches.api[call].astype(np.int64) + 1 if len(tl.launches.api) else np.zeros(len(call), np.int64)
        api[call < 0] = 0
        for values, width in ((api, apis), (tl.name[found.occupancy.before[gap]], names), (tl.name[after], names)):
            code *= width
            code += values
        lengths.add(code, length)
    grouped = lengths.frame().drop("p99_ns", "max_ns").sort(-pl.col("gap_ns"), "code")
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
    gap, start, end = cut.parts(slice(0, len(cut)))
    after = found.occupancy.after[gap]
    place = tl.rank_place[after]
    row = found.rows_of(gap)
    at, led, host, launched = _parts(tl, found, cut)
    full = {name: np.full(len(gap), NULL) for name in ("launch_start_ns", "host_part_ns", "launch_part_ns")}
    full["launch_start_ns"][at] = found.launch_start[led] - tl.shift[place[at]]
    full["host_part_ns"][at], full["launch_part_ns"][at] = host, launched
    step = number[np.maximum(row, 0)] if len(number) else np.zeros(len(row), np.int32)
    return pl.DataFrame(
        {
            "rank": tl.ranks[place],
            "start_ns": start - tl.shift[place],
            "gap_ns": end - start,
            "cause": pl.Series(CAUSES).gather(found.cause[gap]),
            "after_kernel": tl.names["name"].gather(tl.name[after]),
            **{name: nullable(values) for name, values in full.items()},
        }
    ).with_columns(step=pl.when(pl.Series(row >= 0)).then(pl.Series(step)))


def _parts(tl: Timeline, found: Gaps, cut: CutGaps) -> tuple[Ints, Ints, Ints, Ints]:
    """(parts in the cut of gaps that a launch call ended, place of each in `led`, host part, launch part), clipped."""
    at, led = cut.of_gaps(found.led)
    gap = found.led[led]
    dry, starts = tl.end[found.occupancy.before[gap]], tl.start[found.occupancy.after[gap]]
    low, high = (dry, starts) if cut.gap is None else (cut.start[at], cut.end[at])
    begins = np.maximum(found.launch_start[led], dry)
    host = np.minimum(dry + found.host_part[led], high) - np.maximum(dry, low)
    launched = np.minimum(begins + found.launch_part[led], high) - np.maximum(begins, low)
    has_parts = found.host_part[led] != NULL
    return at, led, np.where(has_parts, np.maximum(host, 0), NULL), np.where(has_parts, np.maximum(launched, 0), NULL)
