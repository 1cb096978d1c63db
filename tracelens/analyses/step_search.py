"""Steps: one forward pass each, on every rank; latency, collective time and gaps per step, and a summary per phase.

marker     |execute|      |execute|          host
launches     l l l l        l l l l          host
rank 0            k k k c     k k k c        device; c: collective
step               `--- 0 ----´`--- 1        from edge to edge of the main stream
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracelens.analyses.aligned_clock import aligned_clock
from tracelens.analyses.blocks import run_starts
from tracelens.analyses.occupancy import occupancy
from tracelens.analyses.registered import register
from tracelens.analyses.step_choice import choose_marker
from tracelens.analyses.step_facts import count_facts, tell
from tracelens.analyses.step_markers import Marking
from tracelens.analyses.step_phases import guess_phases, picks_tokens, replay_share, rung_hashes, split_by_graph
from tracelens.analyses.step_windows import Windows, cut_windows, renumber
from tracelens.analyses.timeline import Codes, Ints, Timeline, timeline
from tracelens.frames import Notice
from tracelens.trace import LoadedTrace

_SQL = Path(__file__).with_suffix(".sql")

WARM_UP_EXCESS = 1.1
"""A leading step this many times the median of the later half of its phase and rung is warm-up."""

WARM_UP_SHARE = 4
"""At most one in so many steps of a phase and rung is warm-up."""


@dataclass(frozen=True)
class Steps:
    """The steps of a trace.

    Attributes:
        table: one row per rank and step, by (set, step, rank): set, step, rank, phase, rung, graph_id, complete (on
            this rank), complete_on_all (on every rank of the set that has steps), warm_up, edge_ns and window_end_ns
            (own time), step_ns, idle_after_ns (0: no idle between requests follows), kernel_count, requests, tokens.
        member: int32 [events of the timeline], row in `table` or -1.
        window_start, window_end: int64 ns [rows of `table`], on the timeline's axis.
        marking: the marker in use, its `member` empty.
        idle: one row per rank and idle between requests: rank, set, start_ns, end_ns (own time).
        facts: what provenance tells: marker, regularity, warm_up_steps, partial_steps, idle_between_*, outside_*,
            straddling_count.
        conservation: one row per rank: span_ns = steps_ns + idle_between_ns + outside_ns.
        notices: what the reader must know.
    """

    table: pl.DataFrame
    member: Codes
    window_start: Ints
    window_end: Ints
    marking: Marking
    idle: pl.DataFrame
    facts: dict[str, Any]
    conservation: pl.DataFrame
    notices: tuple[Notice, ...]


def find_steps(trace: LoadedTrace) -> Steps:
    """Find the steps of all ranks, once per trace, and register `step` and `step_member` in its database.

    `step_member` has one row per event that belongs to a step: event_id, step (its number within the rank's set).

    Raises:
        SelectionError, UsageError: the marker that was asked for marks nothing, or is no regular expression.
    """
    steps = search_steps(trace)
    register(trace, "step", steps, lambda: _register(trace, timeline(trace), steps))
    return steps


def search_steps(trace: LoadedTrace) -> Steps:
    """`find_steps` without its tables in the database."""
    result: Steps = trace.memo("steps", lambda: _search(trace))
    return result


def step_windows(trace: LoadedTrace) -> pl.DataFrame:
    """The windows of the steps that `--steps` and `--phase` choose: rank, start_ns, end_ns on each rank's own time.

    Warm-up steps count only where `--steps` names them.
    """
    rows = search_steps(trace).table
    if trace.options.steps is not None or trace.options.phase is not None:
        rows = _numbered(trace, rows)
    return rows.select("rank", pl.col("edge_ns").alias("start_ns"), pl.col("window_end_ns").alias("end_ns")).sort(
        "rank", "start_ns"
    )


def selected_steps(trace: LoadedTrace, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows that `--steps`, `--phase` and `--time` choose: a step counts where its edge lies.

    Args:
        trace: its options tell.
        rows: step, phase, rank, edge_ns.
    """
    rows = _numbered(trace, rows)
    if trace.options.time_s is None:
        return rows
    clock, tl = aligned_clock(trace), timeline(trace)
    begins = tl.own_time(np.arange(len(tl.ranks)), occupancy(trace).span_start)
    edge = clock.aligned(rows["rank"].to_numpy().astype(np.int64), rows["edge_ns"].to_numpy())
    edge = edge - int(clock.aligned(tl.ranks, begins).min())
    low, high = trace.options.time_s
    inside = np.ones(len(edge), bool)
    if low is not None:
        inside &= edge >= round(low * 1e9)
    if high is not None:
        inside &= edge < round(high * 1e9)
    return rows.filter(pl.Series(inside))


def _numbered(trace: LoadedTrace, rows: pl.DataFrame) -> pl.DataFrame:
    options = trace.options
    if options.steps is not None:
        rows = rows.filter(pl.col("step").is_between(*options.steps))
    if options.phase is not None:
        rows = rows.filter(pl.col("phase") == options.phase)
    return rows


def _search(trace: LoadedTrace) -> Steps:
    tl = timeline(trace)
    choice = choose_marker(trace, tl)
    # One array of all events is enough: the marking's own becomes that of the answer.
    member = choice.marking.member
    marking = replace(choice.marking, member=np.empty(0, np.int32))
    windows = cut_windows(tl, occupancy(trace), aligned_clock(trace), member, len(marking))
    rows = _described(tl, windows, marking)
    rows = _completed(rows)
    rows = _warmed(rows, trace.options.skip)
    # From here on in the order of the answer.
    order = rows.select(pl.arg_sort_by("set", "step", "rank"))["set"].to_numpy()
    back = np.full(rows.height + 1, -1, np.int32)
    back[order] = np.arange(rows.height, dtype=np.int32)
    renumber(tl, member, back)
    rows = rows[order]
    facts, conservation = count_facts(tl, occupancy(trace), rows, member, windows, marking)
    table = _table(tl, rows)
    return Steps(
        table=table,
        member=member,
        window_start=rows["edge"].to_numpy(),
        window_end=rows["window_end"].to_numpy(),
        marking=marking,
        idle=_own_idle(tl, windows),
        facts=facts,
        conservation=conservation,
        notices=tell(trace.ranks, choice.refused, marking, rows, facts),
    )


def _described(tl: Timeline, windows: Windows, marking: Marking) -> pl.DataFrame:
    """Phase, rung and graph id for every row; equal on all ranks of a step."""
    rows = windows.rows
    told = marking.steps[rows["row"].to_numpy()].drop("place")
    rows = rows.hstack(told)
    rows = rows.with_columns(rank=pl.Series(tl.ranks)[rows["place"]])
    # The lowest rank's text stands for the step.
    first = (
        rows.sort("set", "step", "rank")
        .group_by("set", "step", maintain_order=True)
        .agg(pl.col("phase", "rung", "requests", "tokens").drop_nulls().first())
    )
    rows = rows.drop("phase", "rung", "requests", "tokens").join(
        first, on=["set", "step"], how="left", maintain_order="left"
    )
    count = rows.height
    graph_id = _graph_ids(tl, windows.member, count)
    if rows["rung"].null_count():
        hashes = pl.Series("hash", rung_hashes(tl, windows.member, _alike(rows)), dtype=pl.String)
        common = (
            rows.select("set", "step", "rank")
            .with_columns(hashes)
            .sort("set", "step", "rank")
            .group_by("set", "step", maintain_order=True)
            .agg(pl.col("hash").drop_nulls().mode().sort().first())
        )
        rows = rows.join(common, on=["set", "step"], how="left", maintain_order="left")
        # A graph-level capture shows no shapes, but which graph ran.
        graph = pl.when(graph_id.is_not_null()).then(pl.format("graph {}", graph_id))
        split = split_by_graph(rows.select("set", "step", "rank", "word", "word_size", rung=pl.coalesce("hash", graph)))
        rows = rows.with_columns(rung=pl.coalesce(pl.col("rung"), split)).drop("hash")
    if rows["phase"].null_count():
        guess = guess_phases(
            rows.select("set", "step", "rung").with_columns(
                step_ns=pl.when(rows["has_next"] & (rows["idle_after_ns"] == 0)).then(
                    rows["window_end"] - rows["edge"]
                ),
                has_replay=pl.Series(replay_share(tl, windows.member, count)),
                picks_tokens=pl.Series(picks_tokens(tl, windows.member, count)),
            )
        )
        rows = rows.with_columns(phase=pl.coalesce(pl.col("phase"), guess))
    return rows.with_columns(graph_id=graph_id)


def _alike(rows: pl.DataFrame) -> Ints:
    """Per row the first row of its rank that replayed the same graphs; itself where it replayed none."""
    at = pl.int_range(pl.len())
    alike = rows.select(pl.when(pl.col("word").is_null()).then(at).otherwise(at.min().over("place", "word")))
    return alike.to_series().to_numpy().astype(np.int64)


def _graph_ids(tl: Timeline, member: Codes, count: int) -> pl.Series:
    """Per row the graph that ran most of its nodes; null where the export names none."""

    def counted(part: slice) -> pl.DataFrame:
        first, last = np.searchsorted(begins, [part.start, part.stop])
        held = np.union1d(part.start + run_starts(member[part]), begins[first:last])
        row, of = member[held], graph[np.searchsorted(begins, held, side="right") - 1]
        return pl.DataFrame({"row": row, "graph": of, "size": np.diff(np.append(held, part.stop))})

    begins, graph = tl.graph_runs
    if not bool((graph >= 0).any()):
        return pl.Series([None] * count, dtype=pl.Int64)
    counts = pl.concat(list(tl.each(counted))).filter((pl.col("row") >= 0) & (pl.col("graph") >= 0))
    counts = counts.group_by("row", "graph").agg(pl.col("size").sum())
    most = counts.sort("row", -pl.col("size"), "graph").unique("row", keep="first")
    return pl.DataFrame({"row": np.arange(count, dtype=np.int32)}).join(
        most, on="row", how="left", maintain_order="left"
    )["graph"]


def _completed(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds complete, and complete_on_all: whole on every rank of the set that has steps."""
    if rows.is_empty():
        return rows.with_columns(complete=pl.lit(True), complete_on_all=pl.lit(True))
    rows = rows.with_columns(
        skips=(pl.col("step").shift(-1).over("place") - pl.col("step") > 1).fill_null(False),
        is_first=pl.int_range(pl.len()).over("place") == 0,
    )
    whole = pl.col("has_next") & (pl.col("idle_after_ns") == 0) & ~pl.col("skips")
    # A capture may begin in the middle of a step: its first has fewer kernels than any other of its kind.
    inner = rows.filter(whole & ~pl.col("is_first"))
    least = inner.group_by("place", "phase", "rung").agg(pl.col("kernel_count").min().alias("least"))
    usual = inner.group_by("place").agg(pl.col("kernel_count").median().alias("usual"))
    rows = rows.join(least, on=["place", "phase", "rung"], how="left", maintain_order="left", nulls_equal=True)
    rows = rows.join(usual, on="place", how="left", maintain_order="left")
    cut = pl.col("is_first") & (
        (pl.col("kernel_count") < pl.col("least"))
        | (pl.col("least").is_null() & (pl.col("kernel_count") < 0.9 * pl.col("usual")))
    ).fill_null(False)
    rows = rows.with_columns(complete=whole & ~cut)
    ranks = rows.group_by("set").agg(pl.col("place").n_unique().alias("rank_count"))
    rows = rows.join(ranks, on="set", how="left", maintain_order="left")
    return rows.with_columns(
        complete_on_all=pl.col("complete").all().over("set", "step")
        & (pl.len().over("set", "step") == pl.col("rank_count"))
    ).drop("skips", "is_first", "least", "usual", "rank_count")


def _warmed(rows: pl.DataFrame, skip: int | None) -> pl.DataFrame:
    """Adds warm_up: the first `skip` steps, else the slow leading run of each phase and rung."""
    if skip is not None:
        return rows.with_columns(warm_up=pl.col("step") < skip)
    each = (
        rows.filter("complete_on_all")
        .with_columns(step_ns=pl.col("window_end") - pl.col("edge"))
        .group_by("set", "phase", "rung", "step")
        .agg(pl.col("step_ns").median())
        .sort("set", "phase", "rung", "step")
    )
    key = ["set", "phase", "rung"]
    each = each.with_columns(nth=pl.int_range(pl.len()).over(key), size=pl.len().over(key))
    later = (
        each.filter(pl.col("nth") >= pl.col("size").cast(pl.Int64) - pl.col("size").cast(pl.Int64) // 2)
        .group_by(key)
        .agg(pl.col("step_ns").median().alias("later_ns"))
    )
    each = each.join(later, on=key, how="left", maintain_order="left", nulls_equal=True)
    slow = (pl.col("step_ns") > WARM_UP_EXCESS * pl.col("later_ns")).fill_null(False)
    each = each.with_columns(leads=slow.cast(pl.Int8).cum_min().over(key) == 1)
    each = each.with_columns(warm_up=pl.col("leads") & (pl.col("nth") < pl.col("size").cast(pl.Int64) // WARM_UP_SHARE))
    rows = rows.join(each.select("set", "step", "warm_up"), on=["set", "step"], how="left", maintain_order="left")
    return rows.with_columns(pl.col("warm_up").fill_null(False))


def _own_idle(tl: Timeline, windows: Windows) -> pl.DataFrame:
    gaps = windows.idle_gaps
    places = gaps["place"].to_numpy()
    return pl.DataFrame(
        {
            "rank": tl.ranks[places],
            "set": gaps["set"],
            "start_ns": tl.own_time(places, gaps["start"].to_numpy()),
            "end_ns": tl.own_time(places, gaps["end"].to_numpy()),
        }
    )


def _table(tl: Timeline, rows: pl.DataFrame) -> pl.DataFrame:
    places = rows["place"].to_numpy()
    return rows.select(
        pl.col("set").cast(pl.Int32),
        pl.col("step").cast(pl.Int32),
        pl.col("rank").cast(pl.Int32),
        "phase",
        "rung",
        "graph_id",
        "complete",
        "complete_on_all",
        "warm_up",
        pl.Series("edge_ns", tl.own_time(places, rows["edge"].to_numpy()), dtype=pl.Int64),
        pl.Series("window_end_ns", tl.own_time(places, rows["window_end"].to_numpy()), dtype=pl.Int64),
        (pl.col("window_end") - pl.col("edge")).alias("step_ns"),
        "idle_after_ns",
        "kernel_count",
        "requests",
        "tokens",
    )


def _register(trace: LoadedTrace, tl: Timeline, steps: Steps) -> None:
    trace.db.register("found_step", steps.table.to_arrow())
    trace.run(_SQL, "step")
    trace.db.unregister("found_step")
    held = np.flatnonzero(steps.member >= 0)
    number = steps.table["step"].to_numpy()[steps.member[held]]
    members = pl.DataFrame({"event_id": tl.ids_of(held), "step": number.astype(np.int32)})
    trace.db.register("found_member", members.to_arrow())
    trace.run(_SQL, "step_member")
    trace.db.unregister("found_member")
