"""`tracelens steps`: what each step cost."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens.cli.options import Asked, over_trace


@over_trace
def steps(
    asked: Asked,
    every: Annotated[bool, typer.Option("--all", help="Every step of every rank, not only the slowest.")] = False,
) -> int:
    """Each step: latency, collectives (total, exposed, waiting) and gaps; a summary per phase and batch."""
    from tracelens.cli.present import present
    from tracelens.views import steps as view

    with asked.load() as trace:
        return present(trace.steps(), asked.output, view.show, every=every)
