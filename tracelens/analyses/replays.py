"""Graph replays: the events of one graph launch, named by what its nodes are.

All nodes of a replay share the correlation id of their launch. Node ids differ between ranks and between captures of
the same graph; names and launch shapes in node order do not, and a hash of those is the replay's signature.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.blocks import blocks, each
from tracelens.analyses.timeline import GRAPH, KERNEL, Codes, Flags, Ints, Timeline

_UNISSUED, _BEFORE = -2, -1
_EARLIEST = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Units:
    """Events taken together where one launch made them: runs of nodes of one replay; every other event by itself.

    A captured decode has a thousand nodes per launch: what is decided per launch is decided on units. They have two
    orders, in both of which the units of a rank follow each other: that of the timeline, and that of issue: by launch
    call, else where their stream puts them; of one launch, by start. On a rank without calls the order of starts stands
    for the issue order.

    Attributes:
        first: int64 [ranks + 1], where each rank's units begin.
        bounds: int32 [units + 1], first event of each unit in the order of the timeline.
        order: int32 [units in issue order], their places in the order of the timeline.
        issued: int32 [units in the order of the timeline], their places in issue order.
        replay: int32 [units in issue order], replay of the unit or -1.
        kernel_count: int32 [units in issue order].
        kernel_ns: int64 [units in issue order].
        tl: the timeline.
    """

    first: Ints
    bounds: Codes
    order: Codes
    issued: Codes
    replay: Codes
    kernel_count: Codes
    kernel_ns: Ints
    tl: Timeline

    def __len__(self) -> int:
        return len(self.order)

    def places(self, units: Ints) -> Ints:
        """Place of the rank of each of these units."""
        return np.searchsorted(self.first, units, side="right") - 1

    def sizes(self, units: slice | Ints) -> Codes:
        """Number of events of units in issue order."""
        at = self.order[units]
        result: Codes = self.bounds[at + 1] - self.bounds[at]
        return result

    def of_events(self, events: Codes | Ints) -> Codes:
        """Place in issue order of the unit of each event."""
        return self.issued[np.searchsorted(self.bounds, events.astype(np.int32), side="right") - 1]

    def to_events(self, opens: Ints, values: Codes) -> Codes:
        """A value per stretch of units, from each of `opens` in issue order to the next, as a value per event; -1 before
        the first."""
        result: Codes = self.tl.trace.room.empty(len(self.tl), np.int32)
        told = np.append(np.int32(-1), values)

        def fill(part: slice) -> None:
            units, starts = self.within(part)
            own = told[np.searchsorted(opens, self.issued[units], side="right")]
            result[part] = np.repeat(own, np.diff(starts, append=part.stop - part.start))

        deque(self.tl.each(fill), 0)
        return result

    def within(self, part: slice) -> tuple[slice, Codes]:
        """(units in the order of the timeline that have events among these, where each begins there)."""
        low = int(np.searchsorted(self.bounds, np.int32(part.start), side="right")) - 1
        high = int(np.searchsorted(self.bounds, np.int32(part.stop)))
        return slice(low, high), np.maximum(self.bounds[low:high] - np.int32(part.start), 0)

    def sums(self, opens: Ints, values: Callable[[slice], Sequence[npt.NDArray[Any]]]) -> npt.NDArray[np.int64]:
        """int64 [values, opens], sums of values of units from each of `opens`, ascending, to the next.

        Args:
            opens: places in issue order; they may reach beyond the last unit.
            values: of the units of a block.
        """

        def of_block(part: slice) -> tuple[slice, list[Ints]] | None:
            low = max(int(np.searchsorted(opens, part.start, side="right")) - 1, 0)
            high = int(np.searchsorted(opens, part.stop))
            if low >= high:
                return None
            starts = np.maximum(opens[low:high] - part.start, 0)
            return slice(low, high), [np.add.reduceat(column, starts, dtype=np.int64) for column in values(part)]

        result = np.zeros((len(values(slice(0, 0))), len(opens)), np.int64)
        for found in each(of_block, blocks(0, len(self)), self.tl.trace.threads):
            if found is not None:
                result[:, found[0]] += found[1]
        return result


@dataclass(frozen=True)
class Replays:
    """The graph replays of a trace, in the order of (rank, issue).

    Attributes:
        units: the units of the timeline.
        first: int64 [replays], place in issue order of the first unit of each.
        last: int64 [replays], of the last.
        place: int64 [replays], place of its rank.
        signature: uint64 [replays], hash of its kernel names and launch shapes in node order.
        weight: float64 [replays], sum of its packed launch shapes: grows with the batch of the graph.
        to_host: bool [replays], whether a device-to-host copy is among its nodes.
        samples: bool [replays], whether a sampling kernel is.
    """

    units: Units
    first: Ints
    last: Ints
    place: Ints
    signature: npt.NDArray[np.uint64]
    weight: npt.NDArray[np.float64]
    to_host: Flags
    samples: Flags

    def __len__(self) -> int:
        return len(self.first)


def find_replays(tl: Timeline) -> Replays:
    """All replays of a trace: events that ran as nodes under one correlation id, or one row of a graph-level capture."""
    result: Replays = tl.trace.memo("replays", lambda: _find(tl))
    return result


def _find(tl: Timeline) -> Replays:
    room, ids = tl.trace.room, tl.correlation
    bounds, first = _bounds(tl, ids)
    count = len(bounds) - 1
    order, issued, replay = (room.empty(count, np.int32) for _ in range(3))
    issuing = _issuing_calls(tl, bounds)
    starts, lasts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    known = 0
    for low, high in pairwise(first.tolist()):
        opens = bounds[low:high]
        moved = _issue_order(tl, issuing, opens)
        order[low:high] = low + moved
        issued[low + moved] = np.arange(low, high, dtype=np.int32)
        opens = opens[moved]
        nodes = np.flatnonzero(_in_replay(tl, ids, opens))
        _, begins, number = np.unique(ids[opens[nodes]], return_index=True, return_inverse=True)
        # Replays in the order in which they were issued, not of their ids.
        by_issue = np.argsort(begins, kind="stable")
        nth = np.empty(len(by_issue), np.int64)
        nth[by_issue] = np.arange(len(by_issue))
        replay[low:high] = -1
        replay[low + nodes] = known + nth[number]
        starts.append(low + nodes[begins[by_issue]])
        last = np.zeros(len(by_issue), np.int64)
        last[nth[number]] = low + nodes
        lasts.append(last)
        known += len(by_issue)
    units = Units(first, bounds, order, issued, replay, *_kernel_sums(tl, bounds, first, order), tl)
    copies, kinds = tl.copies
    to_host, samples = np.zeros(known, bool), np.zeros(known, bool)
    if known:
        for flags, events in ((to_host, copies[kinds == 2]), (samples, sampling_events(tl))):
            inside = replay[units.of_events(events)]
            flags[inside[inside >= 0]] = True
    signature, weight = _signatures(tl, units, known)
    begin = np.concatenate(starts)
    return Replays(units, begin, np.concatenate(lasts), units.places(begin), signature, weight, to_host, samples)


def sampling_events(tl: Timeline) -> Ints:
    """Places of the kernels that pick tokens, found once."""
    picks = tl.sampling_names

    def of_part(part: slice) -> Ints:
        places: Ints = part.start + np.flatnonzero(picks[tl.name[part]] & (tl.kind[part] == KERNEL))
        return places

    def find() -> Ints:
        return np.concatenate([np.empty(0, np.int64), *tl.each(of_part)])

    result: Ints = tl.trace.memo("sampling events", find)
    return result


def _in_replay(tl: Timeline, ids: Ints | Codes, events: slice | Codes) -> Flags:
    inside: Flags = (tl.in_graph[events] | (tl.kind[events] == GRAPH)) & (ids[events] >= 0)
    return inside


def _bounds(tl: Timeline, ids: Ints | Codes) -> tuple[Codes, Ints]:
    """(first event of each unit in the order of the timeline, and the number of events; where each rank's begin)."""
    # As many units as events at most; what is not filled takes no memory.
    bounds: Codes = tl.trace.room.empty(len(tl) + 1, np.int32)
    rank_starts = set(tl.first[:-1].tolist())
    first = []
    count = 0

    def opens(part: slice) -> Ints:
        look = part if part.start in rank_starts else slice(part.start - 1, part.stop)
        own, inside = ids[look], _in_replay(tl, ids, look)
        begins = (own[1:] != own[:-1]) | ~inside[1:] | ~inside[:-1]
        at = look.start + 1 + np.flatnonzero(begins)
        return np.append(part.start, at) if look is part else at

    parts = tl.stretches()
    for found in tl.each(opens):
        if next(parts).start in rank_starts:
            first.append(count)
        bounds[count : count + len(found)] = found
        count += len(found)
    bounds[count] = len(tl)
    return bounds[: count + 1], np.array([*first, count], np.int64)


def _kernel_sums(tl: Timeline, bounds: Codes, first: Ints, order: Codes) -> tuple[Codes, Ints]:
    """(kernels of each unit, their time in ns) in issue order."""
    count = len(order)
    kernels, spent = tl.trace.room.empty(count, np.int32), tl.trace.room.empty(count, np.int64)
    for low, high in pairwise(first.tolist()):
        for part in blocks(int(bounds[low]), int(bounds[high])):
            kernel = tl.kind[part] == KERNEL
            begin, end = np.searchsorted(bounds[low:high], np.array([part.start, part.stop], np.int32)) + low
            columns = (kernels, kernel), (spent, np.where(kernel, tl.length[part], 0))
            starts = bounds[begin:end] - np.int32(part.start)
            head = int(starts[0]) if len(starts) else len(kernel)
            for target, values in columns:
                if head:
                    # A unit that began in the block before.
                    target[begin - 1] += values[:head].sum()
                if len(starts):
                    target[begin:end] = np.add.reduceat(values, starts, dtype=np.int64)
        moved = order[low:high] - np.int32(low)
        kernels[low:high], spent[low:high] = kernels[low:high][moved], spent[low:high][moved]
    return kernels, spent


def _issuing_calls(tl: Timeline, bounds: Codes) -> Codes:
    """The call that stands for the issue of each event: its own, else the last before it on its stream; -1 before any."""
    units = list(blocks(0, len(bounds) - 1))
    lacks = any(bool((tl.launch[bounds[part]] < 0).any()) for part in units)
    if not lacks or not any(bool((tl.launch[bounds[part]] >= 0).any()) for part in units):
        return tl.launch
    source: Codes = tl.trace.room.empty(len(tl), np.int32)
    for part in tl.stretches():
        source[part] = np.where(tl.launch[part] >= 0, tl.launch[part], _UNISSUED)
    return tl.carry_along_streams(source, _UNISSUED, _BEFORE)


def _issue_order(tl: Timeline, issuing: Codes, opens: Codes) -> Ints:
    """Places of a rank's units in the order of issue.

    A unit without a launch call counts as issued with the last call before it on its stream; before any, first.
    """
    if not bool((tl.launch[opens] >= 0).any()):
        return np.arange(len(opens))
    call = issuing[opens]
    issued = np.where(call >= 0, tl.launches.begin[call], _EARLIEST)
    if bool((issued[1:] >= issued[:-1]).all()):
        return np.arange(len(opens))
    return np.argsort(issued, kind="stable")


def _signatures(tl: Timeline, units: Units, count: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]:
    """(hash of (name, shape) in node order, sum of shapes) per replay, worked out once per set of nodes."""
    if count == 0:
        return np.empty(0, np.uint64), np.empty(0)
    column, shape = tl.graph_node, tl.shape

    def nodes_of(events: slice | Ints) -> Ints:
        # A graph that was traced as a whole is its own only node.
        return np.where(tl.kind[events] == GRAPH, -1 - tl.name[events].astype(np.int64), column[events])

    limits = np.iinfo(np.int64)
    low, high = np.full(count, limits.max), np.full(count, limits.min)
    size, rank = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for block in tl.stretches():
        where, starts = units.within(block)
        replay = units.replay[units.issued[where]]
        mine = np.flatnonzero(replay >= 0)
        if len(mine) == 0:
            continue
        nodes, replay = nodes_of(block), replay[mine]
        np.minimum.at(low, replay, np.minimum.reduceat(nodes, starts)[mine])
        np.maximum.at(high, replay, np.maximum.reduceat(nodes, starts)[mine])
        np.add.at(size, replay, np.diff(starts, append=len(nodes))[mine])
        rank[replay] = tl.place_of(block)
    kinds = np.stack([rank, low, high, size], axis=1)
    _, representative, kind = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    wanted = np.zeros(count + 1, bool)  # the last stands for units outside replays
    wanted[representative] = True
    every = blocks(0, len(units))
    shown = np.concatenate([some.start + np.flatnonzero(wanted[units.replay[some]]) for some in every])
    sizes = units.sizes(shown).astype(np.int64)
    first = units.bounds[units.order[shown]]
    rows = np.repeat(first - np.cumsum(sizes) + sizes, sizes) + np.arange(int(sizes.sum()))
    table = pl.DataFrame(
        {
            "kind": np.repeat(kind[units.replay[shown]], sizes),
            "node": nodes_of(rows),
            "name": tl.name[rows],
            "shape": shape[rows],
            "at": rows,
        }
    ).sort("kind", "node", "at")
    hashes = np.zeros(len(representative), np.uint64)
    sums = np.zeros(len(representative))
    for (number,), part in table.group_by("kind", maintain_order=True):
        content = part.select(pl.col("name").cast(pl.Int64), "shape").to_numpy().tobytes()
        hashes[number] = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
        sums[number] = float(part["shape"].cast(pl.Float64).sum())
    return hashes[kind], sums[kind]
