"""The scaling model on a terminal: a table, and each step drawn as a bar of its three terms."""

from __future__ import annotations

import polars as pl

from tracelens.frames import Result
from tracelens.views.terminal import Screen

_LETTERS = (("floor_us", "#"), ("collective_us", "="), ("bandwidth_us", "+"))
_LEAST_BAR = 20


def show(result: Result, screen: Screen) -> None:
    """Draw a predict result."""
    screen.sentences(result.sentences)
    prediction = result.tables["prediction"]
    screen.table(
        prediction,
        result.schemas["prediction"],
        title="Predicted decode step",
        labels={
            "tp": "TP",
            "lambda_us": "lambda",
            "floor_us": "floor",
            "collective_us": "collectives",
            "bandwidth_us": "bandwidth",
            "step_us": "step",
            "budget_per_collective_us": "budget per collective",
        },
        group="lambda_us",
        optional=["budget_per_collective_us"],
    )
    for line in chart(prediction, screen.width):
        screen.line(line)


def chart(prediction: pl.DataFrame, width: int) -> list[str]:
    """One bar a row, in proportion to the longest step: `#` floor, `=` collectives, `+` bandwidth."""
    longest = prediction["step_us"].max()
    if prediction.is_empty() or not isinstance(longest, float) or longest <= 0:
        return []
    heads = [f"lambda {row['lambda_us']:g} us  TP {row['tp']}" for row in prediction.iter_rows(named=True)]
    room = max(len(head) for head in heads)
    length = max(_LEAST_BAR, width - room - 22)
    lines = ["Step by its terms (# floor, = collectives, + bandwidth)"]
    for head, row in zip(heads, prediction.iter_rows(named=True), strict=True):
        bar = _bar(row, length / longest)
        lines.append(f"{head:<{room}}  {bar:<{length}}  {row['step_us']:>9,.0f} us {row['efficiency']:>5.0%}")
    return lines


def _bar(row: dict[str, float], scale: float) -> str:
    """Whole characters whose sum is that of the step, so that rounding never shortens a bar."""
    bar, reached = "", 0.0
    for column, letter in _LETTERS:
        reached += row[column]
        bar += letter * (round(reached * scale) - len(bar))
    return bar
