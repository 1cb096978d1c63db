"""All gaps of a trace with their causes, found once, and registered as the table `gap`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.aligned_clock import aligned_clock
from tracelens.analyses.blocks import blocks, each, run_starts
from tracelens.analyses.gap_causes import CAUSES, HOST_LATE, LAUNCH_LATENCY, NULL, StepEdges, explain
from tracelens.analyses.launch_clock import HostClock, LaunchClock, launch_clock, typical_latency
from tracelens.analyses.occupancy import Occupancy, occupancy
from tracelens.analyses.registered import register
from tracelens.analyses.step_search import Steps, search_steps
from tracelens.analyses.timeline import KERNEL, Codes, Ints, Narrow, Timeline, timeline
from tracelens.frames import Notice
from tracelens.trace import LoadedTrace
from tracelens.units import plural

_SQL = Path(__file__).with_suffix(".sql")

_ROWS = 1 << 20

_UNDECIDED = 0.01
"""Share of the gap time of host_late and launch_latency that may be undecided without a word."""


@dataclass(frozen=True)
class Gaps:
    """The gaps of a trace, in the order of the timeline's axis.

    Attributes:
        occupancy: where they are and which events stand on both sides.
        cause: uint8 [gaps], place in `gap_causes.CAUSES`.
        edges: the windows of the steps.
        led: int32, places of the gaps that a launch call with a usable stamp ended; the next three go with it.
        launch_start: int64 ns on the axis.
        host_part, launch_part: int64 ns; `gap_causes.NULL` where the cause has no parts.
        step_cause_ns: int64 [rows of `Steps.table`, causes], gap time in each window.
        typical: rank, graph_launch, launch_count, typical_ns.
        host_clocks: the clocks of devices against their hosts'.
        undecided_ns: gap time that another offset within its bounds would move between host_late and launch_latency.
        opaque: rank -> whether its replays at least show as one row each; ranks of graph-level captures only.
        notices: what the reader must know.
    """

    occupancy: Occupancy
    cause: npt.NDArray[np.uint8]
    edges: StepEdges
    led: Codes
    launch_start: Ints
    host_part: Ints
    launch_part: Ints
    step_cause_ns: Ints
    typical: pl.DataFrame
    host_clocks: tuple[HostClock, ...]
    undecided_ns: int
    opaque: dict[int, bool]
    notices: tuple[Notice, ...]

    def rows_of(self, gaps: slice | Codes | Ints) -> Codes:
        """Row of `Steps.table` whose window holds each of these gaps, -1 outside."""
        dry = self.occupancy.timeline.end[self.occupancy.before[gaps]]
        if len(self.edges.start) == 0:
            return np.full(len(dry), -1, np.int32)
        window = np.searchsorted(self.edges.start, dry, side="right") - 1
        inside = (window >= 0) & (dry < self.edges.end[window])
        return np.where(inside, self.edges.row[window], -1).astype(np.int32)

    @property
    def clock_facts(self) -> dict[str, object]:
        """What an answer's provenance says of the clocks of devices and hosts."""
        clocks = [
            {"ranks": list(one.ranks)} | asdict(one.offset) | {"start_ns": max(one.offset.start_ns, 0)}
            for one in self.host_clocks
        ]
        return {"host_clock": clocks, "undecided_ns": self.undecided_ns}


def find_gaps(trace: LoadedTrace) -> Gaps:
    """Find every gap of every rank and its cause, once per trace; registers `gap` in the database."""
    gaps = search_gaps(trace)
    register(trace, "gap", gaps, lambda: _register(trace, gaps))
    return gaps


def search_gaps(trace: LoadedTrace) -> Gaps:
    """`find_gaps` without its table in the database."""
    result: Gaps = trace.memo("gaps", lambda: _search(trace))
    return result


def _search(trace: LoadedTrace) -> Gaps:
    tl = timeline(trace)
    occ = occupancy(trace)
    steps = search_steps(trace)
    launches = launch_clock(tl, occ, aligned_clock(trace))
    typical, shown = typical_latency(tl, occ, launches)
    room = trace.room
    cause = room.empty(len(occ), np.uint8)
    step_cause_ns = np.zeros(steps.table.height * len(CAUSES), np.int64)
    edges = _step_edges(tl, steps)
    # No call ends more than one gap.
    most = min(len(occ), len(launches.first))
    led = room.empty(most, np.int32)
    launch_start, host_part, launch_part = (room.empty(most, np.int64) for _ in range(3))
    count = 0
    for part in explain(tl, occ, launches, typical, edges):
        stretch = slice(part.low, part.low + len(part.cause))
        cause[stretch] = part.cause
        # Most neighbours are gaps of one cause in one step.
        begins = run_starts(part.row, part.cause)
        row, total_ns = part.row[begins], np.add.reduceat(part.length, begins)
        held = np.flatnonzero(row >= 0)
        key = row[held].astype(np.int64) * len(CAUSES) + part.cause[begins[held]]
        np.add.at(step_cause_ns, key, total_ns[held])
        filled = slice(count, count + len(part.led))
        led[filled] = part.led + part.low
        launch_start[filled], host_part[filled], launch_part[filled] = (
            part.launch_start,
            part.host_part,
            part.launch_part,
        )
        count = filled.stop
    told = _told_apart(occ, launches, cause, led[:count], launch_start[:count])
    return Gaps(
        occupancy=occ,
        cause=cause,
        edges=edges,
        led=led[:count],
        launch_start=launch_start[:count],
        host_part=host_part[:count],
        launch_part=launch_part[:count],
        step_cause_ns=step_cause_ns.reshape(-1, len(CAUSES)),
        typical=shown,
        host_clocks=launches.clocks,
        undecided_ns=told[0],
        opaque=dict(trace.rows(_SQL, "opaque_ranks").filter(pl.col("rank").is_in(trace.ranks)).iter_rows()),
        notices=_notices(tl, launches, *told),
    )


def _told_apart(
    occ: Occupancy, launches: LaunchClock, cause: npt.NDArray[np.uint8], led: Codes, launch_start: Ints
) -> tuple[int, int]:
    """(gap time that other offsets within their bounds would move between host_late and launch_latency, both in all)."""
    tl = occ.timeline

    def told(part: slice) -> tuple[int, int]:
        either = np.isin(cause[led[part]], (HOST_LATE, LAUNCH_LATENCY))
        gap, begin = led[part][either], launch_start[part][either]
        after = occ.after[gap]
        dry, start = tl.end[occ.before[gap]], tl.start[after]
        earlier, later = launches.doubt(tl.launch[after])
        near = np.where(begin >= dry, begin - dry < earlier, dry - begin <= later)
        length = start - dry
        return int(length[near].sum()), int(length.sum())

    found = list(each(told, blocks(0, len(led)), tl.trace.threads))
    return sum(near for near, _ in found), sum(every for _, every in found)


def _step_edges(tl: Timeline, steps: Steps) -> StepEdges:
    order = np.argsort(steps.window_start, kind="stable")
    places = np.searchsorted(tl.ranks, steps.idle["rank"].to_numpy())
    idle = steps.idle["start_ns"].to_numpy() + tl.shift[places]
    return StepEdges(steps.window_start[order], steps.window_end[order], order, np.sort(idle))


def _register(trace: LoadedTrace, gaps: Gaps) -> None:
    tl, occ = timeline(trace), gaps.occupancy
    number = search_steps(trace).table["step"].to_numpy()
    trace.run(_SQL, "create")
    for low in range(0, len(gaps.cause), _ROWS):
        stretch = slice(low, low + _ROWS)
        after, row = occ.after[stretch], gaps.rows_of(stretch)
        place = tl.rank_place[after]
        shift = tl.shift[place]
        first, last = np.searchsorted(gaps.led, [low, low + _ROWS])
        led = gaps.led[first:last] - np.int32(low)
        launch = np.full(len(after), NULL)
        launch[led] = gaps.launch_start[first:last] - shift[led]
        host, launched = np.full(len(after), NULL), np.full(len(after), NULL)
        host[led], launched[led] = gaps.host_part[first:last], gaps.launch_part[first:last]
        step = number[np.maximum(row, 0)] if len(number) else np.zeros(len(row), np.int32)
        frame = pl.DataFrame(
            {
                "rank": tl.ranks[place],
                "start_ns": tl.end[occ.before[stretch]] - shift,
                "end_ns": tl.start[after] - shift,
                "cause": gaps.cause[stretch],
                "before_event_id": tl.ids_of(occ.before[stretch]),
                "after_event_id": tl.ids_of(after),
            }
        ).with_columns(
            step=pl.when(pl.Series(row >= 0)).then(pl.Series(step)),
            launch_start_ns=nullable(launch),
            host_part_ns=nullable(host),
            launch_part_ns=nullable(launched),
        )
        trace.db.register("found_gap", frame.to_arrow())
        trace.run(_SQL, "append")
        trace.db.unregister("found_gap")


def nullable(values: Ints) -> pl.Series:
    """`values` with NULL as null."""
    return pl.select(pl.when(pl.Series(values != NULL)).then(pl.Series(values))).to_series()


def _notices(tl: Timeline, launches: LaunchClock, undecided_ns: int, either_ns: int) -> tuple[Notice, ...]:
    notices = []
    if launches.early_count:
        notices.append(
            Notice(
                "starts-before-launch",
                "info",
                f"{plural(launches.early_count, 'event')} before the API call on any clock that serves the others; such a "
                "launch is not used",
                "",
                launches.early_count,
            )
        )
    if undecided_ns > _UNDECIDED * either_ns:
        notices.append(
            Notice(
                "host-clock",
                "info",
                f"the host's clock is known to within {_within(launches)} us of the devices': {undecided_ns / 1e6:.3f} of "
                f"{either_ns / 1e6:.3f} ms of host_late and launch_latency lie too near for telling one from the other",
            )
        )
    overlaps = _overlaps_on_stream(tl)
    if overlaps:
        notices.append(
            Notice(
                "overlap-on-stream",
                "info",
                f"{plural(overlaps, 'kernel')} started before the one ahead on the stream had ended (programmatic dependent launch); "
                "an overlap is no gap",
                "",
                overlaps,
            )
        )
    return tuple(notices)


def _within(launches: LaunchClock) -> str:
    """The largest distance of an offset from its bounds, us."""
    far = [
        max(one.offset.ahead_ns - one.offset.least_ns, one.offset.most_ns - one.offset.ahead_ns)
        for one in launches.clocks
        if one.offset.launch_count
    ]
    return f"{max(far, default=0) / 1000:.1f}"


def _overlaps_on_stream(tl: Timeline) -> int:
    """Kernels that start before the kernel ahead of them on their stream ends."""
    reached = np.full(len(tl.stream_number), np.iinfo(np.int64).min)  # end of the last kernel so far, by stream
    count = 0
    for inside, stream, start, end in tl.each(lambda part: _overlaps_within(tl, part)):
        count += inside + int(np.count_nonzero(start < reached[stream]))
        reached[stream] = end
    return count


def _overlaps_within(tl: Timeline, part: slice) -> tuple[int, Narrow, Ints, Ints]:
    """(overlaps among these kernels, their streams, start of the first and end of the last on each)."""
    kernels = tl.kind[part] == KERNEL
    stream, start, end = tl.stream[part], tl.start[part], tl.end[part]
    if not bool(kernels.all()):
        stream, start, end = stream[kernels], start[kernels], end[kernels]
    order = np.argsort(stream, kind="stable")
    heads = run_starts(stream[order])
    first, last = order[heads], order[np.append(heads[1:], len(order))[: len(heads)] - 1]
    # On one stream or several: where each starts when the one before has ended, nothing overlaps.
    count = 0
    if not bool((start[1:] >= end[:-1]).all()):
        overlaps = start[order][1:] < end[order][:-1]
        overlaps[heads[1:] - 1] = False
        count = int(np.count_nonzero(overlaps))
    return count, stream[first], start[first], end[last]
