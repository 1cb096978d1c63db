"""Captures that play out problems which engineers have reported, by name.

A scenario is one or more captures: most are one, called `run`; comparisons are `before` and `after`; a scaling sweep
is `tp1`, `tp2`, ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tracelens.errors import UsageError
from tracelens.simulate.faults import Costlier, Late, Rotating, Slow, Stall
from tracelens.simulate.spec import CaptureSpec

LLAMA_3_8B_STREAMED_NS = 4_481_000
"""15.01 GB of weights at 3.35 TB/s: the decode step of one GPU."""


@dataclass(frozen=True)
class Scenario:
    """A named set of captures.

    Attributes:
        name: as `scenario` takes it.
        says: what an analysis should find, in a sentence.
        captures: label -> spec, made anew for each call.
    """

    name: str
    says: str
    captures: Callable[[], dict[str, CaptureSpec]]


def _one(spec: CaptureSpec) -> Callable[[], dict[str, CaptureSpec]]:
    return lambda: {"run": spec}


TP8 = CaptureSpec(tp=8, layers=16, steps=60, gpu_offset_max_ns=12_000)

LLAMA_70B = CaptureSpec(
    engine="sglang",
    dtype="fp8",
    tp=8,
    layers=80,
    width=8192,
    ffn=28672,
    kv_width=2048,
    batch=1,
    steps=60,
    step_compute_ns=4_965_000,
    all_reduce="custom_2stage",
    transfer_ns=12_000,
    gpu_offset_max_ns=12_000,
)
"""A 70 B model at TP8: about 7.8 ms a step, 160 all-reduces and one all-gather in it."""

MOE_EAGER = CaptureSpec(
    tp=8,
    moe=True,
    layers=48,
    width=8192,
    ffn=2048,
    steps=24,
    launch="eager",
    host_ahead=False,
    api_ns=1_500,
    host_cost_ns=800,
)


def _regression() -> dict[str, CaptureSpec]:
    after = replace(LLAMA_70B, seed=1, all_gather="multimem", faults=(Costlier("all_gather", 256_000),))
    return {"before": LLAMA_70B, "after": after}


def _host_cost() -> dict[str, CaptureSpec]:
    faults = (Stall((0,), 176_000, per_step=48), Slow(tuple(range(8)), 0.54, bucket="moe"))
    return {"before": MOE_EAGER, "after": replace(MOE_EAGER, seed=1, faults=faults)}


def _scaling() -> dict[str, CaptureSpec]:
    runs = {}
    for tp in (1, 2, 4, 8):
        runs[f"tp{tp}"] = CaptureSpec(
            tp=tp,
            layers=32,
            batch=1,
            steps=40,
            step_compute_ns=LLAMA_3_8B_STREAMED_NS // tp,
            transfer_ns=5_000,
            graph_gap_ns=0,
            bubble_ns=5_000,
            # 300 us of waiting per step at TP8 only: one rank reaches each of its 64 all-reduces 4.7 us late
            faults=(Late((5,), 4_700, operation="all_reduce"),) if tp == 8 else (),
        )
    return runs


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("balanced", "nobody is late: the collectives' time is transfer", _one(TP8)),
        Scenario(
            "slow-gpu",
            "rank 5 computes 6 % more slowly in every kernel: clock, power or heat",
            _one(replace(TP8, faults=(Slow((5,), 1.06),))),
        ),
        Scenario(
            "slow-kernel",
            "rank 3 is slow in its MLP GEMMs alone: imbalance",
            _one(replace(TP8, faults=(Slow((3,), 1.25, kernel="nvjet_tst_128x8"),))),
        ),
        Scenario(
            "late-host",
            "rank 0's host stalls 48 times a step for 176 us; the other GPUs look busy",
            _one(replace(TP8, launch="eager", steps=30, faults=(Stall((0,), 176_000, per_step=48),))),
        ),
        Scenario(
            "late-group",
            "ranks 4-7 arrive 50 us late together: a NUMA node or a PCIe switch",
            _one(replace(TP8, faults=(Late((4, 5, 6, 7), 50_000),))),
        ),
        Scenario(
            "rotating",
            "another rank is late in each step: no persistent straggler",
            _one(replace(TP8, steps=120, faults=(Rotating(20_000),))),
        ),
        Scenario(
            "apart",
            "one file per rank, clocks up to 12 ms apart and drifting, heads cut: still comparable",
            _one(
                replace(
                    TP8,
                    session_spread_ns=150_000_000,
                    utc_error_max_ns=6_000_000,
                    gpu_drift_max_ppm=30.0,
                    lost_head=(0, 310, 41, 555, 202, 130, 9, 77),
                    faults=(Slow((2,), 1.05),),
                )
            ),
        ),
        Scenario(
            "phases",
            "prefill, mixed and decode steps of three batch sizes: never averaged together",
            _one(replace(TP8, rungs=(8, 16, 32), prefill_first=True, mixed_every=14, mixed_factor=6.0)),
        ),
        Scenario(
            "requests",
            "five requests with 80 ms of client idle between them",
            _one(replace(TP8, requests=5, steps=100, layers=4)),
        ),
        Scenario(
            "speculative",
            "draft and verify passes: one cycle is one step",
            _one(replace(TP8, speculative=3, draft_layers=2)),
        ),
        Scenario(
            "switch",
            "the all-reduce implementation changes at batch 32",
            _one(replace(TP8, rungs=(8, 31, 32, 64), all_reduce="custom_1stage", switch_batch=32)),
        ),
        Scenario(
            "graph-level",
            "captured without --cuda-graph-trace=node: what runs inside replays is invisible",
            _one(replace(TP8, graph_capture="graph")),
        ),
        Scenario(
            "replicas",
            "TP4 x DP2: two communicators, the second with a straggler",
            _one(replace(TP8, tp=4, dp=2, faults=(Slow((6,), 1.08),))),
        ),
        Scenario(
            "regression",
            "a 70 B model at TP8 gets 3.2 % slower: +249 us in its one all-gather a step, not in 160 all-reduces",
            _regression,
        ),
        Scenario(
            "host-cost",
            "a MoE kernel gets 46 % faster, but its launches stall rank 0's host 48 times a step for 176 us",
            _host_cost,
        ),
        Scenario(
            "scaling",
            "Llama-3-8B on 1, 2, 4, 8 GPUs at 5 us per all-reduce; at 8 one rank makes the others wait 300 us a step",
            _scaling,
        ),
    )
}


def scenario(name: str) -> dict[str, CaptureSpec]:
    """The captures of a scenario.

    Raises:
        UsageError: no such scenario.
    """
    if name not in SCENARIOS:
        raise UsageError(f"no scenario {name!r}", f"one of {', '.join(SCENARIOS)}")
    return SCENARIOS[name].captures()
