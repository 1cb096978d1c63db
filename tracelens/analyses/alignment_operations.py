"""The collective operations of each rank: kernels of one operation put together, with NCCL's payload where recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.blocks import blocks, each, run_starts
from tracelens.analyses.clock import Ints
from tracelens.analyses.matching_instances import Bools, Rows
from tracelens.analyses.timeline import KERNEL, Narrow, Timeline, timeline
from tracelens.analyses.timeline_columns import Lengths, RunCodes, narrowest, portions
from tracelens.sqlfiles import queries
from tracelens.trace import LoadedTrace

SQL = Path(__file__).with_name("alignment.sql")

NO_PAYLOAD = 0

_BATCH_ROWS, _CELLS = 1 << 18, 1 << 16
_FEW = 8  # so few values are found by looking for each; more by sorting


@dataclass(frozen=True)
class Column:
    """What is worked out of operations where it is asked for, `column[rows]`: what is kept is shorter."""

    work: Callable[[slice | npt.NDArray[Any]], Ints]

    def __getitem__(self, rows: slice | npt.NDArray[Any]) -> Ints:
        return self.work(rows)


@dataclass(frozen=True)
class Operations:
    """One row per collective operation of one rank, in the order of rank and start; own times in ns.

    Attributes:
        first: int64 [ranks + 1], where the operations of each rank asked for begin.
        id_shift: int64 [ranks], the id of an event less its place on the timeline.
        owner: index of the rank among the ranks asked for, in the fewest bytes.
        place, last_place: int32, places on the timeline of its first and last kernel; one array where each has one.
        start: int64, of the first kernel.
        duration: ns, to the end of the last kernel, uint32 unless one is 4.3 s or longer.
        leave_after: ns, to the end of the kernel at which all ranks leave together; `duration` where each has one kernel.
        name_id, stream: of the first kernel, in the fewest bytes.
        shape_code: of the first kernel, place in `shapes`, in the fewest bytes.
        shapes: int64, ascending, the launch shapes.
        family: index into `families`, in the fewest bytes.
        families: (operation, implementation, synchronising).
        payload_code: place in `payloads`, in the fewest bytes; null where no payload is recorded.
        payloads: uint64, ascending, NCCL's communicator ids; the first is 0: none is recorded.
        message_bytes: int64, -1 where unknown.
    """

    first: Ints
    id_shift: Ints
    owner: Narrow
    place: Rows
    last_place: Rows
    start: Ints
    duration: Lengths
    leave_after: Lengths
    name_id: npt.NDArray[np.integer]
    stream: npt.NDArray[np.integer]
    shape_code: Narrow
    shapes: Ints
    family: Narrow
    families: tuple[tuple[str, str, bool], ...]
    payload_code: Narrow | None
    payloads: npt.NDArray[np.uint64]
    message_bytes: Ints

    def __len__(self) -> int:
        return len(self.place)

    @property
    def event_id(self) -> Column:
        """Id of the first kernel of each, int64."""
        return Column(lambda rows: self.place[rows] + self.id_shift[self.owner[rows]])

    @property
    def last_event_id(self) -> Column:
        """Id of the last kernel of each, int64."""
        return Column(lambda rows: self.last_place[rows] + self.id_shift[self.owner[rows]])

    @property
    def end(self) -> Column:
        """End of the last kernel of each, int64 ns, own time."""
        return Column(lambda rows: self.start[rows] + self.duration[rows])

    @property
    def shape(self) -> Column:
        """Launch shape of each, int64."""
        return Column(lambda rows: self.shapes[self.shape_code[rows]])

    def of_rank(self, owner: int) -> slice:
        """Rows of one rank."""
        return slice(int(self.first[owner]), int(self.first[owner + 1]))

    @property
    def family_synchronises(self) -> Bools:
        """Whether the operations of each family make early ranks wait."""
        return np.array([synchronising for _, _, synchronising in self.families], dtype=bool)


def load_operations(trace: LoadedTrace, ranks: list[int]) -> Operations:
    """The collective operations of `ranks`, from the timeline and the model."""
    names = trace.rows(SQL, "families")
    described = [
        (str(o), str(i or "unknown"), bool(s) and o != "unknown")
        for o, i, s in names.select("operation", "implementation", "synchronising").iter_rows()
    ]
    families = tuple(sorted(set(described)))
    tl, room = timeline(trace), trace.room
    family_of_name = np.zeros(tl.names.height, dtype=narrowest(len(families)))
    family_of_name[names["name_id"].to_numpy()] = [families.index(family) for family in described]
    first, place, last_place = _kernels(trace, tl, ranks, names)
    count = len(place)
    owners = np.searchsorted(np.array(ranks), tl.ranks)
    id_shift = np.zeros(len(ranks), np.int64)
    id_shift[owners] = tl.first_id - tl.first[:-1]
    low, high = int(tl.stream_number.min(initial=0)), int(tl.stream_number.max(initial=0))
    streams = tl.stream_number.astype(np.result_type(np.min_scalar_type(low), np.min_scalar_type(high)))
    start = room.empty(count, np.int64)
    owner, family = room.empty(count, narrowest(len(ranks))), room.empty(count, family_of_name.dtype)
    name_id, stream = room.empty(count, tl.name.dtype), room.empty(count, streams.dtype)

    shapes = _ShapeCodes(count, room)

    def read(chosen: slice) -> None:
        """Writes the columns of the operations of some ranks of the timeline."""
        for rank in range(chosen.start, chosen.stop):
            index = int(owners[rank])
            for part in blocks(int(first[index]), int(first[index + 1])):
                at = place[part]
                np.subtract(tl.start[at], tl.shift[rank], out=start[part])
                owner[part] = index
                name_id[part] = tl.name[at]
                family[part] = family_of_name[name_id[part]]
                stream[part] = streams[tl.stream[at]]
        shapes.read(trace, tl, chosen, place)

    deque(each(read, portions(tl.first, trace.threads), trace.threads), 0)
    shape_code, shape_numbers = shapes.done()
    duration = _lengths(trace, tl, place, last_place)
    operations = Operations(
        first=first,
        id_shift=id_shift,
        owner=owner,
        place=place,
        last_place=last_place,
        start=start,
        duration=duration,
        leave_after=duration if last_place is place else _lengths(trace, tl, place, place),
        name_id=name_id,
        stream=stream,
        shape_code=shape_code,
        shapes=shape_numbers,
        family=family,
        families=families,
        payload_code=None,
        payloads=np.array([NO_PAYLOAD], np.uint64),
        message_bytes=np.broadcast_to(np.int64(-1), count),
    )
    nccl = np.array([f[1].startswith("nccl") for f in families], dtype=bool)
    if any(bool((nccl[family[part]] & ~tl.in_graph[place[part]]).any()) for part in blocks(0, count)):
        return _with_payloads(trace, operations)
    return operations


def _kernels(trace: LoadedTrace, tl: Timeline, ranks: list[int], names: pl.DataFrame) -> tuple[Ints, Rows, Rows]:
    """Where the operations of each rank begin, and the places of each one's first and last kernel."""
    numbers = names["name_id"].to_list()
    collective = np.zeros(tl.names.height, dtype=bool)
    collective[numbers] = True

    def chosen(part: slice) -> Bools:
        name = tl.name[part]
        if len(numbers) > _FEW:
            result: Bools = collective[name]
        else:
            result = np.zeros(len(name), dtype=bool)
            for number in numbers:
                result |= name == number
        result &= tl.kind[part] == KERNEL
        return result

    parts = list(tl.stretches())
    counts = list(each(lambda part: int(np.count_nonzero(chosen(part))), parts, trace.threads))
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    place: Rows = trace.room.empty(int(edges[-1]), np.int32)

    def fill(index: int) -> None:
        np.add(np.flatnonzero(chosen(parts[index])), parts[index].start, out=place[edges[index] : edges[index + 1]])

    deque(each(fill, range(len(parts)), trace.threads), 0)
    # A rank begins where its first part does; ranks without events begin where the next one does.
    begins = edges[np.searchsorted([part.start for part in parts], tl.first)]
    first = begins[np.searchsorted(tl.ranks, [*ranks, ranks[-1] + 1])] if ranks else np.zeros(1, np.int64)
    if not len(place) or bool(names["barrier_end"].all()):
        return first, place, place
    return _put_together(trace, tl, first, place)


def _put_together(trace: LoadedTrace, tl: Timeline, first: Ints, kernel: Rows) -> tuple[Ints, Rows, Rows]:
    """The same of operations of several kernels, from the places of all `kernel`s, which are overwritten."""
    followers = trace.rows(SQL, "followers")
    follower, previous = followers["event_id"].to_numpy(), followers["previous_id"].fill_null(-1).to_numpy()
    last_place: Rows = trace.room.empty(len(kernel), np.int32)
    begins = np.zeros_like(first)
    low = 0
    for owner, (begin, end) in enumerate(pairwise(first.tolist())):
        if begin < end:
            place = kernel[begin:end].copy()
            ids = tl.ids_of(place)
            mine = slice(*np.searchsorted(follower, [ids[0], ids[-1] + 1]))
            head, last = _heads(ids, follower[mine], previous[mine])
            kernel[low : low + len(head)] = place[head]
            last_place[low : low + len(head)] = place[last]
            low += len(head)
        begins[owner + 1] = low
    return begins, kernel[:low], last_place[:low]


def _heads(event_id: Ints, follower: Ints, previous: Ints) -> tuple[Ints, Ints]:
    """Rows of the kernels that begin an operation, and the row of each one's last kernel.

    Args:
        event_id: the collective kernels of one rank, ascending.
        follower: those that finish an operation, ascending.
        previous: the kernel before each on its stream, -1 for the first.
    """
    rows = np.arange(len(event_id))
    follows = np.full(len(event_id), -1, dtype=np.int64)
    later = np.searchsorted(event_id, follower)
    inside = event_id[np.minimum(later, len(event_id) - 1)] == follower
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


def _lengths(trace: LoadedTrace, tl: Timeline, begins: Rows, ends: Rows) -> Lengths:
    """From the start of one kernel to the end of another."""
    kinds: tuple[npt.DTypeLike, ...] = (tl.length.dtype,) if begins is ends else (np.uint32, np.int64)
    for kind in kinds:
        result: Lengths = trace.room.empty(len(begins), kind)
        limit = int(np.iinfo(result.dtype).max)

        def fill(part: slice, result: Lengths = result, limit: int = limit) -> bool:
            """Whether all of these fit."""
            length = tl.length[ends[part]]
            if begins is not ends:
                length = length + (tl.start[ends[part]] - tl.start[begins[part]])
            result[part] = length
            return int(length.max()) <= limit

        if all(list(each(fill, blocks(0, len(begins)), trace.threads))):
            break
    return result


class _ShapeCodes(RunCodes):
    """Codes for the launch shapes of kernels, of which neighbours are mostly equal, read by several threads."""

    def read(self, trace: LoadedTrace, tl: Timeline, chosen: slice, place: Rows) -> None:
        """Codes those of the kernels at ascending places of the timeline that belong to some of its ranks."""
        ranks = tl.ranks[chosen].tolist()
        low = int(tl.first[chosen.start])
        asked = {"ranks": ranks, "first": ranks[0], "last": ranks[-1]}
        with trace.db.cursor() as db:
            for batch in db.sql(queries(SQL)["shapes"], params=asked).to_arrow_reader(_BATCH_ROWS):
                # Of the same type: others would have all places copied.
                part = slice(*np.searchsorted(place, np.array([low, low + batch.num_rows], np.int32)))
                own = batch.column(0).to_numpy()[place[part] - low]
                low += batch.num_rows
                begins = run_starts(own)
                used, of_run = np.unique(own[begins], return_inverse=True)
                self._write(part, begins, used.tolist(), of_run)

    def done(self) -> tuple[Narrow, Ints]:
        """(code of each, the shapes, ascending)."""
        shapes = np.array(list(self._known), np.int64)
        order = np.argsort(shapes)
        return self._sorted(order), shapes[order]


def _with_payloads(trace: LoadedTrace, operations: Operations) -> Operations:
    """The operations with NCCL's communicator ids and message sizes where ranges carry them."""
    trace.ensure("nvtx")
    if int(trace.rows(SQL, "payload_count")["row_count"][0]) == 0:
        return operations
    trace.ensure("launch")
    found = trace.rows(SQL, "payloads")
    event_id, message_bytes = found["event_id"].to_numpy(), found["message_bytes"].fill_null(-1).to_numpy()
    payloads = np.union1d(operations.payloads, found["comm_id"].to_numpy())
    of_found = np.searchsorted(payloads, found["comm_id"].to_numpy()).astype(narrowest(len(payloads)))
    code, size = (trace.room.empty(len(operations), dtype) for dtype in (of_found.dtype, np.int64))
    code[:], size[:] = 0, -1
    for owner, id_shift in enumerate(operations.id_shift.tolist()):
        own = operations.of_rank(owner)
        ids = operations.place[own] + id_shift
        at = np.searchsorted(event_id, ids)
        known = np.flatnonzero(event_id[np.minimum(at, len(event_id) - 1)] == ids) if len(event_id) else at[:0]
        code[own][known], size[own][known] = of_found[at[known]], message_bytes[at[known]]
    return replace(operations, payload_code=code, payloads=payloads, message_bytes=size)


def grouped(rows: npt.NDArray[np.integer], *columns: npt.NDArray[np.integer]) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Rows by equal values: (the values, the rows as they come), values ascending.

    Args:
        rows: places of operations.
        columns: values of each row, as many as rows.
    """
    if len(rows) == 0:
        return
    code: npt.NDArray[np.integer] = np.zeros(len(rows), dtype=np.uint8)
    count = 1
    for column in columns:
        if column.min() == column.max():
            continue
        own, width = numbered(column)
        code, count = numbered(code * np.int64(width) + own if count > 1 else own)
    if count == 1:
        yield tuple(int(column[0]) for column in columns), rows
        return
    code = code.astype(narrowest(count))
    if count <= _FEW:
        groups = [np.flatnonzero(code == number) for number in range(count)]
    else:
        order = np.argsort(code, kind="stable")
        groups = np.split(order, run_starts(code[order])[1:])
    for chosen in groups:
        yield tuple(int(column[chosen[0]]) for column in columns), rows[chosen]


def numbered(values: npt.NDArray[np.integer]) -> tuple[Ints, int]:
    """Each value's place among the distinct ones in ascending order, and their number."""
    low = int(values.min())
    width = int(values.max()) - low + 1
    if width > 4 * len(values) + _CELLS:
        used = np.unique(values)
        return np.searchsorted(used, values), len(used)
    present = np.zeros(width, dtype=bool)
    present[np.subtract(values, low, dtype=np.int64)] = True
    return (np.cumsum(present) - 1)[np.subtract(values, low, dtype=np.int64)], int(np.count_nonzero(present))
