"""Integer columns of a table, decoded from its leaf pages with numpy.

SQLite steps through a table one value at a time; the records of nsys's large tables are short integers, so a thousand
rows can be decoded at once:

    cell:  payload length | row id | header length | one type per column | one value per column
           varint           varint   varint          1 byte each (0-9)     0, 1, 2, 3, 4, 6 or 8 bytes

Where every type up to the last wanted column is one byte, a value's place is a sum of widths, and eight widths are
summed by one multiplication. A page on which any cell is of another shape is named in `Rows.odd` and left to SQLite;
so is any table for which `refusal` has a reason. The format is that of SQLite's own description (database file
format, 1.6 and 2.1).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.ingest.sqlite_file import SqliteFile, Table
from tracelens.ingest.sqlite_pages import (
    LEAF,
    PADDING_BYTES,
    Bytes,
    Disagreement,
    Ints,
    Pages,
    cell_pointers,
    unsigned16,
)

Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

_MAX_COLUMNS = 32  # 31 values of 8 bytes: the largest sum of widths that fits into a byte
_ONES = np.uint64(0x0101010101010101)
_HIGH = np.uint64(0x8080808080808080)
_ONE, _THREE, _EIGHT, _WORD_BITS = np.uint64(1), np.uint64(3), np.uint64(8), np.uint64(64)
_SEVEN_BITS = np.uint64(0x7F)
_NOTHING: Ints = np.empty(0, np.int64)

# Serial type -> width in bytes; 0x80 marks the types that are not integers (real, text, blob, reserved) and the first
# byte of a longer varint.
_WIDTHS = bytes([0, 1, 2, 3, 4, 6, 8, 0x80, 0, 0]) + b"\x80" * 246


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
    """

    values: list[Ints]
    nulls: list[Flags | None]
    keys: Words
    page_of: Ints
    odd: Ints


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
    """Decodes wanted columns of a block of leaf pages.

    Args:
        pages: the file's pages.
        places: positions of the wanted columns in the record, from 0, each below 32.
    """

    def __init__(self, pages: Pages, places: Sequence[int]) -> None:
        """Prepare views of the block's buffer that reach any byte of it."""
        self._pages = pages
        self._places = list(places)
        self._last = max(places)
        self._word_count = self._last // 8 + 1
        buffer, length = pages.buffer, len(pages.buffer)
        self._words_at = np.ndarray((length - 7,), "<u8", buffer, strides=(1,))
        self._values_at = np.ndarray((length - 7,), ">i8", buffer, strides=(1,))
        types = 8 * self._word_count
        self._types_at = np.ndarray((length - types + 1,), np.dtype((np.void, types)), buffer, strides=(1,))
        wanted = np.zeros(types, np.uint8)
        wanted[: self._last + 1] = 0xFF
        self._wanted = wanted.view("<u8")

    def row_count(self, places: Ints) -> int:
        """How many rows the leaf pages that begin at `places` of the buffer say they hold."""
        return int(unsigned16(self._pages.buffer, places + 3).sum())

    def decode(self, places: Ints, into: Sequence[Ints] | None = None) -> Rows:
        """Rows of the leaf pages that begin at `places` of the buffer.

        Args:
            places: where in the buffer each page begins.
            into: per wanted column, an array of `row_count` numbers to fill; by default new ones are made.

        Raises:
            Disagreement: a page is no leaf, or a cell lies outside its page.
        """
        buffer, page_bytes = self._pages.buffer, self._pages.page_bytes
        if bool((buffer[places] != LEAF).any()):
            raise Disagreement("a leaf of a table's tree is no leaf")
        pointers, page_of = cell_pointers(self._pages, places, unsigned16(buffer, places + 3), 8)
        if len(pointers) == 0:
            return Rows(
                [_NOTHING] * len(self._places), [None] * len(self._places), _NOTHING.view("<u8"), page_of, _NOTHING
            )
        cells = places[page_of] + pointers

        # Two varints in one word: the lowest byte without a continuation bit ends the first, the next one the second.
        word = self._words_at[cells]
        ends = ~word & _HIGH
        later_ends = ends & (ends - _ONE)
        length_bits = np.bitwise_count(ends ^ (ends - _ONE))
        both_bits = np.bitwise_count(later_ends ^ (later_ends - _ONE))
        low = word & _SEVEN_BITS
        payload = np.where(length_bits == 8, low, (low << np.uint64(7)) | ((word >> _EIGHT) & _SEVEN_BITS)).astype(
            np.int64
        )
        keys = (word.byteswap() << length_bits) >> (_WORD_BITS - (both_bits - length_bits))
        prefix = both_bits >> 3

        headers = cells + prefix
        header_bytes = buffer[headers]
        types = self._types_at[headers + 1].view(np.uint8)
        widths = np.frombuffer(bytearray(memoryview(types)).translate(_WIDTHS), "<u8").reshape(-1, self._word_count)
        widths_of = widths.view(np.uint8).reshape(-1, 8 * self._word_count)
        before, this, bad = self._sums(widths)
        body = headers + header_bytes
        last_word, last_lane = divmod(self._last, 8)
        record = header_bytes.astype(np.int64) + before[last_word][last_lane::8] + widths_of[:, self._last]
        odd = (
            (later_ends == 0)
            | (length_bits > 16)
            | (payload > page_bytes - 35)
            | (pointers + prefix + payload > page_bytes)
            | (header_bytes >= 0x80)
            | (header_bytes < self._last + 2)
            | (record > payload)
            | ((header_bytes == self._last + 2) & (record != payload))
            | (bad != 0)
        )
        types = types.reshape(-1, 8 * self._word_count)
        values = list(into) if into is not None else [np.empty(len(cells), np.int64) for _ in self._places]
        nulls: list[Flags | None] = []
        for place, value in zip(self._places, values, strict=True):
            at, lane = divmod(place, 8)
            raw = self._values_at[body + before[at][lane::8]].astype(np.int64)
            np.right_shift(raw, this[at][lane::8], out=value)
            null = None
            no_bytes = widths_of[:, place] == 0  # null, or one of the constants 0 and 1
            if no_bytes.any():
                kind = types[:, place]
                value[no_bytes] = 0
                value[kind == 9] = 1
                missing = kind == 0
                null = missing if missing.any() else None
            nulls.append(null)
        return Rows(values, nulls, keys, page_of, np.unique(page_of[odd]) if odd.any() else _NOTHING)

    def _sums(self, widths: Words) -> tuple[list[Bytes], list[Bytes], Words]:
        """Per word of eight columns and byte lane: the sum of the widths before it, and 64 less its own bits.

        Also a number per row that is not zero where a type is no integer.
        """
        before: list[Bytes] = []
        shift: list[Bytes] = []
        bad = np.zeros(len(widths), np.uint64)
        carry = np.zeros(len(widths), np.uint64)
        for at in range(self._word_count):
            width = widths[:, at] & self._wanted[at]
            bad |= width & _HIGH
            # Multiplying by a one in every byte but the lowest sums, into each byte, all bytes below it.
            before.append((width * (_ONES << _EIGHT) + carry * _ONES).view(np.uint8))
            shift.append((np.uint64(0x4040404040404040) - width * _EIGHT).view(np.uint8))
            carry += (width * _ONES) >> np.uint64(56)
        return before, shift, bad
