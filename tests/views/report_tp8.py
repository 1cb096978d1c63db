"""A synthetic report result: eight ranks of a decode loop with a slow rank, in the documented columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import polars as pl

from tests.views.frames_tp8 import BUCKETS, GEMM, KERNELS, REDUCE, bucket_result
from tracelens.frames import Column, Notice, Result, Schema

HOSTILE = "void evil<int>::\"</script><img src=x onerror=alert(1)>'&amp;\x1b[31m\u202e=cmd|x"


class _Any(dict[str, Schema]):
    """Schemas made from whatever frames the test gives."""


class ReportResult(Result):
    command: ClassVar[str] = "report"
    schemas: ClassVar[Mapping[str, Schema]] = {}

    def __post_init__(self) -> None:
        """Nothing to check: the frames are the test's own."""


def _schema(frame: pl.DataFrame) -> Schema:
    return Schema("one row", *(Column(name, dtype, f"the {name}") for name, dtype in frame.schema.items()))


def report_result(*, ranks: int = 8, steps: int = 400, layers: int = 16, hostile: bool = True, seed: int = 5) -> Result:
    """Decode steps of 8 ms with two prefills; rank 2 is late; one bad step."""
    random = np.random.default_rng(seed)
    base = bucket_result(ranks, kernels=True)
    kernels = base.tables["kernels"]
    if hostile:
        odd = pl.DataFrame([(0, "gemm", "x", HOSTILE, 3, 5000, 5000)], schema=KERNELS.names, orient="row")
        kernels = pl.concat([kernels, KERNELS.frame(odd)])
    step_ns = (7_764_000 + random.normal(0, 40_000, steps) + np.arange(steps) * 60_000 / steps).astype(np.int64)
    worst = steps // 3
    step_ns[worst] += 3_000_000
    phase = ["decode"] * steps
    for at in (0, steps // 2):
        phase[at], step_ns[at] = "prefill", 21_000_000
    warm = [index < 4 for index in range(steps)]
    points = pl.DataFrame(
        {
            "step": list(range(steps)),
            "phase": phase,
            "rung": ["bs=1" if name == "decode" else "bs=512" for name in phase],
            "start_ns": np.cumsum(step_ns) - step_ns,
            "step_ns": step_ns,
            "spread_ns": random.integers(1_000, 9_000, steps),
            "complete": [index != steps - 1 for index in range(steps)],
            "warm_up": warm,
        }
    )
    summary = pl.DataFrame(
        {
            "phase": ["decode", "prefill"],
            "rung": ["bs=1", "bs=512"],
            "step_count": [steps - 2, 2],
            "mean_ns": [7_801_222.5, 21e6],
            "p10_ns": [7_730_000, 21_000_000],
            "p50_ns": [7_794_123, 21_000_000],
            "p90_ns": [7_850_000, 21_000_000],
            "p99_ns": [7_905_000, 21_000_000],
            "p99_with_idle_ns": [7_905_000, None],
            "spread_p50_ns": [4_100, 5_000],
            "collective_mean_ns": [2_431_000.0, 4e6],
            "exposed_mean_ns": [2_231_000.0, 4e6],
            "wait_mean_ns": [1_500_300.0, 1e6],
            "gap_mean_ns": [640_000.0, 2e6],
            "host_late_mean_ns": [40_000.0, None],
            "worst_rank": [2, 2],
        }
    )
    split = pl.DataFrame(
        {
            "rank": list(range(ranks)),
            "wait_ns": [60_000 if rank == 2 else 1_700_000 + 9_000 * rank for rank in range(ranks)],
            "transfer_ns": [690_000] * ranks,
            "unsplit_ns": pl.Series([None] * ranks, dtype=pl.Int64),
            "hidden_ns": [200_000] * ranks,
        }
    )
    bins = min(steps, 200)
    edges = np.linspace(0, steps, bins + 1).astype(int)
    waits = pl.DataFrame(
        [
            (
                rank,
                int(edges[index]),
                int(edges[index + 1] - 1),
                int((60_000 if rank == 2 else 1_700_000) * random.uniform(0.8, 1.2)),
            )
            for rank in range(ranks)
            for index in range(bins)
        ],
        schema=["rank", "first_step", "last_step", "wait_ns"],
        orient="row",
    )
    positions = pl.DataFrame(
        [
            (
                rank,
                position,
                int((500 if rank == 2 else 26_000 + 4_000 * np.sin(position / 3)) * random.uniform(0.9, 1.1)),
            )
            for rank in range(ranks)
            for position in range(layers * 2 + 1)
        ],
        schema=["rank", "position", "wait_ns"],
        orient="row",
    )
    arrivals = pl.DataFrame(
        [
            (
                rank,
                4_000,
                *(
                    int(x)
                    for x in np.array([200, 900, 2_000, 3_600, 7_000, 30_000]) + (24_000 if rank == 2 else 300 * rank)
                ),
            )
            for rank in range(ranks)
        ],
        schema=["rank", "instance_count", "p05_ns", "p25_ns", "p50_ns", "p75_ns", "p95_ns", "max_ns"],
        orient="row",
    )
    tables: dict[str, pl.DataFrame] = {
        "findings": pl.DataFrame(
            {
                "finding": ["Rank 2 makes ranks 0-7 wait (cause: device)", "Between steps nothing runs"],
                "kind": ["waiting", "step_boundary"],
                "per_step_ns": [1_460_000, 330_000],
                "per_step_frac": [0.188, 0.042],
            }
        ),
        "exports": pl.DataFrame(
            {
                "path": ["runs/tp8.sqlite"],
                "nsys_version": ["2025.5.1"],
                "schema_version": ["3.24.14"],
                "hostname": ["secret-host"],
                "graph_trace": ["node"],
                "size_bytes": [512_000_000],
            }
        ),
        "ranks": pl.DataFrame(
            {
                "rank": list(range(ranks)),
                "device": list(range(ranks)),
                "gpu_name": ["NVIDIA H100 80GB HBM3"] * ranks,
                "rank_source": ["process title"] * ranks,
                "kernel_count": [1_234_567] * ranks,
                "span_ns": [3_105_600_000] * ranks,
                "busy_ns": [2_900_000_000] * ranks,
                "idle_frac": [0.0662] * ranks,
            }
        ),
        "ledger": pl.DataFrame(
            {
                "table": ["kernel", "kernel"],
                "rows_read": [9_876_536] * 2,
                "rows_used": [9_876_530] * 2,
                "rows_excluded": [6, 0],
                "reason": ["bad timestamps", "all used"],
            }
        ),
        "step_buckets": base.tables["buckets"].with_columns(
            (pl.col("kernel_count", "kernel_ns", "busy_ns", "elapsed_ns") // 13).cast(pl.Int64)
        ),
        "buckets": base.tables["buckets"],
        "kernels": kernels,
        "summary": summary,
        "step_points": points,
        "collective_split": split,
        "operations": pl.DataFrame(
            {
                "communicator": [0, 0],
                "collective": ["all_reduce", "all_gather"],
                "implementation": ["custom_2stage", "nccl"],
                "kernel_name": [REDUCE, "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)"],
                "calls_per_step": [64.0, 1.0],
                "rank_count": [ranks, ranks],
                "message_bytes": [8192, None],
                "duration_p50_ns": [35_000, 61_000],
                "transfer_p50_ns": [10_400, 30_000],
                "wait_p50_ns": [25_100, 31_000],
                "wait_frac": [0.71, 0.5],
                "class": ["arrival_skew", "mixed"],
            }
        ),
        "rank_operations": pl.DataFrame(
            {
                "rank": list(range(ranks)),
                "collective": ["all_reduce"] * ranks,
                "wait_per_step_ns": split["wait_ns"],
                "same_stream": [True] * ranks,
            }
        ),
        "verdict": pl.DataFrame(
            {
                "communicator": [0],
                "members": [list(range(ranks))],
                "class": ["arrival_skew"],
                "straggler_rank": [2],
                "late_ranks": [None],
                "last_frac": [0.98],
                "p_value": [1e-12],
                "cause": ["device"],
                "cause_detail": ["uniform"],
                "recoverable_per_step_ns": [1_460_000],
                "recoverable_frac": [0.188],
                "skew_per_step_ns": [1_700_000],
                "matched_count": [25_600],
                "unmatched_count": [3],
                "sentence": ["x"],
            },
            schema_overrides={"late_ranks": pl.List(pl.Int64)},
        ),
        "skew_ranks": pl.DataFrame(
            {
                "communicator": [0] * ranks,
                "rank": list(range(ranks)),
                "last_frac": [0.98 if rank == 2 else 0.003 for rank in range(ranks)],
                "wait_per_step_ns": split["wait_ns"],
                "lateness_mean_ns": [24_000.0 if rank == 2 else -300.0 * rank for rank in range(ranks)],
                "compute_ratio": [1.08 if rank == 2 else 1.0 for rank in range(ranks)],
            }
        ),
        "clock": pl.DataFrame(
            {
                "rank": list(range(ranks)),
                "method": ["ends"] * ranks,
                "offset_ns": [0.0] + [350_000.0 + rank for rank in range(1, ranks)],
                "drift_ppm": [0.0] * ranks,
                "residual_ns": [812] * ranks,
                "asymmetry_ns": [90] * ranks,
                "matched_count": [25_600] * ranks,
            }
        ),
        "set_aside": pl.DataFrame({"reason": ["member missing"], "count": [3]}),
        "waits": waits,
        "position_waits": positions,
        "arrivals": arrivals,
        "causes": pl.DataFrame(
            [
                (rank, cause, 100, value * 400, value)
                for rank in range(ranks)
                for cause, value in (
                    ("in_graph", 210_000),
                    ("host_late", 40_000 * (1 + (rank == 2))),
                    ("launch_latency", 20_000),
                    ("step_boundary", 330_000),
                    ("back_to_back", 30_000),
                )
            ],
            schema=["rank", "cause", "gap_count", "gap_ns", "per_step_ns"],
            orient="row",
        ),
        "edges": pl.DataFrame(
            {
                "cause": ["step_boundary", "host_late"],
                "before_kernel": [REDUCE, GEMM],
                "after_kernel": [GEMM, HOSTILE if hostile else GEMM],
                "api_name": ["cudaGraphLaunch", "cudaLaunchKernel"],
                "gap_count": [400, 1200],
                "gap_ns": [132_000_000, 16_000_000],
                "p50_ns": [330_000, 13_000],
            }
        ),
        "slices": _slices(ranks, layers, worst, random),
    }
    if hostile:
        tables["slices"] = tables["slices"].with_columns(
            pl.when(pl.int_range(pl.len()) == 3).then(pl.lit(HOSTILE)).otherwise(pl.col("name")).alias("name")
        )
    result = ReportResult(
        tables,
        notices=(
            Notice(
                "events-may-be-incomplete",
                "warning",
                "nsys reported: events may be incomplete <b>&",
                "record a shorter capture",
                1,
            ),
            Notice("steps-cut", "info", "one partial step at the end enters no statistic", "", 1),
        ),
        provenance={
            "exports": ["runs/tp8.sqlite"],
            "nsys_versions": ["2025.5.1"],
            "ranks": list(range(ranks)),
            "rules": {"name": "default", "sha256": "0" * 64},
            "step_marker": "graph",
            "clock": "ends",
            "step_count": steps,
        },
        sentences=(
            "Rank 2 makes the others wait: last in 98.0 % of 398 decode steps; evening it out would save about 1.460 ms of 7.794 ms per step.",
            "Its device work takes longer in every bucket alike (1.08 times its peers'): clock, power or heat rather than imbalance.",
            "Waiting is 71.0 % of all-reduce time; the transfer itself takes 10.40 us a call.",
            "Compute and collectives share stream 7: nothing can overlap.",
        ),
    )
    object.__setattr__(
        result, "schemas", {name: _schema(frame) for name, frame in tables.items()} | {"buckets": BUCKETS}
    )
    return result


def _slices(ranks: int, layers: int, worst: int, random: np.random.Generator) -> pl.DataFrame:
    rows: list[tuple[Any, ...]] = []
    for view, step in (("worst", worst), ("typical", worst + 1)):
        ready = 0
        for layer in range(layers):
            for half in range(2):
                arrivals = []
                for rank in range(ranks):
                    at = ready + 2_000
                    for bucket, name, length in (
                        ("norm", "void norm_kernel<float>(float*)", 3_000),
                        ("gemm", GEMM, 60_000),
                        ("attn", "flash_fwd_splitkv", 25_000),
                    ):
                        if half and bucket == "attn":
                            continue
                        duration = int(
                            length
                            * (1.08 if rank == 2 else 1.0)
                            * random.uniform(0.98, 1.02)
                            * (2 if view == "worst" and layer == 3 and rank == 5 else 1)
                        )
                        rows.append((view, step, rank, 7, "kernel", bucket, name, at, duration))
                        at += duration + 900
                    arrivals.append(at)
                last = max(arrivals)
                for rank, at in enumerate(arrivals):
                    if last > at:
                        rows.append((view, step, rank, 7, "wait", "collective", REDUCE, at, last - at))
                    rows.append((view, step, rank, 7, "transfer", "collective", REDUCE, last, 10_000))
                ready = last + 10_000
            if layer % 4 == 0:
                rows.extend(
                    (view, step, rank, 21, "memcpy", "memcpy", "[CUDA memcpy Host-to-Device]", ready, 6_000)
                    for rank in range(ranks)
                )
    return pl.DataFrame(
        rows,
        schema=["view", "step", "rank", "stream", "kind", "bucket", "name", "start_ns", "duration_ns"],
        orient="row",
    )
