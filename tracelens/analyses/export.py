"""The capture for other tools: a picture for Perfetto, and the model tables with their comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow

from tracelens.analyses.alignment import Alignment, find_alignment
from tracelens.analyses.selection import select
from tracelens.analyses.slices import aligned_windows, event_slices, in_windows, wait_slices
from tracelens.errors import TracelensError
from tracelens.frames import Notice
from tracelens.sqlfiles import queries
from tracelens.trace import LoadedTrace

_SQL = Path(__file__).with_suffix(".sql")
# A model table's own host name: captures are passed around, machine names are not.
_PRIVATE = {("export", "hostname")}
_ROWS_PER_BATCH = 200_000
EVENTS_A_VIEWER_OPENS = 1_000_000


@dataclass(frozen=True)
class Picture:
    """The selected part of a capture on the aligned clock, as the Perfetto view takes it.

    Attributes:
        ranks: rank, label.
        events: one frame a rank; see `event_slices`.
        buckets: one frame a rank: rank, bucket, start_ns, duration_ns; runs of exclusive time, first starter first.
        origin_ns: nothing begins before it.
        steps: rank, step, phase, rung, start_ns, duration_ns; null without steps.
        waits: see `wait_slices`; null without matched collectives.
        gaps: rank, cause, start_ns, duration_ns; null where they cannot be told.
        metadata: where it comes from.
        notices: what the reader must know.
    """

    ranks: pl.DataFrame
    events: Iterator[pl.DataFrame]
    buckets: Iterator[pl.DataFrame]
    origin_ns: int
    steps: pl.DataFrame | None
    waits: pl.DataFrame | None
    gaps: pl.DataFrame | None
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
    per_rank = [mine for _, mine in windows.group_by("rank", maintain_order=True)]
    waits = wait_slices(trace, windows)
    count = int(in_windows(trace, queries(_SQL)["size"], windows)["event_count"][0])
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
        events=(event_slices(trace, mine).drop("event_id") for mine in per_rank),
        buckets=(bucket_runs(event_slices(trace, mine)) for mine in per_rank),
        origin_ns=origin,
        steps=_steps(trace, alignment, windows, notices),
        waits=None if waits.is_empty() else waits.drop("event_id"),
        gaps=_gaps(trace, alignment, windows, notices),
        metadata=trace.provenance() | {"window": selection.words},
        notices=tuple(dict.fromkeys(notices)),
    )


def bucket_runs(events: pl.DataFrame) -> pl.DataFrame:
    """Exclusive time of one rank as runs of one bucket: what started first owns the time it runs in.

    Args:
        events: of one rank, as `event_slices` gives them.

    Returns:
        rank, bucket, start_ns, duration_ns by start; runs touch where the bucket changes without a gap.
    """
    end = pl.col("start_ns") + pl.col("duration_ns")
    owned = (
        events.filter(pl.col("duration_ns") > 0)
        .sort("event_id")
        .with_columns(end.alias("end_ns"))
        .with_columns(pl.col("end_ns").cum_max().shift(1).alias("before"))
        .with_columns(pl.max_horizontal("start_ns", "before").alias("own_ns"))
        .filter(pl.col("end_ns") > pl.col("own_ns"))
    )
    fresh = (pl.col("bucket") != pl.col("bucket").shift(1)) | (pl.col("own_ns") != pl.col("end_ns").shift(1))
    return (
        owned.with_columns(fresh.fill_null(True).cum_sum().alias("run"))
        .group_by("run", maintain_order=True)
        .agg(pl.col("rank").first(), pl.col("bucket").first(), pl.col("own_ns").first(), pl.col("end_ns").last())
        .select("rank", "bucket", start_ns="own_ns", duration_ns=pl.col("end_ns") - pl.col("own_ns"))
    )


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
    inside = found.table.join(windows.select("rank", low="start_ns", high="end_ns"), on="rank").filter(
        (pl.col("edge_ns") < pl.col("high")) & (pl.col("window_end_ns") > pl.col("low"))
    )
    rows = inside.unique(["rank", "step"], maintain_order=True).select(
        "rank", "step", "phase", "rung", start_ns="edge_ns", end_ns="window_end_ns"
    )
    return _placed(alignment, rows).sort("rank", "start_ns") if rows.height else None


def _gaps(
    trace: LoadedTrace, alignment: Alignment, windows: pl.DataFrame, notices: list[Notice]
) -> pl.DataFrame | None:
    from tracelens.analyses.gap_search import find_gaps

    try:
        notices.extend(find_gaps(trace).notices)
    except TracelensError:
        return None
    rows = in_windows(trace, queries(_SQL)["gaps"], windows)
    return _placed(alignment, rows) if rows.height else None


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
