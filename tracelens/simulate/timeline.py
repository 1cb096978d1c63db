"""When everything happens: hosts that launch, GPUs that execute in stream order, collectives that wait.

All times here are true: one perfect clock, in integer nanoseconds. A step is timed block by block for all ranks at
once. Within a block an operation starts at

    max(end of the operation before it on its stream + gap, begin of its launch call + latency)

which is a running maximum. A synchronising collective starts on a rank when that rank reaches it and ends, on all
members, once the last has arrived and the transfer is done.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.simulate.faults import Costlier, Late, Leave, Rotating, Slow, Stall
from tracelens.simulate.ops import ALL_GROUP, Program
from tracelens.simulate.program import build_program
from tracelens.simulate.spec import CaptureSpec, Stretch

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NEVER = np.int64(-(1 << 60))


@dataclass(eq=False)
class StepTimes:
    """One step on every rank; arrays are ranks x operations (or launches), true nanoseconds.

    Attributes:
        index: step number, from 0.
        program: index of its program.
        iteration_begin: when each rank's host began it; its engine range opens there.
        range_end: when that range closes.
        start, end: of every operation.
        present: False where a rank does not have the operation; None when all have all.
        launch_begin, launch_end: of every API call.
        idle_after_ns: client idle planned after it.
        warm_up: one of the planned slow steps.
        late_rank: the rank that `Rotating` chose; -1 for none.
    """

    index: int
    program: int
    iteration_begin: Ints
    range_end: Ints
    start: Ints
    end: Ints
    present: Bools | None
    launch_begin: Ints
    launch_end: Ints
    idle_after_ns: int
    warm_up: bool
    late_rank: int = -1


@dataclass(eq=False)
class Timeline:
    """All programs and all timed steps of a capture.

    Attributes:
        programs: each kind of step once.
        steps: in order; their `start` and `end` are views of the arrays here.
        start, end: ranks x operations of all steps.
    """

    programs: list[Program]
    steps: list[StepTimes]
    start: Ints
    end: Ints


class _Clockwork:
    """The state that one step hands to the next."""

    def __init__(self, spec: CaptureSpec) -> None:
        self.spec = spec
        self.rng = np.random.default_rng(spec.seed)
        self.ready: dict[int, Ints] = {}
        self.read_back = np.full(spec.ranks, spec.start_ns, np.int64)
        self.read_back_before = self.read_back
        self.host_free = np.full(spec.ranks, spec.start_ns, np.int64)
        self.idle_ns = 0
        self.wave = 0.0
        self.host_factor = np.array(spec.per_rank("host_factor"), np.float64)[:, None]
        self.decode_steps = 0

    def stream(self, number: int) -> Ints:
        if number not in self.ready:
            self.ready[number] = np.zeros(self.spec.ranks, np.int64)
        return self.ready[number]


def run(spec: CaptureSpec) -> Timeline:
    """Time every step of the capture."""
    programs: list[Program] = []
    known: dict[tuple[str, int, int], int] = {}
    scale = _compute_scale(spec)
    plan: list[tuple[int, int]] = []
    for stretch in spec.stretches():
        key = (stretch.kind, stretch.batch, stretch.tokens if stretch.kind in ("prefill", "mixed") else 0)
        if key not in known:
            known[key] = len(programs)
            factor = scale * _mixed_factor(spec, stretch, scale)
            programs.append(build_program(spec, stretch, known[key], factor))
        plan += [
            (known[key], stretch.idle_after_ns if step + 1 == stretch.steps else 0) for step in range(stretch.steps)
        ]
    widths = [len(programs[number].ops) for number, _ in plan]
    start, end = (np.empty((spec.ranks, sum(widths)), np.int64) for _ in range(2))
    state = _Clockwork(spec)
    steps: list[StepTimes] = []
    edge = 0
    for index, ((number, idle), width) in enumerate(zip(plan, widths, strict=True)):
        place = slice(edge, edge + width)
        steps.append(_step(state, programs[number], number, index, idle, start[:, place], end[:, place]))
        edge += width
    return Timeline(programs, steps, start, end)


def _compute_scale(spec: CaptureSpec) -> float:
    if spec.step_compute_ns is None:
        return 1.0
    program = build_program(spec, Stretch("decode", batch=spec.batch), 0)
    extra = {kernel.name for kernel in spec.extra_kernels}
    counted = [
        op.duration_ns / (spec.gemm_factor if op.bucket == "gemm" else 1.0)
        for op, compute in zip(program.ops, program.compute, strict=True)
        if compute and op.name not in extra
    ]
    return spec.step_compute_ns / sum(counted)


def _mixed_factor(spec: CaptureSpec, stretch: Stretch, scale: float) -> float:
    if stretch.kind != "mixed" or spec.mixed_factor is None:
        return 1.0
    decode = build_program(spec, Stretch("decode", batch=stretch.batch), 0, scale)
    mixed = build_program(spec, stretch, 0, scale)
    fixed = float(mixed.duration[~mixed.compute].sum() + mixed.gap.sum())
    target = spec.mixed_factor * float(decode.duration.sum() + decode.gap.sum() + spec.bubble_ns)
    return max(target - fixed - spec.bubble_ns, 1.0) / float(mixed.duration[mixed.compute].sum())


def _step(
    state: _Clockwork, program: Program, number: int, index: int, idle_after: int, start: Ints, end: Ints
) -> StepTimes:
    """Time one step into `start` and `end`."""
    spec, rng, ranks = state.spec, state.rng, state.spec.ranks
    warm_up = index < spec.warm_up_steps
    late_rank = -1
    duration, gap, present = _durations(state, program, index, warm_up)
    for fault in spec.faults:
        if isinstance(fault, Rotating):
            late_rank = int(rng.choice(np.array(fault.ranks if fault.ranks is not None else range(ranks))))
            _delay(program, duration, gap, (late_rank,), fault.late_ns, fault.how, 1, None)
        elif isinstance(fault, Late) and fault.how != "kernel" and _covers(fault.steps, index):
            _delay(program, duration, gap, fault.ranks, fault.late_ns, fault.how, fault.every, fault.operation)
    plans = program.launches
    shape = (ranks, len(plans))
    costs = np.array([plan.cost_ns for plan in plans]) * _scatter(rng, spec.host_jitter, *shape) * state.host_factor
    calls = np.array([plan.call_ns for plan in plans]) * _scatter(rng, spec.host_jitter, *shape)
    latencies = np.array([plan.latency_ns for plan in plans]) * _scatter(rng, spec.latency_jitter, *shape)
    cost, call, latency = (np.rint(part).astype(np.int64) for part in (costs, calls, latencies))
    if present is not None:
        for launch, plan in enumerate(plans):
            gone = ~present[:, plan.first : plan.last].any(axis=1)
            cost[gone, launch] = call[gone, launch] = 0
    begin = _host_begin(state)
    launch_begin = begin[:, None] + np.cumsum(cost + call, axis=1) - call
    floor = np.full(duration.shape, NEVER)
    roots = np.flatnonzero(program.root)
    floor[:, roots] = (launch_begin + latency)[:, program.launch[roots]]
    if present is not None:
        floor[~present] = NEVER
    _execute(state, program, index, duration, gap, floor, launch_begin, latency, start, end)
    for stream in np.unique(program.stream):
        state.ready[int(stream)] = end[:, np.flatnonzero(program.stream == stream)[-1]].copy()
    state.read_back_before, state.read_back = state.read_back, end[:, program.read_back] + spec.sync_ns
    launch_end = launch_begin + call
    state.host_free = launch_end[:, -1] + 500
    state.idle_ns = idle_after
    state.decode_steps += program.phase == "decode"
    range_end = np.maximum(state.host_free, state.read_back)
    if spec.nvtx_close == "early" or spec.host_ahead:
        range_end = state.host_free
    if spec.nvtx_close == "model":
        range_end = launch_end[:, program.model_launch] + 200
    return StepTimes(
        index, number, begin, range_end, start, end, present, launch_begin, launch_end, idle_after, warm_up, late_rank
    )


def _host_begin(state: _Clockwork) -> Ints:
    """When each rank's host begins its next step: what it waits for, the scheduler, and its own jitter."""
    spec = state.spec
    waits = state.read_back_before if spec.host_ahead and not state.idle_ns else state.read_back
    # replicas have a scheduler each; its workers get the step together
    common = np.repeat(waits.reshape(spec.dp, spec.tp).max(axis=1), spec.tp)
    if state.idle_ns:
        common = np.full(spec.ranks, common.max())
    jitter = np.rint(np.abs(state.rng.normal(0.0, 1.0, spec.ranks)) * spec.start_jitter_ns).astype(np.int64)
    begin = common + state.idle_ns + spec.bubble_ns + jitter
    return np.asarray(np.maximum(begin, state.host_free), np.int64)


def _durations(state: _Clockwork, program: Program, index: int, warm_up: bool) -> tuple[Ints, Ints, Bools | None]:
    """Durations and gaps of every operation on every rank, and which ranks have which (None: all)."""
    spec, rng, shape = state.spec, state.rng, (state.spec.ranks, len(program.ops))
    fresh = float(rng.normal())
    state.wave = spec.step_rho * state.wave + np.sqrt(1 - spec.step_rho**2) * fresh
    common = max(0.2, 1.0 + spec.step_noise * state.wave) * (spec.warm_up_factor if warm_up else 1.0)
    duration = np.tile(program.duration, (shape[0], 1))
    if spec.growth_ns:
        attention = np.array([op.bucket == "attention" for op in program.ops])
        duration[:, attention] += spec.growth_ns * state.decode_steps
    compute = program.compute
    duration[:, compute] *= common * _scatter(rng, spec.kernel_noise, shape[0], int(compute.sum()))
    for fault in spec.faults:
        if isinstance(fault, Slow) and _covers(fault.steps, index):
            hit = compute & np.array(
                [
                    fault.bucket in (None, op.bucket) and (fault.kernel is None or fault.kernel in op.name)
                    for op in program.ops
                ]
            )
            duration[np.ix_(np.array(fault.ranks), np.flatnonzero(hit))] *= fault.factor
    gap = program.gap * _scatter(rng, spec.gap_jitter, *shape)
    present: Bools | None = None
    if (program.owner >= 0).any():
        present = np.ones(shape, bool)
        for op in np.flatnonzero(program.owner >= 0):
            fault = spec.faults[program.owner[op]]
            absent = np.ones(shape[0], bool)
            if isinstance(fault, Late) and _covers(fault.steps, index):
                absent[list(fault.ranks)] = False
            present[absent, op] = False
            duration[absent, op] = gap[absent, op] = 0.0
    rounded = np.maximum(np.rint(duration), 1).astype(np.int64)
    if present is not None:
        rounded[~present] = 0
    return rounded, np.rint(gap).astype(np.int64), present


def _delay(
    program: Program,
    duration: Ints,
    gap: Ints,
    ranks: tuple[int, ...],
    late_ns: int,
    how: str,
    every: int,
    operation: str | None,
) -> None:
    """Add lateness before collectives: idle time, or a longer kernel before."""
    places = [
        i
        for i in program.collective_ops
        if operation is None or (family := program.ops[i].family) is None or family.operation == operation
    ][::every]
    for place in places:
        before = next((i for i in range(place - 1, -1, -1) if program.compute[i]), None)
        if how == "stretch" and before is not None:
            duration[list(ranks), before] += late_ns
        else:
            gap[list(ranks), place] += late_ns


def _execute(
    state: _Clockwork,
    program: Program,
    index: int,
    duration: Ints,
    gap: Ints,
    floor: Ints,
    launch_begin: Ints,
    latency: Ints,
    start: Ints,
    end: Ints,
) -> None:
    """Fill start and end of every operation; `launch_begin` and `floor` move where a host stalls."""
    ready = {int(stream): state.stream(int(stream)) for stream in np.unique(program.stream)}
    stalls: dict[int, list[Stall]] = {}
    for fault_index, points in program.stall_points.items():
        fault = state.spec.faults[fault_index]
        if isinstance(fault, Stall) and _covers(fault.steps, index):
            for point in points:
                stalls.setdefault(point, []).append(fault)
    offsets = np.cumsum(gap + duration, axis=1)
    for first, last in program.blocks:
        stream = int(program.stream[first])
        before = ready[stream]
        after = int(program.after[first])
        if after >= 0:
            floor[:, first] = np.maximum(floor[:, first], end[:, after] + gap[:, first])
        for fault in stalls.get(first, ()):
            _stall(program, first, fault, before + gap[:, first], floor, launch_begin, latency)
        if program.group[first] >= 0:
            arrival = np.maximum(before + gap[:, first], floor[:, first])
            start[:, first] = arrival
            end[:, first] = _collective(state, program, first, index, arrival)
        elif last - first == 1:
            start[:, first] = np.maximum(before + gap[:, first], floor[:, first])
            end[:, first] = start[:, first] + duration[:, first]
        else:
            origin = offsets[:, first] - duration[:, first] - gap[:, first]
            lead = offsets[:, first:last] - duration[:, first:last] - origin[:, None]
            bound = np.maximum.accumulate(floor[:, first:last] - lead, axis=1)
            start[:, first:last] = lead + np.maximum(before[:, None], bound)
            end[:, first:last] = start[:, first:last] + duration[:, first:last]
        ready[stream] = end[:, last - 1]


def _stall(
    program: Program, op: int, fault: Stall, queued: Ints, floor: Ints, launch_begin: Ints, latency: Ints
) -> None:
    """Move the launch of `op`, and all later ones, on the stalled ranks."""
    launch = int(program.launch[op])
    rows = np.array(fault.ranks)
    if fault.sync:
        normal = np.maximum(queued, floor[:, op])
        shift = normal + fault.stall_ns - latency[:, launch] - launch_begin[:, launch]
        shift = np.maximum(shift, 0)
    else:
        shift = np.full(len(floor), fault.stall_ns, np.int64)
    launch_begin[rows, launch:] += shift[rows, None]
    later = np.flatnonzero(program.root[op:]) + op
    floor[np.ix_(rows, later)] += shift[rows, None]


def _collective(state: _Clockwork, program: Program, op: int, index: int, arrival: Ints) -> Ints:
    """The ends of one collective, from its arrivals."""
    spec, rng = state.spec, state.rng
    groups = 1 if program.group[op] == ALL_GROUP else spec.dp
    members = spec.ranks // groups
    family = program.ops[op].family
    transfer = np.full(groups, program.duration[op])
    leave = np.zeros(spec.ranks)
    for fault in spec.faults:
        if isinstance(fault, Costlier) and family is not None and fault.operation == family.operation:
            transfer += fault.extra_ns if _covers(fault.steps, index) else 0
        if isinstance(fault, Leave) and (fault.operation is None or (family and fault.operation == family.operation)):
            leave[list(fault.ranks)] += fault.late_ns
    transfer *= np.maximum(1.0 + rng.normal(0.0, spec.transfer_noise, groups), 0.2)
    last = arrival.reshape(groups, members).max(axis=1)
    if family is not None and not family.synchronising:
        # a broadcast waits for the root's data, a ring exchange for one neighbour's, others for nobody's
        grouped = arrival.reshape(groups, members)
        awaited = {
            "broadcast": np.broadcast_to(grouped[:, :1], grouped.shape),
            "send_recv": np.roll(grouped, 1, axis=1),
        }
        needed = np.maximum(grouped, awaited.get(family.operation, grouped))
        done = needed.reshape(-1) + np.repeat(transfer, members)
    else:
        done = np.repeat(last + transfer, members)
    done = done + rng.normal(0.0, spec.end_scatter_ns, spec.ranks) + leave
    lowest = np.maximum(arrival, np.repeat(last, members) if family is None or family.synchronising else arrival)
    return np.asarray(np.maximum(np.rint(done).astype(np.int64), lowest + 1), np.int64)


def _covers(steps: tuple[int, int] | None, index: int) -> bool:
    return steps is None or steps[0] <= index < steps[1]


def _scatter(rng: np.random.Generator, relative: float, *shape: int) -> Floats:
    """Factors around 1 with that relative scatter, cut at three deviations."""
    if not relative:
        return np.ones(shape)
    return 1.0 + relative * np.clip(rng.normal(0.0, 1.0, shape), -3.0, 3.0)
