"""The four numbers per TP size, what one lambda says of them, and where the rest of the time goes.

Step latency, speed-up and efficiency, throughput, and all-reduce time per step, from the engines' own benchmarks and
from captures. Points of different statistics stand apart. A fitted lambda describes the curve and is only reported;
the residual is taken against a reference that the point itself had no part in, or the fit would swallow the waiting
that is to be found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from tracelens.analyses import scaling_texts as texts
from tracelens.analyses.residual import Prediction, TracedStep, attribute
from tracelens.analyses.scaling_fit import curve_fit, lambda_at
from tracelens.analyses.scaling_fits import FIT, FitRows, fit_group
from tracelens.analyses.scaling_model import WHAT_IF, ScalingModel, check_model
from tracelens.analyses.scaling_points import Group, Question, SweepPoint, groups
from tracelens.errors import NotIdentifiableError, UsageError
from tracelens.frames import Column, Notice, Result, Schema

POINTS = Schema(
    "one TP size under one statistic; one column per part of the residual follows, empty where there is no capture",
    Column("tp", pl.Int64, "tensor-parallel size p", "count"),
    Column("statistic", pl.String, "what step_us is a statistic of; ratios never cross statistics"),
    Column("step_us", pl.Float64, "measured time", "us"),
    Column("speedup", pl.Float64, "t(p0) / t(p) within the statistic, p0 the smallest size measured"),
    Column("efficiency", pl.Float64, "speed-up x p0 / p"),
    Column("tokens_per_s", pl.Float64, "output tokens per second of the whole batch"),
    Column("all_reduce_us", pl.Float64, "all-reduce time per step from the capture, waits included", "us"),
    Column("all_reduce_frac", pl.Float64, "its share of the traced step", "frac"),
    Column("predicted_us", pl.Float64, "the model at the reference lambda", "us"),
    Column("reference_lambda_us", pl.Float64, "lambda that the residual is taken against", "us"),
    Column("reference_source", pl.String, "where that lambda comes from; null where there is none"),
    Column("residual_us", pl.Float64, "measured - predicted", "us"),
)


class ScalingResult(Result):
    """A measured TP sweep: points, fit, and on request what changes would save.

    `points` has the columns of its schema, then one column `<part>_us` for each part of any residual.
    """

    command: ClassVar[str] = "scaling"
    schemas: ClassVar[Mapping[str, Schema]] = {"points": POINTS, "fit": FIT, "what_if": WHAT_IF}

    def __post_init__(self) -> None:
        """Check the tables; the parts that follow the fixed columns of `points` must be times."""
        for name, frame in self.tables.items():
            self.schemas[name].check(frame.select(self.schemas[name].names) if name == "points" else frame)
        extra = self.tables["points"].columns[len(POINTS.columns) :]
        wrong = [name for name in extra if not name.endswith("_us")]
        if self.tables["points"].columns[: len(POINTS.columns)] != POINTS.names or wrong:
            raise TypeError(f"points has the columns {self.tables['points'].columns}")


@dataclass(frozen=True)
class Reference:
    """The lambda, and with it t(1), that a point is predicted from."""

    lambda_us: float | None
    t1_us: float | None
    source: str | None


def scaling(points: Sequence[SweepPoint], question: Question) -> ScalingResult:
    """Points, fit and residuals of a sweep.

    Args:
        points: one entry a TP size.
        question: model, reference and options.

    Returns:
        `points`: rows by statistic, then TP size. `fit`: fitted numbers with 95 % intervals; absent where nothing
        could be fitted, and a notice says why. `what_if` where it was asked for.

    Raises:
        UsageError: a TP size below 1 or given twice, or a negative reference lambda.
        NotComparableError: the points share no statistic.
        NotIdentifiableError: too few TP sizes, or a fit that nothing may be predicted from, and no other reference.
    """
    _check(points, question)
    found = groups(points)
    traced = {point.tp: point.traced for point in points if point.traced is not None}
    rows: list[dict[str, Any]] = []
    fits = FitRows()
    notices: list[Notice] = []
    sentences: list[str] = []
    for group in found:
        alone = len(found) == 1
        refusal = fit_group(group, question, traced, fits, alone=alone)
        references = {tp: _reference(group, question, traced, tp) for tp in group.tps}
        if refusal and alone and not _has_other_reference(references):
            raise NotIdentifiableError(f"no prediction: {refusal}", texts.refusal_hint(question.fit, group))
        mine = [_point_row(group, question, references, traced, one.tp) for one in group.measurements]
        rows.extend(mine)
        sentences.extend(texts.group_sentences(group, question, mine, traced))
    frame = _points_frame(rows)
    sentences.extend(texts.traced_sentences(traced, question.shape))
    notices.extend(texts.statistic_notices(found, question, traced))
    notices.extend(fits.notices)
    tables = {"points": frame}
    if fits.rows:
        tables["fit"] = FIT.frame(fits.rows)
    if question.what_if:
        tables["what_if"] = WHAT_IF.frame(_what_if(rows, question, traced))
    return ScalingResult(
        tables=tables,
        notices=tuple(sorted(set(notices), key=lambda one: (one.severity != "warning", one.code, one.message))),
        provenance=_provenance(points, question),
        sentences=tuple(dict.fromkeys(sentences)),
    )


def _check(points: Sequence[SweepPoint], question: Question) -> None:
    if not points:
        raise UsageError("no TP size was given", "for example --tp 1=tp1.jsonl --tp 8=tp8.jsonl,tp8.sqlite")
    if min(point.tp for point in points) < 1:
        raise UsageError("TP sizes are whole numbers from 1")
    if question.lambda_us is not None and not 0 <= question.lambda_us < float("inf"):
        raise UsageError(f"--lambda-us is a time of 0 or more, not {question.lambda_us:g}")
    for change in question.what_if:
        _wanted_lambda(change)
    if question.shape is not None:
        whole = ScalingModel(
            question.shape, question.link_bytes_per_s, question.tokens or 1, question.bytes_t1_us or 1.0
        )
        check_model(whole, width_known=False)


def _wanted_lambda(change: str) -> float | None:
    """The lambda that a change of `--what-if` asks for; null for the changes without one.

    Raises:
        UsageError: it is no change that can be answered.
    """
    if change in ("no-skew", "no-host-gaps"):
        return None
    name, _, value = change.partition("=")
    try:
        wanted = float(value)
    except ValueError:
        wanted = -1.0
    if name != "lambda" or not 0 <= wanted < float("inf"):
        raise UsageError(f"{change!r} is no change that can be answered", "known: no-skew, no-host-gaps, lambda=X")
    return wanted


def _reference(group: Group, question: Question, traced: Mapping[int, TracedStep], tp: int) -> Reference:
    """The reference lambda of one point: given, traced at the smallest p above 1, else fitted without the point."""
    t1_us = question.t1_us(group)
    if question.shape is None or not group.is_decode or question.fit == "affine":
        return Reference(None, None, None)
    if tp == 1:
        return Reference(None, t1_us, "none needed at TP 1" if t1_us is not None else None)
    if question.lambda_us is not None:
        return Reference(question.lambda_us, t1_us, "given")
    for size in sorted(traced):
        transfer_ns = traced[size].transfer_p50_ns
        if size > 1 and transfer_ns is not None:
            return Reference(transfer_ns / 1e3, t1_us, f"median transfer traced at TP {size}")
    return _leave_one_out(group, question, tp)


def _leave_one_out(group: Group, question: Question, tp: int) -> Reference:
    t1_us = question.t1_us(group)
    model = question.model(group, t1_us or 1.0)
    others = [(p, step) for p, step in zip(group.tps, group.steps_us, strict=True) if p != tp]
    if model is None or not others:
        return Reference(None, t1_us, None)
    sizes, steps = [p for p, _ in others], [step for _, step in others]
    bandwidths = [model.bandwidth_us(p) for p in sizes]
    try:
        if group.t1_us is not None and len(set(sizes)) == 2:
            # t(1) was measured and one other size is left: lambda goes exactly through it.
            size, step = max(others)
            value = lambda_at(size, step, group.t1_us, model.shape.all_reduces, bandwidths[sizes.index(size)])
            return Reference(value, t1_us, f"fitted to TP {size}") if value >= 0 else Reference(None, t1_us, None)
        known = None if group.t1_us is not None else question.bytes_t1_us
        fit = curve_fit(sizes, steps, all_reduces=model.shape.all_reduces, bandwidths_us=bandwidths, known_t1_us=known)
    except NotIdentifiableError:
        return Reference(None, t1_us, None)
    if fit.refusal:
        return Reference(None, t1_us, None)
    return Reference(fit.lambda_us.value, t1_us or fit.t1_us.value, f"fitted without TP {tp}")


def _has_other_reference(references: Mapping[int, Reference]) -> bool:
    """Whether some point is predicted from a lambda that was given or traced, so that a refused fit ends nothing."""
    return any(one.lambda_us is not None and not (one.source or "").startswith("fitted") for one in references.values())


def _point_row(
    group: Group,
    question: Question,
    references: Mapping[int, Reference],
    traced: Mapping[int, TracedStep],
    tp: int,
) -> dict[str, Any]:
    one = next(measurement for measurement in group.measurements if measurement.tp == tp)
    base = group.baseline
    row: dict[str, Any] = {
        "tp": tp,
        "statistic": group.label,
        "step_us": one.step_us,
        "tokens_per_s": one.tokens_per_s,
    }
    if one.step_us is not None and base is not None and base.step_us is not None and len(group.tps) > 1:
        row["speedup"] = base.step_us / one.step_us
        row["efficiency"] = row["speedup"] * base.tp / tp
    step = traced.get(tp)
    if step is not None and group.is_decode and tp > 1 and step.all_reduces:
        row["all_reduce_us"] = step.all_reduce_ns / 1e3
        row["all_reduce_frac"] = step.all_reduce_ns / step.step_ns
    reference = references.get(tp)
    if reference is not None and one.step_us is not None:
        _add_residual(row, group, question, reference, traced, one.step_us)
    return row


def _add_residual(
    row: dict[str, Any],
    group: Group,
    question: Question,
    reference: Reference,
    traced: Mapping[int, TracedStep],
    step_us: float,
) -> None:
    tp: int = row["tp"]
    row["reference_lambda_us"], row["reference_source"] = reference.lambda_us, reference.source
    if reference.t1_us is None or (reference.lambda_us is None and tp > 1):
        return
    model = question.model(group, reference.t1_us)
    if model is None:
        return
    lambda_us = reference.lambda_us or 0.0
    predicted_us = model.step_us(tp, lambda_us)
    row["predicted_us"], row["residual_us"] = predicted_us, step_us - predicted_us
    if tp > 1 and tp in traced:
        prediction = Prediction(
            reference.t1_us * 1e3,
            lambda_us * 1e3,
            model.bandwidth_us(tp) * 1e3,
            model.shape.all_reduces,
            predicted_us * 1e3,
        )
        parts = attribute(step_us * 1e3, prediction, traced[tp], traced.get(1))
        row["parts"] = parts
        # The parts are whole ns; the residual is their sum, so that it closes exactly.
        row["residual_us"] = sum(parts.values()) / 1e3


def _points_frame(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    parts = list(dict.fromkeys(name for row in rows for name in row.get("parts", {}) if name != "rest"))
    ordered = sorted(parts, key=_part_order)
    if any("parts" in row for row in rows):
        ordered.append("rest")
    records = [
        {name: row.get(name) for name in POINTS.names}
        | {f"{name}_us": _in_us(row.get("parts", {}).get(name)) for name in ordered}
        for row in rows
    ]
    types = {column.name: column.dtype for column in POINTS.columns} | {f"{name}_us": pl.Float64 for name in ordered}
    return pl.DataFrame(records, schema=types)


def _in_us(value_ns: int | None) -> float | None:
    return None if value_ns is None else value_ns / 1e3


_PART_KINDS = ("wait", "transfer_", "extra_collectives", "gap_", "compute_")


def _part_order(name: str) -> tuple[int, str]:
    return next((place for place, kind in enumerate(_PART_KINDS) if name.startswith(kind)), len(_PART_KINDS)), name


def _what_if(
    rows: Sequence[Mapping[str, Any]], question: Question, traced: Mapping[int, TracedStep]
) -> list[dict[str, Any]]:
    """What each change would leave of each step, at best."""
    answers = []
    for change in question.what_if:
        for row in rows:
            saved = None if row["step_us"] is None else _saved_us(change, row, question, traced.get(row["tp"]))
            if saved is not None:
                answers.append(
                    {
                        "tp": row["tp"],
                        "change": change,
                        "step_us": row["step_us"],
                        "step_after_us": row["step_us"] - saved,
                        "saved_us": saved,
                    }
                )
    return answers


def _saved_us(change: str, row: Mapping[str, Any], question: Question, step: TracedStep | None) -> float | None:
    if row["tp"] <= 1 and not change.startswith("no-host"):
        return None
    if change == "no-skew":
        return None if step is None or step.skew_ns is None else step.skew_ns / 1e3
    if change == "no-host-gaps":
        return None if step is None or step.late_host_ns is None else step.late_host_ns / 1e3
    wanted = _wanted_lambda(change)
    if wanted is None:
        return None
    if step is not None and step.all_reduces:
        transfers_ns = sum(one.transfer_ns for one in step.all_reduces)
        return transfers_ns / 1e3 - step.all_reduce_calls * wanted
    if row.get("reference_lambda_us") is None or question.shape is None:
        return None
    saved: float = question.shape.all_reduces * (row["reference_lambda_us"] - wanted)
    return saved


def _provenance(points: Sequence[SweepPoint], question: Question) -> dict[str, Any]:
    shape = question.shape
    return {
        "sources": {str(point.tp): [one.source for one in point.measurements if one.source] for point in points},
        "traced_steps": {str(point.tp): point.traced.step_count for point in points if point.traced is not None},
        "model": None if shape is None else shape.name,
        "model_source": None if shape is None else shape.source,
        "layers": None if shape is None else shape.layers,
        "width": None if shape is None else shape.width,
        "nvlink_gb_s": question.link_bytes_per_s / 1e9,
        "gpu": question.gpu,
        "bytes_t1_us": question.bytes_t1_us,
        "fit": question.fit,
    }
