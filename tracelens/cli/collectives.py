"""`tracelens collectives`: each operation and implementation."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens.cli.options import Asked, over_trace


@over_trace
def collectives(
    asked: Asked,
    every: Annotated[bool, typer.Option("--all", help="Also every call of every rank.")] = False,
) -> int:
    """Each collective operation: calls a step, duration, wait, transfer, bandwidth."""
    from tracelens.cli.present import present
    from tracelens.views import collectives as view

    with asked.load() as trace:
        return present(trace.collectives(all=every), asked.output, view.show)
