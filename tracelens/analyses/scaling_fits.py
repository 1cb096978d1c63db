"""The `fit` table of a sweep: which numbers were fitted to a group of points, and whether they may be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tracelens.analyses.harness_results import MEAN_GENERATION, MEAN_GENERATION_PER_TOKEN
from tracelens.analyses.residual import TracedStep
from tracelens.analyses.scaling_fit import AffineFit, CurveFit, Estimate, affine_fit, curve_fit, lambda_at
from tracelens.analyses.scaling_model import ScalingModel
from tracelens.analyses.scaling_points import Group, Question
from tracelens.errors import NotIdentifiableError
from tracelens.frames import Column, Notice, Schema

FIT = Schema(
    "one fitted number",
    Column("parameter", pl.String, "its name with unit; the statistic in brackets where there are several"),
    Column("value", pl.Float64, "the estimate"),
    Column("ci_low", pl.Float64, "lower end of the 95 % interval; null without a degree of freedom"),
    Column("ci_high", pl.Float64, "upper end of the 95 % interval"),
    Column("r2", pl.Float64, "share of the weighted variance explained; null with fewer than three points"),
    Column("accepted", pl.Boolean, "whether it may be used"),
    Column("reason", pl.String, "why not, or what to keep in mind; empty otherwise"),
)

CONSTANT_LAMBDA_SPREAD = 0.25
FIXED_COST_RATIO = 2.0
_CLOSE = 0.05


@dataclass
class FitRows:
    """Rows of the `fit` table, and notices that came up while they were made."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)

    def add(
        self,
        name: str,
        suffix: str,
        estimate: Estimate,
        r2: float | None = None,
        reason: str = "",
        *,
        accepted: bool = True,
    ) -> None:
        """One row."""
        self.rows.append(
            {
                "parameter": f"{name}{suffix}",
                "value": estimate.value,
                "ci_low": estimate.low,
                "ci_high": estimate.high,
                "r2": r2,
                "accepted": accepted,
                "reason": reason,
            }
        )


def fit_group(
    group: Group,
    question: Question,
    traced: Mapping[int, TracedStep],
    fits: FitRows,
    *,
    alone: bool,
) -> str:
    """Fit one group and add its rows.

    Returns:
        Why nothing may be predicted; empty where it may.

    Raises:
        NotIdentifiableError: an affine fit was asked for and the only group cannot carry it.
    """
    suffix = "" if alone else f"[{group.label}]"
    if not group.tps or question.fit == "none":
        return ""
    if question.fit == "affine":
        return _affine(group, question, fits, suffix, alone=alone)
    if question.shape is None:
        fits.notices.append(
            Notice(
                "no-shape",
                "info",
                "without the number of layers no lambda is fitted",
                "give --model-preset or --layers",
            )
        )
        return ""
    return _curve(group, question, traced, fits, suffix)


def _affine(group: Group, question: Question, fits: FitRows, suffix: str, *, alone: bool) -> str:
    try:
        fit = affine_fit(group.tps, group.steps_us)
    except NotIdentifiableError as error:
        if alone:
            raise
        fits.notices.append(Notice("fit-refused", "warning", f"{group.label}: {error.message}", error.hint))
        return ""
    tokens = 1 if group.statistic == MEAN_GENERATION_PER_TOKEN else question.output_tokens or 1
    return _affine_rows(fit, group, question, tokens, fits, suffix)


def _affine_rows(fit: AffineFit, group: Group, question: Question, tokens: int, fits: FitRows, suffix: str) -> str:
    refusal = fit.refusal
    fits.add("a_us", suffix, fit.a, fit.r2, refusal, accepted=not refusal)
    fits.add("c_us", suffix, fit.c, fit.r2, refusal, accepted=not refusal)
    if question.shape is not None:
        scale = question.shape.all_reduces * tokens
        low, high = fit.c.low, fit.c.high
        equivalent = Estimate(
            fit.c.value / scale, None if low is None else low / scale, None if high is None else high / scale
        )
        note = f"c / (2 L x {tokens} tokens): host cost and prefill are in it, not only all-reduces"
        if tokens == 1 and group.statistic == MEAN_GENERATION:
            note = "c / 2 L of a whole generation: give --output-len for the cost of one all-reduce"
        fits.add("lambda_equivalent_us", suffix, equivalent, fit.r2, refusal or note, accepted=not refusal)
    if not refusal:
        return ""
    return f"a = {fit.a.value:,.1f} us, c = {fit.c.value:,.1f} us, R^2 {_r2_text(fit.r2)}; {refusal}"


def _r2_text(r2: float | None) -> str:
    return "-" if r2 is None else f"{r2:.3f}"


def _curve(
    group: Group,
    question: Question,
    traced: Mapping[int, TracedStep],
    fits: FitRows,
    suffix: str,
) -> str:
    t1_us = question.t1_us(group)
    model = question.model(group, t1_us or 1.0)
    if model is None:
        return ""
    sizes = sorted(set(group.tps))
    if len(sizes) < 2 or sizes[-1] <= 1:
        return f"{len(sizes)} distinct TP size{'s' if len(sizes) != 1 else ''} cannot carry lambda: it needs two, one above 1"
    caveat = "" if group.is_decode else "not a decode statistic: prefill and host cost are in it"
    largest = None if t1_us is None else _largest(group, model, fits, suffix, caveat)
    try:
        fit = curve_fit(
            group.tps,
            group.steps_us,
            all_reduces=model.shape.all_reduces,
            bandwidths_us=[model.bandwidth_us(tp) for tp in group.tps],
            known_t1_us=None if group.t1_us is not None else question.bytes_t1_us,
        )
    except NotIdentifiableError as error:
        if largest is None:
            return error.message
        fits.notices.append(Notice("fit-needs-three", "info", f"{group.label}: {error.message}", error.hint))
        return "" if largest >= 0 else f"lambda comes out negative ({largest:,.2f} us)"
    against = _against_traces(fit, traced)
    rejected = against.startswith("constant lambda")
    reason = "; ".join(text for text in (against, fit.refusal, caveat) if text)
    accepted = not (rejected or fit.refusal or caveat)
    if against:
        code = "constant-lambda-rejected" if rejected else "fixed-cost"
        fits.notices.append(Notice(code, "warning", against, "look at the parts of the residual"))
    fits.add("lambda_us", suffix, fit.lambda_us, fit.r2, reason, accepted=accepted)
    t1_note = "" if fit.t1_fitted else "fixed: from bytes over bandwidth"
    fits.add("t1_us", suffix, fit.t1_us, fit.r2, fit.refusal or t1_note, accepted=not fit.refusal)
    for tp, transfer_us in sorted(_transfers(traced).items()):
        fits.add(f"transfer_at_tp{tp}_us", suffix, Estimate(transfer_us), None, "median transfer of the capture")
    if not fit.refusal:
        _turning_points(fit, model.shape.all_reduces, fits, suffix)
    return (
        ""
        if not fit.refusal
        else f"lambda {fit.lambda_us.value:,.2f} us, t(1) {fit.t1_us.value:,.1f} us; {fit.refusal}"
    )


def _largest(group: Group, model: ScalingModel, fits: FitRows, suffix: str, caveat: str) -> float:
    """Lambda through the largest size, checked on the others; adds its row."""
    largest, step = max(zip(group.tps, group.steps_us, strict=True))
    value = lambda_at(largest, step, model.t1_us, model.shape.all_reduces, model.bandwidth_us(largest))
    others = [(tp, us) for tp, us in zip(group.tps, group.steps_us, strict=True) if 1 < tp < largest]
    checks = [f"TP {tp} {us / model.step_us(tp, value) - 1:+.1%}" for tp, us in others]
    close = all(abs(us / model.step_us(tp, value) - 1) <= _CLOSE for tp, us in others)
    reason = f"through TP {largest}"
    if checks:
        reason += f"; measured against it: {', '.join(checks)}"
        reason += "" if close else ": one lambda does not fit all"
    if value < 0:
        reason = f"negative: TP {largest} is faster than t(1)/p"
    fits.add(
        "lambda_at_largest_us",
        suffix,
        Estimate(value),
        None,
        f"{reason}; {caveat}" if caveat else reason,
        accepted=value >= 0 and close and not caveat,
    )
    return value


def _against_traces(fit: CurveFit, traced: Mapping[int, TracedStep]) -> str:
    """What the traced transfers say against a fitted lambda; empty where nothing."""
    transfers = _transfers(traced)
    if not transfers:
        return ""
    low, high = min(transfers.values()), max(transfers.values())
    if high > low * (1 + CONSTANT_LAMBDA_SPREAD):
        each = ", ".join(f"{us:.1f} us at TP {tp}" for tp, us in sorted(transfers.items()))
        return f"constant lambda rejected: the traced transfer is {each}"
    if fit.lambda_us.value > FIXED_COST_RATIO * high:
        return (
            f"fixed cost that is not communication: the fitted lambda is {fit.lambda_us.value:.1f} us, the traced transfer "
            f"{high:.1f} us"
        )
    return ""


def _transfers(traced: Mapping[int, TracedStep]) -> dict[int, float]:
    """TP size above 1 -> median traced transfer of an all-reduce, us: lambda(p) as measured."""
    return {tp: step.transfer_p50_ns / 1e3 for tp, step in traced.items() if tp > 1 and step.transfer_p50_ns}


def _turning_points(fit: CurveFit, all_reduces: int, fits: FitRows, suffix: str) -> None:
    fixed, t1_us = all_reduces * fit.lambda_us.value, fit.t1_us.value
    if fixed <= 0:
        return
    note = "beyond this size the all-reduces' fixed cost is more than the weights' share"
    fits.add("crossing_tp", suffix, Estimate(t1_us / fixed), None, note)
    if fixed < t1_us:
        fits.add("break_even_tp", suffix, Estimate(t1_us / (t1_us - fixed)), None, "above this size TP beats one GPU")
    else:
        fits.add("break_even_tp", suffix, Estimate(1.0), None, "one GPU beats every TP size", accepted=False)
