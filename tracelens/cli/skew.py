"""`tracelens skew`: who makes whom wait."""

from __future__ import annotations

from tracelens.cli.options import Asked, over_trace


@over_trace
def skew(asked: Asked) -> int:
    """Who makes whom wait in collectives, how much it costs, and why."""
    from tracelens.cli.present import present
    from tracelens.views import skew as view

    with asked.load() as trace:
        return present(trace.skew(), asked.output, view.show)
