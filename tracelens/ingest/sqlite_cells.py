"""Integer columns of a table, decoded from its leaf pages with numpy.

SQLite steps through a table one value at a time; the records of nsys's large tables are short integers, so thousands
of rows can be decoded at once:

    cell:  payload length | row id | header length | one type per column | one value per column
           varint           varint   varint          1 byte each (0-9)     0, 1, 2, 3, 4, 6 or 8 bytes

Where every type up to the last wanted column is one byte, equal types are an equal layout (`sqlite_layouts`). Columns
whose values repeat together from row to row are not even decoded one by one: their bytes, everything else blanked
out, are numbered as one, and only the distinct ones become values (`sqlite_forms`).

A page on which any cell is of another shape is named in `Rows.odd` and left to SQLite; so is any table for which
`refusal` has a reason. The format is that of SQLite's own description (database file format, 1.6 and 2.1).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.ingest.sqlite_file import SqliteFile, Table
from tracelens.ingest.sqlite_forms import FormBytes, FormsOfBlock
from tracelens.ingest.sqlite_layouts import Flags, Layouts
from tracelens.ingest.sqlite_pages import (
    LEAF,
    PADDING_BYTES,
    Disagreement,
    Ints,
    Pages,
    cell_pointers,
    unsigned16,
)

Words = npt.NDArray[np.uint64]

_MAX_COLUMNS = 32  # 32 values of 8 bytes end within the padding behind a page
_HIGH = np.uint64(0x8080808080808080)
_ONE, _EIGHT, _WORD_BITS = np.uint64(1), np.uint64(8), np.uint64(64)
_SEVEN_BITS = np.uint64(0x7F)
_NOTHING: Ints = np.empty(0, np.int64)


def refusal(file: SqliteFile, table: Table, columns: Sequence[str]) -> str:
    """Why a table's pages are not decoded here; empty when they can be.

    Looks at the file's header and the table's declaration only; the pages themselves may still be `Unsuited`.
    """
    header = file.header
    if header[18:20] != b"\x01\x01":
        return "the file uses a write-ahead log"
    if header[20]:
        return "its pages have reserved bytes"
    if header[21:24] != bytes([64, 32, 32]):
        return "unusual payload fractions"
    if struct.unpack(">I", header[44:48])[0] not in (1, 2, 3, 4) or struct.unpack(">I", header[56:60])[0] not in (
        1,
        2,
        3,
    ):
        return "an unknown schema format"
    if not table.plain:
        return "the table has no row ids, or generated columns"
    places = positions(table, columns)
    if not places:
        return "no column is wanted"
    if max(places) >= _MAX_COLUMNS:
        return f"a wanted column lies behind column {_MAX_COLUMNS}"
    if table.row_key is not None and any(column.lower() == table.row_key.lower() for column in columns):
        return "a wanted column is the row id"
    declared = list(table.columns.values())[: max(places) + 1]
    if any(not _holds_integers(name) for name in declared):
        return "a column of text or real numbers lies before a wanted one"
    return ""


def positions(table: Table, columns: Sequence[str]) -> list[int]:
    """Where in the record, from 0, each column stands."""
    order = {name.lower(): place for place, name in enumerate(table.columns)}
    return [order[column.lower()] for column in columns]


def _holds_integers(declared: str) -> bool:
    """Whether SQLite stores integers as they are in a column declared so (its rules of affinity, 3.1)."""
    name = declared.upper()
    if "INT" in name:
        return True
    return not any(part in name for part in ("CHAR", "CLOB", "TEXT", "BLOB", "REAL", "FLOA", "DOUB"))


@dataclass(frozen=True)
class Rows:
    """The rows of a block of leaf pages, in order.

    Attributes:
        values: one array per wanted column; of no meaning in rows whose page is `odd`.
        nulls: one array per wanted column, true where the value is null; null where no value is.
        keys: one number per row that ascends as the row ids do (see `row_ids`).
        page_of: per row, the number (from 0) of its page in the block.
        odd: pages (numbers from 0) that hold a row of another shape, which SQLite must read.
        forms: the columns that repeat together, if any are wanted; of no meaning where the page is `odd`.
    """

    values: list[Ints]
    nulls: list[Flags | None]
    keys: Words
    page_of: Ints
    odd: Ints
    forms: FormsOfBlock | None


def row_ids(keys: Words) -> Ints:
    """Row ids from `Rows.keys`: the bytes of the varint, as they stand, without their continuation bits."""
    ids = np.zeros(len(keys), np.uint64)
    for byte in range(8):
        ids |= ((keys >> np.uint64(8 * byte)) & _SEVEN_BITS) << np.uint64(7 * byte)
    return ids.astype(np.int64)


def cell_row_ids(pages: Pages, place: int) -> list[int]:
    """Row ids of one leaf page in the buffer, cell by cell, whatever its rows are made of.

    Raises:
        Disagreement: a cell lies outside the page.
    """
    pointers, _ = cell_pointers(pages, np.array([place]), unsigned16(pages.buffer, np.array([place + 3])), 8)
    page = pages.buffer[place : place + pages.page_bytes + PADDING_BYTES].tobytes()
    ids = []
    for pointer in pointers.tolist():
        _, behind = _varint(page, pointer)
        value, _ = _varint(page, behind)
        ids.append(value - (1 << 64) if value >= 1 << 63 else value)
    return ids


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """The varint at `at`, unsigned, and where the next thing begins."""
    value = 0
    for byte in page[at : at + 8]:
        value = (value << 7) | (byte & 0x7F)
        at += 1
        if byte < 0x80:
            return value, at
    return (value << 8) | page[at], at + 1


class Decoder:
    """Decodes wanted columns of blocks of leaf pages.

    Args:
        pages: the file's pages.
        places: positions of the wanted columns in the record, from 0, each below 32.
        repeated: positions of columns whose values repeat together, each below 32.
    """

    def __init__(self, pages: Pages, places: Sequence[int], repeated: Sequence[int] = ()) -> None:
        """Prepare views of the block's buffer that reach any byte of it."""
        self._pages = pages
        self._own = len(places)
        self._last = max(*places, *repeated, -1)
        self.layouts = Layouts([*places, *repeated])
        self.forms = FormBytes(pages.buffer, self.layouts, self._own) if repeated else None
        buffer, length = pages.buffer, len(pages.buffer)
        self._words_at = np.ndarray((length - 7,), "<u8", buffer, strides=(1,))
        self._values_at = np.ndarray((length - 7,), "<i8", buffer, strides=(1,))
        types = 8 * (self._last // 8 + 1)
        self._types_at = np.ndarray((length - types + 1,), np.dtype((np.void, types)), buffer, strides=(1,))
        wanted = np.zeros(types, np.uint8)
        wanted[: self._last + 1] = 0xFF
        self._wanted = None if wanted.all() else wanted.view("<u8")

    def decode(self, places: Ints) -> Rows:
        """Rows of the leaf pages that begin at `places` of the buffer.

        Raises:
            Disagreement: a page is no leaf, or a cell lies outside its page.
        """
        buffer, page_bytes = self._pages.buffer, self._pages.page_bytes
        if bool((buffer[places] != LEAF).any()):
            raise Disagreement("a leaf of a table's tree is no leaf")
        pointers, page_of = cell_pointers(self._pages, places, unsigned16(buffer, places + 3), 8)
        if len(pointers) == 0:
            empty = [_NOTHING] * self._own
            return Rows(empty, [None] * self._own, _NOTHING.view("<u8"), page_of, _NOTHING, None)
        cells = places[page_of] + pointers

        # Two varints in one word: the lowest byte without a continuation bit ends the first, the next one the second.
        word = self._words_at[cells]
        ends = ~word
        ends &= _HIGH
        less = ends - _ONE
        later_ends = ends & less
        ends ^= less
        length_bits = np.bitwise_count(ends)
        np.subtract(later_ends, _ONE, out=less)
        less ^= later_ends
        both_bits = np.bitwise_count(less)
        payload = word & _SEVEN_BITS
        if int(length_bits.max()) > 8:
            two_bytes = (payload << np.uint64(7)) | ((word >> _EIGHT) & _SEVEN_BITS)
            payload = np.where(length_bits == 8, payload, two_bytes)
        keys = word.byteswap()
        keys <<= length_bits
        keys >>= _WORD_BITS - (both_bits - length_bits)
        prefix = both_bits >> 3

        headers = cells
        headers += prefix
        header_bytes = buffer[headers]
        types = self._types_at[headers + 1].view("<u8").reshape(len(headers), -1)
        if self._wanted is not None:
            types &= self._wanted
        spread = self.layouts.spread(types.view(np.uint8))
        record = spread.rows(self.layouts.record_bytes) + header_bytes
        odd = (
            (later_ends == 0)
            | (length_bits > 16)
            | (payload > page_bytes - 35)
            | (pointers + prefix + payload.view(np.int64) > page_bytes)
            | (header_bytes >= 0x80)
            | (header_bytes < self._last + 2)
            | (record > payload.view(np.int64))
            | ((header_bytes == self._last + 2) & (record != payload.view(np.int64)))
            | ~spread.rows(self.layouts.sound)
        )
        body = headers
        body += header_bytes
        columns = [self.layouts.values(self._values_at, place, body, spread) for place in range(self._own)]
        forms = self.forms.number(body, spread) if self.forms is not None else None
        return Rows(
            [values for values, _ in columns],
            [null for _, null in columns],
            keys,
            page_of,
            np.unique(page_of[odd]) if odd.any() else _NOTHING,
            forms,
        )
