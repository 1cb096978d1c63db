"""Who makes whom wait: the figures of one communicator, and the tests behind a verdict.

    arrivals     rank 0  --|=======]            wait_ns[0] = last arrival - own
                 rank 1  ------|===]            lead (critical wait) = last - next-to-last, credited to rank 2
                 rank 2  ----------|]           skew = last - first

Arrivals within one step are correlated: who is late stays late. So one trial of the test is one step, not one
instance; a test per instance would name a straggler in nearly every job whose late rank changes from step to step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import betainc

from tracelens.analyses.blocks import run_starts
from tracelens.analyses.clock import Floats, Ints
from tracelens.analyses.matching_instances import Bools

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

_FAR = np.iinfo(np.int64).max


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
    """Accepted instances of one communicator, ascending; what is told of each member stands in a row of its own.

    Attributes:
        arrival: int64 ns [members, instances], aligned.
        duration: int64 ns [members, instances].
        trial: int64 [instances], place of the step, or of the run of 64 instances, among the trials; -1 for none.
        summed: bool [instances], in a step that summaries use.
        exposed: bool [instances], not hidden behind compute for more than half of the time.
    """

    arrival: Ints
    duration: Ints
    trial: Ints
    summed: Bools
    exposed: Bools

    @cached_property
    def ordered(self) -> Ints:
        """Arrivals ascending within each instance, int64 ns [instances, members]."""
        return np.sort(self.by_instance, axis=1)

    @cached_property
    def by_instance(self) -> Ints:
        """Arrivals, [instances, members]."""
        return np.ascontiguousarray(self.arrival.T)


@dataclass(frozen=True)
class Waiting:
    """Sums over instances of a communicator; int64, times in ns.

    Attributes:
        count: instances.
        wait_ns: [members], last arrival of the instance less the own.
        shorter_ns: [members], own duration less the shortest of the instance: the wait as durations alone tell it.
        summed_wait_ns, summed_shorter_ns: [members], the same over the steps that summaries use.
        duration_ns: of all members together.
        skew_ns: last less first arrival.
        exposed_skew_ns: the same over exposed instances in steps that summaries use.
        recoverable_ns: last less lower-median arrival over those.
        last_count, first_count: [members], where that rank was alone last (first) by more than resolution.
        caused_ns: [members], the others' waits where it was last.
        critical_ns: [members], sum of the leads where it arrived last (the lowest of several).
        first_trial: place of the trial of the first row of what follows.
        trial_count: [trials], instances of each.
        trial_critical_ns: [trials, members], `critical_ns` of each.
        trial_late_ns: [trials, members], own arrival less the first of the instance.
    """

    count: int
    wait_ns: Ints
    shorter_ns: Ints
    summed_wait_ns: Ints
    summed_shorter_ns: Ints
    duration_ns: int
    skew_ns: int
    exposed_skew_ns: int
    recoverable_ns: int
    last_count: Ints
    first_count: Ints
    caused_ns: Ints
    critical_ns: Ints
    first_trial: int
    trial_count: Ints
    trial_critical_ns: Ints
    trial_late_ns: Ints

    @property
    def members(self) -> int:
        """Number of members."""
        return len(self.wait_ns)


def waiting(arrivals: Arrivals, precision: Precision) -> Waiting:
    """Waits, and who they are due to."""
    came, ordered = arrivals.by_instance, arrivals.ordered
    count, members = came.shape
    first, last = ordered[:, 0].copy(), ordered[:, -1].copy()
    skew, lead = last - first, last - ordered[:, -2]
    latest, earliest = ((came == one[:, None]).argmax(axis=1) for one in (last, first))
    alone_last = lead > precision.resolution_ns
    alone_first = ordered[:, 1] - first > precision.resolution_ns
    late = arrivals.arrival - first
    # Sums over members and instances alike are made of sums over the instances of a step.
    runs = run_starts(arrivals.trial, arrivals.summed)
    trial, summed = arrivals.trial[runs], arrivals.summed[runs]
    late_ns, duration_ns = (np.add.reduceat(values, runs, axis=1) for values in (late, arrivals.duration))
    wait_ns = np.add.reduceat(skew, runs) - late_ns
    shorter_ns = duration_ns - np.add.reduceat(arrivals.duration.min(axis=0), runs)
    shown = np.flatnonzero(arrivals.summed & arrivals.exposed)
    held = np.flatnonzero(arrivals.trial >= 0)
    low = int(arrivals.trial[held].min(initial=_FAR))
    trials = int(trial.max(initial=low - 1)) + 1 - low
    trial_late_ns = np.zeros((trials, members), dtype=np.int64)
    np.add.at(trial_late_ns, trial[trial >= 0] - low, late_ns.T[trial >= 0])
    return Waiting(
        count=count,
        wait_ns=wait_ns.sum(axis=1),
        shorter_ns=shorter_ns.sum(axis=1),
        summed_wait_ns=wait_ns[:, summed].sum(axis=1),
        summed_shorter_ns=shorter_ns[:, summed].sum(axis=1),
        duration_ns=int(duration_ns.sum()),
        skew_ns=int(skew.sum()),
        exposed_skew_ns=int(skew[shown].sum()),
        recoverable_ns=int((last - ordered[:, (members + 1) // 2 - 1])[shown].sum()),
        last_count=np.bincount(latest[alone_last], minlength=members),
        first_count=np.bincount(earliest[alone_first], minlength=members),
        caused_ns=_sums(latest[alone_last], (members * skew - late.sum(axis=0))[alone_last], members),
        critical_ns=_sums(latest, lead, members),
        first_trial=low,
        trial_count=np.bincount(arrivals.trial[held] - low, minlength=trials),
        trial_critical_ns=_sums(
            (arrivals.trial[held] - low) * members + latest[held], lead[held], trials * members
        ).reshape(-1, members),
        trial_late_ns=trial_late_ns,
    )


def add_up(parts: Iterable[Waiting], trials: int) -> Waiting:
    """The sums over all instances of a communicator.

    Args:
        parts: of so many instances at a time; at least one.
        trials: how many there are.
    """
    total: dict[str, Any] = {}
    for part in parts:
        if not total:
            total = {
                "trial_count": np.zeros(trials, np.int64),
                "trial_critical_ns": np.zeros((trials, part.members), np.int64),
                "trial_late_ns": np.zeros((trials, part.members), np.int64),
            }
        for one in fields(part):
            value = getattr(part, one.name)
            if one.name.startswith("trial_"):
                total[one.name][part.first_trial : part.first_trial + len(value)] += value
            else:
                total[one.name] = total.get(one.name, 0) + value
    return Waiting(**total | {"first_trial": 0})


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


def find_straggler(
    ranks: tuple[int, ...], waits: Waiting, precision: Precision, trial_ns: float, *, may_name: bool = True
) -> Straggler:
    """Test for one rank that is late step after step, and for a group of ranks that is.

    Args:
        ranks: of the members, ascending.
        waits: sums over their instances.
        precision: of the clocks.
        trial_ns: mean length of a trial: of a step, or of the run of instances that stands for one.
        may_name: false under clocks that were only trusted: then figures are given and nobody is named.
    """
    members = len(ranks)
    held = waits.trial_count > 0
    sums = waits.trial_critical_ns[held]
    if len(sums) == 0:
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
    likely_rank = ranks[best] if often else None
    likely = Straggler(None, (), float(share), float(adjusted[best]), count, likely_rank=likely_rank)
    if not may_name or count < TRIALS_MINIMUM:
        return likely
    mean_critical = waits.critical_ns[best] / waits.count
    per_trial = waits.critical_ns[best] / len(sums)
    named = (
        often
        and mean_critical > max(precision.residual_ns / 4, precision.of_mean(waits.count))
        and per_trial >= STEP_SHARE * trial_ns
    )
    group, lead = _late_group(ranks, waits.trial_late_ns[held], waits.trial_count[held], precision, trial_ns)
    # One rank far behind the rest is a straggler, even where a second is always a little late as well.
    if group and not (named and mean_critical >= lead):
        return Straggler(None, group, float(share), float(adjusted[best]), count, lead)
    if named:
        return Straggler(ranks[best], (), float(share), float(adjusted[best]), count)
    return likely


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


def _late_group(
    ranks: tuple[int, ...], late_ns: Ints, counts: Ints, precision: Precision, trial_ns: float
) -> tuple[tuple[int, ...], float]:
    """The largest set of 2 to n/2 ranks that together come after all others, step by step, and by how much."""
    members = len(ranks)
    if members < 4:
        return (), 0.0
    count = int(counts.sum())
    means = late_ns / counts[:, None]
    order = np.argsort(late_ns.sum(axis=0), kind="stable")
    per_trial = count / len(counts)
    for size in range(members // 2, 1, -1):
        late, others = order[-size:], order[:-size]
        leads = means[:, late].min(axis=1) - means[:, others].max(axis=1)
        lead = float((leads * counts).sum() / count)
        if (
            float((leads > 0).mean()) >= GROUP_SHARE
            and lead > precision.of_mean(count)
            and lead * per_trial >= STEP_SHARE * trial_ns
        ):
            return tuple(sorted(ranks[i] for i in late)), lead
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
