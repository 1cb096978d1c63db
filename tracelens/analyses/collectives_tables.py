"""Figures per collective operation: durations, waits, transfers, exposure, bandwidth."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.alignment_members import REASONS, InstanceTable
from tracelens.analyses.alignment_operations import grouped
from tracelens.analyses.blocks import blocks, each
from tracelens.analyses.clock import Ints, median
from tracelens.analyses.matching_instances import Rows
from tracelens.analyses.skew_context import Context
from tracelens.analyses.skew_schemas import OPERATIONS, SET_ASIDE
from tracelens.analyses.straggler import classify

WARM_UP = "warm-up step"
NOT_SELECTED = "outside the selection"


def operations_table(known: Context) -> pl.DataFrame:
    """One row per communicator, operation, implementation, kernel and message size."""
    calls = known.operations.recorded

    def split(part: slice) -> list[tuple[tuple[int, ...], Rows]]:
        rows = part.start + np.flatnonzero(used[part])
        keys = (known.communicators(rows), calls.name_id[rows], calls.message_bytes[rows])
        return [(key, own.astype(np.int32)) for key, own in grouped(rows, *keys)]

    used = known.used
    groups: dict[tuple[int, ...], list[Rows]] = {}
    for found in known.each_rank(split):
        for key, rows in found:
            groups.setdefault(key, []).append(rows)
    names = known.timeline.names["name"]
    result: list[dict[str, Any]] = []
    for (communicator, name, size), parts in sorted(groups.items()):
        operation, implementation, _ = calls.families[calls.family[parts[0][0]]]
        known_size = size if size >= 0 else None
        result.append(
            {
                "communicator": communicator if communicator >= 0 else None,
                "collective": operation,
                "implementation": implementation,
                "kernel_name": names[name],
                "message_bytes": known_size,
                **_figures(known, operation, known_size, parts),
            }
        )
    frame = OPERATIONS.frame(result)
    return frame.sort("communicator", "collective", "implementation", "kernel_name", "message_bytes", nulls_last=True)


def _figures(known: Context, operation: str, size: int | None, ranks: list[Rows]) -> dict[str, Any]:
    """Figures of one group of operations.

    Args:
        known: the operations.
        operation: what they do.
        size: bytes of their messages.
        ranks: the group's operations on each rank that has any.
    """
    found = known.operations
    accepted, summed, hidden_ns = known.accepted, known.summed, known.hidden_ns
    count = sum(map(len, ranks))
    duration, wait = (known.trace.room.empty(count, np.int64) for _ in range(2))
    seen = np.zeros(len(found.instances), dtype=bool)

    def tell(parts: tuple[Rows, slice, slice]) -> tuple[int, int, int]:
        rows, own, own_matched = parts
        length = duration[own] = known.durations(rows)
        has_wait, in_step = accepted[rows], summed[rows]
        matched = rows if has_wait.all() else rows[has_wait]
        wait[own_matched] = known.waits(matched)
        seen[found.instance[matched]] = True
        exposed = (length - hidden_ns[rows]) * in_step
        return int(np.count_nonzero(in_step)), int(exposed.sum()), int((length * has_wait).sum())

    matched_counts = [int(np.count_nonzero(accepted[rows])) for rows in ranks]
    own = [slice(*edge) for edge in pairwise(accumulate(map(len, ranks), initial=0))]
    own_matched = [slice(*edge) for edge in pairwise(accumulate(matched_counts, initial=0))]
    told = list(each(tell, zip(ranks, own, own_matched, strict=True), known.trace.threads))
    summed_count, exposed_ns, matched_ns = (sum(column) for column in zip(*told, strict=True))
    wait = wait[: own_matched[-1].stop]
    in_set = known.alignment.set_of(int(found.ranks[found.recorded.owner[ranks[0][0]]]))
    steps = known.step_counts.get(in_set, 0)
    instances = np.flatnonzero(seen)
    skew_ns = found.instances.skew_ns[instances]
    figures: dict[str, Any] = {
        "call_count": max(map(len, ranks)),
        "calls_per_step": summed_count / len(ranks) / steps if steps else None,
        "rank_count": len(ranks),
        "duration_p50_ns": middle(duration),
        "exposed_per_step_ns": round(exposed_ns / len(ranks) / steps) if steps else None,
        "bus_bw_gbps": None,
        "wait_frac": None,
        "class": "inconclusive",
        "transfer_p50_ns": middle(found.instances.transfer_ns[instances]),
        "transfer_min_p50_ns": middle(found.instances.transfer_min_ns[instances]),
        "completion_p50_ns": middle(found.instances.completion_ns[instances]),
        "wait_p50_ns": middle(wait),
        "skew_p50_ns": middle(skew_ns),
        "skew_p90_ns": whole(pl.Series(skew_ns).quantile(0.9, "linear")),
        "skew_p99_ns": whole(pl.Series(skew_ns).quantile(0.99, "linear")),
        "skew_max_ns": int(skew_ns.max()) if len(skew_ns) else None,
    }
    if len(wait):
        communicator = int(known.communicators(ranks[0][:1])[0])
        figures["wait_frac"], figures["class"] = classify(
            int(wait.sum()),
            matched_ns,
            len(wait),
            len(instances),
            known.alignment.sets[in_set].resolution_ns,
            whole=not known.missing_of(communicator),
        )
        members = len(known.ranks_of(communicator))
        figures["bus_bw_gbps"] = _bus_bandwidth(operation, size, members, found.instances, instances)
    return figures


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
    found, warm, selected, accepted = known.operations, known.warm, known.selected, known.accepted
    reasons = [*REASONS, WARM_UP, NOT_SELECTED]

    def tell(part: slice) -> npt.NDArray[np.uint8]:
        reason = found.reason[part].copy()
        reason[warm[part] & accepted[part]] = reasons.index(WARM_UP)
        reason[~selected[part]] = reasons.index(NOT_SELECTED)
        return reason

    told = known.filled(np.uint8, tell)

    def left_out(part: slice) -> tuple[Rows, npt.NDArray[np.uint8]]:
        """Instance and reason of the rows without a wait in a part of the order, one for those of an instance there."""
        reason = told[found.order[part]]
        left = np.flatnonzero(reason)
        instance = found.instance[found.order[part][left]]
        first = np.ones(len(left), dtype=bool)
        first[1:] = (instance[1:] != instance[:-1]) | (instance[1:] < 0)
        return instance[first], reason[left[first]]

    # An instance counts once, under its lowest member's reason.
    counts = np.zeros(len(reasons), dtype=np.int64)
    counted = -1
    for instance, reason in each(left_out, blocks(0, len(found.order)), known.trace.threads):
        if len(instance):
            again = int(0 <= instance[0] == counted)
            counts += np.bincount(reason[again:], minlength=len(reasons))
            counted = int(instance[-1])
    rows = [{"reason": text, "count": int(count)} for text, count in zip(reasons, counts, strict=True) if count]
    return SET_ASIDE.frame(rows).sort("reason")


def middle(values: Ints) -> int | None:
    """The median as whole ns, half to even; null of no values.

    Args:
        values: int64 ns; they change places.
    """
    if len(values) == 0:
        return None
    place = len(values) // 2
    values.partition(place)
    if len(values) % 2:
        return int(values[place])
    return round((float(values[:place].max()) + float(values[place])) / 2)


def whole(value: Any) -> int | None:
    """A quantile as whole ns, half to even; null stays null."""
    return None if value is None else round(value)
