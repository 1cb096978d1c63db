"""Columns of the events, read in batches straight into the arrays that the analyses walk along."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.analyses.blocks import blocks, each, run_starts
from tracelens.array_room import ArrayRoom
from tracelens.sqlfiles import queries
from tracelens.trace import LoadedTrace

SQL = Path(__file__).with_name("timeline.sql")

_BATCH_ROWS = 262_144

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Narrow = npt.NDArray[np.unsignedinteger]
Lengths = Ints | npt.NDArray[np.uint32]
Places = tuple[Ints, npt.NDArray[Any]]
"""Places of events and a value for each."""


@dataclass(frozen=True)
class Columns:
    """The columns that every walk needs, in the order of event ids.

    Attributes:
        rank: int64 [ranks with events], ascending.
        first: int64 [ranks + 1], where each rank's events begin.
        first_id: int64 [ranks], id of each rank's first event; those of its others follow.
        start: int64 ns [events], own time.
        length: ns [events], uint32 unless one is 4.3 s or longer.
        kind: uint8 [events].
        in_graph: bool [events].
        stream: [events], place in `streams`.
        streams: int64 [streams, 2], ascending: rank, number of the stream.
        name: [events], the number of the name.
        graph_runs: (places, graph ids), each of the events from that place to the next; -1 outside graphs.
        copies: (places, copy kinds) of the copies between host and device.
    """

    rank: Ints
    first: Ints
    first_id: Ints
    start: Ints
    length: Lengths
    kind: npt.NDArray[np.uint8]
    in_graph: npt.NDArray[np.bool_]
    stream: Narrow
    streams: Ints
    name: Narrow
    graph_runs: tuple[Ints, Ints]
    copies: tuple[Ints, npt.NDArray[np.uint8]]


def read_columns(trace: LoadedTrace, name_count: int) -> Columns:
    """The columns of all events of a trace's ranks.

    Raises:
        RuntimeError: the events do not come in the order of their ids.
    """
    sizes = trace.rows(SQL, "event_counts", ranks=trace.ranks)
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes["event_count"].to_numpy())])
    count, room = int(first[-1]), trace.room
    start, lengths = room.empty(count, np.int64), _NarrowNumbers(count, room)
    kind, in_graph = room.empty(count, np.uint8), room.empty(count, bool)
    name = room.empty(count, narrowest(name_count))
    streams = PairCodes(count, room)

    def read(chosen: slice) -> tuple[Places, Places, list[tuple[int, int, int]]]:
        """(graph runs, copies, heads) of some ranks, their columns written."""
        graphs, copies = [], []
        heads: list[tuple[int, int, int]] = []
        ranks = sizes["rank"][chosen].to_list()
        low = int(first[chosen.start])
        for batch, (ids, rank, length, *values, graph, number, copy_kind) in batches(
            trace, "events", ranks=ranks, first=ranks[0], last=ranks[-1]
        ):
            part = slice(batch.start + low, batch.stop + low)
            for target, own in zip((start, kind, in_graph, name), values, strict=True):
                target[part] = own
            lengths.write(part, length)
            begins = run_starts(graph)
            graphs.append((begins + part.start, graph[begins]))
            copied = np.flatnonzero(copy_kind)
            copies.append((copied + part.start, copy_kind[copied]))
            _add_heads(heads, part.start, ids, rank)
            streams.add(part, rank, number)
        return joined(graphs), joined(copies), heads

    found = list(each(read, portions(first, trace.threads), trace.threads))
    heads = [head for _, _, those in found for head in those]
    columns = [np.array(column, np.int64) for column in zip(*heads, strict=True)] or [np.empty(0, np.int64)] * 3
    code, used = streams.done()
    none = np.empty(0, np.int64)
    return Columns(
        rank=columns[0],
        first=np.append(columns[1], count),
        first_id=columns[2],
        start=start,
        length=lengths.values,
        kind=kind,
        in_graph=in_graph,
        stream=code,
        streams=used,
        name=name,
        graph_runs=joined([(none, none), *(graphs for graphs, _, _ in found)]),
        copies=joined([(none, none.astype(np.uint8)), *(copies for _, copies, _ in found)]),
    )


def portions(first: Ints, threads: int) -> list[slice]:
    """Ranks that follow each other, for one thread each: about as many events in every portion, a whole rank at least.

    DuckDB hands rows out in the order of the table on one thread alone.

    Args:
        first: int64 [ranks + 1], where each rank's events begin.
        threads: how many there are.
    """
    count = int(first[-1])
    if count == 0:
        return []
    wanted = 2 * threads if threads > 1 and count > _BATCH_ROWS else 1
    edges = np.unique(np.searchsorted(first, np.linspace(0, count, wanted + 1)))
    return [slice(low, high) for low, high in pairwise(edges.tolist())]


def joined(parts: list[Places]) -> Places:
    """Places and values that follow each other as one."""
    return np.concatenate([places for places, _ in parts]), np.concatenate([values for _, values in parts])


def _add_heads(heads: list[tuple[int, int, int]], low: int, ids: Ints, rank: Codes) -> None:
    """Adds the ranks that begin in a batch of events from place `low` on."""
    jumps = np.flatnonzero(rank[1:] != rank[:-1]) + 1
    steps = ids[1:] - ids[:-1]
    in_order = np.count_nonzero(steps == 1) == len(steps) - np.count_nonzero(steps[jumps - 1] != 1)
    if not heads or heads[-1][0] != rank[0]:
        jumps = np.concatenate([np.zeros(1, np.int64), jumps])
    else:
        in_order &= ids[0] - heads[-1][2] == low - heads[-1][1]
    for place in jumps.tolist():
        in_order &= not heads or heads[-1][0] < rank[place]
        heads.append((int(rank[place]), low + place, int(ids[place])))
    if not in_order:
        raise RuntimeError("the table of events is not in the order of its ids")


class _NarrowNumbers:
    """Numbers that mostly fit into 32 bits without a sign, written by several threads."""

    def __init__(self, count: int, room: ArrayRoom) -> None:
        self._room = room
        self._lock = threading.Lock()
        self.values: Lengths = room.empty(count, np.uint32)

    def write(self, part: slice, values: Ints) -> None:
        with self._lock:
            limits = np.iinfo(self.values.dtype)
            if int(values.min()) < limits.min or int(values.max()) > limits.max:
                self.values = as_type(self.values, np.int64, self._room)
            self.values[part] = values


class RunCodes:
    """Codes of values that are told run by run, of which few differ: in the fewest bytes, written by several threads.

    Args:
        count: how many codes there will be.
        room: where they lie.
    """

    def __init__(self, count: int, room: ArrayRoom) -> None:
        self._room = room
        self._code: Narrow = room.empty(count, np.uint8)
        self._lock = threading.Lock()
        self._known: dict[Any, int] = {}

    def _write(self, part: slice, begins: Ints, values: Iterable[Any], of_run: Ints) -> None:
        """Codes the places of `part`, where runs begin at `begins` and have the value at `of_run` in `values`."""
        lengths = np.diff(np.append(begins, part.stop - part.start))
        with self._lock:
            codes = [self._known.setdefault(value, len(self._known)) for value in values]
            if len(self._known) - 1 > np.iinfo(self._code.dtype).max:
                self._code = as_type(self._code, narrowest(len(self._known)), self._room)
            self._code[part] = np.repeat(np.array(codes, self._code.dtype)[of_run], lengths)

    def _sorted(self, order: Ints) -> Narrow:
        """The codes, those of the values at `order` numbered from 0."""
        if not bool((order[1:] > order[:-1]).all()):
            place = np.empty(len(order), self._code.dtype)
            place[order] = np.arange(len(order), dtype=self._code.dtype)
            for part in blocks(0, len(self._code)):
                self._code[part] = place[self._code[part]]
        return self._code


class PairCodes(RunCodes):
    """Codes for pairs of numbers that are told batch by batch, of which neighbours are mostly equal."""

    def add(self, part: slice, left: npt.NDArray[np.integer], right: npt.NDArray[np.integer]) -> None:
        """Codes the pairs at the places of `part`; several threads may add at once."""
        begins = run_starts(left, right)
        pairs, inverse = np.unique(np.stack([left[begins], right[begins]]), axis=1, return_inverse=True)
        self._write(part, begins, zip(*pairs.tolist(), strict=True), inverse.reshape(-1))

    def done(self) -> tuple[Narrow, Ints]:
        """(code of each, int64 [codes, 2] the pairs, ascending)."""
        pairs = np.array(list(self._known), np.int64).reshape(-1, 2)
        order = np.lexsort((pairs[:, 1], pairs[:, 0]))
        return self._sorted(order), pairs[order]


def narrowest(count: int) -> npt.DTypeLike:
    """The unsigned integers of fewest bytes that hold places among `count`."""
    return np.min_scalar_type(max(count - 1, 0))


def as_type(values: npt.NDArray[Any], dtype: npt.DTypeLike, room: ArrayRoom) -> npt.NDArray[Any]:
    """`values` as numbers of another type."""
    result = room.empty(len(values), dtype)
    for part in blocks(0, len(values)):
        result[part] = values[part]
    return result


def batches(trace: LoadedTrace, query: str, **parameters: Any) -> Iterator[tuple[slice, list[npt.NDArray[Any]]]]:
    """(places, columns) of a query of the timeline's file without nulls, in batches that bound the memory."""
    low = 0
    # A connection of its own: a thread that takes its time must not end another's answer.
    with trace.db.cursor() as db:
        for batch in db.sql(queries(SQL)[query], params=parameters).to_arrow_reader(_BATCH_ROWS):
            if batch.num_rows:
                yield slice(low, low + batch.num_rows), [column.to_numpy() for column in batch.columns]
                low += batch.num_rows


def one_number(trace: LoadedTrace, query: str, ranks: Ints, first: Ints) -> Ints | Codes:
    """One number for each event of `ranks`, which begin at `first`; int32 where all fit, which is half the memory."""
    values: Ints | Codes = trace.room.empty(int(first[-1]), np.int32)

    def read(chosen: slice) -> bool:
        """Writes the numbers of some ranks; whether all of them fit."""
        limits = np.iinfo(values.dtype)
        low = int(first[chosen.start])
        own_ranks = ranks[chosen].tolist()
        for part, (own,) in batches(trace, query, ranks=own_ranks, first=own_ranks[0], last=own_ranks[-1]):
            if int(own.min()) < limits.min or int(own.max()) > limits.max:
                return False
            values[part.start + low : part.stop + low] = own
        return True

    if not all(each(read, portions(first, trace.threads), trace.threads)):
        values = trace.room.empty(int(first[-1]), np.int64)
        deque(each(read, portions(first, trace.threads), trace.threads), 0)
    return values
