"""`tracelens ladder`: which all-reduce serves which message size."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import typer

from tracelens.cli.options import Asked, over_trace


@over_trace
def ladder(
    asked: Asked,
    arch: Annotated[
        str | None, typer.Option(metavar="X.Y", help="CUDA compute capability, e.g. 9.0 (Hopper), 10.0 (Blackwell).")
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="GPU by name, instead of --arch.")] = None,
    tp: Annotated[int | None, typer.Option("--tp", min=1, help="World size; with a TRACE that of the capture.")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Model width (hidden size).")] = None,
    model_preset: Annotated[str | None, typer.Option(metavar="NAME", help="A published shape, for its width.")] = None,
    dtype_bytes: Annotated[int, typer.Option(min=1, help="Bytes per element of the residual.")] = 2,
    dtype: Annotated[Literal["bf16", "fp16", "fp32"], typer.Option(help="Type of the residual.")] = "bf16",
    engine_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Engine version; the newest known without it.")
    ] = None,
    symm_mem: Annotated[
        bool | None,
        typer.Option(
            "--symm-mem/--no-symm-mem", help="Whether symmetric memory is known to be on.", show_default=False
        ),
    ] = None,
    nccl_symm: Annotated[bool, typer.Option("--nccl-symm", help="NCCL symmetric memory is switched on.")] = False,
    flashinfer: Annotated[bool, typer.Option("--flashinfer", help="FlashInfer's all-reduce is switched on.")] = False,
    disable_custom_all_reduce: Annotated[
        bool, typer.Option("--disable-custom-all-reduce", help="The custom kernel is switched off.")
    ] = False,
    pcie: Annotated[bool, typer.Option("--pcie", help="The GPUs are not fully connected by NVLink.")] = False,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="With a TRACE: tokens in each step, where its markers do not say.")
    ] = None,
) -> int:
    """Which all-reduce an engine runs for which message size, and where it switches.

    --engine is vllm, sglang or sglang-v2. With a TRACE: what ran, where the switch lies, and whether it agrees.
    """
    from tracelens.analyses import ladder as analysis
    from tracelens.analyses.ladder_rungs import Setup
    from tracelens.cli.present import present
    from tracelens.errors import UsageError
    from tracelens.views import ladder as view

    engine = asked.options["engine"]
    if model_preset is not None and width is None:
        from tracelens.analyses.scaling_presets import model_shape

        width = model_shape(model_preset).width
    if gpu is not None and arch is None:
        from tracelens.analyses.scaling_presets import gpu as gpu_named

        arch = gpu_named(gpu).arch
    missing = [
        option for option, value in (("--engine", engine), ("--arch", arch), ("--width", width)) if value is None
    ]
    if tp is None and not asked.traces:
        missing.append("--tp")
    if engine is None or arch is None or width is None or missing:
        raise UsageError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} needed",
            "for example: tracelens ladder --engine vllm --arch 9.0 --tp 8 --width 4096",
        )
    switches = {"nccl-symm": nccl_symm, "flashinfer": flashinfer, "custom": not disable_custom_all_reduce}
    if symm_mem is not None:
        switches["symm-mem"] = symm_mem
    setup = Setup(engine, arch, tp or 1, engine_version, switches, not pcie, dtype)
    if not asked.traces:
        return present(analysis.ladder(setup, width=width, dtype_bytes=dtype_bytes), asked.output, view.show)
    map_engine = engine.removesuffix("-v2")
    loaded = replace(asked, options={**asked.options, "engine": map_engine}).load()
    with loaded as trace:
        from tracelens.analyses.ladder_trace import observed_ladder

        result = observed_ladder(trace, setup, tp=tp, width=width, dtype_bytes=dtype_bytes, tokens=tokens)
        return present(result, asked.output, view.show)
