"""A whole table by its pages, with SQLite as witness.

Before the first row is given, pages spread over the table are decoded and compared with what SQLite reads there. While
the table is read, pages with rows of another shape are read by SQLite, one page at a time, and SQLite counts the
rows in the background; the counts must be equal at the end.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa

from tracelens.errors import DamagedError
from tracelens.ingest.sqlite_cells import Decoder, Flags, Rows, cell_row_ids, positions, row_ids
from tracelens.ingest.sqlite_file import SqliteFile, Table, connect, page_size_of, quoted, select
from tracelens.ingest.sqlite_pages import Disagreement, Ints, Pages, leaf_pages
from tracelens.ingest.sqlite_rows import Place, Unsuited, Wanted, typed

_SAMPLED_PAGES = 48
_ODD_PAGES_ALLOWED = 64  # pages that SQLite may read one by one before it reads the rest of the table in one go


class ReadersDisagreeError(DamagedError):
    """SQLite and the page decoder do not find the same rows: the file is damaged, or the decoder is wrong."""


class RowCount:
    """COUNT(*) of a table, taken in the background.

    Args:
        file: the open export.
        table: the table.
    """

    def __init__(self, file: SqliteFile, table: Table) -> None:
        """Start counting."""
        self._file = file
        self._sql = f"SELECT COUNT(*) FROM {quoted(table.name)} NOT INDEXED"  # noqa: S608  identifiers are quoted
        with file.reading():
            self._connection = connect(file.uri)
        self._count = -1
        self._error: sqlite3.Error | None = None
        self._thread = Thread(target=self._run, name="row count", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            [(self._count,)] = self._connection.execute(self._sql).fetchall()
        except sqlite3.Error as error:
            self._error = error

    def result(self) -> int:
        """The count, when it is there.

        Raises:
            DamagedError: SQLite cannot count the rows.
        """
        self._thread.join()
        with self._file.reading():
            if self._error is not None:
                raise self._error
        return self._count

    def close(self) -> None:
        """Stop counting."""
        if self._thread.is_alive():
            self._connection.interrupt()
        self._thread.join()
        self._connection.close()


def page_batches(file: SqliteFile, wanted: Wanted, place: Place, wrong: dict[str, int]) -> Iterator[pa.RecordBatch]:
    """Batches decoded from a table's pages; `sqlite_cells.refusal` has been asked.

    Raises:
        Unsuited: too many rows are of another shape, or samples differ; go on with SQLite behind `place`.
        DamagedError: the pages contradict themselves or SQLite's count.
    """
    descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        file.check_unchanged()
        page_bytes = page_size_of(file.header)
        pages = Pages(descriptor, page_bytes, file.size_bytes // page_bytes)
        scan = _Scan(file, wanted, pages, wrong)
        try:
            leaves = leaf_pages(pages, wanted.table.root_page)
            scan.check_samples(leaves)
        except Disagreement as error:  # nothing was given yet: let SQLite say what it makes of it
            raise Unsuited(str(error)) from error
        yield from scan.batches(leaves, place)
    finally:
        os.close(descriptor)


@dataclass
class _Decoded:
    """Rows of a block, those that SQLite had to read among them."""

    values: list[Ints]
    nulls: list[Flags | None]
    rows: int


class _Scan:
    """One pass over a table's leaf pages."""

    def __init__(self, file: SqliteFile, wanted: Wanted, pages: Pages, wrong: dict[str, int]) -> None:
        self._file = file
        self._wanted = wanted
        self._pages = pages
        self._wrong = wrong
        self._decoder = Decoder(pages, positions(wanted.table, wanted.columns))
        names = [wanted.table.columns.written(column) for column in wanted.columns]
        self._page_sql = select(["rowid", *names], wanted.table.name, "rowid BETWEEN ? AND ?")
        self._odd_pages = 0

    def check_samples(self, leaves: Ints) -> None:
        """Compare pages spread evenly over the table, first and last among them, with what SQLite reads.

        Raises:
            Unsuited: most of them hold rows of another shape.
            Disagreement: SQLite reads other rows.
        """
        chosen = np.unique(np.linspace(0, len(leaves) - 1, _SAMPLED_PAGES).astype(np.int64))
        odd_pages = 0
        for page_count, places in self._pages.read(leaves[chosen]):
            block = self._decoder.decode(places)
            odd_pages += len(block.odd)
            for page in sorted(set(range(page_count)) - set(block.odd.tolist())):
                begin, end = np.searchsorted(block.page_of, [page, page + 1])
                ids = row_ids(block.keys[begin:end]).tolist()
                decoded = [
                    _listed(values[begin:end], None if null is None else null[begin:end])
                    for values, null in zip(block.values, block.nulls, strict=True)
                ]
                if ids and list(zip(ids, *decoded, strict=True)) != self._from_sqlite(ids):
                    raise Disagreement("SQLite reads other rows from the same pages")
        if 4 * odd_pages > len(chosen):
            raise Unsuited("many rows are not made of integers up to the last wanted column")

    def batches(self, leaves: Ints, place: Place) -> Iterator[pa.RecordBatch]:
        """Every row of the leaves; `place` follows.

        Raises:
            Unsuited: SQLite had to read too many pages.
            DamagedError: a page contradicts itself, rows are out of order, or SQLite counts other rows.
        """
        counted = RowCount(self._file, self._wanted.table)
        try:
            row_count = pages_done = 0
            waiting: list[_Decoded] = []
            for page_count, places in self._pages.read(leaves):
                waiting.append(self._block(places, place))
                pages_done += page_count
                if sum(block.rows for block in waiting) >= self._wanted.batch_rows:
                    batch = self._batch(waiting)
                    row_count += batch.num_rows
                    waiting = []
                    yield batch
                    if self._odd_pages > max(_ODD_PAGES_ALLOWED, pages_done // 20):
                        raise Unsuited("many rows are not made of integers up to the last wanted column")
            if waiting:
                batch = self._batch(waiting)
                row_count += batch.num_rows
                yield batch
            if counted.result() != row_count:
                raise ReadersDisagreeError(
                    f"{self._file.shown}: {row_count:,} rows in the pages of {self._wanted.table.name}, where SQLite"
                    f" counts {counted.result():,}",
                    "try --loader sqlite, or export it again",
                )
        finally:
            counted.close()

    def _block(self, places: Ints, place: Place) -> _Decoded:
        try:
            block = self._decoder.decode(places)
            if len(block.odd):
                place.advance(self._repair(block, places), self._file)
            elif len(block.keys):
                first, last = row_ids(block.keys[[0, -1]]).tolist()
                if bool((block.keys[1:] <= block.keys[:-1]).any()):
                    raise Disagreement("rows of a table are out of order or occur twice")
                place.advance([first, last] if last > first else [first], self._file)
        except Disagreement as error:
            raise self._file.damaged(str(error)) from error
        return _Decoded(block.values, block.nulls, len(block.keys))

    def _repair(self, block: Rows, places: Ints) -> Ints:
        """Let SQLite read the odd pages of a block, in place; all row ids of the block."""
        ids = row_ids(block.keys)
        for page in block.odd.tolist():
            begin, end = np.searchsorted(block.page_of, [page, page + 1])
            of_page = cell_row_ids(self._pages, int(places[page]))
            rows = self._from_sqlite(of_page)
            if [row[0] for row in rows] != of_page:
                raise Disagreement("SQLite finds other rows on a page")
            ids[begin:end] = of_page
            for at, column in enumerate(self._wanted.columns):
                array = typed([row[at + 1] for row in rows], pa.int64(), column, self._wrong)
                block.values[at][begin:end] = array.fill_null(0).to_numpy(zero_copy_only=False)
                null = block.nulls[at]
                if null is None:
                    null = block.nulls[at] = np.zeros(len(ids), bool)
                null[begin:end] = array.is_null().to_numpy(zero_copy_only=False)
        self._odd_pages += len(block.odd)
        return ids

    def _from_sqlite(self, ids: Sequence[int]) -> list[tuple[Any, ...]]:
        return self._file.execute(self._page_sql, (min(ids), max(ids)))

    def _batch(self, blocks: Sequence[_Decoded]) -> pa.RecordBatch:
        rows = sum(block.rows for block in blocks)
        arrays = []
        for at in range(len(self._wanted.columns)):
            values = np.concatenate([block.values[at] for block in blocks])
            nulls = [block.nulls[at] for block in blocks]
            present = None
            if any(null is not None for null in nulls):
                null_flags = np.concatenate(
                    [
                        np.zeros(block.rows, bool) if null is None else null
                        for block, null in zip(blocks, nulls, strict=True)
                    ]
                )
                present = pa.py_buffer(np.packbits(~null_flags, bitorder="little"))
            arrays.append(pa.Array.from_buffers(pa.int64(), rows, [present, pa.py_buffer(values)]))
        return pa.record_batch(arrays, schema=self._wanted.schema)


def _listed(values: Ints, null: Flags | None) -> list[int | None]:
    listed: list[int | None] = values.tolist()
    return listed if null is None else [None if absent else value for value, absent in zip(listed, null, strict=True)]
