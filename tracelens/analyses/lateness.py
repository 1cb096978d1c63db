"""Why a rank came late: its way from the previous collective to this one, against that of the reference member.

    reference  ..]  compute  ]----gap----|arrival          lateness = arrival - reference's arrival
    late rank  ..]  compute      ]------gap-------|arrival   = device + host + upstream + other, exactly
              previous end

The reference is the member with the lower-median arrival. Device is what non-collective work took longer, host what
launches came later, upstream what the previous collective ended later in another communicator, other the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tracelens.analyses.clock import Ints
from tracelens.analyses.matching_instances import Bools

PARTS = ("device", "host", "upstream", "other")
CAUSE_SHARE = 0.6
"""A part below this share of the lateness does not name its cause alone."""

BUCKET_SHARE = 0.05


@dataclass(frozen=True)
class Stretches:
    """Each member's way to each instance of one communicator, ns.

    Attributes:
        arrival: int64 [instances, members], aligned.
        previous_end: int64 [instances, members], aligned end of the rank's previous matched operation.
        device: int64 [instances, members], union of non-collective events between the two.
        host: int64 [instances, members], host and launch parts of the gaps between the two.
        elsewhere: bool [instances, members], the previous operation belongs to another communicator.
        usable: bool [instances], every member has a previous matched operation.
    """

    arrival: Ints
    previous_end: Ints
    device: Ints
    host: Ints
    elsewhere: Bools
    usable: Bools


@dataclass(frozen=True)
class Lateness:
    """Lateness against the reference member, and its parts; int64 ns [usable instances, members].

    lateness = device + host + upstream + other in every element.
    """

    lateness: Ints
    device: Ints
    host: Ints
    upstream: Ints
    other: Ints


def mean_lateness(parts: Iterable[Stretches]) -> dict[str, Ints]:
    """Mean per member of the lateness and each part, whole ns; the parts sum to the lateness exactly.

    Args:
        parts: the stretches of one communicator, so many instances at a time.

    Returns:
        lateness, device, host, upstream and other; empty where no instance is usable.
    """
    sums: dict[str, Ints] = {}
    count = 0
    for stretches in parts:
        found = split_lateness(stretches)
        count += len(found.lateness)
        for name in ("lateness", "device", "host", "upstream"):
            sums[name] = getattr(found, name).sum(axis=0) + sums.get(name, 0)
    if count == 0:
        return {}
    result = {name: np.rint(total / count).astype(np.int64) for name, total in sums.items()}
    result["other"] = result["lateness"] - result["device"] - result["host"] - result["upstream"]
    return result


def reference_member(arrival: Ints) -> Ints:
    """Column of the member with the lower-median arrival, the ceil(n/2)-th of n, in each instance."""
    order = np.argsort(arrival, axis=1, kind="stable")
    return np.asarray(order[:, (arrival.shape[1] + 1) // 2 - 1])


def split_lateness(stretches: Stretches) -> Lateness:
    """Split what each member came later than the reference member into its causes."""
    use = stretches.usable
    arrival = stretches.arrival[use]
    at = reference_member(arrival)[:, None] if len(arrival) else np.empty((0, 1), dtype=np.int64)

    def against(values: Ints) -> Ints:
        return np.asarray(values - np.take_along_axis(values, at, axis=1))

    lateness = against(arrival)
    device, host = against(stretches.device[use]), against(stretches.host[use])
    elsewhere = stretches.elsewhere[use]
    other_way = elsewhere | np.take_along_axis(elsewhere, at, axis=1)
    upstream = np.where(other_way, against(stretches.previous_end[use]), 0)
    return Lateness(lateness, device, host, upstream, lateness - device - host - upstream)


def main_cause(means: dict[str, int]) -> str:
    """The part with the largest share of a mean lateness; `mixed` when it holds less than 60 % of it.

    Args:
        means: lateness, device, host, upstream, other: means in ns of a rank that is late.
    """
    total = means["lateness"]
    if total <= 0:
        return "mixed"
    best = max(PARTS, key=lambda part: (means[part], -PARTS.index(part)))
    return best if means[best] >= CAUSE_SHARE * total else "mixed"


def device_detail(own: dict[str, float], usual: dict[str, float]) -> tuple[str, str | None, float]:
    """Whether a rank is slower everywhere, or in one bucket.

    Args:
        own: bucket -> non-collective kernel time per step of the late rank, ns.
        usual: bucket -> the lower median over the members.

    Returns:
        (`uniform` or `imbalance`, the bucket with the largest excess (null when uniform), total time over usual).
    """
    total, expected = sum(own.values()), sum(usual.values())
    if expected <= 0:
        return "imbalance", None, 1.0
    factor = total / expected
    large = [b for b, value in usual.items() if value >= BUCKET_SHARE * expected]
    excess = factor - 1.0
    if excess > 0 and all(0.5 * excess <= own.get(b, 0.0) / usual[b] - 1.0 <= 1.5 * excess for b in large):
        return "uniform", None, factor
    buckets = sorted(set(own) | set(usual))
    worst = max(buckets, key=lambda b: own.get(b, 0.0) - usual.get(b, 0.0))
    return "imbalance", worst, factor
