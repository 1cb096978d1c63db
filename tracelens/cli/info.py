"""`tracelens info`: what is in a capture."""

from __future__ import annotations

from tracelens.cli.options import Asked, over_trace


@over_trace
def info(asked: Asked) -> int:
    """What is in the capture, which ranks, how each was identified, and what is wrong with it."""
    from tracelens.cli.present import present
    from tracelens.views import info as view

    with asked.load() as trace:
        return present(trace.info(), asked.output, view.show)
