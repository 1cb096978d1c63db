"""`tracelens predict`: the scaling model alone."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens.cli import workload as given
from tracelens.cli.number_lists import floats, ints, takes_number_lists
from tracelens.cli.options import Output, with_output


@takes_number_lists("--tp", "--lambda-us")
@with_output
def predict(
    output_to: Output,
    model_preset: given.Preset = None,
    tp: Annotated[str, typer.Option("--tp", metavar="N...", help="TP sizes: 1 2 4 8 or 1,2,4,8.")] = "1,2,4,8",
    lambda_us: Annotated[
        str, typer.Option(metavar="X...", help="Fixed costs of one all-reduce, us: 2 5 10 or 2,5,10.")
    ] = "2,5,10",
    gpu: given.GpuName = None,
    t1_us: Annotated[
        float | None, typer.Option(help="The step at TP 1, us, measured; instead of bytes over bandwidth.")
    ] = None,
    streamed_gb: given.StreamedGb = None,
    hbm_tb_s: given.HbmTbS = None,
    nvlink_gb_s: given.NvlinkGbS = None,
    layers: given.Layers = None,
    width: given.Width = None,
    dtype_bytes: given.DtypeBytes = None,
    tokens: given.Tokens = None,
    kv_heads: given.KvHeads = None,
    presets: Annotated[bool, typer.Option("--presets", help="List the known models and GPUs, and exit.")] = False,
) -> int:
    """What a decode step should take at each TP size; needs no capture and no GPU."""
    from tracelens.analyses import scaling_model as model
    from tracelens.analyses.scaling_presets import gpu_names, model_names
    from tracelens.cli.present import present
    from tracelens.errors import UsageError
    from tracelens.views import predict as view

    if presets:
        typer.echo("models: " + ", ".join(model_names()))
        typer.echo("gpus:   " + ", ".join(gpu_names()))
        return 0
    workload = given.Workload(
        model_preset, gpu, streamed_gb, hbm_tb_s, nvlink_gb_s, layers, width, dtype_bytes, kv_heads
    )
    shape = workload.shape()
    if shape is None or (model_preset is None and width is None):
        raise UsageError(
            "no model was described",
            "give --model-preset NAME (--presets lists them), or --layers, --width, --streamed-gb",
        )
    machine = workload.machine()
    step_us = t1_us if t1_us is not None else model.floor_us(shape, machine)
    scaling = model.ScalingModel(shape, machine.link_bytes_per_s, 1 if tokens is None else tokens, step_us)
    result = model.predict(scaling, machine, ints("--tp", tp), floats("--lambda-us", lambda_us))
    return present(result, output_to, view.show)
