"""The table of a sweep: what each run measured, the graph that its batch was padded to, and what custom all-reduce is worth.

Runs of one batch and arm share a statistic, so speed-ups stand within them. Two batches that replay the same captured
graph take the same time: a plateau between them is bucketing, not scaling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from tracelens.analyses.harness_results import MEANINGS, Measurement
from tracelens.analyses.ladder_rungs import padded_batch
from tracelens.frames import Column, Notice, Result, Schema

RUNS = Schema(
    "one run: a TP size, a batch and an arm",
    Column("tp", pl.Int64, "tensor-parallel size", "count"),
    Column("batch", pl.Int64, "requests in the batch", "count"),
    Column(
        "graph_batch", pl.Int64, "batch of the captured graph that it is padded to; null above the largest", "count"
    ),
    Column("arm", pl.String, "`default`, or what was switched off"),
    Column("status", pl.String, "`done`, or how it ended"),
    Column("statistic", pl.String, "what step_us is a statistic of"),
    Column("step_us", pl.Float64, "measured time", "us"),
    Column("tokens_per_s", pl.Float64, "output tokens per second of the whole batch"),
    Column("speedup", pl.Float64, "against the smallest TP size of the same batch and arm"),
    Column("efficiency", pl.Float64, "speed-up x p0 / p"),
    Column("plateau", pl.String, "`bucketing` where another batch replays the same graph in the same time"),
    Column("result", pl.String, "the benchmark's own file"),
    Column("reason", pl.String, "why there is no number; empty when there is"),
)

ARMS = Schema(
    "one TP size and batch that ran with and without the custom all-reduce",
    Column("tp", pl.Int64, "tensor-parallel size", "count"),
    Column("batch", pl.Int64, "requests in the batch", "count"),
    Column("default_us", pl.Float64, "step with the engine's default", "us"),
    Column("disabled_us", pl.Float64, "step with the custom all-reduce switched off", "us"),
    Column("custom_part_us", pl.Float64, "the difference: all that the custom kernel is worth", "us"),
    Column("custom_part_frac", pl.Float64, "its share of the step without it", "frac"),
)

PLATEAU_FRAC = 0.05


@dataclass(frozen=True)
class SweptRun:
    """One run as the table needs it."""

    tp: int
    batch: int
    arm: str
    status: str
    reason: str
    result: str
    measurement: Measurement | None


class SweepResult(Result):
    """What a sweep measured."""

    command: ClassVar[str] = "sweep"
    schemas: ClassVar[Mapping[str, Schema]] = {"runs": RUNS, "arms": ARMS}


def sweep_table(
    runs: Sequence[SweptRun], graph_batches: Sequence[int], *, default_arm: str, disabled_arm: str
) -> SweepResult:
    """The table of a sweep.

    Args:
        runs: every run, done or not.
        graph_batches: captured batch sizes, ascending; empty when the engine runs without graphs.
        default_arm: the arm with nothing switched off.
        disabled_arm: the arm without the custom all-reduce.

    Returns:
        `runs` by arm, batch and TP size; `arms` where both arms of some run are done.
    """
    rows = [_row(run, graph_batches) for run in runs]
    rows.sort(key=lambda row: (row["arm"] != default_arm, row["arm"], row["batch"], row["tp"]))
    _add_speedups(rows)
    _add_plateaus(rows)
    tables = {"runs": RUNS.frame(rows)}
    arms = _arm_rows(rows, default_arm, disabled_arm)
    if any(run.arm == disabled_arm for run in runs):
        tables["arms"] = ARMS.frame(arms)
    return SweepResult(
        tables=tables,
        notices=tuple(_notices(rows)),
        provenance={"graph_batches": list(graph_batches)},
        sentences=tuple(_sentences(rows, arms, default_arm)),
    )


def _row(run: SweptRun, graph_batches: Sequence[int]) -> dict[str, Any]:
    found = run.measurement
    return {
        "tp": run.tp,
        "batch": run.batch,
        "graph_batch": padded_batch(run.batch, graph_batches),
        "arm": run.arm,
        "status": run.status,
        "statistic": None if found is None else found.statistic,
        "step_us": None if found is None else found.step_us,
        "tokens_per_s": None if found is None else found.tokens_per_s,
        "speedup": None,
        "efficiency": None,
        "plateau": None,
        "result": run.result,
        "reason": run.reason,
    }


def _add_speedups(rows: Sequence[dict[str, Any]]) -> None:
    base: dict[tuple[str, int, str], dict[str, Any]] = {}
    for row in rows:
        if row["step_us"] is None:
            continue
        first = base.setdefault((row["arm"], row["batch"], row["statistic"]), row)
        row["speedup"] = first["step_us"] / row["step_us"]
        row["efficiency"] = row["speedup"] * first["tp"] / row["tp"]


def _add_plateaus(rows: Sequence[dict[str, Any]]) -> None:
    by_graph: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for row in rows:
        if row["step_us"] is not None and row["graph_batch"] is not None:
            by_graph.setdefault((row["arm"], row["tp"], row["graph_batch"]), []).append(row)
    for same in by_graph.values():
        for one in same:
            others = [other for other in same if other["batch"] != one["batch"]]
            if any(abs(other["step_us"] / one["step_us"] - 1) <= PLATEAU_FRAC for other in others):
                one["plateau"] = "bucketing"


def _arm_rows(rows: Sequence[Mapping[str, Any]], default_arm: str, disabled_arm: str) -> list[dict[str, Any]]:
    steps = {(row["arm"], row["tp"], row["batch"]): row["step_us"] for row in rows}
    pairs = sorted((tp, batch) for arm, tp, batch in steps if arm == disabled_arm)
    found = []
    for tp, batch in pairs:
        default_us, disabled_us = steps.get((default_arm, tp, batch)), steps[disabled_arm, tp, batch]
        if default_us is None or disabled_us is None:
            continue
        found.append(
            {
                "tp": tp,
                "batch": batch,
                "default_us": default_us,
                "disabled_us": disabled_us,
                "custom_part_us": disabled_us - default_us,
                "custom_part_frac": (disabled_us - default_us) / disabled_us,
            }
        )
    return found


def _notices(rows: Sequence[Mapping[str, Any]]) -> list[Notice]:
    holes = [row for row in rows if row["status"] != "done"]
    notices = []
    if holes:
        names = ", ".join(f"TP {row['tp']} batch {row['batch']} ({row['status']})" for row in holes[:4])
        more = f" and {len(holes) - 4} more" if len(holes) > 4 else ""
        notices.append(
            Notice(
                "sweep-holes", "warning", f"the sweep has holes: {names}{more}", "run it again: it resumes", len(holes)
            )
        )
    statistics = sorted({row["statistic"] for row in rows if row["statistic"]})
    notices.extend(Notice("statistic", "info", f"{name}: {MEANINGS.get(name, '')}") for name in statistics)
    return notices


def _sentences(rows: Sequence[Mapping[str, Any]], arms: Sequence[Mapping[str, Any]], default_arm: str) -> list[str]:
    sentences = []
    default = [row for row in rows if row["arm"] == default_arm and row["step_us"] is not None]
    for batch in sorted({row["batch"] for row in default}):
        mine = [row for row in default if row["batch"] == batch]
        first, last = mine[0], mine[-1]
        if first is last:
            continue
        text = f"Batch {batch}: TP {last['tp']} is {last['speedup']:.2f}x as fast as TP {first['tp']}"
        text += f", efficiency {last['efficiency']:.1%}"
        if last["tokens_per_s"]:
            text += f", {last['tokens_per_s']:,.0f} output tokens/s"
        sentences.append(f"{text}.")
    sentences.extend(_plateau_sentences(default))
    largest = {row["batch"]: row for row in arms}
    for row in largest.values():
        side = "saves" if row["custom_part_us"] >= 0 else "costs"
        sentences.append(
            f"At TP {row['tp']} and batch {row['batch']} the custom all-reduce {side} {abs(row['custom_part_us']):,.1f} us "
            f"a step ({row['custom_part_frac']:+.1%} of the step without it)."
        )
    return sentences


def _plateau_sentences(default: Sequence[Mapping[str, Any]]) -> list[str]:
    batches: dict[tuple[int, int], list[int]] = {}
    for row in default:
        if row["plateau"]:
            batches.setdefault((row["graph_batch"], row["tp"]), []).append(row["batch"])
    sizes: dict[tuple[int, str], list[int]] = {}
    for (graph_batch, tp), found in sorted(batches.items()):
        sizes.setdefault((graph_batch, " and ".join(map(str, sorted(found)))), []).append(tp)
    return [
        f"At TP {', '.join(map(str, tps))} batches {names} replay the graph of batch {graph_batch}: the plateau is "
        "bucketing, not scaling."
        for (graph_batch, names), tps in sizes.items()
    ]
