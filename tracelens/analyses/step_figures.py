"""Exclusive time per step and name: the figures that are compared between runs and averaged over steps.

Ownership of an instant does not depend on where a window begins, so each event's owned interval is found once, in one
pass over the capture, and then cut at the windows.

    events   A |--------|      C |---|
             B    |-------|
    owned    A |--------|B|      C |-|-|
    windows  [ step 0     [ step 1     [
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelens.analyses.sweep import beyond_earlier
from tracelens.sqlfiles import queries
from tracelens.trace import LoadedTrace

Ints = NDArray[np.int64]
_NOTHING_YET = np.iinfo(np.int64).min // 2
_BATCH_ROWS = 262_144
_SELECTION = Path(__file__).with_name("selection.sql")


@dataclass(frozen=True)
class StepFigures:
    """Sums over windows.

    Attributes:
        elapsed_ns: (steps, names) exclusive time, summed over ranks.
        early_ns: (steps, names) the part of it before a given time of each event: in collectives, waiting.
        calls: (steps, names) events that start in the window, summed over ranks.
        rank_elapsed_ns: (ranks, names) exclusive time, summed over steps.
    """

    elapsed_ns: Ints
    early_ns: Ints
    calls: Ints
    rank_elapsed_ns: Ints


def step_figures(
    trace: LoadedTrace, windows: pl.DataFrame, names: int, until: tuple[Ints, Ints] | None = None
) -> StepFigures:
    """Exclusive time and calls of every name in every window.

    Args:
        trace: the capture.
        windows: rank, step (0, 1, ... in the order of the answer), start_ns, end_ns on the export's own time; disjoint
            within a rank.
        names: number of names in kernel_name.
        until: (event ids, ascending; own times in ns): events whose time before those times is also summed apart.
    """
    ranks = sorted(windows["rank"].unique().to_list())
    lanes = np.full(max(ranks, default=0) + 1, -1, np.int64)
    lanes[ranks] = np.arange(len(ranks))
    cutter = _Cutter(windows, lanes)
    steps = int(windows["step"].max() or 0) + 1 if windows.height else 0  # type: ignore[arg-type]
    elapsed = np.zeros((steps, names), np.int64)
    early = np.zeros((steps, names), np.int64)
    calls = np.zeros((steps, names), np.int64)
    waiting = _Until(until)
    by_rank = np.zeros((len(ranks), names), np.int64)
    latest = np.full(len(ranks), _NOTHING_YET, np.int64)
    query = queries(_SELECTION)["whole_events"]
    for batch in trace.db.sql(query).to_arrow_reader(_BATCH_ROWS):
        rank, name, start_ns, end_ns = (
            batch.column(place).to_numpy().astype(np.int64, copy=False) for place in range(4)
        )
        until_ns = waiting.of_next(len(rank), end_ns)
        keep = (rank < len(lanes)) & (lanes[np.minimum(rank, len(lanes) - 1)] >= 0)
        if not keep.any():
            continue
        lane, name, start_ns, end_ns = lanes[rank[keep]], name[keep], start_ns[keep], end_ns[keep]
        owned = beyond_earlier(lane, start_ns, end_ns, latest)
        begin_ns = end_ns - owned
        for of, step, part in cutter.cut(lane, begin_ns, end_ns):
            _add(elapsed, step, name[of], part)
            by_rank += (
                np.bincount(lane[of] * names + name[of], weights=part, minlength=by_rank.size)
                .astype(np.int64)
                .reshape(by_rank.shape)
            )
        if until_ns is not None:
            for of, step, part in cutter.cut(lane, begin_ns, np.clip(until_ns[keep], begin_ns, end_ns)):
                _add(early, step, name[of], part)
        step = cutter.step_at(lane, start_ns)
        inside = step >= 0
        _add(calls, step[inside], name[inside], np.ones(int(inside.sum()), np.int64))
    return StepFigures(elapsed, early, calls, by_rank)


class _Until:
    """Times of listed events, handed out along the events in their order."""

    def __init__(self, until: tuple[Ints, Ints] | None) -> None:
        nothing = np.zeros(0, np.int64)
        self._event, self._time = until or (nothing, nothing)
        self._next = 0

    def of_next(self, count: int, end_ns: Ints) -> Ints | None:
        """For the next `count` events their times; those that are not listed have none, told as long past."""
        first, self._next = self._next, self._next + count
        low, high = np.searchsorted(self._event, [first, self._next])
        if low == high:
            return None
        times = np.full_like(end_ns, _NOTHING_YET)
        times[self._event[low:high] - first] = self._time[low:high]
        return times


class _Cutter:
    """Finds which windows an interval meets, for all ranks at once.

    Windows of all ranks lie on one axis: rank k's times are raised by k times more than any capture lasts.
    """

    def __init__(self, windows: pl.DataFrame, lanes: Ints) -> None:
        ordered = windows.sort("rank", "start_ns")
        self._lane = lanes[ordered["rank"].to_numpy()] if ordered.height else np.zeros(0, np.int64)
        self._base = int(ordered["start_ns"].min() or 0) if ordered.height else 0  # type: ignore[arg-type]
        self._reach = (int(ordered["end_ns"].max() or 0) - self._base + 1) * 2 if ordered.height else 1  # type: ignore[arg-type]
        self._start = self._key(self._lane, ordered["start_ns"].to_numpy())
        self._end = self._key(self._lane, ordered["end_ns"].to_numpy())
        self._step = ordered["step"].to_numpy().astype(np.int64)

    def _key(self, lane: Ints, time_ns: Ints) -> Ints:
        # Times outside all windows are pulled to just outside, so that no rank's times reach into another's.
        clipped: Ints = np.clip(time_ns - self._base, -1, self._reach // 2 + 1) + lane * (self._reach + 4)
        return clipped

    def step_at(self, lane: Ints, time_ns: Ints) -> Ints:
        """The step whose window holds each time; -1 where none does."""
        key = self._key(lane, time_ns)
        place = np.searchsorted(self._start, key, side="right") - 1
        found: Ints = np.full(len(key), -1, np.int64)
        inside = (place >= 0) & (key < self._end[np.maximum(place, 0)]) if len(self._end) else np.zeros(len(key), bool)
        found[inside] = self._step[place[inside]]
        return found

    def cut(self, lane: Ints, begin_ns: Ints, end_ns: Ints) -> list[tuple[Ints, Ints, Ints]]:
        """Parts of intervals inside windows: (index of the interval, step, length in ns), in rounds of one window each."""
        parts: list[tuple[Ints, Ints, Ints]] = []
        if not len(self._start):
            return parts
        begin, end = self._key(lane, begin_ns), self._key(lane, end_ns)
        of = np.flatnonzero(end > begin)
        place = np.maximum(np.searchsorted(self._start, begin[of], side="right") - 1, 0)
        while len(of):
            low = np.maximum(begin[of], self._start[place])
            high = np.minimum(end[of], self._end[place])
            met = high > low
            if met.any():
                parts.append((of[met], self._step[place[met]], (high - low)[met]))
            place = place + 1
            more = place < len(self._start)
            more[more] = self._start[place[more]] < end[of[more]]
            of, place = of[more], place[more]
        return parts


def _add(table: Ints, row: Ints, column: Ints, values: Ints) -> None:
    """Adds values to cells; rows of one batch lie close together, so only their stretch of the table is touched."""
    if not len(row):
        return
    first, last = int(row.min()), int(row.max())
    width = table.shape[1]
    block = np.bincount((row - first) * width + column, weights=values, minlength=(last - first + 1) * width)
    table[first : last + 1] += block.astype(np.int64).reshape(-1, width)
