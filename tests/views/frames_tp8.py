"""Synthetic results in the documented columns: an 8-rank decode, small and deterministic, made without a trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import polars as pl

from tracelens.frames import Column, Notice, Result, Schema

NS = "ns"
BUCKETS = Schema(
    "one bucket of one rank",
    Column("rank", pl.Int64, "rank"),
    Column("bucket", pl.String, "bucket"),
    Column("kernel_count", pl.Int64, "events that start in the window", "count"),
    Column("kernel_ns", pl.Int64, "sum of durations", NS),
    Column("busy_ns", pl.Int64, "union within the bucket", NS),
    Column("elapsed_ns", pl.Int64, "exclusive time", NS),
    Column("elapsed_frac", pl.Float64, "share of the span", "frac"),
)
KERNELS = Schema(
    "one kernel name of one rank",
    Column("rank", pl.Int64, "rank"),
    Column("bucket", pl.String, "bucket"),
    Column("pattern", pl.String, "the rule's pattern"),
    Column("kernel_name", pl.String, "demangled name"),
    Column("kernel_count", pl.Int64, "events", "count"),
    Column("kernel_ns", pl.Int64, "sum of durations", NS),
    Column("elapsed_ns", pl.Int64, "exclusive time", NS),
)


class BucketResult(Result):
    command: ClassVar[str] = "bucket"
    schemas: ClassVar[Mapping[str, Schema]] = {"buckets": BUCKETS, "kernels": KERNELS}


GEMM = (
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>"
    "(T1::Params) [with T1 = cutlass_80_wmma]"
)
REDUCE = "void vllm::cross_device_reduce_2stage<__nv_bfloat16, (int)8>(vllm::RankData *, vllm::RankSignals, int, int)"


def bucket_result(ranks: int = 8, *, kernels: bool = False) -> BucketResult:
    """Eight ranks of 100 ms; rank 2 computes 8 % longer, the others wait in the all-reduce."""
    rows, names = [], []
    for rank in range(ranks):
        slow = 1.08 if rank == 2 else 1.0
        gemm, attention, norm = int(40_000_000 * slow), int(12_000_123 * slow), int(5_000_456 * slow)
        idle = 9_876_543 + rank * 1_000
        collective = 100_000_000 - gemm - attention - norm - idle
        parts = [("gemm", 1280, gemm), ("collective", 640, collective), ("attn", 320, attention), ("norm", 650, norm)]
        parts.append(("idle", 0, idle))
        for name, count, elapsed in parts:
            busy = elapsed if name != "idle" else 0
            rows.append((rank, name, count, busy + count, busy, elapsed, elapsed / 100_000_000))
        names.append((rank, "gemm", "gemm|nvjet", GEMM, 1000, gemm - 1000, gemm - 1000))
        names.append((rank, "gemm", "gemm|nvjet", "nvjet_tst_64x8_64x16_4x1_v_bz_TNT", 280, 1000, 1000))
        names.append((rank, "collective", "cross_device", REDUCE, 640, collective, collective))
    tables = {"buckets": BUCKETS.frame(pl.DataFrame(rows, schema=BUCKETS.names, orient="row"))}
    if kernels:
        tables["kernels"] = KERNELS.frame(pl.DataFrame(names, schema=KERNELS.names, orient="row"))
    return BucketResult(
        tables,
        notices=(Notice("no-steps", "warning", "no step marker fits", "try --step-marker REGEX", 3),),
        provenance={"exports": ["tp8.sqlite"], "ranks": list(range(ranks))},
        sentences=("Rank 2 computes 1.08 times as long as its peers.",),
    )
