"""The API calls that launched events, and which of them launched which."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.blocks import blocks, each, run_starts
from tracelens.analyses.timeline_columns import SQL, Codes, Ints, Narrow, PairCodes, batches, joined, portions
from tracelens.array_room import ArrayRoom
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
    sizes = trace.rows(SQL, "launch_counts", processes=owners.to_list())
    processes = sizes["process"].to_numpy().astype(np.int64)
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes["launch_count"].to_numpy())])
    count, room = int(first[-1]), trace.room
    begin, end = room.empty(count, np.int64), room.empty(count, np.int64)
    fits = bool((sizes["last_id"] <= np.iinfo(np.int32).max).all())
    correlation = room.empty(count, np.int32 if fits else np.int64)
    api = room.empty(count, np.min_scalar_type(-len(names) - 2))
    graph = room.empty(count, bool)
    threads = PairCodes(count, room)

    def read(chosen: slice) -> tuple[Ints, Ints]:
        """(places, ends) of the waits of some processes, whose columns are written."""
        waits = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        own, low = processes[chosen].tolist(), int(first[chosen.start])
        for batch, (process, thread, *values, wait_end) in batches(
            trace, "launches", names=names, processes=own, first=own[0], last=own[-1]
        ):
            part = slice(batch.start + low, batch.stop + low)
            told = np.flatnonzero(wait_end != _NEVER)
            waits.append((told + part.start, wait_end[told]))
            threads.add(part, process, thread)
            for target, column in zip((correlation, begin, end, api, graph), values, strict=True):
                target[part] = column
        return joined(waits)

    none = (np.empty(0, np.int64), np.empty(0, np.int64))
    waited, wait_end = joined([none, *each(read, portions(first, trace.threads), trace.threads)])
    thread, pairs = threads.done()
    launches = Launches(
        begin=begin,
        end=end,
        thread=thread,
        api=api,
        graph=graph,
        waited=waited,
        wait_end=wait_end,
        threads=pl.DataFrame({"process": pairs[:, 0].astype(np.int32), "thread": pairs[:, 1]}),
        api_names=tuple(names),
    )
    # The calls of a process follow each other.
    if not np.array_equal(pairs[thread[first[:-1]], 0], processes) or not np.array_equal(
        pairs[thread[first[1:] - 1], 0], processes
    ):
        raise RuntimeError("the table of launches is not in the order of processes")
    return launches, CallIds(processes, first, correlation)


def link_events(
    trace: LoadedTrace, calls: CallIds, process_of_rank: npt.NDArray[np.integer], first: Ints, correlation: Ints | Codes
) -> Codes:
    """Place of the launch call of each event, -1 without one; of several calls with one id, the first.

    Args:
        trace: where the answer lies, and how many threads may work.
        calls: the calls.
        process_of_rank: [ranks].
        first: int64 [ranks + 1], where each rank's events begin.
        correlation: [events], -1 without.
    """
    link: Codes = trace.room.empty(len(correlation), np.int32)
    known: dict[int, _Finder] = {}
    for process, low, high in zip(process_of_rank.tolist(), first[:-1].tolist(), first[1:].tolist(), strict=True):
        if process not in known:
            known = {process: _Finder(trace.room, calls, process)}
        find = known[process].find

        def fill(part: slice, find: Callable[[Ints | Codes], Codes] = find) -> None:
            own = correlation[part]
            # The nodes of a replay follow each other under one id: look up each run once.
            runs = run_starts(own)
            link[part] = np.repeat(find(own[runs]), np.diff(np.append(runs, len(own))))

        deque(each(fill, blocks(low, high), trace.threads), 0)
    return link


class _Finder:
    """Finds the calls of one process by their ids."""

    def __init__(self, room: ArrayRoom, calls: CallIds, process: int) -> None:
        place = int(np.searchsorted(calls.process, process))
        known = place < len(calls.process) and int(calls.process[place]) == process
        self._low = int(calls.first[place]) if known else 0
        ids = calls.correlation[self._low : int(calls.first[place + 1])] if known else calls.correlation[:0]
        cells = int(ids.max(initial=-1)) + 2
        self._table: Codes | None = None
        if cells <= max(_SPARSE * len(ids), _SMALL):
            # Going backwards leaves the first call of an id; the last cell stands for every id that no call has.
            table: Codes = room.empty(cells, np.int32)
            table.fill(-1)
            for part in reversed(list(blocks(0, len(ids)))):
                places = np.arange(self._low + part.start, self._low + part.stop, dtype=np.int32)
                table[ids[part][::-1]] = places[::-1]
            self._table = table
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
