"""The collective operations of each rank: kernels of one operation put together, with NCCL's payload where recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.clock import Ints
from tracelens.analyses.matching_instances import Bools, Rows
from tracelens.analyses.timeline import timeline
from tracelens.sqlfiles import queries
from tracelens.trace import LoadedTrace

SQL = Path(__file__).with_name("alignment.sql")

NO_PAYLOAD = 0

_BATCH_ROWS, _CELLS = 1 << 18, 1 << 16


@dataclass(frozen=True)
class Operations:
    """One row per collective operation of one rank, in the order of rank and start; own times in ns.

    Attributes:
        owner: int32, index of the rank among the ranks asked for.
        event_id, last_event_id: int64, its first and last kernel.
        start, end: int64, of the first and the last kernel.
        leave: int64, end of the kernel at which all ranks leave together.
        name_id, stream, shape: of the first kernel, the shape int64.
        family: int32, index into `families`.
        families: (operation, implementation, synchronising).
        payload: uint64, NCCL's communicator id; 0 where none is recorded.
        message_bytes: int64, -1 where unknown.
    """

    owner: Rows
    event_id: Ints
    last_event_id: Ints
    start: Ints
    end: Ints
    leave: Ints
    name_id: npt.NDArray[np.integer]
    stream: npt.NDArray[np.integer]
    shape: Ints
    family: Rows
    families: tuple[tuple[str, str, bool], ...]
    payload: npt.NDArray[np.uint64]
    message_bytes: Ints

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def synchronising(self) -> Bools:
        """Whether each operation makes early ranks wait."""
        of_family = np.array([f[2] for f in self.families] or [False], dtype=bool)
        return np.ones(len(self), dtype=bool) if bool(of_family.all()) else of_family[self.family]


def load_operations(trace: LoadedTrace, ranks: list[int]) -> Operations:
    """The collective operations of `ranks`, from the timeline and the model."""
    names = trace.rows(SQL, "families")
    described = [
        (str(o), str(i or "unknown"), bool(s) and o != "unknown")
        for o, i, s in names.select("operation", "implementation", "synchronising").iter_rows()
    ]
    families = tuple(sorted(set(described)))
    place = {family: index for index, family in enumerate(families)}
    by_name = np.zeros((max(names["name_id"].to_list(), default=0) + 1,), dtype=np.int32)
    by_name[names["name_id"].to_numpy()] = [place[family] for family in described]
    tl = timeline(trace)
    at = np.flatnonzero(tl.is_collective)
    shape = _shapes(trace, ranks, at)
    event_id = tl.ids_of(at)
    head, leads = _heads(trace, names, event_id)
    first, last = at[head], at[leads]
    of_rank = tl.rank_place[first]
    # Fresh memory costs more than the sums: own times are made where the axis times were gathered.
    shift = tl.shift[of_rank]
    start, end = tl.start[first], tl.end[last]
    start -= shift
    end -= shift
    name_id = tl.name[first]
    streams = tl.stream_number
    if len(streams) and -(1 << 31) <= int(streams.min()) <= int(streams.max()) < 1 << 31:
        streams = streams.astype(np.int32)
    operations = Operations(
        owner=np.searchsorted(np.array(ranks), tl.ranks).astype(np.int32)[of_rank],
        event_id=event_id[head],
        last_event_id=event_id[leads],
        start=start,
        end=end,
        leave=end if isinstance(head, slice) else tl.end[first] - shift,
        name_id=name_id,
        stream=streams[tl.stream[first]],
        shape=shape[head],
        family=by_name[name_id],
        families=families,
        payload=np.broadcast_to(np.uint64(NO_PAYLOAD), len(first)),
        message_bytes=np.broadcast_to(np.int64(-1), len(first)),
    )
    nccl = np.array([f[1].startswith("nccl") for f in families] or [False], dtype=bool)
    if bool((nccl[operations.family] & ~tl.in_graph[first]).any()):
        return _with_payloads(trace, operations)
    return operations


def _shapes(trace: LoadedTrace, ranks: list[int], places: Ints) -> Ints:
    """Launch shapes of the events at ascending places of the timeline, -1 where none is recorded."""
    result = np.empty(len(places), dtype=np.int64)
    low = 0
    for batch in trace.db.sql(queries(SQL)["shapes"], params={"ranks": ranks}).to_arrow_reader(_BATCH_ROWS):
        first, last = np.searchsorted(places, [low, low + batch.num_rows])
        result[first:last] = batch.column(0).to_numpy()[places[first:last] - low]
        low += batch.num_rows
    return result


def _heads(trace: LoadedTrace, names: pl.DataFrame, event_id: Ints) -> tuple[Ints | slice, Ints | slice]:
    """Rows of the kernels that begin an operation, and the row of each one's last kernel."""
    if len(event_id) == 0 or bool(names["barrier_end"].all()):
        return slice(None), slice(None)
    rows = np.arange(len(event_id))
    followers = trace.rows(SQL, "followers")
    follows = np.full(len(event_id), -1, dtype=np.int64)
    later = np.searchsorted(event_id, followers["event_id"].to_numpy())
    inside = (later < len(event_id)) & (
        event_id[np.minimum(later, len(event_id) - 1)] == followers["event_id"].to_numpy()
    )
    previous = followers["previous_id"].fill_null(-1).to_numpy()
    earlier = np.minimum(np.searchsorted(event_id, previous), len(event_id) - 1)
    begun = inside & (event_id[earlier] == previous)
    follows[later[begun]] = earlier[begun]
    # A follower whose beginning lies before the capture is an operation of which nothing can be said.
    orphan = np.zeros(len(event_id), dtype=bool)
    orphan[later[inside & ~begun]] = True
    head = np.arange(len(event_id))
    chained = follows >= 0
    while chained.any():
        head[chained] = follows[head[chained]]
        chained = follows[head] >= 0
    last = np.arange(len(event_id))
    np.maximum.at(last, head, rows)
    begins = (head == rows) & ~orphan
    return rows[begins], last[begins]


def _with_payloads(trace: LoadedTrace, operations: Operations) -> Operations:
    """The operations with NCCL's communicator ids and message sizes where ranges carry them."""
    trace.ensure("nvtx")
    if int(trace.rows(SQL, "payload_count")["row_count"][0]) == 0:
        return operations
    trace.ensure("launch")
    found = trace.rows(SQL, "payloads")
    at = np.searchsorted(operations.event_id, found["event_id"].to_numpy())
    known = (at < len(operations)) & (
        operations.event_id[np.minimum(at, len(operations) - 1)] == found["event_id"].to_numpy()
    )
    payload, message_bytes = operations.payload.copy(), operations.message_bytes.copy()
    payload[at[known]] = found["comm_id"].to_numpy()[known]
    message_bytes[at[known]] = found["message_bytes"].fill_null(-1).to_numpy()[known]
    return replace(operations, payload=payload, message_bytes=message_bytes)


def grouped(rows: Ints, *columns: npt.NDArray[np.integer]) -> Iterator[tuple[tuple[int, ...], Ints]]:
    """Rows by equal values: (the values, the rows as they come), values ascending.

    Args:
        rows: places of operations.
        columns: values of each row, as many as rows.
    """
    if len(rows) == 0:
        return
    code, count = np.zeros(len(rows), dtype=np.int64), 1
    for column in columns:
        if column.min() == column.max():
            continue
        own, width = numbered(column)
        code, count = numbered(code * width + own)
    order = np.argsort(code.astype(np.min_scalar_type(count - 1)), kind="stable")
    for chosen in np.split(order, np.flatnonzero(np.diff(code[order])) + 1):
        yield tuple(int(column[chosen[0]]) for column in columns), rows[chosen]


def numbered(values: npt.NDArray[np.integer]) -> tuple[Ints, int]:
    """Each value's place among the distinct ones in ascending order, and their number."""
    low = int(values.min())
    width = int(values.max()) - low + 1
    if width > 4 * len(values) + _CELLS:
        used = np.unique(values)
        return np.searchsorted(used, values), len(used)
    present = np.zeros(width, dtype=bool)
    present[values - low] = True
    return (np.cumsum(present) - 1)[values - low], int(np.count_nonzero(present))
