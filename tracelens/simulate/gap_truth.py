"""Every gap and its cause, and what compute hides of the collectives, read off true times."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.simulate.events import Events
from tracelens.simulate.intervals import busy_within, covered_before, merged
from tracelens.simulate.observed import ObservedRows
from tracelens.simulate.spec import CaptureSpec

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


BACK_TO_BACK_NS = 5_000
FEW_LAUNCHES = 20
DEFAULT_LATENCY_NS = 10_000


def gap_table(
    spec: CaptureSpec, rows: ObservedRows, events: Events, rank: int, edge: Ints, window_end: Ints, idle: Ints
) -> dict[str, Ints]:
    """Every gap of one rank: length, cause, parts, and the step whose window holds it (-1: none)."""
    empty = np.zeros(0, np.int64)
    if len(rows.start) == 0:
        return {
            "gap": empty,
            "cause": empty,
            "host": empty,
            "launch": empty,
            "step": empty,
            "typical": np.zeros(2, np.int64),
        }
    reach = np.maximum.accumulate(rows.end)
    # index of the row whose end is the furthest so far
    holder = np.maximum.accumulate(np.where(rows.end == reach, np.arange(len(reach)), 0))
    after = np.flatnonzero(rows.start[1:] > reach[:-1]) + 1
    before = holder[after - 1]
    dry, start = reach[after - 1], rows.start[after]
    call_begin = events.launch_begin[rank, rows.launch[after]]
    call_end = events.launch_end[rank, rows.launch[after]]
    launched = rows.launch[after] >= int(spec.per_rank("lost_launches")[rank])
    is_graph = rows.graph[after] >= 0
    typical = np.full(2, DEFAULT_LATENCY_NS, np.int64)
    same_replay = is_graph & (rows.launch[after] == rows.launch[before])
    for place, chosen in enumerate((is_graph, ~is_graph)):
        fresh = chosen & launched & (call_begin >= dry) & ~same_replay
        if fresh.sum() >= FEW_LAUNCHES:
            typical[place] = int(np.rint(np.median(start[fresh] - call_begin[fresh])))
    latency = np.where(is_graph, typical[0], typical[1])
    edges = np.sort(edge[:, rank][edge[:, rank] >= 0])
    at_edge = np.asarray(np.isin(start, edges))
    gap = start - dry
    last = np.full(len(idle), -1, np.int64)
    np.maximum.at(last, rows.step, rows.end)
    last = np.maximum.accumulate(last)
    is_idle = np.isin(dry, last[idle[:, rank] > 0])
    cause = np.select(
        [
            is_idle,
            at_edge,
            same_replay,
            ~launched,
            call_begin >= dry,
            (dry < call_begin + latency) | (dry < call_end),
            (rows.stream[after] == rows.stream[before]) & (gap <= BACK_TO_BACK_NS),
        ],
        list(range(7)),
        7,
    )
    split = launched & np.isin(cause, [0, 1, 4, 5])
    host = np.where(split, np.clip(call_begin - dry, 0, gap), 0)
    flight = np.minimum(start, np.maximum(call_end, call_begin + latency)) - np.maximum(call_begin, dry)
    flight = np.where(split, np.clip(flight, 0, gap), 0)
    step = np.searchsorted(edge[:, rank] if (edge[:, rank] >= 0).all() else edges, dry, side="right") - 1
    if not (edge[:, rank] >= 0).all():
        numbers = np.flatnonzero(edge[:, rank] >= 0)
        step = np.where(step >= 0, numbers[np.maximum(step, 0)], -1)
    # after an idle, what precedes the next edge lies in no window
    step = np.where((step >= 0) & (dry < window_end[step, rank]), step, -1)
    return {"gap": gap, "cause": cause, "host": host, "launch": flight, "step": step, "typical": typical}


def exposure(events: Events, rows: ObservedRows, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Per step: union of collectives, and the part of it that no other stream's compute kernel covers."""
    known = rows.op >= 0
    buckets = np.array([op.bucket == "collective" for op in events.ops])
    kernels = np.array([op.kind == 0 for op in events.ops])
    is_collective = np.zeros(len(rows.op), bool)
    is_compute = np.zeros(len(rows.op), bool)
    is_collective[known] = buckets[rows.op[known]]
    is_compute[known] = kernels[rows.op[known]] & ~buckets[rows.op[known]]
    total = busy_within(rows.start[is_collective], rows.end[is_collective], low, high)
    hidden = np.zeros(len(low), np.int64)
    for stream in np.unique(rows.stream[is_collective]):
        own = is_collective & (rows.stream == stream)
        other = is_compute & (rows.stream != stream)
        if not other.any():
            continue
        begin, finish = merged(rows.start[other], rows.end[other])
        mine = merged(rows.start[own], rows.end[own])
        for place, first in enumerate(low):
            if first < 0:
                continue
            hit = (mine[1] > first) & (mine[0] < high[place])
            a, b = np.maximum(mine[0][hit], first), np.minimum(mine[1][hit], high[place])
            hidden[place] += int((covered_before(begin, finish, b) - covered_before(begin, finish, a)).sum())
    return total, total - hidden
