"""The all-reduce ladder on a terminal."""

from __future__ import annotations

import polars as pl

from tracelens.frames import Result
from tracelens.units import format_bytes
from tracelens.views.terminal import Screen


def show(result: Result, screen: Screen) -> None:
    """Draw a ladder result: the rungs, and what ran where a capture was given."""
    screen.sentences(result.sentences)
    rungs = result.tables["ladder"]
    screen.table(
        # One unit a column would round 256 KiB away beside 64 MiB.
        pl.DataFrame(
            {
                "implementation": rungs["implementation"],
                "from": [format_bytes(size) for size in rungs["min_bytes"]],
                "to": [_limit(*row) for row in rungs.select("max_bytes", "max_inclusive").iter_rows()],
                "from_tokens": rungs["min_tokens"],
                "to_tokens": rungs["max_tokens"],
            }
        ),
        title="Rungs, in the order in which the engine tries them",
    )
    for condition in rungs["condition"].unique(maintain_order=True).to_list():
        if condition:
            names = rungs.filter(rungs["condition"] == condition)["implementation"].unique(maintain_order=True)
            screen.line(f"{', '.join(names.to_list())}: {condition}")
    observed = result.tables.get("observed")
    if observed is not None:
        screen.line()
        screen.table(observed, result.schemas["observed"], title="What ran", labels={"message_bytes": "message"})


def _limit(max_bytes: int | None, inclusive: bool | None) -> str:
    if max_bytes is None:
        return "no limit"
    return f"{format_bytes(max_bytes)}{'' if inclusive else ' (excluded)'}"
