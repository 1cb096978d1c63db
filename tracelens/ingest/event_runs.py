"""The events of all exports on their way into the model: checked, parted by process and device, in narrow columns.

    batch of a table --> sound rows --> one chunk per (export, process, device) --> slices of time, taken once

A chunk keeps the order of the file; whoever takes a slice sorts it. Beyond a budget of memory, chunks lie in a spill
file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracelens.ingest.event_chunks import Chunk, ScratchError, Spill, StoredColumn
from tracelens.ingest.event_columns import Flags, Ints, launch_shape, narrow, numbers
from tracelens.ingest.event_slices import SLICE_ROWS, UNORDERED_SLICE_ROWS, Slice, picked, slices

__all__ = ["EventRuns", "PlaceTotals", "ScratchError"]

#: (export, globalPid, device ordinal).
Place = tuple[int, int, int]

SHAPE = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_OF_FORMS = ("stream", "graph_node", "graph", "shape", "bytes", "copy_kind")

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


@dataclass
class PlaceTotals:
    """What a (process, device) ran of one kind: events, their summed time, the first start, those inside graphs."""

    rows: int = 0
    total_ns: int = 0
    first_ns: int = 0
    node_rows: int = 0


@dataclass(frozen=True)
class _Batch:
    """Sound rows of one table."""

    kind: int
    start_ns: Ints
    end_ns: Ints
    correlation: tuple[NDArray[Any], Flags | None] | None
    codes: NDArray[Any]


class EventRuns:
    """The events of every export, by place.

    Args:
        budget_bytes: how much of them stays in memory; None: all.
        spill_folder: where the rest lies; None: in the system's folder for such files.

    Attributes:
        row_count: events of all places.
    """

    def __init__(self, budget_bytes: int | None = None, spill_folder: Path | None = None) -> None:
        self.row_count = 0
        self._budget_bytes = budget_bytes
        self._spill = Spill(spill_folder)
        self._held_bytes = 0
        self._chunks: dict[Place, list[Chunk]] = {}
        self._reset(0, None)

    @property
    def spilled_bytes(self) -> int:
        """How much does not lie in memory."""
        return self._spill.size_bytes

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

    def add(
        self,
        kind: int,
        own: Mapping[str, pa.Array],
        codes: NDArray[np.int32],
        forms: Mapping[str, pa.Array],
        names: NDArray[np.int32],
        shift_ns: int = 0,
    ) -> None:
        """Adds a batch of one table.

        Args:
            kind: 0 kernel, 1 copy, 2 memset, 3 graph launch as a whole.
            own: start_ns, end_ns and, where the table has it, correlation, per row.
            codes: per row, the number of its form; every form is some row's.
            forms: raw name -> int64 array: device, and what else the table has, per form.
            names: the number of each form's name, within its export.
            shift_ns: what the exporter added to every time.

        Raises:
            ScratchError: memory is used up, and nothing can be written.
        """
        if not len(codes):
            return
        device, no_device = numbers(forms["device"])
        pid = numbers(forms["global_pid"])[0] if "global_pid" in forms else np.zeros(len(device), np.int64)
        self.processes |= set(pid.tolist())
        if kind == 0 and "graph_node" in forms and not self.has_nodes:
            self.has_nodes = bool(numbers(forms["graph_node"])[0].any())
        self.has_graphs |= kind == GRAPH
        known = (device >= 0) & (device <= _HIGHEST_DEVICE)
        if kind == GRAPH:
            known |= device == NO_DEVICE
        if no_device is not None:
            known &= ~no_device
        batch = self._sound(kind, own, codes, known, shift_ns)
        if len(batch.codes):
            self._part(batch, pid, device, _form_columns(forms, names))
        if self._budget_bytes is not None and self._held_bytes > self._budget_bytes:
            self.move_out()

    def move_out(self) -> None:
        """Moves every event that is in memory to the spill file.

        Raises:
            ScratchError: it cannot be written.
        """
        for place, chunks in self._chunks.items():
            self._chunks[place] = [self._spill.moved(chunk) for chunk in chunks]
        self._held_bytes = 0

    def _sound(
        self, kind: int, own: Mapping[str, pa.Array], codes: NDArray[np.int32], known: Flags, shift_ns: int
    ) -> _Batch:
        """The rows that are events; `known`: per form, whether its device can be one."""
        start, no_start = numbers(own["start_ns"])
        end, no_end = numbers(own["end_ns"])
        correlation = numbers(own["correlation"]) if "correlation" in own else None
        missing = np.zeros(len(start), bool) if known.all() else ~known[codes]
        for absent in (no_start, no_end):
            if absent is not None:
                missing |= absent
        if shift_ns:
            start, gone = _less(start, shift_ns)
            end, gone_too = _less(end, shift_ns)
            missing |= gone | gone_too
        # The rows in question are few: look at each only where the extremes say that there may be one.
        if not missing.any() and int(start.min()) > 0 and int(end.max()) <= self.high_ns and bool((end >= start).all()):
            return _Batch(kind, start, end, correlation, codes)
        bad = ((start == 0) & (end == 0)) | (end < start) | (start < self.low_ns) | (end > self.high_ns)
        self._leave_out(kind, NO_TIME, int(missing.sum()))
        self._leave_out(kind, BAD_TIMESTAMP, int((bad & ~missing).sum()))
        keep = ~(missing | bad)
        return _Batch(kind, start[keep], end[keep], _rows(correlation, keep), codes[keep])

    def _leave_out(self, kind: int, reason: str, rows: int) -> None:
        if rows:
            self.left_out[kind, reason] = self.left_out.get((kind, reason), 0) + rows

    def _part(
        self, batch: _Batch, pid: Ints, device: Ints, forms: Mapping[str, tuple[NDArray[Any], Flags | None]]
    ) -> None:
        """Makes one chunk per process and device of a batch."""
        for place, mine, rows in _by_place(batch.codes, pid, device):
            start, end = batch.start_ns[rows], batch.end_ns[rows]
            codes = batch.codes[rows]
            if len(mine) < len(pid):
                own_number = np.zeros(len(pid), np.int32)
                own_number[mine] = np.arange(len(mine))
                codes = own_number[codes]
            first = int(start.min())
            values: dict[str, StoredColumn] = {
                "start_ns": (narrow(start - first), None),
                "length_ns": (narrow(end - start), None),
                "form": (narrow(codes), None),
            }
            correlation = _rows(batch.correlation, rows)
            if correlation is not None and (correlation[1] is None or not correlation[1].all()):
                values["correlation"] = (narrow(correlation[0]), correlation[1])
            columns: dict[str, StoredColumn] = {}
            for name, (column, null) in forms.items():
                own_null = None if null is None else null[mine]
                if own_null is None or not own_null.all():
                    columns[name] = (narrow(column[mine]), own_null)
            chunk = Chunk(batch.kind, len(start), first, int(start.max()), int(end.max()), values, columns)
            self._chunks.setdefault((self._export, *place), []).append(chunk)
            self._held_bytes += chunk.size_bytes
            self.row_count += chunk.rows

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
                one.total_ns += self._total_ns(chunk)
                if "graph_node" in chunk.forms:
                    nodes = self._spill.read(chunk.forms["graph_node"][0]) != 0
                    one.node_rows += int(np.count_nonzero(nodes[self._spill.read(chunk.values["form"][0])]))
        return totals

    def _bound_by_middle(self) -> None:
        """Where the session's length is unknown, the middle start of kernels and graphs says what is far away."""
        mine = [place for place in self._chunks if place[0] == self._export]
        starts = [
            self._spill.starts(chunk) for place in mine for chunk in self._chunks[place] if chunk.kind in (0, GRAPH)
        ]
        self.high_ns = _MARGIN_NS
        if starts:
            every = np.concatenate(starts)
            at = (len(every) - 1) // 2
            middle = int(np.partition(every, at)[at])
            self.low_ns = max(-_MARGIN_NS, middle - _FARTHEST_NS)
            self.high_ns = min(middle + _FARTHEST_NS + _MARGIN_NS, _END_OF_TIME_NS)
        for place in mine:
            bounded = [self._bounded(chunk) for chunk in self._chunks.pop(place)]
            if kept := [chunk for chunk in bounded if chunk.rows]:
                self._chunks[place] = kept

    def _bounded(self, chunk: Chunk) -> Chunk:
        """The chunk's events that are not far away."""
        if chunk.first_ns >= self.low_ns and chunk.last_ns <= self.high_ns:
            return chunk
        start = self._spill.starts(chunk)
        end = start + self._spill.read(chunk.values["length_ns"][0])
        keep = (start >= self.low_ns) & (end <= self.high_ns)
        self._leave_out(chunk.kind, BAD_TIMESTAMP, int((~keep).sum()))
        self.row_count -= chunk.rows - int(keep.sum())
        if not keep.any():
            return replace(chunk, rows=0)
        kept, first = picked(chunk, self._spill, keep), int(start[keep].min())
        kept.values["start_ns"] = (narrow(start[keep] - first), None)
        return replace(kept, first_ns=first, latest_start_ns=int(start[keep].max()), last_ns=int(end[keep].max()))

    def _place_graphs(self) -> None:
        """Graphs without a device go to the one on which their process spends most of its kernel time."""
        for export, pid, _ in [one for one in self._chunks if one[0] == self._export and one[2] == NO_DEVICE]:
            kernel_ns: dict[int, int] = {}
            for place, chunks in self._chunks.items():
                if place[:2] == (export, pid) and place[2] != NO_DEVICE:
                    kernels = sum(self._total_ns(one) for one in chunks if one.kind == 0)
                    if any(one.kind in (0, GRAPH) for one in chunks):
                        kernel_ns[place[2]] = kernels
            main = min(kernel_ns, key=lambda device: (-kernel_ns[device], device), default=0)
            self._chunks.setdefault((export, pid, main), []).extend(self._chunks.pop((export, pid, NO_DEVICE)))

    def _total_ns(self, chunk: Chunk) -> int:
        """The exact sum of a chunk's lengths."""
        lengths = self._spill.read(chunk.values["length_ns"][0])
        if lengths.dtype.itemsize < 8:
            return int(lengths.sum(dtype=np.int64))
        return (int((lengths >> 32).sum(dtype=np.int64)) << 32) + int((lengths & 0xFFFFFFFF).sum(dtype=np.int64))

    @property
    def places(self) -> list[Place]:
        """Every place with events, ascending."""
        return sorted(self._chunks)

    def slices(
        self, place: Place, rows: int = SLICE_ROWS, unordered_rows: int = UNORDERED_SLICE_ROWS
    ) -> Iterator[Slice]:
        """The events of one place, about `rows` at a time, in slices of ascending start; within one, unsorted.

        They are given once, and then forgotten.
        """
        return slices(self._chunks.pop(place), self._spill, rows, unordered_rows)

    def close(self) -> None:
        """Gives memory and disk back."""
        self._chunks.clear()
        self._spill.close()


def _form_columns(
    forms: Mapping[str, pa.Array], names: NDArray[np.int32]
) -> dict[str, tuple[NDArray[Any], Flags | None]]:
    present = dict(forms)
    if all(name in forms for name in SHAPE):
        present["shape"] = launch_shape(forms, SHAPE)
    return {"name": (names, None)} | {name: numbers(present[name]) for name in _OF_FORMS if name in present}


def _rows(column: tuple[NDArray[Any], Flags | None] | None, rows: Any) -> tuple[NDArray[Any], Flags | None] | None:
    if column is None:
        return None
    values, null = column
    return values[rows], None if null is None else null[rows]


def _less(values: Ints, shift_ns: int) -> tuple[Ints, Flags]:
    """`values - shift_ns`, and where that leaves 64 bits."""
    shift = np.int64(shift_ns)
    moved = values - shift
    return moved, ((values ^ shift) & (values ^ moved)) < 0


def _by_place(codes: NDArray[Any], pid: Ints, device: Ints) -> Iterator[tuple[tuple[int, int], Ints, slice | Ints]]:
    """The (process, device) pairs of a batch: the forms of each, and its rows in their order."""
    every, of_form = np.unique(np.stack([pid, device]), axis=1, return_inverse=True)
    of_form = of_form.ravel()
    if every.shape[1] == 1:
        yield (int(every[0, 0]), int(every[1, 0])), np.arange(len(pid)), slice(None)
        return
    # Numbers of 16 bits are sorted by radix.
    of_row = of_form.astype(np.uint16 if every.shape[1] < 1 << 16 else np.int64)[codes]
    order = np.argsort(of_row, kind="stable")
    counts = np.bincount(of_row, minlength=every.shape[1])
    ends = np.cumsum(counts)
    for number in np.flatnonzero(counts).tolist():
        rows = order[ends[number] - counts[number] : ends[number]]
        yield (int(every[0, number]), int(every[1, number])), np.flatnonzero(of_form == number), rows
