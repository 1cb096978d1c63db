"""The table `notice`: what a reader must know to trust the answers."""

from __future__ import annotations

import duckdb

from tracelens.frames import Notice


def add_notice(db: duckdb.DuckDBPyConnection, notice: Notice) -> None:
    """Appends to the table `notice`."""
    db.execute(
        "INSERT INTO notice VALUES (?, ?, ?, ?, ?)",
        [notice.code, notice.severity, notice.message, notice.hint, notice.count],
    )


def take_notices(db: duckdb.DuckDBPyConnection) -> None:
    """Moves what ingest noticed since the last time into the table `notice`."""
    db.execute("INSERT INTO notice SELECT * FROM raw_notice ORDER BY ALL")
    db.execute("DELETE FROM raw_notice")
