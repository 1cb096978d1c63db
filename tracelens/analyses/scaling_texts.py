"""The sentences and notices of a scaling answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from tracelens.analyses.harness_results import MEANINGS, MEDIAN_DECODE_STEP
from tracelens.analyses.residual import TracedStep, implementation_switches, part_sentence
from tracelens.analyses.scaling_model import sensitivity_sentence, shape_notices
from tracelens.analyses.scaling_points import Group, Question
from tracelens.analyses.scaling_presets import ModelShape
from tracelens.frames import Notice

_NOTEWORTHY = 0.005
_CAPTURE_DIFFERS = 0.1
_SCATTER = 0.1


def group_sentences(
    group: Group, question: Question, rows: Sequence[Mapping[str, Any]], traced: Mapping[int, TracedStep]
) -> list[str]:
    """What the points of one statistic say: efficiency, where a larger size is slower, and the residuals."""
    timed = [row for row in rows if row["step_us"] is not None]
    if not timed:
        return []
    sentences = []
    first, last = timed[0], timed[-1]
    if last.get("speedup") is not None and last is not first:
        sentences.append(
            f"{group.label}: TP {last['tp']} is {last['speedup']:.2f}x as fast as TP {first['tp']}, efficiency "
            f"{last['efficiency']:.1%} ({first['step_us']:,.0f} us to {last['step_us']:,.0f} us)."
        )
        fastest = min(timed, key=lambda row: (row["step_us"], row["tp"]))
        if fastest is not last:
            sentences.append(f"{group.label}: the fastest size is TP {fastest['tp']} ({fastest['step_us']:,.0f} us).")
    measured, streamed = group.t1_us, question.bytes_t1_us
    if measured is not None and streamed is not None and group.is_decode:
        sentences.append(
            f"TP 1 takes {measured / streamed:.2f}x the time of streaming the weights ({streamed:,.0f} us on "
            f"{question.gpu})."
        )
    for before, after in pairwise(timed):
        if after["step_us"] >= before["step_us"]:
            sentences.append(_slower_sentence(group, before, after, traced))
    for row in timed:
        if row.get("parts"):
            sentences.append(part_sentence(row["tp"], sum(row["parts"].values()), row["parts"]))
        elif row.get("residual_us") is not None and abs(row["residual_us"]) > _NOTEWORTHY * row["step_us"]:
            side = "more" if row["residual_us"] >= 0 else "less"
            sentences.append(
                f"TP {row['tp']} takes {abs(row['residual_us']):,.0f} us {side} than predicted (lambda "
                f"{row['reference_lambda_us']:.2f} us, {row['reference_source']}); a capture would say why."
            )
    return sentences


def _slower_sentence(
    group: Group, before: Mapping[str, Any], after: Mapping[str, Any], traced: Mapping[int, TracedStep]
) -> str:
    text = (
        f"{group.label}: TP {after['tp']} is slower than TP {before['tp']} ({after['step_us']:,.0f} us against "
        f"{before['step_us']:,.0f} us)"
    )
    small, large = traced.get(before["tp"]), traced.get(after["tp"])
    if small is None or large is None:
        return f"{text}; a capture of each would split collectives from the rest."
    collective = (_collective_ns(large) - _collective_ns(small)) / 1e3
    rest = (large.step_ns - small.step_ns) / 1e3 - collective
    return f"{text}: collectives {collective:+,.0f} us, everything else {rest:+,.0f} us."


def _collective_ns(step: TracedStep) -> float:
    return sum(one.wait_ns + one.transfer_ns for one in step.collectives)


def traced_sentences(traced: Mapping[int, TracedStep], shape: ModelShape | None) -> list[str]:
    """What the captures say beside the residuals: changes of implementation, and the sensitivity to lambda."""
    sentences = implementation_switches(list(traced.values()))
    if shape is not None:
        sentences.append(sensitivity_sentence(shape))
    return sentences


def statistic_notices(found: Sequence[Group], question: Question, traced: Mapping[int, TracedStep]) -> list[Notice]:
    """Statistics side by side, a missing baseline, captures without collectives, and what the model leaves out."""
    notices = []
    statistics = {group.statistic for group in found}
    if len(statistics) > 1:
        meanings = "; ".join(f"{name}: {MEANINGS.get(name, 'given by hand')}" for name in sorted(statistics))
        notices.append(
            Notice(
                "statistics-apart",
                "warning",
                f"these statistics are not comparable and stand apart, no ratio crosses them: {meanings}",
                "use one harness for all TP sizes to rank them",
                count=len(statistics),
            )
        )
    notices.extend(_baseline_notices(found))
    if question.bytes_t1_us is not None and any(group.is_decode and group.t1_us is None for group in found):
        notices.append(
            Notice(
                "t1-from-bytes",
                "info",
                f"no TP 1 was measured: t(1) is {question.bytes_t1_us:,.0f} us, streamed bytes over the memory bandwidth "
                f"of {question.gpu}",
                "--gpu, --hbm-tb-s and --streamed-gb say otherwise",
            )
        )
    notices.extend(
        Notice(
            "no-decode-statistic",
            "info",
            f"{group.label} holds prefill and host cost: no decode step is predicted from it",
            f"measure {MEDIAN_DECODE_STEP} (SGLang one-batch) or add a capture",
        )
        for group in found
        if not group.is_decode and question.shape is not None
    )
    blind = [tp for tp, step in traced.items() if tp > 1 and not step.collectives]
    if blind:
        notices.append(
            Notice(
                "no-collectives-traced",
                "warning",
                f"the capture of TP {', '.join(map(str, blind))} shows no collectives: its residual is not attributed",
                "record with --cuda-graph-trace=node",
                count=len(blind),
            )
        )
    notices.extend(_capture_notices(found, traced))
    notices.extend(
        Notice(
            "iterations-scatter",
            "warning",
            f"the iterations of {one.source} scatter by {one.scatter_frac:.0%} (p10 to p90 over the median)",
            "is the machine quiet? A mean over such iterations moves from run to run",
        )
        for group in found
        for one in group.measurements
        if one.scatter_frac is not None and one.scatter_frac > _SCATTER
    )
    if question.shape is not None and found:
        largest = max(tp for group in found for tp in [one.tp for one in group.measurements])
        notices.extend(shape_notices(question.shape, largest, question.tokens or 1))
    return notices


def _capture_notices(found: Sequence[Group], traced: Mapping[int, TracedStep]) -> list[Notice]:
    """Captures whose step is not the measured one: what the profiler adds, or another workload."""
    notices = []
    for group in found:
        for tp, step_us in zip(group.tps, group.steps_us, strict=True):
            if not group.is_decode or tp not in traced:
                continue
            excess = traced[tp].step_ns / 1e3 / step_us - 1
            if abs(excess) > _CAPTURE_DIFFERS:
                notices.append(
                    Notice(
                        "capture-differs",
                        "warning",
                        f"the capture's step at TP {tp} is {traced[tp].step_ns / 1e3:,.0f} us, {excess:+.0%} of the "
                        f"measured {step_us:,.0f} us: the difference stands in the residual as unexplained",
                        "profiler overhead, or another batch or context",
                    )
                )
    return notices


def _baseline_notices(found: Sequence[Group]) -> list[Notice]:
    notices = []
    for group in found:
        base = group.baseline
        if base is not None and base.tp > 1 and len(group.tps) > 1:
            notices.append(
                Notice(
                    "baseline-not-tp1",
                    "info",
                    f"{group.label} has no TP 1: speed-up and efficiency are against TP {base.tp}",
                    "efficiency is p0 t(p0) / (p t(p))",
                )
            )
    return notices


def refusal_hint(fit: str, group: Group) -> str:
    """What to try after a refused fit."""
    if fit == "affine":
        return "check the outlier, or use --fit none to see the points alone"
    if not group.is_decode:
        return "whole generations: try --fit affine; --fit none shows the points alone"
    return "give --lambda-us or a capture per TP size as reference, or --fit none to see the points alone"
