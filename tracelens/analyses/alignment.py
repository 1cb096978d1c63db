"""One clock for all ranks that meet in collectives, and every collective operation placed on it.

Ranks of one connected set read the clock of the set's lowest rank: aligned = local - offset - drift * (local - t0).
The figures come from the ends of synchronising operations (method `ends`), or are the recorded session times
(`trust`) where the ends cannot carry them or the caller prefers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.alignment_clock import ClockSet, Method, clock_frame
from tracelens.analyses.alignment_members import (
    AMBIGUOUS,
    NO_PARTNER,
    NOT_SYNCHRONISING,
    TOO_FEW,
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
from tracelens.analyses.alignment_operations import NO_PAYLOAD, SQL, Operations, grouped, load_operations, numbered
from tracelens.analyses.clock import Clock, Floats, Ints, constant
from tracelens.analyses.clock_joint import ACCEPT_NS, JointFit, Readings, accept, fit_set
from tracelens.analyses.matching_communicators import Communicator, Grouping, RankClock, group_parts, own_times
from tracelens.analyses.matching_groups import Part
from tracelens.analyses.matching_instances import Bools, Instances, Rows, pair_instances
from tracelens.analyses.matching_tracks import INSTANCE_MINIMUM, Track
from tracelens.analyses.registered import register
from tracelens.analyses.timeline import timeline
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
        clocks, load_operations(trace, ranks), first, wanted=trace.options.clock, complete_ranks=everyone
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
) -> Alignment:
    """`align` on operations in memory.

    Args:
        ranks: ascending by rank.
        operations: all collective operations of these ranks.
        first_ns: start of each rank's first event, own time.
        wanted: how clocks are put together.
        complete_ranks: whether these are all ranks of the capture.
    """
    # Ranks on one GPU share its clock, and so the epoch from which float64 counts its nanoseconds.
    by_clock: dict[int, int] = {}
    for rank, first in zip(ranks, first_ns, strict=True):
        by_clock[rank.clock] = min(first, by_clock.get(rank.clock, first))
    epoch = np.array([by_clock[rank.clock] for rank in ranks], dtype=np.int64)
    parts = _parts(operations, epoch)
    shifted = [replace(rank, epoch_ns=int(epoch[index])) for index, rank in enumerate(ranks)]
    grouping = group_parts(shifted, parts, trust=wanted == "trust")
    instances = [_instances(parts, communicator, grouping) for communicator in grouping.communicators]
    for part in parts:
        part.track.forget()
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
        readings = [_readings(operations, epoch, grouping.communicators[i], instances[i]) for i in inside]
        fit = fit_set(readings, grouping.clocks, root) if readings else None
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
            accepted = [_accept_trusted(r, final, shifted) for r in readings]
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
    loose = _loose(operations, parts, grouping)
    return Alignment(
        clock_frame(ranks, first_ns, epoch, final, grouping.sets, numbers, sets, placed, unplaced),
        place_operations(ranks, operations, placed, moved_clocks, loose, unplaced),
        _communicator_frame(ranks, grouping, numbers),
        tuple(sets),
        tuple(notices) + general_notices(ranks, operations, parts, grouping, final, wanted, complete_ranks),
        complete_ranks,
        moved_clocks,
    )


def _parts(operations: Operations, epoch: Ints) -> list[Part]:
    """Split the synchronising operations of each rank; keys number (operation, implementation, launch shape)."""
    synchronising = operations.synchronising
    if not synchronising.any():
        return []
    shapes, count = numbered(operations.shape)
    keys = operations.family * np.int64(count)
    keys += shapes
    recorded = bool(operations.payload.any())
    parts = []
    edges = np.searchsorted(operations.owner, np.arange(len(epoch) + 1))
    for owner in range(len(epoch)):
        rows = edges[owner] + np.flatnonzero(synchronising[edges[owner] : edges[owner + 1]])
        split: list[npt.NDArray[np.integer]] = [operations.family[rows], operations.stream[rows]]
        if recorded:
            payload = operations.payload[rows]
            split = [split[0], payload, np.where(payload > NO_PAYLOAD, -1, split[1])]
        for _, mine in grouped(rows, *split):
            end = operations.leave[mine] - epoch[owner]
            if not bool((end[1:] >= end[:-1]).all()):
                order = np.argsort(end, kind="stable")
                mine, end = mine[order], end[order]
            operation, implementation, _ = operations.families[operations.family[mine[0]]]
            family = (int(operations.payload[mine[0]]) or None, operation, implementation)
            begun = operations.start[mine] - epoch[owner]
            parts.append(Part(owner, family, Track(end, keys[mine], begun, family), mine.astype(np.int32)))
    return parts


def _instances(parts: Sequence[Part], communicator: Communicator, grouping: Grouping) -> Instances:
    ends, keys, rows = [], [], []
    for member in communicator.members:
        own = [parts[i] for i in communicator.parts if parts[i].owner == member]
        ends.append(np.concatenate([own_times(part.track, grouping.clocks[member]) for part in own]))
        keys.append(np.concatenate([part.track.key for part in own]))
        rows.append(np.concatenate([part.rows for part in own]))
    return pair_instances(ends, keys, rows)


def _readings(operations: Operations, epoch: Ints, communicator: Communicator, instances: Instances) -> Readings:
    complete = instances.complete
    rows = instances.row if complete.all() else instances.row[complete]
    members = np.array(communicator.members, dtype=np.int64)

    def own(times: Ints) -> Floats:
        result = np.empty(rows.T.shape)
        for column, member in enumerate(members):
            np.subtract(times[rows[:, column]], epoch[member], out=result[column], casting="unsafe")
        return result

    end = own(operations.end)
    leave = end if operations.leave is operations.end else own(operations.leave)
    return Readings(members, own(operations.start), end, leave, operations.family[rows[:, 0]])


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


def _accept_trusted(readings: Readings, clocks: Sequence[Clock], ranks: Sequence[RankClock]) -> Bools:
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
            causal, together = accept(at_host, clocks, ACCEPT_NS, ACCEPT_NS)
            accepted &= causal & together
    return accepted


def _absolute(clock: Clock, epoch: Ints, owner: int, root: int) -> Clock:
    """A rank's clock on times that count from its first event, with the difference between raw own times."""
    return Clock(clock.t0, clock.valid_from, clock.offset + float(epoch[owner] - epoch[root]), clock.drift)


def _loose(operations: Operations, parts: Sequence[Part], grouping: Grouping) -> dict[str, Rows]:
    """Operations in no communicator, by the reason why."""
    inside = {i for communicator in grouping.communicators for i in communicator.parts}
    named = {"ambiguous": AMBIGUOUS, "different": NO_PARTNER, "short": TOO_FEW}
    loose: dict[str, list[Rows]] = {NOT_SYNCHRONISING: [np.flatnonzero(~operations.synchronising).astype(np.int32)]}
    for index, part in enumerate(parts):
        if index not in inside:
            loose.setdefault(named[grouping.reasons.get(index, "different")], []).append(part.rows)
    return {reason: np.concatenate(rows) for reason, rows in loose.items()}


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
