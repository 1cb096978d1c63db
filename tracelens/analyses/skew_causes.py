"""What a late rank does differently, in words: which kernels are slower, or which launches come late."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracelens.analyses.gap_causes import NULL
from tracelens.analyses.lateness import device_detail
from tracelens.analyses.skew_context import Context, Matched
from tracelens.analyses.timeline import KERNEL


@dataclass(frozen=True)
class HostFinding:
    """Where the launches of a late rank come late.

    Attributes:
        kernel: the kernel before which the device waited.
        api_name: the call that launched it; null when not recorded.
        excess_ns: host and launch time per step before that kernel beyond the usual rank's.
        total_excess_ns: the same before all kernels.
    """

    kernel: str
    api_name: str | None
    excess_ns: float
    total_excess_ns: float


def device_finding(context: Context, matched: Matched, late: tuple[int, ...]) -> tuple[str, str | None, float]:
    """Whether the late ranks compute more slowly everywhere or in one bucket; see `device_detail`."""
    tl = context.timeline
    buckets = sorted(set(tl.names["bucket"].to_list()))
    code_of = {bucket: k for k, bucket in enumerate(buckets)}
    of_name = np.array([code_of[b] for b in tl.names["bucket"].to_list()], dtype=np.int64)
    member = context.steps.member
    summed = context.summed_step if context.steps.table.height else np.ones(1, dtype=bool)
    sums = np.zeros(len(tl.ranks) * len(buckets))
    for part in tl.stretches():
        own = member[part]
        chosen = np.flatnonzero((tl.kind[part] == KERNEL) & ~tl.is_collective[part] & (own >= 0))
        chosen = chosen[summed[own[chosen]]]
        index = tl.rank_place[part][chosen].astype(np.int64) * len(buckets) + of_name[tl.name[part][chosen]]
        sums += np.bincount(index, (tl.end[part] - tl.start[part])[chosen], minlength=len(sums))
    count = max(context.step_counts.get(matched.set, 0), 1)
    table = sums.reshape(len(tl.ranks), len(buckets)) / count
    places = np.searchsorted(tl.ranks, matched.ranks)
    ordered = np.sort(table[places], axis=0)
    usual = ordered[(len(places) + 1) // 2 - 1]
    own = table[np.searchsorted(tl.ranks, late)].mean(axis=0)
    return device_detail(
        {b: float(own[k]) for k, b in enumerate(buckets) if own[k] > 0},
        {b: float(usual[k]) for k, b in enumerate(buckets) if usual[k] > 0},
    )


def host_finding(context: Context, matched: Matched, late: tuple[int, ...]) -> HostFinding | None:
    """The kernel whose launches cost the late ranks most beyond the usual rank; null without launch times."""
    gaps, tl = context.gaps, context.timeline
    has = gaps.host_part != NULL
    if not has.any():
        return None
    after = gaps.occupancy.after[gaps.led[has]]
    length = gaps.host_part[has] + gaps.launch_part[has]
    row = gaps.rows_of(gaps.led[has])
    if context.steps.table.height:
        inside = (row >= 0) & context.summed_step[np.maximum(row, 0)]
        after, length = after[inside], length[inside]
    names = len(tl.names)
    index = tl.rank_place[after].astype(np.int64) * names + tl.name[after]
    size = len(tl.ranks) * names
    table = np.bincount(index, length, minlength=size).reshape(-1, names)
    places, own = np.searchsorted(tl.ranks, matched.ranks), np.searchsorted(tl.ranks, late)
    usual = np.sort(table[places], axis=0)[(len(places) + 1) // 2 - 1]
    excess = table[own].mean(axis=0) - usual
    worst = int(np.argmax(excess))
    if excess[worst] <= 0:
        return None
    steps = max(context.step_counts.get(matched.set, 0), 1)
    here = after[(tl.name[after] == worst) & np.isin(tl.rank_place[after], own)]
    calls = tl.launch[here]
    calls = calls[calls >= 0]
    api = None
    if len(calls):
        codes = np.bincount(tl.launches.api[calls])
        api = tl.launches.api_names[int(codes.argmax())]
    return HostFinding(str(tl.names["name"][worst]), api, float(excess[worst]) / steps, float(excess.sum()) / steps)
