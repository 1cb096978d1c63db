"""Events on their way to the model: whatever the batches, the slices and the memory, the order of the values alone.

batch 1: | t=5 a | t=2 b |      batch 2: | t=2 c | t=9 a |
rank of a, sorted: t=5, t=9     slices of any size, in memory or from the spill file: the same rows
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.ingest.event_columns import Codes, narrow
from tracelens.ingest.event_runs import NO_DEVICE, EventRuns
from tracelens.ingest.forms import forms_of, numbered
from tracelens.model import event_files

COLUMNS = ("start_ns", "end_ns", "device", "global_pid", "stream", "correlation", "graph_node", "bytes")
ROW = st.tuples(
    st.integers(1, 6),
    st.integers(0, 3),
    st.integers(0, 1),
    st.sampled_from([0, 1 << 24]),
    st.none() | st.integers(0, 2),
    st.none() | st.integers(0, 2),
    st.none() | st.sampled_from([0, 1 << 40]),
    st.none() | st.integers(0, 1),
)


def batch(rows: list[tuple[Any, ...]]) -> dict[str, pa.Array]:
    shaped = [(start, start + length, *rest) for start, length, *rest in rows]
    return {name: pa.array([row[at] for row in shaped], pa.int64()) for at, name in enumerate(COLUMNS)}


def add(runs: EventRuns, kind: int, columns: dict[str, pa.Array], names: Any = None, shift_ns: int = 0) -> None:
    """Adds plain columns; `names`: the number of each row's name, 0 by default."""
    own = {name: column for name, column in columns.items() if name in ("start_ns", "end_ns", "correlation")}
    repeated = {name: column for name, column in columns.items() if name not in own}
    repeated["name"] = pa.array(np.zeros(len(columns["device"]), np.int64) if names is None else names, pa.int64())
    together = pa.RecordBatch.from_arrays([*own.values(), *repeated.values()], [*own, *repeated])
    codes, forms = forms_of(numbered(together, len(own)))
    runs.add(kind, own, codes, forms, forms.pop("name").to_numpy().astype(np.int32), shift_ns)


def tables(runs: EventRuns) -> list[tuple[Any, ...]]:
    """All events: rank (the place's number), then their values in the model's order."""
    places = list(enumerate(runs.places))
    made = list(event_files.rank_tables(runs, places, {0: np.arange(8, dtype=np.int32)}))
    picked = ("rank", "kind", "start_ns", "end_ns", "stream", "correlation", "graph_node", "name_id", "bytes")
    return [row for one in made for row in zip(*(one.column(name).to_pylist() for name in picked), strict=True)]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(ROW, max_size=12)), max_size=6),
    st.booleans(),
    st.integers(1, 8),
)
def test_the_order_is_that_of_the_values(batches: list[Any], spill: bool, slice_rows: int) -> None:
    runs = EventRuns(0 if spill else None)
    runs.begin(0, 10**9)
    expected = []
    for kind, rows in batches:
        names = np.arange(len(rows), dtype=np.int32) % 3
        add(runs, kind, batch(rows), names)
        for (start, length, device, pid, stream, correlation, node, size), name in zip(rows, names, strict=True):
            stream = -1 if stream is None else stream
            expected.append(((pid, device), kind, start, start + length, stream, correlation, node, int(name), size))
    places = sorted({row[0] for row in expected})
    runs.finish()
    whole = runs.slices
    runs.slices = lambda place, rows=slice_rows: whole(place, rows, rows)  # type: ignore[method-assign]

    def key(row: tuple[Any, ...]) -> tuple[Any, ...]:
        nulls_first = [(value is not None, value or 0) for value in (row[4], row[5], row[6], row[7], row[8])]
        return (row[0], row[2], -row[3], row[1], *nulls_first)

    assert tables(runs) == [(places.index(row[0]), *row[1:]) for row in sorted(expected, key=key)]
    assert runs.spilled_bytes == 0 or spill
    runs.close()


def test_rows_that_are_no_events_are_counted() -> None:
    """A session of 1 s: no device, an impossible one, no end, start = end = 0, end before start, long after the session."""
    runs = EventRuns()
    runs.begin(0, 10**9)
    columns = {
        "start_ns": pa.array([5, 5, 5, 0, 9, 70_000_000_000, 6], pa.int64()),
        "end_ns": pa.array([6, 6, None, 0, 8, 70_000_000_001, 7], pa.int64()),
        "device": pa.array([None, -1, 0, 0, 0, 0, 0], pa.int64()),
    }
    add(runs, 0, columns)
    totals = runs.finish()
    assert runs.left_out == {(0, "no time or device"): 3, (0, "bad timestamp"): 3}
    assert {place: one.rows for (place, _), one in totals.items()} == {(0, 0, 0): 1}


def test_a_shift_that_leaves_64_bits_makes_no_time() -> None:
    runs = EventRuns()
    runs.begin(0, 10**9)
    columns = {
        "start_ns": pa.array([-(2**63), 2_000], pa.int64()),
        "end_ns": pa.array([2_500, 2_500], pa.int64()),
        "device": pa.array([0, 0], pa.int64()),
    }
    add(runs, 0, columns, shift_ns=1_000)
    assert runs.finish()[(0, 0, 0), 0].first_ns == 1_000
    assert runs.left_out == {(0, "no time or device"): 1}


def test_without_a_session_the_middle_event_bounds_the_others() -> None:
    """Two events an hour in, one stamped with garbage 100 days away."""
    runs = EventRuns()
    runs.begin(0, None)
    far = 100 * 86_400 * 10**9
    starts = [3_600 * 10**9, 3_601 * 10**9, far]
    columns = {
        "start_ns": pa.array(starts, pa.int64()),
        "end_ns": pa.array([one + 5 for one in starts], pa.int64()),
        "device": pa.array([0, 0, 0], pa.int64()),
    }
    add(runs, 0, columns)
    totals = runs.finish()
    assert totals[(0, 0, 0), 0].rows == 2
    assert runs.left_out == {(0, "bad timestamp"): 1}
    assert runs.row_count == 2


def test_a_graph_without_a_device_goes_where_its_process_works() -> None:
    """Process 7 works 10 ns on device 0 and 90 ns on device 3: its graph of device INT_MAX is device 3's."""
    runs = EventRuns()
    runs.begin(0, 10**9)

    def run(kind: int, device: int, length: int) -> None:
        columns = {
            "start_ns": pa.array([100], pa.int64()),
            "end_ns": pa.array([100 + length], pa.int64()),
            "device": pa.array([device], pa.int64()),
            "global_pid": pa.array([7 << 24], pa.int64()),
        }
        add(runs, kind, columns)

    run(0, 0, 10)
    run(0, 3, 90)
    run(3, NO_DEVICE, 50)
    totals = runs.finish()
    assert {(place[2], kind): one.total_ns for (place, kind), one in totals.items()} == {(0, 0): 10, (3, 0): 90, (3, 3): 50}  # fmt: skip


def test_a_spill_file_has_no_name(tmp_path: Path) -> None:
    runs = EventRuns(0, tmp_path)
    runs.begin(0, 10**9)
    add(runs, 0, batch([(1, 2, 0, 0, 1, 1, 0, None)]))
    assert runs.spilled_bytes > 0
    assert list(tmp_path.iterdir()) == []
    assert len(tables(runs)) == 1
    runs.close()


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([0, 255], "u1"), ([-1, 5], "i2"), ([0, 40_000], "u2"), ([0, 2**32 - 1], "u4"), ([0, 2**32], "i8")],
)
def test_numbers_take_the_bytes_that_they_need(values: list[int], dtype: str) -> None:
    narrowed = narrow(np.array(values, np.int64))
    assert narrowed.dtype == np.dtype(dtype)
    assert narrowed.tolist() == values


def test_codes_number_values_and_null() -> None:
    codes = Codes()
    assert codes.encode(pa.array([7, None, 7, 9], pa.int64())).tolist() == [0, 1, 0, 2]
    assert codes.encode(pa.array([9, None], pa.int64())).tolist() == [2, 1]
    assert codes.values == [7, None, 9]
