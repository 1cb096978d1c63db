"""Each collective operation: how often, how long, how much of it is waiting, how much hides behind compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain
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
    operations = operations_table(known)
    ranks, start_up = _ranks(known)
    tables = {"operations": operations, "rank_operations": ranks}
    if all:
        tables["instances"] = _instances(known)
    notices = [*known.alignment.notices, *known.steps.notices, *start_up, *_durations_only(known)]
    severity = {"warning": 0, "info": 1}
    unique = sorted(set(notices), key=lambda n: (severity[n.severity], n.code, n.message))
    provenance = trace.provenance() | {
        "window": known.selection_words,
        "clock": "+".join(sorted({one.method for one in known.alignment.sets if len(one.ranks) > 1})) or "none",
        "step_marker": known.steps.facts.get("marker"),
        "warm_up_steps": known.steps.facts.get("warm_up_steps"),
    }
    return CollectivesResult(tables, (*trace.notices, *unique), provenance, _sentences(known, operations))


def _ranks(known: Context) -> tuple[pl.DataFrame, list[Notice]]:
    """The table of ranks, and which of their first calls are far longer than later ones."""
    steps = {
        rank: known.step_counts.get(number, 0) for number, one in enumerate(known.alignment.sets) for rank in one.ranks
    }
    kinds, kind_of = _kinds(known)
    found = known.operations
    used, hidden_ns = known.used, known.hidden_ns
    accepted, in_summed = known.accepted, known.summed

    def tell(part: slice) -> list[tuple[dict[str, Any], Notice | None]]:
        rank = int(found.ranks[found.recorded.owner[part.start]])
        count = steps.get(rank, 0)
        shares_stream = known.shares_stream(part)
        rows = part.start + np.flatnonzero(used[part])
        told = []
        for (communicator, kind), group in grouped(
            rows, known.communicators(rows), kind_of[found.recorded.family[rows]]
        ):
            duration, hidden = known.durations(group), hidden_ns[group]
            summed = in_summed[group]
            hidden_summed, length = int(hidden[summed].sum()), int(duration[summed].sum())
            waits = known.waits(group[summed & accepted[group]])
            total = int(duration.sum())
            operation, implementation = kinds[kind]
            notice = _start_up(f"{operation} ({implementation}) on rank {rank}", duration)
            row = {
                "rank": rank,
                "communicator": communicator if communicator >= 0 else None,
                "collective": operation,
                "implementation": implementation,
                "calls_per_step": int(np.count_nonzero(summed)) / count if count else None,
                "duration_p50_ns": middle(duration),
                "wait_per_step_ns": round(int(waits.sum()) / count) if count and len(waits) else None,
                "exposed_per_step_ns": round((length - hidden_summed) / count) if count else None,
                "hidden_per_step_ns": round(hidden_summed / count) if count else None,
                "overlap_frac": int(hidden.sum()) / total if total else None,
                "same_stream": 2 * int(np.count_nonzero(shares_stream[group - part.start])) >= len(group),
            }
            told.append((row, notice))
        return told

    told = list(chain.from_iterable(known.each_rank(tell)))
    table = RANK_OPERATIONS.frame([row for row, _ in told])
    table = table.sort("rank", "communicator", "collective", "implementation", nulls_last=True)
    return table, [notice for _, notice in told if notice is not None]


def _instances(known: Context) -> pl.DataFrame:
    found = known.operations
    names = [name for name in (column.name for column in INSTANCES.columns) if name not in ("collective", "step")]
    steps = np.append(known.steps.table["step"].to_numpy().astype(np.int64), -1)
    step = np.concatenate([np.empty(0, np.int64), *known.each(lambda part: steps[known.step_rows(part)])])[found.order]
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
    names, used = list(texts), known.used

    def count(part: slice) -> list[tuple[tuple[int, ...], int]]:
        rung = rung_of_row[known.step_rows(part)]
        own = np.flatnonzero(used[part] & (rung >= 0))
        rows = part.start + own
        keys = (known.communicators(rows), kind_of[found.recorded.family[rows]], rung[own])
        return [(key, len(group)) for key, group in grouped(rows, *keys)]

    counts: Counter[tuple[int, ...]] = Counter()
    for told in known.each_rank(count):
        counts.update(dict(told))
    placed = pl.DataFrame(
        [
            (communicator if communicator >= 0 else None, *kinds[kind], names[text], -number)
            for (communicator, kind, text), number in sorted(counts.items())
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


def _start_up(who: str, duration: Ints) -> Notice | None:
    """First calls that are far longer than later ones: ranks were not in step yet.

    Args:
        who: whose calls they are.
        duration: int64 ns, in the order of starts.
    """
    count = len(duration)
    if count < 5:
        return None
    steady = duration[-(count // 2) :] if count < 40 else duration[count // 2 :]
    # Most ranks show nothing of it: that half of the later calls are so short is told sooner than the median.
    if 2 * int(np.count_nonzero(3 * steady <= duration[0])) < len(steady):
        return None
    length, steady = duration.astype(np.float64), steady.astype(np.float64)
    usual = float(np.median(steady))
    slow = length > START_UP_FACTOR * usual
    leading = int(np.argmin(slow)) if not slow.all() else count
    if leading == 0 or leading > max(3, count // 4) or length[0] < 3 * usual:
        return None
    spread = f"{steady.min() / 1e3:.1f}-{steady.max() / 1e3:.1f} us" if count < 40 else f"{usual / 1e3:.1f} us"
    first = f"the first {leading}" if leading > 1 else "the first"
    return Notice(
        "start-up-skew",
        "info",
        f"{first} of {plural(count, 'call')} of {who} {'are' if leading > 1 else 'is'} start-up skew: mean "
        f"{length.mean() / 1e3:.1f} us, median {float(np.median(length)) / 1e3:.1f} us, steady part {spread}",
        "Judge by the steady part: --skip N, or --time.",
        leading,
    )


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
