"""The points of a sweep: what was measured at each TP size, grouped so that no ratio crosses two statistics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tracelens.analyses.harness_results import DECODE_STATISTICS, TRACED_DECODE_STEP, Measurement
from tracelens.analyses.residual import TracedStep
from tracelens.analyses.scaling_model import ScalingModel
from tracelens.analyses.scaling_presets import ModelShape
from tracelens.errors import NotComparableError, UsageError

GIVEN = "given"

_LITERAL = re.compile(r"^(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(ns|us|ms|s)$")
_UNIT_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


@dataclass(frozen=True)
class SweepPoint:
    """All that is known of one TP size.

    Attributes:
        tp: TP size.
        measurements: from harness results, or given as numbers.
        traced: the capture at this size; null without one.
    """

    tp: int
    measurements: Sequence[Measurement] = ()
    traced: TracedStep | None = None


@dataclass(frozen=True)
class Group:
    """Measurements of one statistic and one workload, ascending in TP size: within it ratios are allowed.

    Attributes:
        statistic: what `step_us` is a statistic of.
        label: the statistic, with the batch where several batches are present.
        measurements: one a TP size.
    """

    statistic: str
    label: str
    measurements: Sequence[Measurement]

    @property
    def tps(self) -> list[int]:
        """TP sizes with a time."""
        return [one.tp for one in self.measurements if one.step_us is not None]

    @property
    def steps_us(self) -> list[float]:
        """The times, beside `tps`."""
        return [one.step_us for one in self.measurements if one.step_us is not None]

    @property
    def is_decode(self) -> bool:
        """Whether the statistic is of decode steps, so that the model's step may be set against it."""
        return self.statistic in DECODE_STATISTICS or self.statistic == GIVEN

    @property
    def baseline(self) -> Measurement | None:
        """The measurement at the smallest TP size that has a time."""
        return next((one for one in self.measurements if one.step_us is not None), None)

    @property
    def t1_us(self) -> float | None:
        """The measured step at p = 1."""
        first = self.baseline
        return first.step_us if first is not None and first.tp == 1 else None


@dataclass(frozen=True)
class Question:
    """What is asked of a sweep.

    Attributes:
        shape: the model; null when nothing is known of it, and then nothing is predicted or fitted but `affine`.
        link_bytes_per_s: GPU-to-GPU bandwidth, both directions together.
        bytes_t1_us: t(1) from bytes over bandwidth; null when not known. A measured t(1) goes before it.
        gpu: name of the GPU whose figures these are.
        tokens: tokens in the step; null takes the batch of the measurements, else 1.
        lambda_us: reference lambda given by the user.
        fit: `model`; `affine` for t = a / p + c; `none` for the points alone.
        output_tokens: tokens of one generation, for the lambda-equivalent of an affine fit.
        what_if: changes to answer: `no-skew`, `no-host-gaps`, `lambda=X`.
    """

    shape: ModelShape | None = None
    link_bytes_per_s: float = 900e9
    bytes_t1_us: float | None = None
    gpu: str = "custom"
    tokens: int | None = None
    lambda_us: float | None = None
    fit: Literal["model", "affine", "none"] = "model"
    output_tokens: int | None = None
    what_if: Sequence[str] = ()

    def model(self, group: Group, t1_us: float) -> ScalingModel | None:
        """The scaling model of one group; null without a shape."""
        if self.shape is None:
            return None
        batch = next((one.batch for one in group.measurements if one.batch), None)
        return ScalingModel(self.shape, self.link_bytes_per_s, self.tokens or batch or 1, t1_us)

    def t1_us(self, group: Group) -> float | None:
        """t(1) for predictions of one group: measured, else from bytes."""
        return group.t1_us if group.t1_us is not None else self.bytes_t1_us


def literal_us(text: str) -> float | None:
    """A time written as a number with its unit (`153.8ms`), in us; null when it is none."""
    match = _LITERAL.match(text.strip())
    return float(match.group(1)) * _UNIT_US[match.group(2)] if match else None


def groups(points: Sequence[SweepPoint]) -> list[Group]:
    """Measurements by statistic and workload; a capture counts as one where no decode statistic was measured.

    Raises:
        UsageError: one TP size was given twice with the same statistic and workload.
        NotComparableError: several statistics, and not one of them at two TP sizes: nothing can be set in a ratio.
    """
    measurements = _fill_workloads([one for point in points for one in _of(point)])
    keys = sorted({(one.statistic, _sortable(one.workload)) for one in measurements})
    statistics = {statistic for statistic, _ in keys}
    found = []
    for statistic, workload in keys:
        members = [one for one in measurements if (one.statistic, _sortable(one.workload)) == (statistic, workload)]
        _check_unique(members)
        several = sum(key[0] == statistic for key in keys) > 1
        label = f"{statistic} {_workload_text(members[0])}" if several else statistic
        found.append(Group(statistic, label, sorted(members, key=lambda one: one.tp)))
    if len(found) > 1 and all(len(group.measurements) < 2 for group in found):
        raise NotComparableError(
            f"each TP size carries another statistic or workload ({', '.join(group.label for group in found)}): no "
            "ratio may cross them",
            "use the same harness, batch and lengths at every TP size"
            if len(statistics) > 1
            else "use the same batch and lengths at every TP size",
        )
    return found


def _of(point: SweepPoint) -> list[Measurement]:
    measured = list(point.measurements)
    traced = point.traced
    if traced is None or any(one.statistic in DECODE_STATISTICS for one in measured):
        return measured
    step_us = traced.step_ns / 1e3
    tokens_per_s = None if traced.tokens is None else traced.tokens / step_us * 1e6
    return [*measured, Measurement(point.tp, TRACED_DECODE_STEP, step_us, tokens_per_s, batch=traced.tokens)]


def _fill_workloads(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Where a statistic's points know at most one value of batch or lengths, those that do not say take it."""
    filled = list(measurements)
    for name in ("batch", "input_len", "output_len"):
        for statistic in {one.statistic for one in filled}:
            known = {getattr(one, name) for one in filled if one.statistic == statistic} - {None}
            if len(known) == 1:
                value = known.pop()
                filled = [replace(one, **{name: value}) if one.statistic == statistic else one for one in filled]
    return filled


def _sortable(workload: tuple[int | None, int | None, int | None]) -> tuple[int, int, int]:
    batch, input_len, output_len = workload
    return batch or 0, input_len or 0, output_len or 0


def _workload_text(measurement: Measurement) -> str:
    parts = zip(("bs", "in", "out"), measurement.workload, strict=True)
    return " ".join(f"{name}={value}" for name, value in parts if value is not None) or "unknown workload"


def _check_unique(members: Sequence[Measurement]) -> None:
    seen: dict[int, Measurement] = {}
    for one in members:
        if one.tp in seen:
            raise UsageError(
                f"TP {one.tp} was given twice with the same statistic ({seen[one.tp].source} and {one.source})",
                "give each TP size one result of each kind",
            )
        seen[one.tp] = one
