"""What a reader of a comparison must know: what could not be shown, and what else differs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.analyses.compare_sides import SideFigures
from tracelens.analyses.evidence import Blocks
from tracelens.frames import Notice

Floats = NDArray[np.float64]

#: A change below this share of the step is no finding, however sure it is.
FLOOR_FRAC = 0.005
#: Time outside all windows above this share of the step is a warning.
UNATTRIBUTED_FRAC = 0.01


def comparison_notices(
    verdict: dict[str, Any],
    sides: tuple[SideFigures, SideFigures],
    captures: tuple[list[SideFigures], list[SideFigures]],
    blocks: Blocks,
) -> list[Notice]:
    """What limits a comparison or may mislead its reader: no interval, one capture, other GPUs or rungs, trends."""
    notices = []
    if blocks.reason:
        notices.append(
            Notice(
                "no-interval",
                "warning",
                f"no interval can be given: {blocks.reason}",
                "Capture more steps, or several captures per side.",
                None,
            )
        )
    if min(len(one) for one in captures) < 2:
        notices.append(
            Notice(
                "one-capture",
                "info",
                "one capture on a side: differences between runs of one build are not covered",
                "Give several per side: A1,A2 B1,B2",
                None,
            )
        )
    gpus = [side.environment.get("gpu") for side in sides]
    if gpus[0] != gpus[1] and None not in gpus:
        notices.append(Notice("gpus-differ", "warning", f"other GPUs: {gpus[0]} before, {gpus[1]} after", "", None))
    if (sides[0].phase, sides[0].rung) != (sides[1].phase, sides[1].rung):
        notices.append(
            Notice(
                "rungs-differ",
                "warning",
                f"no rung is common; the most frequent ones are compared: {sides[0].rung} before, {sides[1].rung} after",
                "Compare captures of one batch size.",
                None,
            )
        )
    step = max(int(verdict["before_step_ns"]), 1)
    if abs(int(verdict["unattributed_ns"])) > UNATTRIBUTED_FRAC * step:
        notices.append(
            Notice(
                "unattributed",
                "warning",
                f"{int(verdict['unattributed_ns']) / 1e3:.1f} us of the change lie outside the windows",
                "",
                None,
            )
        )
    for side, name in zip(sides, ("before", "after"), strict=True):
        trend = _trend_frac(side.step_ns)
        if trend is not None and abs(trend) > FLOOR_FRAC:
            notices.append(
                Notice(
                    "trend",
                    "warning",
                    f"steps {'grow' if trend > 0 else 'shrink'} by {abs(trend):.1%} over the capture ({name}): context, clocks or batches change",
                    "Compare the same positions since prefill: --steps.",
                    None,
                )
            )
    whole = (sides[1].span_ns - sides[0].span_ns) / sides[0].span_ns if sides[0].span_ns else 0.0
    step_frac = float(verdict["delta_frac"] or 0.0)
    if (
        abs(step_frac) > FLOOR_FRAC
        and abs(whole - step_frac) > max(abs(step_frac) / 2, 0.02)
        and verdict["significant"] is not False
    ):
        notices.append(
            Notice(
                "whole-capture-differs",
                "info",
                f"over whole captures the change is {whole:+.2%}, per step {step_frac:+.2%}: they hold other mixes of steps and idle time",
                "",
                None,
            )
        )
    if not all(side.wait_known for side in sides):
        notices.append(
            Notice(
                "waits-unknown",
                "warning",
                "collectives could not be matched across ranks: a longer collective may be waiting",
                "Give all ranks; see `tracelens skew`.",
                None,
            )
        )
    return notices


def _trend_frac(series: Floats) -> float | None:
    """Change over the capture that a straight line through the steps tells, as a share of the mean; None if unsure."""
    if len(series) < 12 or not series.mean():
        return None
    place = np.arange(len(series)) - (len(series) - 1) / 2
    slope = float(place @ (series - series.mean())) / float(place @ place)
    rest = series - series.mean() - slope * place
    error = float(np.sqrt((rest @ rest) / (len(series) - 2) / (place @ place)))
    if abs(slope) < 4 * error:
        return None
    return slope * (len(series) - 1) / float(series.mean())
