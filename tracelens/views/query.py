"""The answer of a query, and the documented tables, on a terminal."""

from __future__ import annotations

import polars as pl

from tracelens.frames import Result
from tracelens.views.terminal import Screen


def show(result: Result, screen: Screen) -> None:
    """Draw the rows of a query."""
    screen.table(result.tables["rows"], result.schemas["rows"])


def show_schema(result: Result, screen: Screen) -> None:
    """Draw every table under its meaning, one line a column."""
    frame = result.tables["schema"]
    for (table, meaning), columns in frame.group_by("table", "table_meaning", maintain_order=True):
        screen.table(
            columns.select("column", "dtype", "meaning").with_columns(pl.col("meaning").fill_null("")),
            title=f"{table}: {meaning}",
        )
