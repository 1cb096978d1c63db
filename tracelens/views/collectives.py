"""Collective operations on a terminal: by operation, then by rank."""

from __future__ import annotations

from tracelens.frames import Result
from tracelens.views.skew import show_operations
from tracelens.views.terminal import Screen

_ROWS_SHOWN = 128
_INSTANCES_SHOWN = 40


def show(result: Result, screen: Screen) -> None:
    """Draw a collectives result; of the instances only the first, the machine formats hold all."""
    screen.sentences(result.sentences)
    show_operations(result, screen)
    screen.table(
        result["rank_operations"],
        result.schemas["rank_operations"],
        title="By rank (exposed: not hidden behind compute of another stream)",
        columns=[
            "rank",
            "communicator",
            "collective",
            "implementation",
            "calls_per_step",
            "duration_p50_ns",
            "wait_per_step_ns",
            "exposed_per_step_ns",
            "hidden_per_step_ns",
            "overlap_frac",
            "same_stream",
        ],
        labels={
            "calls_per_step": "calls a step",
            "duration_p50_ns": "duration",
            "wait_per_step_ns": "wait a step",
            "exposed_per_step_ns": "exposed a step",
            "hidden_per_step_ns": "hidden a step",
            "overlap_frac": "overlap",
            "same_stream": "shares stream",
        },
        optional=["same_stream", "communicator", "hidden_per_step_ns"],
        group="rank",
        limit=_ROWS_SHOWN,
    )
    instances = result.tables.get("instances")
    if instances is not None:
        screen.table(
            instances,
            result.schemas["instances"],
            title="Instances",
            optional=["end_ns", "implementation", "position", "communicator"],
            limit=_INSTANCES_SHOWN,
        )
