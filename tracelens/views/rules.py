"""Bucket maps and what is wrong with them, on a terminal."""

from __future__ import annotations

import textwrap
from typing import Any

import polars as pl

from tracelens.frames import Result
from tracelens.views.terminal import Screen
from tracelens.views.text import shorten_middle, visible

_MOST_PER_KIND = 12
_MOST_DIFFERENCES = 40


def show_findings(result: Result, screen: Screen) -> None:
    """Draw the findings of `rules check`, kind by kind; of each kind the weightiest."""
    screen.sentences(result.sentences)
    findings = result.tables["findings"]
    several = findings["map"].n_unique() > 1
    for (one,), rows in findings.group_by("map", maintain_order=True):
        for (kind,), part in rows.group_by("kind", maintain_order=True):
            where = f" in {one}" if several else ""
            screen.line(f"{str(kind).replace('_', ' ')}: {part.height}{where}", "bold")
            for finding in part.head(_MOST_PER_KIND).iter_rows(named=True):
                _show_finding(finding, screen)
            if part.height > _MOST_PER_KIND:
                screen.line(f"  ({part.height - _MOST_PER_KIND} more; --format json has all)", "dim")
            screen.line()


def _show_finding(finding: dict[str, Any], screen: Screen) -> None:
    """What it is about, then what to do, indented."""
    about = finding["kernel_name"] or finding["rule"] or finding["map"]
    share = "" if finding["time_frac"] is None else f"{finding['time_frac']:.1%} of the time: "
    ellipsis = "…" if screen.blocks else "..."
    screen.line("  " + share + shorten_middle(about, max(30, screen.width - 2 - len(share)), ellipsis))
    for text in textwrap.wrap(visible(finding["suggestion"]), max(screen.width - 6, 30), break_on_hyphens=False):
        screen.line("      " + text, "dim")


def show_differences(result: Result, screen: Screen) -> None:
    """Draw where two maps disagree: sums per pair of buckets, then the names."""
    screen.sentences(result.sentences)
    for name, title in (("moves", "From bucket to bucket"), ("differences", "Name by name")):
        frame = result.tables[name]
        untimed = frame["kernel_ns"].null_count() == frame.height
        columns = [column for column in frame.columns if not (untimed and column in ("kernel_ns", "time_frac"))]
        screen.table(
            frame,
            result.schemas[name],
            title=title,
            columns=columns,
            optional=["pattern_a", "pattern_b", "kernel_ns"],
            limit=_MOST_DIFFERENCES,
        )


def show_explanations(result: Result, screen: Screen) -> None:
    """Draw why names land where they do."""
    explain = result.tables["explain"]
    if explain.height == 1:  # one name is read down, not across
        for column, value in explain.row(0, named=True).items():
            screen.line(f"{column.replace('_', ' '):<15} {'-' if value is None else value}")
        return
    empty = [name for name in ("implementation", "fused", "ranks") if explain[name].null_count() == explain.height]
    screen.table(
        explain,
        result.schemas["explain"],
        columns=[name for name in explain.columns if name not in empty],
        optional=["ranks", "fused", "position", "pattern"],
    )


def show_maps(result: Result, screen: Screen) -> None:
    """Draw the list of shipped maps."""
    maps = result.tables["maps"].with_columns(pl.col("sha256").str.slice(0, 12))
    screen.table(maps, result.schemas["maps"], optional=["sha256", "engine", "model"])


def show_rules(result: Result, screen: Screen) -> None:
    """Draw one map, patterns in full: they are there to be read."""
    for rule in result.tables["rules"].iter_rows(named=True):
        screen.line(f"{rule['position']:>3}  {rule['bucket']:<20} {rule['pattern']}")
