"""What a simulated capture is made of: one frozen record with a default for everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from tracelens.errors import UsageError
from tracelens.simulate.families import ALL_GATHERS, ALL_REDUCES, ALL_TO_ALLS
from tracelens.simulate.faults import ClockJump, ExtraKernel, Fault, Late, LostCall, LostRun, Rotating
from tracelens.simulate.names import ENGINES, GEMM_NAMES

PerRank = int | float | tuple[int | float, ...]


@dataclass(frozen=True)
class Stretch:
    """A run of steps of one kind.

    Attributes:
        kind: decode, prefill, mixed or speculative (a draft + verify cycle).
        steps: how many.
        batch: requests of a decode step.
        tokens: prompt tokens of a prefill or mixed step.
        idle_after_ns: the client sends nothing for that long after the last one.
    """

    kind: str = "decode"
    steps: int = 1
    batch: int = 8
    tokens: int = 1024
    idle_after_ns: int = 0


@dataclass(frozen=True)
class CaptureSpec:
    """A synthetic capture. The defaults are a small, balanced tensor-parallel decode on 4 GPUs.

    Everything random comes from `seed`; one spec gives one capture, to the byte.

    Job:
        seed: of the random generator.
        engine: vllm, sglang or trtllm: kernel names, ranges, process titles.
        dtype: bf16 or fp8.
        tp, dp: tensor-parallel size and number of replicas; there are tp x dp ranks, rank = dp index x tp + tp index.
        moe: the MLP is a mixture of experts; with `ep` its all-to-alls span all ranks and couple the replicas.
        ep: expert parallelism over all ranks; "" for none, else deep_ep, deep_ep_low_latency or trtllm.
        layers, width, ffn, kv_width, vocab: model shape (kv_width: key plus value columns of the QKV GEMM).
        hbm_tb_s, tflops: what a GPU moves and computes; they set GEMM durations.
        step_compute_ns: scales compute kernels so that those of a decode step sum to this; None keeps the model's.
    Schedule:
        steps: decode steps (per request).
        batch: requests per decode step.
        rungs: batch sizes taken in turn instead of `batch`; each has its own CUDA graph.
        prefill_every, mixed_every: one prefill (mixed) step after so many decode steps; 0 for none.
        prefill_first: a prefill opens each request.
        prefill_tokens: tokens of a prefill or mixed step.
        mixed_factor: None prices a mixed step by its tokens, a number makes it that many decode steps long.
        requests, request_idle_ns: the whole is repeated so often, with that client idle between.
        speculative: draft tokens per cycle; 0 decodes plainly.
        draft_layers: layers of the draft model.
        warm_up_steps, warm_up_factor: leading steps whose compute is slower.
        schedule: explicit stretches; overrides all above.
        growth_ns: attention grows by so much per step and layer.
    Launching:
        launch: graph (one replay a step), piecewise (graphs between eager attentions: layers + 1 of them),
            pieces (`graph_pieces` replays a step) or eager.
        graph_pieces: for `pieces`.
        eager_prefill: prefill and mixed steps are eager even with graphs.
        graph_capture: node, or graph: the capture then holds GRAPH_TRACE rows instead of the replays' kernels.
        host_cost_ns, api_ns: host work before an eager call, and the call.
        graph_cost_ns, graph_api_ns: the same for a graph replay.
        launch_latency_ns, graph_latency_ns: call begin to start on an idle GPU.
        latency_jitter, host_jitter: relative scatter of those.
        host_ahead: steps are launched before the one before has been read back.
        bubble_ns: scheduler time between the read-back and the next step's first launch.
        sync_ns: end of the read-back copy to the host's return.
        start_jitter_ns: scatter of the ranks' hosts at a step's start.
        host_factor: per rank, multiplies that rank's host costs.
    Device:
        kernel_gap_ns, graph_gap_ns, gap_jitter: distance of queued kernels, of graph nodes, its relative scatter.
        kernel_noise: relative scatter of every compute kernel.
        step_noise, step_rho: relative scatter common to a step, and its correlation from step to step.
        pdl_ns: each GEMM starts so much before the kernel before it ends (programmatic dependent launch).
        side_stream: "" none; compute: part of the MLP runs beside it on a second stream; collective: the first
            all-reduce of a layer overlaps the gate-up GEMM's first part on a second stream.
        dependency_gap_ns: an event wait on the main stream, once per layer, with so much idle; 0 for none.
        input_stream: main or copy: where the step's input copy runs.
        extra_kernels: more kernels per step.
        gemm_factor, gemm_names: GEMM durations times this, and the library whose names they bear.
    Collectives:
        all_reduce: a key of `FAMILIES` with operation all_reduce; send_recv_nccl exchanges with neighbours instead.
        switch_batch, all_reduce_large: from this batch on (0 never) the other family serves.
        all_gather: nccl, nccl_symmetric, multimem or send_recv, for the logits.
        sequence_parallel: reduce-scatter and all-gather in place of each all-reduce.
        broadcasts: one NCCL broadcast a step (not synchronising).
        transfer_ns: last arrival to end of an all-reduce; None is the family's own.
        transfer_noise: its relative scatter, common to the members.
        end_scatter_ns: scatter of the members' ends.
        link_gb_s: adds 2 (p-1)/p bytes / this to a transfer; 0 adds nothing.
    Ranges:
        nvtx: engine (its own grammar) or none.
        nvtx_type: 59 push-pop or 60 start-end.
        nvtx_registered: texts by id instead of inline.
        nvtx_close: after (the read-back), early (right after the last launch) or model (after the model's last
            launch: sampling and read-back are launched outside any range).
        nvtx_inner: more ranges around each launch, nested, for volume.
        nccl_ranges: host-side NCCL ranges of eager NCCL calls and of communicator creation.
        nccl_payload: json, binary, both or none.
    Clocks (PerRank: one number for all, or one each):
        gpu_offset_ns: GPU clock minus true time at mid-capture; None draws within +- gpu_offset_max_ns.
        gpu_drift_ppm: None draws within +- gpu_drift_max_ppm.
        gpu_jumps: clock jumps.
        session_spread_ns: sessions of separate files begin within this much of each other.
        utc_error_ns: recorded minus true session start, per file; None draws within +- utc_error_max_ns.
        ranks_per_host: ranks on one machine (one boot, one host name).
        start_ns: true time of the first launch after the first session began.
    Losses:
        lost_head, lost_tail: GPU rows missing at the start and end (PerRank).
        lost_head_steps, lost_tail_steps: whole steps missing (PerRank).
        lost_runs, lost_calls: holes.
        lost_launches: the first so many API calls missing (PerRank).
    Identity:
        titles: worker (the engine's process titles), none.
        rank_env: RANK, LOCAL_RANK and WORLD_SIZE in the environment table.
        one_process: one process drives all GPUs of a file.
        visible_devices: each process sees its GPU as device 0.
        side_contexts: each rank also touches device 0 with a few small kernels.
        foreign_process: an unrelated process runs on GPU 0.
        gpu_name: for TARGET_INFO_GPU.
        secrets: texts planted in environment, command lines, user and paths.
        bad_rows: rows with impossible times per rank.
    Faults:
        faults: any of `Late`, `Rotating`, `Slow`, `Stall`, `Leave`, `Costlier`.
    Volume:
        repeat: the simulated block is written so many times in a row (truth covers the first).
    """

    seed: int = 0
    engine: str = "vllm"
    dtype: str = "bf16"
    tp: int = 4
    dp: int = 1
    moe: bool = False
    ep: str = ""
    layers: int = 4
    width: int = 4096
    ffn: int = 14336
    kv_width: int = 2048
    vocab: int = 128256
    hbm_tb_s: float = 3.35
    tflops: float = 600.0
    step_compute_ns: int | None = None

    steps: int = 40
    batch: int = 8
    rungs: tuple[int, ...] = ()
    prefill_every: int = 0
    mixed_every: int = 0
    prefill_first: bool = False
    prefill_tokens: int = 1024
    mixed_factor: float | None = None
    requests: int = 1
    request_idle_ns: int = 80_000_000
    speculative: int = 0
    draft_layers: int = 1
    warm_up_steps: int = 0
    warm_up_factor: float = 2.0
    schedule: tuple[Stretch, ...] = ()
    growth_ns: float = 0.0

    launch: str = "graph"
    graph_pieces: int = 6
    eager_prefill: bool = True
    graph_capture: str = "node"
    host_cost_ns: int = 1_500
    api_ns: int = 2_500
    graph_cost_ns: int = 8_000
    graph_api_ns: int = 30_000
    launch_latency_ns: int = 6_000
    graph_latency_ns: int = 12_000
    latency_jitter: float = 0.05
    host_jitter: float = 0.05
    host_ahead: bool = False
    bubble_ns: int = 40_000
    sync_ns: int = 5_000
    start_jitter_ns: int = 2_000
    host_factor: PerRank = 1.0

    kernel_gap_ns: int = 1_000
    graph_gap_ns: int = 550
    gap_jitter: float = 0.1
    kernel_noise: float = 0.005
    step_noise: float = 0.0
    step_rho: float = 0.0
    pdl_ns: int = 0
    side_stream: str = ""
    dependency_gap_ns: int = 0
    input_stream: str = "main"
    extra_kernels: tuple[ExtraKernel, ...] = ()
    gemm_factor: float = 1.0
    gemm_names: str | None = None

    all_reduce: str = "custom_2stage"
    switch_batch: int = 0
    all_reduce_large: str = "nccl"
    all_gather: str = "nccl"
    sequence_parallel: bool = False
    broadcasts: bool = False
    transfer_ns: int | None = None
    transfer_noise: float = 0.01
    end_scatter_ns: int = 50
    link_gb_s: float = 0.0

    nvtx: str = "engine"
    nvtx_type: int = 59
    nvtx_registered: bool = False
    nvtx_close: str = "after"
    nvtx_inner: int = 0
    nccl_ranges: bool = True
    nccl_payload: str = "none"

    gpu_offset_ns: PerRank | None = None
    gpu_offset_max_ns: int = 0
    gpu_drift_ppm: PerRank | None = None
    gpu_drift_max_ppm: float = 0.0
    gpu_jumps: tuple[ClockJump, ...] = ()
    session_spread_ns: int = 0
    utc_error_ns: PerRank | None = None
    utc_error_max_ns: int = 0
    ranks_per_host: int = 8
    start_ns: int = 1_000_000_000

    lost_head: PerRank = 0
    lost_tail: PerRank = 0
    lost_head_steps: PerRank = 0
    lost_tail_steps: PerRank = 0
    lost_runs: tuple[LostRun, ...] = ()
    lost_calls: tuple[LostCall, ...] = ()
    lost_launches: PerRank = 0

    titles: str = "worker"
    rank_env: bool = False
    one_process: bool = False
    visible_devices: bool = False
    side_contexts: bool = False
    foreign_process: bool = False
    gpu_name: str = "NVIDIA H100 80GB HBM3"
    secrets: tuple[str, ...] = ()
    bad_rows: int = 0

    faults: tuple[Fault, ...] = ()

    repeat: int = 1

    def __post_init__(self) -> None:
        """Refuse values that no capture can have.

        Raises:
            UsageError: says which field, what it holds and what it may hold.
        """
        choices: list[tuple[str, str, Sequence[str]]] = [
            ("engine", self.engine, ENGINES),
            ("dtype", self.dtype, ("bf16", "fp8")),
            ("ep", self.ep, ("", *ALL_TO_ALLS)),
            ("launch", self.launch, ("graph", "piecewise", "pieces", "eager")),
            ("graph_capture", self.graph_capture, ("node", "graph")),
            ("side_stream", self.side_stream, ("", "compute", "collective")),
            ("input_stream", self.input_stream, ("main", "copy")),
            ("all_reduce", self.all_reduce, (*ALL_REDUCES, "send_recv_nccl")),
            ("all_reduce_large", self.all_reduce_large, ALL_REDUCES),
            ("all_gather", self.all_gather, tuple(ALL_GATHERS)),
            ("nvtx", self.nvtx, ("engine", "none")),
            ("nvtx_close", self.nvtx_close, ("after", "early", "model")),
            ("nccl_payload", self.nccl_payload, ("json", "binary", "both", "none")),
            ("titles", self.titles, ("worker", "none")),
            ("gemm_names", self.gemm_names or GEMM_NAMES[0], GEMM_NAMES),
        ]
        for name, value, allowed in choices:
            if value not in allowed:
                raise UsageError(f"{name} is {value!r}", f"one of {', '.join(repr(word) for word in allowed)}")
        if not 1 <= self.ranks <= 512:
            raise UsageError(f"tp x dp is {self.ranks} ranks", "1 to 512")
        if self.layers < 1 or self.steps < 1 or self.batch < 1 or self.repeat < 1 or self.requests < 1:
            raise UsageError("layers, steps, batch, requests and repeat must be at least 1")
        if self.nvtx_type not in (59, 60):
            raise UsageError(f"nvtx_type is {self.nvtx_type}", "59 or 60")
        if self.one_process and self.visible_devices:
            raise UsageError("one process cannot see every GPU as device 0")
        for fault in self.faults:
            ranks = getattr(fault, "ranks", None) or ()
            if any(not 0 <= rank < self.ranks for rank in ranks):
                raise UsageError(f"{type(fault).__name__} names ranks {ranks} of {self.ranks}")
            if isinstance(fault, (Late, Rotating)) and fault.how not in ("gap", "stretch", "kernel"):
                raise UsageError(f"how is {fault.how!r}", "One of gap, stretch, kernel.")
            if isinstance(fault, Rotating) and fault.how == "kernel":
                raise UsageError("a rotating delay cannot be a kernel", "One of gap, stretch.")
        for name in ("lost_head", "lost_tail", "lost_head_steps", "lost_tail_steps", "lost_launches", "host_factor"):
            self.per_rank(name)

    @property
    def ranks(self) -> int:
        """Number of ranks, tp x dp."""
        return self.tp * self.dp

    def per_rank(self, name: str) -> tuple[float, ...]:
        """A per-rank field as one number for each rank.

        Raises:
            UsageError: a tuple of another length.
        """
        value = getattr(self, name)
        if not isinstance(value, tuple):
            return (value,) * self.ranks
        if len(value) != self.ranks:
            raise UsageError(f"{name} has {len(value)} entries for {self.ranks} ranks")
        return value

    def stretches(self) -> list[Stretch]:
        """The steps of the capture, in order: `schedule`, or what the shorthand fields mean."""
        if self.schedule:
            return list(self.schedule)
        kind = "speculative" if self.speculative else "decode"
        plan: list[Stretch] = []
        for request in range(self.requests):
            if self.prefill_first:
                plan.append(Stretch("prefill", tokens=self.prefill_tokens, batch=self.batch))
            for step in range(self.steps):
                batch = self.rungs[step % len(self.rungs)] if self.rungs else self.batch
                plan.append(Stretch(kind, batch=batch))
                if self.prefill_every and (step + 1) % self.prefill_every == 0:
                    plan.append(Stretch("prefill", tokens=self.prefill_tokens, batch=batch))
                if self.mixed_every and (step + 1) % self.mixed_every == 0:
                    plan.append(Stretch("mixed", tokens=self.prefill_tokens, batch=batch))
            if request + 1 < self.requests:
                last = plan[-1]
                plan[-1] = Stretch(last.kind, 1, last.batch, last.tokens, self.request_idle_ns)
        return plan


FIELDS = tuple(field.name for field in fields(CaptureSpec))
"""Names of the fields of `CaptureSpec`, in order."""
