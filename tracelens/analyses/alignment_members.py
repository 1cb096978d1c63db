"""Every collective operation of every rank, with its instance, and its wait where one can be told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.alignment_operations import Operations
from tracelens.analyses.clock import Clock, Ints
from tracelens.analyses.clock_joint import Readings
from tracelens.analyses.matching_communicators import RankClock
from tracelens.analyses.matching_instances import Bools, Instances, Rows

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

REASONS = (None, NOT_SYNCHRONISING, AMBIGUOUS, NO_PARTNER, TOO_FEW, OUTSIDE, MISSING, NO_CLOCK, APART)
"""Why an operation has no wait; a reason's code is its place."""

_ROWS = 1 << 15  # operations of instances that are judged at once: their arrays fit the cache of a core

Codes = npt.NDArray[np.int32]


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


@dataclass(frozen=True)
class InstanceTable:
    """The instances of all communicators, one after the other; an instance's number is its place.

    Attributes:
        communicator: int32, number of its communicator.
        position: int32, place in the communicator's sequence.
        size: int32, members that take part in it.
        accepted: bool, whether figures rest on it; the others have figures of 0.
        reason: uint8, place in `REASONS`: why none do.
        last_ns: int64, aligned arrival of its last member.
        transfer_ns, transfer_min_ns, completion_ns, skew_ns: int64, as in `collective_member`.
        lead_known: bool, whether its last member leads by more than the clocks resolve.
    """

    communicator: Codes
    position: Codes
    size: Codes
    accepted: Bools
    reason: npt.NDArray[np.uint8]
    last_ns: Ints
    transfer_ns: Ints
    transfer_min_ns: Ints
    completion_ns: Ints
    skew_ns: Ints
    lead_known: Bools

    def __len__(self) -> int:
        return len(self.position)

    @classmethod
    def empty(cls, count: int) -> InstanceTable:
        """`count` instances of which nothing is known yet."""

        def zeros(dtype: type) -> npt.NDArray[Any]:
            return np.zeros(count, dtype=dtype)

        return cls(
            communicator=zeros(np.int32),
            position=zeros(np.int32),
            size=zeros(np.int32),
            accepted=zeros(bool),
            reason=zeros(np.uint8),
            last_ns=zeros(np.int64),
            transfer_ns=zeros(np.int64),
            transfer_min_ns=zeros(np.int64),
            completion_ns=zeros(np.int64),
            skew_ns=zeros(np.int64),
            lead_known=zeros(bool),
        )


@dataclass(frozen=True)
class MatchedOperations:
    """The collective operations of all ranks: one element per operation, in the order of rank and start.

    Attributes:
        recorded: what was recorded of them.
        ranks: int32 [ranks], rank of each `Operations.owner`.
        arrival: int64 ns, start on the aligned clock; of a rank without a clock its own time.
        timed: bool [ranks], whether the rank has a clock.
        instance: int32, number of its instance, -1 where unmatched.
        reason: uint8, place in `REASONS`.
        order: places in the order of the table `collective_member`: matched ones by instance and rank, then the rest.
        instances: what is known of each instance.
    """

    recorded: Operations
    ranks: Codes
    arrival: Ints
    timed: Bools
    instance: Codes
    reason: npt.NDArray[np.uint8]
    order: Rows
    instances: InstanceTable
    _matched: int = field(repr=False)

    def __len__(self) -> int:
        return len(self.recorded)

    @cached_property
    def accepted(self) -> Bools:
        """Whether each has a wait."""
        # One more row stands for no instance at all.
        return np.append(self.instances.accepted, False)[self.instance]

    @cached_property
    def communicator(self) -> Codes:
        """Number of each one's communicator, -1 where unmatched."""
        return np.append(self.instances.communicator, np.int32(-1))[self.instance]

    @cached_property
    def wait_ns(self) -> Ints:
        """Last arrival of the instance less the own, int64 ns; 0 where not accepted."""
        last = np.append(self.instances.last_ns, 0)[self.instance]
        last -= self.arrival
        last[~self.accepted] = 0
        return last

    @property
    def aligned_end(self) -> Ints:
        """End of each one on the aligned clock, int64 ns."""
        return self.arrival + (self.recorded.end - self.recorded.start)

    def rows_of(self, chosen: Ints) -> Rows:
        """Places of the members of complete instances of one communicator, [instances, members].

        Args:
            chosen: numbers of the instances, ascending.
        """
        size = int(self.instances.size[chosen[0]]) if len(chosen) else 0
        before = np.cumsum(self.instances.size, dtype=np.int64)[chosen] - size
        rows: Rows = self.order[before[:, None] + np.arange(size)[None, :]]
        return rows

    def frame(self, *names: str) -> pl.DataFrame:
        """Columns of the table `collective_member`, all if none is named: sorted by (communicator, instance, rank),
        then unmatched ones. Instances are numbered through; position counts within a communicator."""
        return pl.DataFrame({name: self._column(name) for name in names or MEMBER_COLUMNS})

    def _column(self, name: str) -> pl.Series:
        of_instance = {"communicator", "position", "transfer_ns", "transfer_min_ns", "completion_ns", "skew_ns"}
        if name == "instance":
            values = self._repeated(np.arange(len(self.instances), dtype=np.int32))
            return self._series(name, values, self._is_matched)
        if name in of_instance:
            valid = self._is_matched if name in ("communicator", "position") else self._in_order(self.accepted)
            return self._series(name, self._repeated(getattr(self.instances, name)), valid)
        own = self.recorded
        if name == "operation":
            return _texts(name, [operation for operation, _, _ in own.families], self._in_order(own.family))
        if name == "implementation":
            return _texts(name, [implementation for _, implementation, _ in own.families], self._in_order(own.family))
        if name == "set_aside_reason":
            return _texts(name, list(REASONS), self._in_order(self.reason))
        if name in ("arrival_ns", "aligned_end_ns"):
            values = self.arrival if name == "arrival_ns" else self.aligned_end
            return self._series(name, self._in_order(values), self.timed[self._in_order(own.owner)])
        if name == "wait_ns":
            return self._series(name, self._in_order(self.wait_ns), self._in_order(self.accepted))
        if name == "is_last":
            known = self._repeated(self.instances.lead_known)
            return self._series(name, self._in_order(self.wait_ns == 0), known)
        if name == "message_bytes":
            values = self._in_order(own.message_bytes)
            return self._series(name, values, values >= 0)
        plain = {"start_ns": own.start, "end_ns": own.end, "accepted": self.accepted}
        values = self.ranks[own.owner] if name == "rank" else plain[name] if name in plain else getattr(own, name)
        return self._series(name, self._in_order(values))

    def _in_order(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values[self.order]

    def _repeated(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values of instances at their operations in the table's order, 0 for unmatched ones."""
        result = np.zeros(len(self), dtype=values.dtype)
        result[: self._matched] = np.repeat(values, self.instances.size)
        return result

    @property
    def _is_matched(self) -> Bools:
        return np.arange(len(self)) < self._matched

    def _series(self, name: str, values: npt.NDArray[Any], valid: Bools | None = None) -> pl.Series:
        """One column, null where not `valid`."""
        series = pl.Series(name, values).cast(MEMBER_COLUMNS[name])
        if valid is None or bool(valid.all()):
            return series
        return pl.select(pl.when(pl.Series(valid)).then(series).alias(name)).to_series()


def _texts(name: str, texts: Sequence[str | None], codes: npt.NDArray[Any]) -> pl.Series:
    if not texts:
        return pl.Series(name, [], dtype=pl.String)
    return pl.Series(name, texts, dtype=pl.String).gather(codes)


def place_operations(
    ranks: Sequence[RankClock],
    operations: Operations,
    placed: Sequence[Placed],
    clocks: Mapping[int, tuple[int, Clock]],
    loose: Mapping[str, Rows],
    unplaced: Sequence[int],
) -> MatchedOperations:
    """Put all collective operations into their instances, and tell the figures of those that are accepted.

    Args:
        ranks: the ranks.
        operations: their collective operations.
        placed: the communicators.
        clocks: rank -> (epoch, clock) that turns own into aligned time.
        loose: reason -> operations that are in no communicator.
        unplaced: indices of ranks without a clock.
    """
    count = len(operations)
    arrival = _aligned_starts(ranks, operations, clocks)
    timed = np.ones(len(ranks), dtype=bool)
    timed[list(unplaced)] = False
    instance = np.full(count, -1, dtype=np.int32)
    reason = np.zeros(count, dtype=np.uint8)
    for text, rows in loose.items():
        reason[rows] = REASONS.index(text)
    table = InstanceTable.empty(sum(len(one.instances.row) for one in placed))
    order: Rows = np.empty(count, dtype=np.int32)
    first = matched = 0
    for one in placed:
        row = one.instances.row
        own = slice(first, first + len(row))
        number = np.arange(first, first + len(row), dtype=np.int32)
        present = row >= 0
        size = present.sum(axis=1, dtype=np.int32)
        held = row.ravel() if bool((size == row.shape[1]).all()) else row[present]
        table.communicator[own] = one.communicator
        table.position[own] = number - first
        table.size[own] = size
        order[matched : matched + len(held)] = held
        instance[held] = np.repeat(number, size)
        _judge(one, table, first, arrival, operations)
        reason[held] = np.repeat(table.reason[own], size)
        first, matched = first + len(row), matched + len(held)
    order[matched:] = np.flatnonzero(instance < 0)
    names = np.array([one.rank for one in ranks], dtype=np.int32)
    return MatchedOperations(operations, names, arrival, timed, instance, reason, order, table, matched)


def _judge(one: Placed, table: InstanceTable, first: int, arrival: Ints, operations: Operations) -> None:
    """Which instances of a communicator are accepted, why the others are not, and the figures of the accepted."""
    row, complete = one.instances.row, one.instances.complete
    inside = _inside_all(row)
    reason = table.reason[first : first + len(row)]
    reason[~complete] = np.where(inside[~complete], REASONS.index(MISSING), REASONS.index(OUTSIDE))
    full = np.flatnonzero(complete)
    if not one.known:
        reason[full] = REASONS.index(NO_CLOCK)
        return
    reason[full[~one.accepted]] = REASONS.index(APART)
    good = full[one.accepted]
    table.accepted[first + good] = True
    members = row.shape[1]
    for begin in range(0, len(good), max(1, _ROWS // members)):
        chosen = good[begin : begin + max(1, _ROWS // members)]
        rows, at = row[chosen], first + chosen
        came = np.sort(arrival[rows], axis=1)
        last = came[:, -1]
        after = arrival[rows]
        after += operations.end[rows]
        after -= operations.start[rows]
        after -= last[:, None]
        after.sort(axis=1)
        table.last_ns[at] = last
        table.transfer_ns[at] = np.rint((after[:, (members - 1) // 2] + after[:, members // 2]) / 2)
        table.transfer_min_ns[at] = after[:, 0]
        table.completion_ns[at] = after[:, -1]
        table.skew_ns[at] = last - came[:, 0]
        table.lead_known[at] = last - came[:, -2] > one.resolution_ns


def _aligned_starts(
    ranks: Sequence[RankClock], operations: Operations, clocks: Mapping[int, tuple[int, Clock]]
) -> Ints:
    arrival = np.empty(len(operations), dtype=np.int64)
    edges = np.searchsorted(operations.owner, np.arange(len(ranks) + 1))
    for owner, rank in enumerate(ranks):
        epoch, clock = clocks[rank.rank]
        own = operations.start[edges[owner] : edges[owner + 1]]
        apart = clock.difference((own - epoch).astype(np.float64))
        arrival[edges[owner] : edges[owner + 1]] = own - np.rint(apart).astype(np.int64)
    return arrival


def _inside_all(table: npt.NDArray[np.integer]) -> Bools:
    """Instances between the latest first and the earliest last appearance of any member."""
    present = table >= 0
    count = len(table)
    inside = np.zeros(count, dtype=bool)
    begin = int(present.argmax(axis=0).max())
    end = int((count - present[::-1].argmax(axis=0)).min())
    inside[begin:end] = True
    return inside
