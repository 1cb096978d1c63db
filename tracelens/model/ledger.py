"""The account of rows: for every table that is read, rows read = rows used + rows left out, with the reasons."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import duckdb


def enter_events(db: duckdb.DuckDBPyConnection, excluded: Iterable[tuple[int, int, str, int]]) -> None:
    """Enters the tables of device events.

    Args:
        excluded: rows of (export, kind, reason, count) that became no event of a rank.
    """
    tables = dict(db.execute("SELECT DISTINCT kind, table_name FROM raw_read WHERE kind IS NOT NULL").fetchall())
    _enter(db, "kind IS NOT NULL", [(tables[kind], reason, count) for _, kind, reason, count in excluded])


def enter_tables(
    db: duckdb.DuckDBPyConnection, names: Iterable[str], excluded: Iterable[tuple[int, str, str, int]]
) -> None:
    """Enters other tables.

    Args:
        names: the tables' names.
        excluded: rows of (export, table, reason, count) that became no row of the model.
    """
    listed = ", ".join(f"'{name}'" for name in names)
    _enter(db, f"kind IS NULL AND table_name IN ({listed})", [tuple(row[1:]) for row in excluded])


def _enter(db: duckdb.DuckDBPyConnection, which: str, excluded: Iterable[tuple[Any, ...]]) -> None:
    reasons: dict[str, dict[str, int]] = {}
    by_ingest = db.execute("SELECT table_name, reason, row_count FROM raw_excluded").fetchall()
    for table, reason, count in [*by_ingest, *excluded]:
        mine = reasons.setdefault(table, {})
        mine[reason] = mine.get(reason, 0) + count
    rows: list[list[Any]] = []
    for table, read in db.execute(
        f"SELECT table_name, sum(rows_read)::BIGINT FROM raw_read WHERE {which} GROUP BY ALL ORDER BY ALL"  # noqa: S608
    ).fetchall():
        left = reasons.get(table, {})
        count = sum(left.values())
        told = "; ".join(f"{number} {reason}" for reason, number in sorted(left.items()))
        rows.append([None, table, read, read - count, count, told])
    if rows:
        db.executemany("INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?)", rows)
