"""Which part of a capture is looked at: `--time`, `--steps`, `--phase` and `--ranks` as windows per rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelens.errors import SelectionError
from tracelens.sqlfiles import queries
from tracelens.trace import LoadedTrace

_SQL = Path(__file__).with_suffix(".sql")
_BATCH_ROWS = 65_536
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Selection:
    """The windows of each rank.

    Attributes:
        find: finds them; those of a whole capture, which few ask for, take a pass over all events.
        whole: whether the windows are the ranks' spans, so that nothing is cut.
        words: the selection as provenance tells it.
    """

    find: Callable[[], pl.DataFrame]
    whole: bool
    words: str

    @cached_property
    def windows(self) -> pl.DataFrame:
        """rank, start_ns, end_ns on the export's own time; disjoint, ascending within a rank."""
        return self.find()

    def span_ns(self) -> dict[int, int]:
        """Total length of the windows per rank, ns."""
        lengths = self.windows.group_by("rank").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("span_ns"))
        return dict(lengths.iter_rows())


def select(trace: LoadedTrace) -> Selection:
    """The windows that the trace's options choose.

    Raises:
        SelectionError: they hold no time on any rank.
    """
    return trace.memo("selection", lambda: _select(trace))


def _select(trace: LoadedTrace) -> Selection:
    options = trace.options
    cut = options.steps is not None or options.phase is not None
    if not cut and options.time_s is None:
        return Selection(lambda: spans(trace), True, "whole capture")
    words = ""
    if cut:
        from tracelens.analyses.steps import step_windows  # steps select nothing themselves

        windows = step_windows(trace)
        words = " ".join(
            [
                f"steps {options.steps[0]}-{options.steps[1]}" if options.steps else "",
                f"phase {options.phase}" if options.phase else "",
            ]
        ).strip()
    else:
        windows = spans(trace)
    if options.time_s is not None:
        windows = _within_time(trace, windows, spans(trace), options.time_s)
        words = f"{words}, " if cut else ""
        first, last = options.time_s
        words += f"{'' if first is None else f'{first:g}'}..{'' if last is None else f'{last:g}'} s"
    windows = windows.filter(pl.col("end_ns") > pl.col("start_ns")).sort("rank", "start_ns")
    if windows.is_empty():
        raise SelectionError(
            f"{words} holds no event", "Widen it; `tracelens info` and `tracelens steps` show what is there."
        )
    return Selection(lambda: windows, False, words)


def spans(trace: LoadedTrace, seen: Callable[[], pl.DataFrame] | None = None) -> pl.DataFrame:
    """Where each rank with events begins and ends on the export's own time: rank, start_ns, end_ns.

    Args:
        trace: the capture.
        seen: tells it, where the caller has passed over all events; else a pass of its own does.
    """
    return trace.memo("spans", seen or (lambda: trace.rows(_SQL, "spans", ranks=trace.ranks)))


def _within_time(
    trace: LoadedTrace, windows: pl.DataFrame, spans: pl.DataFrame, time_s: tuple[float | None, float | None]
) -> pl.DataFrame:
    """Windows cut to seconds since the capture's first event, on the aligned clock."""
    from tracelens.analyses.alignment import find_alignment

    alignment = find_alignment(trace)
    ranks = spans["rank"].to_numpy()
    first_ns = int(alignment.to_aligned(ranks, spans["start_ns"].to_numpy()).min())
    low = -(2**62) if time_s[0] is None else first_ns + round(time_s[0] * 1e9)
    high = 2**62 if time_s[1] is None else first_ns + round(time_s[1] * 1e9)
    if high <= low:
        raise SelectionError(
            f"--time {time_s[0]}..{time_s[1]} is empty", "Give it as FROM..TO in seconds, e.g. --time 1.5..2.0"
        )
    parts = []
    for (rank,), mine in windows.group_by("rank", maintain_order=True):
        local = alignment.to_local(np.array([rank, rank]), np.clip(np.array([low, high]), -(2**61), 2**61))
        parts.append(
            mine.with_columns(
                pl.col("start_ns").clip(lower_bound=int(local[0])), pl.col("end_ns").clip(upper_bound=int(local[1]))
            )
        )
    return pl.concat(parts) if parts else windows


def selected_events(trace: LoadedTrace) -> Iterator[tuple[Ints, Ints, Ints, Ints, NDArray[np.bool_] | None]]:
    """The selected events in batches: (rank, name_id, start_ns, end_ns, counted), times clipped to the windows.

    Ranks ascend; within a rank events ascend by clipped start, then in the order that decides who owns an instant.
    `counted` is None where nothing is cut.
    """
    selection = select(trace)
    wanted = trace.ranks
    if selection.whole:
        reader = trace.db.sql(queries(_SQL)["whole_events"]).to_arrow_reader(_BATCH_ROWS)
        everyone = trace.options.ranks is None
        for batch in reader:
            rank, name, start, end = (batch.column(place).to_numpy().astype(np.int64, copy=False) for place in range(4))
            if not everyone:
                keep = np.isin(rank, wanted)
                rank, name, start, end = rank[keep], name[keep], start[keep], end[keep]
            yield rank, name, start, end, None
        return
    trace.db.register("selected_window", selection.windows.to_arrow())
    try:
        for batch in trace.db.sql(queries(_SQL)["clipped_events"]).to_arrow_reader(_BATCH_ROWS):
            rank, name, start, end = (batch.column(place).to_numpy().astype(np.int64, copy=False) for place in range(4))
            yield rank, name, start, end, batch.column(4).to_numpy(zero_copy_only=False)
    finally:
        trace.db.unregister("selected_window")
