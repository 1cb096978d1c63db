"""Where each rank's time went: kernels by bucket, every instant once, idle included."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelens.analyses.blocks import each
from tracelens.analyses.selection import select, selected_events, spans
from tracelens.analyses.sweep import ComputeFirst, Sweep
from tracelens.errors import UsageError
from tracelens.frames import Column, Notice, Result, Schema
from tracelens.ruleset.spelling import short_name
from tracelens.sqlfiles import queries
from tracelens.trace import LoadedTrace
from tracelens.units import plural

if TYPE_CHECKING:
    from tracelens.analyses.timeline import Timeline

_SQL = Path(__file__).with_suffix(".sql")
_BATCH_ROWS = 262_144
IDLE = "idle"
HOST = "cpu_non_gpu"
Ints = NDArray[np.int64]
Compat = Literal["gputrc2graph"]


class BucketResult(Result):
    """Time per rank and bucket; `kernels` with the names inside, if asked for."""

    command: ClassVar[str] = "bucket"
    schemas: ClassVar = {
        "buckets": Schema(
            "one bucket of one rank; the row `idle` closes each rank",
            Column("rank", pl.Int32, "Rank; null where all devices of an export are swept as one"),
            Column("bucket", pl.String, "Bucket by the map, or idle"),
            Column("kernel_count", pl.Int64, "Events that start in the window", "count"),
            Column("kernel_ns", pl.Int64, "Sum of durations", "ns"),
            Column("busy_ns", pl.Int64, "Length of the union within the bucket", "ns"),
            Column("elapsed_ns", pl.Int64, "Exclusive time: with idle it sums to the span", "ns"),
            Column("elapsed_frac", pl.Float64, "Share of the span", "frac"),
        ),
        "kernels": Schema(
            "one kernel name of one rank",
            Column("rank", pl.Int32, "Rank; null where all devices of an export are swept as one"),
            Column("bucket", pl.String, "Bucket by the map"),
            Column("pattern", pl.String, "The rule's pattern that placed it"),
            Column("kernel_name", pl.String, "Demangled name"),
            Column("kernel_count", pl.Int64, "Events that start in the window", "count"),
            Column("kernel_ns", pl.Int64, "Sum of durations", "ns"),
            Column("elapsed_ns", pl.Int64, "Exclusive time", "ns"),
        ),
    }


def buckets(
    trace: LoadedTrace,
    *,
    kernels: bool = False,
    compat: Compat | None = None,
    non_profiled_s: float | None = None,
) -> BucketResult:
    """Time by bucket for every rank.

    Each instant of busy time belongs to one bucket: that of the event that started first (`--attribution first`), or
    of a non-collective one wherever one runs (`compute-first`). So for each rank the `elapsed_ns` of its buckets and
    `idle` sum to the length of its windows, to the nanosecond.

    Args:
        trace: the capture; its options choose ranks, windows and attribution.
        kernels: also one row per kernel name.
        compat: `gputrc2graph`: that script's arithmetic instead - one sweep over all devices of an export, whose
            overlap on different devices is then lost; rank is null and there is no idle row.
        non_profiled_s: with `compat`, the run's duration without the profiler, s; adds the row `cpu_non_gpu`.

    Raises:
        SelectionError: the selection holds nothing.
        UsageError: `compat` together with a selection that the script does not know.
    """
    names = trace.rows(_SQL, "names")
    bucket_names = sorted(set(names["bucket"].to_list()))
    numbers = {bucket: number for number, bucket in enumerate(bucket_names)}
    groups = np.array([numbers[bucket] for bucket in names["bucket"]], np.int64)
    if compat:
        return _like_the_script(trace, names, bucket_names, groups, kernels, non_profiled_s)
    if non_profiled_s is not None:
        raise UsageError(
            "--non-profiled-s belongs to --compat gputrc2graph", "Add --compat gputrc2graph, or leave it out."
        )
    selection = select(trace)
    ranks = trace.ranks
    sweep: Sweep = trace.memo("sweep", lambda: _sweep(trace, names, groups))
    if selection.whole:  # nothing is cut, so that the sweep saw where each rank begins and ends
        lengths = dict(zip(ranks, sweep.span_ns().tolist(), strict=True))
        spans(trace, lambda: _seen_spans(sweep, ranks))
    else:
        lengths = selection.span_ns()
    unknown = bool(trace.rows(_SQL, "invisible_graphs").item())
    rows = _rows(sweep, bucket_names, groups, ranks, [lengths.get(rank, 0) for rank in ranks], unknown)
    tables = {"buckets": BucketResult.schemas["buckets"].frame(rows)}
    if kernels:
        tables["kernels"] = BucketResult.schemas["kernels"].frame(_kernel_rows(sweep, names, list(ranks)))
    sentences = () if unknown else _sentences(tables["buckets"])
    return BucketResult(
        tables, _notices(trace, names, sweep), trace.provenance() | {"window": selection.words}, sentences
    )


def _sweep(trace: LoadedTrace, names: pl.DataFrame, groups: Ints) -> Sweep:
    """One pass over the selected events; along the timeline, rank by rank on several threads, where it is there already."""
    ranks = np.array(trace.ranks, np.int64)
    if trace.options.attribution == "compute-first":
        sweep: Sweep = ComputeFirst(len(ranks), names.height, groups, names["collective"].to_numpy())
    else:
        sweep = Sweep(len(ranks), names.height, groups)
    along: Timeline | None = trace.known("timeline")
    if along is None or not select(trace).whole:
        for rank, name, start_ns, end_ns, counted in selected_events(trace):
            sweep.add(np.searchsorted(ranks, rank), name, start_ns, end_ns, counted)
        return sweep
    lanes = np.searchsorted(ranks, along.ranks)

    def add(place: int) -> None:
        for part in along.stretches(place):
            lane = np.full(part.stop - part.start, lanes[place])
            shift_ns = along.shift[place]
            sweep.add(lane, along.name[part].astype(np.int64), along.start[part] - shift_ns, along.end[part] - shift_ns)

    for _ in each(add, range(len(lanes)), trace.threads):
        pass
    return sweep


def _seen_spans(sweep: Sweep, ranks: list[int]) -> pl.DataFrame:
    start_ns, end_ns = sweep.bounds_ns()
    found = pl.DataFrame(
        {"rank": ranks, "start_ns": start_ns, "end_ns": end_ns},
        schema={"rank": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64},
    )
    return found.filter(pl.Series(sweep.count.any(axis=1)))


def _rows(
    sweep: Sweep, bucket_names: list[str], groups: Ints, ranks: list[int], spans: list[int], unknown: bool
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for lane, rank in enumerate(ranks):
        totals = {
            field: _by_group(getattr(sweep, field)[lane], groups, len(bucket_names))
            for field in ("count", "summed_ns", "owned_ns")
        }
        order = sorted(range(len(bucket_names)), key=lambda number: (-totals["owned_ns"][number], bucket_names[number]))
        for number in order:
            if not totals["count"][number] and not totals["summed_ns"][number]:
                continue
            owned = int(totals["owned_ns"][number])
            rows.append(
                {
                    "rank": rank,
                    "bucket": bucket_names[number],
                    "kernel_count": int(totals["count"][number]),
                    "kernel_ns": int(totals["summed_ns"][number]),
                    "busy_ns": int(sweep.union_ns[lane, number]),
                    "elapsed_ns": owned,
                    "elapsed_frac": owned / spans[lane] if spans[lane] and not unknown else None,
                }
            )
        idle = spans[lane] - int(totals["owned_ns"].sum())
        rows.append(
            {"rank": rank, "bucket": IDLE, "kernel_count": 0, "kernel_ns": 0, "busy_ns": 0}
            | {
                "elapsed_ns": None if unknown else idle,
                "elapsed_frac": None if unknown or not spans[lane] else idle / spans[lane],
            }
        )
    return rows


def _by_group(values: Ints, groups: Ints, count: int) -> Ints:
    totals: Ints = np.zeros(count, np.int64)
    np.add.at(totals, groups, values)
    return totals


def _kernel_rows(sweep: Sweep, names: pl.DataFrame, ranks: list[int] | list[None]) -> pl.DataFrame:
    parts = []
    for lane, rank in enumerate(ranks):
        part = names.select("bucket", "pattern", pl.col("name").alias("kernel_name")).with_columns(
            pl.lit(rank, pl.Int32).alias("rank"),
            pl.Series("kernel_count", sweep.count[lane]),
            pl.Series("kernel_ns", sweep.summed_ns[lane]),
            pl.Series("elapsed_ns", sweep.owned_ns[lane]),
        )
        part = part.filter((pl.col("kernel_count") > 0) | (pl.col("kernel_ns") > 0))
        totals = part.group_by("bucket").agg(pl.col("elapsed_ns").sum().alias("bucket_ns"))
        parts.append(
            part.join(totals, on="bucket").sort(
                "bucket_ns",
                "bucket",
                "elapsed_ns",
                "kernel_ns",
                "kernel_name",
                descending=[True, False, True, True, False],
            )
        )
    return pl.concat(parts)


def _like_the_script(
    trace: LoadedTrace,
    names: pl.DataFrame,
    bucket_names: list[str],
    groups: Ints,
    kernels: bool,
    non_profiled_s: float | None,
) -> BucketResult:
    options = trace.options
    if any(value is not None for value in (options.ranks, options.steps, options.phase, options.time_s)):
        raise UsageError(
            "--compat gputrc2graph sweeps whole exports; it knows no --ranks, --steps, --phase or --time",
            "Leave the selection out, or --compat.",
        )
    sweep = Sweep(1, names.height, groups)
    shift_ns = 0
    last_export = -1
    for batch in trace.db.sql(queries(_SQL)["device_sweep"]).to_arrow_reader(_BATCH_ROWS):
        export, name, start_ns, end_ns = (
            batch.column(place).to_numpy().astype(np.int64, copy=False) for place in range(4)
        )
        # One sweep per export: each gets a stretch of time of its own on one lane.
        for one in np.unique(export):
            mine = export == one
            if one != last_export:
                shift_ns = (int(sweep._lane_end[0]) if last_export >= 0 else int(start_ns[mine].min())) - int(
                    start_ns[mine].min()
                )
                last_export = int(one)
            sweep.add(
                np.zeros(int(mine.sum()), np.int64), name[mine], start_ns[mine] + shift_ns, end_ns[mine] + shift_ns
            )
    rows = [
        row
        for row in _rows(sweep, bucket_names, groups, [0], [int(sweep.owned_ns.sum())], False)
        if row["bucket"] != IDLE
    ]
    total = int(sweep.owned_ns.sum())
    if non_profiled_s is not None:
        host_ns = round(non_profiled_s * 1e9) - total
        if host_ns < 0:
            raise UsageError(
                f"--non-profiled-s {non_profiled_s:g} is shorter than the GPU's {total / 1e9:.3f} s",
                "Give the duration of the same run without the profiler.",
            )
        rows.append(
            {
                "bucket": HOST,
                "kernel_count": 0,
                "kernel_ns": 0,
                "busy_ns": 0,
                "elapsed_ns": host_ns,
                "elapsed_frac": None,
            }
        )
        total += host_ns
    for row in rows:
        elapsed = row["elapsed_ns"]
        row |= {"rank": None, "elapsed_frac": int(str(elapsed)) / total if total else None}
    tables = {"buckets": BucketResult.schemas["buckets"].frame(rows)}
    if kernels:
        tables["kernels"] = BucketResult.schemas["kernels"].frame(_kernel_rows(sweep, names, [None]))
    devices = int(trace.rows(_SQL, "devices_swept").item())
    notices = list(_notices(trace, names, sweep))
    if devices > 1:
        notices.insert(
            0,
            Notice(
                "one-timeline",
                "warning",
                f"--compat sweeps {plural(devices, 'GPU')} as one timeline: time in which several run is counted once, for whichever started first",
                "Leave --compat out for each rank's own time.",
                devices,
            ),
        )
    return BucketResult(tables, tuple(notices), trace.provenance() | {"compat": "gputrc2graph", "ranks": None})


def _notices(trace: LoadedTrace, names: pl.DataFrame, sweep: Sweep) -> tuple[Notice, ...]:
    """The capture's notices, and a warning where names that no rule knows hold much of the time."""
    notices = list(trace.notices)
    catch_all = trace.ruleset.catch_all
    position = None if catch_all is None else trace.ruleset.rules[catch_all].pattern
    by_name = names.with_columns(pl.Series("ns", sweep.owned_ns.sum(axis=0)))
    rest = by_name.filter(
        (pl.col("pattern") == position)
        if position is not None
        else pl.col("pattern").is_null() & (pl.col("bucket") != "graph_opaque")
    )
    total, left = int(by_name["ns"].sum()), int(rest["ns"].sum())
    if total and left > 0.1 * total:
        largest = rest.sort("ns", "name", descending=[True, False])["name"].head(3).to_list()
        notices.append(
            Notice(
                "unclassified",
                "warning",
                f"{left / total:.0%} of busy time is in kernels that no rule of {trace.ruleset.name} knows; the largest: {'; '.join(map(short_name, largest))}",
                "See them with --kernels; add a rule, or choose another map with --rules.",
                rest.filter(pl.col("ns") > 0).height,
            )
        )
    ranks = sweep.count.shape[0]
    if ranks > 1 and not names.filter(pl.Series(sweep.count.sum(axis=0) > 0))["collective"].any():
        notices.append(
            Notice(
                "no-collectives",
                "warning",
                f"{ranks} ranks, and no kernel that the collective table knows",
                "Record again with: nsys profile --cuda-graph-trace=node"
                if any(notice.code in ("graph-level", "graph-invisible") for notice in trace.notices)
                else "`tracelens rules explain NAME` shows how a name is read.",
                ranks,
            )
        )
    return tuple(notices)


def _sentences(table: pl.DataFrame) -> tuple[str, ...]:
    """Where most of the time went, over all ranks."""
    spans = table.group_by("rank").agg(pl.col("elapsed_ns").sum())
    total = int(spans["elapsed_ns"].sum())
    if not total:
        return ()
    shares = (
        table.group_by("bucket").agg(pl.col("elapsed_ns").sum()).sort("elapsed_ns", "bucket", descending=[True, False])
    )
    busy = [(bucket, ns) for bucket, ns in shares.iter_rows() if bucket != IDLE]
    idle = total - sum(ns for _, ns in busy)
    told = ", ".join(f"{bucket} {ns / total:.1%}" for bucket, ns in busy[:3])
    ranks = spans.height
    whose = f"{ranks} ranks, together" if ranks > 1 else "1 rank"
    return (f"{whose} {total / 1e6:,.3f} ms: {told}; idle {idle / total:.1%}.",)
