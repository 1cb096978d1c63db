"""What `skew` and `collectives` share: the matched operations of the selection, their steps, and the work between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from tracelens.analyses.alignment import Alignment, align
from tracelens.analyses.clock import Ints
from tracelens.analyses.coverage import Coverage
from tracelens.analyses.gap_causes import NULL
from tracelens.analyses.gap_search import Gaps, search_gaps
from tracelens.analyses.lateness import Stretches
from tracelens.analyses.matching_instances import Bools
from tracelens.analyses.selection import select
from tracelens.analyses.step_search import Steps, search_steps
from tracelens.analyses.straggler import TRIAL_INSTANCES, Arrivals
from tracelens.analyses.timeline import KERNEL, Timeline, timeline
from tracelens.trace import LoadedTrace


@dataclass(frozen=True)
class Matched:
    """The accepted instances of one communicator in the selection, outside warm-up.

    Attributes:
        communicator: its number.
        set: number of its set.
        ranks: members, ascending.
        row: int64 [instances, members], rows of `Context.members`.
        step: int64 [instances], the step's number; -1 outside steps.
        summed: bool [instances], in a step that summaries use: complete on all ranks of the set.
    """

    communicator: int
    set: int
    ranks: tuple[int, ...]
    row: Ints
    step: Ints
    summed: Bools


class Context:
    """Lazily computed figures of a trace that several tables need.

    Attributes:
        trace: the capture.
        alignment: clocks and matched operations.
        members: `Alignment.members`, all rows.
        timeline: its events on one axis.
        steps: its steps.
    """

    def __init__(self, trace: LoadedTrace) -> None:
        """Nothing is computed before it is asked for, but alignment and steps."""
        self.trace = trace
        self.alignment: Alignment = align(trace)
        self.members = self.alignment.members
        self.timeline: Timeline = timeline(trace)
        self.steps: Steps = search_steps(trace)

    def column(self, name: str) -> Ints:
        """A column of `members` as int64; nulls become 0."""
        return self.members[name].fill_null(0).to_numpy().astype(np.int64, copy=False)

    @cached_property
    def place(self) -> Ints:
        """Place on the timeline of each member's first kernel."""
        return self.timeline.places_of(self.column("event_id"))

    @cached_property
    def axis_start(self) -> Ints:
        """Start of each member row on the timeline's axis."""
        return self.column("start_ns") + self._shift

    @cached_property
    def axis_end(self) -> Ints:
        """End of each member row on the timeline's axis."""
        return self.column("end_ns") + self._shift

    @cached_property
    def _shift(self) -> Ints:
        return self.timeline.shift[self.timeline.rank_place[self.place]]

    @cached_property
    def rank_place(self) -> Ints:
        """Place of each member row's rank among the timeline's ranks."""
        return self.timeline.rank_place[self.place].astype(np.int64)

    @cached_property
    def step_row(self) -> Ints:
        """Row of `steps.table` of each member row, by its first kernel; -1 outside steps."""
        return self.steps.member[self.place].astype(np.int64)

    @cached_property
    def warm(self) -> Bools:
        """Member rows of warm-up steps, which no figure holds unless `--steps` names them."""
        table = self.steps.table
        # Steps that are mere repetitions, without a sign of a forward pass, say nothing of warming up.
        repetition = self.steps.facts.get("marker") == "period" and bool((table["phase"] == "other").all())
        if self.trace.options.steps is not None or table.is_empty() or repetition:
            return np.zeros(len(self.place), dtype=bool)
        flags = np.append(table["warm_up"].to_numpy(), False)
        return np.asarray(flags[self.step_row])

    @cached_property
    def selected(self) -> Bools:
        """Member rows that start in the selection."""
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
        accepted = self.members["accepted"].to_numpy().astype(bool)
        communicator = np.where(self.members["communicator"].is_null().to_numpy(), -1, self.column("communicator"))
        result = []
        numbers = np.append(self.steps.table["step"].to_numpy().astype(np.int64), -1)
        summed = np.append(self.summed_step, False)
        for number, in_set, ranks, _ in self.alignment.communicators.iter_rows():
            rows = np.flatnonzero(accepted & (communicator == number)).reshape(-1, len(ranks))
            # Events are counted where they start: an instance goes where its lowest member goes.
            first = rows[:, 0]
            rows = rows[self.selected[first] & ~self.warm[first]]
            at = self.step_row[rows[:, 0]]
            result.append(Matched(number, in_set, tuple(ranks), rows, numbers[at], summed[at]))
        return result

    def arrivals(self, matched: Matched) -> Arrivals:
        """The instances of a communicator as the tests want them."""
        arrival, duration = self.column("arrival_ns")[matched.row], (self.axis_end - self.axis_start)[matched.row]
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
    def work(self) -> Coverage:
        """When each rank runs anything but collectives, on the axis."""
        chosen = ~self.timeline.is_collective
        return Coverage.of_events(self.timeline.start[chosen], self.timeline.end[chosen])

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
    def _previous(self) -> Ints:
        """For each member row the row of the rank's last matched operation that ended before it began; -1 for none."""
        usable = self.members["accepted"].to_numpy().astype(bool) & self.selected & ~self.warm
        rows = np.flatnonzero(usable)
        result = np.full(len(usable), -1, dtype=np.int64)
        if len(rows) == 0:
            return result
        rows = rows[np.lexsort((rows, self.axis_end[rows]))]
        at = np.searchsorted(self.axis_end[rows], self.axis_start, side="right") - 1
        found = rows[np.maximum(at, 0)]
        own = (at >= 0) & (self.rank_place[found] == self.rank_place) & (found != np.arange(len(usable)))
        result[own] = found[own]
        return result

    def stretches(self, matched: Matched) -> Stretches:
        """Each member's way to each instance."""
        rows = matched.row
        previous = self._previous[rows]
        usable: Bools = np.asarray((previous >= 0).all(axis=1))
        safe = np.maximum(previous, 0)
        begin, end = self.axis_end[safe], self.axis_start[rows]

        def within(pieces: Coverage) -> Ints:
            return np.stack([pieces.within(b, e) for b, e in zip(begin.T, end.T, strict=True)], axis=1)

        elsewhere: Bools = (self.column("communicator")[safe] != matched.communicator).astype(np.bool_)
        return Stretches(
            self.column("arrival_ns")[rows],
            self.column("aligned_end_ns")[safe],
            within(self.work),
            within(self.launching),
            elsewhere,
            usable,
        )

    @cached_property
    def hidden_ns(self) -> Ints:
        """Per member row the time in which a non-collective kernel of another stream runs on its rank."""
        tl = self.timeline
        stream = tl.stream[self.place].astype(np.int64)
        hidden = np.zeros(len(stream), dtype=np.int64)
        working = np.flatnonzero((tl.kind == KERNEL) & ~tl.is_collective)
        work_stream = tl.stream[working].astype(np.int64)
        # Streams of one rank differ in number; the k-th collective stream of every rank is done in one pass.
        used = np.unique(stream)
        rank_of = tl.stream_rank[used].astype(np.int64)
        nth = np.arange(len(used)) - np.searchsorted(rank_of, rank_of)
        busy_streams = np.unique(work_stream)
        elsewhere = np.bincount(tl.stream_rank[busy_streams], minlength=len(tl.ranks))
        for k in range(int(nth.max(initial=-1)) + 1):
            own = np.full(len(tl.ranks), -1, dtype=np.int64)
            own[rank_of[nth == k]] = used[nth == k]
            other = work_stream != own[tl.rank_place[working]]
            if not other.any():
                continue
            cover = Coverage.of_events(tl.start[working[other]], tl.end[working[other]])
            rows = np.flatnonzero(np.isin(stream, used[nth == k]) & (elsewhere[self.rank_place] > 0))
            hidden[rows] = cover.within(self.axis_start[rows], self.axis_end[rows])
        return hidden

    @cached_property
    def shares_stream(self) -> Bools:
        """Per member row whether its stream also runs compute."""
        tl = self.timeline
        busy = np.unique(tl.stream[(tl.kind == KERNEL) & ~tl.is_collective])
        return np.isin(tl.stream[self.place], busy)

    def compute_ns(self, matched: Matched) -> Ints | None:
        """Non-collective busy time of each member per step, whole ns; null without steps."""
        count = self.step_counts.get(matched.set, 0)
        if count == 0:
            return None
        table = self.steps.table
        result = []
        for rank in matched.ranks:
            rows = np.flatnonzero(self.summed_step & (table["rank"] == rank).to_numpy())
            covered = self.work.within(self.steps.window_start[rows], self.steps.window_end[rows])
            result.append(round(int(covered.sum()) / count))
        return np.array(result, dtype=np.int64)

    @cached_property
    def rows(self) -> pl.DataFrame:
        """The collective operations of the selection outside warm-up; see `collectives_tables.member_rows`."""
        from tracelens.analyses.collectives_tables import member_rows

        return member_rows(self)

    @cached_property
    def kernel_names(self) -> pl.Series:
        """Name of each member row's first kernel."""
        return self.timeline.names["name"].gather(self.timeline.name[self.place]).alias("kernel_name")

    @property
    def selection_words(self) -> str:
        """The selection as provenance tells it."""
        return select(self.trace).words

    def ranks_of(self, communicator: int) -> tuple[int, ...]:
        """Members of a communicator, ascending."""
        return tuple(self.alignment.communicators["ranks"][communicator].to_list())

    def instance_count(self, communicator: int) -> int:
        """Instances of a communicator in the selection, complete or not."""
        chosen = (self.members["communicator"] == communicator).fill_null(False) & pl.Series(self.selected)
        return int(self.members["instance"].filter(chosen).n_unique())

    def accepted_count(self, communicator: int) -> int:
        """Accepted ones among them."""
        chosen = (self.members["communicator"] == communicator).fill_null(False) & pl.Series(self.selected)
        return int(self.members["instance"].filter(chosen & self.members["accepted"]).n_unique())

    @cached_property
    def _named_ranks(self) -> Mapping[int, int]:
        """Communicator -> the number of ranks that its kernels' names tell."""
        names = self.trace.db.execute(
            "SELECT name_id, ranks_in_name FROM kernel_name WHERE ranks_in_name IS NOT NULL"
        ).fetchall()
        told = pl.DataFrame(names, schema={"name_id": pl.Int32, "told": pl.Int64}, orient="row")
        found = (
            self.members.filter(pl.col("communicator").is_not_null())
            .join(told, on="name_id", how="inner")
            .group_by("communicator")
            .agg(pl.col("told").max())
        )
        return dict(found.iter_rows())

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
