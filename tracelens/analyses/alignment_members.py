"""Every collective operation of every rank, with its instance, and its wait where one can be told."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.alignment_operations import Operations
from tracelens.analyses.blocks import blocks, each
from tracelens.analyses.clock import Clock, Ints
from tracelens.analyses.clock_joint import Readings
from tracelens.analyses.clock_order import middles, put_in_order
from tracelens.analyses.matching_communicators import RankClock
from tracelens.analyses.matching_groups import Left
from tracelens.analyses.matching_instances import Bools, Instances, Rows
from tracelens.analyses.timeline_columns import Lengths
from tracelens.array_room import ArrayRoom

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

_REASON_LEFT = {"ambiguous": AMBIGUOUS, "different": NO_PARTNER, "short": TOO_FEW}

_ROWS = 1 << 16  # operations of instances that are judged at once: their arrays fit the cache of a core

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
    _room: ArrayRoom = field(repr=False)

    def __len__(self) -> int:
        return len(self.recorded)

    @cached_property
    def accepted(self) -> Bools:
        """Whether each has a wait."""
        result: Bools = self._of_instances(self.instances.accepted, False)
        return result

    @cached_property
    def communicator(self) -> npt.NDArray[np.signedinteger]:
        """Number of each one's communicator, -1 where unmatched; in the fewest bytes."""
        numbers = self.instances.communicator
        narrow = np.min_scalar_type(-1 - int(numbers.max(initial=0)))
        result: npt.NDArray[np.signedinteger] = self._of_instances(numbers.astype(narrow), -1)
        return result

    @cached_property
    def wait_ns(self) -> Ints:
        """Last arrival of the instance less the own, int64 ns; 0 where not accepted."""
        result: Ints = self._of_instances(self.instances.last_ns, 0)
        for part in blocks(0, len(self)):
            result[part] -= self.arrival[part]
            result[part] *= self.accepted[part]
        return result

    def _of_instances(self, values: npt.NDArray[Any], without: int) -> npt.NDArray[Any]:
        """A value per instance as a value per operation, `without` for those of no instance."""
        result = self._room.empty(len(self), values.dtype)
        # One more row stands for no instance at all.
        values = np.append(values, values.dtype.type(without))
        for part in blocks(0, len(self)):
            result[part] = values[self.instance[part]]
        return result

    @property
    def aligned_end(self) -> Ints:
        """End of each one on the aligned clock, int64 ns."""
        return self.arrival + self.recorded.duration

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
        if name == "rank":
            return self._series(name, self.ranks[self._in_order(own.owner)])
        if name == "accepted":
            return self._series(name, self._in_order(self.accepted))
        return self._series(name, getattr(own, {"start_ns": "start", "end_ns": "end"}.get(name, name))[self.order])

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
    left: Sequence[Left],
    unplaced: Sequence[int],
    room: ArrayRoom,
    threads: int,
) -> MatchedOperations:
    """Put all collective operations into their instances, and tell the figures of those that are accepted.

    Args:
        ranks: the ranks.
        operations: their collective operations.
        placed: the communicators.
        clocks: rank -> (epoch, clock) that turns own into aligned time.
        left: synchronising operations that are in no communicator.
        unplaced: indices of ranks without a clock.
        room: for what has an element for each operation.
        threads: how many threads may work at once.
    """
    count = len(operations)
    arrival, instance = room.empty(count, np.int64), room.empty(count, np.int32)
    reason, order = room.empty(count, np.uint8), room.empty(count, np.int32)
    of_family = np.where(operations.family_synchronises, 0, REASONS.index(NOT_SYNCHRONISING)).astype(np.uint8)

    def begin(own: tuple[int, slice]) -> None:
        owner, part = own
        epoch, clock = clocks[ranks[owner].rank]
        start = operations.start[part]
        apart = clock.difference((start - epoch).astype(np.float64))
        np.subtract(start, np.rint(apart, out=apart).astype(np.int64), out=arrival[part])
        instance[part] = -1
        reason[part] = of_family[operations.family[part]]

    parts = [(owner, part) for owner in range(len(ranks)) for part in _blocks(operations.of_rank(owner))]
    deque(each(begin, parts, threads), 0)
    for some in left:
        reason[some.rows] = REASONS.index(_REASON_LEFT[some.reason])
    table = InstanceTable.empty(sum(len(one.instances.row) for one in placed))
    first = matched = 0
    for one in placed:
        _judge(one, table, first, arrival, operations.duration, threads)
        matched = _enter(one, table, first, matched, instance, reason, order, threads)
        first += len(one.instances.row)
    low = matched
    for part in blocks(0, count):
        rest = np.flatnonzero(instance[part] < 0)
        np.add(rest, part.start, out=order[low : low + len(rest)])
        low += len(rest)
    timed = np.ones(len(ranks), dtype=bool)
    timed[list(unplaced)] = False
    names = np.array([one.rank for one in ranks], dtype=np.int32)
    return MatchedOperations(operations, names, arrival, timed, instance, reason, order, table, matched, room)


def _blocks(rows: slice) -> Iterator[slice]:
    return blocks(rows.start, rows.stop)


def _enter(
    one: Placed,
    table: InstanceTable,
    first: int,
    matched: int,
    instance: Codes,
    reason: npt.NDArray[np.uint8],
    order: Rows,
    threads: int,
) -> int:
    """Enter a communicator's instances, from number `first` on, for their operations; how many are matched then.

    Args:
        one: the communicator.
        table: the instances.
        first: number of its first.
        matched: how many operations the communicators before it match.
        instance, reason, order: of all operations, where those of its instances are entered.
        threads: how many threads may work at once.
    """
    row = one.instances.row
    members = row.shape[1]
    size = table.size[first : first + len(row)]
    table.communicator[first : first + len(row)] = one.communicator
    whole = bool(one.instances.complete.all())

    def fill(part: slice) -> None:
        number = np.arange(first + part.start, first + part.stop, dtype=np.int32)
        table.position[first + part.start : first + part.stop] = number - first
        rows = row[part]
        for of_member in rows.T:
            there = slice(None) if whole else np.flatnonzero(of_member >= 0)
            held = of_member[there]
            instance[held] = number[there]
            reason[held] = table.reason[number[there]]
        size[part] = members if whole else (rows >= 0).sum(axis=1)
        if whole:
            begin = matched + part.start * members
            order[begin : begin + rows.size].reshape(rows.shape)[:] = rows

    parts = list(blocks(0, len(row), max(1, _ROWS // members)))
    deque(each(fill, parts, threads), 0)
    if whole:
        return matched + row.size
    for part in parts:
        rows = row[part]
        held = rows[rows >= 0]
        order[matched : matched + len(held)] = held
        matched += len(held)
    return matched


def _judge(
    one: Placed,
    table: InstanceTable,
    first: int,
    arrival: Ints,
    duration: Lengths,
    threads: int,
) -> None:
    """Which instances of a communicator are accepted, why the others are not, and the figures of the accepted."""
    row, complete = one.instances.row, one.instances.complete
    reason = table.reason[first : first + len(row)]
    if not complete.all():
        reason[~complete] = np.where(_inside_all(row)[~complete], REASONS.index(MISSING), REASONS.index(OUTSIDE))
    full = np.flatnonzero(complete)
    if not one.known:
        reason[full] = REASONS.index(NO_CLOCK)
        return
    reason[full[~one.accepted]] = REASONS.index(APART)
    good = full[one.accepted]
    table.accepted[first + good] = True
    members = row.shape[1]

    def fill(part: slice) -> None:
        rows, at = row.T[:, good[part]], first + good[part]
        came = arrival[rows]
        after = came + duration[rows]
        put_in_order(came)
        last = came[-1]
        after -= last
        put_in_order(after)
        table.last_ns[at] = last
        table.transfer_ns[at] = np.rint(middles(after))
        table.transfer_min_ns[at] = after[0]
        table.completion_ns[at] = after[-1]
        table.skew_ns[at] = last - came[0]
        table.lead_known[at] = last - came[-2] > one.resolution_ns

    deque(each(fill, blocks(0, len(good), max(1, _ROWS // members)), threads), 0)


def _inside_all(table: npt.NDArray[np.integer]) -> Bools:
    """Instances between the latest first and the earliest last appearance of any member."""
    count = len(table)
    inside = np.zeros(count, dtype=bool)
    present = [of_member >= 0 for of_member in table.T]
    begin = max(int(one.argmax()) for one in present)
    end = min(count - int(one[::-1].argmax()) for one in present)
    inside[begin:end] = True
    return inside
