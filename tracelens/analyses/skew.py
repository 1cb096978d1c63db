"""Who makes whom wait in collectives, how much it costs, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl

from tracelens.analyses.alignment_clock import ClockSet
from tracelens.analyses.alignment_notices import hides_collectives, rank_list
from tracelens.analyses.collectives_tables import operations_table, set_aside_table
from tracelens.analyses.lateness import main_cause
from tracelens.analyses.skew_causes import device_finding, host_finding
from tracelens.analyses.skew_checks import communicator_notices
from tracelens.analyses.skew_context import Context, Judged, Matched, context
from tracelens.analyses.skew_schemas import CLOCK, OPERATIONS, RANKS, SET_ASIDE, VERDICT
from tracelens.analyses.skew_sentences import Facts, device_words, host_detail, verdict_sentence
from tracelens.analyses.straggler import Precision, Straggler, Waiting, classify, find_straggler
from tracelens.frames import Notice, Result, Schema
from tracelens.trace import LoadedTrace


class SkewResult(Result):
    """Waiting by rank, and who it is due to.

    Tables:
        verdict: one row per communicator of two ranks or more, largest first.
        ranks: one row per rank and communicator.
        operations: as in `collectives`.
        clock: how each GPU clock was put on the common one.
        set_aside: what carries no wait, by reason.
    """

    command: ClassVar[str] = "skew"
    schemas: ClassVar[Mapping[str, Schema]] = {
        "verdict": VERDICT,
        "ranks": RANKS,
        "operations": OPERATIONS,
        "clock": CLOCK,
        "set_aside": SET_ASIDE,
    }


@dataclass(frozen=True)
class _Told:
    """One communicator with all that is said about it."""

    matched: Matched
    judged: Judged
    straggler: Straggler
    clock: ClockSet

    @property
    def waits(self) -> Waiting:
        """Sums of its waits."""
        return self.judged.waits


def skew(trace: LoadedTrace) -> SkewResult:
    """Judge the waiting in every communicator.

    wait = last arrival - own arrival, on clocks aligned on the ends of the collectives (or as recorded, see
    `--clock`). A rank is named a straggler only if an exact test over steps says so and the cost is worth a name.

    Args:
        trace: the capture; its options choose ranks, steps, phase, time and clock.

    Returns:
        Tables as `SkewResult` says; where no ranks could be matched, `verdict` and `ranks` are absent and a notice
        says why.

    Raises:
        NotIdentifiableError: `--clock ends`, and the capture cannot carry it.
    """
    known = context(trace)
    judged = [_judge(known, *pair) for pair in zip(known.matched, known.judged, strict=True)] if known.matched else []
    notices = [*known.alignment.notices, *known.steps.notices]
    tables: dict[str, pl.DataFrame] = {}
    sentences: list[str] = []
    if judged:
        rows = [_verdict_row(known, one) for one in judged]
        tables["verdict"] = VERDICT.frame(rows)
        tables["ranks"] = RANKS.frame(pl.concat([_rank_rows(known, one) for one in judged]))
        sentences = [str(row["sentence"]) for row in rows]
        for one in judged:
            notices += communicator_notices(known, one.matched, one.waits, one.clock)
    else:
        sentences.append(_nothing(known))
        notices.append(_no_verdict(known))
    tables["operations"] = operations_table(known)
    tables["clock"] = CLOCK.frame(
        known.alignment.clock.with_columns(pl.col("offset_ns").round()).sort("set", "rank", "valid_from_ns")
    )
    tables["set_aside"] = set_aside_table(known)
    severity = {"warning": 0, "info": 1}
    unique = sorted(set(notices), key=lambda n: (severity[n.severity], n.code, n.message))
    return SkewResult(tables, (*trace.notices, *unique), _provenance(trace, known, judged), tuple(sentences))


def _judge(known: Context, matched: Matched, judged: Judged) -> _Told:
    clock = known.alignment.sets[matched.set]
    precision = Precision(clock.residual_ns or 0.0, clock.asymmetry_ns or 0.0)
    # Clocks that `auto` had to trust name nobody; a caller who chose to trust them has decided.
    may_name = clock.method == "ends" or clock.chosen
    found = find_straggler(matched.ranks, judged.waits, precision, judged.trial_ns, may_name=may_name)
    return _Told(matched, judged, found, clock)


def _late_ranks(found: Straggler) -> tuple[int, ...]:
    return (found.rank,) if found.rank is not None else found.late_ranks


def _cause(known: Context, one: _Told) -> tuple[str, str | None]:
    """The largest part of the straggler's mean lateness, and what is behind it."""
    late = _late_ranks(one.straggler)
    means = one.judged.means
    if not late or not means:
        return "none", None
    columns = [one.matched.ranks.index(rank) for rank in late]
    cause = main_cause({name: round(float(values[columns].mean())) for name, values in means.items()})
    if cause == "device":
        return cause, device_words(*device_finding(known, one.matched, late))
    if cause == "host":
        return cause, host_detail(host_finding(known, one.matched, late))
    return cause, None


def _per_step(known: Context, one: _Told, total_ns: int, members: int = 1) -> int | None:
    """A sum over the steps that summaries use, per step and member, whole ns; null without steps."""
    count = known.step_counts.get(one.matched.set, 0)
    return round(total_ns // members / count) if count else None


def _verdict_row(known: Context, one: _Told) -> dict[str, Any]:
    matched, waits = one.matched, one.waits
    members = len(matched.ranks)
    cause, detail = _cause(known, one)
    recoverable = skew_ns = None
    mean_step = known.mean_step_ns.get(matched.set)
    if waits.count:
        recoverable = _per_step(known, one, waits.recoverable_ns)
        skew_ns = _per_step(known, one, waits.exposed_skew_ns)
    missing = known.missing_members(matched)
    share, kind = classify(
        int(waits.wait_ns.sum()),
        waits.duration_ns,
        waits.count * members,
        waits.count,
        one.clock.resolution_ns,
        whole=not missing,
    )
    total = known.instance_count(matched.communicator)
    mean_skew = waits.skew_ns / waits.count if waits.count else 0.0
    precision = Precision(one.clock.residual_ns or 0.0, one.clock.asymmetry_ns or 0.0)
    late = _late_ranks(one.straggler)
    others = [k for k, rank in enumerate(matched.ranks) if rank not in late]
    waited = None
    if waits.count and others:
        waited = _per_step(known, one, int(waits.summed_wait_ns[others].sum()), len(others))
    recoverable_frac = recoverable / mean_step if recoverable is not None and mean_step else None
    facts = Facts(
        matched.ranks,
        one.straggler,
        share,
        kind,
        waits.count,
        known.step_counts.get(matched.set, 0),
        recoverable,
        skew_ns,
        recoverable_frac,
        cause,
        detail,
        one.clock,
        mean_skew > precision.of_mean(waits.count) and mean_skew > precision.resolution_ns,
        mean_skew,
        None if waited is None else float(waited),
        missing,
    )
    return {
        "set": matched.set,
        "communicator": matched.communicator,
        "members": rank_list(matched.ranks),
        "class": kind,
        "straggler_rank": one.straggler.rank,
        "late_ranks": rank_list(one.straggler.late_ranks) if one.straggler.late_ranks else None,
        "last_frac": one.straggler.last_frac,
        "p_value": one.straggler.p_value,
        "cause": cause,
        "cause_detail": detail,
        "recoverable_per_step_ns": recoverable,
        "recoverable_frac": recoverable_frac,
        "skew_per_step_ns": skew_ns,
        "matched_count": waits.count,
        "unmatched_count": total - known.instance_count(matched.communicator, accepted=True),
        "sentence": verdict_sentence(facts),
    }


def _rank_rows(known: Context, one: _Told) -> pl.DataFrame:
    matched, waits, count = one.matched, one.waits, one.waits.count
    members = len(matched.ranks)
    means = one.judged.means
    nothing = [None] * members
    per_step: Any = nothing
    ratio: Any = nothing
    steps = known.step_counts.get(matched.set, 0)
    if steps:
        per_step = [_per_step(known, one, total) for total in waits.summed_wait_ns.tolist()]
        compute = np.array([_per_step(known, one, total) for total in one.judged.compute_ns.tolist()])
        usual = int(np.sort(compute)[(members + 1) // 2 - 1])
        ratio = compute / usual if usual > 0 else nothing
    return RANKS.frame(
        {
            "communicator": [matched.communicator] * members,
            "rank": matched.ranks,
            "matched_count": [count] * members,
            "first_count": waits.first_count,
            "last_count": waits.last_count,
            "last_frac": waits.last_count / count if count else nothing,
            "wait_ns": waits.wait_ns,
            "wait_per_step_ns": per_step,
            "caused_wait_ns": waits.caused_ns,
            "critical_wait_ns": waits.critical_ns,
            "lateness_mean_ns": means.get("lateness", nothing),
            "device_lateness_ns": means.get("device", nothing),
            "host_lateness_ns": means.get("host", nothing),
            "upstream_lateness_ns": means.get("upstream", nothing),
            "other_lateness_ns": means.get("other", nothing),
            "compute_ratio": ratio,
        }
    )


def _nothing(known: Context) -> str:
    ranks = known.trace.ranks
    if len(ranks) == 1:
        if not len(known.operations):
            return (
                f"Only rank {ranks[0]} is here, and it runs no collectives: nothing shows it waiting for another rank."
            )
        return (
            f"Only rank {ranks[0]} is here: its collectives' durations include waiting for ranks that are not, so who "
            "waits for whom cannot be told."
        )
    every = sorted(known.alignment.notices, key=lambda notice: notice.code != "no-alignment")
    reasons = [notice.message for notice in every if notice.severity == "warning"]
    said = reasons[0] if reasons else "no synchronising collectives were found"
    again = " Record again with --cuda-graph-trace=node." if hides_collectives(known.trace.notices) else ""
    return f"Who waits for whom among ranks {rank_list(ranks)} cannot be told: {said}.{again}"


def _no_verdict(known: Context) -> Notice:
    expected = known.trace.options.expect_ranks
    ranks = known.trace.ranks
    if len(ranks) == 1:
        seen = f"{len(ranks)} of {expected} ranks present" if expected else "only one rank is present"
        return Notice(
            "no-verdict",
            "warning",
            f"{seen}: waiting is measured against the other ranks of a collective, so verdict and ranks are left out",
            "Give the captures of all ranks.",
            len(ranks),
        )
    if hides_collectives(known.trace.notices):
        return Notice(
            "no-verdict",
            "warning",
            "the collectives inside CUDA graphs were not recorded one by one, so verdict and ranks are left out",
            "Record again with: nsys profile --cuda-graph-trace=node",
        )
    return Notice(
        "no-verdict",
        "warning",
        "no two ranks share matched synchronising collectives, so verdict and ranks are left out",
        "`tracelens collectives` shows what there is.",
    )


def _provenance(trace: LoadedTrace, known: Context, judged: list[_Told]) -> dict[str, Any]:
    methods = sorted({str(one.clock.method) for one in judged}) or ["none"]
    return trace.provenance() | {
        "window": known.selection_words,
        "clock": "+".join(methods),
        "step_marker": known.steps.facts.get("marker"),
        "warm_up_steps": known.steps.facts.get("warm_up_steps"),
        "resolution_ns": {
            str(one.matched.communicator): round(one.clock.resolution_ns)
            for one in judged
            if one.clock.method == "ends"
        },
        "wait_per_step_ns": {
            str(one.matched.communicator): _per_step(
                known, one, int(one.waits.summed_wait_ns.sum()), len(one.matched.ranks)
            )
            for one in judged
        },
        "duration_only_wait_per_step_ns": {
            str(one.matched.communicator): _per_step(
                known, one, int(one.waits.summed_shorter_ns.sum()), len(one.matched.ranks)
            )
            for one in judged
        },
    }
