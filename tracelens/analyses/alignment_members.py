"""The table `collective_member`: every collective operation of every rank, with its wait where one can be told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.alignment_operations import Operations
from tracelens.analyses.clock import Clock, Ints
from tracelens.analyses.clock_joint import Readings
from tracelens.analyses.matching_communicators import RankClock
from tracelens.analyses.matching_instances import Bools, Instances

MEMBER_COLUMNS = {
    "communicator": pl.Int32,
    "instance": pl.Int64,
    "position": pl.Int64,
    "rank": pl.Int32,
    "operation": pl.String,
    "implementation": pl.String,
    "name_id": pl.Int32,
    "shape": pl.Int64,
    "stream": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "arrival_ns": pl.Int64,
    "aligned_end_ns": pl.Int64,
    "wait_ns": pl.Int64,
    "transfer_ns": pl.Int64,
    "transfer_min_ns": pl.Int64,
    "completion_ns": pl.Int64,
    "skew_ns": pl.Int64,
    "is_last": pl.Boolean,
    "accepted": pl.Boolean,
    "set_aside_reason": pl.String,
    "event_id": pl.Int64,
    "last_event_id": pl.Int64,
    "message_bytes": pl.Int64,
}

NOT_SYNCHRONISING = "not synchronising"
AMBIGUOUS = "matching ambiguous"
NO_PARTNER = "no rank with matching ends"
TOO_FEW = "too few to match"
OUTSIDE = "outside a member's capture"
MISSING = "a member's kernel is missing"
NO_CLOCK = "no common clock"
APART = "ends too far apart"


@dataclass(frozen=True)
class Placed:
    """One communicator whose instances are known.

    Attributes:
        communicator: its number.
        members: indices of the ranks.
        instances: all, complete or not.
        readings: the complete ones.
        accepted: of the complete ones, those that figures rest on.
        known: whether its members have a common clock.
        resolution_ns: a lead below this names no last rank.
    """

    communicator: int
    members: tuple[int, ...]
    instances: Instances
    readings: Readings
    accepted: Bools
    known: bool
    resolution_ns: float


def member_frame(
    ranks: Sequence[RankClock],
    operations: Operations,
    placed: Sequence[Placed],
    clocks: Mapping[int, tuple[int, Clock]],
    loose: Mapping[str, Ints],
    unplaced: Sequence[int],
) -> pl.DataFrame:
    """Put all collective operations into one table.

    Args:
        ranks: the ranks.
        operations: their collective operations.
        placed: the communicators.
        clocks: rank -> (epoch, clock) that turns own into aligned time.
        loose: reason -> operations that are in no communicator.
        unplaced: indices of ranks without a clock.

    Returns:
        Columns `MEMBER_COLUMNS`, sorted by (communicator, instance, rank), then unmatched ones by event_id. A
        communicator's instances are numbered on from those of the communicators before it; position counts within it.
    """
    count = len(operations)
    arrival = _aligned_starts(ranks, operations, clocks)
    aligned_end = arrival + (operations.end - operations.start)
    timed = ~np.isin(operations.owner, np.array(unplaced, dtype=np.int64))
    figures = {name: np.zeros(count, dtype=np.int64) for name in ("communicator", "instance", "position", *_TIMES)}
    in_instance, accepted = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    is_last, last_known = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    reason = np.zeros(count, dtype=np.int64)
    reasons: list[str | None] = [None]

    def because(rows: Ints, text: str) -> None:
        if text not in reasons:
            reasons.append(text)
        reason[rows] = reasons.index(text)

    for text, rows in loose.items():
        because(rows, text)
    next_instance = 0
    for one in placed:
        table = one.instances.row
        position = np.broadcast_to(np.arange(len(table))[:, None], table.shape)
        present = table >= 0
        rows = table[present]
        in_instance[rows] = True
        figures["communicator"][rows] = one.communicator
        figures["position"][rows] = position[present]
        figures["instance"][rows] = position[present] + next_instance
        next_instance += len(table)
        complete = one.instances.complete
        inside = _inside_all(table)
        for text, chosen in ((MISSING, ~complete & inside), (OUTSIDE, ~complete & ~inside)):
            because(table[chosen][present[chosen]], text)
        full = table[complete]
        if not one.known:
            because(full.ravel(), NO_CLOCK)
            continue
        because(full[~one.accepted].ravel(), APART)
        good = full[one.accepted]
        if len(good):
            accepted[good] = True
            _waits(good, arrival, aligned_end, figures, is_last, last_known, one.resolution_ns)
    accepted &= timed
    rank = np.array([one.rank for one in ranks], dtype=np.int32)[operations.owner]
    last = np.iinfo(np.int64).max
    order = np.lexsort(
        (
            operations.event_id,
            rank,
            np.where(in_instance, figures["instance"], last),
            np.where(in_instance, figures["communicator"], last),
        )
    )
    operation, implementation = (
        pl.Series([family[k] for family in operations.families], dtype=pl.String).gather(operations.family[order])
        if operations.families
        else pl.Series([], dtype=pl.String)
        for k in (0, 1)
    )
    result = _Table(order)
    for name in ("communicator", "instance", "position"):
        result.put(name, figures.pop(name), in_instance)
    result.put("rank", rank)
    result.columns["operation"], result.columns["implementation"] = operation, implementation
    for name in ("name_id", "shape", "stream"):
        result.put(name, getattr(operations, name))
    result.put("start_ns", operations.start)
    result.put("end_ns", operations.end)
    result.put("arrival_ns", arrival, timed)
    result.put("aligned_end_ns", aligned_end, timed)
    for name in _TIMES:
        result.put(name, figures.pop(name), accepted)
    result.put("is_last", is_last, accepted & last_known)
    result.put("accepted", accepted)
    result.columns["set_aside_reason"] = pl.Series(reasons, dtype=pl.String).gather(reason[order])
    result.put("event_id", operations.event_id)
    result.put("last_event_id", operations.last_event_id)
    result.put("message_bytes", operations.message_bytes, operations.message_bytes >= 0)
    return pl.DataFrame({name: result.columns[name] for name in MEMBER_COLUMNS})


class _Table:
    """Columns of `MEMBER_COLUMNS`, each put in order at once so that no second copy of the whole is ever held."""

    def __init__(self, order: Ints) -> None:
        self._order = order
        self.columns: dict[str, pl.Series] = {}

    def put(self, name: str, values: npt.NDArray[Any], valid: Bools | None = None) -> None:
        """One column, null where not `valid`."""
        series = pl.Series(name, values[self._order]).cast(MEMBER_COLUMNS[name])
        if valid is not None and not bool(valid.all()):
            series = pl.select(pl.when(pl.Series(valid[self._order])).then(series).alias(name)).to_series()
        self.columns[name] = series


_TIMES = ("wait_ns", "transfer_ns", "transfer_min_ns", "completion_ns", "skew_ns")


def _aligned_starts(
    ranks: Sequence[RankClock], operations: Operations, clocks: Mapping[int, tuple[int, Clock]]
) -> Ints:
    arrival = operations.start.copy()
    edges = np.searchsorted(operations.owner, np.arange(len(ranks) + 1))
    for owner, rank in enumerate(ranks):
        epoch, clock = clocks[rank.rank]
        own = operations.start[edges[owner] : edges[owner + 1]]
        apart = clock.difference((own - epoch).astype(np.float64))
        arrival[edges[owner] : edges[owner + 1]] = own - np.rint(apart).astype(np.int64)
    return arrival


def _inside_all(table: Ints) -> Bools:
    """Instances between the latest first and the earliest last appearance of any member."""
    present = table >= 0
    count = len(table)
    inside = np.zeros(count, dtype=bool)
    begin = int(present.argmax(axis=0).max())
    end = int((count - present[::-1].argmax(axis=0)).min())
    inside[begin:end] = True
    return inside


def _waits(
    rows: Ints,
    arrival: Ints,
    aligned_end: Ints,
    figures: Mapping[str, Ints],
    is_last: Bools,
    last_known: Bools,
    resolution_ns: float,
) -> None:
    """Fill in the figures of accepted instances; `rows` is [instances, members]."""
    came = arrival[rows]
    order = np.sort(came, axis=1)
    last = order[:, -1]
    after = aligned_end[rows] - last[:, None]
    ordered = np.sort(after, axis=1)
    members = rows.shape[1]
    middle = np.rint((ordered[:, (members - 1) // 2] + ordered[:, members // 2]) / 2).astype(np.int64)
    figures["wait_ns"][rows] = last[:, None] - came
    for name, value in (
        ("transfer_ns", middle),
        ("transfer_min_ns", ordered[:, 0]),
        ("completion_ns", ordered[:, -1]),
        ("skew_ns", last - order[:, 0]),
    ):
        figures[name][rows] = value[:, None]
    known = last - order[:, -2] > resolution_ns
    last_known[rows] = known[:, None]
    is_last[rows] = (came == last[:, None]) & known[:, None]
