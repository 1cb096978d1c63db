"""Events of chosen windows on the aligned clock, collectives cut into the wait and the transfer.

own clocks                            aligned
rank 0  |gemm |all_reduce     |       rank 0  |gemm |wait    |transfer|
rank 1     |gemm    |all_reduce  |    rank 1  |gemm          |transfer|
                                                             last arrival
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelens.analyses.alignment import Alignment, find_alignment
from tracelens.analyses.alignment_members import MatchedOperations
from tracelens.analyses.blocks import blocks
from tracelens.analyses.timeline import Ints, Timeline, timeline
from tracelens.sqlfiles import queries
from tracelens.trace import LoadedTrace

_SQL = Path(__file__).with_suffix(".sql")
_KINDS = ["kernel", "memcpy", "memset", "graph"]
_NOTED = ("correlation", "graph_node", "bytes")
_NULL = np.iinfo(np.int64).min
_BATCH_ROWS = 65_536
_EVENT_SCHEMA = {
    "event_id": pl.Int64,
    "rank": pl.Int32,
    "stream": pl.Int64,
    "kind": pl.String,
    "bucket": pl.String,
    "name": pl.String,
    "start_ns": pl.Int64,
    "correlation": pl.Int64,
    "graph_node": pl.Int64,
    "bytes": pl.Int64,
    "duration_ns": pl.Int64,
}


def event_slices(trace: LoadedTrace, windows: pl.DataFrame) -> pl.DataFrame:
    """Every event that starts in a window, on the aligned clock.

    Args:
        trace: the capture.
        windows: rank, start_ns, end_ns on each rank's own time; disjoint within a rank.

    Returns:
        event_id, rank, stream (-1: none recorded), kind (kernel, memcpy, memset, graph), bucket, name, start_ns and
        duration_ns (aligned, int64), correlation, graph_node, bytes; by rank, stream, start.
    """
    return pl.concat([pl.DataFrame(schema=_EVENT_SCHEMA), *event_parts(trace, windows)])


def event_parts(trace: LoadedTrace, windows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """`event_slices` in frames of about a block's size, each of one rank."""
    tl, alignment = timeline(trace), find_alignment(trace)
    for place, stretches in started_in(tl, windows).items():
        low = stretches[0].start
        noted = _noted(trace, tl, place, slice(low, stretches[-1].stop))
        for places in _by_stream(tl, alignment, place, stretches):
            yield pl.DataFrame(
                {
                    "event_id": tl.ids_of(places),
                    "rank": tl.ranks[tl.rank_place[places]],
                    "stream": tl.stream_number[tl.stream[places]],
                    "kind": _texts(_KINDS, tl.kind[places]),
                    "bucket": tl.names["bucket"].gather(tl.name[places]),
                    "name": tl.names["name"].gather(tl.name[places]),
                    "start_ns": aligned_starts(tl, alignment, place, places),
                    **{name: _nullable(values[places - low]) for name, values in zip(_NOTED, noted, strict=True)},
                    "duration_ns": tl.length[places],
                },
                schema_overrides=_EVENT_SCHEMA,
            )


def started_in(tl: Timeline, windows: pl.DataFrame) -> dict[int, list[slice]]:
    """Place of each rank, ascending -> its events that start in a window, as stretches of at most a block.

    Args:
        tl: the timeline.
        windows: as in `event_slices`; a rank without such events is not in the answer.
    """
    found: dict[int, list[slice]] = {}
    for rank, start_ns, end_ns in windows.select("rank", "start_ns", "end_ns").sort("rank", "start_ns").iter_rows():
        for place in np.flatnonzero(tl.ranks == rank).tolist():
            first = int(tl.first[place])
            own = tl.start[first : tl.first[place + 1]]
            low, high = (first + np.searchsorted(own, np.array([start_ns, end_ns]) + tl.shift[place])).tolist()
            if low < high:
                found.setdefault(place, []).extend(blocks(low, high))
    return found


def aligned_starts(tl: Timeline, alignment: Alignment, place: int, events: slice | NDArray[np.integer]) -> Ints:
    """Starts of some events of the rank at `place` on the aligned clock, int64 ns."""
    return alignment.to_aligned(np.array(tl.ranks[place]), tl.start[events] - tl.shift[place])


def _by_stream(
    tl: Timeline, alignment: Alignment, place: int, stretches: Sequence[slice]
) -> Iterator[NDArray[np.int64]]:
    """Places of a rank's events in the order of stream and aligned start, about a block at a time."""
    ordered = _ascend(tl, alignment, place, stretches)
    size = max(part.stop - part.start for part in stretches)
    waiting: list[NDArray[np.int64]] = []
    for stream in np.flatnonzero(tl.stream_rank == place):
        found = (part.start + np.flatnonzero(tl.stream[part] == stream) for part in stretches)
        if not ordered:
            # A clock that is put back has events change places; they may be as far apart as the stream is long.
            mine = np.concatenate(list(found))
            mine = mine[np.argsort(aligned_starts(tl, alignment, place, mine), kind="stable")]
            found = (mine[part] for part in blocks(0, len(mine)))
        for places in found:
            waiting.append(places)
            if sum(map(len, waiting)) >= size:
                yield np.concatenate(waiting)
                waiting = []
    if any(map(len, waiting)):
        yield np.concatenate(waiting)


def _ascend(tl: Timeline, alignment: Alignment, place: int, stretches: Sequence[slice]) -> bool:
    """Whether the aligned clock leaves a rank's events in their order."""
    reached = _NULL
    for part in stretches:
        start = aligned_starts(tl, alignment, place, part)
        if int(start[0]) < reached or bool((start[1:] < start[:-1]).any()):
            return False
        reached = int(start[-1])
    return True


def _noted(trace: LoadedTrace, tl: Timeline, place: int, events: slice) -> list[Ints]:
    """What the timeline does not hold of some events of a rank: int64 [events] per column of `_NOTED`."""
    first = int(tl.first_id[place] + events.start - tl.first[place])
    count = events.stop - events.start
    noted: list[Ints] = [trace.room.empty(count, np.int64) for _ in _NOTED]
    asked = {"rank": int(tl.ranks[place]), "first": first, "last": first + count - 1}
    for batch in trace.db.sql(queries(_SQL)["noted"], params=asked).to_arrow_reader(_BATCH_ROWS):
        ids, *columns = (column.to_numpy() for column in batch.columns)
        for values, own in zip(noted, columns, strict=True):
            values[ids - first] = own
    return noted


def _nullable(values: Ints) -> pl.Series:
    return pl.select(pl.when(pl.Series(values != _NULL)).then(pl.Series(values))).to_series()


def wait_slices(trace: LoadedTrace, windows: pl.DataFrame) -> pl.DataFrame:
    """Every matched collective operation that starts in a window, with its arrivals.

    Returns:
        event_id (its first kernel), communicator, instance, rank, operation, implementation, arrival_ns,
        last_arrival_ns, end_ns (aligned), is_last (null where the lead is below resolution); by event_id.
    """
    found = find_alignment(trace).operations
    return _waits(found, _matched(found, np.flatnonzero(_inside(trace, found, windows))))


def wait_parts(trace: LoadedTrace, windows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """`wait_slices` in frames of at most a block, each of one rank; by rank, arrival, communicator, instance."""
    found = find_alignment(trace).operations
    inside = _inside(trace, found, windows)
    for low, high in pairwise(_edges(found).tolist()):
        at = _matched(found, low + np.flatnonzero(inside[low:high]))
        # Instances are numbered through, communicator by communicator.
        at = at[np.lexsort((found.instance[at], found.arrival[at]))]
        for part in blocks(0, len(at)):
            yield _waits(found, at[part])


def wait_arrows(trace: LoadedTrace, windows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Who came last to whom that waited, where both operations start in a window; by communicator, instance, rank.

    Returns:
        frames of from_rank (the last), to_rank, at_ns (its arrival, or the other's end if that comes first; aligned).
    """
    found = find_alignment(trace).operations
    own, instances = found.recorded, found.instances
    inside = _inside(trace, found, windows)
    nobody = -1
    last_rank = np.full(len(instances), nobody, np.int32)
    for part in blocks(0, len(found)):
        at = _matched(found, part.start + np.flatnonzero(inside[part]))
        instance = found.instance[at]
        last = instances.lead_known[instance] & (found.arrival[at] == instances.last_ns[instance])
        last_rank[instance[last]] = found.ranks[own.owner[at[last]]]
    for part in blocks(0, len(found)):
        at = found.order[part]
        at = _matched(found, at[inside[at]])
        instance, arrival_ns = found.instance[at], found.arrival[at]
        rank, last = found.ranks[own.owner[at]], last_rank[instance]
        at_ns = np.minimum(instances.last_ns[instance], arrival_ns + own.end[at] - own.start[at])
        waits = (at_ns > arrival_ns) & (last != nobody) & (last != rank)
        yield pl.DataFrame({"from_rank": last[waits], "to_rank": rank[waits], "at_ns": at_ns[waits]})


def _edges(found: MatchedOperations) -> Ints:
    """Where the operations of each rank begin, and the last ones end."""
    edges: Ints = np.searchsorted(found.recorded.owner, np.arange(len(found.ranks) + 1))
    return edges


def _inside(trace: LoadedTrace, found: MatchedOperations, windows: pl.DataFrame) -> NDArray[np.bool_]:
    """Whether each collective operation starts in a window."""
    edges = _edges(found)
    inside: NDArray[np.bool_] = trace.room.empty(len(found), bool)
    inside[:] = False
    for rank, start_ns, end_ns in windows.select("rank", "start_ns", "end_ns").iter_rows():
        for owner in np.flatnonzero(found.ranks == rank):
            starts = found.recorded.start[edges[owner] : edges[owner + 1]]
            low, high = edges[owner] + np.searchsorted(starts, [start_ns, end_ns])
            inside[low:high] = True
    return inside


def _matched(found: MatchedOperations, at: NDArray[Any]) -> NDArray[Any]:
    """Those of some operations that have arrivals."""
    # One more row stands for no instance at all.
    matched: NDArray[Any] = at[np.append(found.instances.accepted, False)[found.instance[at]]]
    return matched


def _waits(found: MatchedOperations, at: NDArray[Any]) -> pl.DataFrame:
    own, instances = found.recorded, found.instances
    instance, family = found.instance[at], own.family[at]
    arrival_ns, last_ns = found.arrival[at], instances.last_ns[instance]
    is_last = pl.when(pl.Series(instances.lead_known[instance])).then(pl.Series(arrival_ns == last_ns))
    return pl.DataFrame(
        {
            "event_id": own.event_id[at],
            "communicator": instances.communicator[instance],
            "instance": instance.astype(np.int64),
            "rank": found.ranks[own.owner[at]],
            "operation": _texts([operation for operation, _, _ in own.families], family),
            "implementation": _texts([implementation for _, implementation, _ in own.families], family),
            "arrival_ns": arrival_ns,
            "last_arrival_ns": last_ns,
            "end_ns": arrival_ns + own.end[at] - own.start[at],
            "is_last": pl.select(is_last).to_series(),
        }
    )


def _texts(texts: Sequence[str], codes: NDArray[np.integer]) -> pl.Series:
    return pl.Series(texts, dtype=pl.String).gather(codes)


def parted(events: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """`events` in which the first kernel of a matched collective is cut at the last arrival.

    A kernel that ends before the last arrival (the first of several of one operation) is all `wait`; one whose rank
    came last is all `transfer`. Times of one rank still sum to what they were.

    Returns:
        the columns of `event_slices`; kind is also `wait` or `transfer`.
    """
    cut = events.join(waits.select("event_id", "last_arrival_ns"), on="event_id", how="left", maintain_order="left")
    end = pl.col("start_ns") + pl.col("duration_ns")
    at = pl.col("last_arrival_ns").clip(pl.col("start_ns"), end)
    matched = cut.filter(pl.col("last_arrival_ns").is_not_null()).with_columns(at.alias("at"), end.alias("end"))
    wait = matched.filter(pl.col("at") > pl.col("start_ns")).with_columns(
        pl.lit("wait").alias("kind"), (pl.col("at") - pl.col("start_ns")).alias("duration_ns")
    )
    transfer = matched.filter(pl.col("end") > pl.col("at")).with_columns(
        pl.lit("transfer").alias("kind"),
        pl.col("at").alias("start_ns"),
        (pl.col("end") - pl.col("at")).alias("duration_ns"),
    )
    rest = cut.filter(pl.col("last_arrival_ns").is_null())
    columns = events.columns
    return pl.concat([part.select(columns) for part in (rest, wait, transfer)]).sort(
        "rank", "stream", "start_ns", "event_id", "kind"
    )


def aligned_windows(trace: LoadedTrace, windows: pl.DataFrame) -> pl.DataFrame:
    """`windows` with start_ns and end_ns on the aligned clock; other columns as they are."""
    alignment = find_alignment(trace)
    return windows.with_columns(_aligned(alignment, windows, "start_ns"), _aligned(alignment, windows, "end_ns"))


def _aligned(alignment: Alignment, rows: pl.DataFrame, column: str) -> pl.Series:
    moved = alignment.to_aligned(rows["rank"].to_numpy().astype(np.int64), rows[column].to_numpy())
    return pl.Series(column, moved, dtype=pl.Int64)
