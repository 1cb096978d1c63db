"""What an analysis of a capture should find, computed from true times rather than from the export.

Steps, gaps and their causes follow the same definitions that the analyses implement, written independently and read
off one perfect clock. Waits come from the true arrivals.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.simulate.events import Events
from tracelens.simulate.program import ALL_GROUP, MAIN_STREAM
from tracelens.simulate.spec import CaptureSpec
from tracelens.simulate.timeline import Timeline

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

CAUSES = (
    "idle",
    "step_boundary",
    "in_graph",
    "unknown",
    "host_late",
    "launch_latency",
    "back_to_back",
    "dependency",
)
BACK_TO_BACK_NS = 5_000
FEW_LAUNCHES = 20
DEFAULT_LATENCY_NS = 10_000
IDLE_FLOOR_NS = 5_000_000

JSON_MEMBERS = 300_000
"""Collective members up to which truth.json lists every call."""


@dataclass(eq=False)
class StepTruth:
    """Every step on every rank.

    Attributes:
        phase, rung, graph_id: per step; graph_id -1 for eager steps.
        warm_up: per step, planted as slow.
        late_rank: per step, the rank that a rotating delay chose; -1 for none.
        tokens: per step, tokens that it yields.
        edge_ns, window_end_ns: steps x ranks, true time; the end of the last step's window is its last event's.
        complete: per step: it has a next edge, no idle between requests follows, and nothing of it is cut off,
            on every rank.
        cut: steps x ranks: rows of it are missing at the capture's head or tail.
        step_ns, busy_ns, collective_ns, exposed_ns, wait_ns: steps x ranks.
        gap_ns: cause -> steps x ranks.
        kernel_count, collective_count: steps x ranks, of rows and operations that the capture holds.
    """

    phase: list[str]
    rung: list[str]
    graph_id: list[int]
    warm_up: Bools
    late_rank: Ints
    tokens: Ints
    edge_ns: Ints
    window_end_ns: Ints
    complete: Bools
    cut: Bools
    step_ns: Ints
    busy_ns: Ints
    collective_ns: Ints
    exposed_ns: Ints
    wait_ns: Ints
    gap_ns: dict[str, Ints]
    kernel_count: Ints
    collective_count: Ints


@dataclass(eq=False)
class CollectiveTruth:
    """Every collective call; with several communicators a call is one instance in each of them.

    Attributes:
        step, position: per call: its step, and its place among the step's calls.
        operation, implementation, name: per call.
        synchronising: per call.
        message_bytes: per call.
        communicator: calls x ranks: 0 .. dp-1 the TP groups, dp the group of all ranks.
        arrival_ns: calls x ranks: when the rank's first kernel of the call starts, true time.
        end_ns: calls x ranks: when its last kernel of the call ends.
        barrier_end_ns: calls x ranks: when the kernel that synchronises ends.
        wait_ns: calls x ranks: last arrival of the communicator minus own; 0 where not synchronising.
        transfer_ns: calls x ranks: median over the communicator of end minus last arrival.
        kept: calls x ranks: the capture holds it.
        complete: calls x ranks: it holds it on every member.
    """

    step: Ints
    position: Ints
    operation: list[str]
    implementation: list[str]
    name: list[str]
    synchronising: Bools
    message_bytes: Ints
    communicator: Ints
    arrival_ns: Ints
    end_ns: Ints
    barrier_end_ns: Ints
    wait_ns: Ints
    transfer_ns: Ints
    kept: Bools
    complete: Bools


@dataclass(eq=False)
class Truth:
    """Everything that is known about a capture.

    Attributes:
        spec: what was asked for.
        members: communicator -> its ranks.
        steps: see `StepTruth`.
        collectives: see `CollectiveTruth`.
        gap_total_ns: cause -> per rank, over the whole span, idle between requests included.
        host_part_ns, launch_part_ns: cause -> per rank.
        typical_latency_ns: per rank: of graph launches, of other calls.
        span_ns, busy_ns: per rank, of the rows that the capture holds.
        idle_between_ns: per step and rank: the idle between requests that follows.
        kernel_rows, copy_rows: per rank, rows that the capture holds.
        period_ns: with `repeat`, the distance of the blocks; truth covers the first one.
    """

    spec: CaptureSpec
    members: dict[int, tuple[int, ...]]
    steps: StepTruth
    collectives: CollectiveTruth
    gap_total_ns: dict[str, Ints]
    host_part_ns: dict[str, Ints]
    launch_part_ns: dict[str, Ints]
    typical_latency_ns: Ints
    span_ns: Ints
    busy_ns: Ints
    idle_between_ns: Ints
    kernel_rows: Ints
    copy_rows: Ints
    period_ns: int

    def mean_wait_ns(self) -> npt.NDArray[np.float64]:
        """Per rank, the mean wait over synchronising calls that the capture holds on every member; NaN for none."""
        calls = self.collectives
        use = calls.complete & calls.synchronising[:, None]
        count = use.sum(axis=0)
        total = np.where(use, calls.wait_ns, 0).sum(axis=0)
        mean: npt.NDArray[np.float64] = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
        return mean

    def caused_wait_ns(self) -> Ints:
        """Per rank, the others' waits in the calls where it came last."""
        calls = self.collectives
        caused = np.zeros(self.spec.ranks, np.int64)
        for ranks in self.members.values():
            rows = calls.synchronising & (calls.communicator[:, ranks[0]] == calls.communicator[:, ranks[-1]])
            rows &= calls.complete[:, ranks[0]]
            arrivals = calls.arrival_ns[np.ix_(np.flatnonzero(rows), np.array(ranks))]
            if arrivals.size and len(ranks) > 1:
                waits = arrivals.max(axis=1, keepdims=True) - arrivals
                np.add.at(caused, np.array(ranks)[arrivals.argmax(axis=1)], waits.sum(axis=1))
        return caused

    def decode_step_ns(self, rung: str | None = None) -> Ints:
        """step_ns (median over ranks) of the complete decode steps outside warm-up, of one rung or all."""
        steps = self.steps
        use = steps.complete & ~steps.warm_up & (np.array(steps.phase) == "decode")
        if rung is not None:
            use &= np.array(steps.rung) == rung
        return np.median(steps.step_ns[use], axis=1).round().astype(np.int64) if use.any() else np.zeros(0, np.int64)

    def to_json(self) -> dict[str, Any]:
        """A plain structure of the whole; calls are left out above `JSON_MEMBERS` members."""
        calls = self.collectives
        listed = calls.arrival_ns.size <= JSON_MEMBERS
        return {
            "schema": 1,
            "spec": _plain(asdict(self.spec)) | {"faults": [_fault(fault) for fault in self.spec.faults]},
            "ranks": self.spec.ranks,
            "members": {str(key): list(ranks) for key, ranks in self.members.items()},
            "period_ns": self.period_ns,
            "span_ns": self.span_ns.tolist(),
            "busy_ns": self.busy_ns.tolist(),
            "kernel_rows": self.kernel_rows.tolist(),
            "copy_rows": self.copy_rows.tolist(),
            "mean_wait_ns": [None if np.isnan(value) else float(value) for value in self.mean_wait_ns()],
            "caused_wait_ns": self.caused_wait_ns().tolist(),
            "typical_latency_ns": self.typical_latency_ns.tolist(),
            "gap_total_ns": _plain(self.gap_total_ns),
            "host_part_ns": _plain(self.host_part_ns),
            "launch_part_ns": _plain(self.launch_part_ns),
            "idle_between_ns": self.idle_between_ns.tolist(),
            "steps": _plain(vars(self.steps)),
            "collective_calls": len(calls.step),
            "collectives": _plain(vars(calls)) if listed else None,
        }


def _fault(fault: Any) -> dict[str, Any]:
    return {"kind": type(fault).__name__} | {key: _plain(value) for key, value in vars(fault).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


@dataclass(eq=False)
class ObservedRows:
    """The rows of one rank that the capture holds, in time order; true times."""

    start: Ints
    end: Ints
    step: Ints
    stream: Ints
    launch: Ints
    graph: Ints
    op: Ints


def observed_rows(spec: CaptureSpec, events: Events, rank: int) -> ObservedRows:
    """One rank's rows; with graph-level capture a replay is one row (op -1)."""
    rows = np.flatnonzero(events.kept[rank])
    start, end = events.start[rank, rows], events.end[rank, rows]
    step, stream, launch = events.step[rows], events.stream[rows], events.launch[rows]
    graph, op = events.graph[rows], events.op[rows]
    if spec.graph_capture == "graph" and (graph >= 0).any():
        inside = graph >= 0
        _, first, inverse = np.unique(launch[inside], return_index=True, return_inverse=True)
        begin = np.full(len(first), np.iinfo(np.int64).max)
        finish = np.zeros(len(first), np.int64)
        np.minimum.at(begin, inverse, start[inside])
        np.maximum.at(finish, inverse, end[inside])
        outside = ~inside
        start = np.concatenate([start[outside], begin])
        end = np.concatenate([end[outside], finish])
        step, stream, launch, graph = (
            np.concatenate([part[outside], part[inside][first]]) for part in (step, stream, launch, graph)
        )
        op = np.concatenate([op[outside], np.full(len(first), -1)])
    order = np.lexsort((launch, stream, -end, start))
    return ObservedRows(*(part[order] for part in (start, end, step, stream, launch, graph, op)))


def measure(spec: CaptureSpec, timeline: Timeline, events: Events, period_ns: int) -> Truth:
    """Compute the truth of a timed capture."""
    visible = events.kept
    if spec.graph_capture == "graph":
        visible = visible & (events.graph < 0)
    calls = _collectives(spec, timeline, events, visible)
    ranks, count = spec.ranks, len(timeline.steps)
    rows = [observed_rows(spec, events, rank) for rank in range(ranks)]
    edge = np.stack([_edges(row, count) for row in rows], axis=1)
    lost = events.executed & ~events.kept
    cut = np.zeros((count, ranks), bool)
    for rank in range(ranks):
        gone = np.bincount(events.step[lost[rank]], minlength=count) > 0
        seen = np.flatnonzero(np.bincount(events.step[events.kept[rank]], minlength=count))
        if len(seen) == 0:
            cut[:, rank] = True
            continue
        cut[: seen[0], rank] = True
        cut[seen[-1] + 1 :, rank] = True
        cut[seen[0], rank] |= bool(gone[seen[0]] and events.cut_head[rank])
        cut[seen[-1], rank] |= bool(gone[seen[-1]] and events.cut_tail[rank])
    idle = _idle_between(spec, rows, edge, count)
    window_end = np.full((count, ranks), -1, np.int64)
    window_end[:-1] = edge[1:]
    for rank, row in enumerate(rows):
        last = _last_ends(row, count)
        ends = np.where((idle[:, rank] > 0) | (window_end[:, rank] < 0), last, window_end[:, rank])
        window_end[:, rank] = ends
    complete = np.zeros(count, bool)
    complete[:-1] = ((edge[:-1] >= 0) & (edge[1:] >= 0) & (idle[:-1] == 0) & ~cut[:-1]).all(axis=1)
    # the next edge must be the true one: a step whose head is cut begins later than it did
    complete[:-1] &= ~_headless(events, timeline)[1:].any(axis=1)
    window = np.where(edge >= 0, np.maximum(window_end - edge, 0), 0)
    gaps = [_gaps(spec, row, events, rank, edge, window_end, idle) for rank, row in enumerate(rows)]
    totals: dict[str, dict[str, Ints]] = {part: {} for part in ("gap", "host", "launch")}
    per_step: dict[str, Ints] = {}
    for number, cause in enumerate(CAUSES):
        for part in totals:
            sums = [int(gap[part][gap["cause"] == number].sum()) for gap in gaps]
            totals[part][cause] = np.array(sums, np.int64)
        per_step[cause] = np.zeros((count, ranks), np.int64)
        for rank, gap in enumerate(gaps):
            hit = (gap["cause"] == number) & (gap["step"] >= 0)
            np.add.at(per_step[cause][:, rank], gap["step"][hit], gap["gap"][hit])
    busy, collective, exposed = (np.zeros((count, ranks), np.int64) for _ in range(3))
    for rank, row in enumerate(rows):
        busy[:, rank] = _busy_within(row.start, row.end, edge[:, rank], window_end[:, rank])
        collective[:, rank], exposed[:, rank] = _exposure(events, row, edge[:, rank], window_end[:, rank])
    programs = [timeline.programs[step.program] for step in timeline.steps]
    kinds = np.array([op.kind for op in events.ops])
    is_kernel = kinds[events.op] == 0
    kernel_count = np.stack(
        [np.bincount(events.step[visible[rank] & is_kernel], minlength=count) for rank in range(ranks)], axis=1
    )
    call_count = np.zeros((count, ranks), np.int64)
    wait_sum = np.zeros((count, ranks), np.int64)
    np.add.at(call_count, calls.step, calls.kept)
    np.add.at(wait_sum, calls.step, np.where(calls.complete, calls.wait_ns, 0))
    steps = StepTruth(
        phase=[program.phase for program in programs],
        rung=[program.rung for program in programs],
        graph_id=[program.graphs[-1] if program.graphs else -1 for program in programs],
        warm_up=np.array([step.warm_up for step in timeline.steps]),
        late_rank=np.array([step.late_rank for step in timeline.steps]),
        tokens=np.array([program.tokens_out for program in programs]),
        edge_ns=edge,
        window_end_ns=window_end,
        complete=complete,
        cut=cut,
        step_ns=window,
        busy_ns=busy,
        collective_ns=collective,
        exposed_ns=exposed,
        wait_ns=wait_sum,
        gap_ns=per_step,
        kernel_count=kernel_count,
        collective_count=call_count,
    )
    members = {group: tuple(range(group * spec.tp, (group + 1) * spec.tp)) for group in range(spec.dp)}
    if (calls.communicator == spec.dp).any():
        members[spec.dp] = tuple(range(ranks))
    return Truth(
        spec=spec,
        members=members,
        steps=steps,
        collectives=calls,
        gap_total_ns=totals["gap"],
        host_part_ns=totals["host"],
        launch_part_ns=totals["launch"],
        typical_latency_ns=np.stack([gap["typical"] for gap in gaps]),
        span_ns=np.array([int(row.end.max() - row.start.min()) if len(row.start) else 0 for row in rows]),
        busy_ns=np.array([_union_length(row.start, row.end) for row in rows]),
        idle_between_ns=idle,
        kernel_rows=np.array([int((row.op >= 0).sum() - (kinds[row.op[row.op >= 0]] > 0).sum()) for row in rows]),
        copy_rows=np.array([int((kinds[row.op[row.op >= 0]] > 0).sum()) for row in rows]),
        period_ns=period_ns,
    )


def _collectives(spec: CaptureSpec, timeline: Timeline, events: Events, visible: Bools) -> CollectiveTruth:
    first = np.flatnonzero(np.array([op.group >= 0 for op in events.ops])[events.op])
    ops = [events.ops[i] for i in events.op[first]]
    families = [op.family for op in ops]
    step = events.step[first]
    per_step = np.bincount(step, minlength=len(timeline.steps)) if len(first) else np.zeros(1, np.int64)
    position = np.arange(len(first)) - np.repeat(np.cumsum(per_step) - per_step, per_step)[: len(first)]
    follow = np.array([op.follow_up for op in events.ops], bool)[events.op]
    last = first.copy()
    if len(first):
        has = first + 1 < events.count
        last[has] += follow[first[has] + 1]
    arrival, barrier, end = (
        part.T.copy() for part in (events.start[:, first], events.end[:, first], events.end[:, last])
    )
    synchronising = np.array([bool(f and f.synchronising) for f in families], bool)
    every = np.array([op.group == ALL_GROUP for op in ops], bool)
    own_group = np.arange(spec.ranks) // spec.tp
    communicator = np.where(every[:, None], spec.dp if spec.dp > 1 else 0, own_group[None, :])
    wait, transfer = np.zeros_like(arrival), np.zeros_like(arrival)
    kept = (visible[:, first] & visible[:, last]).T
    complete = kept.copy()
    for rows, groups in ((every, 1), (~every, spec.dp)):
        if not rows.any():
            continue
        shape = (int(rows.sum()), groups, spec.ranks // groups)
        arrivals = arrival[rows].reshape(shape)
        latest = arrivals.max(axis=2, keepdims=True)
        wait[rows] = (latest - arrivals).reshape(shape[0], -1)
        after = end[rows].reshape(shape) - latest
        middle = np.rint(np.median(after, axis=2, keepdims=True)).astype(np.int64)
        transfer[rows] = np.broadcast_to(middle, shape).reshape(shape[0], -1)
        whole = kept[rows].reshape(shape).all(axis=2, keepdims=True)
        complete[rows] = np.broadcast_to(whole, shape).reshape(shape[0], -1)
    wait[~synchronising] = 0
    return CollectiveTruth(
        step=step,
        position=position,
        operation=[f.operation if f else "" for f in families],
        implementation=[f.implementation if f else "" for f in families],
        name=[op.name for op in ops],
        synchronising=synchronising,
        message_bytes=np.array([op.bytes for op in ops], np.int64),
        communicator=communicator,
        arrival_ns=arrival,
        end_ns=end,
        barrier_end_ns=barrier,
        wait_ns=wait,
        transfer_ns=transfer,
        kept=kept,
        complete=complete,
    )


def _edges(rows: ObservedRows, count: int) -> Ints:
    """Start of each step's first main-stream row; -1 for a step without one."""
    edge = np.full(count, np.iinfo(np.int64).max)
    main = rows.stream == MAIN_STREAM
    np.minimum.at(edge, rows.step[main], rows.start[main])
    edge[edge == np.iinfo(np.int64).max] = -1
    return edge


def _last_ends(rows: ObservedRows, count: int) -> Ints:
    last = np.full(count, -1, np.int64)
    np.maximum.at(last, rows.step, rows.end)
    return last


def _headless(events: Events, timeline: Timeline) -> Bools:
    """Steps x ranks: the step's true first main-stream row is not in the capture."""
    main = np.flatnonzero(events.stream == MAIN_STREAM)
    count, ranks = len(timeline.steps), events.start.shape[0]
    headless = np.ones((count, ranks), bool)
    for rank in range(ranks):
        ran = main[events.executed[rank, main]]
        _, first = np.unique(events.step[ran], return_index=True)
        headless[events.step[ran[first]], rank] = ~events.kept[rank, ran[first]]
    return headless


def _idle_between(spec: CaptureSpec, rows: list[ObservedRows], edge: Ints, count: int) -> Ints:
    """Steps x ranks: length of the idle between requests that follows the step on that rank; 0 for none."""
    idle = np.zeros((count, spec.ranks), np.int64)
    coupled = bool(spec.moe and spec.ep)
    groups = 1 if coupled else spec.dp
    size = spec.ranks // groups
    first = np.stack([_first_starts(row, count) for row in rows], axis=1)
    last = np.maximum.accumulate(np.stack([_last_ends(row, count) for row in rows], axis=1), axis=0)
    for group in range(groups):
        ranks = slice(group * size, (group + 1) * size)
        known: Bools = np.asarray((edge[:, ranks] >= 0).all(axis=1))
        strides = np.diff(np.median(edge[known][:, ranks], axis=1))
        if len(strides) == 0:
            continue
        threshold = max(3 * float(np.median(strides)), IDLE_FLOOR_NS)
        for step in range(count - 1):
            if not (known[step] and known[step + 1]):
                continue
            common = first[step + 1, ranks].min() - last[step, ranks].max()
            if common > threshold:
                idle[step, ranks] = first[step + 1, ranks] - last[step, ranks]
    return idle


def _first_starts(rows: ObservedRows, count: int) -> Ints:
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, rows.step, rows.start)
    return first


def _gaps(
    spec: CaptureSpec, rows: ObservedRows, events: Events, rank: int, edge: Ints, window_end: Ints, idle: Ints
) -> dict[str, Ints]:
    """Every gap of one rank: length, cause, parts, and the step whose window holds it (-1: none)."""
    empty = np.zeros(0, np.int64)
    if len(rows.start) == 0:
        return {
            "gap": empty,
            "cause": empty,
            "host": empty,
            "launch": empty,
            "step": empty,
            "typical": np.zeros(2, np.int64),
        }
    reach = np.maximum.accumulate(rows.end)
    # index of the row whose end is the furthest so far
    holder = np.maximum.accumulate(np.where(rows.end == reach, np.arange(len(reach)), 0))
    after = np.flatnonzero(rows.start[1:] > reach[:-1]) + 1
    before = holder[after - 1]
    dry, start = reach[after - 1], rows.start[after]
    call_begin = events.launch_begin[rank, rows.launch[after]]
    call_end = events.launch_end[rank, rows.launch[after]]
    launched = rows.launch[after] >= int(spec.per_rank("lost_launches")[rank])
    is_graph = rows.graph[after] >= 0
    typical = np.full(2, DEFAULT_LATENCY_NS, np.int64)
    same_replay = is_graph & (rows.launch[after] == rows.launch[before])
    for place, chosen in enumerate((is_graph, ~is_graph)):
        fresh = chosen & launched & (call_begin >= dry) & ~same_replay
        if fresh.sum() >= FEW_LAUNCHES:
            typical[place] = int(np.rint(np.median(start[fresh] - call_begin[fresh])))
    latency = np.where(is_graph, typical[0], typical[1])
    edges = np.sort(edge[:, rank][edge[:, rank] >= 0])
    at_edge = np.asarray(np.isin(start, edges))
    gap = start - dry
    last = np.full(len(idle), -1, np.int64)
    np.maximum.at(last, rows.step, rows.end)
    last = np.maximum.accumulate(last)
    is_idle = np.isin(dry, last[idle[:, rank] > 0])
    cause = np.select(
        [
            is_idle,
            at_edge,
            same_replay,
            ~launched,
            call_begin >= dry,
            (dry < call_begin + latency) | (dry < call_end),
            (rows.stream[after] == rows.stream[before]) & (gap <= BACK_TO_BACK_NS),
        ],
        list(range(7)),
        7,
    )
    split = launched & np.isin(cause, [0, 1, 4, 5])
    host = np.where(split, np.clip(call_begin - dry, 0, gap), 0)
    flight = np.minimum(start, np.maximum(call_end, call_begin + latency)) - np.maximum(call_begin, dry)
    flight = np.where(split, np.clip(flight, 0, gap), 0)
    step = np.searchsorted(edge[:, rank] if (edge[:, rank] >= 0).all() else edges, dry, side="right") - 1
    if not (edge[:, rank] >= 0).all():
        numbers = np.flatnonzero(edge[:, rank] >= 0)
        step = np.where(step >= 0, numbers[np.maximum(step, 0)], -1)
    # after an idle, what precedes the next edge lies in no window
    step = np.where((step >= 0) & (dry < window_end[step, rank]), step, -1)
    return {"gap": gap, "cause": cause, "host": host, "launch": flight, "step": step, "typical": typical}


def _merged(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Disjoint intervals that cover the same instants; input in order of start."""
    if len(start) == 0:
        return start, end
    reach = np.maximum.accumulate(end)
    fresh = np.concatenate([[True], start[1:] > reach[:-1]])
    firsts = np.flatnonzero(fresh)
    return start[firsts], reach[np.concatenate([firsts[1:] - 1, [len(start) - 1]])]


def _union_length(start: Ints, end: Ints) -> int:
    begin, finish = _merged(start, end)
    return int((finish - begin).sum())


def _covered_before(begin: Ints, finish: Ints, at: Ints) -> Ints:
    """How much of the disjoint intervals lies before each instant."""
    if len(begin) == 0:
        return np.zeros(len(at), np.int64)
    total = np.concatenate([[0], np.cumsum(finish - begin)])
    place = np.searchsorted(begin, at, side="right")
    inside = np.where(place > 0, np.minimum(at, finish[np.maximum(place - 1, 0)]) - begin[np.maximum(place - 1, 0)], 0)
    return np.asarray(total[np.maximum(place - 1, 0)] + inside, np.int64)


def _busy_within(start: Ints, end: Ints, low: Ints, high: Ints) -> Ints:
    begin, finish = _merged(start, end)
    covered = _covered_before(begin, finish, high) - _covered_before(begin, finish, low)
    return np.where(low >= 0, np.maximum(covered, 0), 0)


def _exposure(events: Events, rows: ObservedRows, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Per step: union of collectives, and the part of it that no other stream's compute kernel covers."""
    known = rows.op >= 0
    buckets = np.array([op.bucket == "collective" for op in events.ops])
    kernels = np.array([op.kind == 0 for op in events.ops])
    is_collective = np.zeros(len(rows.op), bool)
    is_compute = np.zeros(len(rows.op), bool)
    is_collective[known] = buckets[rows.op[known]]
    is_compute[known] = kernels[rows.op[known]] & ~buckets[rows.op[known]]
    total = _busy_within(rows.start[is_collective], rows.end[is_collective], low, high)
    hidden = np.zeros(len(low), np.int64)
    for stream in np.unique(rows.stream[is_collective]):
        own = is_collective & (rows.stream == stream)
        other = is_compute & (rows.stream != stream)
        if not other.any():
            continue
        begin, finish = _merged(rows.start[other], rows.end[other])
        mine = _merged(rows.start[own], rows.end[own])
        for place, first in enumerate(low):
            if first < 0:
                continue
            hit = (mine[1] > first) & (mine[0] < high[place])
            a, b = np.maximum(mine[0][hit], first), np.minimum(mine[1][hit], high[place])
            hidden[place] += int((_covered_before(begin, finish, b) - _covered_before(begin, finish, a)).sum())
    return total, total - hidden
