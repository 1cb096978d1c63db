"""What a late rank does differently, in words: which kernels are slower, or which launches come late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.analyses.blocks import blocks, each
from tracelens.analyses.gap_causes import NULL
from tracelens.analyses.lateness import device_detail
from tracelens.analyses.skew_context import Context, Matched
from tracelens.analyses.timeline import KERNEL, Codes, Ints


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

    def add_up(part: slice) -> tuple[int, npt.NDArray[Any]]:
        own = member[part]
        chosen = np.flatnonzero((tl.kind[part] == KERNEL) & ~tl.is_collective[part] & (own >= 0))
        chosen = chosen[summed[own[chosen]]]
        lengths = (tl.end[part] - tl.start[part])[chosen]
        return tl.place_of(part), np.bincount(of_name[tl.name[part][chosen]], lengths, minlength=len(buckets))

    table = np.zeros((len(tl.ranks), len(buckets)))
    for place, sums in tl.each(add_up):
        table[place] += sums
    table /= max(context.step_counts.get(matched.set, 0), 1)
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
    names, summed = len(tl.names), context.summed_step

    def waited_for(part: slice) -> tuple[Codes, Ints, Ints]:
        """(events that the device of a summed step waited for, place of their rank, how long)."""
        has = np.flatnonzero(gaps.host_part[part] != NULL)
        gap, length = gaps.led[part][has], (gaps.host_part[part] + gaps.launch_part[part])[has]
        if len(summed):
            row = gaps.rows_of(gap)
            inside = (row >= 0) & summed[np.maximum(row, 0)]
            gap, length = gap[inside], length[inside]
        after = gaps.occupancy.after[gap]
        return after, np.searchsorted(tl.first[1:], after, side="right"), length

    def add_up(part: slice) -> npt.NDArray[Any]:
        after, place, length = waited_for(part)
        return np.bincount(place * names + tl.name[after], length, minlength=len(tl.ranks) * names)

    parts = list(blocks(0, len(gaps.led)))
    if not any(bool((gaps.host_part[part] != NULL).any()) for part in parts):
        return None
    table = sum(each(add_up, parts, context.trace.threads), np.zeros(len(tl.ranks) * names)).reshape(-1, names)
    places, own = np.searchsorted(tl.ranks, matched.ranks), np.searchsorted(tl.ranks, late)
    usual = np.sort(table[places], axis=0)[(len(places) + 1) // 2 - 1]
    excess = table[own].mean(axis=0) - usual
    worst = int(np.argmax(excess))
    if excess[worst] <= 0:
        return None
    codes = np.zeros(len(tl.launches.api_names), dtype=np.int64)
    for part in parts:
        after, place, _ = waited_for(part)
        calls = tl.launch[after[(tl.name[after] == worst) & np.isin(place, own)]]
        api_code = tl.launches.api[calls[calls >= 0]]
        codes += np.bincount(api_code[api_code >= 0], minlength=len(codes))
    api = tl.launches.api_names[int(codes.argmax())] if codes.any() else None
    steps = max(context.step_counts.get(matched.set, 0), 1)
    return HostFinding(str(tl.names["name"][worst]), api, float(excess[worst]) / steps, float(excess.sum()) / steps)
