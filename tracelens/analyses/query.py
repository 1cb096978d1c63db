"""Questions of the user's own: one read-only query on the model tables, and what those tables mean."""

from __future__ import annotations

import re
from typing import ClassVar

import duckdb
import polars as pl

from tracelens.errors import UsageError
from tracelens.frames import Column, Result, Schema
from tracelens.trace import LoadedTrace

_PRIVATE = (
    "raw_",
    "event_row",
    "name_text",
    "string_name",
    "main_device",
    "session_window",
    "rank_place",
    "not_a_rank",
    "copy_label",
)
_SCHEMA = """
SELECT c.table_name AS "table", coalesce(t.comment, v.comment) AS table_meaning, c.column_name AS "column",
    lower(c.data_type) AS dtype, c.comment AS meaning
FROM duckdb_columns() c
LEFT JOIN duckdb_tables() t ON t.table_name = c.table_name AND t.schema_name = 'main'
LEFT JOIN duckdb_views() v ON v.view_name = c.table_name AND v.schema_name = 'main'
WHERE c.schema_name = 'main' AND NOT c.internal AND coalesce(t.comment, v.comment) IS NOT NULL
ORDER BY c.table_name, c.column_index
"""


class SchemaResult(Result):
    """Every table and column that `tracelens sql` can query."""

    command: ClassVar[str] = "sql"
    schemas: ClassVar = {
        "schema": Schema(
            "one column of one table",
            Column("table", pl.String, "Its table"),
            Column("table_meaning", pl.String, "What one row of the table is"),
            Column("column", pl.String, "Its name"),
            Column("dtype", pl.String, "Its type"),
            Column("meaning", pl.String, "What it means, with its unit"),
        )
    }


class QueryResult(Result):
    """The answer of one query: a single table `rows`, with the columns that the query names."""

    command: ClassVar[str] = "sql"


def sql(trace: LoadedTrace, query: str) -> pl.DataFrame:
    """Runs one query on the model tables.

    The tables that a query names are loaded or computed first. The query can neither write nor attach nor read files:
    it is checked to be one SELECT and runs with DuckDB's access to anything outside switched off.

    Raises:
        UsageError: it is not a single SELECT, names an unknown table, or DuckDB cannot run it.
    """
    try:
        statements = trace.db.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise UsageError(
                "sql takes one SELECT",
                "Model tables are read-only; export them with `tracelens export -o x.duckdb` to work on them.",
            )
        _prepare(trace, set(trace.db.get_table_names(query)))
        trace.db.execute("SET enable_external_access = false")
        trace.db.execute("BEGIN TRANSACTION READ ONLY")
        try:
            frame = pl.from_arrow(trace.db.sql(query).to_arrow_table())
        finally:
            trace.db.execute("ROLLBACK")
    except duckdb.Error as error:
        raise UsageError(
            f"the query failed: {_first_line(error)}", "`tracelens sql --schema` lists the tables and their columns."
        ) from error
    if not isinstance(frame, pl.DataFrame):
        frame = frame.to_frame()
    return frame


def sql_result(trace: LoadedTrace, query: str) -> QueryResult:
    """The same as a result, for the views; its schema is whatever the query returned."""
    frame = sql(trace, query)
    schema = Schema("one row of the query's answer", *(Column(name, dtype, "") for name, dtype in frame.schema.items()))

    class Answer(QueryResult):
        schemas: ClassVar = {"rows": schema}

    return Answer({"rows": frame}, trace.notices, trace.provenance())


def table_schema(trace: LoadedTrace) -> SchemaResult:
    """Every documented table and column, those that are computed on demand included."""
    _prepare(trace, {"launch", "nvtx", *_DERIVED})
    frame = pl.from_arrow(trace.db.sql(_SCHEMA).to_arrow_table())
    assert isinstance(frame, pl.DataFrame)  # a table has columns
    hidden = pl.any_horizontal(pl.col("table").str.starts_with(name) for name in _PRIVATE)
    return SchemaResult({"schema": SchemaResult.schemas["schema"].frame(frame.filter(~hidden))})


#: Tables that an analysis makes, by the module and function that make them.
_DERIVED: dict[str, tuple[str, str]] = {}


def _prepare(trace: LoadedTrace, names: set[str]) -> None:
    """Loads or computes the tables that a query names."""
    import importlib

    plain = {re.sub(r'^.*\.|"', "", name).lower() for name in names}
    if "launch" in plain:
        trace.ensure("launch")
    if "nvtx" in plain:
        trace.ensure("nvtx")
    for name in sorted(plain & set(_DERIVED)):
        module, function = _DERIVED[name]
        getattr(importlib.import_module(module), function)(trace)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300]
