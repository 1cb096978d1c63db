"""The tensor-parallel scaling model: what a decode step should take at each TP size.

    t(p) = t(1) / p + [p > 1] (2 L lambda + 2 L * 2 (p - 1) / p * S / B)

`L` layers hold two all-reduces each, `lambda` is the fixed cost of one small all-reduce, `S` the bytes that one
all-reduce carries (tokens x width x bytes per element), `B` the GPU-to-GPU bandwidth, both directions together, and
`t(1)` the time to stream the weights once (bytes / memory bandwidth), or a measured step. The three terms are the
floor, the collective term and the bandwidth term. Times here are floats in microseconds: they are predictions, not
timestamps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from tracelens.analyses.scaling_presets import Gpu, ModelShape
from tracelens.errors import UsageError
from tracelens.frames import Column, Notice, Result, Schema
from tracelens.units import plural

PREDICTION = Schema(
    "one TP size at one lambda",
    Column("tp", pl.Int64, "tensor-parallel size p", "count"),
    Column("lambda_us", pl.Float64, "fixed cost of one small all-reduce", "us"),
    Column("floor_us", pl.Float64, "t(1) / p: the weights streamed once, shared by p GPUs", "us"),
    Column("collective_us", pl.Float64, "2 L lambda; 0 at p = 1", "us"),
    Column("bandwidth_us", pl.Float64, "2 L times a ring all-reduce's bytes over the link bandwidth; 0 at p = 1", "us"),
    Column("step_us", pl.Float64, "floor + collective + bandwidth", "us"),
    Column("speedup", pl.Float64, "t(1) / t(p)"),
    Column("efficiency", pl.Float64, "speed-up / p"),
    Column("budget_per_collective_us", pl.Float64, "floor / 2L: a lambda of this size doubles the step", "us"),
)

WHAT_IF = Schema(
    "one TP size under one change",
    Column("tp", pl.Int64, "tensor-parallel size p", "count"),
    Column("change", pl.String, "what is taken to change, everything else kept"),
    Column("step_us", pl.Float64, "the step now", "us"),
    Column("step_after_us", pl.Float64, "the step after the change, at best", "us"),
    Column("saved_us", pl.Float64, "the difference: an upper bound on what the change can save", "us"),
)


@dataclass(frozen=True)
class ScalingModel:
    """The model for one workload: everything but the TP size and lambda.

    Attributes:
        shape: the model.
        link_bytes_per_s: GPU-to-GPU bandwidth, both directions together.
        tokens: tokens in the step (the batch size of a decode step).
        t1_us: the step at p = 1, from bytes over bandwidth or measured.
    """

    shape: ModelShape
    link_bytes_per_s: float
    tokens: int
    t1_us: float

    @property
    def message_bytes(self) -> int:
        """Bytes that one all-reduce carries: tokens x width x bytes per element."""
        return self.tokens * self.shape.width * self.shape.dtype_bytes

    def bandwidth_us(self, tp: int) -> float:
        """The bandwidth term of all 2L all-reduces: 2 (p - 1) / p bytes per byte of message."""
        if tp <= 1:
            return 0.0
        return self.shape.all_reduces * 2 * (tp - 1) / tp * self.message_bytes / self.link_bytes_per_s * 1e6

    def step_us(self, tp: int, lambda_us: float) -> float:
        """t(p)."""
        fixed = self.shape.all_reduces * lambda_us if tp > 1 else 0.0
        return self.t1_us / tp + fixed + self.bandwidth_us(tp)


def floor_us(shape: ModelShape, gpu: Gpu) -> float:
    """t(1) from bytes over bandwidth.

    Raises:
        UsageError: the streamed bytes are not known.
    """
    if shape.streamed_bytes is None:
        raise UsageError(
            "the bytes that a decode step streams are not known",
            "give --model-preset NAME or --streamed-gb X, or a measured --t1-us X",
        )
    return shape.streamed_bytes / gpu.hbm_bytes_per_s * 1e6


class PredictResult(Result):
    """What the scaling model alone says; needs no capture."""

    command: ClassVar[str] = "predict"
    schemas: ClassVar[dict[str, Schema]] = {"prediction": PREDICTION}


def predict(model: ScalingModel, gpu: Gpu, tps: Sequence[int], lambdas_us: Sequence[float]) -> PredictResult:
    """The model at every TP size and lambda.

    Args:
        model: the workload.
        gpu: named in the provenance; its figures are already in `model`.
        tps: TP sizes, at least one.
        lambdas_us: fixed costs of one all-reduce in us, at least one.

    Returns:
        `prediction`: one row per lambda and TP size, in that order. The sentences give the largest size's terms, the
        fastest size, the sensitivity to lambda and where the fixed cost alone outweighs the floor.

    Raises:
        UsageError: a TP size below 1, a negative lambda, or a figure of the model that is not positive.
    """
    _check(model, tps, lambdas_us)
    rows = [_row(model, tp, lambda_us) for lambda_us in sorted(set(map(float, lambdas_us))) for tp in sorted(set(tps))]
    frame = PREDICTION.frame(rows)
    return PredictResult(
        tables={"prediction": frame},
        notices=tuple(shape_notices(model.shape, max(tps), model.tokens)),
        provenance=_provenance(model, gpu),
        sentences=tuple(_sentences(model, gpu, frame)),
    )


def _check(model: ScalingModel, tps: Sequence[int], lambdas_us: Sequence[float]) -> None:
    if not tps or min(tps) < 1:
        raise UsageError(f"TP sizes are whole numbers from 1, not {list(tps)}", "for example --tp 1 2 4 8")
    if not lambdas_us or min(lambdas_us) < 0 or not all(value < float("inf") for value in lambdas_us):
        raise UsageError(f"lambda is a time in us, 0 or more, not {list(lambdas_us)}", "for example --lambda-us 2 5 10")
    check_model(model)


def check_model(model: ScalingModel, *, width_known: bool = True) -> None:
    """Refuse a workload whose figures are not positive.

    Args:
        model: the workload.
        width_known: whether a width of 0, which stands for an unknown one, is refused too.

    Raises:
        UsageError: names the first such figure and its option.
    """
    figures = {
        "--layers": model.shape.layers,
        "--width": model.shape.width if width_known or model.shape.width else 1,
        "--dtype-bytes": model.shape.dtype_bytes,
        "--tokens": model.tokens,
        "--nvlink-gb-s": model.link_bytes_per_s,
        "--streamed-gb, --hbm-tb-s or --t1-us": model.t1_us,
    }
    for option, value in figures.items():
        if not 0 < value < float("inf"):
            raise UsageError(f"{option} must be above 0, not {value:g}")


def _row(model: ScalingModel, tp: int, lambda_us: float) -> dict[str, float]:
    step = model.step_us(tp, lambda_us)
    floor = model.t1_us / tp
    return {
        "tp": tp,
        "lambda_us": lambda_us,
        "floor_us": floor,
        "collective_us": model.shape.all_reduces * lambda_us if tp > 1 else 0.0,
        "bandwidth_us": model.bandwidth_us(tp),
        "step_us": step,
        "speedup": model.t1_us / step,
        "efficiency": model.t1_us / step / tp,
        "budget_per_collective_us": floor / model.shape.all_reduces,
    }


def shape_notices(shape: ModelShape, largest_tp: int, tokens: int) -> list[Notice]:
    """What the model leaves out for this shape: key/value heads, query heads, experts."""
    notices = []
    if shape.kv_heads and largest_tp > shape.kv_heads:
        one = shape.kv_heads == 1
        what = "one key/value head (or latent) does" if one else f"{shape.kv_heads} key/value heads do"
        notices.append(
            Notice(
                "kv-heads-replicate",
                "info",
                f"beyond TP {shape.kv_heads} the {what} not divide: {'it replicates' if one else 'they replicate'}, so "
                "the latency floor still falls but the cache that fits on one GPU does not grow",
                "measure throughput apart from latency at those sizes",
                count=shape.kv_heads,
            )
        )
    if shape.heads and shape.heads % largest_tp:
        notices.append(
            Notice(
                "heads-do-not-divide",
                "warning",
                f"{shape.heads} query heads do not divide by TP {largest_tp}: the engines refuse that size",
                count=shape.heads,
            )
        )
    if shape.experts and tokens > 1:
        notices.append(
            Notice(
                "experts-at-batch-1",
                "warning",
                f"the streamed bytes count the experts of one token; {tokens} tokens touch more of the "
                f"{shape.experts} experts of a layer, so the true floor is higher",
                "give --streamed-gb for this batch",
                count=shape.experts,
            )
        )
    return notices


def _provenance(model: ScalingModel, gpu: Gpu) -> dict[str, object]:
    shape = model.shape
    return {
        "model": shape.name,
        "model_source": shape.source,
        "gpu": gpu.name,
        "gpu_source": gpu.source,
        "layers": shape.layers,
        "width": shape.width,
        "dtype_bytes": shape.dtype_bytes,
        "kv_heads": shape.kv_heads,
        "streamed_gb": None if shape.streamed_bytes is None else shape.streamed_bytes / 1e9,
        "hbm_tb_s": gpu.hbm_bytes_per_s / 1e12,
        "nvlink_gb_s": model.link_bytes_per_s / 1e9,
        "nvlink_directions": "both together",
        "tokens": model.tokens,
        "message_bytes": model.message_bytes,
        "t1_us": model.t1_us,
    }


def sensitivity_sentence(shape: ModelShape) -> str:
    """d(step) / d(lambda), which is the number of all-reduces."""
    calls = shape.all_reduces
    return f"One microsecond more per all-reduce is {calls} us a step at {plural(shape.layers, 'layer')} ({calls} all-reduces)."


def turning_point_sentence(model: ScalingModel, lambda_us: float) -> str:
    """Where the fixed cost of the all-reduces outweighs the weights, and whether any size beats one GPU."""
    fixed = model.shape.all_reduces * lambda_us
    if fixed <= 0:
        return "Without a fixed cost per all-reduce the step falls as 1/p."
    if fixed >= model.t1_us:
        return f"At lambda {lambda_us:g} us the all-reduces alone ({fixed:,.0f} us) take longer than TP 1: use one GPU."
    crossing = model.t1_us / fixed
    gain = model.t1_us / (model.t1_us - fixed)
    return (
        f"At lambda {lambda_us:g} us a TP size pays off above TP {gain:.2f}, and beyond TP {crossing:.1f} the "
        "all-reduces' fixed cost is more than the weights' share."
    )


def _premise(model: ScalingModel, gpu: Gpu) -> str:
    """What t(1) is and where it comes from."""
    text = f"{model.shape.name} on {gpu.name}: t(1) is {model.t1_us:,.0f} us"
    streamed = model.shape.streamed_bytes
    if streamed is None or abs(floor_us(model.shape, gpu) - model.t1_us) > 1e-9 * model.t1_us:
        return f"{text}, as given."
    per_step = " with the experts of one token" if model.shape.experts else ""
    return f"{text} ({streamed / 1e9:,.2f} GB{per_step} at {gpu.hbm_bytes_per_s / 1e12:g} TB/s)."


def _sentences(model: ScalingModel, gpu: Gpu, prediction: pl.DataFrame) -> list[str]:
    sentences = [_premise(model, gpu)]
    for (lambda_us,), rows in prediction.group_by("lambda_us", maintain_order=True):
        last = rows.sort("tp").row(-1, named=True)
        fastest = rows.sort("step_us", "tp").row(0, named=True)
        text = (
            f"At lambda {lambda_us:g} us and TP {last['tp']} a step takes {last['step_us']:,.0f} us: "
            f"floor {last['floor_us']:,.0f}, collectives {last['collective_us']:,.0f}, bandwidth "
            f"{last['bandwidth_us']:,.2f}; efficiency {last['efficiency']:.1%}."
        )
        if fastest["tp"] != last["tp"]:
            text += f" The fastest of these sizes is TP {fastest['tp']} ({fastest['step_us']:,.0f} us)."
        sentences.append(text)
    sentences.append(sensitivity_sentence(model.shape))
    largest_lambda = prediction["lambda_us"].max()
    if isinstance(largest_lambda, float):
        sentences.append(turning_point_sentence(model, largest_lambda))
    return sentences
