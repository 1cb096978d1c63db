"""A gate for continuous integration: has a part of the step grown by more than it may?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracelens.analyses.compare import CompareResult
from tracelens.errors import UsageError

Outcome = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True)
class Gate:
    """What a gate decided.

    Attributes:
        outcome: fail only if the whole interval lies above the limit; pass only if none of it does.
        sentence: the decision in words.
    """

    outcome: Outcome
    sentence: str


def judge(result: CompareResult, limit_frac: float, metric: str = "step") -> Gate:
    """Judges a comparison.

    Args:
        result: the comparison.
        limit_frac: growth that is allowed, as a share of the step before.
        metric: `step`, `collective` (exclusive time of collectives), `gap` (all causes), `bucket:NAME` or `gap:CAUSE`.

    Raises:
        UsageError: there is no such metric.
    """
    step_ns = int(result.tables["verdict"]["before_step_ns"][0])
    low_ns, delta_ns, high_ns = _interval(result, metric)
    limit_ns = limit_frac * step_ns
    told = f"{metric} {delta_ns / step_ns:+.2%} of the step"
    if low_ns is None or high_ns is None:
        return Gate("inconclusive", f"{told}, limit {limit_frac:+.2%}: inconclusive, no interval can be given")
    span = f"95 % interval {low_ns / step_ns:+.2%} .. {high_ns / step_ns:+.2%}"
    if low_ns > limit_ns:
        return Gate("fail", f"{told} ({span}), above the limit of {limit_frac:+.2%}")
    if high_ns <= limit_ns:
        return Gate("pass", f"{told} ({span}), within the limit of {limit_frac:+.2%}")
    return Gate("inconclusive", f"{told} ({span}), limit {limit_frac:+.2%}: inconclusive")


def _interval(result: CompareResult, metric: str) -> tuple[float | None, int, float | None]:
    """(low, delta, high) of a metric, ns. Of several rows the intervals' half-widths add, which is on the safe side."""
    kind, _, name = metric.partition(":")
    if metric == "step":
        row = result.tables["verdict"].row(0, named=True)
        return row["ci_low_ns"], int(row["delta_ns"]), row["ci_high_ns"]
    table = {"collective": "collectives", "gap": "gaps", "bucket": "buckets"}.get(kind)
    if table is None or ((kind == "bucket") != bool(name) and kind != "gap"):
        raise UsageError(f"--metric {metric} is not known", "Choose step, collective, gap, gap:CAUSE or bucket:NAME.")
    rows = result.tables[table]
    if name:
        rows = rows.filter(rows["name"] == name)
        if rows.is_empty():
            known = ", ".join(sorted(result.tables[table]["name"].to_list()))
            raise UsageError(f"--metric {metric}: there is no {kind} {name}", f"There is {known}.")
    if rows.is_empty():
        return 0.0, 0, 0.0
    delta = int(rows["delta_ns"].sum())
    if rows["ci_low_ns"].null_count():
        return None, delta, None
    return float(rows["ci_low_ns"].sum()), delta, float(rows["ci_high_ns"].sum())
