"""Rows of an export's tables as Arrow batches, by the fastest way that is safe for the table.

`read_columns` reads the large tables of integers (kernels, copies, API calls); `read_text_rows` reads tables with
text in them. Both stream: at most a few batches are in memory. Both read a table in the order of its row ids.

A value that is not an integer, in a column that should hold integers, becomes null and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from tracelens.ingest.sqlite_file import SqliteFile, Table, connect, select

Loader = Literal["auto", "sqlite"]
OnRows = Callable[[int], None]

BATCH_ROWS = 131_072


@dataclass
class ReadReport:
    """What a read did; complete when the last batch has been taken.

    Attributes:
        rows: rows read.
        wrong_type_count: column -> values that were no integers and were read as null; columns without any are absent.
        loader_used: the way that read the last row: `pages`, `adbc` or `sqlite`.
        fallback_reason: why a faster way was not used; empty when the fastest was.
    """

    rows: int = 0
    wrong_type_count: dict[str, int] = field(default_factory=dict)
    loader_used: str = ""
    fallback_reason: str = ""


def read_columns(
    file: SqliteFile,
    table: str,
    columns: Sequence[str],
    *,
    loader: Loader = "auto",  # noqa: ARG001
    where: str = "",
    params: Sequence[Any] = (),
    batch_rows: int = BATCH_ROWS,
    report: ReadReport | None = None,
    on_rows: OnRows | None = None,
) -> Iterator[pa.RecordBatch]:
    """Integer columns of one table as batches of nullable int64, in the order of the row ids.

    Args:
        file: the open export.
        table: a table of it, in any case.
        columns: columns of the table, in any case; batches name them as given here.
        loader: `auto` takes the fastest safe way, `sqlite` the plain one.
        where: a condition of our own in SQL, `?` for values; empty for every row.
        params: the values for `?`.
        batch_rows: about how many rows a batch holds.
        report: filled while batches are taken.
        on_rows: called with the number of rows of each batch.

    Raises:
        MissingDataError: the table or a column is absent.
        DamagedError: the file contradicts itself, or changed while it was read.
    """
    found = file.table(table, columns)
    report = report if report is not None else ReadReport()
    return _counted(_plain(file, found, columns, where, params, batch_rows, report), report, on_rows)


def read_text_rows(
    file: SqliteFile,
    table: str,
    columns: Sequence[str],
    *,
    where: str = "",
    params: Sequence[Any] = (),
    blobs: Collection[str] = (),
    batch_rows: int = BATCH_ROWS,
    report: ReadReport | None = None,
    on_rows: OnRows | None = None,
) -> Iterator[pa.RecordBatch]:
    """Columns of one table, text included, as batches in the order of the row ids.

    A column declared as an integer becomes int64, as a float float64, any other string; bytes that are not UTF-8
    are replaced by U+FFFD, and so are bytes stored where text should be. Columns in `blobs` become binary.

    Args:
        file: the open export.
        table: a table of it, in any case.
        columns: columns of the table, in any case; batches name them as given here.
        where: a condition of our own in SQL, `?` for values; rows that fail it never leave SQLite.
        params: the values for `?`.
        blobs: columns to fetch as bytes, whatever they are declared as.
        batch_rows: how many rows a batch holds.
        report: filled while batches are taken.
        on_rows: called with the number of rows of each batch.

    Raises:
        MissingDataError: the table or a column is absent.
        DamagedError: SQLite cannot read the file.
    """
    found = file.table(table, columns)
    report = report if report is not None else ReadReport()
    types = [_arrow_type(found.columns[column], column in blobs) for column in columns]
    return _counted(_rows(file, found, columns, types, where, params, batch_rows, report), report, on_rows)


def _counted(batches: Iterator[pa.RecordBatch], report: ReadReport, on_rows: OnRows | None) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        report.rows += batch.num_rows
        if on_rows is not None:
            on_rows(batch.num_rows)
        yield batch


def _plain(
    file: SqliteFile,
    table: Table,
    columns: Sequence[str],
    where: str,
    params: Sequence[Any],
    batch_rows: int,
    report: ReadReport,
) -> Iterator[pa.RecordBatch]:
    types = [pa.int64()] * len(columns)
    return _rows(file, table, columns, types, where, params, batch_rows, report)


def _rows(
    file: SqliteFile,
    table: Table,
    columns: Sequence[str],
    types: Sequence[pa.DataType],
    where: str,
    params: Sequence[Any],
    batch_rows: int,
    report: ReadReport,
) -> Iterator[pa.RecordBatch]:
    """Rows through Python's own sqlite3: slow, and right for anything that SQLite can read."""
    report.loader_used = "sqlite"
    schema = pa.schema(list(zip(columns, types, strict=True)))
    sql = select([table.columns.written(column) for column in columns], table.name, where)
    with file.reading():
        connection = connect(file.uri)
        connection.text_factory = bytes  # validated a column at a time, which is several times faster
        try:
            cursor = connection.execute(sql, params)
            while rows := cursor.fetchmany(batch_rows):
                arrays = [
                    _array(values, dtype, column, report)
                    for values, dtype, column in zip(zip(*rows, strict=True), types, columns, strict=True)
                ]
                yield pa.record_batch(arrays, schema=schema)
        finally:
            connection.close()
    file.check_unchanged()


def _array(values: Sequence[Any], dtype: pa.DataType, column: str, report: ReadReport) -> pa.Array:
    kinds = set(map(type, values))
    if pa.types.is_int64(dtype) or pa.types.is_float64(dtype):
        kind: tuple[type, ...] = (int,) if pa.types.is_int64(dtype) else (float, int)
        if not kinds <= {*kind, type(None)}:
            wrong = sum(not isinstance(value, (*kind, type(None))) for value in values)
            report.wrong_type_count[column] = report.wrong_type_count.get(column, 0) + wrong
            values = [value if isinstance(value, kind) else None for value in values]
        return pa.array(values, dtype)
    if not kinds <= {bytes, type(None)}:
        values = [value if value is None or isinstance(value, bytes) else str(value).encode() for value in values]
    stored = pa.array(values, pa.binary())
    if pa.types.is_binary(dtype):
        return stored
    try:
        return stored.cast(dtype)
    except pa.ArrowInvalid:  # some bytes are not UTF-8
        return pa.array([None if value is None else value.decode("utf-8", "replace") for value in values], dtype)


def _arrow_type(declared: str, blob: bool) -> pa.DataType:
    """The Arrow type for a declared type, by SQLite's rules of affinity."""
    if blob:
        return pa.binary()
    name = declared.upper()
    if "INT" in name:
        return pa.int64()
    if any(part in name for part in ("REAL", "FLOA", "DOUB")):
        return pa.float64()
    return pa.string()
