"""What `skew` and `collectives` share: the matched operations of the selection, their steps, and the work between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from tracelens.analyses.alignment import Alignment, find_alignment
from tracelens.analyses.alignment_members import MatchedOperations
from tracelens.analyses.clock import Ints
from tracelens.analyses.coverage import Coverage
from tracelens.analyses.gap_causes import NULL
from tracelens.analyses.gap_search import Gaps, search_gaps
from tracelens.analyses.lateness import Stretches
from tracelens.analyses.matching_instances import Bools, Rows
from tracelens.analyses.selection import select
from tracelens.analyses.skew_ways import begun_before, covered_before, previous_operations, worked_before
from tracelens.analyses.step_search import Steps, search_steps
from tracelens.analyses.straggler import TRIAL_INSTANCES, Arrivals
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
        row: int32 [instances, members], places in `Context.operations`.
        step: int64 [instances], the step's number; -1 outside steps.
        summed: bool [instances], in a step that summaries use: complete on all ranks of the set.
    """

    communicator: int
    set: int
    ranks: tuple[int, ...]
    row: Rows
    step: Ints
    summed: Bools


class Context:
    """Lazily computed figures of a trace that several tables need.

    Attributes:
        trace: the capture.
        alignment: clocks and matched operations.
        operations: the collective operations; what follows has one element for each.
        timeline: its events on one axis.
        steps: its steps.
    """

    def __init__(self, trace: LoadedTrace) -> None:
        """Nothing is computed before it is asked for, but alignment and steps."""
        self.trace = trace
        self.alignment: Alignment = find_alignment(trace)
        self.operations: MatchedOperations = self.alignment.operations
        self.timeline: Timeline = timeline(trace)
        self.steps: Steps = search_steps(trace)

    @cached_property
    def place(self) -> Ints:
        """Place on the timeline of each operation's first kernel."""
        return self.timeline.places_of(self.operations.recorded.event_id)

    @cached_property
    def axis_start(self) -> Ints:
        """Start of each operation on the timeline's axis."""
        return self.timeline.start[self.place]

    @cached_property
    def axis_end(self) -> Ints:
        """End of each operation on the timeline's axis."""
        return self.axis_start + self.duration_ns

    @cached_property
    def duration_ns(self) -> Ints:
        """From the start of each operation's first kernel to the end of its last."""
        return self.operations.recorded.end - self.operations.recorded.start

    @cached_property
    def rank_place(self) -> Ints:
        """Place of each operation's rank among the timeline's ranks."""
        of_owner = np.searchsorted(self.timeline.ranks, self.operations.ranks)
        return of_owner[self.operations.recorded.owner]

    @cached_property
    def step_row(self) -> Rows:
        """Row of `steps.table` of each operation, by its first kernel; -1 outside steps."""
        return self.steps.member[self.place]

    @cached_property
    def warm(self) -> Bools:
        """Operations of warm-up steps, which no figure holds unless `--steps` names them."""
        table = self.steps.table
        # Steps that are mere repetitions, without a sign of a forward pass, say nothing of warming up.
        repetition = self.steps.facts.get("marker") == "period" and bool((table["phase"] == "other").all())
        if self.trace.options.steps is not None or table.is_empty() or repetition:
            return np.zeros(len(self.place), dtype=bool)
        flags = np.append(table["warm_up"].to_numpy(), False)
        return np.asarray(flags[self.step_row])

    @cached_property
    def used(self) -> Bools:
        """Operations that figures hold: selected, outside warm-up."""
        return self.selected & ~self.warm

    @cached_property
    def selected(self) -> Bools:
        """Operations that start in the selection."""
        selection = select(self.trace)
        inside = np.ones(len(self.place), dtype=bool)
        if selection.whole:
            return inside
        windows = selection.windows
        shift = self.timeline.shift[np.searchsorted(self.timeline.ranks, windows["rank"].to_numpy())]
        starts, ends = windows["start_ns"].to_numpy() + shift, windows["end_ns"].to_numpy() + shift
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        at = np.searchsorted(starts, self.axis_start, side="right") - 1
        return np.asarray((at >= 0) & (self.axis_start < ends[np.maximum(at, 0)]))

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
        numbers = np.append(self.steps.table["step"].to_numpy().astype(np.int64), -1)
        summed = np.append(self.summed_step, False)
        instances = self.operations.instances
        for number, in_set, ranks, _ in self.alignment.communicators.iter_rows():
            rows = self.operations.rows_of(np.flatnonzero(instances.accepted & (instances.communicator == number)))
            rows = rows.reshape(-1, len(ranks))
            # Events are counted where they start: an instance goes where its lowest member goes.
            rows = rows[self.used[rows[:, 0]]]
            at = self.step_row[rows[:, 0]]
            result.append(Matched(number, in_set, tuple(ranks), rows, numbers[at], summed[at]))
        return result

    def arrivals(self, matched: Matched) -> Arrivals:
        """The instances of a communicator as the tests want them."""
        arrival, duration = self.operations.arrival[matched.row], self.duration_ns[matched.row]
        mean_step = self.mean_step_ns.get(matched.set)
        if mean_step is not None and (matched.step >= 0).any():
            return Arrivals(matched.ranks, arrival, duration, matched.step, mean_step)
        trial = np.arange(len(arrival)) // TRIAL_INSTANCES
        whole = len(arrival) // TRIAL_INSTANCES
        length = 0.0
        if whole:
            last = arrival.max(axis=1)
            length = float(last[whole * TRIAL_INSTANCES - 1] - last[0]) / whole
        return Arrivals(matched.ranks, arrival, duration, np.where(trial < whole, trial, -1), length)

    @cached_property
    def gaps(self) -> Gaps:
        """The gaps of the trace."""
        return search_gaps(self.trace)

    @cached_property
    def launching(self) -> Coverage:
        """The host and launch parts of gaps, on the axis: each from the moment the device ran dry."""
        dry = self.gaps.occupancy.gap_start[self.gaps.led]
        has = self.gaps.host_part != NULL
        length = np.where(has, self.gaps.host_part, 0) + np.where(has, self.gaps.launch_part, 0)
        keep = length > 0
        order = np.argsort(dry[keep], kind="stable")
        return Coverage.of_pieces(dry[keep][order], (dry + length)[keep][order])

    @cached_property
    def _previous(self) -> Rows:
        """For each operation the rank's last matched one that ended before it began; -1 for none."""
        usable = self.operations.accepted & self.used
        owner = self.operations.recorded.owner
        return previous_operations(self.axis_start, self.axis_end, owner, usable, self.operations.order)

    @cached_property
    def _device(self) -> Ints:
        """Non-collective busy time between the end of each operation's previous one and its start."""
        tl = self.timeline
        last = tl.places_of(self.operations.recorded.last_event_id)
        ends = begun_before(tl, last, self.axis_end)
        start, end = worked_before(tl, [(self.place, self.axis_start), (ends, self.axis_end)])
        start -= end[self._previous]
        return start

    @cached_property
    def _host(self) -> Ints:
        """Host and launch parts of gaps there."""
        start, end = (covered_before(self.launching, times) for times in (self.axis_start, self.axis_end))
        start -= end[self._previous]
        return start

    def stretches(self, matched: Matched) -> Iterator[Stretches]:
        """Each member's way to each instance, so many instances at a time."""
        found, aligned_end = self.operations, self.operations.aligned_end
        for low in range(0, len(matched.row), max(1, _ROWS // len(matched.ranks))):
            rows = matched.row[low : low + max(1, _ROWS // len(matched.ranks))]
            previous = self._previous[rows]
            elsewhere: Bools = found.communicator[previous] != matched.communicator
            usable: Bools = np.asarray((previous >= 0).all(axis=1))
            yield Stretches(
                found.arrival[rows], aligned_end[previous], self._device[rows], self._host[rows], elsewhere, usable
            )

    @cached_property
    def hidden_ns(self) -> Ints:
        """Per operation the time in which a non-collective kernel of another stream runs on its rank."""
        tl = self.timeline
        hidden = np.zeros(len(self.place), dtype=np.int64)
        stream = tl.stream[self.place]
        # Streams of one rank differ in number; the k-th collective stream of every rank is done in one pass.
        used = np.flatnonzero(np.bincount(stream, minlength=1))
        rank_of = tl.stream_rank[used].astype(np.int64)
        nth = np.arange(len(used)) - np.searchsorted(rank_of, rank_of)
        for k in range(int(nth.max(initial=-1)) + 1):
            own = np.full(len(tl.ranks), -1, dtype=np.int64)
            own[rank_of[nth == k]] = used[nth == k]
            other = self._works.copy()
            other[own[own >= 0]] = False
            if not other.any():
                continue
            hiding = np.flatnonzero(other[tl.stream] & (tl.kind == KERNEL) & ~tl.is_collective)
            cover = Coverage.of_events(tl.start[hiding], tl.end[hiding])
            elsewhere = np.bincount(tl.stream_rank[np.flatnonzero(self._works)], minlength=len(tl.ranks))
            mine = np.zeros(len(tl.stream_number), dtype=bool)
            mine[used[nth == k]] = True
            rows = np.flatnonzero(mine[stream] & (elsewhere > 0)[self.rank_place])
            hidden[rows] = cover.within(self.axis_start[rows], self.axis_end[rows])
        return hidden

    @cached_property
    def _works(self) -> Bools:
        """Streams that run kernels other than collectives."""
        tl = self.timeline
        result = np.zeros(len(tl.stream_number), dtype=bool)
        for part in tl.stretches():
            result[tl.stream[part][(tl.kind[part] == KERNEL) & ~tl.is_collective[part]]] = True
        return result

    @cached_property
    def shares_stream(self) -> Bools:
        """Per operation whether its stream also runs compute."""
        return np.asarray(self._works[self.timeline.stream[self.place]])

    def compute_ns(self, matched: Matched) -> Ints | None:
        """Non-collective busy time of each member per step, whole ns; null without steps."""
        count = self.step_counts.get(matched.set, 0)
        if count == 0:
            return None
        rank = self.steps.table["rank"].to_numpy()
        worked = np.bincount(rank[self.summed_step], self._worked_in_steps[self.summed_step], max(matched.ranks) + 1)
        return np.array([round(int(worked[one]) / count) for one in matched.ranks], dtype=np.int64)

    @cached_property
    def _worked_in_steps(self) -> Ints:
        """Non-collective busy time in each window of `steps`."""
        moments = [
            (np.searchsorted(self.timeline.start, times), times)
            for times in (self.steps.window_start, self.steps.window_end)
        ]
        before, after = worked_before(self.timeline, moments)
        return after - before

    @property
    def selection_words(self) -> str:
        """The selection as provenance tells it."""
        return select(self.trace).words

    def ranks_of(self, communicator: int) -> tuple[int, ...]:
        """Members of a communicator, ascending."""
        return tuple(self.alignment.communicators["ranks"][communicator].to_list())

    def instance_count(self, communicator: int, *, accepted: bool = False) -> int:
        """Instances of a communicator in the selection, complete or not, or only the accepted ones."""
        found = self.operations
        chosen = (found.communicator == communicator) & self.selected
        seen = np.zeros(len(found.instances), dtype=bool)
        seen[found.instance[chosen & found.accepted if accepted else chosen]] = True
        return int(np.count_nonzero(seen))

    @cached_property
    def _named_ranks(self) -> Mapping[int, int]:
        """Communicator -> the number of ranks that its kernels' names tell."""
        told = self.trace.db.execute(
            "SELECT name_id, ranks_in_name FROM kernel_name WHERE ranks_in_name IS NOT NULL"
        ).fetchall()
        result: dict[int, int] = {}
        found = self.operations
        for name_id, ranks in told:
            for communicator in np.unique(found.communicator[found.recorded.name_id == name_id]).tolist():
                if communicator >= 0:
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
