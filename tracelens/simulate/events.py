"""The GPU rows of a capture: what each rank executed, flattened, and which of it the capture still holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.simulate.ops import Op, Program
from tracelens.simulate.spec import CaptureSpec
from tracelens.simulate.timeline import Timeline

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(eq=False)
class Events:
    """Every operation of every step, side by side; true nanoseconds.

    Attributes:
        start, end: ranks x events.
        kept: ranks x events; False where the rank lacks it or the capture lost it.
        executed: ranks x events; False only where the rank never ran it.
        step: step of each event.
        op: index into `ops` of each event.
        launch: index into the launches of each event.
        ops: operations of all programs, one after the other.
        op_program: program of each of `ops`.
        launch_begin, launch_end: ranks x launches.
        launch_step: step of each launch.
        launch_plan: program and number within it of each launch.
        graph: graph id of each event; -1 outside graphs.
        stream: stream of each event.
        cut_head, cut_tail: per rank, true where the capture lost rows at its beginning or end.
    """

    start: Ints
    end: Ints
    kept: Bools
    executed: Bools
    step: Ints
    op: Ints
    launch: Ints
    ops: tuple[Op, ...]
    op_program: Ints
    launch_begin: Ints
    launch_end: Ints
    launch_step: Ints
    launch_plan: list[tuple[int, int]]
    graph: Ints
    stream: Ints
    cut_head: Bools
    cut_tail: Bools

    @property
    def count(self) -> int:
        """Events per rank, lost ones included."""
        return len(self.op)


def flatten(spec: CaptureSpec, timeline: Timeline) -> Events:
    """Lay all steps side by side, and apply the capture's losses."""
    programs = timeline.programs
    op_offset = np.cumsum([0] + [len(program.ops) for program in programs])
    launch_counts = [len(programs[step.program].launches) for step in timeline.steps]
    launch_offset = np.cumsum([0, *launch_counts])
    executed = np.ones(timeline.start.shape, bool)
    edge = 0
    for step in timeline.steps:
        width = step.start.shape[1]
        if step.present is not None:
            executed[:, edge : edge + width] = step.present
        edge += width
    order = [step.program for step in timeline.steps]
    events = Events(
        start=timeline.start,
        end=timeline.end,
        kept=executed.copy(),
        executed=executed,
        step=np.repeat(np.arange(len(order)), [len(programs[p].ops) for p in order]),
        op=np.concatenate([op_offset[p] + np.arange(len(programs[p].ops)) for p in order]),
        launch=np.concatenate([launch_offset[s] + programs[p].launch for s, p in enumerate(order)]),
        ops=tuple(op for program in programs for op in program.ops),
        op_program=np.repeat(np.arange(len(programs)), [len(program.ops) for program in programs]),
        launch_begin=np.concatenate([step.launch_begin for step in timeline.steps], axis=1),
        launch_end=np.concatenate([step.launch_end for step in timeline.steps], axis=1),
        launch_step=np.repeat(np.arange(len(order)), launch_counts),
        launch_plan=[(p, launch) for p in order for launch in range(len(programs[p].launches))],
        graph=np.concatenate([programs[p].graph for p in order]),
        stream=np.concatenate([programs[p].stream for p in order]),
        cut_head=np.zeros(spec.ranks, bool),
        cut_tail=np.zeros(spec.ranks, bool),
    )
    _lose(spec, events, programs, order)
    return events


def _lose(spec: CaptureSpec, events: Events, programs: list[Program], order: list[int]) -> None:
    """Clear `kept` where the spec says that the capture lost rows."""
    head, tail = spec.per_rank("lost_head"), spec.per_rank("lost_tail")
    head_steps, tail_steps = spec.per_rank("lost_head_steps"), spec.per_rank("lost_tail_steps")
    for rank in range(spec.ranks):
        kept = events.kept[rank]
        if head_steps[rank]:
            kept[events.step < head_steps[rank]] = False
        if tail_steps[rank]:
            kept[events.step >= len(order) - tail_steps[rank]] = False
        if head[rank] or tail[rank]:
            rows = np.flatnonzero(events.executed[rank])
            rows = rows[np.argsort(events.start[rank, rows], kind="stable")]
            kept[rows[: int(head[rank])]] = False
            if tail[rank]:
                kept[rows[-int(tail[rank]) :]] = False
        events.cut_head[rank] = bool(head[rank] or head_steps[rank])
        events.cut_tail[rank] = bool(tail[rank] or tail_steps[rank])
    for run in spec.lost_runs:
        rows = np.flatnonzero(events.kept[run.rank])
        rows = rows[np.argsort(events.start[run.rank, rows], kind="stable")]
        first = int(run.at_frac * len(rows))
        events.kept[run.rank, rows[first : first + run.count]] = False
    for call in spec.lost_calls:
        hit = np.flatnonzero(events.step == call.step)
        hit = hit[programs[order[call.step]].collective == call.position]
        events.kept[call.rank, hit] = False
