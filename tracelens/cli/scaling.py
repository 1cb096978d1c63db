"""`tracelens scaling`: a measured TP sweep against the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tracelens.cli import workload as given
from tracelens.cli.options import Asked, over_trace_options

if TYPE_CHECKING:
    from tracelens.analyses.scaling_points import Question, SweepPoint
    from tracelens.frames import Notice


@over_trace_options
def scaling(
    asked: Asked,
    tp: Annotated[
        list[str],
        typer.Option(
            "--tp",
            metavar="N=FILE[,TRACE]",
            help="A TP size with its benchmark result (vLLM latency JSON, SGLang one-batch jsonl, AIPerf summary), or a "
            "time such as 881us, and its capture; repeat for each size.",
        ),
    ],
    model_preset: given.Preset = None,
    gpu: given.GpuName = None,
    lambda_us: Annotated[
        float | None, typer.Option(help="Reference lambda for the residuals, us.", show_default=False)
    ] = None,
    fit: Annotated[
        Literal["model", "affine", "none"],
        typer.Option(help="model: t(1) and lambda; affine: t = a / p + c, for whole generations; none."),
    ] = "model",
    output_len: Annotated[
        int | None, typer.Option(min=1, help="Output tokens of a generation, which vLLM's JSON does not record.")
    ] = None,
    what_if: Annotated[
        str | None,
        typer.Option(metavar="CHANGES", help="no-skew, no-host-gaps, lambda=X: the step that would result, at best."),
    ] = None,
    streamed_gb: given.StreamedGb = None,
    hbm_tb_s: given.HbmTbS = None,
    nvlink_gb_s: given.NvlinkGbS = None,
    layers: given.Layers = None,
    width: given.Width = None,
    dtype_bytes: given.DtypeBytes = None,
    tokens: given.Tokens = None,
    kv_heads: given.KvHeads = None,
) -> int:
    """Latency, speed-up, throughput and all-reduce time per TP size, one fitted lambda, and where the rest goes."""
    from dataclasses import replace

    from tracelens.analyses import scaling as analysis
    from tracelens.analyses.scaling_points import Question
    from tracelens.cli.present import present
    from tracelens.views import scaling as view

    workload = given.Workload(
        model_preset, gpu, streamed_gb, hbm_tb_s, nvlink_gb_s, layers, width, dtype_bytes, kv_heads
    )
    shape, machine = workload.shape(), workload.machine()
    bytes_us = None
    if shape is not None and shape.streamed_bytes is not None:
        bytes_us = shape.streamed_bytes / machine.hbm_bytes_per_s * 1e6
    question = Question(
        shape=shape,
        link_bytes_per_s=machine.link_bytes_per_s,
        bytes_t1_us=bytes_us,
        gpu=machine.name,
        tokens=tokens,
        lambda_us=lambda_us,
        fit=fit,
        output_tokens=output_len,
        what_if=tuple(change.strip() for change in what_if.split(",")) if what_if else (),
    )
    points, notices = _points(asked, tp, question)
    result = analysis.scaling(points, question)
    return present(replace(result, notices=(*notices, *result.notices)), asked.output, view.show)


def _points(asked: Asked, words: list[str], question: Question) -> tuple[list[SweepPoint], list[Notice]]:
    """One point per TP size, its captures loaded."""
    from tracelens.errors import UsageError

    parts: dict[int, list[str]] = {}
    for word in words:
        size, equals, rest = word.partition("=")
        if not equals or not size.strip().isdigit() or not rest.strip():
            raise UsageError(f"--tp {word!r} is not N=FILE[,TRACE]", "For example --tp 8=tp8.jsonl,tp8.sqlite")
        parts.setdefault(int(size), []).extend(part.strip() for part in rest.split(",") if part.strip())
    notices: list[Notice] = []
    points = [_point(asked, size, files, question, notices) for size, files in sorted(parts.items())]
    return points, list(dict.fromkeys(notices))


def _point(asked: Asked, size: int, files: list[str], question: Question, notices: list[Notice]) -> SweepPoint:
    from pathlib import Path

    from tracelens.analyses.harness_results import Measurement, looks_like_results, read_results
    from tracelens.analyses.scaling_points import GIVEN, SweepPoint, literal_us
    from tracelens.errors import UsageError

    measurements: list[Measurement] = []
    traces: list[str] = []
    for file in files:
        time_us = literal_us(file)
        if time_us is not None and not Path(file).exists():
            measurements.append(Measurement(size, GIVEN, time_us, source=file))
        elif looks_like_results(Path(file)):
            # An affine fit is of whole generations, so these stay whole.
            found = read_results(
                Path(file),
                size,
                batch=question.tokens,
                output_len=question.output_tokens,
                per_token=question.fit != "affine",
            )
            wanted = [one for one in found if question.tokens is None or one.batch in (None, question.tokens)]
            if not wanted:
                held = ", ".join(str(one.batch) for one in found)
                raise UsageError(f"{file} holds no batch of {question.tokens}", f"It holds {held}: see --tokens.")
            measurements += wanted
        else:
            traces.append(file)
    if not traces:
        return SweepPoint(size, measurements)
    from tracelens.analyses.scaling_trace import traced_step

    with asked.load(tuple(traces)) as trace:
        traced, said = traced_step(trace, size, tokens=question.tokens, shape=question.shape)
    notices.extend(said)
    return SweepPoint(size, measurements, traced)
