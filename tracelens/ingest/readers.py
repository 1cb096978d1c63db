"""Rows of an export's tables as Arrow batches, by the fastest way that is safe for the table.

`read_columns` reads the large tables of integers (kernels, copies, API calls); `read_text_rows` reads tables with
text in them. Both stream: at most a few batches are in memory. Both read a table in the order of its row ids.

A value that is not an integer, in a column that should hold integers, becomes null and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

from tracelens.ingest.forms import numbered
from tracelens.ingest.sqlite_cells import refusal
from tracelens.ingest.sqlite_file import SqliteFile
from tracelens.ingest.sqlite_rows import Place, Unsuited, Wanted, adbc_batches, longest_row, plain_batches
from tracelens.ingest.sqlite_scan import page_batches

Loader = Literal["auto", "sqlite"]
OnRows = Callable[[int], None]

BATCH_ROWS = 131_072
TEXT_BATCH_ROWS = 16_384
_TEXT_BATCH_BYTES = 1 << 26  # names can be long: 100 kB each is known


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
    loader: Loader = "auto",
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
    types = (pa.int64(),) * len(columns)
    wanted = Wanted(found, tuple(columns), types, where, tuple(params), batch_rows)
    return _counted(_integer_batches(file, wanted, loader, report), report, on_rows)


def read_events(
    file: SqliteFile,
    table: str,
    own: Sequence[str],
    repeated: Sequence[str],
    *,
    loader: Loader = "auto",
    batch_rows: int = BATCH_ROWS,
    report: ReadReport | None = None,
    on_rows: OnRows | None = None,
) -> Iterator[pa.RecordBatch]:
    """Integer columns of one table as batches with forms (`ingest.forms`), in the order of the row ids.

    Args:
        own: columns whose values are each row's own.
        repeated: columns whose values repeat together from row to row; at least one.
        file, table, loader, batch_rows, report, on_rows: as for `read_columns`, and what is raised.
    """
    found = file.table(table, [*own, *repeated])
    report = report if report is not None else ReadReport()
    types = (pa.int64(),) * len(own)
    wanted = Wanted(found, tuple(own), types, "", (), batch_rows, tuple(repeated))
    return _counted(_integer_batches(file, wanted, loader, report), report, on_rows)


def read_text_rows(
    file: SqliteFile,
    table: str,
    columns: Sequence[str],
    *,
    where: str = "",
    params: Sequence[Any] = (),
    blobs: Collection[str] = (),
    loader: Loader = "auto",
    batch_rows: int = TEXT_BATCH_ROWS,
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
        loader: `sqlite` takes the plain way.
        batch_rows: how many rows a batch holds; fewer where texts are very long.
        report: filled while batches are taken.
        on_rows: called with the number of rows of each batch.

    Raises:
        MissingDataError: the table or a column is absent.
        DamagedError: SQLite cannot read the file.
    """
    found = file.table(table, columns)
    report = report if report is not None else ReadReport()
    as_bytes = {column.lower() for column in blobs}
    types = tuple(_arrow_type(found.columns[column], column.lower() in as_bytes) for column in columns)
    if loader == "auto":
        batch_rows = max(1, min(batch_rows, _TEXT_BATCH_BYTES // longest_row(file, found, columns, types)))
    wanted = Wanted(found, tuple(columns), types, where, tuple(params), batch_rows)
    return _counted(_sqlite_batches(file, wanted, loader, Place(), [], report), report, on_rows)


def _counted(batches: Iterator[pa.RecordBatch], report: ReadReport, on_rows: OnRows | None) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        report.rows += batch.num_rows
        if on_rows is not None:
            on_rows(batch.num_rows)
        yield batch


def _integer_batches(file: SqliteFile, wanted: Wanted, loader: Loader, report: ReadReport) -> Iterator[pa.RecordBatch]:
    """The ways in turn, fastest first; each reads on where the one before had to stop."""
    place = Place()
    reasons = []
    if loader == "auto":
        why_not = (
            "only some rows are wanted"
            if wanted.where
            else refusal(file, wanted.table, (*wanted.columns, *wanted.repeated))
        )
        if why_not:
            reasons.append(why_not)
        else:
            try:
                report.loader_used = "pages"
                yield from page_batches(file, wanted, place, report.wrong_type_count)
            except Unsuited as error:
                reasons.append(str(error))
            else:
                file.check_unchanged()
                return
    if not wanted.repeated:
        yield from _sqlite_batches(file, wanted, loader, place, reasons, report)
        return
    columns = (*wanted.columns, *wanted.repeated)
    plain = replace(wanted, columns=columns, types=(pa.int64(),) * len(columns), repeated=())
    for batch in _sqlite_batches(file, plain, loader, place, reasons, report):
        yield numbered(batch, len(wanted.columns))


def _sqlite_batches(
    file: SqliteFile, wanted: Wanted, loader: Loader, place: Place, reasons: list[str], report: ReadReport
) -> Iterator[pa.RecordBatch]:
    done = False
    if loader == "auto":
        try:
            report.loader_used = "adbc"
            report.fallback_reason = "; ".join(reasons)
            yield from adbc_batches(file, wanted, place)
            done = True
        except Unsuited as error:
            reasons.append(str(error))
    if not done:
        report.loader_used = "sqlite"
        report.fallback_reason = "; ".join(reasons)
        yield from plain_batches(file, wanted, place, report.wrong_type_count)
    file.check_unchanged()


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
