"""When ranks arrive at their matched collectives: quantiles of the delay, and waiting by place in the step.

    rank 0   |A  |B  |  |A  |B  |       one communicator, two steps of the main kind
    rank 1     |A|  |B|   |A| |B|
    place     0   1      0   1

The collectives of one rank are looked at at a time; what is kept of them is a number per instance, or per place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.alignment import find_alignment
from tracelens.analyses.alignment_members import InstanceTable
from tracelens.analyses.blocks import each, run_starts
from tracelens.analyses.report_parts import CELLS_SHOWN, ChosenSteps, of_main_kind
from tracelens.analyses.step_search import search_steps
from tracelens.analyses.timeline import timeline
from tracelens.trace import LoadedTrace

POSITIONS_SHOWN = 400
QUANTILES = {"p05_ns": 0.05, "p25_ns": 0.25, "p50_ns": 0.5, "p75_ns": 0.75, "p95_ns": 0.95, "max_ns": 1.0}

_PLACES = {
    "communicator": pl.Int64,
    "rank": pl.Int64,
    "position": pl.Int64,
    "collective": pl.String,
    "wait_ns": pl.Int64,
    "instance_count": pl.Int64,
}

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Arrivals:
    """The matched collective operations of one rank outside warm-up steps, no two of one instance.

    Attributes:
        rank: the rank.
        instance: int32, place in the table of instances.
        wait_ns: int64.
        after_first_ns: int64, how long after the first member it arrived.
        step: int32, number of its step where that is of the main kind, else -1.
        operation: int32, place in the alphabet of operations.
    """

    rank: int
    instance: Codes
    wait_ns: Ints
    after_first_ns: Ints
    step: Codes
    operation: Codes


@dataclass(frozen=True)
class ArrivalReader:
    """The arrivals of a capture, rank by rank.

    Attributes:
        read: the arrivals of the rank at a place; called more than once.
        rank_count: number of places.
        instances: of them communicator and position.
        operations: the alphabet of operations.
        threads: how many ranks may be looked at at once.
    """

    read: Callable[[int], Arrivals]
    rank_count: int
    instances: InstanceTable
    operations: list[str]
    threads: int


def arrivals(trace: LoadedTrace, figures: pl.DataFrame, chosen: ChosenSteps | None) -> ArrivalReader:
    """The arrivals of a trace.

    Args:
        trace: the capture.
        figures: the steps that are shown, one row per rank and step.
        chosen: their main kind; null: no step is of it.
    """
    steps, tl = search_steps(trace), timeline(trace)
    found = find_alignment(trace).operations
    own, instances = found.recorded, found.instances
    edges = np.searchsorted(own.owner, np.arange(len(found.ranks) + 1))
    alphabet = sorted({operation for operation, _, _ in own.families})
    letter = np.array([alphabet.index(operation) for operation, _, _ in own.families], np.int32)
    main = _listed(steps.table, figures.clear() if chosen is None else of_main_kind(figures, chosen))
    # One more element stands for what is in no step, or in no instance.
    number = np.append(np.where(main, steps.table["step"].to_numpy(), -1), -1).astype(np.int32)
    warm = np.append(_listed(steps.table, figures.filter("warm_up")), False)
    accepted = np.append(instances.accepted, False)

    def read(owner: int) -> Arrivals:
        part = slice(edges[owner], edges[owner + 1])
        row = steps.member[tl.places_of(own.event_id[part])]
        at = np.flatnonzero(accepted[found.instance[part]] & ~warm[row])
        instance = found.instance[part][at]
        wait_ns = instances.last_ns[instance] - found.arrival[part][at]
        after_first_ns = instances.skew_ns[instance] - wait_ns
        operation = letter[own.family[part][at]]
        return Arrivals(int(found.ranks[owner]), instance, wait_ns, after_first_ns, number[row[at]], operation)

    return ArrivalReader(read, len(found.ranks), instances, alphabet, trace.threads)


def _listed(table: pl.DataFrame, steps: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether each row of the table of steps is among `steps`, by rank and step."""
    marked = steps.select("rank", "step", listed=True).unique()
    found = table.select("rank", "step").join(marked, on=["rank", "step"], how="left", maintain_order="left")
    return found["listed"].fill_null(False).to_numpy()


def arrival_tables(reader: ArrivalReader) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The delays of arrivals by rank, and the waits of the communicator that waits most by place in the main kind's steps.

    Returns:
        Per communicator and rank, in that order: instance_count, and `QUANTILES` of the delay after the first member's
        arrival.
        Per rank and place, in that order: communicator, rank, position (from 0), collective (the most frequent there),
        wait_ns (mean), instance_count. Places above POSITIONS_SHOWN (with more than 40 ranks, fewer) are left out.
    """
    instances = reader.instances
    communicators = int(instances.communicator.max(initial=-1)) + 1
    delays: list[dict[str, int]] = []
    waited_ns, rank_counts = np.zeros(communicators), np.zeros(communicators, np.int64)
    # Every step with every instance that a rank has in it. Most ranks have an instance in one and the same step.
    seen = np.full(len(instances), -1, np.int32)
    pairs = [np.zeros(0, np.int64)]

    def look(owner: int) -> tuple[list[dict[str, int]], Arrivals, npt.NDArray[Any], npt.NDArray[Any]]:
        mine = reader.read(owner)
        communicator = instances.communicator[mine.instance]
        rows = [
            {"communicator": one, "rank": mine.rank} | _quantiles(mine.after_first_ns[communicator == one])
            for one in np.flatnonzero(np.bincount(communicator)).tolist()
        ]
        main = _only(mine, mine.step >= 0)
        of_main = instances.communicator[main.instance]
        waits = np.bincount(of_main, main.wait_ns, minlength=communicators)
        return rows, main, waits, np.bincount(of_main, minlength=communicators)

    for rows, main, waits, counts in each(look, range(reader.rank_count), reader.threads):
        delays += rows
        waited_ns += waits
        rank_counts += counts > 0
        pairs.append(_pairs(_only(main, seen[main.instance] != main.step), len(instances)))
        seen[main.instance] = main.step
    columns = ["communicator", "rank", "instance_count", *QUANTILES]
    delay_table = pl.DataFrame(delays, schema=dict.fromkeys(columns, pl.Int64)).sort("communicator", "rank")
    if not rank_counts.any():
        return delay_table, _place_rows([])
    most = int(np.argmax(np.where(rank_counts > 0, waited_ns, -1)))
    limit = min(POSITIONS_SHOWN, CELLS_SHOWN // int(rank_counts[most]))
    met = np.sort(np.concatenate(pairs))
    met = met[run_starts(met)]
    return delay_table, _waits_by_place(reader, most, met[instances.communicator[met % len(instances)] == most], limit)


def _waits_by_place(reader: ArrivalReader, communicator: int, met: Ints, limit: int) -> pl.DataFrame:
    """Waits of one communicator; `met`: all pairs of its instances, ascending, so that a step's follow each other."""
    count = len(reader.instances)
    first = run_starts(met // count)
    place = np.arange(len(met)) - np.repeat(first, np.diff(first, append=len(met)))

    def look(owner: int) -> pl.DataFrame:
        mine = reader.read(owner)
        mine = _only(mine, (mine.step >= 0) & (reader.instances.communicator[mine.instance] == communicator))
        at = place[np.searchsorted(met, _pairs(mine, count))]
        mine, at = _only(mine, at < limit), at[at < limit]
        counts = np.bincount(at, minlength=limit)
        used = np.flatnonzero(counts)
        waited_ns = np.bincount(at, mine.wait_ns, minlength=limit)[used]
        # Of operations that are equally frequent argmax takes the first of the alphabet.
        cells = np.bincount(mine.operation * limit + at, minlength=limit * len(reader.operations))
        often = cells.reshape(-1, limit).argmax(axis=0)[used]
        return pl.DataFrame(
            {
                "communicator": np.full(len(used), communicator),
                "rank": np.full(len(used), mine.rank),
                "position": used,
                "collective": [reader.operations[operation] for operation in often],
                "wait_ns": np.rint(waited_ns / counts[used]).astype(np.int64),
                "instance_count": counts[used],
            },
            schema=_PLACES,
        )

    return _place_rows(list(each(look, range(reader.rank_count), reader.threads)))


def _place_rows(parts: list[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat([pl.DataFrame(schema=_PLACES), *parts]).sort("rank", "position")


def _only(mine: Arrivals, chosen: npt.NDArray[np.bool_]) -> Arrivals:
    if bool(chosen.all()):
        return mine
    return Arrivals(
        mine.rank,
        mine.instance[chosen],
        mine.wait_ns[chosen],
        mine.after_first_ns[chosen],
        mine.step[chosen],
        mine.operation[chosen],
    )


def _pairs(mine: Arrivals, instance_count: int) -> Ints:
    """Step and instance as one number, ascending by step, then by instance."""
    result: Ints = mine.step.astype(np.int64) * instance_count + mine.instance
    return result


def _quantiles(delays_ns: Ints) -> dict[str, int]:
    """Number and quantiles of delays, half to even."""
    ordered = pl.Series(np.sort(delays_ns)).set_sorted()
    found = {name: ordered.quantile(share, "linear") for name, share in QUANTILES.items()}
    return {"instance_count": len(ordered)} | {name: round(value) for name, value in found.items() if value is not None}
