"""Rows of one table through SQLite itself: by ADBC, which fills Arrow in C, or by Python's sqlite3, which takes anything.

Both read in the order of the row ids, after a given one where another way has stopped, and both refuse a table whose
row ids do not ascend: SQLite follows a broken tree without complaint and returns rows twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tracelens.ingest.sqlite_file import SqliteFile, Table, connect, quoted, select

NO_ROW_YET = -(2**63) - 1
_ROWS_AT_ONCE = 512  # as Python objects: more of them leave the processor's cache and take twice as long each
_FIRST_ROWS = 64  # fewer at first, and fewer again where texts are long
_LARGE_BYTES = 1 << 23
_MOST_BYTES = 1 << 26


class Unsuited(Exception):  # noqa: N818  not an error of the user's
    """This way cannot read the rest of the table; the rows that it gave stand, and another way reads on after them."""


@dataclass
class Place:
    """How far a read has come: shared by the ways that take turns on one table.

    Attributes:
        row_id: of the last row that was given; lower than any before the first.
    """

    row_id: int = NO_ROW_YET

    def advance(self, row_ids: Any, file: SqliteFile) -> None:
        """Move past a batch of row ids.

        Raises:
            DamagedError: they do not ascend from here.
        """
        ids = np.asarray(row_ids, np.int64)
        if len(ids) == 0:
            return
        if int(ids[0]) <= self.row_id or bool((ids[1:] <= ids[:-1]).any()):
            raise file.damaged("rows of a table are out of order or occur twice")
        self.row_id = int(ids[-1])


@dataclass(frozen=True)
class Wanted:
    """What to read of a table.

    Attributes:
        table: the table.
        columns: its columns, as the answer names them.
        types: Arrow type per column.
        where: a condition of our own in SQL, or empty.
        params: values for its `?`.
        batch_rows: rows per batch.
        repeated: columns of integers whose values repeat together (see `forms`); only the page decoder knows them.
    """

    table: Table
    columns: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    where: str
    params: tuple[Any, ...]
    batch_rows: int
    repeated: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches."""
        return pa.schema(list(zip(self.columns, self.types, strict=True)))

    def sql(self, place: Place) -> tuple[str, tuple[Any, ...]]:
        """The query for the rows behind `place`, row id first where the table has them, and its parameters."""
        columns = [self.table.columns.written(column) for column in self.columns]
        if not self.table.row_ids:
            return select(columns, self.table.name, self.where), self.params
        if place.row_id == NO_ROW_YET:
            return select(["rowid", *columns], self.table.name, self.where), self.params
        where = f"({self.where}) AND rowid > ?" if self.where else "rowid > ?"
        return select(["rowid", *columns], self.table.name, where), (*self.params, place.row_id)


def plain_batches(file: SqliteFile, wanted: Wanted, place: Place, wrong: dict[str, int]) -> Iterator[pa.RecordBatch]:
    """Batches through Python's sqlite3; values of another type than the column's are null and counted in `wrong`.

    Raises:
        DamagedError: SQLite cannot read the table, or its rows are out of order.
    """
    sql, params = wanted.sql(place)
    with file.reading():
        connection = connect(file.uri)
        connection.text_factory = bytes  # checked a column at a time, which is several times faster
        try:
            cursor = connection.execute(sql, params)
            waiting: list[pa.RecordBatch] = []
            waiting_rows = waiting_bytes = 0
            at_once = _FIRST_ROWS
            while rows := cursor.fetchmany(min(at_once, wanted.batch_rows)):
                fetched = list(zip(*rows, strict=True))
                if wanted.table.row_ids:
                    place.advance(fetched.pop(0), file)
                arrays = [
                    typed(values, dtype, column, wrong)
                    for values, dtype, column in zip(fetched, wanted.types, wanted.columns, strict=True)
                ]
                waiting.append(pa.record_batch(arrays, schema=wanted.schema))
                waiting_rows += len(rows)
                waiting_bytes += waiting[-1].nbytes
                at_once = max(1, at_once // 2) if waiting[-1].nbytes > _LARGE_BYTES else min(2 * at_once, _ROWS_AT_ONCE)
                if waiting_rows >= wanted.batch_rows or waiting_bytes > _MOST_BYTES:
                    yield pa.concat_batches(waiting)
                    waiting, waiting_rows, waiting_bytes = [], 0, 0
            if waiting:
                yield pa.concat_batches(waiting)
        finally:
            connection.close()


def typed(values: Sequence[Any], dtype: pa.DataType, column: str, wrong: dict[str, int]) -> pa.Array:
    """Values of one column, as SQLite gave them (text as bytes), in the Arrow type wanted; misfits are null and counted."""
    kinds = set(map(type, values)) - {type(None)}
    if pa.types.is_int64(dtype) or pa.types.is_float64(dtype):
        fits: tuple[type, ...] = (int,) if pa.types.is_int64(dtype) else (float, int)
        if not kinds <= set(fits):
            kept = [value if isinstance(value, fits) else None for value in values]
            misfits = kept.count(None) - sum(value is None for value in values)
            wrong[column] = wrong.get(column, 0) + misfits
            values = kept
        return pa.array(values, dtype)
    if not kinds <= {bytes}:
        values = [value if value is None or isinstance(value, bytes) else str(value).encode() for value in values]
    stored = pa.array(values, pa.binary())
    return stored if pa.types.is_binary(dtype) else as_text(stored)


def as_text(stored: pa.Array) -> pa.Array:
    """Bytes as strings; those that are not UTF-8 have the offending bytes replaced."""
    try:
        return stored.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in stored.to_pylist()]
        return pa.array(texts, pa.string())


def longest_row(file: SqliteFile, table: Table, columns: Sequence[str], types: Sequence[pa.DataType]) -> int:
    """At least how long the longest row is, in characters of text and bytes of blobs; 1 without any."""
    long = [
        f"max(length({quoted(table.columns.written(column))}))"
        for column, dtype in zip(columns, types, strict=True)
        if pa.types.is_string(dtype) or pa.types.is_binary(dtype)
    ]
    if not long:
        return 1
    sql = f"SELECT {', '.join(long)} FROM {quoted(table.name)} NOT INDEXED"  # noqa: S608  identifiers are quoted
    (lengths,) = file.execute(sql)
    return max(1, *(int(one or 0) for one in lengths))


def adbc_batches(file: SqliteFile, wanted: Wanted, place: Place) -> Iterator[pa.RecordBatch]:
    """Batches through ADBC's driver for SQLite, two to four times as fast as Python's.

    The driver takes a column's type from the values of its first batch, so a row of our own that has the types wanted
    goes first; a column that still comes out otherwise holds values of several types.

    Raises:
        Unsuited: a value is of another type than its column's, or the driver failed; go on with `plain_batches`.
        DamagedError: rows are out of order.
    """
    if not wanted.table.row_ids:
        raise Unsuited("the table has no row ids")
    from adbc_driver_sqlite import dbapi

    sql, params = wanted.sql(place)
    skip = int(any(not pa.types.is_int64(dtype) for dtype in wanted.types))  # the driver's own guess is int64
    if skip:
        first = ", ".join(_EXAMPLES[str(dtype)] for dtype in wanted.types)
        sql = f"SELECT -1, {first} UNION ALL {sql}"
    try:
        with dbapi.connect(file.uri) as connection:
            for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0"):
                with connection.cursor() as cursor:
                    cursor.execute(f"PRAGMA {pragma}")
            with connection.cursor(adbc_stmt_kwargs={"adbc.sqlite.query.batch_rows": wanted.batch_rows}) as cursor:
                cursor.execute(sql, list(params) or None)
                reader = cursor.fetch_record_batch()
                for batch in reader:
                    rows = batch.slice(skip)
                    skip = 0
                    if rows.num_rows:
                        arrays = _as_wanted(rows.columns[1:], wanted)
                        place.advance(rows.column(0), file)
                        yield pa.record_batch(arrays, schema=wanted.schema)
    except (OSError, dbapi.Error, pa.ArrowException) as error:
        raise Unsuited(f"the fast SQLite driver stopped: {type(error).__name__}") from error


_EXAMPLES = {"int64": "0", "double": "0.5", "string": "''", "binary": "x''"}


def _as_wanted(columns: Sequence[pa.Array], wanted: Wanted) -> list[pa.Array]:
    arrays = []
    for column, dtype in zip(columns, wanted.types, strict=True):
        if column.type == dtype:
            array = column
            if pa.types.is_string(dtype):
                array = as_text(pa.Array.from_buffers(pa.binary(), len(column), column.buffers(), offset=column.offset))
        elif pa.types.is_string(dtype) and pa.types.is_binary(column.type):
            array = as_text(column)
        elif column.null_count == len(column):
            array = pa.nulls(len(column), dtype)
        else:
            raise Unsuited("a column holds values of several types")
        arrays.append(array)
    return arrays
