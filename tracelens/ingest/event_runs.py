"""The events of all exports on their way into the model: checked, parted by process and device, in narrow columns.

    batch of a table --> sound rows --> one chunk per (export, process, device) --> slices of time, taken once

A chunk keeps the order of the file; whoever takes a slice sorts it. Beyond a budget of memory, chunks lie in a file
without a name, which is gone with the process, however that ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracelens.ingest.event_columns import Codes, Flags, Ints, launch_shape, narrow, numbers

#: (export, globalPid, device ordinal).
Place = tuple[int, int, int]
#: A column's values, and which are null; None where none is.
Column = tuple[NDArray[Any], Flags | None]

SHAPE = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_FEW_VALUED = ("stream", "graph_node", "graph", "shape")
_NUMBERED = ("correlation", "bytes", "copy_kind")

NO_TIME, BAD_TIMESTAMP = "no time or device", "bad timestamp"
GRAPH = 3
#: The device of a graph whose first node runs on the host: it belongs to its process's main device.
NO_DEVICE = 2**31 - 1
_HIGHEST_DEVICE = 1_000_000
#: How far outside its session an event may lie, ns.
_MARGIN_NS = 60_000_000_000
#: No time lies beyond, ns.
_END_OF_TIME_NS = 2**62
#: Where the session's length is unknown: how far from the middle event another may lie (52 days), ns.
_FARTHEST_NS = 2**52
#: Slices small enough for a processor's cache; where the rows of a file lie in no order, every slice looks at all of
#: them, so there are fewer.
_SLICE_ROWS, _UNORDERED_SLICE_ROWS = 1 << 17, 1 << 20


class ScratchError(OSError):
    """What does not fit into memory could not be written; the captures are not to blame."""


@dataclass
class _OnDisk:
    """A column that was moved to the spill file."""

    offset: int
    dtype: np.dtype[Any]
    rows: int


_Stored = NDArray[Any] | _OnDisk


@dataclass
class _Chunk:
    kind: int
    rows: int
    first_ns: int
    latest_start_ns: int
    last_ns: int
    values: dict[str, _Stored]
    nulls: dict[str, _Stored] = field(default_factory=dict)


@dataclass
class PlaceTotals:
    """What a (process, device) ran of one kind: events, their summed time, the first start, those inside graphs."""

    rows: int = 0
    total_ns: int = 0
    first_ns: int = 0
    node_rows: int = 0


class EventRuns:
    """The events of every export, by place.

    Args:
        budget_bytes: how much of them stays in memory; None: all.
        spill_folder: where the rest lies; None: in the system's folder for such files.

    Attributes:
        spilled_bytes: how much does not lie in memory.
        row_count: events of all places.
    """

    def __init__(self, budget_bytes: int | None = None, spill_folder: Path | None = None) -> None:
        self.spilled_bytes = 0
        self.row_count = 0
        self._budget_bytes = budget_bytes
        self._spill_folder = spill_folder
        self._spill = -1
        self._held_bytes = 0
        self._chunks: dict[Place, list[_Chunk]] = {}
        self._codes = {name: Codes() for name in _FEW_VALUED}
        self._tables: dict[str, tuple[Ints, Flags]] = {}
        self._reset(0, None)

    def _reset(self, export: int, session_ns: int | None) -> None:
        self._export = export
        self._session_ns = session_ns
        self.low_ns = -_MARGIN_NS
        self.high_ns = _END_OF_TIME_NS if session_ns is None else min(session_ns + _MARGIN_NS, _END_OF_TIME_NS)
        #: (kind, reason) -> rows that are no events.
        self.left_out: dict[tuple[int, str], int] = {}
        #: Every process that a row names.
        self.processes: set[int] = set()
        #: Whether a row, sound or not, was a node of a graph; whether one was a graph.
        self.has_nodes = self.has_graphs = False

    def begin(self, export: int, session_ns: int | None) -> None:
        """Turns to the next export.

        Args:
            export: its number.
            session_ns: length of its session, where known.
        """
        self._reset(export, session_ns)

    def forget(self) -> None:
        """Drops what was added of the present export, to read it anew."""
        for place in [place for place in self._chunks if place[0] == self._export]:
            self.row_count -= sum(one.rows for one in self._chunks.pop(place))
        self._reset(self._export, self._session_ns)

    def add(self, kind: int, columns: Mapping[str, pa.Array], names: NDArray[np.int32], shift_ns: int = 0) -> None:
        """Adds a batch of one table.

        Args:
            kind: 0 kernel, 1 copy, 2 memset, 3 graph launch as a whole.
            columns: raw name -> int64 array: start_ns, end_ns, device, and what else the table has.
            names: the number of each row's name, within its export.
            shift_ns: what the exporter added to every time.
        """
        start, end, device, pid, keep = self._sound(kind, columns, shift_ns)
        if kind == 0 and "graph_node" in columns and not self.has_nodes:
            self.has_nodes = bool(numbers(columns["graph_node"])[0].any())
        self.has_graphs |= kind == GRAPH and len(start) > 0
        if keep is not None:
            start, end, device, pid = start[keep], end[keep], device[keep], pid[keep]
        if not len(start):
            return
        values: dict[str, NDArray[Any]] = {"start_ns": start, "length_ns": narrow(end - start)}
        nulls: dict[str, Flags] = {}
        values["name"] = narrow(names if keep is None else names[keep])
        present = dict(columns)
        if all(name in columns for name in SHAPE):
            present["shape"] = launch_shape(columns, SHAPE)
        for name in (*_FEW_VALUED, *_NUMBERED):
            if name in present and present[name].null_count < len(present[name]):
                self._take_column(name, present[name], keep, values, nulls)
        for place, rows in _by_place(pid, device):
            mine = {name: column[rows] for name, column in values.items()}
            mine_null = {name: column[rows] for name, column in nulls.items()}
            if isinstance(rows, slice):  # the whole batch: its memory belongs to the reader
                mine["start_ns"] = mine["start_ns"].copy()
            first = mine["start_ns"]
            chunk = _Chunk(
                kind,
                len(first),
                int(first.min()),
                int(first.max()),
                int((first + mine["length_ns"]).max()),
                dict(mine),
                dict(mine_null),
            )
            self._chunks.setdefault((self._export, *place), []).append(chunk)
            self._held_bytes += _size(chunk)
            self.row_count += chunk.rows
        if self._budget_bytes is not None and self._held_bytes > self._budget_bytes:
            try:
                self._move_out()
            except OSError as error:
                raise ScratchError(*error.args) from error

    def _take_column(
        self,
        name: str,
        array: pa.Array,
        keep: Flags | None,
        values: dict[str, NDArray[Any]],
        nulls: dict[str, Flags],
    ) -> None:
        codes = self._codes[name].encode_few(array) if name in self._codes else None
        if codes is not None:
            values[f"{name} code"] = narrow(codes if keep is None else codes[keep])
            return
        column, missing = numbers(array)
        values[name] = narrow(column if keep is None else column[keep])
        if missing is not None:
            nulls[name] = missing if keep is None else missing[keep]

    def _sound(
        self, kind: int, columns: Mapping[str, pa.Array], shift_ns: int
    ) -> tuple[Ints, Ints, Ints, Ints, Flags | None]:
        """Times (shift undone), devices and processes of a batch, and which rows are events; None: all."""
        start, no_start = numbers(columns["start_ns"])
        end, no_end = numbers(columns["end_ns"])
        device, no_device = numbers(columns["device"])
        if "global_pid" in columns:
            pid, _ = numbers(columns["global_pid"])
        else:
            pid = np.zeros(len(start), np.int64)
        if not len(start):
            return start, end, device, pid, None
        lowest, highest = int(pid.min()), int(pid.max())
        self.processes |= {lowest} if lowest == highest else set(pa.array(pid).unique().to_pylist())
        missing = np.zeros(len(start), bool)
        for absent in (no_start, no_end, no_device):
            if absent is not None:
                missing |= absent
        if shift_ns:
            start, gone = _less(start, shift_ns)
            end, gone_too = _less(end, shift_ns)
            missing |= gone | gone_too
        if int(device.min()) < 0 or int(device.max()) > _HIGHEST_DEVICE:
            known = (device >= 0) & (device <= _HIGHEST_DEVICE)
            missing |= ~(known | (device == NO_DEVICE) if kind == GRAPH else known)
        # The rows in question are few: look at each only where the extremes say that there may be one.
        if not missing.any() and int(start.min()) > 0 and int(end.max()) <= self.high_ns and bool((end >= start).all()):
            return start, end, device, pid, None
        bad = ((start == 0) & (end == 0)) | (end < start) | (start < self.low_ns) | (end > self.high_ns)
        self._leave_out(kind, NO_TIME, int(missing.sum()))
        self._leave_out(kind, BAD_TIMESTAMP, int((bad & ~missing).sum()))
        return start, end, device, pid, ~(missing | bad)

    def _leave_out(self, kind: int, reason: str, rows: int) -> None:
        if rows:
            self.left_out[kind, reason] = self.left_out.get((kind, reason), 0) + rows

    def finish(self) -> dict[tuple[Place, int], PlaceTotals]:
        """Closes the present export: what lies far from its middle is left out, graphs without a device find theirs.

        Returns:
            per place and kind, what it ran.
        """
        if self._session_ns is None:
            self._bound_by_middle()
        self._place_graphs()
        totals: dict[tuple[Place, int], PlaceTotals] = {}
        for place in sorted(place for place in self._chunks if place[0] == self._export):
            for chunk in self._chunks[place]:
                one = totals.setdefault((place, chunk.kind), PlaceTotals(first_ns=chunk.first_ns))
                one.rows += chunk.rows
                one.first_ns = min(one.first_ns, chunk.first_ns)
                one.total_ns += _total(self._read(chunk.values["length_ns"]))
                one.node_rows += self._node_rows(chunk)
        return totals

    def _bound_by_middle(self) -> None:
        """Where the session's length is unknown, the middle start of kernels and graphs says what is far away."""
        mine = [place for place in self._chunks if place[0] == self._export]
        starts = [
            self._read(chunk.values["start_ns"])
            for place in mine
            for chunk in self._chunks[place]
            if chunk.kind in (0, GRAPH)
        ]
        self.high_ns = _MARGIN_NS
        if starts:
            every = np.concatenate(starts)
            at = (len(every) - 1) // 2
            middle = int(np.partition(every, at)[at])
            self.low_ns = max(-_MARGIN_NS, middle - _FARTHEST_NS)
            self.high_ns = min(middle + _FARTHEST_NS + _MARGIN_NS, _END_OF_TIME_NS)
        for place in mine:
            kept = []
            for chunk in self._chunks[place]:
                if chunk.first_ns < self.low_ns or chunk.last_ns > self.high_ns:
                    self._bound(chunk)
                if chunk.rows:
                    kept.append(chunk)
            self._chunks[place] = kept
            if not kept:
                del self._chunks[place]

    def _bound(self, chunk: _Chunk) -> None:
        start = self._read(chunk.values["start_ns"])
        end = start + self._read(chunk.values["length_ns"])
        keep = (start >= self.low_ns) & (end <= self.high_ns)
        self._leave_out(chunk.kind, BAD_TIMESTAMP, int((~keep).sum()))
        self.row_count -= chunk.rows - int(keep.sum())
        chunk.values = {name: self._read(one)[keep] for name, one in chunk.values.items()}
        chunk.nulls = {name: self._read(one)[keep] for name, one in chunk.nulls.items()}
        chunk.rows = int(keep.sum())
        if chunk.rows:
            kept = start[keep]
            chunk.first_ns, chunk.latest_start_ns, chunk.last_ns = (
                int(kept.min()),
                int(kept.max()),
                int(end[keep].max()),
            )

    def _place_graphs(self) -> None:
        """Graphs without a device go to the one on which their process spends most of its kernel time."""
        for export, pid, _ in [one for one in self._chunks if one[0] == self._export and one[2] == NO_DEVICE]:
            kernel_ns: dict[int, int] = {}
            for place, chunks in self._chunks.items():
                if place[:2] == (export, pid) and place[2] != NO_DEVICE:
                    kernels = sum(_total(self._read(one.values["length_ns"])) for one in chunks if one.kind == 0)
                    if any(one.kind in (0, GRAPH) for one in chunks):
                        kernel_ns[place[2]] = kernels
            main = min(kernel_ns, key=lambda device: (-kernel_ns[device], device), default=0)
            self._chunks.setdefault((export, pid, main), []).extend(self._chunks.pop((export, pid, NO_DEVICE)))

    def _node_rows(self, chunk: _Chunk) -> int:
        if "graph_node" in chunk.values:
            return int(np.count_nonzero(self._read(chunk.values["graph_node"])))
        if "graph_node code" in chunk.values:
            values, _ = self._codes["graph_node"].table()
            return int(np.count_nonzero(values[self._read(chunk.values["graph_node code"])]))
        return 0

    @property
    def places(self) -> list[Place]:
        """Every place with events, ascending."""
        return sorted(self._chunks)

    def slices(
        self, place: Place, rows: int = _SLICE_ROWS, unordered_rows: int = _UNORDERED_SLICE_ROWS
    ) -> Iterator[dict[str, Column]]:
        """The events of one place, about `rows` at a time, in slices of ascending start; within one, unsorted.

        Columns: kind, start_ns, length_ns, name, stream, correlation, graph_node, graph, shape, bytes, copy_kind;
        those without any value are absent. The place's events are given once, and then forgotten.
        """
        chunks = self._chunks.pop(place)
        edges = self._edges(chunks, rows, unordered_rows)
        for low, high in zip([None, *edges], [*edges, None], strict=True):
            parts = []
            for chunk in chunks:
                if (high is not None and chunk.first_ns >= high) or not chunk.rows:
                    continue
                part = self._between(chunk, low, high)
                if part is not None:
                    parts.append(part)
            if parts:
                yield self._joined(parts)
        del chunks

    def _edges(self, chunks: list[_Chunk], rows: int, unordered_rows: int) -> list[int]:
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
        sample = np.sort(np.concatenate([self._read(one.values["start_ns"])[::step] for one in chunks]))
        return sorted(set(sample[np.linspace(0, len(sample), parts + 1).astype(int)[1:-1]].tolist()))

    def _between(self, chunk: _Chunk, low: int | None, high: int | None) -> _Chunk | None:
        """A chunk's rows that start in [low, high), in memory; they leave the chunk when nothing else will ask."""
        whole = (low is None or chunk.first_ns >= low) and (high is None or chunk.latest_start_ns < high)
        rows: Any = slice(None)
        if not whole:
            start = self._read(chunk.values["start_ns"])
            inside = np.ones(len(start), bool)
            if low is not None:
                inside &= start >= low
            if high is not None:
                inside &= start < high
            if not inside.any():
                return None
            rows = inside
        values: dict[str, _Stored] = {name: self._read(one)[rows] for name, one in chunk.values.items()}
        nulls: dict[str, _Stored] = {name: self._read(one)[rows] for name, one in chunk.nulls.items()}
        part = _Chunk(chunk.kind, len(self._read(values["start_ns"])), 0, 0, 0, values, nulls)
        if whole:
            chunk.rows, chunk.values, chunk.nulls = 0, {}, {}
        return part

    def _joined(self, parts: list[_Chunk]) -> dict[str, Column]:
        names = dict.fromkeys(name.removesuffix(" code") for part in parts for name in part.values)
        columns: dict[str, Column] = {
            "kind": (np.repeat(np.array([one.kind for one in parts], np.uint8), [one.rows for one in parts]), None)
        }
        for name in names:
            pieces = [self._decoded(part, name) for part in parts]
            values = np.concatenate([one for one, _ in pieces]) if len(pieces) > 1 else pieces[0][0]
            missing = None
            if any(one is not None for _, one in pieces):
                missing = np.concatenate(
                    [
                        np.zeros(part.rows, bool) if one is None else one
                        for part, (_, one) in zip(parts, pieces, strict=True)
                    ]
                )
            columns[name] = (values, missing)
        return columns

    def _decoded(self, part: _Chunk, name: str) -> Column:
        if name in part.values:
            missing = part.nulls.get(name)
            return self._read(part.values[name]), None if missing is None else self._read(missing)
        code = part.values.get(f"{name} code")
        if code is None:
            return np.zeros(part.rows, np.uint8), np.ones(part.rows, bool)
        if name not in self._tables or len(self._tables[name][0]) != len(self._codes[name].values):
            self._tables[name] = self._codes[name].table()
        values, null = self._tables[name]
        at = self._read(code)
        missing = null[at] if null.any() else None
        return values[at], missing if missing is not None and missing.any() else None

    def _read(self, stored: _Stored) -> NDArray[Any]:
        if not isinstance(stored, _OnDisk):
            return stored
        data = bytearray(stored.rows * stored.dtype.itemsize)
        view, offset = memoryview(data), stored.offset
        while len(view):
            got = os.preadv(self._spill, [view], offset)
            if got <= 0:
                raise ScratchError("the file of spilled events ends early")
            view, offset = view[got:], offset + got
        return np.frombuffer(data, stored.dtype)

    def _move_out(self) -> None:
        """Moves every column that is in memory to the spill file."""
        if self._spill < 0:
            handle, path = tempfile.mkstemp(prefix="tracelens-", dir=self._spill_folder)
            Path(path).unlink()
            self._spill = handle
        for chunks in self._chunks.values():
            for chunk in chunks:
                for columns in (chunk.values, chunk.nulls):
                    for name, stored in columns.items():
                        if not isinstance(stored, _OnDisk):
                            columns[name] = self._written(stored)
        self._held_bytes = 0

    def _written(self, values: NDArray[Any]) -> _OnDisk:
        place = _OnDisk(self.spilled_bytes, values.dtype, len(values))
        view = memoryview(np.ascontiguousarray(values).view(np.uint8))  # type: ignore[arg-type]
        while len(view):
            done = os.pwrite(self._spill, view, self.spilled_bytes)
            view = view[done:]
            self.spilled_bytes += done
        return place

    def close(self) -> None:
        """Gives memory and disk back."""
        self._chunks.clear()
        if self._spill >= 0:
            os.close(self._spill)
            self._spill = -1


def _less(values: Ints, shift_ns: int) -> tuple[Ints, Flags]:
    """`values - shift_ns`, and where that leaves 64 bits."""
    shift = np.int64(shift_ns)
    moved = values - shift
    return moved, ((values ^ shift) & (values ^ moved)) < 0


def _by_place(pid: Ints, device: Ints) -> Iterator[tuple[tuple[int, int], slice | Ints]]:
    """The (process, device) pairs of a batch, and the rows of each, in their order."""
    if bool((pid == pid[0]).all()) and bool((device == device[0]).all()):
        yield (int(pid[0]), int(device[0])), slice(None)
        return
    pids, devices = Codes(), Codes()
    of_process, of_device = pids.encode(pa.array(pid)).astype(np.int64), devices.encode(pa.array(device))
    code: NDArray[Any] = of_process * len(devices.values) + of_device
    if len(pids.values) * len(devices.values) < 2**16:
        code = code.astype(np.uint16)  # sorted by radix
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    begins = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(order)], strict=True):
        rows = order[begin:end]
        yield (int(pid[rows[0]]), int(device[rows[0]])), rows


def _total(lengths: NDArray[Any]) -> int:
    """The exact sum."""
    if lengths.dtype.itemsize < 8:
        return int(lengths.sum(dtype=np.int64))
    return (int((lengths >> 32).sum(dtype=np.int64)) << 32) + int((lengths & 0xFFFFFFFF).sum(dtype=np.int64))


def _rows_of(chunks: list[_Chunk], kind: int) -> int:
    return sum(one.rows for one in chunks if one.kind == kind)


def _size(chunk: _Chunk) -> int:
    return sum(
        one.nbytes for part in (chunk.values, chunk.nulls) for one in part.values() if not isinstance(one, _OnDisk)
    )
