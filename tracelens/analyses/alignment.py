"""One clock for all ranks that meet in collectives, and every collective operation placed on it.

Ranks of one connected set read the clock of the set's lowest rank: aligned = local - offset - drift * (local - t0).
The figures come from the ends of synchronising operations (method `ends`), or are the recorded session times
(`trust`) where the ends cannot carry them or the caller prefers it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.alignment_clock import ClockSet, Method, clock_frame
from tracelens.analyses.alignment_members import (
    MatchedOperations,
    Placed,
    place_operations,
)
from tracelens.analyses.alignment_notices import (
    blame_graph_tracing,
    doubt_notice,
    fallback_notice,
    general_notices,
    hides_collectives,
)
from tracelens.analyses.alignment_operations import SQL, Operations, grouped, load_operations
from tracelens.analyses.blocks import blocks, each
from tracelens.analyses.clock import Clock, Floats, Ints, constant
from tracelens.analyses.clock_joint import ACCEPT_NS, JointFit, Readings, accept, fit_set
from tracelens.analyses.matching_communicators import Communicator, Grouping, RankClock, group_parts, own_times
from tracelens.analyses.matching_groups import Left, Part
from tracelens.analyses.matching_instances import Bools, Instances, Member, pair_instances
from tracelens.analyses.matching_tracks import INSTANCE_MINIMUM, Track
from tracelens.analyses.registered import register
from tracelens.analyses.timeline import timeline
from tracelens.analyses.timeline_columns import narrowest
from tracelens.array_room import ArrayRoom
from tracelens.errors import NotIdentifiableError
from tracelens.frames import Notice
from tracelens.trace import LoadedTrace


@dataclass(frozen=True)
class Alignment:
    """Clocks and matched collectives of a trace.

    Attributes:
        clock: one row per rank and stretch of its clock, columns `CLOCK_COLUMNS`.
        operations: the collective operations of all ranks.
        communicators: communicator, set, ranks (list), payload.
        sets: the sets, by number.
        notices: what limits the alignment.
        complete_ranks: false where `--ranks` left some of the capture's ranks out.
    """

    clock: pl.DataFrame
    operations: MatchedOperations
    communicators: pl.DataFrame
    sets: tuple[ClockSet, ...]
    notices: tuple[Notice, ...]
    complete_ranks: bool = True
    _clocks: dict[int, tuple[int, Clock]] = field(default_factory=dict, repr=False)

    @cached_property
    def members(self) -> pl.DataFrame:
        """One row per collective operation of a rank, columns `MEMBER_COLUMNS`, made when first asked for."""
        return self.operations.frame()

    def set_of(self, rank: int) -> int:
        """Number of the set that a rank belongs to."""
        return next(number for number, one in enumerate(self.sets) if rank in one.ranks)

    def to_aligned(self, rank: Ints, local_ns: Ints) -> Ints:
        """Own times on the clock of the set's lowest rank, int64 ns; ranks that have no clock keep their own."""
        return self._moved(rank, local_ns, forward=True)

    def to_local(self, rank: Ints, aligned_ns: Ints) -> Ints:
        """Aligned times on each rank's own clock, int64 ns: the inverse of `to_aligned` up to rounding."""
        return self._moved(rank, aligned_ns, forward=False)

    def _moved(self, rank: Ints, time: Ints, *, forward: bool) -> Ints:
        result = np.array(time, dtype=np.int64)
        for one in np.unique(rank):
            epoch, clock = self._clocks.get(int(one), (0, constant()))
            where = rank == one if np.ndim(rank) else slice(None)
            own = result[where]
            if forward:
                result[where] = own - np.rint(clock.difference((own - epoch).astype(np.float64))).astype(np.int64)
            else:
                back = clock.inverted()
                apart = back.difference((own - epoch).astype(np.float64))
                # One more round: the inverse holds to first order in the drift.
                own_time = (own - epoch).astype(np.float64) - apart
                result[where] = own + np.rint(clock.difference(own_time)).astype(np.int64)
        return result


def align(trace: LoadedTrace) -> Alignment:
    """`find_alignment`, with `clock` and `collective_member` in the trace's database."""
    result = find_alignment(trace)
    register(trace, "collective_member", result, lambda: _register(trace, result))
    return result


def find_alignment(trace: LoadedTrace) -> Alignment:
    """Match the collectives of all ranks asked for, and put their clocks together; done once per trace.

    Raises:
        NotIdentifiableError: `--clock ends` was asked for, and no set of ranks shares 30 instances.
    """
    result: Alignment = trace.memo("align", lambda: _align(trace))
    return result


def _register(trace: LoadedTrace, alignment: Alignment) -> None:
    trace.db.register("clock", alignment.clock.to_arrow())
    trace.db.register("collective_member", alignment.members.to_arrow())
    trace.run(SQL, "comments")


def _align(trace: LoadedTrace) -> Alignment:
    ranks = trace.ranks
    clocks = [
        RankClock(int(rank), int(clock if clock is not None else -1 - rank), int(export), host, utc, system)
        for rank, clock, export, host, utc, system in trace.rows(SQL, "ranks", ranks=ranks).iter_rows()
    ]
    tl = timeline(trace)
    began = dict(zip(tl.ranks.tolist(), (tl.start[tl.first[:-1]] - tl.shift).tolist(), strict=True))
    first = [began.get(rank, 0) for rank in ranks]
    capture = trace.db.execute("SELECT count(*) FROM rank").fetchall()
    everyone = int(capture[0][0]) == len(ranks)
    found = align_operations(
        clocks,
        load_operations(trace, ranks),
        first,
        wanted=trace.options.clock,
        complete_ranks=everyone,
        room=trace.room,
        threads=trace.threads,
    )
    if hides_collectives(trace.notices):
        return replace(found, notices=tuple(blame_graph_tracing(notice) for notice in found.notices))
    return found


def align_operations(
    ranks: Sequence[RankClock],
    operations: Operations,
    first_ns: Sequence[int],
    *,
    wanted: Literal["auto", "trust", "ends"] = "auto",
    complete_ranks: bool = True,
    room: ArrayRoom,
    threads: int,
) -> Alignment:
    """`align` on operations in memory.

    Args:
        ranks: ascending by rank.
        operations: all collective operations of these ranks.
        first_ns: start of each rank's first event, own time.
        wanted: how clocks are put together.
        complete_ranks: whether these are all ranks of the capture.
        room: for what has an element for each operation.
        threads: how many threads may work at once.
    """
    # Ranks on one GPU share its clock, and so the epoch from which float64 counts its nanoseconds.
    by_clock: dict[int, int] = {}
    for rank, first in zip(ranks, first_ns, strict=True):
        by_clock[rank.clock] = min(first, by_clock.get(rank.clock, first))
    epoch = np.array([by_clock[rank.clock] for rank in ranks], dtype=np.int64)
    shifted = [replace(rank, epoch_ns=int(epoch[index])) for index, rank in enumerate(ranks)]
    grouping, instances, left = _match(shifted, operations, epoch, wanted == "trust", room, threads)
    placed: list[Placed] = []
    sets: list[ClockSet] = []
    final: list[Clock] = list(grouping.clocks)
    unplaced: list[int] = []
    numbers: dict[int, int] = {}
    notices: list[Notice] = []
    for root in sorted(set(grouping.sets)):
        inside = [i for i, c in enumerate(grouping.communicators) if grouping.sets[c.members[0]] == root]
        owners = [i for i, r in enumerate(grouping.sets) if r == root]
        numbers[root] = len(sets)
        readings = [
            _readings(operations, epoch, grouping.communicators[i], instances[i], room, threads) for i in inside
        ]
        fit = fit_set(readings, grouping.clocks, root, room, threads) if readings else None
        carried = fit is not None and _carried(fit, readings) and not any(grouping.recorded[o] for o in owners)
        method: Method = "ends" if carried and wanted != "trust" else "trust"
        if method == "ends" and fit is not None:
            for owner in owners:
                final[owner] = fit.clocks[owner]
            accepted = fit.accepted
            if fit.doubtful:
                notices.append(doubt_notice([ranks[o].rank for o in owners], fit))
        else:
            # A rank without session time cannot be trusted: its matched operations keep null waits.
            lost = _trust(shifted, owners, root, final)
            unplaced += lost
            if wanted == "ends" and readings:
                unplaced += [o for o in owners if o not in lost]
            accepted = [_accept_trusted(r, final, shifted, threads) for r in readings]
            if readings and wanted != "trust":
                notices.append(fallback_notice(ranks, owners, readings, fit, wanted))
        resolution = fit.resolution_ns if fit is not None and method == "ends" else 0.0
        for i, reading, mask in zip(inside, readings, accepted, strict=True):
            communicator = grouping.communicators[i]
            known = not set(communicator.members) & set(unplaced)
            placed.append(Placed(i, communicator.members, instances[i], reading, mask, known, resolution))
        groups = sorted({int(g) for r, m in zip(readings, accepted, strict=True) for g in np.unique(r.group[m])})
        sets.append(
            ClockSet(
                tuple(ranks[o].rank for o in owners),
                method,
                fit.residual_ns if fit is not None and method == "ends" else None,
                fit.asymmetry_ns if fit is not None and method == "ends" else None,
                " ".join(operations.families[groups[0]][:2]) if len(groups) == 1 else None,
                wanted == method,
            )
        )
    if wanted == "ends" and grouping.communicators and not any(s.method == "ends" for s in sets):
        raise NotIdentifiableError(
            f"no set of ranks shares {INSTANCE_MINIMUM} synchronising collectives, so ends cannot align their clocks",
            "Use --clock trust to judge by the recorded clocks, or capture more steps.",
        )
    placed.sort(key=lambda p: p.communicator)
    moved_clocks = {
        rank.rank: (int(epoch[i]), _absolute(final[i], epoch, i, grouping.sets[i])) for i, rank in enumerate(ranks)
    }
    return Alignment(
        clock_frame(ranks, first_ns, epoch, final, grouping.sets, numbers, sets, placed, unplaced),
        place_operations(ranks, operations, placed, moved_clocks, left, unplaced, room, threads),
        _communicator_frame(ranks, grouping, numbers),
        tuple(sets),
        tuple(notices) + general_notices(ranks, operations, left, grouping, final, wanted, complete_ranks),
        complete_ranks,
        moved_clocks,
    )


def _match(
    ranks: Sequence[RankClock], operations: Operations, epoch: Ints, trust: bool, room: ArrayRoom, threads: int
) -> tuple[Grouping, list[Instances], list[Left]]:
    """The communicators, the instances of each, and the operations that are in none although they synchronise."""
    parts = _parts(operations, epoch, room, threads)
    grouping = group_parts(ranks, parts, trust=trust, threads=threads)
    for part in parts:
        part.track.forget()
    instances = [_instances(parts, communicator, grouping, room, threads) for communicator in grouping.communicators]
    left = [
        Left(parts[i].owner, parts[i].family, parts[i].rows.copy(), reason) for i, reason in grouping.reasons.items()
    ]
    return grouping, instances, left


def _parts(operations: Operations, epoch: Ints, room: ArrayRoom, threads: int) -> list[Part]:
    """Split the synchronising operations of each rank; keys number (operation, implementation, launch shape)."""
    synchronises, shape_count = operations.family_synchronises, len(operations.shapes)
    payload = operations.payload_code
    count = len(operations)
    ends, rows = room.empty(count, np.int64), room.empty(count, np.int32)
    keys = room.empty(count, narrowest(len(operations.families) * shape_count))
    durations = room.empty(count, operations.leave_after.dtype)

    def split(owner: int) -> list[Part]:
        own = operations.of_rank(owner)
        chosen = np.flatnonzero(synchronises[operations.family[own]]).astype(np.int32)
        family = operations.family[own][chosen]
        columns: list[npt.NDArray[np.integer]] = [family, operations.stream[own][chosen]]
        if payload is not None:
            code = payload[own][chosen]
            columns = [family, code, np.where(code > 0, np.int64(-1), columns[1])]
        chosen += own.start
        found, low = [], own.start
        for (family_number, *_), mine in grouped(chosen, *columns):
            part = slice(low, low + len(mine))
            low = part.stop
            duration, end = operations.leave_after[mine], operations.start[mine]
            end -= epoch[owner]
            end += duration
            if not bool((end[1:] >= end[:-1]).all()):
                order = np.argsort(end, kind="stable")
                mine, end, duration = mine[order], end[order], duration[order]
            ends[part], rows[part], durations[part] = end, mine, duration
            keys[part] = operations.shape_code[mine]
            keys[part] += keys.dtype.type(family_number * shape_count)
            operation, implementation, _ = operations.families[family_number]
            communicator = 0 if payload is None else int(operations.payloads[payload[mine[0]]])
            name = (communicator or None, operation, implementation)
            found.append(Part(owner, name, Track(ends[part], keys[part], durations[part], name), rows[part]))
        return found

    return [part for found in each(split, range(len(epoch)), threads) for part in found]


def _instances(
    parts: Sequence[Part], communicator: Communicator, grouping: Grouping, room: ArrayRoom, threads: int
) -> Instances:
    def of(member: int) -> Member:
        own = [parts[i] for i in communicator.parts if parts[i].owner == member]
        end = room.empty(sum(len(part.rows) for part in own), np.float64)
        low = 0
        for part in own:
            for some in blocks(0, len(part.rows)):
                end[low + some.start : low + some.stop] = own_times(part.track.end[some], grouping.clocks[member])
            low += len(part.rows)
        return Member(end, _joined([part.track.key for part in own]), _joined([part.rows for part in own]))

    return pair_instances(list(each(of, communicator.members, threads)), room, threads)


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _readings(
    operations: Operations,
    epoch: Ints,
    communicator: Communicator,
    instances: Instances,
    room: ArrayRoom,
    threads: int,
) -> Readings:
    members = np.array(communicator.members, dtype=np.int64)
    complete = instances.complete
    rows = instances.row.T if complete.all() else instances.row.T[:, complete]

    def own() -> Floats:
        result: Floats = room.empty(rows.size, np.float64).reshape(rows.shape)
        return result

    start, leave = own(), own()
    end = leave if operations.leave_after is operations.duration else own()

    def read(at: tuple[int, slice]) -> None:
        column, part = at
        mine = rows[column, part]
        time = operations.start[mine]
        time -= epoch[members[column]]
        start[column, part] = time
        leave[column, part] = time + operations.leave_after[mine]
        if end is not leave:
            end[column, part] = time + operations.duration[mine]

    deque(each(read, [(k, part) for k in range(len(members)) for part in blocks(0, rows.shape[1])], threads), 0)
    return Readings(members, start, end, leave, operations.family[rows[0]])


def _carried(fit: JointFit, readings: Sequence[Readings]) -> bool:
    """Whether every clock of the set rests on enough accepted instances."""
    members = np.unique(np.concatenate([r.members for r in readings]))
    return bool((fit.counts[members] >= INSTANCE_MINIMUM).all())


def _trust(ranks: Sequence[RankClock], owners: Sequence[int], root: int, clocks: list[Clock]) -> list[int]:
    """Give the owners their recorded clocks against the root's; returns those without one."""
    lost = []
    for owner in owners:
        difference = ranks[root].recorded_difference(ranks[owner])
        if difference is None:
            lost.append(owner)
            clocks[owner] = constant()
        else:
            clocks[owner] = constant(float(difference))
    return lost


def _accept_trusted(readings: Readings, clocks: Sequence[Clock], ranks: Sequence[RankClock], threads: int) -> Bools:
    """Recorded clocks: 5 us among the members of one host, nothing is asked across hosts."""
    accepted = np.ones(readings.count, dtype=bool)
    hosts: dict[object, list[int]] = {}
    for column, member in enumerate(readings.members):
        rank = ranks[int(member)]
        hosts.setdefault(rank.hostname if rank.hostname is not None else rank.export, []).append(column)
    for columns in hosts.values():
        if len(columns) > 1:
            at_host = Readings(
                readings.members[columns],
                readings.start[columns],
                readings.end[columns],
                readings.leave[columns],
                readings.group,
            )
            causal, together = accept(at_host, clocks, ACCEPT_NS, ACCEPT_NS, threads)
            accepted &= causal & together
    return accepted


def _absolute(clock: Clock, epoch: Ints, owner: int, root: int) -> Clock:
    """A rank's clock on times that count from its first event, with the difference between raw own times."""
    return Clock(clock.t0, clock.valid_from, clock.offset + float(epoch[owner] - epoch[root]), clock.drift)


def _communicator_frame(ranks: Sequence[RankClock], grouping: Grouping, numbers: dict[int, int]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "communicator": list(range(len(grouping.communicators))),
            "set": [numbers[grouping.sets[c.members[0]]] for c in grouping.communicators],
            "ranks": [[ranks[m].rank for m in c.members] for c in grouping.communicators],
            "payload": [c.payload for c in grouping.communicators],
        },
        schema={"communicator": pl.Int32, "set": pl.Int32, "ranks": pl.List(pl.Int32), "payload": pl.UInt64},
    )
