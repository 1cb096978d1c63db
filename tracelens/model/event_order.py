"""Events of one place in the order of `events.sql`, before what repeats in them becomes columns.

Start, length and correlation are all that moves, and the number of a form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Column = tuple[NDArray[Any], NDArray[np.bool_] | None]
Codes = NDArray[np.int32]
Place = tuple[int, int, int]

#: The order of events that start together and end together: (column, whether null comes first).
_TIES = ("kind", "stream", "correlation", "graph_node", "name_id", "shape", "bytes", "copy_kind", "graph")
#: The stream of events whose export names none.
NO_STREAM = -1
_CORRELATIONS_END = 1 << 40


class Slice(Protocol):
    """Events of one place: what each has of its own, and its form; see `tracelens.ingest.event_slices`."""

    @property
    def values(self) -> Mapping[str, Column]:
        """start_ns, length_ns and, where any has one, correlation, per event."""
        ...

    @property
    def codes(self) -> Codes:
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
class Ordered:
    """Events in their order.

    Attributes:
        values: start_ns, end_ns and, where any has one, correlation, per event.
        codes: per event, the number of its form.
        forms: name_id, kind, and the attributes that any has, per form.
    """

    values: Mapping[str, Column]
    codes: Codes
    forms: Mapping[str, Column]

    def table(self, schema: pa.Schema, constants: Mapping[str, int | None]) -> pa.Table:
        """The events as columns; those of `constants` are the same for all, others that nothing is known of are null."""
        of_form = pa.array(self.codes)
        arrays = []
        for field in schema:
            if field.name in self.values:
                arrays.append(_array(self.values[field.name], field.type))
            elif field.name in self.forms:
                arrays.append(_array(self.forms[field.name], field.type).take(of_form))
            elif (constant := NO_STREAM if field.name == "stream" else constants.get(field.name)) is not None:
                dtype = field.type.to_pandas_dtype()
                arrays.append(pa.array(np.full(len(self.codes), constant, dtype), field.type))
            else:
                arrays.append(pa.nulls(len(self.codes), field.type))
        return pa.table(arrays, schema=schema)


def _array(column: Column, dtype: pa.DataType) -> pa.Array:
    values, missing = column
    return pa.array(values.astype(dtype.to_pandas_dtype(), copy=False), dtype, mask=missing)


def ordered(events: Slice, name_ids: NDArray[np.int32]) -> Ordered:
    """One slice's events in their order.

    Args:
        events: the slice.
        name_ids: name_id per number of a name.
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
    return Ordered(values, codes, forms)


def _picked(column: Column, rows: NDArray[Any]) -> Column:
    values, missing = column
    return values[rows], None if missing is None else missing[rows]


def _without_ties(
    values: Mapping[str, Column], codes: Codes, forms: Mapping[str, Column], ties: NDArray[np.bool_]
) -> tuple[dict[str, Column], Codes]:
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
