"""The capture for other tools: a picture for Perfetto, and the model tables with their comments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import polars as pl
import pyarrow
from numpy.typing import NDArray

from tracelens.analyses.alignment import Alignment, find_alignment
from tracelens.analyses.blocks import blocks
from tracelens.analyses.selection import select
from tracelens.analyses.slices import (
    aligned_starts,
    aligned_windows,
    event_parts,
    started_in,
    wait_arrows,
    wait_parts,
)
from tracelens.analyses.timeline import Ints, timeline
from tracelens.errors import TracelensError
from tracelens.frames import Notice
from tracelens.trace import LoadedTrace

if TYPE_CHECKING:
    from tracelens.analyses.gap_search import Gaps

_SQL = Path(__file__).with_suffix(".sql")
# A model table's own host name: captures are passed around, machine names are not.
_PRIVATE = {("export", "hostname")}
_ROWS_PER_BATCH = 200_000
EVENTS_A_VIEWER_OPENS = 1_000_000

_Slices = tuple[Ints, Ints, NDArray[np.int32]]
"""(start, length, bucket) of slices of one thread."""


@dataclass(frozen=True)
class Parts:
    """Frames that are made, one after the other, each time they are gone through: together they may be larger than
    memory."""

    make: Callable[[], Iterator[pl.DataFrame]]

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return self.make()


@dataclass(frozen=True)
class Picture:
    """The selected part of a capture on the aligned clock, as the Perfetto view takes it.

    Attributes:
        ranks: rank, label.
        events: see `event_slices`.
        buckets: rank, bucket, start_ns, duration_ns; runs of exclusive time, first starter first.
        origin_ns: nothing begins before it.
        steps: rank, step, phase, rung, start_ns, duration_ns; null without steps.
        waits: see `wait_slices`; by rank, arrival.
        arrows: see `wait_arrows`.
        gaps: rank, cause, start_ns, duration_ns; none where they cannot be told.
        metadata: where it comes from.
        notices: what the reader must know.
    """

    ranks: pl.DataFrame
    events: Iterable[pl.DataFrame]
    buckets: Iterable[pl.DataFrame]
    origin_ns: int
    steps: pl.DataFrame | None
    waits: Iterable[pl.DataFrame]
    arrows: Iterable[pl.DataFrame]
    gaps: Iterable[pl.DataFrame]
    metadata: Mapping[str, Any]
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True)
class ModelTable:
    """One documented table.

    Attributes:
        name: of the table.
        meaning: what one row is.
        columns: column -> meaning, in order; columns that stay private are not in it.
    """

    name: str
    meaning: str
    columns: Mapping[str, str] = field(default_factory=dict)


def picture(trace: LoadedTrace) -> Picture:
    """The trace's selection, ready to be drawn.

    Raises:
        SelectionError: it holds nothing.
    """
    selection = select(trace)
    # The last event of a whole rank may begin at its end, where it takes no time.
    windows = selection.windows.with_columns(pl.col("end_ns") + (1 if selection.whole else 0))
    alignment = find_alignment(trace)
    notices = [*trace.notices, *alignment.notices]
    origin = int(str(aligned_windows(trace, windows)["start_ns"].min()))
    stretches = started_in(timeline(trace), windows)
    count = sum(part.stop - part.start for parts in stretches.values() for part in parts)
    if count > EVENTS_A_VIEWER_OPENS:
        notices.append(
            Notice(
                "large-trace",
                "info",
                "a viewer in a browser may not open so many events",
                "Choose a part: --steps 100-120, or --time A..B in seconds.",
                count,
            )
        )
    return Picture(
        ranks=trace.rows(_SQL, "ranks", ranks=trace.ranks),
        events=Parts(lambda: (part.drop("event_id") for part in event_parts(trace, windows))),
        buckets=Parts(lambda: _buckets(trace, alignment, stretches)),
        origin_ns=origin,
        steps=_steps(trace, alignment, windows, notices),
        waits=Parts(lambda: (part.drop("event_id") for part in wait_parts(trace, windows))),
        arrows=Parts(lambda: wait_arrows(trace, windows)),
        gaps=_gaps(trace, alignment, windows, notices),
        metadata=trace.provenance() | {"window": selection.words},
        notices=tuple(dict.fromkeys(notices)),
    )


def _buckets(
    trace: LoadedTrace, alignment: Alignment, stretches: Mapping[int, Sequence[slice]]
) -> Iterator[pl.DataFrame]:
    """Runs of exclusive time of each rank: rank, bucket, start_ns, duration_ns."""
    tl = timeline(trace)
    names = tl.names["bucket"].unique(maintain_order=True)
    code = tl.names["bucket"].replace_strict(names, np.arange(len(names)), return_dtype=pl.Int32).to_numpy()
    for place, parts in stretches.items():
        events = (
            (aligned_starts(tl, alignment, place, part), tl.length[part].astype(np.int64), code[tl.name[part]])
            for part in parts
        )
        for start, length, bucket in bucket_runs(events):
            yield pl.DataFrame(
                {
                    "rank": np.full(len(start), tl.ranks[place]),
                    "bucket": names.gather(bucket),
                    "start_ns": start,
                    "duration_ns": length,
                }
            )


def bucket_runs(events: Iterable[_Slices]) -> Iterator[_Slices]:
    """Exclusive time of one rank as runs of one bucket: what started first owns the time it runs in.

    Args:
        events: (start, length, bucket) of its events in the order of their ids, part by part; ns, bucket a number.

    Returns:
        the same of the runs by start; runs touch where the bucket changes without a gap.
    """
    reached = np.iinfo(np.int64).min
    # The run that may go on in the next part.
    begin: Ints = np.empty(0, np.int64)
    end: Ints = np.empty(0, np.int64)
    bucket: NDArray[np.int32] = np.empty(0, np.int32)
    for start, length, of in events:
        held = length > 0
        start, stop, of = start[held], start[held] + length[held], of[held]
        until = np.maximum.accumulate(np.append(reached, stop))
        own = np.maximum(start, until[:-1])
        reached = until[-1]
        kept = stop > own
        begin, end = np.append(begin, own[kept]), np.append(end, stop[kept])
        bucket = np.append(bucket, of[kept])
        fresh = np.append(True, (bucket[1:] != bucket[:-1]) | (begin[1:] != end[:-1]))[: len(begin)]
        heads = np.flatnonzero(fresh)
        begin, bucket = begin[heads], bucket[heads]
        end = end[np.append(heads[1:], len(end))[: len(heads)] - 1]
        yield begin[:-1], end[:-1] - begin[:-1], bucket[:-1]
        begin, end, bucket = begin[-1:], end[-1:], bucket[-1:]
    yield begin, end - begin, bucket


def model_tables(trace: LoadedTrace) -> list[ModelTable]:
    """The documented model tables, launches and ranges included, in order of their names."""
    trace.ensure("launch")
    trace.ensure("nvtx")
    trace.document()
    columns = trace.rows(_SQL, "columns")
    return [
        ModelTable(
            name,
            meaning,
            {
                column: text
                for column, text in columns.filter(pl.col("name") == name).select("column_name", "comment").iter_rows()
                if (name, column) not in _PRIVATE
            },
        )
        for name, meaning in trace.rows(_SQL, "tables").iter_rows()
    ]


def table_rows(trace: LoadedTrace, table: ModelTable) -> pyarrow.RecordBatchReader:
    """The rows of a model table as Arrow, in batches of bounded size."""
    return trace.db.sql(f"SELECT {_listed(table)} FROM {_quoted(table.name)}").to_arrow_reader(_ROWS_PER_BATCH)  # noqa: S608 - our own names


def write_duckdb(trace: LoadedTrace, path: Path) -> list[ModelTable]:
    """Write the model tables, with a comment on each table and column, into a new DuckDB file.

    Args:
        trace: the capture.
        path: where; nothing may be there.
    """
    tables = model_tables(trace)
    # Rows cross as Arrow: the trace's own connection may no longer touch files once a query of the user's has run.
    with duckdb.connect(str(path)) as exported:
        # By itself it would take four fifths of the machine's memory; what is beyond goes to the file meanwhile.
        exported.execute("SET memory_limit = ?", [f"{trace.limit_bytes // 4}B"])
        exported.execute("SET threads = ?", [trace.threads])
        exported.execute("SET enable_progress_bar = false")
        for table in tables:
            target = _quoted(table.name)
            exported.register("incoming", table_rows(trace, table))
            exported.execute(f"CREATE TABLE {target} AS SELECT * FROM incoming")  # noqa: S608 - our own names
            exported.unregister("incoming")
            exported.execute(f"COMMENT ON TABLE {target} IS {_text(table.meaning)}")
            for column, meaning in table.columns.items():
                exported.execute(f"COMMENT ON COLUMN {target}.{_quoted(column)} IS {_text(meaning)}")
    return tables


def _steps(
    trace: LoadedTrace, alignment: Alignment, windows: pl.DataFrame, notices: list[Notice]
) -> pl.DataFrame | None:
    from tracelens.analyses.step_search import search_steps

    try:
        found = search_steps(trace)
    except TracelensError as error:
        notices.append(Notice("no-steps", "warning", error.message, error.hint))
        return None
    notices.extend(found.notices)
    # Of the windows that end after a step's edge the first is the one that may reach into it.
    inside = (
        found.table.sort("edge_ns")
        .join_asof(
            windows.select("rank", low="start_ns", high="end_ns").sort("high"),
            left_on="edge_ns",
            right_on="high",
            by="rank",
            strategy="forward",
            allow_exact_matches=False,
            check_sortedness=False,  # not told of columns that are sorted within groups
        )
        .filter(pl.col("low") < pl.col("window_end_ns"))
    )
    rows = inside.select("rank", "step", "phase", "rung", start_ns="edge_ns", end_ns="window_end_ns")
    return _placed(alignment, rows).sort("rank", "start_ns") if rows.height else None


def _gaps(
    trace: LoadedTrace, alignment: Alignment, windows: pl.DataFrame, notices: list[Notice]
) -> Iterable[pl.DataFrame]:
    from tracelens.analyses.gap_search import search_gaps

    try:
        gaps = search_gaps(trace)
    except TracelensError:
        return ()
    notices.extend(gaps.notices)
    return Parts(lambda: _gap_parts(gaps, alignment, windows))


def _gap_parts(gaps: Gaps, alignment: Alignment, windows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The gaps that begin in a window: rank, cause, start_ns, duration_ns, by rank, start."""
    from tracelens.analyses.gap_causes import CAUSES

    occ = gaps.occupancy
    tl = occ.timeline
    causes = pl.Series(CAUSES)
    edges = np.searchsorted(occ.after, tl.first)
    for (rank,), mine in windows.sort("rank", "start_ns").group_by("rank", maintain_order=True):
        low, high = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
        for place in np.flatnonzero(tl.ranks == rank).tolist():
            for part in blocks(int(edges[place]), int(edges[place + 1])):
                dry = tl.end[occ.before[part]] - tl.shift[place]
                window = np.searchsorted(low, dry, side="right") - 1
                held = np.flatnonzero((window >= 0) & (dry < high[window]))
                rows = pl.DataFrame(
                    {
                        "rank": np.full(len(held), tl.ranks[place]),
                        "cause": causes.gather(gaps.cause[part][held]),
                        "start_ns": dry[held],
                        "end_ns": dry[held] + occ.lengths(part)[held],
                    }
                )
                yield _placed(alignment, rows)


def _placed(alignment: Alignment, rows: pl.DataFrame) -> pl.DataFrame:
    """Own `start_ns` and `end_ns` as aligned `start_ns` and `duration_ns`; lengths are the own clock's."""
    start = alignment.to_aligned(rows["rank"].to_numpy().astype(np.int64), rows["start_ns"].to_numpy())
    return rows.with_columns(
        pl.Series("start_ns", start, dtype=pl.Int64), (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")
    ).drop("end_ns")


def _listed(table: ModelTable) -> str:
    return ", ".join(_quoted(column) for column in table.columns)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
