"""Pages of a SQLite file, read many at a time, and the leaves of a table's tree.

    table ── root page ── interior pages ── leaf pages         walked once, level by level
    page:  header | cell pointers | ... free ... | cells

Nothing in the file is believed: page numbers and cell pointers are checked, and `Disagreement` is raised where they
cannot be. The format is that of SQLite's own description (database file format, 1.5 and 1.6).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tracelens.ingest.sqlite_rows import Unsuited

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

LEAF = 0x0D
_INTERIOR = 0x05
_MAX_DEPTH = 20  # SQLite's own limit
_BLOCK_BYTES = 1 << 21  # fewer calls per row, and still within the processor's last cache
PADDING_BYTES = 1024  # how far behind a page a broken cell can point: 4 + 9 + 255 + 255 + 8 bytes, generously
_GAP_BYTES = 1 << 14  # pages of other tables that are read along rather than skipped by another system call
_LOCK_BYTE = 0x40000000  # the page that holds this byte is never part of a tree


class Disagreement(Exception):  # noqa: N818  not an error of the user's
    """The pages contradict themselves, or what SQLite says of them."""


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
        self.buffer: Bytes = np.zeros(2 * _BLOCK_BYTES + PADDING_BYTES, np.uint8)

    def read(self, numbers: Ints) -> Iterator[tuple[int, Ints]]:
        """Read pages in the order given, as many at a time as fit.

        Yields:
            how many of the pages are in the buffer now, and where each begins.
        """
        page_bytes = self.page_bytes
        capacity = (len(self.buffer) - PADDING_BYTES) // page_bytes
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
        if kind == LEAF:
            if np.bincount(np.concatenate(seen)).max() > 1:
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
    counts = unsigned16(buffer, places + 3)
    pointers, owner = cell_pointers(pages, places, counts, 12)
    last = _unsigned32(buffer, places + 8)
    children = np.empty(len(pointers) + len(places), np.int64)
    ends = np.cumsum(counts + 1) - 1
    inner = np.ones(len(children), bool)
    inner[ends] = False
    children[inner] = _unsigned32(buffer, places[owner] + pointers)
    children[ends] = last
    return children


def unsigned16(buffer: Bytes, at: Ints) -> Ints:
    """Numbers of two bytes, the high one first, that begin at `at`."""
    return (buffer[at].astype(np.int64) << 8) | buffer[at + 1]


def _unsigned32(buffer: Bytes, at: Ints) -> Ints:
    return (unsigned16(buffer, at) << 16) | unsigned16(buffer, at + 2)


def cell_pointers(pages: Pages, places: Ints, counts: Ints, header_bytes: int) -> tuple[Ints, Ints]:
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
