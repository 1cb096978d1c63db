"""Steps from kernels alone: an anchor that begins each step, or the period of the kernel sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import numpy as np
import polars as pl

from tracelens.analyses.step_cycles import Cycles, cycle_starts, regularity_at
from tracelens.analyses.step_markers import OUTSIDE, SQL, STEP_SCHEMA, Marking, nothing
from tracelens.analyses.step_replays import find_replays, issue_order
from tracelens.analyses.timeline import KERNEL, Flags, Ints, Timeline
from tracelens.errors import SelectionError, UsageError

if TYPE_CHECKING:
    from tracelens.trace import LoadedTrace

EMBEDDING = r"(?i)embedding|index_?select(small|large)?|vectorized_gather_kernel"
"""Kernels that look tokens up: the first of a forward pass."""

NOT_EMBEDDING = r"(?i)rotary|rope|position_?embed|backward"
"""Names that the pattern above would take although they run once per layer."""


def by_anchor(trace: LoadedTrace, tl: Timeline, pattern: str | None) -> Marking:
    """Steps that begin at kernels whose name matches.

    Args:
        trace: the trace.
        tl: its timeline.
        pattern: a user's regular expression for kernel names, or None for the kernels that look tokens up.

    Raises:
        UsageError: the pattern is no regular expression.
        SelectionError: a user's pattern matches no kernel.
    """
    try:
        found = trace.rows(SQL, "names_matching", pattern=pattern or EMBEDDING)
    except duckdb.Error as error:
        raise UsageError(
            f"--step-marker {pattern!r} is not a regular expression: {error}", "RE2 syntax: no look-around"
        ) from error
    wanted = tl.names["name"].is_in(found["name"].implode())
    if pattern is None:
        wanted &= ~tl.names["name"].str.contains(NOT_EMBEDDING)
    order = issue_order(tl)
    kernels = order[(tl.kind == KERNEL)[order]]
    tokens, groups = tl.name[kernels], tl.rank_place[kernels]
    hits = wanted.to_numpy()[tokens]
    if not bool(hits.any()):
        if pattern is None:
            return nothing("anchor", tl, "no embedding kernel")
        raise SelectionError(
            f"--step-marker {pattern!r} matches no kernel name",
            "`tracelens bucket --kernels` lists the names of the capture",
        )
    if pattern is not None:
        places = np.flatnonzero(hits)
        regularity = regularity_at(tokens, groups, places)
        return _marking("anchor", tl, order, kernels[places], regularity, f"kernels that match {pattern!r}")
    cycles = cycle_starts(tokens, groups, only=hits)
    if cycles is None:
        return nothing("anchor", tl, "embedding kernels do not come once per step")
    name = tl.names["name"][cycles.token]
    return _marking("anchor", tl, order, kernels[cycles.places], cycles.regularity, f"kernel {name}")


def by_period(tl: Timeline) -> Marking:
    """Steps from the period of the kernel sequence on each rank's busiest stream."""
    order = issue_order(tl)
    kernels = order[_on_main_stream(tl)[order]]
    tokens, groups = tl.name[kernels], tl.rank_place[kernels]
    cycles: Cycles | None = cycle_starts(tokens, groups, idle_before=_idle_before(tl)[kernels])
    if cycles is None:
        return nothing("period", tl, "the kernel sequence does not repeat")
    name = tl.names["name"][cycles.token]
    detail = f"a period of {cycles.length} kernels from {name} on"
    return _marking("period", tl, order, kernels[cycles.places], cycles.regularity, detail)


def _on_main_stream(tl: Timeline) -> Flags:
    """Kernels of the stream with most kernel time on each rank."""
    kernel = tl.kind == KERNEL
    spent = np.bincount(tl.stream[kernel], (tl.end - tl.start)[kernel], minlength=len(tl.stream_number))
    main = np.zeros(len(tl.stream_number), bool)
    # Streams ascend by rank; of equals the first.
    by_rank = np.lexsort((np.arange(len(spent)), -spent, tl.stream_rank))
    ranks = tl.stream_rank[by_rank]
    main[by_rank[np.concatenate([np.ones(1, bool), ranks[1:] != ranks[:-1]])]] = True
    result: Flags = kernel & main[tl.stream]
    return result


def _idle_before(tl: Timeline) -> Ints:
    """Idle time of the device right before each event; 0 where it was busy, and at a rank's first event."""
    reached = np.maximum.accumulate(tl.end)
    result = np.zeros(len(tl), np.int64)
    result[1:] = np.maximum(tl.start[1:] - reached[:-1], 0)
    result[tl.first[:-1]] = 0
    return result


def _marking(marker: str, tl: Timeline, order: Ints, begins: Ints, regularity: float, detail: str) -> Marking:
    """Steps that begin with the launches of `begins`; a kernel inside a replay begins with its replay."""
    opened = np.zeros(len(tl), bool)
    replays = None
    inside = tl.in_graph[begins]
    if bool(inside.any()):
        replays = find_replays(tl, order)
        replay = replays.of_event[begins]
        begins = np.where(replay >= 0, replays.first[np.maximum(replay, 0)], begins)
    opened[begins] = True
    opened_in_order = opened[order]
    number = np.cumsum(opened_in_order) - 1
    place = tl.rank_place[order]
    step_place = place[np.flatnonzero(opened_in_order)]
    held = (number >= 0) & (step_place[np.maximum(number, 0)] == place)
    member = np.full(len(tl), OUTSIDE, np.int32)
    member[order] = np.where(held, number, OUTSIDE)
    if replays is not None:
        in_replay = replays.of_event >= 0
        member[in_replay] = member[replays.first[replays.of_event[in_replay]]]
    steps = pl.DataFrame({"place": step_place.astype(np.int32)}).with_columns(
        [pl.lit(None, dtype=dtype).alias(name) for name, dtype in STEP_SCHEMA.items() if name != "place"]
    )
    return Marking(marker, member, steps, regularity, detail)
