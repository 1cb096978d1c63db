"""Kernels, copies, memsets and graph launches of one export: into the runs of events, and what is known of them into the raw tables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracelens.errors import MissingDataError
from tracelens.ingest import nsys
from tracelens.ingest.event_columns import Codes
from tracelens.ingest.event_runs import GRAPH, EventRuns
from tracelens.ingest.forms import forms_of, numbered
from tracelens.ingest.integers import find_column, notice, tell_read, unusable
from tracelens.ingest.readers import ReadReport
from tracelens.ingest.sources import Source, strings
from tracelens.ingest.values import as_int64, as_text

Progress = Callable[[str, int, int], None]

_TRACE_CUDA = (
    "Was CUDA traced, in the worker processes too? nsys profile --trace=cuda,nvtx --trace-fork-before-exec=true"
)
_EXPORT_ALL = "Export the report again without filters: nsys export --type=sqlite REPORT.nsys-rep"
#: What each event has of its own; everything else repeats from launch to launch.
_OWN = ("start_ns", "end_ns", "correlation")
_LOST = {
    "stream": "kernels of different streams cannot be told apart",
    "correlation": "launches cannot be found, so gaps have no cause",
    "global_pid": "kernels of different processes cannot be told apart",
}


def load_event_tables(
    source: Source,
    db: duckdb.DuckDBPyConnection,
    number: int,
    shift_ns: int,
    session_ns: int | None,
    runs: EventRuns,
    progress: Progress | None,
) -> None:
    """Loads what ran on the devices of one export.

    Raises:
        MissingDataError: there is no kernel, or kernels lack a column that an answer needs.
    """
    present = [table for table in nsys.EVENT_TABLES if source.columns(table.table)]
    if not present:
        raise MissingDataError(f"{source.shown}: no GPU work inside (no {nsys.KERNEL} table, no copies)", _TRACE_CUDA)
    rows = {table.kind: source.about(table.table) for table in present}
    if not rows.get(0) and not rows.get(GRAPH):
        raise MissingDataError(
            f"{source.shown}: no kernel inside (no {nsys.KERNEL} rows), so there is no GPU time to explain", _TRACE_CUDA
        )
    runs.begin(number, session_ns)
    reading = _Reading(source, db, number, shift_ns, runs, sum(rows.values()), progress)
    for table in present:
        columns = source.columns(table.table)
        missing = [name for name in table.required.values() if find_column(columns, name) is None]
        if table.kind == 0:
            if missing:
                raise MissingDataError(f"{source.shown}: {table.table} has no column {missing[0]}", _EXPORT_ALL)
            reading.kernels(table)
        elif missing:
            notice(
                db,
                "column-missing",
                "warning",
                f"{source.shown}: {table.table} has no {missing[0]}: its rows are left out",
                _EXPORT_ALL,
                source.count(table.table),
            )
            unusable(source, db, number, table.table, table.kind, f"no column {missing[0]}")
        else:
            reading.others(table)
    _enter(db, number, runs)


def _enter(db: duckdb.DuckDBPyConnection, number: int, runs: EventRuns) -> None:
    """What the runs know of an export, into the raw tables."""
    totals = runs.finish()
    db.execute("INSERT INTO session_window VALUES (?, ?, ?)", [number, runs.low_ns, runs.high_ns])
    _insert(
        db,
        "raw_place",
        [
            [*place, kind, one.rows, str(one.total_ns), one.first_ns, one.node_rows]  # a sum may pass 64 bits
            for (place, kind), one in sorted(totals.items())
        ],
    )
    _insert(
        db,
        "raw_unsound",
        [[number, kind, reason, count] for (kind, reason), count in sorted(runs.left_out.items())],
    )
    _insert(db, "raw_running", [[number, process] for process in sorted(runs.processes)])
    seen = "graph" if runs.has_graphs else "node" if runs.has_nodes else None
    _insert(db, "raw_graphs", [[number, seen]])


def _insert(db: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    """Appends rows at once: one by one, thousands of names would take longer than the events."""
    if rows:
        columns = list(zip(*rows, strict=True))
        db.register("incoming", pa.table({str(place): pa.array(column) for place, column in enumerate(columns)}))
        db.execute(f"INSERT INTO {table} SELECT * FROM incoming")  # noqa: S608 - our own names
        db.unregister("incoming")


class _Names:
    """Numbers the names of one table's rows, and counts the rows of each.

    Args:
        first: the number of the first name.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self.codes = Codes()
        self.counts = np.zeros(64, np.int64)

    def encode(self, keys: Sequence[pa.Array], rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """The number of each form's name.

        Args:
            keys: what names a form; where that are several columns, the key is a tuple.
            rows: per row, the number of its form.
        """
        if len(keys) == 1:
            own = self.codes.encode(keys[0])
        else:
            listed = zip(*(column.to_pylist() for column in keys), strict=True)
            own = np.array([self.codes.number(key) for key in listed], np.int32)
        counted = np.bincount(own[rows], minlength=len(self.counts))
        counted[: len(self.counts)] += self.counts
        self.counts = counted
        return own + np.int32(self.first)

    @property
    def keys(self) -> list[Hashable]:
        """What was numbered; a key's place, from `first`, is its number."""
        return self.codes.values


class _Reading:
    """The tables of one export, one after the other."""

    def __init__(
        self,
        source: Source,
        db: duckdb.DuckDBPyConnection,
        number: int,
        shift_ns: int,
        runs: EventRuns,
        total: int,
        progress: Progress | None,
    ) -> None:
        self._source, self._db, self._number = source, db, number
        self._shift_ns, self._runs = shift_ns, runs
        self._total, self._done, self._progress = total, 0, progress
        self._name_count = 0

    def _on_rows(self, count: int) -> None:
        self._done = min(self._done + count, self._total)
        if self._progress:
            self._progress(self._source.shown, self._done, self._total)

    def _spelt(self, table: str, wanted: Mapping[str, str]) -> dict[str, str]:
        """Raw name -> the table's own column, of those that it has; first what each event has of its own."""
        columns = self._source.columns(table)
        spelt = {raw: found for raw, name in wanted.items() if (found := find_column(columns, name)) is not None}
        return {raw: spelt[raw] for raw in sorted(spelt, key=lambda raw: raw not in _OWN)}

    def _batches(
        self, table: nsys.EventTable, spelt: Mapping[str, str], names: Sequence[str]
    ) -> tuple[Iterator[pa.RecordBatch], ReadReport]:
        """Batches of a table; the columns `names` join what repeats."""
        own = [column for raw, column in spelt.items() if raw in _OWN]
        repeated = [column for raw, column in spelt.items() if raw not in _OWN]
        return self._source.events(table.table, own, [*repeated, *names], self._on_rows)

    def _add(
        self, kind: int, batch: pa.RecordBatch, spelt: Mapping[str, str], keys: Sequence[str], numbering: _Names
    ) -> None:
        """Adds a batch with forms; `keys`: the columns that name a form, none where one name is that of all."""
        codes, forms = forms_of(batch)
        own = {raw: batch.column(column) for raw, column in spelt.items() if raw in _OWN}
        repeated = {raw: forms[column] for raw, column in spelt.items() if raw not in _OWN}
        named = [forms[key] for key in keys] or [pa.nulls(len(repeated["device"]), pa.int64())]
        self._runs.add(kind, own, codes, repeated, numbering.encode(named, codes), self._shift_ns)

    def kernels(self, table: nsys.EventTable) -> None:
        """Kernels, named by id or by text, by the best name that each has."""
        columns = self._source.columns(table.table)
        names = [name for one in nsys.NAME_COLUMNS if (name := find_column(columns, one)) is not None]
        if not names:
            raise MissingDataError(
                f"{self._source.shown}: {table.table} has no column {', '.join(nsys.NAME_COLUMNS[:-1])} or {nsys.NAME_COLUMNS[-1]}",
                _EXPORT_ALL,
            )
        wanted = table.required | {
            raw: name for raw, name in table.optional.items() if raw not in ("name", "short_name")
        }
        for raw, name in wanted.items():
            if raw in _LOST and find_column(columns, name) is None:
                message = f"{self._source.shown}: {table.table} has no {name}: {_LOST[raw]}"
                notice(self._db, "column-missing", "warning", message)
        spelt = self._spelt(table.table, wanted)
        by_id = [name for name in names if "INT" in columns[name].upper() or not columns[name]]
        if by_id[:1] != names[:1]:
            self._named_inline(table, spelt, names[0])
            return
        numbering, report = self._named_by_id(table, spelt, by_id[:1])
        texts = self._texts(numbering.keys)
        if by_id[1:] and any(text is None for text in texts):
            # Rare (captures re-exported by a newer nsys), so the other columns cost nothing where they are not needed.
            self._runs.forget()
            self._done = 0
            numbering, report = self._named_by_id(table, spelt, by_id)
            texts = self._texts(numbering.keys)
        tell_read(self._source, self._db, self._number, table.table, report)
        self._enter_names(texts, numbering)

    def _named_by_id(
        self, table: nsys.EventTable, spelt: Mapping[str, str], names: Sequence[str]
    ) -> tuple[_Names, ReadReport]:
        """Reads kernels with the columns that hold the ids of their names; a key is the ids, best first."""
        numbering = _Names(self._name_count)
        batches, report = self._batches(table, spelt, names)
        for batch in batches:
            self._add(0, batch, spelt, names, numbering)
        return numbering, report

    def _texts(self, keys: Sequence[Hashable]) -> list[str | None]:
        """The text behind each key: of the first id that has one."""
        ids = [key if isinstance(key, tuple) else (key,) for key in keys]
        known = strings(self._source, {one for key in ids for one in key if one is not None})
        return [next((known[one] for one in key if one in known), None) for key in ids]

    def _named_inline(self, table: nsys.EventTable, spelt: Mapping[str, str], name: str) -> None:
        """Kernels whose names stand in the row itself."""
        numbering = _Names(self._name_count)
        incoming, report = self._source.texts(table.table, [*spelt.values(), name])
        for batch in incoming:
            arrays = []
            for column, array in zip(spelt.values(), batch.columns, strict=False):
                integers, wrong = as_int64(array)
                arrays.append(integers)
                if wrong:
                    report.wrong_type_count[column] = report.wrong_type_count.get(column, 0) + wrong
            arrays.append(as_text(batch.column(len(spelt))))
            self._on_rows(batch.num_rows)
            whole = pa.RecordBatch.from_arrays(arrays, [*spelt.values(), name])
            self._add(0, numbered(whole, sum(raw in _OWN for raw in spelt)), spelt, [name], numbering)
        tell_read(self._source, self._db, self._number, table.table, ReadReport(report.rows, report.wrong_type_count))
        self._enter_names([None if key is None else str(key) for key in numbering.keys], numbering)

    def others(self, table: nsys.EventTable) -> None:
        """Copies, memsets or whole graphs: named by what they are."""
        numbering = _Names(self._name_count)
        spelt = self._spelt(table.table, table.required | table.optional)
        told = {1: "copy_kind", GRAPH: "graph"}.get(table.kind)
        keys = [spelt[told]] if told in spelt else []
        batches, report = self._batches(table, spelt, [])
        for batch in batches:
            self._add(table.kind, batch, spelt, keys, numbering)
        tell_read(self._source, self._db, self._number, table.table, report)
        self._enter_names(list(_labels(table.kind, numbering.keys)), numbering)

    def _enter_names(self, texts: Sequence[str | None], numbering: _Names) -> None:
        _insert(
            self._db,
            "raw_name",
            [
                [self._number, numbering.first + place, text, int(numbering.counts[place])]
                for place, text in enumerate(texts)
            ],
        )
        self._name_count += len(texts)


def _labels(kind: int, keys: Iterable[Any]) -> Iterator[str]:
    for key in keys:
        if kind == 1:
            yield nsys.COPY_LABELS.get(key or 0, nsys.COPY_LABELS[0])
        elif kind == GRAPH:
            yield f"[CUDA graph {'?' if key is None else key}]"
        else:
            yield "[CUDA memset]"
