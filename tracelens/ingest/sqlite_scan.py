"""A whole table by its pages, with SQLite as witness.

Before the first row is given, pages spread over the table are decoded and compared with what SQLite reads there. While
the table is read, pages with rows of another shape are read by SQLite, one page at a time, and SQLite counts the
rows in the background; the counts must be equal at the end.

A table is cut into pieces, each a batch; two threads decode them, and they are given in the order of the table.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock, Thread
from typing import Any

import numpy as np
import pyarrow as pa

from tracelens.errors import DamagedError
from tracelens.ingest.ahead import in_order
from tracelens.ingest.forms import only_used, with_forms
from tracelens.ingest.sqlite_cells import Decoder, Rows, cell_row_ids, positions, row_ids
from tracelens.ingest.sqlite_file import SqliteFile, Table, connect, page_size_of, quoted, select
from tracelens.ingest.sqlite_layouts import Flags
from tracelens.ingest.sqlite_pages import Disagreement, Ints, Pages, leaf_pages
from tracelens.ingest.sqlite_rows import Place, Unsuited, Wanted, typed
from tracelens.units import plural

_SAMPLED_PAGES = 48
_ODD_PAGES_ALLOWED = 64  # pages that SQLite may read one by one before it reads the rest of the table in one go
_THREADS = 2
_KEPT_BYTES = 24 << 20  # memory in use for a piece, generously


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
        scan = _Scan(file, wanted, descriptor)
        try:
            leaves, page_rows = scan.leaves()
        except Disagreement as error:  # nothing was given yet: let SQLite say what it makes of it
            raise Unsuited(str(error)) from error
        yield from scan.batches(leaves, max(1, round(wanted.batch_rows / max(page_rows, 1))), place, wrong)
    finally:
        os.close(descriptor)


@dataclass
class _Piece:
    """Some pages of the table, decoded.

    Attributes:
        batch: their rows; None where there are none.
        row_ids: the first and the last; one where they are one row.
        odd_pages: how many of the pages SQLite read.
        wrong: column -> values that are no integers.
    """

    batch: pa.RecordBatch | None = None
    row_ids: list[int] = field(default_factory=list)
    odd_pages: int = 0
    wrong: dict[str, int] = field(default_factory=dict)


class _Scan:
    """One pass over a table's leaf pages."""

    def __init__(self, file: SqliteFile, wanted: Wanted, descriptor: int) -> None:
        self._file = file
        self._wanted = wanted
        page_bytes = page_size_of(file.header)
        self._new_pages = partial(Pages, descriptor, page_bytes, file.size_bytes // page_bytes)
        self._idle: list[Pages] = []  # of no thread at present
        self._own = positions(wanted.table, wanted.columns)
        self._repeated = positions(wanted.table, wanted.repeated)
        names = [wanted.table.columns.written(column) for column in (*wanted.columns, *wanted.repeated)]
        self._page_sql = select(["rowid", *names], wanted.table.name, "rowid BETWEEN ? AND ?")
        self._asking = Lock()

    def leaves(self) -> tuple[Ints, float]:
        """The table's leaf pages, some of them compared with what SQLite reads; rows of a page on average.

        Raises:
            Unsuited: most of them hold rows of another shape.
            Disagreement: SQLite reads other rows.
        """
        pages = self._new_pages()
        leaves = leaf_pages(pages, self._wanted.table.root_page)
        page_rows = self._check_samples(leaves, pages)
        self._idle.append(pages)
        return leaves, page_rows

    def _check_samples(self, leaves: Ints, pages: Pages) -> float:
        """Compare pages spread evenly over the table, first and last among them, with what SQLite reads."""
        chosen = np.unique(np.linspace(0, len(leaves) - 1, _SAMPLED_PAGES).astype(np.int64))
        odd_pages = rows = 0
        decoder = Decoder(pages, self._own, self._repeated)
        for page_count, places in pages.read(leaves[chosen]):
            block = decoder.decode(places)
            columns = list(zip(block.values, block.nulls, strict=True))
            if decoder.forms is not None and block.forms is not None:
                codes, forms = decoder.forms.together([block.forms])
                columns += [(values[codes], None if null is None else null[codes]) for values, null in forms]
            rows += len(block.keys)
            odd_pages += len(block.odd)
            for page in sorted(set(range(page_count)) - set(block.odd.tolist())):
                begin, end = np.searchsorted(block.page_of, [page, page + 1])
                ids = row_ids(block.keys[begin:end]).tolist()
                decoded = [
                    _listed(values[begin:end], None if null is None else null[begin:end]) for values, null in columns
                ]
                if ids and list(zip(ids, *decoded, strict=True)) != self._from_sqlite(ids):
                    raise Disagreement("SQLite reads other rows from the same pages")
        if 4 * odd_pages > len(chosen):
            raise Unsuited("many rows are not made of integers up to the last wanted column")
        return rows / len(chosen)

    def batches(self, leaves: Ints, piece_pages: int, place: Place, wrong: dict[str, int]) -> Iterator[pa.RecordBatch]:
        """Every row of the leaves; `place` follows, and `wrong` counts what is no integer.

        Raises:
            Unsuited: SQLite had to read too many pages.
            DamagedError: a page contradicts itself, rows are out of order, or SQLite counts other rows.
        """
        counted = RowCount(self._file, self._wanted.table)
        pieces = (leaves[begin : begin + piece_pages] for begin in range(0, len(leaves), piece_pages))
        found = pages_done = odd_pages = 0
        _keep_freed_memory()
        try:
            for piece in in_order(self._piece, pieces, _THREADS):
                if odd_pages > max(_ODD_PAGES_ALLOWED, pages_done // 20):
                    raise Unsuited("many rows are not made of integers up to the last wanted column")
                place.advance(piece.row_ids, self._file)
                pages_done += piece_pages
                odd_pages += piece.odd_pages
                for column, count in piece.wrong.items():
                    wrong[column] = wrong.get(column, 0) + count
                if piece.batch is not None:
                    found += piece.batch.num_rows
                    yield piece.batch
            if counted.result() != found:
                raise ReadersDisagreeError(
                    f"{self._file.shown}: {plural(found, 'row')} in the pages of {self._wanted.table.name}, where SQLite"
                    f" counts {counted.result():,}",
                    "try --loader sqlite, or export it again",
                )
        finally:
            counted.close()

    def _piece(self, leaves: Ints) -> _Piece:
        """Decodes some pages; several threads do so at once."""
        piece, place = _Piece(), Place()
        blocks: list[Rows] = []
        repairs: list[tuple[int, pa.RecordBatch]] = []  # (first row, rows) of each page that SQLite read
        rows = 0
        pages = self._take_pages()
        decoder = Decoder(pages, self._own, self._repeated)
        try:
            for _, places in pages.read(leaves):
                block = decoder.decode(places)
                if not len(block.keys):
                    continue
                ids = row_ids(block.keys[[0, -1]])
                if len(block.odd):
                    ids = row_ids(block.keys)
                    for page in block.odd.tolist():
                        begin, end = np.searchsorted(block.page_of, [page, page + 1])
                        ids[begin:end], page_rows = self._odd_page(pages, int(places[page]), piece)
                        repairs.append((rows + begin, page_rows))
                elif bool((block.keys[1:] <= block.keys[:-1]).any()):
                    raise Disagreement("rows of a table are out of order or occur twice")
                elif len(block.keys) == 1:
                    ids = ids[:1]
                place.advance(ids, self._file)
                piece.row_ids = [*(piece.row_ids[:1] or ids[:1].tolist()), int(ids[-1])]
                blocks.append(block)
                rows += len(block.keys)
        except Disagreement as error:
            raise self._file.damaged(str(error)) from error
        finally:
            self._idle.append(pages)
        if blocks:
            piece.row_ids = sorted(set(piece.row_ids))
            piece.batch = self._joined(decoder, blocks, rows, repairs)
        return piece

    def _take_pages(self) -> Pages:
        """A buffer of pages that no other thread uses."""
        try:
            return self._idle.pop()  # asking first whether one is there would leave time for another to take it
        except IndexError:
            return self._new_pages()

    def _odd_page(self, pages: Pages, place: int, piece: _Piece) -> tuple[list[int], pa.RecordBatch]:
        """Lets SQLite read one page: its row ids, and its rows."""
        ids = cell_row_ids(pages, place)
        rows = self._from_sqlite(ids)
        if [row[0] for row in rows] != ids:
            raise Disagreement("SQLite finds other rows on a page")
        piece.odd_pages += 1
        names = (*self._wanted.columns, *self._wanted.repeated)
        values = list(zip(*rows, strict=True))[1:]
        arrays = [typed(column, pa.int64(), name, piece.wrong) for column, name in zip(values, names, strict=True)]
        return ids, pa.RecordBatch.from_arrays(arrays, [str(number) for number in range(len(names))])

    def _from_sqlite(self, ids: Sequence[int]) -> list[tuple[Any, ...]]:
        with self._asking:
            return self._file.execute(self._page_sql, (min(ids), max(ids)))

    def _joined(
        self, decoder: Decoder, blocks: list[Rows], rows: int, repairs: list[tuple[int, pa.RecordBatch]]
    ) -> pa.RecordBatch:
        """The rows of all blocks as one batch, those that SQLite read in their places."""
        arrays = []
        for number in range(len(self._own)):
            # Arrow's allocator keeps memory for the next batch; numpy's gives it back, and each page faults in again.
            buffer = pa.allocate_buffer(8 * rows)
            values = np.frombuffer(buffer, np.int64)
            np.concatenate([block.values[number] for block in blocks], out=values)
            absent = None
            if repairs or any(block.nulls[number] is not None for block in blocks):
                absent = np.concatenate([_flags(block.nulls[number], len(block.keys)) for block in blocks])
                for begin, read in repairs:
                    array = read.column(number)
                    values[begin : begin + len(array)] = array.fill_null(0).to_numpy(zero_copy_only=False)
                    absent[begin : begin + len(array)] = array.is_null().to_numpy(zero_copy_only=False)
            present = None if absent is None else pa.py_buffer(np.packbits(~absent, bitorder="little"))
            arrays.append(pa.Array.from_buffers(pa.int64(), rows, [present, buffer]))
        if decoder.forms is None:
            return pa.RecordBatch.from_arrays(arrays, schema=self._wanted.schema)
        codes, columns = decoder.forms.together([block.forms for block in blocks if block.forms is not None])
        forms = [pa.array(values, mask=absent) for values, absent in columns]
        for begin, read in repairs:
            codes[begin : begin + read.num_rows] = len(forms[0]) + np.arange(read.num_rows)
            mine = read.columns[len(self._own) :]
            forms = [pa.concat_arrays([one, other]) for one, other in zip(forms, mine, strict=True)]
        if repairs:
            codes, forms = only_used(codes, forms)
        return with_forms(arrays, codes, forms, (*self._wanted.columns, *self._wanted.repeated))


def _keep_freed_memory() -> None:
    """Has the C library keep what a block frees for the next one, where it would give it back and fault it in again.

    glibc keeps as much as the largest piece of memory that was ever freed; this one is not even touched.
    """
    np.empty(_KEPT_BYTES, np.uint8)


def _flags(null: Flags | None, count: int) -> Flags:
    return np.zeros(count, bool) if null is None else null


def _listed(values: Ints, null: Flags | None) -> list[int | None]:
    listed: list[int | None] = values.tolist()
    return listed if null is None else [None if absent else value for value, absent in zip(listed, null, strict=True)]
