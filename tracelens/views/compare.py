"""What changed between two runs, on a terminal."""

from __future__ import annotations

import polars as pl

from tracelens.frames import Result
from tracelens.units import time_scale
from tracelens.views.terminal import Screen

_SHOWN = 12
_LABELS = {
    "before_per_step_ns": "before",
    "after_per_step_ns": "after",
    "delta_ns": "change",
    "ci_low_ns": "from",
    "ci_high_ns": "to",
    "significant": "sure",
    "before_calls": "calls before",
    "after_calls": "calls after",
}
_TITLES = {
    "buckets": "Buckets: exclusive time per step, mean over ranks",
    "collective_parts": "Of it the collectives: waiting for the last rank, and the rest",
    "gaps": "Gaps by cause",
    "collectives": "Collectives",
    "kernels": "Kernels",
}


def show(result: Result, screen: Screen) -> None:
    """Draw a comparison: the sentences, the parts that sum to the change, what changed on single ranks."""
    screen.sentences(result.sentences)
    windows: list[list[str]] = result.provenance.get("windows") or [[], []]
    if all(any(side) for side in windows):
        screen.line(f"before: {'; '.join(windows[0])}")
        screen.line(f"after:  {'; '.join(windows[1])}")
        screen.line()
    step_ns = int(result.tables["verdict"]["before_step_ns"][0] or 1)
    for name, title in _TITLES.items():
        frame = result.tables.get(name)
        if frame is None or frame.is_empty():
            continue
        calls = ["before_calls", "after_calls"] if name in ("collectives", "kernels") else []
        changed = frame.filter(pl.col("delta_ns") != 0) if name == "kernels" else frame
        screen.table(
            changed.head(_SHOWN),
            result.schemas[name],
            title=title
            if changed.height <= _SHOWN
            else f"{title} (the {_SHOWN} largest of {changed.height} that changed)",
            columns=[
                "name",
                "before_per_step_ns",
                "after_per_step_ns",
                "delta_ns",
                "ci_low_ns",
                "ci_high_ns",
                "significant",
                *calls,
            ],
            optional=[*reversed(calls), "ci_low_ns", "ci_high_ns"],
            labels=_LABELS,
            total=["before_per_step_ns", "after_per_step_ns", "delta_ns"] if name in ("buckets", "gaps") else [],
        )
    screen.sentences([_sum_of_parts(result)])
    ranks = result.tables["ranks"]
    single = ranks.filter(pl.col("delta_ns").abs() > 0.005 * step_ns)
    if not single.is_empty():
        screen.table(
            single.head(_SHOWN),
            result.schemas["ranks"],
            title="On single ranks, largest changes",
            columns=["rank", "name", "before_per_step_ns", "after_per_step_ns", "delta_ns"],
            labels=_LABELS,
        )
    differing = result.tables["environment"].filter(~pl.col("before").eq_missing(pl.col("after")))
    if not differing.is_empty():
        screen.table(differing, result.schemas["environment"], title="What else differs")


def _sum_of_parts(result: Result) -> str:
    """The parts that sum to the change of the step, in one unit."""
    verdict = result.tables["verdict"]
    parts = {
        "buckets": int(result.tables["buckets"]["delta_ns"].sum()),
        "gaps": int(result.tables["gaps"]["delta_ns"].sum()),
        "unattributed": int(verdict["unattributed_ns"][0]),
    }
    change = int(verdict["delta_ns"][0])
    scale = time_scale([*parts.values(), change])
    terms = " + ".join(f"{name} {scale.format(value)}" for name, value in parts.items())
    return f"Sum of the parts: {terms} = change {scale.format(change)} {scale.symbol}."
