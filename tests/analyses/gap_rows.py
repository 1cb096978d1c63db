"""What `gaps` says of a trace, short enough for a test's expected rows."""

from __future__ import annotations

import polars as pl

from tests.analyses.drawn_steps import US
from tracelens.analyses.gap_search import find_gaps
from tracelens.analyses.gaps import gaps
from tracelens.trace import LoadedTrace


def drawn(trace: LoadedTrace) -> list[tuple[float, float, str, float | None, float | None]]:
    """(start, length, cause, host part, launch part) in us of the gaps of rank 0."""
    rows = gaps(trace, all=True).gaps.filter(pl.col("rank") == 0)
    return [
        (start / US, length / US, cause, None if host is None else host / US, None if launch is None else launch / US)
        for start, length, cause, host, launch in rows.select(
            "start_ns", "gap_ns", "cause", "host_part_ns", "launch_part_ns"
        ).rows()
    ]


def totals(trace: LoadedTrace) -> dict[str, int]:
    """Cause -> ns over all ranks, causes without gaps left out."""
    sums = gaps(trace).causes.group_by("cause").agg(pl.col("gap_ns").sum()).filter(pl.col("gap_ns") > 0)
    return dict(sums.rows())


def device_ahead(trace: LoadedTrace) -> list[tuple[tuple[int, ...], float, int]]:
    """(ranks, how far their device is ahead of its host in us, waits that say so) of every stretch of every clock."""
    return [(one.ranks, one.offset.ahead_ns / US, one.offset.wait_count) for one in find_gaps(trace).host_clocks]
