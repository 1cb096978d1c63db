"""The API calls that launched events, and which of them launched which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.blocks import blocks, run_starts
from tracelens.analyses.timeline_columns import SQL, Codes, Ints, Narrow, PairCodes, batches
from tracelens.trace import LoadedTrace

_SPARSE = 4
"""A table over all ids of a process is worth its memory where one in so many launched something."""

_SMALL = 1_000_000
"""Or where it has no more cells than this."""

_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Launches:
    """The API calls that launched events, by process.

    Attributes:
        begin: int64 ns [calls], the call's begin on the export's host clock.
        end: int64 ns [calls], its end.
        thread: [calls], place of the calling thread in `threads`.
        api: [calls], place of the API's name in `api_names`, -1 without a name.
        graph: bool [calls], whether the call replays a graph.
        waited: int64, places of the calls after which the thread waited for the device, having launched nothing more.
        wait_end: int64 ns, ends of the calls in which it waited; one for each of `waited`.
        threads: the (process, thread) pairs, ascending.
        api_names: names, ascending.
    """

    begin: Ints
    end: Ints
    thread: Narrow
    api: npt.NDArray[np.signedinteger]
    graph: npt.NDArray[np.bool_]
    waited: Ints
    wait_end: Ints
    threads: pl.DataFrame
    api_names: tuple[str, ...]


@dataclass(frozen=True)
class CallIds:
    """How calls are found: the ids that events share with them.

    Attributes:
        process: int64 [processes], ascending.
        first: int64 [processes + 1], where each one's calls begin.
        correlation: int32 or int64 [calls].
    """

    process: Ints
    first: Ints
    correlation: Ints | Codes


def read_launches(trace: LoadedTrace) -> tuple[Launches, CallIds]:
    """The launch calls of the processes of a trace's ranks.

    Raises:
        RuntimeError: the calls do not come in the order of processes.
    """
    trace.ensure("launch")
    names = trace.rows(SQL, "api_names")["api_name"].to_list()
    owners = trace.rows(SQL, "ranks", ranks=trace.ranks)["process"].unique().sort()
    wanted: dict[str, Any] = {"processes": owners.to_list()}
    sizes = trace.rows(SQL, "launch_counts", **wanted)
    count = int(sizes["launch_count"].sum())
    begin, end = np.empty(count, np.int64), np.empty(count, np.int64)
    correlation = np.empty(count, np.int64)
    api = np.empty(count, np.min_scalar_type(-len(names) - 2))
    graph = np.empty(count, bool)
    threads = PairCodes(count, trace.room)
    waits = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for part, (process, thread, *values, wait_end) in batches(trace, "launches", names=names, **wanted):
        told = np.flatnonzero(wait_end != _NEVER)
        waits.append((told + part.start, wait_end[told]))
        threads.add(part, process, thread)
        for target, own in zip((correlation, begin, end, api, graph), values, strict=True):
            target[part] = own
    thread, pairs = threads.done()
    launches = Launches(
        begin=begin,
        end=end,
        thread=thread,
        api=api,
        graph=graph,
        waited=np.concatenate([place for place, _ in waits]),
        wait_end=np.concatenate([end for _, end in waits]),
        threads=pl.DataFrame({"process": pairs[:, 0].astype(np.int32), "thread": pairs[:, 1]}),
        api_names=tuple(names),
    )
    processes = sizes["process"].to_numpy().astype(np.int64)
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes["launch_count"].to_numpy())])
    # The calls of a process follow each other.
    if not np.array_equal(pairs[thread[first[:-1]], 0], processes) or not np.array_equal(
        pairs[thread[first[1:] - 1], 0], processes
    ):
        raise RuntimeError("the table of launches is not in the order of processes")
    return launches, CallIds(processes, first, correlation)


def link_events(
    calls: CallIds, process_of_rank: npt.NDArray[np.integer], first: Ints, correlation: Ints | Codes
) -> Codes:
    """Place of the launch call of each event, -1 without one; of several calls with one id, the first.

    Args:
        calls: the calls.
        process_of_rank: [ranks].
        first: int64 [ranks + 1], where each rank's events begin.
        correlation: [events], -1 without.
    """
    link = np.empty(len(correlation), np.int32)
    known: dict[int, _Finder] = {}
    for process, low, high in zip(process_of_rank.tolist(), first[:-1].tolist(), first[1:].tolist(), strict=True):
        if process not in known:
            known = {process: _Finder(calls, process)}
        for part in blocks(low, high):
            own = correlation[part]
            # The nodes of a replay follow each other under one id: look up each run once.
            runs = run_starts(own)
            link[part] = np.repeat(known[process].find(own[runs]), np.diff(np.append(runs, len(own))))
    return link


class _Finder:
    """Finds the calls of one process by their ids."""

    def __init__(self, calls: CallIds, process: int) -> None:
        place = int(np.searchsorted(calls.process, process))
        known = place < len(calls.process) and int(calls.process[place]) == process
        self._low = int(calls.first[place]) if known else 0
        ids = calls.correlation[self._low : int(calls.first[place + 1])] if known else np.empty(0, np.int64)
        cells = int(ids.max(initial=-1)) + 2
        self._table: Codes | None = None
        if cells <= max(_SPARSE * len(ids), _SMALL):
            # Going backwards leaves the first call of an id; the last cell stands for every id that no call has.
            self._table = np.full(cells, -1, np.int32)
            self._table[ids[::-1]] = np.arange(self._low + len(ids) - 1, self._low - 1, -1, dtype=np.int32)
        else:
            self._order = np.argsort(ids, kind="stable")
            self._ids = ids[self._order]

    def find(self, wanted: Ints | Codes) -> Codes:
        """Places of the calls with these ids, -1 where there is none."""
        if self._table is not None:
            none = len(self._table) - 1
            return self._table[np.where((wanted >= 0) & (wanted < none), wanted, none)]
        at = np.minimum(np.searchsorted(self._ids, wanted), len(self._ids) - 1)
        found = np.where(self._ids[at] == wanted, self._order[at] + self._low, -1)
        return found.astype(np.int32)
