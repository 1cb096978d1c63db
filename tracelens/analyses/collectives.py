"""Each collective operation: how often, how long, how much of it is waiting, how much hides behind compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import polars as pl

from tracelens.analyses.alignment_notices import hides_collectives, rank_list
from tracelens.analyses.collectives_tables import operations_table, whole
from tracelens.analyses.skew_context import Context, context
from tracelens.analyses.skew_schemas import INSTANCES, OPERATIONS, RANK_OPERATIONS
from tracelens.frames import Notice, Result, Schema
from tracelens.trace import LoadedTrace
from tracelens.units import plural

START_UP_FACTOR = 1.5
"""Leading calls this many times the later half's median are start-up skew."""


class CollectivesResult(Result):
    """Collective operations.

    Tables:
        operations: one row per communicator, operation, implementation, kernel and message size.
        rank_operations: one row per rank, communicator, operation and implementation.
        instances: every call of every rank, only with `all=True`.
    """

    command: ClassVar[str] = "collectives"
    schemas: ClassVar[Mapping[str, Schema]] = {
        "operations": OPERATIONS,
        "rank_operations": RANK_OPERATIONS,
        "instances": INSTANCES,
    }


def collectives(trace: LoadedTrace, *, all: bool = False) -> CollectivesResult:
    """Figures per collective operation.

    Durations include waiting for other ranks; where instances are matched, wait and transfer are told apart:
    duration = wait + (own end - last arrival). Exposed is what no compute kernel of another stream hides.

    Args:
        trace: the capture; its options choose ranks, steps, phase, time and clock.
        all: also one row per call.
    """
    known = context(trace)
    operations = operations_table(known, synchronising_only=False)
    tables = {"operations": operations, "rank_operations": _rank_operations(known)}
    if all:
        tables["instances"] = _instances(known)
    notices = [*known.alignment.notices, *known.steps.notices, *_start_up(known), *_durations_only(known)]
    severity = {"warning": 0, "info": 1}
    unique = sorted(set(notices), key=lambda n: (severity[n.severity], n.code, n.message))
    provenance = trace.provenance() | {
        "window": known.selection_words,
        "clock": "+".join(sorted({one.method for one in known.alignment.sets if len(one.ranks) > 1})) or "none",
        "step_marker": known.steps.facts.get("marker"),
        "warm_up_steps": known.steps.facts.get("warm_up_steps"),
    }
    return CollectivesResult(tables, (*trace.notices, *unique), provenance, _sentences(known, operations))


def _rank_operations(known: Context) -> pl.DataFrame:
    steps = {
        rank: known.step_counts.get(number, 0) for number, one in enumerate(known.alignment.sets) for rank in one.ranks
    }
    keys = ["rank", "communicator", "operation", "implementation"]
    rows: list[dict[str, Any]] = []
    for (rank, communicator, operation, implementation), group in known.rows.group_by(keys, maintain_order=True):
        count = steps.get(int(rank), 0)
        summed = group.filter("summed")
        hidden, length = int(summed["hidden_ns"].sum()), int(summed["duration_ns"].sum())
        waited = summed["wait_ns"].drop_nulls()
        total = int(group["duration_ns"].sum())
        rows.append(
            {
                "rank": rank,
                "communicator": communicator,
                "collective": operation,
                "implementation": implementation,
                "calls_per_step": summed.height / count if count else None,
                "duration_p50_ns": whole(group["duration_ns"].median()),
                "wait_per_step_ns": round(int(waited.sum()) / count) if count and len(waited) else None,
                "exposed_per_step_ns": round((length - hidden) / count) if count else None,
                "hidden_per_step_ns": round(hidden / count) if count else None,
                "overlap_frac": int(group["hidden_ns"].sum()) / total if total else None,
                "same_stream": bool(group["shares_stream"].mean() >= 0.5),  # type: ignore[operator]
            }
        )
    return RANK_OPERATIONS.frame(rows).sort("rank", "communicator", "collective", "implementation", nulls_last=True)


def _instances(known: Context) -> pl.DataFrame:
    return INSTANCES.frame(known.rows.rename({"operation": "collective"})).sort(
        "communicator", "instance", "rank", "start_ns", "end_ns", nulls_last=True
    )


def _sentences(known: Context, operations: pl.DataFrame) -> tuple[str, ...]:
    if operations.is_empty():
        hidden = " outside CUDA graphs, which were traced as a whole" if hides_collectives(known.trace.notices) else ""
        return (f"No collective kernels are in the selection{hidden}.",)
    largest = operations.sort(
        pl.col("call_count") * pl.col("duration_p50_ns"),
        "collective",
        "implementation",
        descending=[True, False, False],
    ).row(0, named=True)
    calls = (
        f"{largest['calls_per_step']:.4g} calls a step"
        if largest["calls_per_step"] is not None
        else plural(largest["call_count"], "call")
    )
    said = f"{largest['collective']} ({largest['implementation']}): {calls}, median {largest['duration_p50_ns'] / 1e3:.1f} us"
    if largest["transfer_p50_ns"] is not None:
        said += f", of which transfer {largest['transfer_p50_ns'] / 1e3:.1f} us"
    if largest["wait_frac"] is not None:
        said += f"; {largest['wait_frac']:.0%} of its time is waiting"
    return (f"{said}.", *_switches(known))


def _switches(known: Context) -> list[str]:
    """Operations that change their implementation with the rung of the step."""
    table = known.steps.table
    if table.is_empty():
        return []
    rungs = table["rung"].to_list() + [None]
    phases = table["phase"].to_list() + [None]
    rows = known.rows.select("row", "communicator", "operation", "implementation")
    at = known.step_row[rows["row"].to_numpy()]
    placed = rows.with_columns(
        rung=pl.Series([f"{phases[k]} {rungs[k]}" if rungs[k] is not None else None for k in at], dtype=pl.String)
    ).filter(pl.col("rung").is_not_null())
    kinds = (
        placed.group_by("communicator", "operation", "rung")
        .agg(pl.col("implementation").mode().sort().first())
        .sort("communicator", "operation", "implementation", "rung", nulls_last=True)
    )
    said = []
    for (_, operation), group in kinds.group_by(["communicator", "operation"], maintain_order=True):
        if group["implementation"].n_unique() < 2:
            continue
        parts = [
            f"{implementation} in {', '.join(sorted(part['rung'].to_list(), key=_natural)[:4])}"
            for (implementation,), part in group.group_by(["implementation"], maintain_order=True)
        ]
        said.append(f"{operation} switches its implementation inside the capture: {'; '.join(parts)}.")
    return list(dict.fromkeys(said))


def _natural(rung: str) -> tuple[str, int, str]:
    head, _, tail = rung.partition("=")
    return head, int(tail) if tail.isdigit() else 0, rung


def _start_up(known: Context) -> list[Notice]:
    """First calls that are far longer than later ones: ranks were not in step yet."""
    notices = []
    keys = ["operation", "implementation", "rank", "communicator"]
    for (operation, implementation, rank, _), group in known.rows.group_by(keys, maintain_order=True):
        length = group.sort("start_ns")["duration_ns"].to_numpy().astype(np.float64)
        count = len(length)
        if count < 5:
            continue
        steady = length[-(count // 2) :] if count < 40 else length[count // 2 :]
        usual = float(np.median(steady))
        slow = length > START_UP_FACTOR * usual
        leading = int(np.argmin(slow)) if not slow.all() else count
        if leading == 0 or leading > max(3, count // 4) or length[0] < 3 * usual:
            continue
        spread = f"{steady.min() / 1e3:.1f}-{steady.max() / 1e3:.1f} us" if count < 40 else f"{usual / 1e3:.1f} us"
        notices.append(
            Notice(
                "start-up-skew",
                "info",
                f"{f'the first {leading}' if leading > 1 else 'the first'} of {plural(count, 'call')} of {operation} ({implementation}) on rank {rank} {'are' if leading > 1 else 'is'} start-up skew: mean "
                f"{length.mean() / 1e3:.1f} us, median {float(np.median(length)) / 1e3:.1f} us, steady part {spread}",
                "Judge by the steady part: --skip N, or --time.",
                leading,
            )
        )
    return notices


def _durations_only(known: Context) -> list[Notice]:
    ranks = known.trace.ranks
    if len(ranks) > 1 or known.members.is_empty():
        return []
    return [
        Notice(
            "durations-include-waiting",
            "warning",
            f"only rank {rank_list(ranks)} is here: its durations include waiting for ranks that are not",
            "Give the captures of all ranks to tell waiting from transfer.",
        )
    ]
