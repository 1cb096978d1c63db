"""Gaps counted: by cause, by the kernels on both sides, and one by one.

Ten million gaps are ordinary in a capture with node-level graphs: what is grouped here are narrow columns, and what
few gaps have (a launch call, parts) is kept apart from what all have.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracelens.analyses.alignment_operations import numbered
from tracelens.analyses.blocks import blocks, each, run_starts
from tracelens.analyses.gap_causes import CAUSES, NULL
from tracelens.analyses.gap_search import Gaps, nullable
from tracelens.analyses.occupancy import Occupancy
from tracelens.analyses.selection import select
from tracelens.analyses.step_search import search_steps
from tracelens.analyses.timeline import Codes, Ints, Timeline
from tracelens.analyses.timeline_columns import narrowest
from tracelens.array_room import ArrayRoom
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

    def led(self, led: Codes, part: slice) -> tuple[Ints, Ints]:
        """(those of some parts whose gap is among the ascending `led`, its place there), both ascending."""
        if self.gap is None:
            first, last = np.searchsorted(led, [part.start, part.stop])
            return led[first:last].astype(np.int64), np.arange(first, last)
        gap = self.gap[part]
        place = np.searchsorted(led, gap)
        mine = np.flatnonzero(led[np.minimum(place, len(led) - 1)] == gap) if len(led) else place[:0]
        return mine + part.start, place[mine]


class _Lengths:
    """Lengths of gaps put together by code, block by block: a few hundred codes among ten million gaps.

    Args:
        cut: the gaps.
        room: where the lengths lie.
    """

    def __init__(self, cut: CutGaps, room: ArrayRoom) -> None:
        self._cut, self._room = cut, room
        # Half the memory: a gap of two seconds is rare.
        narrow = len(cut.occupancy.longer_than(np.iinfo(np.int32).max)) == 0
        self._lengths = room.empty(len(cut), np.int32 if narrow else np.int64)
        self._of_code: defaultdict[int, list[slice]] = defaultdict(list)

    def add(self, code_of: Callable[[Codes | Ints], Ints]) -> None:
        """Adds all gaps under the codes, none of them negative, that `code_of` gives for their places."""

        def grouped(part: slice) -> Iterator[tuple[int, slice]]:
            gap, start, end = self._cut.parts(part)
            code, length = code_of(gap), end - start
            # Few differ, and numbers of one or two bytes are sorted by counting them.
            dense, distinct = numbered(code)
            order = np.argsort(dense.astype(narrowest(distinct)), kind="stable")
            self._lengths[part] = length[order]
            code = code[order]
            bounds = run_starts(code)
            edges = itertools.pairwise([*(bounds + part.start).tolist(), part.stop])
            return zip(code[bounds].tolist(), itertools.starmap(slice, edges), strict=True)

        for found in each(grouped, blocks(0, len(self._cut)), self._cut.occupancy.timeline.trace.threads):
            for code, stretch in found:
                self._of_code[code].append(stretch)

    def frame(self, of_code: Callable[[int], int]) -> pl.DataFrame:
        """The gaps by what `of_code` makes of their codes, ascending: code, gap_count, gap_ns, p50_ns, p99_ns, max_ns."""
        groups: defaultdict[int, list[slice]] = defaultdict(list)
        for code, stretches in self._of_code.items():
            groups[of_code(code)] += stretches
        codes = sorted(groups)
        rows = each(lambda code: (code, *self._told(groups[code])), codes, self._cut.occupancy.timeline.trace.threads)
        names = ("code", "gap_count", "gap_ns", "p50_ns", "p99_ns", "max_ns")
        return pl.DataFrame(list(rows), schema=dict.fromkeys(names, pl.Int64), orient="row")

    def _told(self, stretches: list[slice]) -> tuple[int, ...]:
        count = sum(one.stop - one.start for one in stretches)
        length = self._room.empty(count, self._lengths.dtype)
        filled = 0
        for one in stretches:
            length[filled : filled + one.stop - one.start] = self._lengths[one]
            filled += one.stop - one.start
        total, longest = int(length.sum(dtype=np.int64)), int(length.max())
        middle, far = 0.5 * (count - 1), 0.99 * (count - 1)
        length.partition(sorted({int(at) for at in (middle, middle + 0.5, far, far + 1) if at < count}))
        return count, total, _between(length, middle), _between(length, far), longest


def _between(ascending: Ints | Codes, at: float) -> int:
    """The element at a place, between two of them by how near it is to each, rounded half to even."""
    low = int(at)
    high = min(low + 1, len(ascending) - 1)
    first, second = float(ascending[low]), float(ascending[high])
    return round(first + (at - low) * (second - first))


def cut_gaps(trace: LoadedTrace, tl: Timeline, found: Gaps, hidden: list[int]) -> CutGaps:
    """The gaps inside the selection's windows, without those of ranks whose work is hidden."""
    selection = select(trace)
    none = np.empty(0, np.int64)
    occ = found.occupancy
    if selection.whole and not hidden:
        return CutGaps(occ, None, none, none)
    low = high = none
    if not selection.whole:
        windows = selection.windows.sort("rank", "start_ns")
        shift = tl.shift[np.searchsorted(tl.ranks, windows["rank"].to_numpy())]
        low, high = windows["start_ns"].to_numpy() + shift, windows["end_ns"].to_numpy() + shift

    def cut(part: slice) -> tuple[Codes | Ints, Ints, Ints]:
        gap, start, end = CutGaps(occ, None, none, none).parts(part)
        if hidden:
            shown = ~np.isin(tl.ranks[tl.rank_place[occ.after[gap]]], hidden)
            gap, start, end = gap[shown], start[shown], end[shown]
        if selection.whole:
            return gap, start, end
        first = np.searchsorted(high, start, side="right")
        last = np.searchsorted(low, end, side="left")
        times = np.maximum(last - first, 0)
        own = np.repeat(np.arange(len(gap)), times)
        window = np.arange(len(own)) - np.repeat(np.cumsum(times) - times, times) + np.repeat(first, times)
        return gap[own], np.maximum(start[own], low[window]), np.minimum(end[own], high[window])

    # A gap has one part more for each window that ends in it.
    most = len(occ) + len(high)
    gaps, starts, ends = (trace.room.empty(most, dtype) for dtype in (np.int32, np.int64, np.int64))
    count = 0
    for gap, start, end in each(cut, blocks(0, len(occ)), trace.threads):
        filled = slice(count, count + len(gap))
        gaps[filled], starts[filled], ends[filled] = gap, start, end
        count = filled.stop
    return CutGaps(occ, gaps[:count], starts[:count], ends[:count])


def count_gaps(tl: Timeline, found: Gaps, cut: CutGaps) -> tuple[pl.DataFrame, pl.DataFrame]:
    """How often gaps occur and how long they last, two ways.

    Returns:
        (one row per rank and cause that has gaps: gap_count, gap_ns, p50_ns, p99_ns, max_ns, host_part_ns,
        launch_part_ns; one row per cause, before_kernel, after_kernel and api_name, most costly first: gap_count,
        gap_ns, p50_ns).
    """
    names, apis = len(tl.names), len(tl.launches.api_names) + 1
    neighbours = apis * names * names

    def code_of(gap: Codes | Ints) -> Ints:
        after = found.occupancy.after[gap]
        code = _rank_and_cause(tl, found, gap)
        call = tl.launch[after]
        api = tl.launches.api[call].astype(np.int64) + 1 if len(tl.launches.api) else np.zeros(len(call), np.int64)
        api[call < 0] = 0
        for values, width in ((api, apis), (tl.name[found.occupancy.before[gap]], names), (tl.name[after], names)):
            code *= width
            code += values
        return code

    lengths = _Lengths(cut, tl.trace.room)
    lengths.add(code_of)
    by_cause = lengths.frame(lambda code: code // neighbours)
    by_neighbours = lengths.frame(lambda code: code % (len(CAUSES) * neighbours))
    return _causes(tl, found, cut, by_cause), _neighbours(tl, by_neighbours)


def _rank_and_cause(tl: Timeline, found: Gaps, gap: Codes | Ints) -> Ints:
    result: Ints = tl.rank_place[found.occupancy.after[gap]].astype(np.int64) * len(CAUSES) + found.cause[gap]
    return result


def _causes(tl: Timeline, found: Gaps, cut: CutGaps, counted: pl.DataFrame) -> pl.DataFrame:
    def parts(part: slice) -> tuple[Ints, Ints, Ints]:
        _, led, host, launched = _parts(tl, found, cut, part)
        shown = host != NULL
        return _rank_and_cause(tl, found, found.led[led[shown]]), host[shown], launched[shown]

    codes = len(tl.ranks) * len(CAUSES)
    host_ns, launch_ns, shown = np.zeros(codes, np.int64), np.zeros(codes, np.int64), np.zeros(codes, bool)
    for code, host, launched in each(parts, blocks(0, len(cut)), tl.trace.threads):
        np.add.at(host_ns, code, host)
        np.add.at(launch_ns, code, launched)
        shown[code] = True
    code = counted["code"].to_numpy()
    return counted.with_columns(
        host_part_ns=nullable(np.where(shown[code], host_ns[code], NULL)),
        launch_part_ns=nullable(np.where(shown[code], launch_ns[code], NULL)),
        rank=pl.Series(tl.ranks.astype(np.int32)).gather(counted["code"] // len(CAUSES)),
        cause=pl.Series(CAUSES).gather(counted["code"] % len(CAUSES)),
    )


def _neighbours(tl: Timeline, counted: pl.DataFrame) -> pl.DataFrame:
    grouped = counted.drop("p99_ns", "max_ns").sort(-pl.col("gap_ns"), "code")
    names, apis = len(tl.names), len(tl.launches.api_names) + 1
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
    at, led, host, launched = _parts(tl, found, cut, slice(0, len(cut)))
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


def _parts(tl: Timeline, found: Gaps, cut: CutGaps, part: slice) -> tuple[Ints, Ints, Ints, Ints]:
    """(those of some parts whose gap a launch call ended, its place in `led`, host part, launch part), clipped."""
    at, led = cut.led(found.led, part)
    gap = found.led[led]
    dry, starts = tl.end[found.occupancy.before[gap]], tl.start[found.occupancy.after[gap]]
    low, high = (dry, starts) if cut.gap is None else (cut.start[at], cut.end[at])
    begins = np.maximum(found.launch_start[led], dry)
    host = np.minimum(dry + found.host_part[led], high) - np.maximum(dry, low)
    launched = np.minimum(begins + found.launch_part[led], high) - np.maximum(begins, low)
    has_parts = found.host_part[led] != NULL
    return at, led, np.where(has_parts, np.maximum(host, 0), NULL), np.where(has_parts, np.maximum(launched, 0), NULL)
