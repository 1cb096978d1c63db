"""What the answer tells about the steps as a whole: how they were found, what is cut, what lies outside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from tracelens.analyses.occupancy import Occupancy
from tracelens.analyses.step_choice import ACCEPTED
from tracelens.analyses.step_markers import Marking
from tracelens.analyses.step_windows import Windows
from tracelens.analyses.timeline import Codes, Ints, Timeline
from tracelens.frames import Notice
from tracelens.units import format_ns


def count_facts(
    tl: Timeline, occ: Occupancy, rows: pl.DataFrame, member: Codes, windows: Windows, marking: Marking
) -> tuple[dict[str, Any], pl.DataFrame]:
    """(what provenance tells about the steps, how each rank's span is made up).

    Times are means over ranks, as in the summary; counts are totals. The second frame has one row per rank, and in it
    span_ns = steps_ns + idle_between_ns + outside_ns, exactly.

    Args:
        tl: the timeline.
        occ: its occupancy.
        rows: rows of the windows with complete_on_all and warm_up.
        member: row of each event or -1.
        windows: the windows and the idle between requests.
        marking: the marker in use.
    """
    places = pl.DataFrame(
        {"place": np.arange(len(tl.ranks)), "rank": tl.ranks, "span_ns": occ.span_end - occ.span_start}
    )
    in_steps = rows.group_by("place").agg((pl.col("window_end") - pl.col("edge")).sum().alias("steps_ns"))
    idle = windows.idle_gaps.group_by("place").agg((pl.col("end") - pl.col("start")).sum().alias("idle_between_ns"))
    conservation = (
        places.join(in_steps, on="place", how="left", maintain_order="left")
        .join(idle, on="place", how="left", maintain_order="left")
        .with_columns(pl.col("steps_ns", "idle_between_ns").fill_null(0))
        .with_columns(outside_ns=pl.col("span_ns") - pl.col("steps_ns") - pl.col("idle_between_ns"))
        .select("rank", "span_ns", "steps_ns", "idle_between_ns", "outside_ns")
    )
    partial = rows.filter(~pl.col("complete_on_all")).select("set", "step").unique().height
    warm = rows.filter("warm_up").select("set", "step").unique().height
    facts: dict[str, Any] = {
        "marker": marking.marker,
        "marker_detail": marking.detail,
        "regularity": round(marking.regularity, 4),
        "warm_up_steps": warm,
        "partial_steps": partial,
        "idle_between_count": len(windows.idle.starts),
        "idle_between_ns": _mean(conservation["idle_between_ns"]),
        "idle_between_max_ns": _longest(windows.idle_gaps),
        "outside_count": sum(int(np.count_nonzero(member[part] < 0)) for part in tl.stretches()),
        "outside_ns": _mean(conservation["outside_ns"]),
        "straddling_count": _straddling(tl, rows),
    }
    return facts, conservation


def _longest(gaps: pl.DataFrame) -> int:
    """Length of the longest gap, 0 without gaps."""
    return 0 if gaps.is_empty() else int((gaps["end"] - gaps["start"]).to_numpy().max())


def _mean(values: pl.Series) -> int:
    """Mean over ranks, rounded half to even; 0 without ranks."""
    return round(int(values.sum()) / len(values)) if len(values) else 0


def _straddling(tl: Timeline, rows: pl.DataFrame) -> int:
    """Events that run across at least one edge or end of a window."""
    if rows.is_empty() or len(tl) == 0:
        return 0
    cuts = np.unique(np.concatenate([rows["edge"].to_numpy(), rows["window_end"].to_numpy()]))
    # An event meets few cuts: walk the cuts, find the events around each by their start, count those that reach over.
    before = np.searchsorted(tl.start, cuts)
    since = _first_beyond(tl, cuts)
    over = since < before
    cuts, before, since = cuts[over], before[over], since[over]
    if len(cuts) == 0:
        return 0
    widths = before - since
    first = np.repeat(since, widths)
    place = np.arange(int(widths.sum())) - np.repeat(np.cumsum(widths) - widths, widths) + first
    return len(np.unique(place[tl.end[place] > np.repeat(cuts, widths)]))


def _first_beyond(tl: Timeline, cuts: Ints) -> Ints:
    """Place of the first event that ends after each of the ascending `cuts`, the number of events where none does."""
    result = np.full(len(cuts), len(tl), np.int64)
    low, latest = 0, np.iinfo(np.int64).min
    for part in tl.stretches():
        reached = np.maximum.accumulate(tl.end[part])
        latest = max(latest, int(reached[-1]))
        high = int(np.searchsorted(cuts, latest))
        result[low:high] = part.start + np.searchsorted(reached, cuts[low:high], side="right")
        low = high
    return result


def tell(
    ranks: list[int],
    refused: tuple[tuple[str, str], ...],
    marking: Marking,
    rows: pl.DataFrame,
    facts: dict[str, Any],
) -> tuple[Notice, ...]:
    """What the reader must know about the steps.

    Args:
        ranks: those in the answer.
        refused: (marker, why) of the markers tried before.
        marking: the marker in use.
        rows: rows of the windows with phase, step, set, rank.
        facts: of `count_facts`.
    """
    notices = []
    tried = "; ".join(f"{marker}: {why}" for marker, why in refused)
    tried = tried or f"{marking.marker}: {marking.detail} hold no event that was launched after them"
    if not len(marking):
        notices.append(
            Notice(
                "no-steps",
                "warning",
                f"no steps found ({tried})",
                "Mark them with --step-marker REGEX (NVTX text), or --steps-by anchor --step-marker REGEX (kernel name).",
            )
        )
        return tuple(notices)
    if marking.regularity < ACCEPTED:
        notices.append(
            Notice(
                "irregular-marker",
                "warning",
                f"the {marking.marker} marker fits only {marking.regularity:.0%} of the capture",
                "Try another: --steps-by auto|nvtx|graph|anchor|period.",
            )
        )
    by_sequence = marking.marker == "period" and "read-back" not in marking.detail
    if by_sequence and rows.filter(pl.col("phase") != "other").is_empty():
        notices.append(
            Notice(
                "period-only",
                "warning",
                f"steps are {marking.detail}: nothing in the capture samples tokens, reads back or looks tokens up, so that "
                "a step may be one layer of a longer pass",
                "Mark the steps with --step-marker REGEX.",
            )
        )
    if facts["partial_steps"]:
        one = facts["partial_steps"] == 1
        count = "1 step is" if one else f"{facts['partial_steps']} steps are"
        notices.append(
            Notice(
                "partial-steps",
                "info",
                f"{count} cut by the capture's edge, missing on a rank or followed by idle between requests; "
                f"no summary holds {'it' if one else 'them'}",
                "",
                facts["partial_steps"],
            )
        )
    present = set(rows["rank"].unique().to_list())
    absent = [rank for rank in ranks if rank not in present]
    if absent:
        shown = ", ".join(map(str, absent[:8]))
        notices.append(
            Notice(
                "ranks-without-steps",
                "warning",
                f"rank {shown} shows no step; the others are judged without it",
                "",
                len(absent),
            )
        )
    notices.extend(_uneven(rows))
    notices.extend(_missing_nodes(rows))
    return tuple(notices)


def _uneven(rows: pl.DataFrame) -> list[Notice]:
    """Ranks that have fewer steps than their set, and by how much their captures begin late or end early."""
    extent = (pl.col("step").min().alias("first"), pl.col("step").max().alias("last"))
    per_rank = rows.group_by("set", "rank").agg(pl.len().cast(pl.Int64).alias("own"), *extent)
    whole = rows.group_by("set").agg(
        pl.col("step").n_unique().cast(pl.Int64).alias("every"),
        pl.col("step").min().alias("set_first"),
        pl.col("step").max().alias("set_last"),
    )
    fewer = per_rank.join(whole, on="set").filter(pl.col("own") < pl.col("every")).sort("rank")
    if fewer.is_empty():
        return []
    shown = "; ".join(_uneven_words(rows, row) for row in fewer.head(8).iter_rows(named=True))
    return [
        Notice(
            "ranks-differ-in-steps",
            "info",
            f"some ranks' captures hold fewer steps than their set ({shown}); only steps that every rank has are compared",
            "",
            fewer.height,
        )
    ]


def _uneven_words(rows: pl.DataFrame, rank: dict[str, Any]) -> str:
    said = f"rank {rank['rank']}: {rank['own']} of {rank['every']}"
    late = _between(rows, rank["set"], rank["set_first"], rank["first"], "edge")
    early = _between(rows, rank["set"], rank["last"], rank["set_last"], "window_end")
    said += f", begins {format_ns(late)} late" if late else ""
    return said + (f", ends {format_ns(early)} early" if early else "")


def _between(rows: pl.DataFrame, number: int, first: int, last: int, time: str) -> int | None:
    """Time from one step to another on the lowest rank of the set that has both; null where none has."""
    both = (
        rows.filter((pl.col("set") == number) & pl.col("step").is_in([first, last]))
        .group_by("rank")
        .agg(pl.col("step").n_unique().alias("count"), (pl.col(time).max() - pl.col(time).min()).alias("length"))
        .filter(pl.col("count") == 2)
        .sort("rank")
    )
    return int(both["length"][0]) if both.height else None


def _missing_nodes(rows: pl.DataFrame) -> list[Notice]:
    """Whole steps that show fewer graph nodes than the others of their rank and rung: a graph never runs in part."""
    kind = ["place", "phase", "rung", "graph_id"]
    whole = rows.filter(pl.col("complete") & (pl.col("graph_node_count") > 0))
    usual = whole.group_by(kind).agg(pl.col("graph_node_count").mode().max().alias("usual"), pl.len().alias("alike"))
    short = whole.join(usual, on=kind, nulls_equal=True).filter(
        (pl.col("alike") > 2) & (pl.col("graph_node_count") < pl.col("usual"))
    )
    if short.is_empty():
        return []
    lost = int((short["usual"] - short["graph_node_count"]).sum())
    where = ", ".join(
        f"step {step} on rank {rank}"
        for step, rank in short.sort("set", "step", "rank").select("step", "rank").head(4).iter_rows()
    )
    return [
        Notice(
            "graph-nodes-missing",
            "warning",
            f"{lost} nodes of graph replays are missing, in {where}{' and more' if short.height > 4 else ''}: the capture lost "
            "records, and what looks like a gap there may be work",
            "Flush more often, or trace less: nsys profile --cuda-flush-interval=...",
            lost,
        )
    ]
