"""`tracelens gaps`: why the GPU idled."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens.cli.options import Asked, over_trace


@over_trace
def gaps(
    asked: Asked,
    every: Annotated[bool, typer.Option("--all", help="Also every single gap.")] = False,
) -> int:
    """Why the GPU idled, by cause, and before which kernels."""
    from tracelens.cli.present import present
    from tracelens.views import gaps as view

    with asked.load() as trace:
        return present(trace.gaps(all=every), asked.output, view.show)
