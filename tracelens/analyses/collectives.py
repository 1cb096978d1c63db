"""Each collective operation: how often, how long, how much of it is waiting, how much hides behind compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import polars as pl

from tracelens.analyses.alignment_notices import hides_collectives, rank_list
from tracelens.analyses.alignment_operations import grouped
from tracelens.analyses.clock import Ints
from tracelens.analyses.collectives_tables import middle, operations_table
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
    found = known.operations
    calls = found.recorded
    used = np.flatnonzero(known.used)
    in_summed = np.append(known.summed_step, False)[known.step_row]
    rows: list[dict[str, Any]] = []
    kinds, kind_of = _kinds(known)
    for (owner, communicator, kind), group in grouped(
        used, calls.owner[used], found.communicator[used], kind_of[calls.family[used]]
    ):
        rank = int(found.ranks[owner])
        count = steps.get(rank, 0)
        summed = group[in_summed[group]]
        hidden, length = int(known.hidden_ns[summed].sum()), int(known.duration_ns[summed].sum())
        waited = found.wait_ns[summed[found.accepted[summed]]]
        total = int(known.duration_ns[group].sum())
        operation, implementation = kinds[kind]
        rows.append(
            {
                "rank": rank,
                "communicator": communicator if communicator >= 0 else None,
                "collective": operation,
                "implementation": implementation,
                "calls_per_step": len(summed) / count if count else None,
                "duration_p50_ns": middle(known.duration_ns[group]),
                "wait_per_step_ns": round(int(waited.sum()) / count) if count and len(waited) else None,
                "exposed_per_step_ns": round((length - hidden) / count) if count else None,
                "hidden_per_step_ns": round(hidden / count) if count else None,
                "overlap_frac": int(known.hidden_ns[group].sum()) / total if total else None,
                "same_stream": 2 * int(np.count_nonzero(known.shares_stream[group])) >= len(group),
            }
        )
    return RANK_OPERATIONS.frame(rows).sort("rank", "communicator", "collective", "implementation", nulls_last=True)


def _instances(known: Context) -> pl.DataFrame:
    found = known.operations
    names = [name for name in (column.name for column in INSTANCES.columns) if name not in ("collective", "step")]
    step = np.append(known.steps.table["step"].to_numpy().astype(np.int64), -1)[known.step_row[found.order]]
    rows = (
        found.frame("operation", *names)
        .rename({"operation": "collective"})
        .with_columns(step=pl.when(pl.Series(step >= 0)).then(pl.Series(step)))
        .filter(pl.Series(known.used[found.order]))
    )
    return INSTANCES.frame(rows).sort("communicator", "instance", "rank", "start_ns", "end_ns", nulls_last=True)


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
    found = known.operations
    kinds, kind_of = _kinds(known)
    if len({operation for operation, _ in kinds}) == len(kinds):
        return []
    texts: dict[str, int] = {}
    rung_of_row = np.array(
        [
            texts.setdefault(f"{phase} {rung}", len(texts)) if rung is not None else -1
            for phase, rung in table.select("phase", "rung").iter_rows()
        ]
        + [-1]
    )
    rows = np.flatnonzero(known.used & (rung_of_row[known.step_row] >= 0))
    kind, rung = kind_of[found.recorded.family[rows]], rung_of_row[known.step_row[rows]]
    names = list(texts)
    placed = pl.DataFrame(
        [
            (communicator if communicator >= 0 else None, *kinds[own], names[text], -len(group))
            for (communicator, own, text), group in grouped(rows, found.communicator[rows], kind, rung)
        ],
        schema={
            "communicator": pl.Int32,
            "operation": pl.String,
            "implementation": pl.String,
            "rung": pl.String,
            "rarity": pl.Int64,
        },
        orient="row",
    )
    # Of the implementations of one rung the one with most calls stands, of several the first by name.
    placed = (
        placed.sort("rarity", "implementation")
        .unique(["communicator", "operation", "rung"], keep="first", maintain_order=True)
        .sort("communicator", "operation", "implementation", "rung", nulls_last=True)
    )
    said = []
    for (_, operation), group in placed.group_by(["communicator", "operation"], maintain_order=True):
        if group["implementation"].n_unique() < 2:
            continue
        parts = [
            f"{implementation} in {', '.join(sorted(part['rung'].to_list(), key=_natural)[:4])}"
            for (implementation,), part in group.group_by(["implementation"], maintain_order=True)
        ]
        said.append(f"{operation} switches its implementation inside the capture: {'; '.join(parts)}.")
    return list(dict.fromkeys(said))


def _kinds(known: Context) -> tuple[list[tuple[str, str]], Ints]:
    """The (operation, implementation) pairs, and the place of each family's."""
    families = [family[:2] for family in known.operations.recorded.families]
    kinds = sorted(set(families))
    return kinds, np.array([kinds.index(family) for family in families], dtype=np.int64)


def _natural(rung: str) -> tuple[str, int, str]:
    head, _, tail = rung.partition("=")
    return head, int(tail) if tail.isdigit() else 0, rung


def _start_up(known: Context) -> list[Notice]:
    """First calls that are far longer than later ones: ranks were not in step yet."""
    notices = []
    found = known.operations
    kinds, kind_of = _kinds(known)
    rows = np.flatnonzero(known.used)
    keys = (kind_of[found.recorded.family[rows]], found.recorded.owner[rows], found.communicator[rows])
    for (kind, owner, _), group in grouped(rows, *keys):
        (operation, implementation), rank = kinds[kind], found.ranks[owner]
        length = known.duration_ns[group].astype(np.float64)
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
    if len(ranks) > 1 or not len(known.operations):
        return []
    return [
        Notice(
            "durations-include-waiting",
            "warning",
            f"only rank {rank_list(ranks)} is here: its durations include waiting for ranks that are not",
            "Give the captures of all ranks to tell waiting from transfer.",
        )
    ]
