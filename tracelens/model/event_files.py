"""Events of every rank in their order, as files or as a table in memory.

Slices of each place come in ascending time; within one, rows are put into the order of `events.sql`: start, length and
correlation are all that moves, and the number of a form, which becomes columns when the order stands. Many events go to
Parquet files of about a million rows, each with the number of every event, so that no question needs all of them in
memory; few go into a table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Column = tuple[NDArray[Any], NDArray[np.bool_] | None]
Place = tuple[int, int, int]

#: The order of events that start together and end together: (column, whether null comes first).
_TIES = ("kind", "stream", "correlation", "graph_node", "name_id", "shape", "bytes", "copy_kind", "graph")
_SCHEMA = pa.schema(
    [
        ("rank", pa.int32()),
        ("kind", pa.uint8()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("stream", pa.int64()),
        ("correlation", pa.int64()),
        ("graph_node", pa.int64()),
        ("graph", pa.int64()),
        ("name_id", pa.int32()),
        ("shape", pa.int64()),
        ("bytes", pa.int64()),
        ("copy_kind", pa.int32()),
    ]
)
_ASCENDING = ("event_id", "start_ns", "end_ns", "correlation")
#: The stream of events whose export names none.
NO_STREAM = -1
_CORRELATIONS_END = 1 << 40
FILE_ROWS = 1 << 20
_GROUP_ROWS = 1 << 18


class Slice(Protocol):
    """Events of one place: what each has of its own, and its form; see `tracelens.ingest.event_slices`."""

    @property
    def values(self) -> Mapping[str, Column]:
        """start_ns, length_ns and, where any has one, correlation, per event."""
        ...

    @property
    def codes(self) -> NDArray[np.int64]:
        """Per event, the number of its form."""
        ...

    @property
    def forms(self) -> Mapping[str, Column]:
        """kind, name (its number), and the attributes that any has, per form."""
        ...


class Runs(Protocol):
    """Where the events come from."""

    def slices(self, place: Place) -> Iterator[Slice]:
        """One place's events, in slices of ascending start."""
        ...


@dataclass(frozen=True)
class Order:
    """Where the events of each place belong: found from all exports, followed by whoever holds the events.

    Attributes:
        ranked: (rank, place, number of its first event, its events), ranks ascending.
        others: (process, place) of what is no rank, in the order of the answer.
        name_ids: per export, the name_id for each number of a name.
    """

    ranked: Sequence[tuple[int, Place, int, int]]
    others: Sequence[tuple[int | None, Place]]
    name_ids: Mapping[int, NDArray[np.int32]]

    def of(self, exports: Collection[int]) -> Order:
        """What concerns some exports."""
        return Order(
            [one for one in self.ranked if one[1][0] in exports],
            [one for one in self.others if one[1][0] in exports],
            {export: ids for export, ids in self.name_ids.items() if export in exports},
        )

    def stretches(self) -> Iterator[tuple[int, list[tuple[int, Place]]]]:
        """Ranks whose events are numbered without a break: (number of the first event, (rank, place) of each)."""
        places: list[tuple[int, Place]] = []
        begin = end = 0
        for rank, place, first, rows in self.ranked:
            if places and first != end:
                yield begin, places
                places = []
            if not places:
                begin = first
            places.append((rank, place))
            end = first + rows
        if places:
            yield begin, places


def ordered(
    events: Slice, name_ids: NDArray[np.int32]
) -> tuple[dict[str, Column], NDArray[np.int64], dict[str, Column]]:
    """One slice's events in their order.

    Args:
        events: the slice.
        name_ids: name_id per number of a name.

    Returns:
        start_ns, end_ns and correlation per event; per event, the number of its form; name_id and attributes per form.
    """
    forms = dict(events.forms)
    names, _ = forms.pop("name")
    forms["name_id"] = (name_ids[names], None)
    values, codes = dict(events.values), events.codes
    start, _ = values["start_ns"]
    if bool((start[1:] < start[:-1]).any()):
        order = np.argsort(start, kind="stable")
        values = {name: _picked(column, order) for name, column in values.items()}
        codes = codes[order]
        start, _ = values["start_ns"]
    ties = start[1:] == start[:-1]
    if ties.any():
        values, codes = _without_ties(values, codes, forms, ties)
    length, _ = values.pop("length_ns")
    values["end_ns"] = (values["start_ns"][0] + length, None)
    if "correlation" in values:
        values["correlation"] = _possible(values["correlation"])
    if "copy_kind" in forms:
        forms["copy_kind"] = _of_32_bits(forms["copy_kind"])
    if "stream" in forms:
        forms["stream"] = _told(forms["stream"])
    return values, codes, forms


def _picked(column: Column, rows: NDArray[Any]) -> Column:
    values, missing = column
    return values[rows], None if missing is None else missing[rows]


def _without_ties(
    values: Mapping[str, Column], codes: NDArray[np.int64], forms: Mapping[str, Column], ties: NDArray[np.bool_]
) -> tuple[dict[str, Column], NDArray[np.int64]]:
    """Puts events that start together into the order of their other values.

    Args:
        ties: per event but the last, whether the next one starts with it.
    """
    together = np.zeros(len(codes), bool)
    together[:-1] |= ties
    together[1:] |= ties
    rows = np.flatnonzero(together)
    keys: list[NDArray[Any]] = []
    for name in reversed(_TIES):
        if name in values or name in forms:
            key, missing = _picked(values[name], rows) if name in values else _picked(forms[name], codes[rows])
            keys.append(key)
            if missing is not None:
                keys.append(~missing)  # null first
    keys += [-values["length_ns"][0][rows].astype(np.int64), values["start_ns"][0][rows]]
    order = np.arange(len(codes))
    order[rows] = rows[np.lexsort(keys)]
    return {name: _picked(column, order) for name, column in values.items()}, codes[order]


def _told(column: Column) -> Column:
    """A stream that the export does not tell is one of its own, so that every event has one."""
    values, missing = column
    return (values if missing is None else np.where(missing, NO_STREAM, values.astype(np.int64)), None)


def _possible(column: Column) -> Column:
    """Correlation ids; CUPTI's have 32 bits, so what is far beyond joins nothing."""
    values, missing = column
    if len(values) and (int(values.min()) < 0 or int(values.max()) >= _CORRELATIONS_END):
        impossible = (values < 0) | (values >= _CORRELATIONS_END)
        return np.where(impossible, 0, values), impossible if missing is None else impossible | missing
    return column


def _of_32_bits(column: Column) -> Column:
    """Numbers beyond 32 bits stand for nothing here."""
    values, missing = column
    wide = (values > 2**31 - 1) | (values < -(2**31))
    if wide.any():
        return np.where(wide, 0, values), wide if missing is None else wide | missing
    return column


def _table(
    events: Slice, name_ids: NDArray[np.int32], schema: pa.Schema, constants: Mapping[str, int | None]
) -> pa.Table:
    values, codes, forms = ordered(events, name_ids)
    of_form = pa.array(codes)
    arrays = []
    for field in schema:
        if field.name in values:
            arrays.append(_array(values[field.name], field.type))
        elif field.name in forms:
            arrays.append(_array(forms[field.name], field.type).take(of_form))
        elif constants.get(field.name) is not None:
            arrays.append(
                pa.array(np.full(len(codes), constants[field.name], field.type.to_pandas_dtype()), field.type)
            )
        else:
            missing = pa.nulls(len(codes), field.type)
            arrays.append(missing.fill_null(NO_STREAM) if field.name == "stream" else missing)
    return pa.table(arrays, schema=schema)


def _array(column: Column, dtype: pa.DataType) -> pa.Array:
    values, missing = column
    return pa.array(values.astype(dtype.to_pandas_dtype(), copy=False), dtype, mask=missing)


def rank_tables(
    runs: Runs, places: Sequence[tuple[int, Place]], name_ids: Mapping[int, NDArray[np.int32]]
) -> Iterator[pa.Table]:
    """Events of every rank, in their order.

    Args:
        runs: the events.
        places: (rank, place), ranks ascending.
        name_ids: per export, the name_id for each number of a name.
    """
    for rank, place in places:
        for part in runs.slices(place):
            yield _table(part, name_ids[place[0]], _SCHEMA, {"rank": rank})


def other_tables(
    runs: Runs, places: Sequence[tuple[int | None, Place]], name_ids: Mapping[int, NDArray[np.int32]]
) -> Iterator[pa.Table]:
    """Events of what is no rank: (process, place) in the order of the answer."""
    fields = [("export", pa.int32()), ("process", pa.int32()), ("device", pa.int64())]
    schema = pa.schema([*fields, *(field for field in _SCHEMA if field.name != "rank")])
    for process, place in places:
        for part in runs.slices(place):
            constants = {"export": place[0], "process": process, "device": place[2]}
            yield _table(part, name_ids[place[0]], schema, constants)


def write_ranks(runs: Runs, order: Order, folder: Path, threads: int) -> list[Path]:
    """Writes the events of ranks to files, whose names sort as the numbers of the events inside.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    files = []
    for first, places in order.stretches():
        files += write_files(rank_tables(runs, places, order.name_ids), folder, threads, first)
    return files


def write_files(tables: Iterator[pa.Table], folder: Path, threads: int, first: int = 0) -> list[Path]:
    """Writes events, numbered from `first`, to files of about a million rows; which rows a file holds does not depend
    on `threads`.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    files: list[Path] = []
    running: list[Future[None]] = []
    written = first
    with ThreadPoolExecutor(max(1, min(threads, 2)), "event files") as pool:
        for several in _of_size(tables, FILE_ROWS):
            files.append(folder / f"events-{written:012}.parquet")
            numbered = pa.concat_tables(several)
            ids = pa.array(np.arange(written, written + numbered.num_rows, dtype=np.int64))
            written += numbered.num_rows
            running = [one for one in running if not _is_done(one)]
            while len(running) > 1:  # what waits to be written is held in memory
                running.pop(0).result()
            running.append(pool.submit(_write, files[-1], numbered.add_column(0, "event_id", ids)))
            del numbered, several
        for one in running:
            one.result()
    return files


def _is_done(one: Future[None]) -> bool:
    """Whether a file is written; raises what kept it from being."""
    if one.done():
        one.result()
        return True
    return False


def _of_size(tables: Iterator[pa.Table], rows: int) -> Iterator[list[pa.Table]]:
    held: list[pa.Table] = []
    count = 0
    for one in tables:
        held.append(one)
        count += one.num_rows
        if count >= rows:
            yield held
            held, count = [], 0
    if held:
        yield held


def _write(path: Path, table: pa.Table) -> None:
    pq.write_table(
        table,
        path,
        row_group_size=_GROUP_ROWS,
        compression="zstd",
        compression_level=1,
        data_page_version="2.0",
        use_dictionary=[name for name in table.column_names if name not in _ASCENDING],
        column_encoding=dict.fromkeys(_ASCENDING, "DELTA_BINARY_PACKED"),
    )
