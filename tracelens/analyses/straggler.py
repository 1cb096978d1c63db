"""Who makes whom wait: the figures of one communicator, and the tests behind a verdict.

    arrivals     rank 0  --|=======]            wait_ns[0] = last arrival - own
                 rank 1  ------|===]            lead (critical wait) = last - next-to-last, credited to rank 2
                 rank 2  ----------|]           skew = last - first

Arrivals within one step are correlated: who is late stays late. So one trial of the test is one step, not one
instance; a test per instance would name a straggler in nearly every job whose late rank changes from step to step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betainc

from tracelens.analyses.clock import Floats, Ints

TRIALS_MINIMUM = 20
SIGNIFICANT_P = 0.001
SHARE_ABOVE_CHANCE = 0.2
STEP_SHARE = 0.005
"""A cost below this share of a step is not worth a name."""
GROUP_SHARE = 0.8
TRIAL_INSTANCES = 64
"""Instances of a trial where there are no steps."""

TRANSFER_BELOW = 0.2
SKEW_ABOVE = 0.6
CLASS_MINIMUM = 30


@dataclass(frozen=True)
class Precision:
    """How well the clocks of a set are known, in ns.

    Attributes:
        residual_ns: scatter of the ends; 0 under trust.
        asymmetry_ns: what a rank may leave late by, unseen; 0 where it cannot be told.
    """

    residual_ns: float = 0.0
    asymmetry_ns: float = 0.0

    @property
    def resolution_ns(self) -> float:
        """Single instances are claimed above this."""
        return self.residual_ns + self.asymmetry_ns

    def of_mean(self, count: int) -> float:
        """Means over `count` instances are claimed above this."""
        return self.asymmetry_ns + self.resolution_ns / float(np.sqrt(max(count, 1)))


@dataclass(frozen=True)
class Arrivals:
    """The accepted instances of one communicator.

    Attributes:
        ranks: [members], ascending.
        arrival: int64 ns [instances, members], aligned.
        duration: int64 ns [instances, members].
        trial: int64 [instances], the step, or a running number of 64 instances; -1 for none.
        trial_ns: mean length of a trial in ns: of a step, or of those 64 instances.
    """

    ranks: tuple[int, ...]
    arrival: Ints
    duration: Ints
    trial: Ints
    trial_ns: float

    @property
    def count(self) -> int:
        """Number of instances."""
        return len(self.arrival)


@dataclass(frozen=True)
class Waiting:
    """Sums per rank over a communicator's instances.

    Attributes:
        wait: int64 ns [instances, members].
        lead: int64 ns [instances], last minus next-to-last arrival.
        latest: int64 [instances], the column of the last arriver (the lowest of several).
        last_count, first_count: int64 [members], where that rank was alone last (first) by more than resolution.
        caused_ns: int64 [members], the others' waits where it was last.
        critical_ns: int64 [members], sum of the leads where it arrived last.
    """

    wait: Ints
    lead: Ints
    latest: Ints
    last_count: Ints
    first_count: Ints
    caused_ns: Ints
    critical_ns: Ints


def waiting(arrivals: Arrivals, precision: Precision) -> Waiting:
    """Waits, and who they are due to."""
    came = arrivals.arrival
    members = came.shape[1]
    ordered = np.sort(came, axis=1)
    wait = ordered[:, -1:] - came
    lead = ordered[:, -1] - ordered[:, -2]
    latest, earliest = came.argmax(axis=1), came.argmin(axis=1)
    alone_last = lead > precision.resolution_ns
    alone_first = ordered[:, 1] - ordered[:, 0] > precision.resolution_ns
    total = wait.sum(axis=1)
    return Waiting(
        wait,
        lead,
        latest,
        np.bincount(latest[alone_last], minlength=members),
        np.bincount(earliest[alone_first], minlength=members),
        _sums(latest[alone_last], total[alone_last], members),
        _sums(latest, lead, members),
    )


def _sums(place: Ints, value: Ints, count: int) -> Ints:
    result = np.zeros(count, dtype=np.int64)
    np.add.at(result, place, value)
    return result


@dataclass(frozen=True)
class Straggler:
    """What the tests say of one communicator.

    Attributes:
        rank: the persistent straggler; null without one.
        late_ranks: ranks that are late together; empty without such a group.
        last_frac: share of trials in which the likeliest rank was last; null without trials.
        p_value: Holm-adjusted, of the named rank or the smallest; null without trials.
        trial_count: steps in which somebody led by more than resolution.
        group_lead_ns: mean lead of the late group over the others, per instance; null without a group.
        likely_rank: where nobody is named, the rank that is last far more often than chance, in too few trials or at
            too little cost; null without one.
    """

    rank: int | None = None
    late_ranks: tuple[int, ...] = ()
    last_frac: float | None = None
    p_value: float | None = None
    trial_count: int = 0
    group_lead_ns: float | None = None
    likely_rank: int | None = None


def find_straggler(arrivals: Arrivals, waits: Waiting, precision: Precision, *, may_name: bool = True) -> Straggler:
    """Test for one rank that is late step after step, and for a group of ranks that is.

    Args:
        arrivals: the instances.
        waits: `waiting` of them.
        precision: of the clocks.
        may_name: false under clocks that were only trusted: then figures are given and nobody is named.
    """
    members = len(arrivals.ranks)
    trials, sums = _by_trial(arrivals.trial, waits.latest, waits.lead, members)
    if len(trials) == 0:
        return Straggler()
    decided = sums.max(axis=1) >= max(precision.resolution_ns, 1.0)
    count = int(decided.sum())
    if count == 0:
        return Straggler()
    wins = np.bincount(sums[decided].argmax(axis=1), minlength=members)
    adjusted = _holm(_at_least(wins, count, 1.0 / members))
    best = int(np.lexsort((np.arange(members), -wins))[0])
    share = wins[best] / count
    often = adjusted[best] < SIGNIFICANT_P and share >= 1.0 / members + SHARE_ABOVE_CHANCE
    likely_rank = arrivals.ranks[best] if often else None
    likely = Straggler(None, (), float(share), float(adjusted[best]), count, likely_rank=likely_rank)
    if not may_name or count < TRIALS_MINIMUM:
        return likely
    mean_critical = waits.critical_ns[best] / arrivals.count
    per_trial = waits.critical_ns[best] / len(trials)
    named = (
        often
        and mean_critical > max(precision.residual_ns / 4, precision.of_mean(arrivals.count))
        and per_trial >= STEP_SHARE * arrivals.trial_ns
    )
    group, lead = _late_group(arrivals, precision)
    # One rank far behind the rest is a straggler, even where a second is always a little late as well.
    if group and not (named and mean_critical >= lead):
        return Straggler(None, group, float(share), float(adjusted[best]), count, lead)
    if named:
        return Straggler(arrivals.ranks[best], (), float(share), float(adjusted[best]), count)
    return likely


def _by_trial(trial: Ints, latest: Ints, lead: Ints, members: int) -> tuple[Ints, Ints]:
    """Trials, and per trial and member the sum of leads, int64 ns [trials, members]."""
    within = trial >= 0
    trials, row = np.unique(trial[within], return_inverse=True)
    sums = np.zeros((len(trials), members), dtype=np.int64)
    np.add.at(sums, (row.reshape(-1), latest[within]), lead[within])
    return trials, sums


def _at_least(wins: Ints, count: int, chance: float) -> Floats:
    """Probability of so many wins or more in `count` trials: the binomial tail as an incomplete beta function.

    scipy.stats holds it by name, but takes a third of a second to import.
    """
    least = np.maximum(wins, 1).astype(np.float64)
    return np.where(wins > 0, betainc(least, count - least + 1, chance), 1.0)


def _holm(p: Floats) -> Floats:
    """Holm's step-down adjustment."""
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty_like(stepped)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def _late_group(arrivals: Arrivals, precision: Precision) -> tuple[tuple[int, ...], float]:
    """The largest set of 2 to n/2 ranks that together come after all others, step by step, and by how much."""
    members = len(arrivals.ranks)
    within = arrivals.trial >= 0
    if members < 4 or not within.any():
        return (), 0.0
    trials, row = np.unique(arrivals.trial[within], return_inverse=True)
    relative = (arrivals.arrival - arrivals.arrival.min(axis=1, keepdims=True))[within].astype(np.float64)
    counts = np.bincount(row.reshape(-1))
    means = np.stack([np.bincount(row.reshape(-1), weights=column) for column in relative.T], axis=1) / counts[:, None]
    order = np.argsort(relative.mean(axis=0), kind="stable")
    per_trial = len(relative) / len(trials)
    for size in range(members // 2, 1, -1):
        late, others = order[-size:], order[:-size]
        leads = means[:, late].min(axis=1) - means[:, others].max(axis=1)
        lead = float((leads * counts).sum() / counts.sum())
        if (
            float((leads > 0).mean()) >= GROUP_SHARE
            and lead > precision.of_mean(len(relative))
            and lead * per_trial >= STEP_SHARE * arrivals.trial_ns
        ):
            return tuple(sorted(arrivals.ranks[i] for i in late)), lead
    return (), 0.0


def classify(
    wait_ns: int, duration_ns: int, waits: int, instances: int, resolution_ns: float, *, whole: bool
) -> tuple[float | None, str]:
    """Share of waiting, and what it makes of a group of instances.

    Args:
        wait_ns: sum of waits over members and instances.
        duration_ns: sum of durations over the same.
        waits: number of waits in the sum.
        instances: number of instances.
        resolution_ns: what each wait may be wrong by.
        whole: whether all members of the communicator are there.

    Returns:
        (wait_frac, class): transfer, mixed, arrival_skew or inconclusive; the share is null without a duration.
    """
    if duration_ns <= 0:
        return None, "inconclusive"
    share = wait_ns / duration_ns
    margin = waits * resolution_ns / duration_ns
    found = _class_of(share)
    sure = (
        whole
        and instances >= CLASS_MINIMUM
        and found == _class_of(max(share - margin, 0.0)) == _class_of(share + margin)
    )
    return share, found if sure else "inconclusive"


def _class_of(share: float) -> str:
    if share < TRANSFER_BELOW:
        return "transfer"
    return "arrival_skew" if share > SKEW_ABOVE else "mixed"
