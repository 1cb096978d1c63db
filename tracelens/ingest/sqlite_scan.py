"""A whole table by its pages, with SQLite as witness.

Before the first row is given, pages spread over the table are decoded and compared with what SQLite reads there. While
the table is read, pages with rows of another shape are read by SQLite, one page at a time, and SQLite counts the
rows in the background; the counts must be equal at the end.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa

from tracelens.errors import DamagedError
from tracelens.ingest.sqlite_cells import Decoder, Flags, Rows, cell_row_ids, positions, row_ids
from tracelens.ingest.sqlite_file import SqliteFile, Table, connect, page_size_of, quoted, select
from tracelens.ingest.sqlite_pages import Disagreement, Ints, Pages, leaf_pages
from tracelens.ingest.sqlite_rows import Place, Unsuited, Wanted, typed
from tracelens.units import plural

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


class _Batch:
    """Rows on their way into one Arrow batch; blocks are decoded into the batch's own memory."""

    def __init__(self, columns: int, capacity: int) -> None:
        self.rows = 0
        # Arrow's allocator keeps memory for the next batch; numpy's gives it back, and each page faults in again.
        self._buffers = [pa.allocate_buffer(8 * capacity) for _ in range(columns)]
        self._values: list[Ints] = [np.frombuffer(buffer, np.int64) for buffer in self._buffers]
        self._nulls: list[list[tuple[int, Flags]]] = [[] for _ in range(columns)]

    def room(self, rows: int) -> list[Ints] | None:
        """Where the next rows go, one slice per column; null when they do not fit any more."""
        slices = [values[self.rows : self.rows + rows] for values in self._values]
        return slices if len(slices[0]) == rows else None

    def filled(self, block: Rows) -> None:
        """The slices that `room` gave hold a block's values now."""
        for column, null in zip(self._nulls, block.nulls, strict=True):
            if null is not None:
                column.append((self.rows, null))
        self.rows += len(block.keys)

    def finish(self, schema: pa.Schema) -> pa.RecordBatch:
        """The batch; nothing is copied, so no more rows may be added."""
        arrays = []
        for buffer, nulls in zip(self._buffers, self._nulls, strict=True):
            present = None
            if nulls:
                absent = np.zeros(self.rows, bool)
                for begin, null in nulls:
                    absent[begin : begin + len(null)] = null
                present = pa.py_buffer(np.packbits(~absent, bitorder="little"))
            arrays.append(pa.Array.from_buffers(pa.int64(), self.rows, [present, buffer]))
        return pa.record_batch(arrays, schema=schema)


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
            found = pages_done = 0
            batch = self._new_batch(0)
            for page_count, places in self._pages.read(leaves):
                rows = self._decoder.row_count(places)
                into = batch.room(rows)
                if into is None:
                    if batch.rows:
                        found += batch.rows
                        yield batch.finish(self._wanted.schema)
                    if self._odd_pages > max(_ODD_PAGES_ALLOWED, pages_done // 20):
                        raise Unsuited("many rows are not made of integers up to the last wanted column")
                    batch = self._new_batch(rows)
                    into = batch.room(rows)
                batch.filled(self._block(places, into, place))
                pages_done += page_count
            if batch.rows:
                found += batch.rows
                yield batch.finish(self._wanted.schema)
            if counted.result() != found:
                raise ReadersDisagreeError(
                    f"{self._file.shown}: {plural(found, 'row')} in the pages of {self._wanted.table.name}, where SQLite"
                    f" counts {counted.result():,}",
                    "try --loader sqlite, or export it again",
                )
        finally:
            counted.close()

    def _new_batch(self, at_least: int) -> _Batch:
        return _Batch(len(self._wanted.columns), max(at_least, self._wanted.batch_rows))

    def _block(self, places: Ints, into: Sequence[Ints] | None, place: Place) -> Rows:
        try:
            block = self._decoder.decode(places, into)
            if len(block.odd):
                place.advance(self._repair(block, places), self._file)
            elif len(block.keys):
                first, last = row_ids(block.keys[[0, -1]]).tolist()
                if bool((block.keys[1:] <= block.keys[:-1]).any()):
                    raise Disagreement("rows of a table are out of order or occur twice")
                place.advance([first, last] if last > first else [first], self._file)
        except Disagreement as error:
            raise self._file.damaged(str(error)) from error
        return block

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


def _listed(values: Ints, null: Flags | None) -> list[int | None]:
    listed: list[int | None] = values.tolist()
    return listed if null is None else [None if absent else value for value, absent in zip(listed, null, strict=True)]
