"""Integer columns of a table, decoded from the pages of its b-tree with numpy.

SQLite steps through a table one value at a time; the records of nsys's large tables are all integers, so a thousand
pages can be decoded at once:

    table ── root page ── interior pages ── leaf pages         walked once, level by level (`leaf_pages`)
    leaf page:  header | cell pointers | ... free ... | cells
    cell:       payload length | row id | header length | one type per column | one value per column
                varint           varint   varint          1 byte each (0-9)     0, 1, 2, 3, 4, 6 or 8 bytes

Where every type up to the last wanted column is one byte, a value's place is a sum of widths, and eight widths are
summed by one multiplication. A page on which any cell is of another shape is left to SQLite (`Leaf rows`), so is any
table for which `refusal` gives a reason. The format is that of SQLite's own description (database file format, 1.5, 1.6
and 2.1).

Nothing is believed: page numbers, cell pointers and lengths are checked against their page, row ids must ascend over
the whole table, and `Disagreement` is raised where they do not.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.ingest.sqlite_file import SqliteFile, Table
from tracelens.ingest.sqlite_rows import Unsuited

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_LEAF, _INTERIOR = 0x0D, 0x05
_MAX_DEPTH = 20  # SQLite's own limit
_MAX_COLUMNS = 32  # 31 values of 8 bytes: the largest sum of widths that fits into a byte
_BLOCK_BYTES = 1 << 20
_PADDING_BYTES = 1024  # how far behind a page a broken cell can point: 4 + 9 + 255 + 255 + 8 bytes, generously
_GAP_BYTES = 1 << 14  # pages of other tables that are read along rather than skipped by another system call
_LOCK_BYTE = 0x40000000  # the page that holds this byte is never part of a tree

_ONES = np.uint64(0x0101010101010101)
_HIGH = np.uint64(0x8080808080808080)
_ONE, _THREE, _EIGHT, _WORD_BITS = np.uint64(1), np.uint64(3), np.uint64(8), np.uint64(64)
_SEVEN_BITS = np.uint64(0x7F)

# Serial type -> width in bytes; 0x80 marks the types that are not integers (real, text, blob, reserved) and the first
# byte of a longer varint.
_WIDTHS = bytes([0, 1, 2, 3, 4, 6, 8, 0x80, 0, 0]) + b"\x80" * 246


class Disagreement(Exception):  # noqa: N818  not an error of the user's
    """The pages contradict themselves, or what SQLite says of them."""


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
    if places and max(places) >= _MAX_COLUMNS:
        return f"a wanted column lies behind column {_MAX_COLUMNS}"
    if table.row_key is not None and any(column.lower() == table.row_key.lower() for column in columns):
        return "a wanted column is the row id"
    declared = list(table.columns.values())[: max(places, default=-1) + 1]
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


class Pages:
    """Pages of one file, read a block at a time into one buffer.

    Args:
        descriptor: the open file.
        page_bytes: page size.
        page_count: how many whole pages the file holds.
    """

    def __init__(self, descriptor: int, page_bytes: int, page_count: int) -> None:
        """Make the buffer; nothing is read yet."""
        self._descriptor = descriptor
        self.page_bytes = page_bytes
        self.page_count = page_count
        self.block_pages = _BLOCK_BYTES // page_bytes
        self.buffer: Bytes = np.zeros(2 * _BLOCK_BYTES + _PADDING_BYTES, np.uint8)

    def read(self, numbers: Ints) -> Iterator[tuple[int, Ints]]:
        """Read pages in the order given, as many at a time as fit.

        Yields:
            how many of the pages are in the buffer now, and where each begins.
        """
        page_bytes = self.page_bytes
        capacity = (len(self.buffer) - _PADDING_BYTES) // page_bytes
        view = memoryview(self.buffer)  # type: ignore[arg-type]
        at = 0
        while at < len(numbers):
            some = numbers[at : at + self.block_pages]
            # A new run begins where the next page lies before the last one, or too far behind it.
            step = np.diff(some)
            breaks = np.flatnonzero((step <= 0) | ((step - 1) * page_bytes > _GAP_BYTES)) + 1
            first = np.concatenate([[0], breaks])
            last = np.concatenate([breaks, [len(some)]])
            lengths = some[last - 1] - some[first] + 1
            ends = np.cumsum(lengths)
            taken = int(np.searchsorted(ends, capacity, "right"))
            if taken == 0:  # gaps alone do not fit: take the pages of the run that do
                kept = int(np.searchsorted(some[: last[0]] - some[0], capacity))
                last[0], lengths[0], ends[0], taken = (
                    kept,
                    some[kept - 1] - some[0] + 1,
                    some[kept - 1] - some[0] + 1,
                    1,
                )
            count = int(last[taken - 1])
            starts = ends[:taken] - lengths[:taken]
            for run in range(taken):
                begin, size = int(starts[run]) * page_bytes, int(lengths[run]) * page_bytes
                self._fill(view[begin : begin + size], (int(some[first[run]]) - 1) * page_bytes)
            run_of = np.repeat(np.arange(taken), last[:taken] - first[:taken])
            places = (some[:count] - some[first[run_of]] + starts[run_of]) * page_bytes
            yield count, places.astype(np.int64)
            at += count

    def _fill(self, target: memoryview, offset: int) -> None:
        while len(target):
            got = os.preadv(self._descriptor, [target], offset)
            if got <= 0:
                raise Disagreement("the file ends before its last page")
            target, offset = target[got:], offset + got


def leaf_pages(pages: Pages, root_page: int) -> Ints:
    """Page numbers of a table's leaves, in the order of the row ids.

    Raises:
        Unsuited: the tree is not one of row ids.
        Disagreement: it is no tree: a page lies outside the file, occurs twice, or is of the wrong kind.
    """
    level = np.array([root_page], np.int64)
    seen = [level]
    for _ in range(_MAX_DEPTH):
        _check_numbers(pages, level)
        kind = _kind(pages, int(level[0]))
        if kind == _LEAF:
            every = np.concatenate(seen)
            if len(np.unique(every)) != len(every):
                raise Disagreement("a page occurs twice in a table")
            return level
        if kind != _INTERIOR:
            raise Unsuited("the table is not stored by row id")
        level = np.concatenate([_children(pages, places) for _, places in pages.read(level)])
        if sum(map(len, seen)) + len(level) > pages.page_count:
            raise Disagreement("a table has more pages than the file")
        seen.append(level)
    raise Disagreement("a table's tree is too deep")


def _check_numbers(pages: Pages, numbers: Ints) -> None:
    lock_page = _LOCK_BYTE // pages.page_bytes + 1
    if numbers.min() < 2 or numbers.max() > pages.page_count or bool((numbers == lock_page).any()):
        raise Disagreement("a page number lies outside the file")


def _kind(pages: Pages, number: int) -> int:
    for _, places in pages.read(np.array([number], np.int64)):
        return int(pages.buffer[places[0]])
    raise Disagreement("a page cannot be read")


def _children(pages: Pages, places: Ints) -> Ints:
    """Child pages of the interior pages at `places` of the buffer, in order."""
    buffer = pages.buffer
    if bool((buffer[places] != _INTERIOR).any()):
        raise Disagreement("the branches of a table's tree differ in length")
    counts = _unsigned16(buffer, places + 3)
    pointers, owner = _cell_pointers(pages, places, counts, 12)
    last = _unsigned32(buffer, places + 8)
    children = np.empty(len(pointers) + len(places), np.int64)
    ends = np.cumsum(counts + 1) - 1
    inner = np.ones(len(children), bool)
    inner[ends] = False
    children[inner] = _unsigned32(buffer, places[owner] + pointers)
    children[ends] = last
    return children


def _unsigned16(buffer: Bytes, at: Ints) -> Ints:
    return (buffer[at].astype(np.int64) << 8) | buffer[at + 1]


def _unsigned32(buffer: Bytes, at: Ints) -> Ints:
    return (_unsigned16(buffer, at) << 16) | _unsigned16(buffer, at + 2)


def _cell_pointers(pages: Pages, places: Ints, counts: Ints, header_bytes: int) -> tuple[Ints, Ints]:
    """Where in its page each cell of the pages at `places` begins, and the number (from 0) of that page.

    Raises:
        Disagreement: a page has more cells than fit, or a cell lies outside its page's content.
    """
    page_bytes = pages.page_bytes
    if bool((header_bytes + 2 * counts > page_bytes).any()):
        raise Disagreement("a page has more cells than fit")
    owner = np.repeat(np.arange(len(places)), counts)
    begins = (places + header_bytes) // 2 - (np.cumsum(counts) - counts)
    pointers = pages.buffer.view(">u2")[begins[owner] + np.arange(len(owner))].astype(np.int64)
    if bool((pointers < (header_bytes + 2 * counts)[owner]).any()) or bool((pointers > page_bytes - 4).any()):
        raise Disagreement("a cell lies outside its page")
    return pointers, owner


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
    pointers, _ = _cell_pointers(pages, np.array([place]), _unsigned16(pages.buffer, np.array([place + 3])), 8)
    page = pages.buffer[place : place + pages.page_bytes + _PADDING_BYTES].tobytes()
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

    def decode(self, places: Ints) -> Rows:
        """Rows of the leaf pages that begin at `places` of the buffer.

        Raises:
            Disagreement: a page is no leaf, or a cell lies outside its page.
        """
        buffer, page_bytes = self._pages.buffer, self._pages.page_bytes
        if bool((buffer[places] != _LEAF).any()):
            raise Disagreement("a leaf of a table's tree is no leaf")
        pointers, page_of = _cell_pointers(self._pages, places, _unsigned16(buffer, places + 3), 8)
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
        before, this, bad = self._sums(widths)
        body = headers + header_bytes
        last_word, last_lane = divmod(self._last, 8)
        record = (
            header_bytes.astype(np.int64)
            + before[last_word][last_lane::8]
            + (widths.view(np.uint8).reshape(-1, 8 * self._word_count)[:, self._last])
        )
        odd = (
            (later_ends == 0)
            | (length_bits > 16)
            | (payload > page_bytes - 35)
            | (pointers + prefix + payload > page_bytes)
            | (header_bytes >= 0x80)
            | (header_bytes < self._last + 2)
            | (record > payload)
            | (bad != 0)
        )
        types = types.reshape(-1, 8 * self._word_count)
        values: list[Ints] = []
        nulls: list[Flags | None] = []
        for place in self._places:
            at, lane = divmod(place, 8)
            raw = self._values_at[body + before[at][lane::8]].astype(np.int64)
            value = raw >> this[at][lane::8]
            null = None
            kind = types[:, place]
            narrow = (kind == 0) | (kind >= 8)
            if narrow.any():
                value[narrow] = 0
                value[kind == 9] = 1
                missing = kind == 0
                null = missing if missing.any() else None
            values.append(value)
            nulls.append(null)
        return Rows(values, nulls, keys, page_of, np.unique(page_of[odd]) if odd.any() else np.empty(0, np.int64))

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
