"""What one step launches: its operations in launch order, with nominal durations, streams and dependencies.

A `Program` is the same on every rank and for every step of one kind and batch size. Time enters only in `timeline`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tracelens.simulate.names import ALL_GATHERS, Family, Vocabulary, family, vocabulary
from tracelens.simulate.spec import CaptureSpec, ExtraKernel, Late, Stall, Stretch

MAIN_STREAM, COPY_STREAM, SIDE_STREAM = 7, 13, 20
KERNEL, MEMCPY, MEMSET = 0, 1, 2
TP_GROUP, ALL_GROUP = 0, 1

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Op:
    """One operation of a program.

    Attributes:
        name: demangled kernel name, or the copy's direction.
        bucket: the simulator's own word for what it does.
        duration_ns: on an undisturbed GPU; of a collective, its transfer.
        kind: KERNEL, MEMCPY or MEMSET.
        stream: stream id.
        gap_ns: distance from the operation before it on its stream.
        after: index of an operation of another stream that must have ended; -1 for none.
        segment: which launch unit it belongs to: `eager`, or the name of a graph.
        group: TP_GROUP or ALL_GROUP for a collective, else -1.
        family: the collective's family; None otherwise.
        follow_up: second kernel of the collective before it.
        owner: index of the fault that put it there (present on that fault's ranks only); -1 for none.
        bytes: of a copy; of a collective, its message size.
        copy_kind: of a copy.
        grid: launch grid.
        block: launch block.
        layer: layer index; -1 outside the layers.
    """

    name: str
    bucket: str
    duration_ns: float
    kind: int = KERNEL
    stream: int = MAIN_STREAM
    gap_ns: float = 0.0
    after: int = -1
    segment: str = "eager"
    group: int = -1
    family: Family | None = None
    follow_up: bool = False
    owner: int = -1
    bytes: int = 0
    copy_kind: int = 0
    grid: tuple[int, int, int] = (132, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    layer: int = -1


@dataclass(frozen=True)
class LaunchPlan:
    """One API call of a program: the operations [first, last) that it starts, and its nominal host costs."""

    api: str
    first: int
    last: int
    graph: int
    cost_ns: float
    call_ns: float
    latency_ns: float


@dataclass(frozen=True, eq=False)
class Program:
    """One kind of step, ready to be timed.

    Attributes:
        key: kind, batch and tokens.
        phase: prefill, decode or mixed.
        rung: the batch as a label, `bs=8`; tokens to the next power of two for prefill and mixed.
        ops: operations in launch order.
        launches: API calls in order.
        blocks: [first, last) index ranges that can be timed at once: main-stream runs without a collective, a
            wait for another stream or a possible host stall except at their first operation.
        read_back: index of the device-to-host copy that the host waits for.
        model_launch: index of the last launch of the model itself; sampling and read-back come after.
        stall_points: per fault index, the operations that its stalls delay.
        range_text: the engine's range of this step; `{i}` is the iteration.
        tokens_out: tokens that the step yields.
        root: operations that their launch call itself makes wait: the first of each stream in it.
    """

    key: tuple[str, int, int]
    phase: str
    rung: str
    ops: tuple[Op, ...]
    launches: tuple[LaunchPlan, ...]
    blocks: tuple[tuple[int, int], ...]
    read_back: int
    model_launch: int
    stall_points: dict[int, tuple[int, ...]]
    range_text: str
    tokens_out: int
    duration: Floats
    gap: Floats
    kind: Ints
    stream: Ints
    group: Ints
    after: Ints
    owner: Ints
    launch: Ints
    root: Bools
    compute: Bools
    collective: Ints
    graph: Ints
    graphs: tuple[int, ...] = field(default=())

    @property
    def collective_ops(self) -> list[int]:
        """Indices of the collectives' first kernels, in order."""
        return [i for i, op in enumerate(self.ops) if op.group >= 0]


class _Builder:
    """Collects the operations of one step."""

    def __init__(self, spec: CaptureSpec, stretch: Stretch) -> None:
        self.spec = spec
        self.stretch = stretch
        self.ops: list[Op] = []
        self.segment = "eager"
        self.layer = -1
        self.words: Vocabulary = vocabulary(spec.engine, spec.dtype, spec.gemm_names)
        self.prefill = stretch.kind in ("prefill", "mixed")
        self.tokens = stretch.tokens if self.prefill else stretch.batch * (1 + spec.speculative)
        self.element_bytes = 1 if spec.dtype == "fp8" else 2
        self.seen = [0] * len(spec.faults)
        self.late_kernels = [
            (index, fault)
            for index, fault in enumerate(spec.faults)
            if isinstance(fault, Late) and fault.how == "kernel"
        ]

    def add(self, op: Op) -> int:
        self.ops.append(replace(op, segment=self.segment, layer=self.layer))
        return len(self.ops) - 1

    def kernel(
        self,
        name: str,
        bucket: str,
        duration_ns: float,
        *,
        stream: int = MAIN_STREAM,
        after: int = -1,
        grid: tuple[int, int, int] | None = None,
    ) -> int:
        shape = grid or (max(1, min(1024, self.tokens * 4)), 1, 1)
        return self.add(Op(name, bucket, duration_ns, stream=stream, after=after, grid=shape))

    def small(self, elements_per_token: int) -> float:
        """Duration of an element-wise kernel over `elements_per_token` columns."""
        moved = 4.0 * self.tokens * elements_per_token
        return 1_400.0 + moved / (self.spec.hbm_tb_s * 1e3)

    def gemm(self, which: str, rows: int, columns: int, *, bucket: str = "gemm", name: str | None = None) -> int:
        """A GEMM of `tokens x rows` by `rows x columns`, this rank's share given."""
        if self.spec.dtype == "fp8" and bucket == "gemm" and which != "logits":
            self.kernel(self.words.quantize, "quantize", self.small(rows))
        weights = rows * columns * (2 if which == "logits" else self.element_bytes)
        bytes_ns = weights / (self.spec.hbm_tb_s * 1e3)
        flops_ns = 2.0 * self.tokens * rows * columns / (self.spec.tflops * 1e3)
        names = self.words.prefill_gemms if self.prefill else self.words.gemms
        # one tile of 64 columns by 8 tokens per block: the grid tells batch sizes apart
        grid = (max(1, columns // 64), (self.tokens + 7) // 8, 1)
        return self.kernel(name or names[which], bucket, 1_200.0 + max(bytes_ns, flops_ns), grid=grid)

    def collective(
        self, name: str, message_bytes: int, *, group: int = TP_GROUP, stream: int = MAIN_STREAM, after: int = -1
    ) -> int:
        """A collective of this family; nothing at all among one rank."""
        spec = self.spec
        members = spec.tp if group == TP_GROUP else spec.ranks
        if members < 2:
            return -1
        kind = family(name, members, spec.engine)
        for index, fault in self.late_kernels:
            if fault.operation in (None, kind.operation):
                if self.seen[index] % fault.every == 0:
                    self.add(
                        Op(self.words.spin, "spin", float(fault.late_ns), stream=stream, owner=index, grid=(1, 1, 1))
                    )
                self.seen[index] += 1
        transfer = float(kind.transfer_ns)
        if spec.transfer_ns is not None and kind.operation == "all_reduce":
            transfer = float(spec.transfer_ns)
        if spec.link_gb_s:
            transfer += 2 * (members - 1) / members * message_bytes / spec.link_gb_s
        # NCCL runs a fixed number of channels, the engines' own kernels as many blocks as the message needs
        blocks = 24 if kind.nccl else max(1, min(36, message_bytes // 8192))
        index = self.add(
            Op(
                kind.name,
                "collective",
                transfer,
                stream=stream,
                after=after,
                group=group,
                family=kind,
                bytes=message_bytes,
                grid=(blocks, 1, 1),
                block=(512, 1, 1),
            )
        )
        if kind.follow_up:
            self.add(Op(kind.follow_up, "collective", 2_300.0, stream=stream, follow_up=True, grid=(64, 1, 1)))
        return index

    def all_reduce(self, *, stream: int = MAIN_STREAM, after: int = -1) -> tuple[int, bool]:
        """The layer's all-reduce; its index, and whether it also did the norm."""
        spec = self.spec
        size = self.tokens * spec.width * 2
        if spec.sequence_parallel:
            self.collective("reduce_scatter_nccl", size // spec.tp, stream=stream, after=after)
            return self.collective("all_gather_nccl", size // spec.tp, stream=stream), False
        large = spec.switch_batch > 0 and self.tokens >= spec.switch_batch
        name = spec.all_reduce_large if large else spec.all_reduce
        index = self.collective(name, size, stream=stream, after=after)
        return index, index >= 0 and self.ops[index].family is not None and family(name, 2, spec.engine).fused

    def copy(self, direction: str, size: int, *, stream: int = MAIN_STREAM) -> int:
        kind = {"H2D": 1, "D2H": 2}[direction]
        return self.add(
            Op(direction, "copy", 1_100.0 + size / 25.0, kind=MEMCPY, stream=stream, bytes=size, copy_kind=kind)
        )

    def step(self) -> None:
        """All operations of the step, in launch order."""
        spec = self.spec
        on_copy_stream = spec.input_stream == "copy"
        source = self.copy("H2D", 8 * self.tokens, stream=COPY_STREAM if on_copy_stream else MAIN_STREAM)
        if spec.broadcasts:
            self.collective("broadcast_nccl", 8 * self.tokens)
        if spec.speculative and self.stretch.kind == "speculative":
            tokens, self.tokens = self.tokens, self.stretch.batch
            for draft in range(spec.speculative):
                self.segment = f"draft{draft}"
                self.forward(spec.draft_layers, source if on_copy_stream and draft == 0 else -1)
                self.segment = "eager"
                self.kernel(self.words.sampling[-1], "sampling", self.small(1024))
            self.tokens = tokens
            source = -1
        self.segment = "model"
        self.forward(spec.layers, source if on_copy_stream else -1)
        self.segment = "eager"
        self.add(Op("memset", "memset", 1_200.0, kind=MEMSET, bytes=4 * self.stretch.batch))
        for name in self.words.sampling:
            self.kernel(name, "sampling", 3_000.0 + 0.5 * self.stretch.batch)
        if spec.speculative and self.stretch.kind == "speculative":
            self.kernel("rejection_greedy_sample_kernel", "sampling", 2_000.0)
        self.copy("D2H", 8 * self.stretch.batch)

    def forward(self, layers: int, source: int) -> None:
        """One pass of a model with so many layers."""
        spec, words, tp = self.spec, self.words, self.spec.tp
        self.layer = -1
        self.kernel(words.embedding, "embedding", self.small(spec.width), after=source)
        normed = False
        extra = _spread(spec, layers)
        for layer in range(layers):
            self.layer = layer
            if not normed:
                self.kernel(words.norm if layer == 0 else words.fused_norm, "norm", self.small(spec.width))
            self.gemm("qkv", spec.width, (spec.width + spec.kv_width) // tp)
            self.kernel(words.rope, "rope", self.small(spec.width // tp))
            self.kernel(words.kv_write, "kv_write", self.small(spec.kv_width // tp))
            self.attention()
            last = self.gemm("o", spec.width // tp, spec.width)
            normed = self._after_attention(last)
            if not normed:
                self.kernel(words.fused_norm, "norm", self.small(spec.width))
            if spec.moe:
                self._experts()
            else:
                self._mlp()
            if not (spec.moe and spec.ep):
                normed = self.all_reduce()[1]
            else:
                normed = False
            for kernel in extra[layer]:
                self.kernel(kernel.name, kernel.bucket, float(kernel.duration_ns))
        self.layer = -1
        if not normed:
            self.kernel(words.fused_norm, "norm", self.small(spec.width))
        rows = self.tokens
        self.tokens = self.stretch.batch
        self.gemm("logits", spec.width, spec.vocab // tp)
        self.collective(ALL_GATHERS[spec.all_gather], self.tokens * spec.vocab // tp * 2)
        self.tokens = rows

    def attention(self) -> None:
        words = self.words
        name = words.prefill_attention if self.prefill else words.attention
        work = 4_500.0 + 12.0 * self.tokens
        if self.prefill:
            work = 6_000.0 + self.tokens**2 * self.spec.width / self.spec.tp / (self.spec.tflops * 0.5e3)
        self.kernel(name, "attention", work)

    def _after_attention(self, last: int) -> bool:
        spec = self.spec
        if spec.side_stream != "collective" or spec.tp < 2:
            return self.all_reduce()[1]
        index, normed = self.all_reduce(stream=SIDE_STREAM, after=last)
        self.kernel(self.words.elementwise, "elementwise", 0.6 * self.ops[index].duration_ns)
        # the main stream goes on once the reduced hidden states are there
        self.kernel(self.words.elementwise, "elementwise", self.small(spec.width), after=len(self.ops) - 2)
        return normed

    def _mlp(self) -> None:
        spec, words, tp = self.spec, self.words, self.spec.tp
        fork = len(self.ops) - 1
        if spec.side_stream == "compute":
            side = self.kernel(words.moe_gemm, "gemm", 9_000.0, stream=SIDE_STREAM, after=fork)
            self.gemm("gate_up", spec.width, 2 * spec.ffn // tp)
            self.kernel(words.activation, "activation", self.small(2 * spec.ffn // tp), after=side)
        else:
            self.gemm("gate_up", spec.width, 2 * spec.ffn // tp)
            self.kernel(words.activation, "activation", self.small(2 * spec.ffn // tp))
        self.gemm("down", spec.ffn // tp, spec.width)

    def _experts(self) -> None:
        spec, words = self.spec, self.words
        self.kernel(words.routing, "moe_routing", self.small(256))
        if spec.ep:
            self.collective(f"dispatch_{spec.ep}", self.tokens * spec.width, group=ALL_GROUP)
        shards = spec.ranks if spec.ep else spec.tp
        self.gemm("gate_up", spec.width, 8 * spec.ffn // shards, bucket="moe", name=words.moe_gemm)
        self.kernel(words.activation, "activation", self.small(2 * spec.ffn // shards))
        self.gemm("down", 4 * spec.ffn // shards, spec.width, bucket="moe", name=words.moe_gemm)
        if spec.ep:
            self.collective(f"combine_{spec.ep}", 2 * self.tokens * spec.width, group=ALL_GROUP)


def _spread(spec: CaptureSpec, layers: int) -> list[list[ExtraKernel]]:
    spread: list[list[ExtraKernel]] = [[] for _ in range(layers)]
    for kernel in spec.extra_kernels:
        for call in range(kernel.per_step):
            spread[call * layers // kernel.per_step].append(kernel)
    return spread


def build_program(spec: CaptureSpec, stretch: Stretch, number: int, scale: float = 1.0) -> Program:
    """The program of one kind of step.

    Args:
        spec: the capture.
        stretch: kind, batch and tokens of the step.
        number: distinguishes the programs of a capture; graph ids derive from it.
        scale: of all compute durations.
    """
    builder = _Builder(spec, stretch)
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
