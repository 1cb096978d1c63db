"""All events of a trace on one axis, with the launch call of each.

A rank is a stretch of the axis, not a turn of a loop: every rank's own time is shifted so that the stretches follow
each other without touching. What is then computed once for the axis (unions, gaps, windows) holds for each rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.blocks import blocks, each, run_starts
from tracelens.analyses.timeline_columns import (
    SQL,
    Codes,
    Columns,
    Ints,
    Lengths,
    Narrow,
    narrowest,
    one_number,
    read_columns,
)
from tracelens.analyses.timeline_launches import Launches, link_events, read_launches
from tracelens.trace import LoadedTrace

__all__ = [
    "GRAPH",
    "KERNEL",
    "MEMCPY",
    "MEMSET",
    "NOT_SAMPLING",
    "SAMPLING",
    "Codes",
    "Flags",
    "Ints",
    "Launches",
    "Narrow",
    "Timeline",
    "timeline",
]

Flags = npt.NDArray[np.bool_]
T = TypeVar("T")

_LET_GO = 64
"""After so many blocks the pages of arrays in files are given back."""

_BEYOND = np.iinfo(np.int64).max

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
class _Ends:
    """Ends of events, worked out where they are asked for: what is kept is shorter."""

    start: Ints
    length: Lengths

    def __getitem__(self, places: slice | npt.NDArray[Any]) -> Ints:
        result: Ints = self.start[places] + self.length[places]
        return result


@dataclass(frozen=True)
class Timeline:
    """Events in the order of their ids (rank, start) on one axis.

    Attributes:
        rank_table: rank, export, process, device, clock; one row per rank with events, ascending.
        first: int64 [ranks + 1], where each rank's events begin.
        first_id: int64 [ranks], the id of each rank's first event; the ids of a rank follow each other.
        shift: int64 ns [ranks]; axis time = the rank's own time + shift.
        start: int64 ns [events] on the axis.
        length: ns [events], uint32 unless one is 4.3 s or longer.
        kind: uint8 [events].
        in_graph: bool [events], whether each is a node of a replayed graph.
        stream: [events], place in `stream_number` of this (rank, stream), in the fewest bytes.
        name: [events], place in `names`, in the fewest bytes.
        graph_runs: (places, graph ids), each of the events from that place to the next; -1 outside graphs and where the
            export names none.
        copies: (places, copy kinds) of the copies between host and device: 1 to the device, 2 to the host.
        stream_number: int64 [streams], the stream's number in the export.
        stream_rank: int32 [streams], place of its rank.
        names: name, bucket, operation, barrier_end per kernel name.
        trace: where the rest is fetched from on demand.
    """

    rank_table: pl.DataFrame
    first: Ints
    first_id: Ints
    shift: Ints
    start: Ints
    length: Lengths
    kind: npt.NDArray[np.uint8]
    in_graph: Flags
    stream: Narrow
    name: Narrow
    graph_runs: tuple[Ints, Ints]
    copies: tuple[Ints, npt.NDArray[np.uint8]]
    stream_number: Ints
    stream_rank: Codes
    names: pl.DataFrame
    trace: LoadedTrace = field(repr=False)

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> _Ends:
        """When events end, int64 ns on the axis: `end[places]`, `end[part]`."""
        return _Ends(self.start, self.length)

    @cached_property
    def ranks(self) -> Ints:
        """Rank numbers by place."""
        return self.rank_table["rank"].to_numpy().astype(np.int64)

    @cached_property
    def rank_place(self) -> Narrow:
        """Place of each event's rank in `rank_table`, in the fewest bytes."""
        result: Narrow = self.trace.room.empty(len(self), narrowest(len(self.ranks)))
        for place, (low, high) in enumerate(pairwise(self.first.tolist())):
            result[low:high] = place
        return result

    @cached_property
    def is_collective(self) -> Flags:
        """Whether each event is a kernel of a collective operation."""
        of_name = self.names["operation"].is_not_null().to_numpy()
        result = self.trace.room.empty(len(self), bool)
        for part in self.stretches():
            np.logical_and(of_name[self.name[part]], self.kind[part] == KERNEL, out=result[part])
        return result

    @cached_property
    def sampling_names(self) -> Flags:
        """Whether each name is that of a kernel that picks tokens from logits."""
        names = self.names["name"]
        picks = names.str.contains(SAMPLING) & ~names.str.contains(NOT_SAMPLING)
        result: Flags = (picks & self.names["operation"].is_null()).to_numpy()
        return result

    @property
    def correlation(self) -> Ints | Codes:
        """Correlation id of each event, -1 where the export has none; int32 where the ids fit. Not kept."""
        return one_number(self.trace, "correlations", self.ranks, self.first)

    @property
    def graph_node(self) -> Ints | Codes:
        """Graph node of each event, 0 outside graphs. Not kept, because few ask for it."""
        return one_number(self.trace, "graph_nodes", self.ranks, self.first)

    @property
    def shape(self) -> Ints | Codes:
        """Launch shape of each event, 0 for copies. Not kept."""
        return one_number(self.trace, "launch_shapes", self.ranks, self.first)

    @cached_property
    def launches(self) -> Launches:
        """The launch calls of the trace."""
        return self._launches_and_links[0]

    @cached_property
    def launch(self) -> Codes:
        """Place of each event's launch call in `launches`, -1 without one. All nodes of a replay share theirs."""
        return self._launches_and_links[1]

    @cached_property
    def _launches_and_links(self) -> tuple[Launches, Codes, Ints | Codes | None]:
        """(calls, call of each event, correlation ids where there are replays that they alone tell apart)."""
        launches, ids = read_launches(self.trace)
        correlation = self.correlation
        launch = link_events(self.trace, ids, self.rank_table["process"].to_numpy(), self.first, correlation)
        uncalled = self.each(
            lambda part: bool((self.in_graph[part] & (launch[part] < 0) & (correlation[part] >= 0)).any())
        )
        return launches, launch, correlation if any(uncalled) else None

    def one_launch(self, event: Codes, other: Codes) -> Flags:
        """Whether each event in a graph was launched with the other of its rank: as nodes of one replay."""
        _, launch, correlation = self._launches_and_links
        code = launch if correlation is None else correlation
        result: Flags = (code[event] == code[other]) & (code[event] >= 0)
        return result

    def carry_along_streams(self, values: Codes, unknown: int, before: int) -> Codes:
        """`values` with every `unknown` replaced, in place, by the last known one earlier on its stream, or `before`."""
        if not any(bool((values[part] == unknown).any()) for part in self.stretches()):
            return values
        last = np.full(len(self.stream_number), -1)  # place of the last event so far, by stream
        for part in self.stretches():
            own, stream = values[part], self.stream[part]
            if bool((own == unknown).any()):
                order = np.argsort(stream, kind="stable")
                ordered, streams = own[order], stream[order]
                places = np.where(ordered != unknown, np.arange(len(order)), -1)
                np.maximum.accumulate(places, out=places)
                heads = run_starts(streams)
                known = places >= np.repeat(heads, np.diff(np.append(heads, len(order))))
                carried = np.where(last[streams] >= 0, values[last[streams]], before)
                own[order] = np.where(known, ordered[places], carried)
            ends = np.append(run_starts(stream)[1:], len(stream)) - 1
            last[stream[ends]] = part.start + ends
        return values

    def places_of(self, ids: Ints) -> Ints:
        """Places of the events with these ids, which must be on the timeline."""
        moves = self.first[:-1] - self.first_id
        if bool((ids[1:] >= ids[:-1]).all()):
            bounds = np.searchsorted(ids, np.append(self.first_id, _BEYOND))
            result: Ints = ids + np.repeat(moves, np.diff(bounds))
            return result
        return ids + moves[np.searchsorted(self.first_id, ids, side="right") - 1]

    def ids_of(self, places: npt.NDArray[np.integer]) -> Ints:
        """Ids of the events at these places."""
        result: Ints = places + (self.first_id - self.first[:-1])[self.rank_place[places]]
        return result

    def stretches(self, place: int | None = None) -> Iterator[slice]:
        """Slices of at most `blocks.BLOCK` events that cover the timeline, or one rank, in order; none crosses a rank.

        What touches every event goes by these: temporaries of all events at once cost more time, in fresh pages of
        memory, than what is worked out in them.
        """
        ranks = slice(place, None if place is None else place + 1)
        for low, high in zip(self.first[:-1][ranks].tolist(), self.first[1:][ranks].tolist(), strict=True):
            yield from blocks(low, high)

    def place_of(self, part: slice) -> int:
        """Place of the rank of a stretch."""
        return int(np.searchsorted(self.first, part.start, side="right")) - 1

    def each(self, work: Callable[[slice], T], place: int | None = None) -> Iterator[T]:
        """`work(part)` of the stretches in their order, on as many threads as may be used."""
        for number, answer in enumerate(each(work, self.stretches(place), self.trace.threads)):
            yield answer
            if number % _LET_GO == 0:
                self.trace.room.let_go()

    def runs(self, values: npt.NDArray[Any]) -> Codes:
        """Places of the events whose value differs from that of the event before, or that begin a rank or a block."""
        found = self.each(lambda part: (part.start + run_starts(values[part])).astype(np.int32))
        return np.concatenate([np.empty(0, np.int32), *found])

    def along(self, runs: Codes, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A value per run of `runs` as a value per event."""
        result = self.trace.room.empty(len(self), values.dtype)
        bounds = np.append(runs, len(self))

        def fill(part: slice) -> None:
            low, high = np.searchsorted(runs, [part.start, part.stop])
            result[part] = np.repeat(values[low:high], bounds[low + 1 : high + 1] - bounds[low:high])

        deque(self.each(fill), 0)
        return result

    def own_time(self, places: npt.NDArray[np.integer], axis: Ints) -> Ints:
        """Axis times as the own times of the ranks at `places`."""
        result: Ints = axis - self.shift[places]
        return result


def timeline(trace: LoadedTrace) -> Timeline:
    """The timeline of a trace, built once."""
    result: Timeline = trace.memo("timeline", lambda: _build(trace))
    return result


def _last_end(columns: Columns, low: int, high: int) -> int:
    """The latest end of some events."""
    return max(int((columns.start[part] + columns.length[part]).max()) for part in blocks(low, high))


def _build(trace: LoadedTrace) -> Timeline:
    names = trace.rows(SQL, "kernel_names")
    columns = read_columns(trace, names.height)
    first, start = columns.first, columns.start
    lows = start[first[:-1]]
    highs = [_last_end(columns, low, high) for low, high in pairwise(first.tolist())]
    table = trace.rows(SQL, "ranks", ranks=trace.ranks).filter(pl.col("rank").is_in(columns.rank))
    stride = int((np.array(highs, np.int64) - lows).max(initial=0)) + 1_000_000_000
    shift = np.arange(len(table), dtype=np.int64) * stride - lows
    for moved, low, high in zip(shift.tolist(), first[:-1].tolist(), first[1:].tolist(), strict=True):
        start[low:high] += moved
    return Timeline(
        rank_table=table,
        first=first,
        first_id=columns.first_id,
        shift=shift,
        start=start,
        length=columns.length,
        kind=columns.kind,
        in_graph=columns.in_graph,
        stream=columns.stream,
        name=columns.name,
        graph_runs=columns.graph_runs,
        copies=columns.copies,
        stream_number=columns.streams[:, 1],
        stream_rank=np.searchsorted(columns.rank, columns.streams[:, 0]).astype(np.int32),
        names=names.drop("name_id"),
        trace=trace,
    )
