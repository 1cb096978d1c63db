"""`tracelens bucket`: where each rank's time went."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tracelens.cli.options import Asked, over_trace


@over_trace
def bucket(
    asked: Asked,
    kernels: Annotated[bool, typer.Option("--kernels", help="Also the kernels inside each bucket.")] = False,
    compat: Annotated[
        Literal["gputrc2graph"] | None,
        typer.Option(
            help="That script's arithmetic: one sweep over all GPUs of an export; wrong with several, for comparison only."
        ),
    ] = None,
    non_profiled_s: Annotated[
        float | None,
        typer.Option(
            min=0, help="With --compat: duration of the run without the profiler, s; adds the row cpu_non_gpu."
        ),
    ] = None,
) -> int:
    """Where each rank's time went, bucket by bucket, idle included."""
    from tracelens.cli.present import present
    from tracelens.views import bucket as view

    with asked.load() as trace:
        return present(
            trace.buckets(kernels=kernels, compat=compat, non_profiled_s=non_profiled_s), asked.output, view.show
        )
