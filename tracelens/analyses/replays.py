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
class Replays:
    """The graph replays of a trace, in the order of (rank, issue).

    Attributes:
        order: places of all events in the order (rank, issue).
        of_event: int32 [events], replay of each event or -1.
        first: int64 [replays], first event of each.
        place: int32 [replays], place of its rank.
        signature: uint64 [replays], hash of its kernel names and launch shapes in node order.
        size: float64 [replays], sum of its packed launch shapes: grows with the batch that the graph was captured for.
        to_host: bool [replays], whether a device-to-host copy is among its nodes.
        samples: bool [replays], whether a sampling kernel is.
    """

    order: Ints
    of_event: Codes
    first: Ints
    place: Codes
    signature: npt.NDArray[np.uint64]
    size: npt.NDArray[np.float64]
    to_host: Flags
    samples: Flags


def issue_order(tl: Timeline) -> Ints:
    """Places of all events in the order (rank, issue): by launch call, else where their stream puts them.

    An event without a launch call counts as issued with the last call before it on its stream; before any, first.
    On a rank without calls the order of starts stands for it.
    """
    launched = tl.launch >= 0
    if not bool(launched.any()):
        return np.arange(len(tl))
    calls = tl.launches
    rank_has = np.bincount(tl.rank_place[launched], minlength=len(tl.ranks)) > 0
    source = np.where(launched, tl.launch, _UNISSUED)
    source = tl.carry_along_streams(source.astype(np.int32), _UNISSUED, _BEFORE)
    low, high = int(calls.begin.min()), int(calls.begin.max())
    issued = np.where(source >= 0, calls.begin[np.maximum(source, 0)] - low + 1, 0)
    stride = high - low + 2
    key = tl.rank_place.astype(np.int64) * stride + np.where(rank_has[tl.rank_place], issued, 0)
    return np.argsort(key, kind="stable")


def find_replays(tl: Timeline) -> Replays:
    """All replays of a trace: events that ran as nodes under one correlation id, or one row of a graph-level capture."""
    result: Replays = tl.trace.memo("replays", lambda: _find(tl))
    return result


def _find(tl: Timeline) -> Replays:
    order = issue_order(tl)
    in_replay = (tl.in_graph | (tl.kind == GRAPH)) & (tl.correlation >= 0)
    places = order[in_replay[order]]
    of_event = np.full(len(tl), -1, np.int32)
    if len(places) == 0:
        none = np.empty(0, np.int64)
        no_flags = none.astype(bool)
        return Replays(
            order, of_event, none, none.astype(np.int32), none.astype(np.uint64), none.astype(float), no_flags, no_flags
        )
    span = int(tl.correlation[places].max()) + 1
    key = tl.rank_place[places].astype(np.int64) * span + tl.correlation[places]
    opens = np.concatenate([np.ones(1, bool), key[1:] != key[:-1]])
    _, first_run, run_replay = np.unique(key[opens], return_index=True, return_inverse=True)
    # Replays in the order in which they were issued, not of their ids.
    by_issue = np.argsort(first_run, kind="stable")
    number = np.empty(len(by_issue), np.int64)
    number[by_issue] = np.arange(len(by_issue))
    replay = number[run_replay][np.cumsum(opens) - 1].astype(np.int32)
    of_event[places] = replay
    first = places[np.flatnonzero(opens)[first_run[by_issue]]]
    count = len(first)
    copies, kinds = tl.copies
    to_host = np.zeros(count, bool)
    inside = of_event[copies[kinds == 2]]
    to_host[inside[inside >= 0]] = True
    samples = np.zeros(count, bool)
    picked = of_event[tl.sampling_names[tl.name] & (tl.kind == KERNEL)]
    samples[picked[picked >= 0]] = True
    signature, size = _signatures(tl, places, replay, count)
    return Replays(order, of_event, first, tl.rank_place[first].astype(np.int32), signature, size, to_host, samples)


def _signatures(
    tl: Timeline, places: Ints, replay: Codes, count: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]:
    """(hash of (name, shape) in node order, sum of shapes) per replay, worked out once per set of nodes."""
    nodes = np.where(tl.in_graph[places], tl.graph_node[places], -1 - tl.name[places].astype(np.int64))
    low = np.full(count, np.iinfo(np.int64).max)
    high = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(low, replay, nodes)
    np.maximum.at(high, replay, nodes)
    size = np.bincount(replay, minlength=count)
    rank = np.zeros(count, np.int64)
    rank[replay] = tl.rank_place[places]
    kinds = np.stack([rank, low, high, size], axis=1)
    _, representative, kind = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    shown = np.isin(replay, representative)
    rows = places[shown]
    table = pl.DataFrame(
        {
            "kind": kind[replay[shown]],
            "node": nodes[shown],
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
