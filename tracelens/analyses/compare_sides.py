"""One side of a comparison: per-step figures of one phase and rung, small enough to keep as a baseline."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelens.analyses.alignment import find_alignment
from tracelens.analyses.blocks import blocks
from tracelens.analyses.selection import select
from tracelens.analyses.step_figures import step_figures
from tracelens.analyses.step_search import search_steps
from tracelens.analyses.step_summary import steps_counted
from tracelens.analyses.steps import steps
from tracelens.errors import NotComparableError, UsageError
from tracelens.frames import Notice
from tracelens.trace import LoadedTrace

_SQL = Path(__file__).with_suffix(".sql")
_FORMAT = 1
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Gap causes, as the columns of `steps` name them.
CAUSES = ("host_late", "launch_latency", "in_graph", "back_to_back", "step_boundary", "other_gap")


@dataclass(frozen=True)
class Named:
    """One kernel name of a side.

    Attributes:
        name: as in the capture.
        bucket: by the map.
        operation, implementation: by the collective table; None for compute.
        offset_ns: where in a step it first runs; None where it never starts in one.
    """

    name: str
    bucket: str
    operation: str | None
    implementation: str | None
    offset_ns: int | None


@dataclass
class SideFigures:
    """Figures per step of one capture, each the mean over ranks.

    Attributes:
        phase, rung: of the steps.
        step_ns: (steps,) step duration, mean over ranks.
        p50_ns: median over steps of the median over ranks.
        names: the kernel names, in the order of the columns below.
        elapsed_ns, wait_ns, calls: (steps, names) exclusive time, its part before the last arrival, calls.
        gap_ns: (steps, causes) idle time by cause.
        ranks: rank -> {name: mean ns per step}: buckets, `wait in collectives` and gap causes.
        environment: what it ran on.
        rungs: (phase, rung, steps) of the whole capture.
        span_ns: of the whole capture, mean over ranks.
        wait_known: whether collectives could be matched across ranks.
        window: which steps these are, in words.
    """

    phase: str
    rung: str
    step_ns: Floats
    p50_ns: int
    names: list[Named]
    elapsed_ns: Floats
    wait_ns: Floats
    calls: Floats
    gap_ns: Floats
    ranks: dict[int, dict[str, float]]
    environment: dict[str, str]
    rungs: list[tuple[str, str, int]] = field(default_factory=list)
    span_ns: float = 0.0
    wait_known: bool = True
    window: str = ""

    @property
    def step_count(self) -> int:
        """Steps that the figures rest on."""
        return len(self.step_ns)

    def save(self) -> bytes:
        """The side as a small file: gzipped JSON, without paths, hosts or anything of the environment but hardware."""
        document: dict[str, Any] = {"tracelens_baseline": _FORMAT}
        for key, value in asdict(self).items():
            document[key] = value.tolist() if isinstance(value, np.ndarray) else value
        document["ranks"] = {str(rank): figures for rank, figures in self.ranks.items()}
        return gzip.compress(json.dumps(document).encode(), mtime=0)


def load_side(path: Path) -> SideFigures:
    """A side that `save` wrote.

    Raises:
        UsageError: the file is no baseline.
    """
    try:
        document = json.loads(gzip.decompress(path.read_bytes()))
        if document.pop("tracelens_baseline") != _FORMAT:
            raise ValueError("another version")
        arrays = {
            key: np.array(document.pop(key), np.float64)
            for key in ("step_ns", "elapsed_ns", "wait_ns", "calls", "gap_ns")
        }
        names = [Named(**name) for name in document.pop("names")]
        ranks = {int(rank): figures for rank, figures in document.pop("ranks").items()}
        rungs = [(phase, rung, count) for phase, rung, count in document.pop("rungs")]
        count = len(arrays["step_ns"])
        for key, width in (
            ("elapsed_ns", len(names)),
            ("wait_ns", len(names)),
            ("calls", len(names)),
            ("gap_ns", len(CAUSES)),
        ):
            arrays[key] = arrays[key].reshape(count, width)
        fields: dict[str, Any] = document | arrays
        return SideFigures(names=names, ranks=ranks, rungs=rungs, **fields)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path}: not a baseline that tracelens saved ({type(error).__name__})",
            "Save one with --baseline FILE and a capture.",
        ) from error


@dataclass(frozen=True)
class Kept:
    """What a comparison keeps of a capture: its steps, and of its events only when collectives waited.

    Attributes:
        counted: the rows of `Steps.table` that enter comparisons.
        figures: the table `steps`, where any does.
        marker: what the steps were found by.
        notices: warnings about the steps.
        wait_id, wait_until_ns: int64, ids of the collectives whose wait is known, ascending, and when the last member
            of each arrived, on the own time of the event's rank.
    """

    counted: pl.DataFrame
    figures: pl.DataFrame
    marker: str
    notices: tuple[Notice, ...]
    wait_id: Ints
    wait_until_ns: Ints


def kept_of(trace: LoadedTrace) -> Kept:
    """What a comparison needs of a capture, worked out once; what that took is given back."""
    result: Kept = trace.memo("compared", lambda: _keep(trace))
    return result


def _keep(trace: LoadedTrace) -> Kept:
    with trace.briefly() as brief:
        found = search_steps(brief)
        counted = _counting(brief, found.table)
        return Kept(
            counted,
            pl.DataFrame() if counted.is_empty() else steps(brief).tables["steps"],
            str(found.facts["marker"]),
            tuple(notice for notice in found.notices if notice.severity == "warning"),
            *_waits(brief),
        )


def _waits(trace: LoadedTrace) -> tuple[Ints, Ints]:
    """`Kept.wait_id` and `Kept.wait_until_ns`."""
    found = find_alignment(trace).operations
    calls, waited = found.recorded, found.accepted
    count = int(np.count_nonzero(waited))
    ids, until_ns = trace.room.empty(count, np.int64), trace.room.empty(count, np.int64)
    at = 0
    for part in blocks(0, len(calls)):
        some = np.flatnonzero(waited[part])
        filled = slice(at, at + len(some))
        ids[filled] = calls.event_id[part][some]
        np.add(calls.start[part][some], found.wait_ns[part][some], out=until_ns[filled])
        at = filled.stop
    return ids, until_ns


def rungs_of(trace: LoadedTrace) -> list[tuple[str, str, int]]:
    """(phase, rung, number of steps that count) of a capture, most steps first."""
    counted = (
        kept_of(trace)
        .counted.select("set", "step", "phase", "rung")
        .unique()
        .group_by("phase", "rung")
        .len()
        .sort("len", "phase", "rung", descending=[True, False, False])
    )
    return [(str(phase), str(rung), int(count)) for phase, rung, count in counted.iter_rows()]


def _counting(trace: LoadedTrace, table: pl.DataFrame) -> pl.DataFrame:
    """Steps that enter comparisons: complete on every rank of their set, not warm-up, as selected."""
    table = table.filter(pl.col("complete_on_all") & ~pl.col("warm_up") & pl.col("rank").is_in(trace.ranks))
    if trace.options.steps is not None:
        table = table.filter(pl.col("step").is_between(*trace.options.steps))
    if trace.options.phase is not None:
        table = table.filter(pl.col("phase") == trace.options.phase)
    if trace.options.time_s is not None:
        table = _within(table, select(trace).windows)
    return table


def _within(table: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Steps that lie in the chosen time on every rank; a clipped one has another length."""
    inside = (
        table.select("set", "step", "rank", "edge_ns", "window_end_ns")
        .join(windows, on="rank")
        .filter((pl.col("edge_ns") >= pl.col("start_ns")) & (pl.col("window_end_ns") <= pl.col("end_ns")))
        .group_by("set", "step")
        .agg(pl.col("rank").n_unique().alias("inside_count"))
    )
    members = table.group_by("set", "step").agg(pl.col("rank").n_unique().alias("member_count"))
    kept = members.join(inside, on=["set", "step"]).filter(pl.col("inside_count") == pl.col("member_count"))
    return table.join(kept.select("set", "step"), on=["set", "step"], how="semi")


def side_figures(trace: LoadedTrace, phase: str, rung: str) -> SideFigures:
    """The per-step figures of the steps of one phase and rung.

    Raises:
        NotComparableError: there are none.
    """
    kept = kept_of(trace)
    table = kept.counted.filter((pl.col("phase") == phase) & (pl.col("rung") == rung))
    if table.is_empty():
        raise NotComparableError(f"no complete step of {phase} {rung}", "`tracelens steps` shows what there is.")
    order = table.select("set", "step").unique().sort("set", "step").with_row_index("row")
    table = table.join(order, on=["set", "step"], how="left").sort("rank", "edge_ns")
    windows = table.select(
        "rank",
        pl.col("row").cast(pl.Int64).alias("step"),
        pl.col("edge_ns").alias("start_ns"),
        pl.col("window_end_ns").alias("end_ns"),
    )
    listed = trace.rows(_SQL, "names")
    figures = step_figures(trace, windows, listed.height, (kept.wait_id, kept.wait_until_ns))
    members = table.group_by("row").len().sort("row")["len"].to_numpy().astype(np.float64)[:, None]
    per_rank = kept.figures.join(table.select("set", "step", "rank", "row"), on=["step", "rank"], how="inner")
    gap_columns = [f"{cause}_ns" for cause in CAUSES]
    by_step = (
        per_rank.group_by("row")
        .agg(
            pl.col(gap_columns).mean(),
            pl.col("step_ns").mean().alias("mean_ns"),
            pl.col("step_ns").median().alias("median_ns"),
        )
        .sort("row")
    )
    used = np.flatnonzero((figures.elapsed_ns.sum(axis=0) > 0) | (figures.calls.sum(axis=0) > 0))
    sample = windows.filter(pl.col("step") < min(8, order.height))
    trace.db.register("sample_window", sample.to_arrow())
    offsets = dict(trace.rows(_SQL, "positions").iter_rows())
    trace.db.unregister("sample_window")
    spans = trace.rows(_SQL, "spans", ranks=trace.ranks)
    numbers = order["step"].sort().to_list()
    count, _, each = steps_counted(table).partition(": ")
    return SideFigures(
        phase=phase,
        rung=rung,
        step_ns=by_step["mean_ns"].to_numpy(),
        p50_ns=round(float(by_step["median_ns"].median() or 0)),  # type: ignore[arg-type]
        names=[
            Named(name, bucket, operation, implementation, offsets.get(name_id))
            for name_id, name, bucket, operation, implementation in listed[used].iter_rows()
        ],
        elapsed_ns=figures.elapsed_ns[:, used] / members,
        wait_ns=figures.early_ns[:, used] / members,
        calls=figures.calls[:, used] / members,
        gap_ns=by_step.select(gap_columns).fill_null(0).to_numpy().astype(np.float64),
        ranks=_by_rank(figures.rank_elapsed_ns, listed, windows, per_rank),
        environment=_environment(trace, kept.marker),
        rungs=rungs_of(trace),
        span_ns=float(spans["span_ns"].mean() or 0),  # type: ignore[arg-type]
        wait_known=len(kept.wait_id) > 0,
        window=f"{phase} {rung}: {count} of steps {numbers[0]}-{numbers[-1]}" + (f" ({each})" if each else ""),
    )


def _by_rank(
    rank_elapsed: NDArray[np.int64], listed: pl.DataFrame, windows: pl.DataFrame, per_rank: pl.DataFrame
) -> dict[int, dict[str, float]]:
    """Mean ns per step of every bucket, of waiting, and of every gap cause, for each rank."""
    ranks = sorted(windows["rank"].unique().to_list())
    counts = dict(windows.group_by("rank").len().iter_rows())
    buckets = listed["bucket"].to_list()
    found: dict[int, dict[str, float]] = {}
    for lane, rank in enumerate(ranks):
        figures: dict[str, float] = {}
        for bucket, value in zip(buckets, rank_elapsed[lane], strict=True):
            if value:
                figures[bucket] = figures.get(bucket, 0.0) + float(value) / counts[rank]
        mine = per_rank.filter(pl.col("rank") == rank)
        for cause in CAUSES:
            figures[f"gap: {cause}"] = float(mine[f"{cause}_ns"].fill_null(0).mean() or 0)  # type: ignore[arg-type]
        if mine["wait_ns"].null_count() < mine.height:
            figures["wait in collectives"] = float(mine["wait_ns"].mean() or 0)  # type: ignore[arg-type]
        found[rank] = figures
    return found


def graph_tracing(trace: LoadedTrace) -> str | None:
    """How CUDA graphs were traced: node, graph, none; null where the capture does not say."""
    told: str | None = dict(trace.rows(_SQL, "environment").iter_rows()).get("graph_trace")
    return told


def _environment(trace: LoadedTrace, marker: str) -> dict[str, str]:
    told = {str(key): str(value) for key, value in trace.rows(_SQL, "environment").iter_rows()}
    return told | {
        "ranks": str(len(trace.ranks)),
        "engine": str(trace.detection.engine or "unknown"),
        "model": str(trace.detection.model or "unknown"),
        "rules": trace.ruleset.name,
        "step_marker": marker,
        "attribution": trace.options.attribution,
    }


def shared_rung(
    before: Sequence[tuple[str, str, int]], after: Sequence[tuple[str, str, int]]
) -> tuple[tuple[str, str], tuple[str, str], str]:
    """The phase and rung to compare: ((phase, rung) before, (phase, rung) after, how they were paired).

    Rungs pair by name. Where no name is common, the most frequent rung of a phase pairs with the other side's: a new
    GEMM library or all-reduce changes the shapes from which a nameless rung is told.

    Raises:
        NotComparableError: no phase is common.
    """
    ours, theirs = (
        {(phase, rung): count for phase, rung, count in before},
        {(phase, rung): count for phase, rung, count in after},
    )
    common = sorted(set(ours) & set(theirs), key=lambda key: (key[0] != "decode", -min(ours[key], theirs[key]), key))
    if common:
        return common[0], common[0], "name"
    nameless = [[key for key in side if not key[1].startswith("bs=")] for side in (ours, theirs)]
    for phase in sorted(
        {phase for phase, _ in ours} & {phase for phase, _ in theirs}, key=lambda name: (name != "decode", name)
    ):
        most = [next((key for key in side if key[0] == phase), None) for side in nameless]
        if most[0] and most[1]:
            return most[0], most[1], "frequency"
    seen = [
        ", ".join(f"{phase} {rung}" for phase, rung in list(side)[:4]) or "no complete step" for side in (ours, theirs)
    ]
    raise NotComparableError(
        f"no common phase and rung: {seen[0]} before, {seen[1]} after",
        "Capture both at the same batch size; `tracelens steps` shows each side.",
    )
