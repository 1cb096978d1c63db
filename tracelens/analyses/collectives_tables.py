"""Figures per collective operation: durations, waits, transfers, exposure, bandwidth."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.alignment_members import REASONS, InstanceTable
from tracelens.analyses.alignment_operations import grouped
from tracelens.analyses.clock import Ints, median
from tracelens.analyses.skew_context import Context
from tracelens.analyses.skew_schemas import OPERATIONS, SET_ASIDE
from tracelens.analyses.straggler import classify

WARM_UP = "warm-up step"
NOT_SELECTED = "outside the selection"


def operations_table(known: Context, *, synchronising_only: bool) -> pl.DataFrame:
    """One row per communicator, operation, implementation, kernel and message size."""
    found = known.operations
    calls = found.recorded
    rows = np.flatnonzero(known.used & found.accepted if synchronising_only else known.used)
    names = known.timeline.names["name"]
    result: list[dict[str, Any]] = []
    keys = (found.communicator[rows], calls.name_id[rows], calls.message_bytes[rows])
    for (communicator, name, size), group in grouped(rows, *keys):
        operation, implementation, _ = calls.families[calls.family[group[0]]]
        known_size = size if size >= 0 else None
        result.append(
            {
                "communicator": communicator if communicator >= 0 else None,
                "collective": operation,
                "implementation": implementation,
                "kernel_name": names[name],
                "message_bytes": known_size,
                **_figures(known, operation, known_size, group),
            }
        )
    frame = OPERATIONS.frame(result)
    return frame.sort("communicator", "collective", "implementation", "kernel_name", "message_bytes", nulls_last=True)


def _figures(known: Context, operation: str, size: int | None, group: Ints) -> dict[str, Any]:
    found = known.operations
    owner = found.recorded.owner[group]
    per_rank = np.bincount(owner)
    ranks = int(np.count_nonzero(per_rank))
    in_set = known.alignment.set_of(int(found.ranks[owner[0]]))
    steps = known.step_counts.get(in_set, 0)
    summed = group[np.append(known.summed_step, False)[known.step_row[group]]]
    duration = known.duration_ns[group]
    matched = group[found.accepted[group]]
    wait = found.wait_ns[matched]
    instances = _seen(found.instance[matched], len(found.instances))
    skews = pl.Series(found.instances.skew_ns[instances])
    figures: dict[str, Any] = {
        "call_count": int(per_rank.max()),
        "calls_per_step": len(summed) / ranks / steps if steps else None,
        "rank_count": ranks,
        "duration_p50_ns": middle(duration),
        "exposed_per_step_ns": (
            round(int((known.duration_ns[summed] - known.hidden_ns[summed]).sum()) / ranks / steps) if steps else None
        ),
        "bus_bw_gbps": None,
        "wait_frac": None,
        "class": "inconclusive",
        "transfer_p50_ns": middle(found.instances.transfer_ns[instances]),
        "transfer_min_p50_ns": middle(found.instances.transfer_min_ns[instances]),
        "completion_p50_ns": middle(found.instances.completion_ns[instances]),
        "wait_p50_ns": middle(wait),
        "skew_p50_ns": middle(found.instances.skew_ns[instances]),
        "skew_p90_ns": whole(skews.quantile(0.9, "linear")),
        "skew_p99_ns": whole(skews.quantile(0.99, "linear")),
        "skew_max_ns": skews.max(),
    }
    if len(matched):
        communicator = int(found.communicator[matched[0]])
        figures["wait_frac"], figures["class"] = classify(
            int(wait.sum()),
            int(known.duration_ns[matched].sum()),
            len(matched),
            len(instances),
            known.alignment.sets[in_set].resolution_ns,
            whole=not known.missing_of(communicator),
        )
        members = len(known.ranks_of(communicator))
        figures["bus_bw_gbps"] = _bus_bandwidth(operation, size, members, found.instances, instances)
    return figures


def _seen(instance: npt.NDArray[np.integer], count: int) -> Ints:
    """The numbers that are there, ascending."""
    seen = np.zeros(count, dtype=bool)
    seen[instance] = True
    return np.flatnonzero(seen)


def _bus_bandwidth(
    operation: str, size: int | None, members: int, instances: InstanceTable, chosen: Ints
) -> float | None:
    """nccl-tests' bus bandwidth from the completion of instances whose skew is less than their transfer."""
    factor = {"all_reduce": 2 * (members - 1) / members, "all_gather": (members - 1) / members}
    factor["reduce_scatter"] = factor["all_gather"]
    if size is None or operation not in factor:
        return None
    # NCCL records what one rank sends (all-gather) or receives (reduce-scatter); nccl-tests counts the whole buffer.
    total = size * (members if operation != "all_reduce" else 1)
    quiet = chosen[instances.skew_ns[chosen] < instances.transfer_ns[chosen]]
    if len(quiet) == 0:
        return None
    time = median(instances.completion_ns[quiet].astype(np.float64))
    return total / time * factor[operation] if time > 0 else None


def set_aside_table(known: Context) -> pl.DataFrame:
    """What carries no wait, by reason: instances of communicators once, calls of unmatched ranks each."""
    found = known.operations
    reasons = [*REASONS, WARM_UP, NOT_SELECTED]
    reason = found.reason.copy()
    reason[known.warm & found.accepted] = reasons.index(WARM_UP)
    reason[~known.selected] = reasons.index(NOT_SELECTED)
    # An instance counts once, under its lowest member's reason.
    left = found.order[reason[found.order] > 0]
    instance = found.instance[left]
    first = np.ones(len(left), dtype=bool)
    first[1:] = (instance[1:] != instance[:-1]) | (instance[1:] < 0)
    counts = np.bincount(reason[left[first]], minlength=len(reasons))
    rows = [{"reason": text, "count": int(count)} for text, count in zip(reasons, counts, strict=True) if count]
    return SET_ASIDE.frame(rows).sort("reason")


def middle(values: Ints) -> int | None:
    """The median as whole ns, half to even; null of no values."""
    return round(median(values.astype(np.float64))) if len(values) else None


def whole(value: Any) -> int | None:
    """A quantile as whole ns, half to even; null stays null."""
    return None if value is None else round(value)
