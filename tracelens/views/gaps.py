"""Idle time on a terminal: causes per rank, and the kernels around the costliest gaps."""

from __future__ import annotations

import polars as pl

from tracelens.frames import Result
from tracelens.views.terminal import Screen

_EDGES = 12
_SINGLE = 200


def show(result: Result, screen: Screen) -> None:
    """Draw a gaps result: causes per rank, the costliest neighbours, and every gap where asked for."""
    screen.sentences(result.sentences)
    causes, edges, every = (result.tables.get(name) for name in ("causes", "edges", "gaps"))
    if causes is not None:
        shown = causes.filter(pl.col("gap_count") > 0)
        columns = ["rank", "cause", "gap_count", "gap_ns", "per_step_ns", "p50_ns", "p99_ns", "max_ns"]
        screen.table(
            shown,
            result.schemas["causes"],
            title="Gaps by cause (host part: dry until the launch call; launch part: call until start)",
            columns=[*columns, "host_part_ns", "launch_part_ns"],
            labels={
                "gap_ns": "total",
                "per_step_ns": "a step",
                "host_part_ns": "host part",
                "launch_part_ns": "launch part",
            },
            optional=["p99_ns", "launch_part_ns", "host_part_ns", "max_ns"],
            group="rank",
            total=["gap_count", "gap_ns", "per_step_ns"],
            bar="gap_ns",
        )
    if edges is not None:
        screen.table(
            edges,
            result.schemas["edges"],
            title="Costliest gaps, all ranks: what ended before and what began after",
            columns=["cause", "before_kernel", "after_kernel", "api_name", "gap_count", "gap_ns", "p50_ns"],
            labels={"before_kernel": "before", "after_kernel": "after", "api_name": "launched by", "gap_ns": "total"},
            optional=["api_name"],
            limit=_EDGES,
        )
    if every is not None:
        screen.table(
            every,
            result.schemas["gaps"],
            title=f"Single gaps (the first {_SINGLE}; json, csv and parquet hold all)",
            limit=_SINGLE,
            columns=["rank", "step", "start_ns", "gap_ns", "cause", "after_kernel", "host_part_ns", "launch_part_ns"],
            labels={"gap_ns": "length", "after_kernel": "after", "host_part_ns": "host", "launch_part_ns": "launch"},
            optional=["launch_part_ns", "host_part_ns"],
            group="rank",
        )
