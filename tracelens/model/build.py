"""Builds the model tables from the raw tables, in one DuckDB."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from tracelens.frames import Notice
from tracelens.model import ledger
from tracelens.model.notices import add_notice, take_notices
from tracelens.model.rank_tables import build_ranks
from tracelens.sqlfiles import queries

__all__ = [
    "build_empty",
    "build_events",
    "build_launches",
    "build_names",
    "build_nvtx",
    "build_ranks",
    "write_comments",
    "write_kernel_names",
]

_HERE = Path(__file__).parent
_BASE = queries(_HERE / "base.sql")
_NAMES = queries(_HERE / "names.sql")
_EVENTS = queries(_HERE / "events.sql")
_LAUNCHES = queries(_HERE / "launches.sql")
_COMMENTS = queries(_HERE / "comments.sql")


def build_names(db: duckdb.DuckDBPyConnection, copy_labels: Mapping[int, str]) -> list[str]:
    """Numbers the names of all events.

    Args:
        copy_labels: copy kind -> the name of a copy of that kind.

    Returns:
        the names; a name's position is its name_id.
    """
    db.execute(_BASE["copy_label"])
    db.executemany("INSERT INTO copy_label VALUES (?, ?)", sorted(copy_labels.items()))
    db.execute(_NAMES["collect"])
    return [str(name) for (name,) in db.execute("SELECT name FROM name_text ORDER BY name_id").fetchall()]


def write_kernel_names(db: duckdb.DuckDBPyConnection, classified: pl.DataFrame) -> None:
    """Writes the table `kernel_name` from one row per name, in the order that `build_names` gave."""
    db.execute(_NAMES["kernel_name"])
    db.register("incoming", classified.to_arrow())
    db.execute("INSERT INTO kernel_name BY NAME SELECT * FROM incoming ORDER BY name_id")
    db.unregister("incoming")


def build_events(db: duckdb.DuckDBPyConnection) -> None:
    """Builds event and other_event, their notices, and the ledger of the tables read so far; then frees the raw rows."""
    db.execute(_EVENTS["event"])
    db.execute(_EVENTS["other_event"])
    excluded = db.execute(_EVENTS["excluded"]).fetchall()
    bad = sum(count for _, _, reason, count in excluded if reason in ("bad timestamp", "no time or device"))
    if bad:
        add_notice(
            db,
            Notice(
                "bad-timestamps",
                "warning",
                f"{bad} rows have impossible timestamps or no device and are left out",
                "",
                bad,
            ),
        )
    (unknown,) = _row(db, _NAMES["unknown_count"])
    if unknown:
        add_notice(
            db,
            Notice(
                "unknown-names",
                "warning",
                f"{unknown} kernels have a name id that the export does not explain",
                "Export the report again.",
                unknown,
            ),
        )
    launches, graph_ns = _row(db, _EVENTS["graphs"])
    if launches:
        add_notice(
            db,
            Notice(
                "graph-level",
                "warning",
                f"CUDA graphs were traced as a whole: {launches} launches, {int(graph_ns) / 1e6:.1f} ms, whose kernels are invisible (bucket graph_opaque)",
                "Record again with: nsys profile --cuda-graph-trace=node",
                int(launches),
            ),
        )
    (invisible,) = _row(db, _EVENTS["invisible_graphs"])
    if invisible:
        add_notice(
            db,
            Notice(
                "graph-invisible",
                "warning",
                f"{invisible} CUDA graph launches left no row in this export: their GPU time is unknown and looks idle",
                "Record again with: nsys profile --cuda-graph-trace=node",
                int(invisible),
            ),
        )
    ledger.enter_events(db, excluded)


def build_empty(db: duckdb.DuckDBPyConnection) -> None:
    """Builds the tables of a capture without any export, for their documentation."""
    for table in ("export", "process", "rank"):
        db.execute(_BASE[table])
    db.execute(_EVENTS["session_window"])
    db.execute(_EVENTS["main_device"])
    db.execute(_EVENTS["sound"])
    build_events(db)


def build_launches(db: duckdb.DuckDBPyConnection) -> None:
    """Builds launch from raw_launch."""
    take_notices(db)
    db.execute(_LAUNCHES["create"])
    (repeated,) = _row(db, _LAUNCHES["repeated_count"])
    if repeated:
        add_notice(
            db,
            Notice(
                "repeated-correlation",
                "warning",
                f"{repeated} correlation ids stand on several API calls; the first call counts as the launch",
                "",
                repeated,
            ),
        )
    (bad,) = _row(db, _LAUNCHES["bad_count"])
    if bad:
        add_notice(
            db,
            Notice(
                "bad-launch-timestamps",
                "warning",
                f"{bad} CUDA API calls have impossible timestamps and are left out",
                "",
                bad,
            ),
        )
    (without,) = _row(db, _LAUNCHES["without_launch"])
    (total,) = _row(db, "SELECT count(*) FROM event_row")
    if without:
        add_notice(
            db,
            Notice(
                "events-without-launch",
                "info",
                f"{without} of {total} events have no API call in the capture: the cause of a gap before them is unknown",
                "",
                without,
            ),
        )
    tables = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
    ledger.enter_tables(db, tables, db.execute(_LAUNCHES["excluded"]).fetchall())
    db.execute(_LAUNCHES["drop"])


def build_nvtx(db: duckdb.DuckDBPyConnection) -> None:
    """Builds nvtx from raw_nvtx."""
    take_notices(db)
    db.execute(_LAUNCHES["nvtx"])
    (unclosed,) = _row(db, _LAUNCHES["nvtx_unclosed"])
    if unclosed:
        add_notice(
            db,
            Notice(
                "nvtx-unclosed",
                "info",
                f"{unclosed} NVTX ranges were still open when the capture ended; nsys closed them there",
                "",
                unclosed,
            ),
        )
    ledger.enter_tables(db, ("NVTX_EVENTS",), db.execute(_LAUNCHES["nvtx_excluded"]).fetchall())
    db.execute("DROP TABLE raw_nvtx")


def write_comments(db: duckdb.DuckDBPyConnection, parts: Iterable[str]) -> None:
    """Writes the meaning of every model table and column into DuckDB's comments.

    Args:
        parts: `launch` and `nvtx`, as far as they are loaded.
    """
    for section in ("always", "event_view", *sorted(parts)):
        db.execute(_COMMENTS[section])


def _row(db: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...]:
    row = db.execute(sql).fetchone()
    return row if row is not None else (0,)
