"""The model: which operations a step runs, layer by layer, with their nominal durations."""

from __future__ import annotations

from dataclasses import replace

from tracelens.simulate.families import ALL_GATHERS, family
from tracelens.simulate.faults import ExtraKernel, Late
from tracelens.simulate.names import Vocabulary, vocabulary
from tracelens.simulate.ops import ALL_GROUP, COPY_STREAM, MAIN_STREAM, MEMCPY, MEMSET, SIDE_STREAM, TP_GROUP, Op
from tracelens.simulate.spec import CaptureSpec, Stretch


class StepBuilder:
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
        """Append an operation to the current launch unit and layer; its index."""
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
        """Append a compute kernel; its index."""
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
        """Append a copy, `H2D` or `D2H`; its index."""
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
        """Append the layer's attention: paged over the context in decode, quadratic in a prefill."""
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
