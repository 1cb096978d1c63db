"""What one step launches: its operations in launch order, with nominal durations, streams and dependencies.

A `Program` is the same on every rank and for every step of one kind and batch size. Time enters only in `timeline`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from tracelens.simulate.faults import Stall
from tracelens.simulate.layers import StepBuilder
from tracelens.simulate.ops import KERNEL, MAIN_STREAM, MEMCPY, MEMSET, Ints, LaunchPlan, Op, Program
from tracelens.simulate.spec import CaptureSpec, Stretch


def build_program(spec: CaptureSpec, stretch: Stretch, number: int, scale: float = 1.0) -> Program:
    """The program of one kind of step.

    Args:
        spec: the capture.
        stretch: kind, batch and tokens of the step.
        number: distinguishes the programs of a capture; graph ids derive from it.
        scale: of all compute durations.
    """
    builder = StepBuilder(spec, stretch)
    builder.step()
    ops = [_priced(spec, op, scale) for op in builder.ops]
    launches = _launches(spec, stretch, ops, number)
    launch = np.zeros(len(ops), np.int64)
    roots = np.zeros(len(ops), bool)
    graph = np.full(len(ops), -1, np.int64)
    for index, plan in enumerate(launches):
        launch[plan.first : plan.last] = index
        graph[plan.first : plan.last] = plan.graph
        seen: set[int] = set()
        for i in range(plan.first, plan.last):
            roots[i] = ops[i].stream not in seen
            seen.add(ops[i].stream)
    gap = np.array([_gap(spec, ops, i, graph) for i in range(len(ops))])
    collective, count = np.full(len(ops), -1, np.int64), -1
    for i, op in enumerate(ops):
        count += op.group >= 0
        if op.group >= 0 or op.follow_up:
            collective[i] = count
    stalls = {
        index: _stall_points(ops, launches, fault)
        for index, fault in enumerate(spec.faults)
        if isinstance(fault, Stall)
    }
    phase = {"decode": "decode", "speculative": "decode", "prefill": "prefill", "mixed": "mixed"}[stretch.kind]
    batch = stretch.batch if phase == "decode" else 1 << (max(stretch.tokens, 1) - 1).bit_length()
    is_compute = [op.kind == KERNEL and op.bucket not in ("collective", "spin") for op in ops]
    return Program(
        key=(stretch.kind, stretch.batch, stretch.tokens if phase != "decode" else 0),
        phase=phase,
        rung=f"bs={batch}",
        ops=tuple(ops),
        launches=tuple(launches),
        blocks=_blocks(ops, {i for points in stalls.values() for i in points}),
        read_back=max(i for i, op in enumerate(ops) if op.copy_kind == 2),
        model_launch=int(launch[max(i for i, op in enumerate(ops) if op.segment != "eager")]),
        stall_points=stalls,
        range_text=range_text(spec.engine, stretch),
        tokens_out=stretch.batch,
        duration=np.array([op.duration_ns for op in ops]),
        gap=gap,
        kind=np.array([op.kind for op in ops]),
        stream=np.array([op.stream for op in ops]),
        group=np.array([op.group for op in ops]),
        after=np.array([op.after for op in ops]),
        owner=np.array([op.owner for op in ops]),
        launch=launch,
        root=roots,
        compute=np.array(is_compute),
        collective=collective,
        graph=graph,
        graphs=tuple(plan.graph for plan in launches if plan.graph >= 0),
    )


def range_text(engine: str, stretch: Stretch) -> str:
    """The range that the engine opens around such a step; `{i}` stands for the iteration."""
    context = stretch.kind in ("prefill", "mixed")
    generation = 0 if stretch.kind == "prefill" else stretch.batch
    if engine == "vllm":
        requests, tokens = (1, stretch.tokens) if context else (0, 0)
        return f"execute_context_{requests}({tokens})_generation_{generation}({generation})"
    if engine == "sglang":
        if stretch.kind == "prefill":
            return f"step[EXTEND bs={stretch.batch} toks={stretch.tokens}]"
        word = "MIXED" if context else "TARGET_VERIFY" if stretch.kind == "speculative" else "DECODE"
        return f"step[{word} bs={stretch.batch}" + (f" toks={stretch.tokens}]" if context else "]")
    return f"[Executor] _forward_step {{i}}: {int(context)} ctx reqs, {generation} gen reqs"


def _priced(spec: CaptureSpec, op: Op, scale: float) -> Op:
    if op.kind != KERNEL or op.bucket in ("collective", "spin"):
        return op
    factor = 1.0 if any(op.name == extra.name for extra in spec.extra_kernels) else scale
    if op.bucket == "gemm":
        factor *= spec.gemm_factor
    return replace(op, duration_ns=op.duration_ns * factor)


def _gap(spec: CaptureSpec, ops: list[Op], index: int, graph: Ints) -> float:
    op = ops[index]
    before = next((i for i in range(index - 1, -1, -1) if ops[i].stream == op.stream), -1)
    inside = before >= 0 and graph[index] >= 0 and graph[before] == graph[index]
    gap = float(spec.graph_gap_ns if inside else spec.kernel_gap_ns)
    if spec.pdl_ns and op.bucket == "gemm" and op.stream == MAIN_STREAM and before >= 0 and ops[before].kind == KERNEL:
        return -min(float(spec.pdl_ns), ops[before].duration_ns / 2)
    if spec.dependency_gap_ns and op.bucket == "attention":
        return float(spec.dependency_gap_ns)
    return gap


def _launches(spec: CaptureSpec, stretch: Stretch, ops: list[Op], number: int) -> list[LaunchPlan]:
    eager = spec.launch == "eager" or (spec.eager_prefill and stretch.kind in ("prefill", "mixed"))
    units: list[tuple[int, int, bool]] = []
    start = 0
    while start < len(ops):
        stop = start + 1
        segment = ops[start].segment
        if segment != "eager" and not eager:
            while stop < len(ops) and ops[stop].segment == segment:
                stop += 1
            units.extend(_cut(spec, ops, start, stop))
        else:
            units.append((start, stop, False))
        start = stop
    plans, graphs = [], 0
    for first, last, is_graph in units:
        if is_graph:
            api, identity = "cudaGraphLaunch_v10000", 1 + number * 1000 + graphs
            graphs += 1
            costs = (float(spec.graph_cost_ns), float(spec.graph_api_ns), float(spec.graph_latency_ns))
        else:
            api, identity = _api(ops[first]), -1
            costs = (float(spec.host_cost_ns), float(spec.api_ns), float(spec.launch_latency_ns))
        plans.append(LaunchPlan(api, first, last, identity, *costs))
    return plans


def _cut(spec: CaptureSpec, ops: list[Op], start: int, stop: int) -> list[tuple[int, int, bool]]:
    if spec.launch == "piecewise":
        units, first = [], start
        for i in range(start, stop):
            if ops[i].bucket == "attention":
                units += [(first, i, True), (i, i + 1, False)]
                first = i + 1
        return [*units, (first, stop, True)]
    if spec.launch == "pieces" and ops[start].segment == "model":
        edges = np.linspace(start, stop, min(spec.graph_pieces, stop - start) + 1).astype(int).tolist()
        # a kernel that only some ranks have cannot open a replay on the others
        edges = [edge + 1 if edge < stop and ops[edge].owner >= 0 else edge for edge in edges]
        return [(a, b, True) for a, b in pairwise(edges)]
    return [(start, stop, True)]


def _api(op: Op) -> str:
    if op.kind == MEMCPY:
        return "cudaMemcpyAsync_v3020"
    if op.kind == MEMSET:
        return "cudaMemsetAsync_v3020"
    if op.family is not None and op.family.nccl:
        return "cudaLaunchKernelExC_v11060"
    if op.name.startswith(("nvjet", "triton", "void cutlass::device_kernel")):
        return "cuLaunchKernelEx"
    return "cudaLaunchKernel_v7000"


def _stall_points(ops: list[Op], launches: list[LaunchPlan], fault: Stall) -> tuple[int, ...]:
    places = [
        plan.first
        for plan in launches
        if ops[plan.first].kind == KERNEL
        and ops[plan.first].owner < 0
        and not ops[plan.first].follow_up
        and ops[plan.first].stream == MAIN_STREAM
        and (fault.before is None or any(fault.before in op.name for op in ops[plan.first : plan.last]))
    ]
    # a stall before a collective would be felt by the others at once: prefer compute where there is a choice
    compute = [place for place in places if ops[place].group < 0]
    places = compute if len(compute) >= fault.per_step else places
    if len(places) <= fault.per_step:
        return tuple(places)
    chosen = np.linspace(0, len(places) - 1, fault.per_step).round().astype(int)
    return tuple(places[i] for i in chosen)


def _blocks(ops: list[Op], stalls: set[int]) -> tuple[tuple[int, int], ...]:
    blocks: list[tuple[int, int]] = []
    start = 0
    for i in range(1, len(ops) + 1):
        alone = i < len(ops) and (ops[i].group >= 0 or ops[i].stream != MAIN_STREAM)
        if i == len(ops) or alone or i in stalls or ops[i].after >= 0 or _alone(ops[i - 1]):
            blocks.append((start, i))
            start = i
    return tuple(blocks)


def _alone(op: Op) -> bool:
    return op.group >= 0 or op.stream != MAIN_STREAM
