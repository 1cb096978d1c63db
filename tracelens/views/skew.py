"""Who makes whom wait: the verdict in words, then ranks, operations and clocks."""

from __future__ import annotations

import polars as pl

from tracelens.frames import Result
from tracelens.views.terminal import Screen

_RANKS_SHOWN = 64


def show(result: Result, screen: Screen) -> None:
    """Draw a skew result: a verdict per communicator, the ranks (most often last first), operations, clock, set aside."""
    screen.sentences(result.sentences)
    verdict, ranks = result.tables.get("verdict"), result.tables.get("ranks")
    several = verdict is not None and verdict.height > 1
    if verdict is not None and several:
        screen.table(
            verdict,
            result.schemas["verdict"],
            title="Communicators",
            columns=[
                "communicator",
                "members",
                "class",
                "straggler_rank",
                "late_ranks",
                "cause",
                "recoverable_per_step_ns",
                "skew_per_step_ns",
                "matched_count",
                "unmatched_count",
            ],
            labels={
                "straggler_rank": "straggler",
                "recoverable_per_step_ns": "recoverable a step",
                "skew_per_step_ns": "skew a step",
            },
            optional=["skew_per_step_ns", "unmatched_count", "late_ranks"],
        )
    if ranks is not None:
        screen.table(
            ranks.sort("communicator", -pl.col("last_count"), "rank"),
            result.schemas["ranks"],
            title="Ranks by calls last (in all: summed over the capture; late: mean after the reference, and its parts)",
            columns=[
                *(["communicator"] if several else []),
                "rank",
                "last_frac",
                "first_count",
                "wait_per_step_ns",
                "wait_ns",
                "caused_wait_ns",
                "lateness_mean_ns",
                "device_lateness_ns",
                "host_lateness_ns",
                "upstream_lateness_ns",
                "other_lateness_ns",
                "compute_ratio",
            ],
            one_unit=[
                "lateness_mean_ns",
                "device_lateness_ns",
                "host_lateness_ns",
                "upstream_lateness_ns",
                "other_lateness_ns",
            ],
            labels={
                "last_frac": "last of calls",
                "first_count": "times first",
                "wait_per_step_ns": "wait a step",
                "wait_ns": "wait in all",
                "caused_wait_ns": "caused wait in all",
                "lateness_mean_ns": "late",
                "compute_ratio": "compute ratio",
                "device_lateness_ns": "by device",
                "host_lateness_ns": "by host",
                "upstream_lateness_ns": "by upstream",
                "other_lateness_ns": "by other",
            },
            optional=["first_count", "wait_ns", "upstream_lateness_ns", "other_lateness_ns"],
            group="communicator" if several else None,
            limit=_RANKS_SHOWN,
        )
    show_operations(result, screen)
    screen.table(
        result["clock"],
        result.schemas["clock"],
        title="Clock (aligned = local - offset - drift x (local - t0); ends: fitted to collectives, trust: as recorded)",
        columns=[
            "set",
            "rank",
            "method",
            "valid_from_ns",
            "offset_ns",
            "drift_ppm",
            "residual_ns",
            "asymmetry_ns",
            "matched_count",
        ],
        optional=["valid_from_ns", "set"],
        group="set" if result["clock"]["set"].n_unique() > 1 else None,
        limit=_RANKS_SHOWN,
    )
    if not result["set_aside"].is_empty():
        screen.table(
            result["set_aside"],
            result.schemas["set_aside"],
            title="Set aside (collective calls of single ranks that carry no wait)",
        )


def show_operations(result: Result, screen: Screen) -> None:
    """Draw the operations, those that take longest first."""
    operations = result["operations"].sort(
        pl.col("call_count") * pl.col("duration_p50_ns"),
        "collective",
        "implementation",
        descending=[True, False, False],
    )
    several = operations["communicator"].n_unique() > 1
    screen.table(
        operations,
        result.schemas["operations"],
        title="Operations (median over instances; duration includes waiting)",
        columns=[
            *(["communicator"] if several else []),
            "collective",
            "implementation",
            "calls_per_step",
            "call_count",
            "message_bytes",
            "duration_p50_ns",
            "wait_p50_ns",
            "transfer_p50_ns",
            "completion_p50_ns",
            "skew_p50_ns",
            "skew_p99_ns",
            "wait_frac",
            "exposed_per_step_ns",
            "bus_bw_gbps",
            "class",
        ],
        labels={
            "calls_per_step": "calls a step",
            "call_count": "calls",
            "message_bytes": "message",
            "duration_p50_ns": "duration",
            "wait_p50_ns": "wait",
            "transfer_p50_ns": "transfer",
            "completion_p50_ns": "completion",
            "skew_p50_ns": "skew",
            "skew_p99_ns": "skew p99",
            "wait_frac": "time waiting",
            "exposed_per_step_ns": "exposed a step",
            "bus_bw_gbps": "bus bandwidth",
        },
        optional=[
            "bus_bw_gbps",
            "completion_p50_ns",
            "message_bytes",
            "call_count",
            "skew_p99_ns",
            "exposed_per_step_ns",
            "skew_p50_ns",
            "wait_frac",
        ],
    )
