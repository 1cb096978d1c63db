"""The answer of a comparison in sentences: what, how much per step, in percent of the step, how sure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from tracelens.analyses.compare_sides import SideFigures
from tracelens.analyses.evidence import Blocks
from tracelens.ruleset.spelling import short_name
from tracelens.units import plural


@dataclass(frozen=True)
class Finding:
    """What the sentences are made from."""

    verdict: dict[str, Any]
    frames: dict[str, pl.DataFrame]
    sides: tuple[SideFigures, SideFigures]
    blocks: Blocks
    floor_frac: float


def headline(finding: Finding) -> list[str]:
    """The headline first, then one sentence per part that changed, largest first; at most five."""
    verdict = finding.verdict
    step_ns = max(int(verdict["before_step_ns"]), 1)
    delta = int(verdict["delta_ns"])
    phase = "" if verdict["phase"] == "other" else f"{verdict['phase']} "
    kind = f"{phase}step ({verdict['rung']})" if str(verdict["rung"]).startswith("bs=") else f"{phase}step"
    steps = f"n = {finding.sides[0].step_count:,} and {plural(finding.sides[1].step_count, 'step')}"
    told = f"The {kind} takes {_ms(verdict['before_step_ns'])} -> {_ms(verdict['after_step_ns'])}, {_signed(delta)} ({delta / step_ns:+.1%} of the step; {_sure(verdict)}, {steps})"
    parts = _parts(finding)
    changed = [row for row in parts if _found(row, step_ns, finding.floor_frac)]
    if verdict["significant"] is False or (verdict["significant"] and abs(delta) < finding.floor_frac * step_ns):
        note = (
            "no change that the steps can show"
            if verdict["significant"] is False
            else "sure, but below the floor of 0.5 % of a step"
        )
        told += f": {note}"
        told += f", though parts changed: {_named(changed[0], finding)}" if changed else ""
    elif changed:
        told += f": {_named(changed[0], finding)}"
    sentences = [told + "."]
    sentences += [_capital(f"{_named(row, finding)}.") for row in changed[1:5]]
    return sentences + _followed(finding, step_ns)


def _parts(finding: Finding) -> list[dict[str, Any]]:
    """Compute buckets, gap causes and the two parts of the collectives, largest change first."""
    rows: list[dict[str, Any]] = []
    split = "collective_parts" in finding.frames
    collective = {name.bucket for side in finding.sides for name in side.names if name.operation is not None}
    compute = {name.bucket for side in finding.sides for name in side.names if name.operation is None}
    buckets = finding.frames["buckets"].iter_rows(named=True)
    rows += [row | {"kind": "bucket"} for row in buckets if not (split and row["name"] in collective - compute)]
    if split:
        rows += [row | {"kind": "collective"} for row in finding.frames["collective_parts"].iter_rows(named=True)]
    rows += [row | {"kind": "gap"} for row in finding.frames["gaps"].iter_rows(named=True)]
    return sorted(rows, key=lambda row: (-abs(row["delta_ns"]), row["name"]))


def _found(row: dict[str, Any], step_ns: int, floor_frac: float) -> bool:
    """Above the floor, and sure; where no interval can be given the largest changes are named all the same."""
    return row["significant"] is not False and abs(row["delta_ns"]) > floor_frac * step_ns


def _named(row: dict[str, Any], finding: Finding) -> str:
    """One part and its change: `gemm +1.2 ms a step, same calls, longer each (nvjet -> cutlass)`."""
    amount = f"{_signed(row['delta_ns'])} a step"
    if row["kind"] == "gap":
        return f"gaps of cause {row['name']} {amount}{_one_rank(finding, 'gap: ' + row['name'], row['delta_ns'])}"
    if row["kind"] == "collective" and row["name"] == "wait":
        return f"waiting in collectives {amount}{_one_rank(finding, 'wait in collectives', row['delta_ns'])}"
    if row["kind"] == "collective":
        table = finding.frames["collectives"]
        detail = _largest(table, row["delta_ns"])
        return f"collectives' transfer {amount}{detail}"
    inside = {name.name for side in finding.sides for name in side.names if name.bucket == row["name"]}
    kernels = finding.frames["kernels"].filter(
        pl.col("name").is_in(inside) | (pl.col("status") == "implementation_changed")
    )
    kernels = kernels.filter(
        pl.col("name").map_elements(lambda name: name.split(" -> ")[0] in inside, return_dtype=pl.Boolean)
    )
    return f"bucket {row['name']} {amount}, {_calls_or_time(row)}{_largest(kernels, row['delta_ns'])}"


def _largest(table: pl.DataFrame, delta_ns: int) -> str:
    """The row that changed most in the same direction, if it explains half of the change."""
    same = table.filter((pl.col("delta_ns") > 0) == (delta_ns > 0)).head(1)
    if same.is_empty() or abs(same["delta_ns"][0]) < abs(delta_ns) / 2:
        return ""
    row = same.row(0, named=True)
    told = f": mostly {_short(row['name'])}, {_signed(row['delta_ns'])} a step, {_calls_or_time(row)}"
    if row["status"] == "implementation_changed" and row["before_calls"] and row["after_calls"]:
        told += f" (per call {row['before_per_step_ns'] / row['before_calls'] / 1e3:.1f} -> {row['after_per_step_ns'] / row['after_calls'] / 1e3:.1f} us)"
    return told


def _calls_or_time(row: dict[str, Any]) -> str:
    before, after = row["before_calls"] or 0.0, row["after_calls"] or 0.0
    if row["status"] in ("appeared", "vanished"):
        return f"{row['status']}"
    if not row["delta_ns"] or before <= 0:
        return "same calls"
    if abs(row["calls_part_ns"]) > 0.8 * abs(row["delta_ns"]):
        return f"{before:.4g} -> {after:.4g} calls a step, same time each"
    longer = "longer" if row["delta_ns"] > 0 else "shorter"
    if abs(row["time_part_ns"]) > 0.8 * abs(row["delta_ns"]):
        return f"same calls, {longer} by {abs(row['time_part_ns']) / after / 1e3:.2f} us each ({after:.4g} calls)"
    return f"{before:.4g} -> {after:.4g} calls a step and {longer} each"


def _one_rank(finding: Finding, name: str, delta_ns: int) -> str:
    """`, all on rank 0` or `, on every rank but 0`, where that is so."""
    ranks = {}
    for mine, other in zip(sorted(finding.sides[0].ranks), sorted(finding.sides[1].ranks), strict=True):
        ranks[mine] = finding.sides[1].ranks[other].get(name, 0.0) - finding.sides[0].ranks[mine].get(name, 0.0)
    total = sum(ranks.values())
    if len(ranks) < 2 or not total or (total > 0) != (delta_ns > 0):
        return ""
    most = max(ranks, key=lambda rank: abs(ranks[rank]))
    if abs(ranks[most]) > 0.8 * abs(total):
        return f", all on rank {most} ({_signed(round(ranks[most]))} there)"
    least = min(ranks, key=lambda rank: abs(ranks[rank]))
    rest = [abs(value) for rank, value in ranks.items() if rank != least]
    if len(ranks) > 2 and abs(ranks[least]) < 0.2 * min(rest):
        return f", on every rank but {least}"
    return ""


def _followed(finding: Finding, step_ns: int) -> list[str]:
    """Time that moved: a rank's own gaps that the others pay for by waiting."""
    if "collective_parts" not in finding.frames:
        return []
    wait = finding.frames["collective_parts"].filter(pl.col("name") == "wait").row(0, named=True)
    if not _found(wait, step_ns, finding.floor_frac) or wait["delta_ns"] <= 0:
        return []
    grown = []
    for mine, other in zip(sorted(finding.sides[0].ranks), sorted(finding.sides[1].ranks), strict=True):
        before, after = finding.sides[0].ranks[mine], finding.sides[1].ranks[other]
        own = {
            name: after.get(name, 0.0) - before.get(name, 0.0)
            for name in set(before) | set(after)
            if name != "wait in collectives"
        }
        name = max(own, key=lambda one: (own[one], one), default="")
        waited = after.get("wait in collectives", 0.0) - before.get("wait in collectives", 0.0)
        if name and own[name] > finding.floor_frac * step_ns and waited < 0.5 * own[name]:
            grown.append((own[name], mine, name))
    if not grown:
        return []
    amount, rank, name = max(grown)
    what = f"gaps of cause {name.removeprefix('gap: ')}" if name.startswith("gap: ") else f"bucket {name}"
    return [
        f"The waiting follows rank {rank}: its {what} grew by {_ms(amount)} a step, and the other ranks wait for it."
    ]


def _sure(verdict: dict[str, Any]) -> str:
    if verdict["significant"] is None:
        return "no interval"
    return f"95 % interval {_signed(verdict['ci_low_ns'])} .. {_signed(verdict['ci_high_ns'])}"


def _ms(value_ns: float) -> str:
    return f"{value_ns / 1e6:.3f} ms" if abs(value_ns) >= 1e5 else f"{value_ns / 1e3:.2f} us"


def _signed(value_ns: float) -> str:
    return ("+" if value_ns >= 0 else "-") + _ms(abs(value_ns))


def _short(name: str) -> str:
    """A kernel, or `before -> after`, by the functions' own names."""
    return " -> ".join(map(short_name, name.split(" -> ")))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
