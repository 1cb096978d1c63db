"""All events of a trace on one axis, with the launch call of each.

A rank is a stretch of the axis, not a turn of a loop: every rank's own time is shifted so that the stretches follow
each other without touching. What is then computed once for the axis (unions, gaps, windows) holds for each rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.sqlfiles import queries
from tracelens.trace import LoadedTrace

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

_SQL = Path(__file__).with_suffix(".sql")

_BATCH_ROWS = 262_144
_CELLS = 50_000_000

KERNEL, MEMCPY, MEMSET, GRAPH = 0, 1, 2, 3
"""Kinds of events, as in the model."""

SAMPLING = (
    r"(?i)argmax|sampl|multinomial|gumbel|top_?k_?top_?p|top_?p_?(renorm|mask)|min_?p_|exponential|"
    r"logits_?(process|gather|soft|max)|softmax_?logits"
)
"""Kernels that pick tokens from logits."""

NOT_SAMPLING = r"(?i)moe|expert|gating|router|resampl|upsampl|downsampl|interpol"
"""Names that the pattern above would take although they route experts or scale images."""


@dataclass(frozen=True)
class Launches:
    """The API calls that launched events, sorted by (process, correlation id).

    Attributes:
        begin: int64 ns [calls], the call's begin on the export's host clock.
        end: int64 ns [calls], its end.
        thread: int32 [calls], place of the calling thread in `threads`.
        api: int32 [calls], place of the API's name in `api_names`.
        graph: bool [calls], whether the call replays a graph.
        threads: the (process, thread) pairs, ascending.
        api_names: names, ascending.
    """

    begin: Ints
    end: Ints
    thread: Codes
    api: Codes
    graph: Flags
    threads: pl.DataFrame
    api_names: tuple[str, ...]


@dataclass(frozen=True)
class Timeline:
    """Events in the order of their ids (rank, start) on one axis.

    Attributes:
        rank_table: rank, export, process, device, clock; one row per rank with events, ascending.
        first: int64 [ranks + 1], where each rank's events begin.
        shift: int64 ns [ranks]; axis time = the rank's own time + shift.
        event_id: int64 [events], ascending.
        start: int64 ns [events] on the axis.
        end: int64 ns [events] on the axis.
        kind: uint8 [events].
        stream: int32 [events], place in `stream_number` of this (rank, stream).
        name: int32 [events], place in `names`.
        stream_number: int64 [streams], the stream's number in the export.
        stream_rank: int32 [streams], place of its rank.
        names: name, bucket, operation, barrier_end per kernel name.
        trace: where the rest is fetched from on demand.
    """

    rank_table: pl.DataFrame
    first: Ints
    shift: Ints
    event_id: Ints
    start: Ints
    end: Ints
    kind: npt.NDArray[np.uint8]
    stream: Codes
    name: Codes
    stream_number: Ints
    stream_rank: Codes
    names: pl.DataFrame
    trace: LoadedTrace = field(repr=False)

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def ranks(self) -> Ints:
        """Rank numbers by place."""
        return self.rank_table["rank"].to_numpy().astype(np.int64)

    @cached_property
    def rank_place(self) -> npt.NDArray[np.int16]:
        """Place of each event's rank in `rank_table`."""
        counts = np.diff(self.first)
        return np.repeat(np.arange(len(counts), dtype=np.int16), counts)

    @cached_property
    def is_collective(self) -> Flags:
        """Whether each event is a kernel of a collective operation."""
        of_name = self.names["operation"].is_not_null().to_numpy()
        result: Flags = of_name[self.name] & (self.kind == KERNEL)
        return result

    @cached_property
    def sampling_names(self) -> Flags:
        """Whether each name is that of a kernel that picks tokens from logits."""
        names = self.names["name"]
        picks = names.str.contains(SAMPLING) & ~names.str.contains(NOT_SAMPLING)
        result: Flags = (picks & self.names["operation"].is_null()).to_numpy()
        return result

    @cached_property
    def correlation(self) -> Ints | Codes:
        """Correlation id of each event, -1 where the export has none; int32 where the ids fit."""
        return narrow(self._column("correlations", missing=-1))

    @property
    def graph_node(self) -> Ints:
        """Graph node of each event, 0 outside graphs. Not kept, because few ask for it."""
        return self._column("graph_nodes", missing=0)

    @cached_property
    def in_graph(self) -> Flags:
        """Whether each event is a node of a replayed graph."""
        result: Flags = self.graph_node != 0
        return result

    @property
    def shape(self) -> Ints:
        """Launch shape of each event, 0 for copies. Not kept."""
        return self._column("launch_shapes", missing=0)

    @property
    def graph(self) -> Ints | None:
        """Graph id of each event, -1 outside graphs; None where the export names no graphs. Not kept."""
        if not self.trace.rows(_SQL, "graph_ids_recorded")["recorded"][0]:
            return None
        return self._column("graphs", missing=-1)

    def _column(self, query: str, missing: int) -> Ints:
        values = np.empty(len(self), np.int64)
        in_order = True
        for low, frame in _batches(self.trace, query):
            high = low + frame.height
            ids = frame.to_series(0)
            in_order &= ids[0] == self.event_id[low] and ids[-1] == self.event_id[high - 1]
            values[low:high] = frame.to_series(1).fill_null(missing).to_numpy()
        if in_order:
            return values
        every = self.trace.rows(_SQL, query, ranks=self.trace.ranks)
        result: Ints = every.sort("event_id").to_series(1).fill_null(missing).to_numpy().astype(np.int64)
        return result

    @cached_property
    def copies(self) -> tuple[Ints, npt.NDArray[np.int8]]:
        """(places, copy kinds) of the copies between host and device: 1 to the device, 2 to the host."""
        frame = self.trace.rows(_SQL, "copy_kinds", ranks=self.trace.ranks)
        places = self.places_of(frame["event_id"].to_numpy().astype(np.int64))
        return places, frame["copy_kind"].to_numpy().astype(np.int8)

    @cached_property
    def launches(self) -> Launches:
        """The launch calls of the trace."""
        return self._launches_and_links[0]

    @cached_property
    def launch(self) -> Codes:
        """Place of each event's launch call in `launches`, -1 without one. All nodes of a replay share theirs."""
        return self._launches_and_links[1]

    @cached_property
    def _launches_and_links(self) -> tuple[Launches, Codes]:
        self.trace.ensure("launch")
        names = self.trace.rows(_SQL, "api_names")["api_name"].to_list()
        calls = self.trace.rows(_SQL, "launches", names=names)
        processes = np.unique(self.rank_table["process"].to_numpy())
        own = calls["process"].to_numpy()
        place = np.searchsorted(processes, own)
        mine = (place < len(processes)) & (processes[np.minimum(place, len(processes) - 1)] == own)
        if not bool(mine.all()):
            calls, place = calls.filter(pl.Series(mine)), place[mine]
        correlation = calls["correlation"].to_numpy().astype(np.int64, copy=False)
        span = max(int(correlation.max(initial=0)), int(self.correlation.max(initial=0))) + 2
        key = place.astype(np.int64) * span + correlation
        if not bool((key[1:] > key[:-1]).all()):
            # Several calls with one id: the earliest launches, whatever the order of the rows.
            order = np.lexsort((calls["end_ns"].to_numpy(), calls["start_ns"].to_numpy(), key))
            calls, key = calls[order], key[order]
        thread, threads = _threads(calls)
        launches = Launches(
            begin=calls["start_ns"].to_numpy().astype(np.int64, copy=False),
            end=calls["end_ns"].to_numpy().astype(np.int64, copy=False),
            thread=thread,
            api=calls["api"].to_numpy().astype(np.int32, copy=False),
            graph=calls["graph_launch"].to_numpy().astype(bool, copy=False),
            threads=threads,
            api_names=tuple(names),
        )
        of_rank = np.searchsorted(processes, self.rank_table["process"].to_numpy()).astype(np.int64) * span
        return launches, self._links(key, of_rank, len(processes) * span)

    def _links(self, key: Ints, of_rank: Ints, bound: int) -> Codes:
        """Place of each event's key in the ascending `key`, -1 where it is not there."""
        # The nodes of a replay follow each other under one id: look up each run once.
        own = self.correlation
        changes = np.concatenate([np.ones(min(len(own), 1), bool), own[1:] != own[:-1]])
        changes[self.first[:-1]] = True
        runs = np.flatnonzero(changes)
        wanted = np.where(own[runs] >= 0, of_rank[self.rank_place[runs]] + own[runs], -1)
        if bound <= 4 * len(key) + _CELLS:
            # Ids are dense: a table is faster than a search. The first call of an id stands.
            table = np.full(bound, -1, np.int32)
            table[key[::-1]] = np.arange(len(key) - 1, -1, -1, dtype=np.int32)
            link = np.where(wanted >= 0, table[np.maximum(wanted, 0)], -1).astype(np.int32)
        else:
            found = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
            hit = key[found] == wanted if len(key) else np.zeros(len(wanted), bool)
            link = np.where(hit, found, -1).astype(np.int32)
        return link if len(runs) == len(own) else np.repeat(link, np.diff(np.append(runs, len(own))))

    @cached_property
    def stream_order(self) -> Ints:
        """Places of the events sorted by (rank, stream), each stream in the order of starts."""
        return np.argsort(self.stream, kind="stable")

    def carry_along_streams(self, values: Codes, unknown: int, before: int) -> Codes:
        """`values` with every `unknown` replaced by the last known one earlier on its stream, or by `before`."""
        missing = values == unknown
        if not bool(missing.any()):
            return values
        order = self.stream_order
        ordered = values[order]
        places = np.where(ordered != unknown, np.arange(len(order)), -1)
        np.maximum.accumulate(places, out=places)
        streams = self.stream[order]
        known = (places >= 0) & (streams[np.maximum(places, 0)] == streams)
        filled = np.where(known, ordered[np.maximum(places, 0)], before)
        result = values.copy()
        result[order] = filled
        return result

    def places_of(self, ids: Ints) -> Ints:
        """Places of the events with these ids, which must be on the timeline."""
        if len(self) and int(self.event_id[-1] - self.event_id[0]) == len(self) - 1:
            places: Ints = ids - self.event_id[0]
            return places
        return np.searchsorted(self.event_id, ids).astype(np.int64)

    def stretches(self, longest: int) -> Iterator[slice]:
        """Slices of at most `longest` events that cover the timeline in order; none crosses a rank."""
        for low, high in zip(self.first[:-1].tolist(), self.first[1:].tolist(), strict=True):
            for begin in range(low, high, longest):
                yield slice(begin, min(begin + longest, high))

    def own_time(self, places: npt.NDArray[np.integer], axis: Ints) -> Ints:
        """Axis times as the own times of the ranks at `places`."""
        result: Ints = axis - self.shift[places]
        return result


def _order_of(ids: Ints) -> Ints | None:
    """The order that sorts `ids`, or None where they ascend already."""
    return None if bool(np.all(ids[1:] > ids[:-1])) else np.argsort(ids, kind="stable")


def timeline(trace: LoadedTrace) -> Timeline:
    """The timeline of a trace, built once."""
    result: Timeline = trace.memo("timeline", lambda: _build(trace))
    return result


def _build(trace: LoadedTrace) -> Timeline:
    (count,) = trace.rows(_SQL, "event_count", ranks=trace.ranks).row(0)
    ids, start, end = (np.empty(count, np.int64) for _ in range(3))
    rank, stream, name = (np.empty(count, np.int32) for _ in range(3))
    kind = np.empty(count, np.uint8)
    wide_stream: Ints | None = None
    for low, frame in _batches(trace, "events"):
        part = slice(low, low + frame.height)
        for target, column in ((ids, "event_id"), (rank, "rank"), (start, "start_ns"), (end, "end_ns"), (kind, "kind")):
            target[part] = frame[column].to_numpy()
        name[part] = frame["name_id"].to_numpy()
        numbers = frame["stream"].to_numpy()
        if wide_stream is None and int(np.abs(numbers).max(initial=0)) >= 2**31:
            wide_stream = stream.astype(np.int64)
        (stream if wide_stream is None else wide_stream)[part] = numbers
    numbers = stream if wide_stream is None else wide_stream
    order = _order_of(ids)
    if order is not None:
        ids, rank, start, end, kind, name = ids[order], rank[order], start[order], end[order], kind[order], name[order]
        numbers = numbers[order]
    table = trace.rows(_SQL, "ranks", ranks=trace.ranks)
    bounds = np.searchsorted(rank, table["rank"].to_numpy(), side="left")
    ends = np.searchsorted(rank, table["rank"].to_numpy(), side="right")
    table = table.filter(pl.Series(ends > bounds))
    first = np.concatenate([bounds[ends > bounds], np.array([count])]).astype(np.int64)
    lows = start[first[:-1]] if len(table) else np.empty(0, np.int64)
    highs = np.maximum.reduceat(end, first[:-1]) if len(table) else np.empty(0, np.int64)
    stride = int((highs - lows).max(initial=0)) + 1_000_000_000
    shift = np.arange(len(table), dtype=np.int64) * stride - lows
    places = np.repeat(np.arange(len(table), dtype=np.int16), np.diff(first))
    by_event = shift[places]
    start += by_event
    end += by_event
    del by_event
    code, stream_rank, stream_number = _streams(places, numbers)
    names = trace.rows(_SQL, "kernel_names")
    name_ids = names["name_id"].to_numpy()
    if not np.array_equal(name_ids, np.arange(len(name_ids))):
        name = np.searchsorted(name_ids, name).astype(np.int32)
    return Timeline(
        rank_table=table,
        first=first,
        shift=shift,
        event_id=ids,
        start=start,
        end=end,
        kind=kind,
        stream=code,
        name=name,
        stream_number=stream_number,
        stream_rank=stream_rank,
        names=names.drop("name_id"),
        trace=trace,
    )


def _batches(trace: LoadedTrace, query: str) -> Iterator[tuple[int, pl.DataFrame]]:
    """(rows before, rows) of a query of this module's file, in batches that bound the memory."""
    low = 0
    reader = trace.db.sql(queries(_SQL)[query], params={"ranks": trace.ranks}).to_arrow_reader(_BATCH_ROWS)
    for batch in reader:
        frame = pl.from_arrow(batch)
        if not isinstance(frame, pl.DataFrame):
            raise TypeError(f"{query} is no table")
        if frame.height:
            yield low, frame
        low += frame.height


def narrow(values: Ints) -> Ints | Codes:
    """`values` as int32 where they fit: half the memory of millions of ids."""
    info = np.iinfo(np.int32)
    fits = len(values) == 0 or (int(values.min()) >= info.min and int(values.max()) <= info.max)
    return values.astype(np.int32) if fits else values


def _threads(calls: pl.DataFrame) -> tuple[Codes, pl.DataFrame]:
    """(code of each call's thread, the threads: process and thread, ascending)."""
    process, thread = calls["process"].to_numpy(), calls["thread"].to_numpy()
    changes = (process[1:] != process[:-1]) | (thread[1:] != thread[:-1])
    runs = np.flatnonzero(np.concatenate([np.ones(min(len(process), 1), bool), changes]))
    each = pl.DataFrame({"process": process[runs], "thread": thread[runs]})
    threads = each.unique().sort("process", "thread")
    codes = each.join(threads.with_row_index("code"), on=["process", "thread"], how="left", maintain_order="left")[
        "code"
    ]
    return np.repeat(codes.to_numpy().astype(np.int32), np.diff(np.append(runs, len(process)))), threads


def _streams(places: npt.NDArray[np.int16], numbers: npt.NDArray[np.integer]) -> tuple[Codes, Codes, Ints]:
    """(code per event, rank place per code, stream number per code); codes ascend by (rank, stream)."""
    none = np.empty(0, np.int32)
    if len(numbers) == 0:
        return none, none, none.astype(np.int64)
    low = int(numbers.min())
    width = int(numbers.max()) - low + 1
    key = places * np.int64(width) + (numbers - low)
    cells = (int(places[-1]) + 1) * width
    if cells <= _CELLS:
        present = np.zeros(cells, bool)
        present[key] = True
        used = np.flatnonzero(present)
        code = (np.cumsum(present, dtype=np.int32) - 1)[key]
    else:
        used, inverse = np.unique(key, return_inverse=True)
        code = inverse.astype(np.int32)
    return code, (used // width).astype(np.int32), used % width + low
