"""Why a rank came late: its way from the previous collective to this one, against that of the reference member.

    reference  ..]  compute  ]----gap----|arrival          lateness = arrival - reference's arrival
    late rank  ..]  compute      ]------gap-------|arrival   = device + host + upstream + other, exactly
              previous end

The reference is the member with the lower-median arrival. Device is what non-collective work took longer, host what
launches came later, upstream what the previous collective ended later in another communicator, other the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracelens.analyses.clock import Ints
from tracelens.analyses.matching_instances import Bools

PARTS = ("device", "host", "upstream", "other")
CAUSE_SHARE = 0.6
"""A part below this share of the lateness does not name its cause alone."""

BUCKET_SHARE = 0.05


def lateness_sums(arrival: Ints, reference: Ints) -> Ints:
    """How much later than the reference each member arrives, summed over instances, int64 ns [members].

    Args:
        arrival: int64 ns [members, instances], aligned.
        reference: [instances], row of the reference member.
    """
    result: Ints = _against(arrival, reference).sum(axis=1)
    return result


def upstream_sums(previous_end: Ints, elsewhere: Bools, reference: Ints) -> Ints:
    """How much later each member left an operation of another communicator, summed over instances, int64 ns [members].

    Args:
        previous_end: int64 ns [members, instances], aligned end of the rank's previous matched operation.
        elsewhere: bool [members, instances], that operation belongs to another communicator.
        reference: [instances], row of the reference member.
    """
    counts = elsewhere | np.take_along_axis(elsewhere, reference[None], axis=0)
    result: Ints = np.where(counts, _against(previous_end, reference), 0).sum(axis=1)
    return result


def _against(values: Ints, reference: Ints) -> Ints:
    result: Ints = values - np.take_along_axis(values, reference[None], axis=0)
    return result


@dataclass(frozen=True)
class Work:
    """What one member did on its way to the instances of one communicator: sums in ns.

    Attributes:
        device: union of non-collective events between the previous operation and this one.
        host: host and launch parts of the gaps between the two.
        device_as_reference, host_as_reference: the same over the instances whose reference it is.
    """

    device: int
    host: int
    device_as_reference: int
    host_as_reference: int


def work_of(device: Ints, host: Ints, is_reference: Bools) -> Work:
    """The sums of one member.

    Args:
        device, host: int64 ns [instances].
        is_reference: bool, whether it is the reference of each.
    """
    return Work(int(device.sum()), int(host.sum()), int(device[is_reference].sum()), int(host[is_reference].sum()))


def mean_lateness(count: int, lateness: Ints, upstream: Ints, work: Sequence[Work]) -> dict[str, Ints]:
    """Mean per member of the lateness and each part, whole ns; the parts sum to the lateness exactly.

    Args:
        count: instances whose members all have a previous matched operation.
        lateness, upstream: their sums, int64 ns [members].
        work: of each member. What a member did more than the reference is, over all instances, what it did less what
            all references did.

    Returns:
        lateness, device, host, upstream and other; empty without instances.
    """
    if count == 0:
        return {}
    device = np.array([one.device for one in work]) - sum(one.device_as_reference for one in work)
    host = np.array([one.host for one in work]) - sum(one.host_as_reference for one in work)
    totals = {"lateness": lateness, "device": device, "host": host, "upstream": upstream}
    result = {name: np.rint(total / count).astype(np.int64) for name, total in totals.items()}
    result["other"] = result["lateness"] - result["device"] - result["host"] - result["upstream"]
    return result


def reference_member(arrival: Ints, ordered: Ints) -> Ints:
    """Column of the member with the lower-median arrival, the ceil(n/2)-th of n, in each instance.

    Args:
        arrival: int64 ns [instances, members].
        ordered: the same, ascending within each instance.
    """
    middle = (arrival.shape[1] + 1) // 2 - 1
    column: Ints = (arrival == ordered[:, middle, None]).argmax(axis=1)
    if middle:
        # Of members that arrive together the lower is the earlier.
        tied = np.flatnonzero(ordered[:, middle] == ordered[:, middle - 1])
        column[tied] = np.argsort(arrival[tied], axis=1, kind="stable")[:, middle]
    return column


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
