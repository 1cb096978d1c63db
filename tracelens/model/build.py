"""Builds the model tables from the raw tables, in one DuckDB."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

from tracelens.frames import Notice
from tracelens.model import event_files, ledger
from tracelens.model.event_files import Order
from tracelens.model.event_order import Runs
from tracelens.model.notices import add_notice, take_notices
from tracelens.model.nvtx import build_nvtx, read_nvtx
from tracelens.model.rank_tables import build_ranks
from tracelens.sqlfiles import queries
from tracelens.units import plural

__all__ = [
    "build_empty",
    "build_events",
    "build_launches",
    "build_names",
    "build_nvtx",
    "build_ranks",
    "finish_events",
    "known_names",
    "order_events",
    "read_events",
    "read_launches",
    "read_nvtx",
    "set_launches_aside",
    "write_comments",
    "write_kernel_names",
]

_HERE = Path(__file__).parent
_BASE = queries(_HERE / "base.sql")
_NAMES = queries(_HERE / "names.sql")
_EVENTS = queries(_HERE / "events.sql")
_LAUNCHES = queries(_HERE / "launches.sql")
#: Launches that are put in order at once.
_PORTION_ROWS = 1_000_000
_COMMENTS = queries(_HERE / "comments.sql")


def build_names(db: duckdb.DuckDBPyConnection) -> list[str]:
    """Numbers the names of all events.

    Returns:
        the names; a name's position is its name_id.
    """
    db.execute(_NAMES["collect"])
    return known_names(db)


def known_names(db: duckdb.DuckDBPyConnection) -> list[str]:
    """The names of all events, once they are numbered; a name's position is its name_id."""
    return [str(name) for (name,) in db.execute("SELECT name FROM name_text ORDER BY name_id").fetchall()]


def write_kernel_names(db: duckdb.DuckDBPyConnection, classified: pl.DataFrame) -> None:
    """Writes the table `kernel_name` from one row per name, in the order that `build_names` gave."""
    db.execute(_NAMES["kernel_name"])
    db.register("incoming", classified.to_arrow())
    db.execute("INSERT INTO kernel_name BY NAME SELECT * FROM incoming ORDER BY name_id")
    db.unregister("incoming")


def build_events(db: duckdb.DuckDBPyConnection, runs: Runs, folder: Path | None, threads: int = 2) -> list[Path]:
    """Builds event and other_event, their notices, and the ledger of the tables read so far.

    Args:
        db: holds the raw tables and the ranks.
        runs: the events; none is left in it.
        folder: where the events of ranks go as files; None: into memory.
        threads: how many files may be written at once.

    Returns:
        the files, which `read_events` opens.

    Raises:
        OSError: the files cannot be written.
    """
    order = order_events(db)
    files: list[Path] = []
    if folder is None:
        db.execute(_EVENTS["in_memory"])
        for _, places in order.stretches():
            _append(db, "event_row", event_files.rank_tables(runs, places, order.name_ids))
    else:
        files = event_files.write_ranks(runs, order, folder, threads)
    finish_events(db, event_files.other_tables(runs, order.others, order.name_ids))
    return files


def order_events(db: duckdb.DuckDBPyConnection) -> Order:
    """The order of the events of all exports, once ranks and names are known."""
    ranked: list[tuple[int, tuple[int, int, int], int, int]] = []
    others = []
    count = 0
    for rank, export, pid, device, process, rows in db.execute(_EVENTS["places"]).fetchall():
        if rank is None:
            others.append((process, (export, pid, device)))
        else:
            ranked.append((rank, (export, pid, device), count, rows))
            count += rows
    return Order(ranked, others, _codes(db))


def finish_events(db: duckdb.DuckDBPyConnection, others: Iterable[pa.Table]) -> None:
    """Makes other_event of the events of no rank, in their order; then the notices and the ledger of all events."""
    db.execute(_EVENTS["other_event"])
    _append(db, "other_event", others)
    _tell_events(db)


def read_events(db: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> None:
    """Makes event and event_row of the files that `build_events` wrote."""
    db.read_parquet([glob.escape(str(file)) for file in files]).create_view("raw_event_file")
    db.execute(_EVENTS["in_files"])


def _codes(db: duckdb.DuckDBPyConnection) -> dict[int, Any]:
    """Per export, the name_id for each number of a name."""
    columns = db.execute(_NAMES["numbers"]).fetchnumpy()
    found = {}
    for export in np.unique(columns["export"]).tolist():
        mine = columns["export"] == export
        ids = np.zeros(int(columns["code"][mine].max()) + 1, np.int32)
        ids[columns["code"][mine]] = columns["name_id"][mine]
        found[int(export)] = ids
    return found


def _append(db: duckdb.DuckDBPyConnection, target: str, tables: Iterable[pa.Table]) -> None:
    for one in tables:
        db.register("incoming", one)
        db.execute(f"INSERT INTO {target} SELECT * FROM incoming")  # noqa: S608 - our own name
        db.unregister("incoming")


def _tell_events(db: duckdb.DuckDBPyConnection) -> None:
    """Notices and the ledger of the tables of events."""
    excluded = db.execute(_EVENTS["excluded"]).fetchall()
    bad = sum(count for _, _, reason, count in excluded if reason in ("bad timestamp", "no time or device"))
    if bad:
        add_notice(
            db,
            Notice(
                "bad-timestamps",
                "warning",
                f"{plural(bad, 'row')} with impossible timestamps or no device left out",
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
                f"{plural(unknown, 'kernel')} with a name id that the export does not explain",
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
                f"CUDA graphs were traced as a whole: {plural(launches, 'launch', 'launches')}, {int(graph_ns) / 1e6:.1f} ms, whose kernels are invisible (bucket graph_opaque)",
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
                f"{plural(invisible, 'CUDA graph launch', 'CUDA graph launches')} without a row in this export: the GPU time is unknown and looks idle",
                "Record again with: nsys profile --cuda-graph-trace=node",
                int(invisible),
            ),
        )
    ledger.enter_events(db, excluded)


def build_empty(db: duckdb.DuckDBPyConnection) -> None:
    """Builds the tables of a capture without any export, for their documentation."""
    for table in ("export", "process", "rank"):
        db.execute(_BASE[table])
    for section in ("in_memory", "other_event"):
        db.execute(_EVENTS[section])
    _tell_events(db)


def build_launches(db: duckdb.DuckDBPyConnection) -> None:
    """Builds launch from raw_launch."""
    take_notices(db)
    db.execute(_LAUNCHES["defect"])
    db.execute(_LAUNCHES["create"])
    for low, high in _portions(db.execute(_LAUNCHES["sizes"]).fetchall()):
        db.execute(_LAUNCHES["append"], {"low": low, "high": high})
    (repeated,) = _row(db, _LAUNCHES["repeated_count"])
    if repeated:
        add_notice(
            db,
            Notice(
                "repeated-correlation",
                "warning",
                f"{plural(repeated, 'correlation id')} on several API calls each; the first call counts as the launch",
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
                f"{plural(bad, 'CUDA API call')} with impossible timestamps left out",
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
                f"{without:,} of {plural(total, 'event')} without an API call in the capture: the cause of a gap before such an event is unknown",
                "",
                without,
            ),
        )
    tables = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
    ledger.enter_tables(db, tables, db.execute(_LAUNCHES["excluded"]).fetchall())
    db.execute(_LAUNCHES["drop"])


def _portions(sizes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(first, last) of neighbouring processes that have about `_PORTION_ROWS` launches together, from (process, launches)."""
    portions: list[tuple[int, int]] = []
    held = _PORTION_ROWS
    for process, count in sizes:
        if held >= _PORTION_ROWS:
            portions.append((process, process))
            held = 0
        portions[-1] = (portions[-1][0], process)
        held += count
    return portions


def read_launches(db: duckdb.DuckDBPyConnection, file: Path) -> None:
    """Makes launch of the file in which a stored load keeps its rows, and gives their memory back."""
    db.read_parquet(glob.escape(str(file))).create_view("launch", replace=True)
    db.execute(_LAUNCHES["forget"])


def set_launches_aside(db: duckdb.DuckDBPyConnection) -> None:
    """Leaves in raw_launch the calls that can have launched something, and counts the others; needs raw_correlation."""
    db.execute(_LAUNCHES["defect"])
    db.execute(_LAUNCHES["set_aside"])


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
