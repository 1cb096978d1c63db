"""What a step pays for, largest first: one line a cause, whatever the number of steps and ranks it shows in.

A finding's time is what it costs per step at most, not a promise: waiting and gaps can only partly be removed, and two
findings may speak of the same time. The list says where to look first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from tracelens.analyses.alignment import find_alignment
from tracelens.frames import Column, Schema
from tracelens.trace import LoadedTrace

FINDINGS = Schema(
    "one finding, largest first",
    Column("finding", pl.String, "What was found, in words"),
    Column("kind", pl.String, "waiting, overlap or the cause of a gap"),
    Column("per_step_ns", pl.Int64, "What it costs per step at most, mean over ranks", "ns"),
    Column("per_step_frac", pl.Float64, "That as a share of the mean step", "frac"),
)

_GAPS = {
    "host_late": "The host launches late: the GPU has run dry before the launch call begins",
    "launch_latency": "Launches are on their way while the GPU has run dry",
    "in_graph": "Gaps between the nodes of one graph replay",
    "back_to_back": "The ordinary distance between queued kernels of one stream",
    "dependency": "Queued kernels wait for another stream, an event or a copy",
    "step_boundary": "Between steps nothing runs: read-back, scheduling, the next launch",
    "unknown": "Gaps before events without a recorded launch",
}
# Below this share of the step a finding is noise beside the others.
_LEAST_FRAC = 0.001


def findings(trace: LoadedTrace, tables: Mapping[str, pl.DataFrame], step_ns: float | None) -> pl.DataFrame:
    """The findings of a report's tables.

    Args:
        trace: the capture, for the streams of its collectives.
        tables: of them `verdict`, `rank_operations` and `causes` are read, where there.
        step_ns: mean step of the main kind; null: shares are null, and nothing is left out.

    Returns:
        Columns of `FINDINGS`, by time, largest first.
    """
    rows = [
        *_waiting(tables.get("verdict")),
        *_overlap(trace, tables.get("rank_operations")),
        *_gaps(tables.get("causes")),
    ]
    shared = [(*row, row[2] / step_ns if step_ns else None) for row in rows if row[2] > 0]
    kept = [row for row in shared if row[3] is None or row[3] >= _LEAST_FRAC]
    frame = pl.DataFrame(kept, schema=FINDINGS.names, orient="row") if kept else FINDINGS.empty()
    return FINDINGS.frame(frame).sort(-pl.col("per_step_ns"), "kind", "finding")


def _waiting(verdict: pl.DataFrame | None) -> Iterator[tuple[str, str, int]]:
    if verdict is None:
        return
    for row in verdict.iter_rows(named=True):
        cost = row["recoverable_per_step_ns"]
        if cost is None:
            continue
        if row["straggler_rank"] is not None:
            cause = "" if row["cause"] in (None, "none") else f" (cause: {row['cause']})"
            yield f"Rank {row['straggler_rank']} makes ranks {row['members']} wait{cause}", "waiting", cost
        elif row["late_ranks"]:
            yield f"Ranks {row['late_ranks']} make the other ranks of {row['members']} wait", "waiting", cost
        else:
            yield f"Ranks {row['members']} arrive apart, none of them persistently late", "waiting", cost


def _overlap(trace: LoadedTrace, operations: pl.DataFrame | None) -> Iterator[tuple[str, str, int]]:
    """Collectives that cannot hide, because compute runs on their own stream: their exposed transfers."""
    if operations is None:
        return
    shared = operations.filter(pl.col("same_stream") & pl.col("exposed_per_step_ns").is_not_null())
    if shared.is_empty():
        return
    exposed = shared.group_by("rank").agg(
        (pl.col("exposed_per_step_ns") - pl.col("wait_per_step_ns").fill_null(0)).sum().alias("transfer_ns")
    )
    calls = find_alignment(trace).operations.recorded
    wanted = set(shared["collective"].to_list())
    of_family = np.array([operation in wanted for operation, _, _ in calls.families], dtype=bool)
    named = np.unique(calls.stream[of_family[calls.family]]).tolist()
    # A share over all collectives: overlap_frac of one operation says nothing of the others.
    hidden = int(shared["hidden_per_step_ns"].sum())
    every = hidden + int(shared["exposed_per_step_ns"].sum())
    where = f"stream {', '.join(map(str, named))}" if len(named) <= 3 else f"{len(named)} streams"
    share = f"{hidden / every:.0%} overlap" if every else "no overlap"
    yield f"Compute and collectives share {where}: {share}", "overlap", max(0, round(_mean(exposed["transfer_ns"])))


def _gaps(causes: pl.DataFrame | None) -> Iterator[tuple[str, str, int]]:
    if causes is None:
        return
    known = causes.filter(pl.col("cause").is_in(list(_GAPS)) & pl.col("per_step_ns").is_not_null())
    for (cause,), rows in known.group_by("cause", maintain_order=True):
        yield _GAPS[str(cause)], str(cause), round(_mean(rows["per_step_ns"]))


def _mean(values: pl.Series) -> float:
    mean = values.mean()
    return float(mean) if isinstance(mean, (int, float)) else 0.0
