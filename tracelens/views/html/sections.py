"""What the page shows, section by section: which charts and tables, over which columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from tracelens.frames import Result
from tracelens.units import format_frac, format_ns, plural

Block = dict[str, Any]


def sections(result: Result) -> list[dict[str, Any]]:
    """The page's sections: `id`, `title`, `about` (how to read it) and `blocks`; a block is a chart or a table.

    A section of the standing plan whose tables are all absent stays, with a line that says so; the comparison and
    the scaling section appear only when asked for.
    """
    plan = [
        *([_findings()] if "findings" in result.tables else []),
        _budget(),
        _steps(),
        _collectives(),
        _skew(),
        _gaps(result),
        _timeline(result),
        _clock(),
        _data(),
    ]
    if any(name.startswith("compare_") for name in result.tables):
        plan.insert(0, _comparison())
    if any(name.startswith("scaling_") for name in result.tables):
        plan.append(_scaling())
    for section in plan:
        section["blocks"] = [block for block in section["blocks"] if _drawable(block, result)]
    return plan


def _drawable(block: Block, result: Result) -> bool:
    if "views" in block:
        block["views"] = [view for view in block["views"] if view["table"] in result.tables]
        return bool(block["views"])
    return block["table"] in result.tables


def facts(result: Result) -> list[str]:
    """The line under the title: ranks, steps, versions, exports."""
    found: list[str] = []
    ranks = result.tables.get("ranks")
    if ranks is not None and ranks.height:
        found.append(plural(ranks.height, "rank"))
        gpus = sorted({str(name) for name in ranks["gpu_name"].drop_nulls()}) if "gpu_name" in ranks.columns else []
        found.extend(gpus[:2])
    points = result.tables.get("step_points")
    if points is not None and points.height:
        found.append(plural(_total_steps(result), "step"))
    exports = result.tables.get("exports")
    if exports is not None and exports.height:
        found.append(plural(exports.height, "capture file"))
        versions = sorted({str(version) for version in exports["nsys_version"].drop_nulls()})
        if versions:
            found.append(f"nsys {', '.join(versions)}")
    return found


def tiles(result: Result) -> Iterator[tuple[str, str, str, bool]]:
    """The figures at the top: (label, value, note, whether it deserves a look)."""
    row = _main_summary(result)
    if row is not None:
        name = f"{row['phase']} step"
        rung = f", {row['rung']}" if row.get("rung") else ""
        yield f"{name}, p50", format_ns(row["p50_ns"]), f"{plural(row['step_count'], 'step')}{_short(rung)}", False
        yield f"{name}, p99", format_ns(row["p99_ns"]), f"mean {format_ns(row['mean_ns'])}", False
        if row.get("collective_mean_ns") is not None:
            yield "collectives per step", format_ns(row["collective_mean_ns"]), "mean over ranks", False
        if row.get("wait_mean_ns") is not None:
            yield "of it waiting", format_ns(row["wait_mean_ns"]), "for the last rank to arrive", False
        if row.get("gap_mean_ns") is not None:
            yield "gaps per step", format_ns(row["gap_mean_ns"]), "nothing running", False
    verdict = result.tables.get("verdict")
    if verdict is not None and verdict.height:
        first = verdict.row(0, named=True)
        who = first.get("straggler_rank")
        late = first.get("late_ranks")
        if who is not None:
            note = f"last in {format_frac(first['last_frac'])} of steps" if first.get("last_frac") is not None else ""
            yield "persistent straggler", f"rank {who}", note, True
        elif late:
            ranks = ", ".join(str(rank) for rank in late) if isinstance(late, list) else str(late)
            yield "late group", f"ranks {ranks}", "", True
        else:
            yield "persistent straggler", "none", str(first.get("class") or "").replace("_", " "), False
        if first.get("recoverable_per_step_ns") is not None:
            note = (
                f"{format_frac(first['recoverable_frac'])} of the step"
                if first.get("recoverable_frac") is not None
                else "per step"
            )
            yield "recoverable per step", format_ns(first["recoverable_per_step_ns"]), note, False


def _main_summary(result: Result) -> dict[str, Any] | None:
    summary = result.tables.get("summary")
    if summary is None or summary.is_empty():
        return None
    decode = summary.filter(pl.col("phase") == "decode")
    chosen = decode if decode.height else summary
    return chosen.sort("step_count", descending=True, maintain_order=True).row(0, named=True)


def _total_steps(result: Result) -> int:
    total = result.provenance.get("step_count")
    return int(total) if isinstance(total, int) else result.tables["step_points"].height


def _short(text: str) -> str:
    return text if len(text) <= 18 else text[:17] + "…"


def _chart(kind: str, table: str, title: str, **options: Any) -> Block:
    return {"kind": kind, "table": table, "title": title, **options}


def _table(table: str, title: str, **options: Any) -> Block:
    return {"kind": "table", "table": table, "title": title, **options}


def _findings() -> dict[str, Any]:
    return {
        "id": "findings",
        "title": "Findings",
        "about": "What a step pays for, largest first: where to look. Each is what it costs at most; two may speak of "
        "the same time.",
        "blocks": [_table("findings", "By cost per step", open=True, hide=["kind"], meter="per_step_ns")],
    }


def _budget() -> dict[str, Any]:
    stacked = {"category": "rank", "series": "bucket", "value": "elapsed_ns", "last": "idle"}
    return {
        "id": "budget",
        "title": "Budget",
        "about": "Where each rank's time goes. Every instant is in exactly one bucket, so a bar's length is the time "
        "that passed, idle included.",
        "blocks": [
            {
                "kind": "stack",
                "title": "Time by bucket and rank",
                **stacked,
                "views": [
                    {"label": "Typical step", "table": "step_buckets"},
                    {"label": "Whole capture", "table": "buckets"},
                ],
            },
            _table("buckets", "Buckets, whole capture", open=True, children="kernels", group="rank", key="bucket"),
        ],
    }


def _steps() -> dict[str, Any]:
    return {
        "id": "steps",
        "title": "Step latency",
        "about": "Each point is one step. Lines mark the median and the 99th percentile of the largest group. "
        "Hollow points (warm-up, cut, or followed by idle) enter no statistic.",
        "blocks": [
            _chart(
                "points",
                "step_points",
                "Latency over the capture",
                x="step",
                y="step_ns",
                series="phase",
                hollow=["complete", "warm_up"],
                lines="summary",
            ),
            _table("summary", "Statistics by phase and batch", open=True),
        ],
    }


def _collectives() -> dict[str, Any]:
    return {
        "id": "collectives",
        "title": "Collectives",
        "about": "A collective kernel's duration is mostly waiting where ranks arrive apart. Waiting and transfer are "
        "exposed: the step pays for them. Hidden time runs under compute and costs nothing.",
        "blocks": [
            _chart(
                "stack",
                "collective_split",
                "Collective time per step: waiting, transfer, hidden; unsplit where waits are unknown",
                category="rank",
                columns=["wait_ns", "transfer_ns", "unsplit_ns", "hidden_ns"],
                palette="split",
            ),
            _table("operations", "Operations and their implementations", open=True),
            _table("rank_operations", "Operations by rank"),
        ],
    }


def _skew() -> dict[str, Any]:
    return {
        "id": "skew",
        "title": "Who waits for whom",
        "about": "A rank that waits little makes the others wait: look for the faint row. Vertical bands are steps "
        "in which everybody waited; a row that is faint all along is a persistent straggler.",
        "blocks": [
            _table("verdict", "Verdict", open=True, pairs=True, hide=["sentence"]),
            _chart(
                "heat", "waits", "Waiting by rank and step", x="first_step", x2="last_step", y="rank", value="wait_ns"
            ),
            _chart(
                "heat",
                "position_waits",
                "Waiting by rank and position in the step's sequence of collectives",
                x="position",
                y="rank",
                value="wait_ns",
            ),
            _chart("box", "arrivals", "Arrival after the first rank", category="rank"),
            _table("skew_ranks", "Ranks: who is late, how much, and why", open=True),
            _table("set_aside", "Instances set aside"),
        ],
    }


def _gaps(result: Result) -> dict[str, Any]:
    causes = result.tables.get("causes")
    # Without steps there is nothing per step, but still a total.
    per_step = causes is None or causes["per_step_ns"].null_count() < causes.height
    return {
        "id": "gaps",
        "title": "Gaps",
        "about": "Time in which nothing runs on a rank, by what it waited for. The table names the kernels around the "
        "costliest gaps.",
        "blocks": [
            _chart(
                "stack",
                "causes",
                "Gaps per step by cause" if per_step else "Gaps by cause",
                category="rank",
                series="cause",
                value="per_step_ns" if per_step else "gap_ns",
                palette="cause",
                leave=["idle"],
            ),
            _table("edges", "Costliest gaps: the kernels around them", open=True, limit=15),
            _table("causes", "Causes by rank"),
        ],
    }


def _timeline(result: Result) -> dict[str, Any]:
    views = []
    slices = result.tables.get("slices")
    if slices is not None and slices.height:
        for view, step in slices.select("view", "step").unique(maintain_order=True).iter_rows():
            views.append({"label": f"{str(view).capitalize()} step ({step})", "table": "slices", "where": view})
    return {
        "id": "timeline",
        "title": "One step, all ranks",
        "about": "All ranks on the aligned clock, one lane per stream. Hatched is waiting for the last rank, solid of "
        "the same colour the transfer. Zoom in to see single kernels.",
        "blocks": [{"kind": "timeline", "title": "Timeline", "views": views}],
    }


def _clock() -> dict[str, Any]:
    return {
        "id": "clock",
        "title": "Clocks",
        "about": "How the ranks' clocks were brought together, and how far the result can be trusted: waits smaller "
        "than residual plus asymmetry are not claimed.",
        "blocks": [_table("clock", "Clock of each rank", open=True)],
    }


def _data() -> dict[str, Any]:
    return {
        "id": "data",
        "title": "Data quality",
        "about": "What was read, what was left out, and why.",
        "blocks": [
            _table("ranks", "Ranks and how each was identified", open=True),
            _table("exports", "Capture files", open=True),
            _table("ledger", "Rows read, used and excluded"),
        ],
    }


def _comparison() -> dict[str, Any]:
    return {
        "id": "comparison",
        "title": "What changed",
        "about": "Change per step, after less before. Whiskers are 95 % intervals where the captures allow one. Bucket "
        "and gap changes add up to the change of the step, with the unattributed rest.",
        "blocks": [
            _table("compare_verdict", "Verdict", open=True, pairs=True, hide=["headline"]),
            _chart("delta", "compare_buckets", "Change by bucket", category="name", value="delta_ns"),
            _chart("delta", "compare_gaps", "Change of gaps by cause", category="name", value="delta_ns"),
            _chart(
                "delta",
                "compare_collective_parts",
                "Collectives: waiting against transfer",
                category="name",
                value="delta_ns",
            ),
            _chart("delta", "compare_kernels", "Change by kernel", category="name", value="delta_ns", limit=15),
            _table("compare_collectives", "Collectives"),
            _table("compare_ranks", "By rank"),
            _table("compare_environment", "Environment", open=True),
        ],
    }


def _scaling() -> dict[str, Any]:
    return {
        "id": "scaling",
        "title": "Scaling",
        "about": "Measured step time against the model's, over the number of ranks. What lies between is the residual.",
        "blocks": [
            _chart("scaling", "scaling_points", "Step time: measured and predicted", x="tp"),
            _table("scaling_fit", "Fit", open=True),
            _table("scaling_what_if", "What changes would save", open=True),
        ],
    }
