"""Graph replays: the events of one graph launch, named by what its nodes are.

All nodes of a replay share the correlation id of their launch. Node ids differ between ranks and between captures of
the same graph; names and launch shapes in node order do not, and a hash of those is the replay's signature.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.timeline import GRAPH, KERNEL, Codes, Flags, Ints, Timeline

_UNISSUED, _BEFORE = -2, -1


@dataclass(frozen=True)
class Units:
    """Events taken together where one launch made them: runs of nodes of one replay; every other event by itself.

    A captured decode has a thousand nodes per launch: what is decided per launch is decided on units. All arrays but
    `order` and `bounds` are [units] in issue order: by launch call, else where their stream puts them; of one launch,
    by start. On a rank without calls the order of starts stands for the issue order.

    Attributes:
        bounds: int64 [units + 1], first event of each unit in the order of the timeline.
        order: int64 [units], places of the units in that order.
        first: int64, first event.
        size: int64, number of events.
        place: int64, place of the rank.
        replay: int32, replay of the unit or -1.
        kernel_count: int64.
        kernel_ns: int64.
    """

    bounds: Ints
    order: Ints
    first: Ints
    size: Ints
    place: Ints
    replay: Codes
    kernel_count: Ints
    kernel_ns: Ints

    def __len__(self) -> int:
        return len(self.order)

    def to_events(self, values: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """A value per unit, in issue order, as a value per event of the timeline."""
        ordered = np.empty(len(values), np.int32)
        ordered[self.order] = values
        return np.repeat(ordered, np.diff(self.bounds))

    def of_events(self, events: Ints) -> Ints:
        """Place in issue order of the unit of each event."""
        place = np.empty(len(self.order), np.int64)
        place[self.order] = np.arange(len(self.order))
        result: Ints = place[np.searchsorted(self.bounds, events, side="right") - 1]
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
    correlation = tl.correlation
    in_replay = (tl.in_graph | (tl.kind == GRAPH)) & (correlation >= 0)
    begins = np.ones(len(tl), bool)
    begins[1:] = (correlation[1:] != correlation[:-1]) | ~in_replay[1:] | ~in_replay[:-1]
    begins[tl.first[:-1]] = True
    opens = np.flatnonzero(begins)
    bounds = np.append(opens, len(tl))
    place = tl.rank_place[opens].astype(np.int64)
    order = _issue_order(tl, opens, place)
    span = int(correlation.max(initial=0)) + 1
    key = np.where(in_replay[opens], place * span + correlation[opens], -1)[order]
    nodes = np.flatnonzero(key >= 0)
    _, first, number = np.unique(key[nodes], return_index=True, return_inverse=True)
    # Replays in the order in which they were issued, not of their ids.
    by_issue = np.argsort(first, kind="stable")
    rank_of = np.empty(len(by_issue), np.int64)
    rank_of[by_issue] = np.arange(len(by_issue))
    replay = np.full(len(order), -1, np.int32)
    replay[nodes] = rank_of[number]
    count = len(by_issue)
    last = np.zeros(count, np.int64)
    last[replay[nodes]] = nodes
    kernel = tl.kind == KERNEL
    spent = np.where(kernel, tl.length, 0)
    none = np.empty(0, np.int64)
    units = Units(
        bounds=bounds,
        order=order,
        first=opens[order],
        size=np.diff(bounds)[order],
        place=place[order],
        replay=replay,
        kernel_count=np.add.reduceat(kernel, opens, dtype=np.int64)[order] if len(opens) else none,
        kernel_ns=np.add.reduceat(spent, opens, dtype=np.int64)[order] if len(opens) else none,
    )
    copies, kinds = tl.copies
    to_host, samples = np.zeros(count, bool), np.zeros(count, bool)
    if count:
        for flags, events in (
            (to_host, copies[kinds == 2]),
            (samples, np.flatnonzero(tl.sampling_names[tl.name] & kernel)),
        ):
            inside = replay[units.of_events(events)]
            flags[inside[inside >= 0]] = True
    signature, weight = _signatures(tl, units, count)
    starts = nodes[first[by_issue]]
    return Replays(units, starts, last, units.place[starts], signature, weight, to_host, samples)


def _issue_order(tl: Timeline, opens: Ints, place: Ints) -> Ints:
    """Places of the units in the order (rank, issue).

    A unit without a launch call counts as issued with the last call before it on its stream; before any, first.
    """
    call = tl.launch[opens]
    if not bool((call >= 0).any()):
        return np.arange(len(opens))
    calls = tl.launches
    rank_has = np.bincount(place[call >= 0], minlength=len(tl.ranks)) > 0
    if bool((call < 0).any()):
        source = np.where(tl.launch >= 0, tl.launch, _UNISSUED).astype(np.int32)
        call = tl.carry_along_streams(source, _UNISSUED, _BEFORE)[opens]
    low, high = int(calls.begin.min()), int(calls.begin.max())
    issued = np.where(call >= 0, calls.begin[np.maximum(call, 0)] - low + 1, 0)
    return np.argsort(place * (high - low + 2) + np.where(rank_has[place], issued, 0), kind="stable")


def _signatures(tl: Timeline, units: Units, count: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]:
    """(hash of (name, shape) in node order, sum of shapes) per replay, worked out once per set of nodes."""
    if count == 0:
        return np.empty(0, np.uint64), np.empty(0)
    nodes = tl.graph_node
    if bool((tl.kind == GRAPH).any()):
        nodes = np.where(tl.kind == GRAPH, -1 - tl.name.astype(np.int64), nodes)
    mine = np.flatnonzero(units.replay >= 0)
    replay = units.replay[mine]
    opens = units.bounds[:-1]
    low, high, size = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min), np.zeros(count)
    np.minimum.at(low, replay, np.minimum.reduceat(nodes, opens)[units.order][mine])
    np.maximum.at(high, replay, np.maximum.reduceat(nodes, opens)[units.order][mine])
    np.add.at(size, replay, units.size[mine])
    rank = np.zeros(count, np.int64)
    rank[replay] = units.place[mine]
    kinds = np.stack([rank, low, high, size.astype(np.int64)], axis=1)
    _, representative, kind = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    shown = mine[np.isin(replay, representative)]
    sizes = units.size[shown]
    rows = np.repeat(units.first[shown] - np.cumsum(sizes) + sizes, sizes) + np.arange(int(sizes.sum()))
    table = pl.DataFrame(
        {
            "kind": np.repeat(kind[units.replay[shown]], sizes),
            "node": nodes[rows],
            "name": tl.name[rows],
            "shape": tl.shape[rows],
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
