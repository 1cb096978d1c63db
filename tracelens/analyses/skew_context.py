"""What `skew` and `collectives` share: the matched operations of the selection, their steps, and the work between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.alignment import Alignment, find_alignment
from tracelens.analyses.alignment_members import MatchedOperations
from tracelens.analyses.blocks import blocks, each
from tracelens.analyses.clock import Ints
from tracelens.analyses.gap_causes import NULL
from tracelens.analyses.gap_search import Gaps, search_gaps
from tracelens.analyses.lateness import Work, lateness_sums, mean_lateness, reference_member, upstream_sums, work_of
from tracelens.analyses.matching_instances import Bools, Rows
from tracelens.analyses.selection import select
from tracelens.analyses.skew_ways import begun_before, covered_before, previous_operations, worked_before
from tracelens.analyses.step_search import Steps, search_steps
from tracelens.analyses.straggler import TRIAL_INSTANCES, Arrivals, Precision, Waiting, add_up, waiting
from tracelens.analyses.timeline import KERNEL, Timeline, timeline
from tracelens.trace import LoadedTrace

_ROWS = 1 << 16  # members of instances looked at at once: their arrays fit the cache of a core


@dataclass(frozen=True)
class Matched:
    """The accepted instances of one communicator in the selection, outside warm-up.

    Attributes:
        communicator: its number.
        set: number of its set.
        ranks: members, ascending.
        instance: int32 [instances], numbers of the instances, ascending.
        step: int32 [instances], the step's number; -1 outside steps.
        summed: bool [instances], in a step that summaries use: complete on all ranks of the set.
    """

    communicator: int
    set: int
    ranks: tuple[int, ...]
    instance: Rows
    step: Rows
    summed: Bools

    def parts(self) -> Iterator[slice]:
        """Slices of the instances, so many at a time."""
        return blocks(0, len(self.instance), max(1, _ROWS // len(self.ranks)))


@dataclass(frozen=True)
class Judged:
    """Sums over the instances of one communicator.

    Attributes:
        waits: who waits for whom.
        trial_ns: mean length of a trial: of a step, or of the run of instances that stands for one.
        means: mean lateness of each member and its parts, whole ns; empty where no way can be told.
        compute_ns: int64 [members], non-collective busy time in the steps that summaries use.
    """

    waits: Waiting
    trial_ns: float
    means: Mapping[str, Ints]
    compute_ns: Ints


@dataclass(frozen=True)
class _Arrived:
    """What the arrivals at one communicator tell.

    Attributes:
        waits, trial_ns: as in `Judged`.
        reference: int32 [instances], row of the reference member; -1 where the way of a member cannot be told.
        lateness, upstream: int64 ns [members], sums over the other instances.
    """

    waits: Waiting
    trial_ns: float
    reference: Rows
    lateness: Ints
    upstream: Ints


class Context:
    """Lazily computed figures of a trace that several tables need.

    Attributes:
        trace: the capture.
        alignment: clocks and matched operations.
        operations: the collective operations, in the order of rank and start.
        timeline: its events on one axis.
        steps: its steps.
        edges: [ranks + 1], where the operations of each rank begin.
    """

    def __init__(self, trace: LoadedTrace) -> None:
        """Nothing is computed before it is asked for, but alignment and steps."""
        self.trace = trace
        self.alignment: Alignment = find_alignment(trace)
        self.operations: MatchedOperations = self.alignment.operations
        self.timeline: Timeline = timeline(trace)
        self.steps: Steps = search_steps(trace)
        owner = self.operations.recorded.owner
        self.edges = np.searchsorted(owner, np.arange(len(self.operations.ranks) + 1, dtype=owner.dtype)).tolist()

    def each(self, work: Callable[[slice], Any]) -> Iterator[Any]:
        """`work(part)` of slices of the operations that cover them in order, none crosses a rank."""
        parts = [part for low, high in pairwise(self.edges) for part in blocks(low, high)]
        return each(work, parts, self.trace.threads)

    def each_rank(self, work: Callable[[slice], Any]) -> Iterator[Any]:
        """`work(part)` of the operations of each rank that has any."""
        ranks = [slice(low, high) for low, high in pairwise(self.edges) if high > low]
        return each(work, ranks, self.trace.threads)

    def filled(self, dtype: npt.DTypeLike, work: Callable[[slice], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """What `work` tells of each part, for all operations."""
        result = self.trace.room.empty(len(self.operations), dtype)

        def fill(part: slice) -> None:
            result[part] = work(part)

        deque(self.each(fill), 0)
        return result

    def rank_place(self, part: slice) -> int:
        """Place among the timeline's ranks of the one that these operations belong to."""
        owner = int(self.operations.recorded.owner[part.start])
        return int(np.searchsorted(self.timeline.ranks, self.operations.ranks[owner]))

    def places(self, part: slice) -> Ints:
        """Place on the timeline of the first kernel of each of a rank's operations."""
        return self.operations.recorded.place[part].astype(np.int64)

    def _span(self, part: slice) -> tuple[Ints, Ints]:
        """Start and end of each of a rank's operations on the timeline's axis."""
        shift = self.timeline.shift[self.rank_place(part)]
        return self.operations.recorded.start[part] + shift, self.operations.recorded.end[part] + shift

    def durations(self, rows: slice | Rows | Ints) -> Ints:
        """From the start of each operation's first kernel to the end of its last."""
        result: Ints = self.operations.recorded.end[rows] - self.operations.recorded.start[rows]
        return result

    def waits(self, rows: Rows | Ints) -> Ints:
        """Last arrival of the instance less the own of accepted operations."""
        found = self.operations
        result: Ints = found.instances.last_ns[found.instance[rows]] - found.arrival[rows]
        return result

    def step_rows(self, part: slice) -> Rows:
        """Row of `steps.table` of each of a rank's operations, by its first kernel; -1 outside steps."""
        return self.steps.member[self.places(part)]

    @cached_property
    def _in_steps(self) -> tuple[Bools, Bools]:
        """(warm, summed): whether each operation's step is a warm-up, and whether summaries use it."""
        flags = [np.append(flags, False) for flags in (self.steps.table["warm_up"].to_numpy(), self.summed_step)]
        warm, summed = (self.trace.room.empty(len(self.operations), bool) for _ in flags)

        def fill(part: slice) -> None:
            row = self.step_rows(part)
            warm[part], summed[part] = flags[0][row], flags[1][row]

        deque(self.each(fill), 0)
        return warm, summed

    @cached_property
    def accepted(self) -> Bools:
        """Operations that have a wait."""
        # One more row stands for no instance at all.
        flags = np.append(self.operations.instances.accepted, False)
        return self.filled(bool, lambda part: flags[self.operations.instance[part]])

    def communicators(self, rows: slice | Rows | Ints) -> Rows:
        """Number of each operation's communicator, -1 where unmatched."""
        return self._communicator_of_instance[self.operations.instance[rows]]

    @cached_property
    def _communicator_of_instance(self) -> Rows:
        return np.append(self.operations.instances.communicator, np.int32(-1))

    @cached_property
    def warm(self) -> Bools:
        """Operations of warm-up steps, which no figure holds unless `--steps` names them."""
        table = self.steps.table
        # Steps that are mere repetitions, without a sign of a forward pass, say nothing of warming up.
        repetition = self.steps.facts.get("marker") == "period" and bool((table["phase"] == "other").all())
        if self.trace.options.steps is not None or table.is_empty() or repetition:
            return np.broadcast_to(np.False_, len(self.operations))
        return self._in_steps[0]

    @cached_property
    def used(self) -> Bools:
        """Operations that figures hold: selected, outside warm-up."""
        selected, warm = self.selected, self.warm
        return self.filled(bool, lambda part: selected[part] & ~warm[part])

    @property
    def summed(self) -> Bools:
        """Operations in steps that summaries use."""
        return self._in_steps[1]

    @cached_property
    def selected(self) -> Bools:
        """Operations that start in the selection."""
        selection = select(self.trace)
        if selection.whole:
            return np.broadcast_to(np.True_, len(self.operations))
        windows = selection.windows
        shift = self.timeline.shift[np.searchsorted(self.timeline.ranks, windows["rank"].to_numpy())]
        starts, ends = windows["start_ns"].to_numpy() + shift, windows["end_ns"].to_numpy() + shift
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]

        def inside(part: slice) -> Bools:
            start, _ = self._span(part)
            at = np.searchsorted(starts, start, side="right") - 1
            return np.asarray((at >= 0) & (start < ends[np.maximum(at, 0)]))

        return self.filled(bool, inside)

    @cached_property
    def summed_step(self) -> Bools:
        """Rows of `steps.table` that summaries use: complete on all ranks, outside warm-up, selected."""
        table = self.steps.table
        options = self.trace.options
        use = table["complete_on_all"].to_numpy().astype(bool)
        if options.steps is None:
            use = use & ~table["warm_up"].to_numpy()
        else:
            use = use & table["step"].is_between(*options.steps).to_numpy()
        if options.phase is not None:
            use = use & (table["phase"] == options.phase).fill_null(False).to_numpy()
        if options.time_s is not None and table.height:
            windows = select(self.trace).windows
            kept = table.with_row_index("row").join(
                windows.rename({"start_ns": "from_ns", "end_ns": "to_ns"}), on="rank", how="inner"
            )
            kept = kept.filter((pl.col("edge_ns") >= pl.col("from_ns")) & (pl.col("window_end_ns") <= pl.col("to_ns")))
            inside = np.zeros(table.height, dtype=bool)
            inside[kept["row"].to_numpy()] = True
            use = use & inside
        return np.asarray(use)

    @cached_property
    def step_counts(self) -> Mapping[int, int]:
        """Set -> number of steps that summaries use."""
        used = self.steps.table.filter(pl.Series(self.summed_step, dtype=pl.Boolean))
        return dict(used.group_by("set").agg(pl.col("step").n_unique().cast(pl.Int64)).iter_rows())

    @cached_property
    def mean_step_ns(self) -> Mapping[int, float]:
        """Set -> mean over those steps of the median step_ns over ranks."""
        used = self.steps.table.filter(pl.Series(self.summed_step, dtype=pl.Boolean))
        each = used.group_by("set", "step").agg(pl.col("step_ns").median())
        return dict(each.group_by("set").agg(pl.col("step_ns").mean()).iter_rows())

    @cached_property
    def matched(self) -> list[Matched]:
        """The communicators with their instances, in the order of their numbers."""
        result = []
        numbers = np.append(self.steps.table["step"].to_numpy().astype(np.int32), np.int32(-1))
        summed = np.append(self.summed_step, False)
        found, recorded = self.operations, self.operations.recorded
        for number, in_set, ranks, _ in self.alignment.communicators.iter_rows():
            instance = np.flatnonzero(found.instances.accepted & (found.instances.communicator == number)).astype(
                np.int32
            )
            # Events are counted where they start: an instance goes where its lowest member goes.
            lowest = found.order[self._first[instance]]
            used = self.used[lowest]
            instance, lowest = instance[used], lowest[used]
            at = self.steps.member[recorded.place[lowest]]
            result.append(Matched(number, in_set, tuple(ranks), instance, numbers[at], summed[at]))
        return result

    @cached_property
    def _first(self) -> Ints:
        """Where the members of each instance begin in the order of `operations`."""
        size = self.operations.instances.size
        return np.cumsum(size, dtype=np.int64) - size

    def rows(self, matched: Matched, part: slice) -> Rows:
        """The operations of some instances, int32 [members, instances]."""
        first = self._first[matched.instance[part]]
        result: Rows = self.operations.order[first + np.arange(len(matched.ranks))[:, None]]
        return result

    @cached_property
    def judged(self) -> list[Judged]:
        """What the waits of each of `matched` add up to, and why its members come late."""
        told = [self._judge(matched) for matched in self.matched]
        works, computed = self._works_of([one.reference for one in told])
        return [
            Judged(
                one.waits,
                one.trial_ns,
                mean_lateness(int(np.count_nonzero(one.reference >= 0)), one.lateness, one.upstream, work),
                compute_ns,
            )
            for one, work, compute_ns in zip(told, works, computed, strict=True)
        ]

    def _judge(self, matched: Matched) -> _Arrived:
        clock = self.alignment.sets[matched.set]
        precision = Precision(clock.residual_ns or 0.0, clock.asymmetry_ns or 0.0)
        trial, trials, trial_ns = self._trials(matched)
        found, previous_of, hidden_ns = self.operations, self._previous, self.hidden_ns
        several = self.alignment.communicators.height > 1
        reference = np.empty(len(matched.instance), dtype=np.int32)
        lateness, upstream = (np.zeros(len(matched.ranks), dtype=np.int64) for _ in range(2))

        def judge(part: slice) -> tuple[Waiting, Ints, Ints | int]:
            rows = self.rows(matched, part)
            arrival, duration = found.arrival[rows], self.durations(rows)
            length = duration.sum(axis=0)
            exposed = 2 * (length - hidden_ns[rows].sum(axis=0)) > length
            arrivals = Arrivals(arrival, duration, trial[part], matched.summed[part], exposed)
            previous = previous_of[rows]
            usable = (previous >= 0).all(axis=0)
            row = reference_member(arrivals.by_instance, arrivals.ordered)
            reference[part] = np.where(usable, row, -1)
            if not usable.all():
                arrival, previous, row = arrival[:, usable], previous[:, usable], row[usable]
            late = lateness_sums(arrival, row)
            if not several:
                return waiting(arrivals, precision), late, 0
            elsewhere = np.asarray(self.communicators(previous) != matched.communicator)
            ended = found.arrival[previous] + self.durations(previous)
            return waiting(arrivals, precision), late, upstream_sums(ended, elsewhere, row)

        def waits() -> Iterator[Waiting]:
            nonlocal lateness, upstream
            for one, late, left in each(judge, list(matched.parts()) or [slice(0, 0)], self.trace.threads):
                lateness, upstream = lateness + late, upstream + left
                yield one

        total = add_up(waits(), trials)
        return _Arrived(total, trial_ns, reference, lateness, upstream)

    def _trials(self, matched: Matched) -> tuple[Ints, int, float]:
        """(place of each instance's trial or -1, their number, mean length of one in ns)."""
        mean_step = self.mean_step_ns.get(matched.set)
        held = matched.step >= 0
        if mean_step is not None and held.any():
            trials, place = np.unique(matched.step[held], return_inverse=True)
            trial = np.full(len(held), -1, dtype=np.int64)
            trial[held] = place.reshape(-1)
            return trial, len(trials), mean_step
        trial = np.arange(len(matched.instance)) // TRIAL_INSTANCES
        whole = len(trial) // TRIAL_INSTANCES
        trial[trial >= whole] = -1
        if not whole:
            return trial, 0, 0.0
        last = self.operations.instances.last_ns[matched.instance[[0, whole * TRIAL_INSTANCES - 1]]]
        return trial, whole, float(last[1] - last[0]) / whole

    @cached_property
    def _previous(self) -> Rows:
        """For each operation the rank's last matched one that ended before it began; -1 for none."""
        found, accepted, used = self.operations, self.accepted, self.used
        result: Rows = self.trace.room.empty(len(found), np.int32)

        def fill(part: slice) -> None:
            start, end = found.recorded.start[part], found.recorded.end[part]
            previous = previous_operations(start, end, accepted[part] & used[part], found.instance[part])
            result[part] = np.where(previous >= 0, previous + np.int32(part.start), np.int32(-1))

        deque(self.each_rank(fill), 0)
        return result

    @cached_property
    def gaps(self) -> Gaps:
        """The gaps of the trace."""
        return search_gaps(self.trace)

    def _launching(self, gaps: Gaps, rank: int) -> Iterator[tuple[Ints, Ints]]:
        """The host and launch parts of a rank's gaps, on the axis: each from the moment the device ran dry."""
        tl = self.timeline
        occ = gaps.occupancy
        inside = np.searchsorted(occ.after, tl.first[rank : rank + 2].astype(occ.after.dtype))
        low, high = np.searchsorted(gaps.led, inside.astype(gaps.led.dtype)).tolist()
        for part in blocks(low, high):
            host, launch = gaps.host_part[part], gaps.launch_part[part]
            has = np.flatnonzero((host != NULL) & (host + launch > 0))
            dry = tl.end[occ.before[gaps.led[part][has]]]
            yield dry, dry + (host + launch)[has]

    def _works_of(self, references: list[Rows]) -> tuple[list[list[Work]], list[Ints]]:
        """What each member of each of `matched` did before its instances, and how long it computed in its steps, ns.

        Args:
            references: per communicator the reference member of each instance, -1 where a way cannot be told.
        """
        # Threads ask for what is known already: nothing is worked out twice.
        found, tl, gaps, matched_of = self.operations, self.timeline, self.gaps, self.matched
        previous_of, first_of, summed_step = self._previous, self._first, self.summed_step
        works = [[Work(0, 0, 0, 0)] * len(one.ranks) for one in matched_of]
        computed = [np.zeros(len(one.ranks), dtype=np.int64) for one in matched_of]
        step_rank = self.steps.table["rank"].to_numpy()

        def walk(part: slice) -> tuple[int, int, list[tuple[int, int, Work]]]:
            place = self.rank_place(part)
            rank = int(tl.ranks[place])
            start, end = self._span(part)
            last = begun_before(tl, place, found.recorded.last_place[part].astype(np.int64), end)
            steps = np.flatnonzero(summed_step & (step_rank == rank))
            edges = [self.steps.window_start[steps], self.steps.window_end[steps]]
            low, high = tl.first[place : place + 2]
            windows = [(low + np.searchsorted(tl.start[low:high], times), times) for times in edges]
            moments = [(self.places(part), start), (last, end), *windows]
            started, ended, entered, left = worked_before(tl, place, lambda own: ~tl.is_collective[own], moments)
            dry, done = covered_before(self._launching(gaps, place), [start, end])
            told = []
            for number, (matched, reference) in enumerate(zip(matched_of, references, strict=True)):
                if rank not in matched.ranks:
                    continue
                column = matched.ranks.index(rank)
                usable = np.flatnonzero(reference >= 0)
                rows = found.order[first_of[matched.instance[usable]] + column]
                previous = previous_of[rows] - part.start
                rows = rows - part.start
                device, host = started[rows] - ended[previous], dry[rows] - done[previous]
                told.append((number, column, work_of(device, host, reference[usable] == column)))
            return rank, int((left - entered).sum()), told

        for _, total, told in self.each_rank(walk):
            for number, column, work in told:
                works[number][column], computed[number][column] = work, total
        return works, computed

    @cached_property
    def hidden_ns(self) -> Ints:
        """Per operation the time in which a non-collective kernel of another stream runs on its rank."""
        tl, works = self.timeline, self._works

        def hide(part: slice) -> list[tuple[Ints, Ints]]:
            rank, place = self.rank_place(part), self.places(part)
            stream = tl.stream[place]
            found = []
            for own in np.flatnonzero(np.bincount(stream)):
                other = works & (tl.stream_rank == rank)
                other[own] = False
                if not other.any():
                    continue
                start, end = self._span(part)
                last = begun_before(tl, rank, self.operations.recorded.last_place[part].astype(np.int64), end)

                def hides(stretch: slice, other: Bools = other) -> Bools:
                    computes = (tl.kind[stretch] == KERNEL) & ~tl.is_collective[stretch]
                    return np.asarray(computes & other[tl.stream[stretch]])

                rows = np.flatnonzero(stream == own)
                moments = [(place[rows], start[rows]), (last[rows], end[rows])]
                before, after = worked_before(tl, rank, hides, moments)
                found.append((part.start + rows, after - before))
            return found

        result: Ints = np.broadcast_to(np.int64(0), len(self.operations))
        for rows, hidden in chain.from_iterable(self.each_rank(hide)):
            if not result.flags.writeable:
                result = self.trace.room.empty(len(self.operations), np.int64)
                result[:] = 0
            result[rows] = hidden
        return result

    @cached_property
    def _works(self) -> Bools:
        """Streams that run kernels other than collectives."""
        tl = self.timeline

        def works(rank: int) -> Bools:
            result = np.zeros(len(tl.stream_number), dtype=bool)
            mine = tl.stream_rank == rank
            for part in tl.stretches(rank):
                result[tl.stream[part][(tl.kind[part] == KERNEL) & ~tl.is_collective[part]]] = True
                if bool(result[mine].all()):
                    break
            return result

        found = each(works, range(len(tl.ranks)), self.trace.threads)
        return np.asarray(np.logical_or.reduce([np.zeros(len(tl.stream_number), dtype=bool), *found]))

    def shares_stream(self, part: slice) -> Bools:
        """Whether the stream of each of a rank's operations also runs compute."""
        return np.asarray(self._works[self.timeline.stream[self.places(part)]])

    @property
    def selection_words(self) -> str:
        """The selection as provenance tells it."""
        return select(self.trace).words

    def ranks_of(self, communicator: int) -> tuple[int, ...]:
        """Members of a communicator, ascending."""
        return tuple(self.alignment.communicators["ranks"][communicator].to_list())

    def instance_count(self, communicator: int, *, accepted: bool = False) -> int:
        """Instances of a communicator in the selection, complete or not, or only the accepted ones."""
        instances = self.operations.instances
        chosen = self._shown & (instances.communicator == communicator)
        return int(np.count_nonzero(chosen & instances.accepted if accepted else chosen))

    @cached_property
    def _shown(self) -> Bools:
        """Instances of which the selection holds a member."""
        found, selected = self.operations, self.selected
        if select(self.trace).whole:
            return np.ones(len(found.instances), dtype=bool)
        # One more row stands for no instance at all.
        result = np.zeros(len(found.instances) + 1, dtype=bool)

        def show(part: slice) -> None:
            result[found.instance[part][selected[part]]] = True

        deque(self.each(show), 0)
        return result[:-1]

    @cached_property
    def _named_ranks(self) -> Mapping[int, int]:
        """Communicator -> the number of ranks that its kernels' names tell."""
        told = self.trace.db.execute(
            "SELECT name_id, ranks_in_name FROM kernel_name WHERE ranks_in_name IS NOT NULL"
        ).fetchall()
        found = self.operations
        # One more row stands for names that tell nothing, one more column for operations that are unmatched.
        number = np.full(len(self.timeline.names), len(told))
        number[[name for name, _ in told]] = np.arange(len(told))
        shape = len(told) + 1, self.alignment.communicators.height + 1

        def see(part: slice) -> Bools:
            key = number[found.recorded.name_id[part]] * shape[1] + self.communicators(part) + 1
            return np.asarray(np.bincount(key, minlength=shape[0] * shape[1]) > 0)

        seen = np.zeros(shape[0] * shape[1], dtype=bool)
        for own in self.each(see):
            seen |= own
        result: dict[int, int] = {}
        for (_, ranks), communicators in zip(told, seen.reshape(shape)[:-1, 1:], strict=True):
            for communicator in np.flatnonzero(communicators).tolist():
                result[communicator] = max(ranks, result.get(communicator, 0))
        return result

    def missing_of(self, communicator: int) -> int:
        """How many members the kernels' names tell that are not there."""
        return max(self._named_ranks.get(communicator, 0) - len(self.ranks_of(communicator)), 0)

    def missing_members(self, matched: Matched) -> int:
        """`missing_of` a communicator."""
        return self.missing_of(matched.communicator)


def context(trace: LoadedTrace) -> Context:
    """The context of a trace, made once."""
    result: Context = trace.memo("skew context", lambda: Context(trace))
    return result
