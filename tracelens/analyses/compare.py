"""What changed per step between two runs, with evidence.

before  |== gemm ==|wait|transfer|.gap.|      step 7.764 ms
after   |== gemm ==|wait|==== transfer ====|.gap.|   8.013 ms
delta   = sum of bucket deltas + sum of gap deltas + unattributed      to the nanosecond
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelens.analyses.compare_notices import FLOOR_FRAC, comparison_notices
from tracelens.analyses.compare_pairs import pair_collectives, pair_groups, pair_names
from tracelens.analyses.compare_parts import Parts
from tracelens.analyses.compare_sides import SideFigures, graph_tracing, kept_of, rungs_of, shared_rung, side_figures
from tracelens.analyses.compare_words import Finding, headline
from tracelens.analyses.evidence import blocks_for
from tracelens.errors import NotComparableError
from tracelens.frames import Column, Notice, Result, Schema
from tracelens.trace import LoadedTrace
from tracelens.units import plural

Floats = NDArray[np.float64]

_PART_COLUMNS = (
    Column("before_per_step_ns", pl.Int64, "Mean per step and rank before", "ns"),
    Column("after_per_step_ns", pl.Int64, "Mean per step and rank after", "ns"),
    Column("delta_ns", pl.Int64, "After less before", "ns"),
    Column("ci_low_ns", pl.Int64, "Lower end of the 95 % interval, widened for the table's rows", "ns"),
    Column("ci_high_ns", pl.Int64, "Upper end of it", "ns"),
    Column("significant", pl.Boolean, "Whether the interval excludes 0; null without an interval"),
    Column("before_calls", pl.Float64, "Calls per step and rank before", "count"),
    Column("after_calls", pl.Float64, "Calls per step and rank after", "count"),
    Column("calls_part_ns", pl.Int64, "Part of the delta from more or fewer calls", "ns"),
    Column("time_part_ns", pl.Int64, "Part of the delta from longer or shorter calls", "ns"),
    Column("status", pl.String, "same, appeared, vanished or implementation_changed"),
)


def _part_schema(row: str, meaning: str) -> Schema:
    return Schema(row, Column("name", pl.String, meaning), *_PART_COLUMNS)


class CompareResult(Result):
    """What changed: the verdict, and the parts that sum to it."""

    command: ClassVar[str] = "compare"
    schemas: ClassVar = {
        "verdict": Schema(
            "one comparison",
            Column("comparable", pl.Boolean, "Whether the two runs can be compared"),
            Column("phase", pl.String, "Phase of the steps compared"),
            Column("rung", pl.String, "Rung of the steps compared"),
            Column("before_step_ns", pl.Int64, "Mean step before", "ns"),
            Column("after_step_ns", pl.Int64, "Mean step after", "ns"),
            Column("before_p50_ns", pl.Int64, "Median step before", "ns"),
            Column("after_p50_ns", pl.Int64, "Median step after", "ns"),
            Column("delta_ns", pl.Int64, "Mean after less mean before", "ns"),
            Column("delta_frac", pl.Float64, "Of the step before, in step time (not in tokens per second)", "frac"),
            Column("ci_low_ns", pl.Int64, "Lower end of the 95 % interval of the delta", "ns"),
            Column("ci_high_ns", pl.Int64, "Upper end of it", "ns"),
            Column("significant", pl.Boolean, "Whether the interval excludes 0; null without an interval"),
            Column("unattributed_ns", pl.Int64, "Closes the sum of bucket and gap deltas", "ns"),
            Column("headline", pl.String, "The answer in a sentence"),
        ),
        "buckets": _part_schema("one bucket", "Bucket"),
        "collective_parts": _part_schema("one part of the collectives' exclusive time", "wait, or transfer and rest"),
        "kernels": _part_schema("one kernel name, or two that took each other's place", "Kernel name"),
        "collectives": _part_schema("one operation and implementation", "Operation and implementation"),
        "gaps": _part_schema("one cause of gaps", "Cause"),
        "ranks": Schema(
            "one bucket, gap cause or waiting of one rank",
            Column("rank", pl.Int32, "Rank"),
            Column("name", pl.String, "Bucket, gap cause, or wait in collectives"),
            Column("before_per_step_ns", pl.Int64, "Mean per step before", "ns"),
            Column("after_per_step_ns", pl.Int64, "Mean per step after", "ns"),
            Column("delta_ns", pl.Int64, "After less before", "ns"),
        ),
        "environment": Schema(
            "one property that the captures tell",
            Column("key", pl.String, "Property"),
            Column("before", pl.String, "Before"),
            Column("after", pl.String, "After"),
        ),
    }


def compare(before: LoadedTrace | Sequence[LoadedTrace], after: LoadedTrace | Sequence[LoadedTrace]) -> CompareResult:
    """Compares two runs step by step.

    Args:
        before, after: a capture, or several of the same build; with two or more on both sides the spread between
            captures is the evidence.

    Returns:
        the verdict and its parts. `buckets` and `gaps` deltas with `unattributed_ns` sum to `delta_ns` exactly.

    Raises:
        NotComparableError: other ranks, no common phase and rung, or a side without steps.
    """
    sides = [[one] if isinstance(one, LoadedTrace) else list(one) for one in (before, after)]
    check_ranks(len(sides[0][0].ranks), len(sides[1][0].ranks))
    _check_tracing(graph_tracing(sides[0][0]), graph_tracing(sides[1][0]))
    rungs = [_common_rungs([rungs_of(trace) for trace in side]) for side in sides]
    ours, theirs, _ = shared_rung(rungs[0], rungs[1])
    figures = [
        [side_figures(trace, *chosen) for trace in side] for side, chosen in zip(sides, (ours, theirs), strict=True)
    ]
    notices = [notice for side in sides for trace in side for notice in (*trace.notices, *kept_of(trace).notices)]
    provenance: dict[str, Any] = {
        name: [trace.provenance() | {"window": one.window} for trace, one in zip(side, kept, strict=True)]
        for name, side, kept in zip(("before", "after"), sides, figures, strict=True)
    }
    return compare_figures(figures[0], figures[1], notices, provenance)


def _common_rungs(captures: list[list[tuple[str, str, int]]]) -> list[tuple[str, str, int]]:
    """Rungs that all captures of a side have, with the fewest steps of any, most first."""
    counts = [{(phase, rung): count for phase, rung, count in capture} for capture in captures]
    common = set.intersection(*(set(one) for one in counts)) if counts else set()
    found = [(phase, rung, min(one[phase, rung] for one in counts)) for phase, rung in common]
    return sorted(found, key=lambda row: (-row[2], row[0], row[1]))


def compare_figures(
    before: list[SideFigures],
    after: list[SideFigures],
    notices: Sequence[Notice] = (),
    provenance: dict[str, Any] | None = None,
) -> CompareResult:
    """Compares figures that were taken before, or loaded from a baseline."""
    _check_comparable(before[0], after[0])
    sides = (_merged(before), _merged(after))
    blocks = blocks_for([one.step_ns for one in before], [one.step_ns for one in after])
    table = Parts(sides, (before, after), blocks)
    tables = {
        "buckets": table.kernels(pair_groups(_buckets(sides[0]), _buckets(sides[1]))),
        "collective_parts": table.collective_parts(),
        "kernels": table.kernels(pair_names(*sides)),
        "collectives": table.kernels(pair_collectives(*sides)),
        "gaps": table.gaps(),
    }
    if not tables["collective_parts"]:
        del tables["collective_parts"]
    frames = {
        name: CompareResult.schemas[name].frame(sorted(rows, key=_largest_first)) for name, rows in tables.items()
    }
    verdict = table.verdict(frames)
    frames["ranks"] = CompareResult.schemas["ranks"].frame(_rank_rows(*sides))
    frames["environment"] = CompareResult.schemas["environment"].frame(_environment_rows(*sides))
    told = headline(Finding(verdict, frames, sides, blocks, FLOOR_FRAC))
    verdict["headline"] = told[0]
    ordered = {"verdict": CompareResult.schemas["verdict"].frame([verdict])} | {
        name: frames[name] for name in CompareResult.schemas if name in frames
    }
    every = [*dict.fromkeys(notices), *comparison_notices(verdict, sides, (before, after), blocks)]
    facts = {
        "steps": [one.step_count for one in sides],
        "windows": [[one.window for one in side] for side in (before, after)],
        "block_length": blocks.length,
        "blocks": [blocks.before, blocks.after],
    }
    return CompareResult(ordered, tuple(every), (provenance or {}) | facts, tuple(told))


def check_ranks(before: int, after: int) -> None:
    """Refuse sides of different rank counts, before their phases and rungs, which then differ as well.

    Raises:
        NotComparableError: they differ.
    """
    if before != after:
        raise NotComparableError(
            f"not comparable: {plural(before, 'rank')} before, {after:,} after",
            "Compare captures of the same parallelism, or choose ranks with --ranks.",
        )


def _check_tracing(before: str | None, after: str | None) -> None:
    """Refuse a side whose graphs are opaque against one whose graphs are not: all kernels would have appeared."""
    if "graph" in (before, after) and before != after:
        raise NotComparableError(
            f"not comparable: CUDA graphs traced by {before} before, by {after} after",
            "Capture both with --cuda-graph-trace=node.",
        )


def _check_comparable(before: SideFigures, after: SideFigures) -> None:
    check_ranks(len(before.ranks), len(after.ranks))
    _check_tracing(before.environment.get("graph_trace"), after.environment.get("graph_trace"))


def _buckets(side: SideFigures) -> list[str | None]:
    return [name.bucket for name in side.names]


def _merged(captures: list[SideFigures]) -> SideFigures:
    """Several captures of one side as one: steps one after the other, names united."""
    if len(captures) == 1:
        return captures[0]
    first = captures[0]
    names = list({name.name: name for capture in captures for name in capture.names}.values())
    place = {name.name: number for number, name in enumerate(names)}

    def widened(capture: SideFigures, table: Floats) -> Floats:
        wide = np.zeros((len(table), len(names)))
        wide[:, [place[name.name] for name in capture.names]] = table
        return wide

    ranks: dict[int, dict[str, float]] = {rank: {} for rank in first.ranks}
    for rank, figures in ranks.items():
        for name in sorted({name for capture in captures for name in capture.ranks.get(rank, {})}):
            figures[name] = sum(capture.ranks.get(rank, {}).get(name, 0.0) for capture in captures) / len(captures)
    return SideFigures(
        first.phase,
        first.rung,
        np.concatenate([capture.step_ns for capture in captures]),
        round(float(np.median([capture.p50_ns for capture in captures]))),
        names,
        np.concatenate([widened(capture, capture.elapsed_ns) for capture in captures]),
        np.concatenate([widened(capture, capture.wait_ns) for capture in captures]),
        np.concatenate([widened(capture, capture.calls) for capture in captures]),
        np.concatenate([capture.gap_ns for capture in captures]),
        ranks,
        first.environment,
        first.rungs,
        float(np.mean([capture.span_ns for capture in captures])),
        all(capture.wait_known for capture in captures),
        "; ".join(capture.window for capture in captures),
    )


def _largest_first(row: Mapping[str, Any]) -> tuple[int, str]:
    return (-abs(int(row["delta_ns"])), str(row["name"]))


def _rank_rows(before: SideFigures, after: SideFigures) -> list[dict[str, Any]]:
    rows = []
    for mine, other in zip(sorted(before.ranks), sorted(after.ranks), strict=True):
        for name in sorted(set(before.ranks[mine]) | set(after.ranks[other])):
            one, two = round(before.ranks[mine].get(name, 0.0)), round(after.ranks[other].get(name, 0.0))
            rows.append(
                {"rank": mine, "name": name, "before_per_step_ns": one, "after_per_step_ns": two, "delta_ns": two - one}
            )
    return sorted(rows, key=lambda row: (-abs(int(str(row["delta_ns"]))), int(str(row["rank"])), str(row["name"])))


def _environment_rows(before: SideFigures, after: SideFigures) -> list[dict[str, str | None]]:
    rows: list[dict[str, str | None]] = [
        {"key": key, "before": before.environment.get(key), "after": after.environment.get(key)}
        for key in sorted(set(before.environment) | set(after.environment))
    ]
    rows.append({"key": "steps compared", "before": str(before.step_count), "after": str(after.step_count)})
    for name, side, other in (("only before", before, after), ("only after", after, before)):
        unpaired = [
            f"{phase} {rung}"
            for phase, rung, _ in side.rungs
            if (phase, rung) not in {(one, two) for one, two, _ in other.rungs}
        ]
        if unpaired:
            rows.append(
                {
                    "key": f"rungs {name}",
                    "before": ", ".join(unpaired[:8]) if side is before else None,
                    "after": ", ".join(unpaired[:8]) if side is after else None,
                }
            )
    return rows
