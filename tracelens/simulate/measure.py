"""Computes the truth of a timed capture."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.simulate.events import Events
from tracelens.simulate.gap_truth import exposure, gap_table
from tracelens.simulate.intervals import busy_within, union_length
from tracelens.simulate.observed import ObservedRows, observed_rows
from tracelens.simulate.ops import ALL_GROUP, MAIN_STREAM
from tracelens.simulate.spec import CaptureSpec
from tracelens.simulate.timeline import Timeline
from tracelens.simulate.truth import CAUSES, CollectiveTruth, StepTruth, Truth

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


IDLE_FLOOR_NS = 5_000_000
"""Idle shorter than this is never idle between requests."""


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
    gaps = [gap_table(spec, row, events, rank, edge, window_end, idle) for rank, row in enumerate(rows)]
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
        busy[:, rank] = busy_within(row.start, row.end, edge[:, rank], window_end[:, rank])
        collective[:, rank], exposed[:, rank] = exposure(events, row, edge[:, rank], window_end[:, rank])
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
        busy_ns=np.array([union_length(row.start, row.end) for row in rows]),
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
