"""Questions of the user's own: one read-only query on the model tables, and what those tables mean."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import duckdb
import polars as pl
import pyarrow as pa

from tracelens.errors import UsageError
from tracelens.frames import Column, Notice, Result, Schema
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
    it is checked to be one SELECT that calls no function which looks outside the tables, and runs in a read-only
    transaction with DuckDB's access to anything outside switched off.

    Returns:
        the rows, columns named as by the query (a second `a` is `a_2`). Whole numbers beyond 64 bits become floats;
        bytes, intervals, structs and the like become text.

    Raises:
        UsageError: it is not a single SELECT, calls what it must not, names an unknown table, or DuckDB cannot run it.
    """
    try:
        tree = _parsed(trace, query)
        _refuse_functions(tree)
        _prepare(trace, {str(node["table_name"]) for node in _nodes(tree) if node.get("type") == "BASE_TABLE"})
        if any(str(node.get("function_name", "")).startswith("duckdb_") for node in _nodes(tree)):
            trace.document()
        trace.db.execute("SET enable_external_access = false")
        trace.db.execute("BEGIN TRANSACTION READ ONLY")
        try:
            answer = trace.db.sql(query).to_arrow_table()
        finally:
            trace.db.execute("ROLLBACK")
    except duckdb.Error as error:
        raise UsageError(
            f"the query failed: {_first_line(error)}", "`tracelens sql --schema` lists the tables and their columns."
        ) from error
    return _frame(answer)


#: The only functions that may stand where a table stands; all others read files, settings or the engine's own state.
_TABLE_FUNCTIONS = frozenset(
    {"range", "generate_series", "unnest", "duckdb_columns", "duckdb_tables", "duckdb_views", "json_each", "json_tree"}
)
#: Functions of values that tell of the machine.
_FORBIDDEN = frozenset({"current_setting", "getenv", "getvariable"})


def _parsed(trace: LoadedTrace, query: str) -> dict[str, Any]:
    """The syntax tree of one SELECT."""
    told = UsageError(
        "sql takes one SELECT",
        "Model tables are read-only; export them with `tracelens export -o x.duckdb` to work on them.",
    )
    statements = trace.db.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise told
    ((text,),) = trace.db.execute("SELECT json_serialize_sql($1::VARCHAR)", [query]).fetchall()
    tree = json.loads(text)
    if not isinstance(tree, dict) or tree.get("error"):
        raise told
    return tree


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every node of a syntax tree."""
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _refuse_functions(tree: dict[str, Any]) -> None:
    for node in _nodes(tree):
        function = node.get("function") if node.get("type") == "TABLE_FUNCTION" else None
        name = str((function or node).get("function_name", "")).lower()
        if (function is not None and name not in _TABLE_FUNCTIONS) or name in _FORBIDDEN:
            raise UsageError(
                f"sql knows no function {name}() here: it would look outside the model tables",
                "`tracelens sql --schema` lists the tables and their columns.",
            )


def _frame(answer: pa.Table) -> pl.DataFrame:
    """An answer of any types as a frame that every format can write."""
    taken: set[str] = set()
    names, columns = [], []
    for name, column in zip(answer.column_names, answer.columns, strict=True):
        unique, number = name, 2
        while unique in taken:
            unique, number = f"{name}_{number}", number + 1
        taken.add(unique)
        names.append(unique)
        columns.append(_plain(column))
    frame = pl.from_arrow(pa.table(columns, names=names))
    return frame if isinstance(frame, pl.DataFrame) else frame.to_frame()


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    dtype = column.type
    if pa.types.is_dictionary(dtype):
        return column.cast(pa.string())
    if pa.types.is_decimal(dtype):
        try:
            return column.cast(pa.int64() if dtype.scale == 0 else pa.float64())
        except pa.ArrowInvalid:
            return column.cast(pa.float64())
    if pa.types.is_list(dtype) and _is_simple(dtype.value_type):
        return column
    if _is_simple(dtype):
        return column
    return pa.chunked_array([pa.array([_as_text(value) for value in column.to_pylist()], pa.string())])


def _is_simple(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(dtype)
        or pa.types.is_floating(dtype)
        or pa.types.is_boolean(dtype)
        or pa.types.is_string(dtype)
        or pa.types.is_null(dtype)
        or pa.types.is_date(dtype)
        or pa.types.is_timestamp(dtype)
    )


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, default=_as_text)
    return str(value)


def sql_result(trace: LoadedTrace, query: str) -> QueryResult:
    """The same as a result, for the views; its schema is whatever the query returned."""
    frame = sql(trace, query)
    schema = Schema("one row of the query's answer", *(Column(name, dtype, "") for name, dtype in frame.schema.items()))

    class Answer(QueryResult):
        schemas: ClassVar = {"rows": schema}

    return Answer({"rows": frame}, (*_unselected(trace), *trace.notices), trace.provenance())


def _unselected(trace: LoadedTrace) -> list[Notice]:
    """Choices that a query cannot follow: its tables hold everything, and it chooses by WHERE."""
    chosen = {name: getattr(trace.options, name) for name in ("ranks", "steps", "phase", "time_s")}
    ignored = [f"--{name.removesuffix('_s')}" for name, value in chosen.items() if value is not None]
    if not ignored:
        return []
    return [
        Notice(
            "query-unselected",
            "warning",
            f"a query reads whole tables: {', '.join(ignored)} did not narrow it",
            "Put the choice into the query, e.g. WHERE rank IN (0, 1).",
            None,
        )
    ]


def table_schema(trace: LoadedTrace) -> SchemaResult:
    """Every documented table and column, those that are computed on demand included."""
    _prepare(trace, {"launch", "nvtx", *_DERIVED})
    trace.document()
    frame = pl.from_arrow(trace.db.sql(_SCHEMA).to_arrow_table())
    assert isinstance(frame, pl.DataFrame)  # a table has columns
    hidden = pl.any_horizontal(pl.col("table").str.starts_with(name) for name in _PRIVATE)
    return SchemaResult({"schema": SchemaResult.schemas["schema"].frame(frame.filter(~hidden))})


#: Tables that an analysis makes, by the module and function that make them.
_DERIVED: dict[str, tuple[str, str]] = {
    "clock": ("tracelens.analyses.alignment", "align"),
    "collective_member": ("tracelens.analyses.alignment", "align"),
    "gap": ("tracelens.analyses.gaps", "find_gaps"),
    "step": ("tracelens.analyses.steps", "find_steps"),
    "step_member": ("tracelens.analyses.steps", "find_steps"),
}


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
