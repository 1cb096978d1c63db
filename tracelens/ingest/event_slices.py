"""The chunks of one place cut into slices of ascending time, each small enough to be put into order at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.ingest.event_chunks import Chunk, Column, Spill, StoredColumn
from tracelens.ingest.event_columns import Flags

#: Slices small enough for a processor's cache; where the rows of a file lie in no order, every slice looks at all of
#: them, so there are fewer.
SLICE_ROWS, UNORDERED_SLICE_ROWS = 1 << 17, 1 << 20


@dataclass(frozen=True)
class Slice:
    """Events of one place.

    Attributes:
        values: start_ns, length_ns and, where any has one, correlation, per event.
        codes: per event, the number of its form.
        forms: kind, name (its number), and of device, global_pid, stream, graph_node, graph, shape, bytes and copy_kind
            those that any event has, per form.
    """

    values: dict[str, Column]
    codes: NDArray[np.int32]
    forms: dict[str, Column]


def slices(chunks: list[Chunk], spill: Spill, rows: int, unordered_rows: int) -> Iterator[Slice]:
    """Events about `rows` at a time, in slices of ascending start; within one, unsorted. The list is used up."""
    edges = _edges(chunks, spill, rows, unordered_rows)
    for low, high in zip([None, *edges], [*edges, None], strict=True):
        parts = []
        for place, chunk in enumerate(chunks):
            if not chunk.rows or (high is not None and chunk.first_ns >= high):
                continue
            whole = (low is None or chunk.first_ns >= low) and (high is None or chunk.latest_start_ns < high)
            part = chunk if whole else _between(chunk, spill, low, high)
            if whole:  # nothing else will ask for it
                chunks[place] = Chunk(chunk.kind, 0, 0, 0, 0, {}, {})
            if part is not None:
                parts.append(part)
        if parts:
            yield _joined(parts, spill)


def _edges(chunks: list[Chunk], spill: Spill, rows: int, unordered_rows: int) -> list[int]:
    """Times that cut the chunks into parts of about `rows` rows."""
    total = sum(chunk.rows for chunk in chunks)
    if total <= rows:
        return []
    leading = max({chunk.kind for chunk in chunks}, key=lambda kind: _rows_of(chunks, kind))
    runs = [chunk for chunk in chunks if chunk.kind == leading]
    if all(one.latest_start_ns < other.first_ns for one, other in pairwise(runs)):
        edges, held = [], 0
        for chunk in runs:
            if held >= rows:
                edges.append(chunk.first_ns)
                held = 0
            held += chunk.rows
        return edges
    parts = round(total / unordered_rows)
    if parts < 2:
        return []
    step = max(1, unordered_rows // 1024)
    sample = np.sort(np.concatenate([spill.starts(one)[::step] for one in chunks]))
    return sorted(set(sample[np.linspace(0, len(sample), parts + 1).astype(int)[1:-1]].tolist()))


def _between(chunk: Chunk, spill: Spill, low: int | None, high: int | None) -> Chunk | None:
    """A chunk's rows that start in [low, high)."""
    start = spill.starts(chunk)
    inside = np.ones(len(start), bool)
    if low is not None:
        inside &= start >= low
    if high is not None:
        inside &= start < high
    return picked(chunk, spill, inside) if inside.any() else None


def picked(chunk: Chunk, spill: Spill, rows: Flags) -> Chunk:
    """Some rows of a chunk, in memory; its times stay those of the whole."""
    values: dict[str, StoredColumn] = {}
    for name, stored in chunk.values.items():
        one, null = spill.column(stored)
        values[name] = (one[rows], None if null is None else null[rows])
    return Chunk(chunk.kind, int(rows.sum()), chunk.first_ns, chunk.latest_start_ns, chunk.last_ns, values, chunk.forms)


def _joined(parts: list[Chunk], spill: Spill) -> Slice:
    values: dict[str, Column] = {"start_ns": (_concatenated([spill.starts(part) for part in parts]), None)}
    for name in ("length_ns", "correlation"):
        if any(name in part.values for part in parts):
            values[name] = _column([part.values.get(name) for part in parts], [part.rows for part in parts], spill)
    sizes = [len(spill.read(part.forms["name"][0])) for part in parts]
    begins = np.cumsum([0, *sizes[:-1]])
    codes = [
        spill.read(part.values["form"][0]).astype(np.int32) + np.int32(begin)
        for part, begin in zip(parts, begins, strict=True)
    ]
    forms: dict[str, Column] = {"kind": (np.repeat(np.array([part.kind for part in parts], np.uint8), sizes), None)}
    for name in dict.fromkeys(name for part in parts for name in part.forms):
        forms[name] = _column([part.forms.get(name) for part in parts], sizes, spill)
    return Slice(values, _concatenated(codes), forms)


def _column(pieces: list[StoredColumn | None], sizes: list[int], spill: Spill) -> Column:
    """Pieces of one column as one; a piece that is absent is null."""
    absent = (np.zeros(0, np.uint8), None)
    read = [absent if piece is None else spill.column(piece) for piece in pieces]
    values = _concatenated(
        [
            np.zeros(size, np.uint8) if piece is None else one
            for piece, (one, _), size in zip(pieces, read, sizes, strict=True)
        ]
    )
    if not any(piece is None or null is not None for piece, (_, null) in zip(pieces, read, strict=True)):
        return values, None
    nulls = [
        np.full(size, piece is None) if null is None else null
        for piece, (_, null), size in zip(pieces, read, sizes, strict=True)
    ]
    return values, _concatenated(nulls)


def _concatenated(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _rows_of(chunks: list[Chunk], kind: int) -> int:
    return sum(one.rows for one in chunks if one.kind == kind)
