"""Who is late: named only when the steps say so, and when it is worth a name."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from tests.analyses.oracle_matching import waits as waits_by_hand
from tests.analyses.oracle_rows import decode_job, with_clocks
from tracelens.analyses.straggler import Arrivals, Precision, _at_least, add_up, classify, find_straggler, waiting

SHARP = Precision(100.0, 0.0)

# vllm's custom all-reduce on eight ranks: starts and durations of one instance, in ns.
EIGHT_START = [10059675, 10058178, 10041112, 9996036, 10058924, 10047108, 10049015, 10060203]
EIGHT_LENGTH = [10519, 11359, 31159, 72160, 11359, 22640, 21439, 12119]


def arrivals(came, *, per_step=10, length=10_000):
    came = np.asarray(came, dtype=np.int64)
    duration = came.max(axis=1, keepdims=True) - came + length
    every = np.ones(len(came), dtype=bool)
    return Arrivals(came.T, duration.T, np.arange(len(came)) // per_step, every, every)


def judge(came, precision=SHARP, *, per_step=10, step_ns=1e6, **options):
    """The verdict on arrivals [instances, members]."""
    waits = waiting(arrivals(came, per_step=per_step), precision)
    return find_straggler(tuple(range(np.shape(came)[1])), waits, precision, step_ns, **options)


def jitter(steps=30, ranks=8, per_step=10, seed=0, scale=300.0):
    return np.random.default_rng(seed).normal(0, scale, (steps * per_step, ranks))


def test_one_instance_on_eight_ranks():
    """Last rank 7, first rank 3, 64.167 us apart; 111.373 of 192.754 us are waiting."""
    yes = np.ones(1, dtype=bool)
    one = Arrivals(np.array([EIGHT_START]).T, np.array([EIGHT_LENGTH]).T, np.array([0]), yes, yes)
    found = waiting(one, Precision())
    assert found.wait_ns.tolist() == [528, 2025, 19091, 64167, 1279, 13095, 11188, 0]
    assert (int(found.wait_ns.sum()), found.duration_ns) == (111_373, 192_754)
    assert found.last_count.tolist() == [0, 0, 0, 0, 0, 0, 0, 1]
    assert found.first_count.tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    assert found.caused_ns.tolist() == [0] * 7 + [111_373]
    assert found.critical_ns.tolist() == [0] * 7 + [528]
    assert find_straggler(tuple(range(8)), found, Precision(), 1e6).rank is None
    assert classify(111_373, 192_754, 8, 1, 0.0, whole=True) == (pytest.approx(0.5778, abs=1e-4), "inconclusive")


def test_a_persistent_straggler():
    """Rank 3 comes 20 us after the rest, in every instance of 30 steps."""
    came = jitter()
    came[:, 3] += 20_000
    found = judge(came)
    assert (found.rank, found.late_ranks, found.last_frac, found.trial_count) == (3, (), 1.0, 30)
    assert found.p_value < 1e-20


def test_last_in_861_of_1000():
    """Rank 4 arrives last in 86.1 % of the instances of eight ranks, by 10 us, and waits least."""
    came = jitter(steps=100)
    rng = np.random.default_rng(1)
    late = np.zeros(1000, dtype=bool)
    late[rng.choice(1000, 861, replace=False)] = True
    came[late, 4] += 10_000
    came[~late, 4] -= 10_000
    found = waiting(arrivals(came), SHARP)
    assert found.last_count[4] == 861
    assert int(found.wait_ns.argmin()) == 4
    assert judge(came).rank == 4


@pytest.mark.parametrize("seed", range(25))
def test_nobody_is_late(seed):
    came = jitter(seed=seed)
    found = judge(came)
    assert (found.rank, found.late_ranks) == (None, ())


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("late", [1_500, 20_000])
def test_a_late_rank_that_changes_with_the_step(seed, late):
    """Each step has one random late rank: a test per instance would count 300 trials of 30."""
    came = jitter(seed=seed)
    who = np.random.default_rng(seed).integers(0, 8, 30)
    came[np.arange(300), np.repeat(who, 10)] += late
    found = judge(came)
    assert (found.rank, found.late_ranks) == (None, ())


@pytest.mark.parametrize("late", [1_500, 50_000])
def test_four_ranks_late_together(late):
    came = jitter(seed=2)
    came[:, 4:] += late
    found = judge(came, step_ns=5e5)
    assert (found.rank, found.late_ranks) == (None, (4, 5, 6, 7))


def test_one_far_behind_another_that_is_a_little_late():
    """Rank 2 is 2 us late, rank 6 is 200 us late: a straggler, not a pair."""
    came = jitter(seed=3)
    came[:, 2] += 2_000
    came[:, 6] += 200_000
    assert judge(came).rank == 6


def test_not_worth_a_name():
    """Late by 100 ns in each of 10 instances of a step of 1 ms: 0.1 % of it."""
    came = jitter(scale=20.0)
    came[:, 3] += 100
    assert judge(came, Precision(30.0)).rank is None


def test_below_what_the_clocks_can_tell():
    """Late by 1 us while operations disagree by 1.5 us about when ranks leave."""
    came = jitter(scale=50.0)
    came[:, 3] += 1_000
    blurred = Precision(100.0, 1_500.0)
    assert judge(came, blurred, step_ns=1e5).rank is None
    assert judge(came, step_ns=1e5).rank == 3


def test_fewer_than_twenty_steps_name_nobody():
    came = jitter(steps=19)
    came[:, 3] += 20_000
    assert judge(came).rank is None


def test_clocks_that_were_only_trusted_name_nobody():
    came = jitter()
    came[:, 3] += 20_000
    found = judge(came, may_name=False)
    assert (found.rank, found.last_frac) == (None, 1.0)


@pytest.mark.parametrize(
    ("wait", "resolution", "instances", "whole", "expected"),
    [
        (50, 0, 100, True, "transfer"),
        (400, 0, 100, True, "mixed"),
        (700, 0, 100, True, "arrival_skew"),
        (190, 1, 100, True, "transfer"),
        (190, 30, 100, True, "inconclusive"),
        (50, 0, 29, True, "inconclusive"),
        (50, 0, 100, False, "inconclusive"),
    ],
)
def test_classes(wait, resolution, instances, whole, expected):
    """1,000 ns in collectives, one wait in the sum: 190 of 1,000 moved by 30 may be 220, another class."""
    assert classify(wait, 1_000, 1, instances, resolution, whole=whole) == (wait / 1_000, expected)


INSTANCES = st.integers(2, 6).flatmap(
    lambda n: st.lists(
        st.tuples(st.lists(st.integers(0, 10**9), min_size=n, max_size=n), st.booleans(), st.booleans()),
        min_size=1,
        max_size=20,
    )
)


@given(INSTANCES, st.integers(1, 4), st.integers(1, 20))
@settings(max_examples=150, deadline=None)
def test_waits_as_by_hand(instances, per_step, block):
    """Instances as (arrivals, in a step that is summed, exposed), `block` at a time."""
    came, summed, exposed = (list(column) for column in zip(*instances, strict=True))
    trial = [at // per_step if use else -1 for at, use in enumerate(summed)]
    one = replace(arrivals(came), trial=np.array(trial, np.int64), summed=np.array(summed), exposed=np.array(exposed))
    parts = [slice(at, at + block) for at in range(0, len(came), block)]
    held = (Arrivals(one.arrival[:, p], one.duration[:, p], one.trial[p], one.summed[p], one.exposed[p]) for p in parts)
    found = add_up((waiting(part, Precision()) for part in held), len(came))
    waits, leads = waits_by_hand(came)
    shorter = [[max(own) - x for x in own] for own in came]  # durations end together, 10 us after the last arrival
    pairs = list(zip(came, summed, exposed, waits, strict=True))
    members = len(came[0])
    assert found.count == len(came)
    assert found.wait_ns.tolist() == [sum(column) for column in zip(*waits, strict=True)]
    assert found.shorter_ns.tolist() == [sum(column) for column in zip(*shorter, strict=True)]
    assert found.duration_ns == sum(map(sum, shorter)) + 10_000 * members * len(came)
    assert found.summed_wait_ns.tolist() == [sum(w[m] for _, use, _, w in pairs if use) for m in range(members)]
    assert found.summed_shorter_ns.tolist() == found.summed_wait_ns.tolist()
    assert found.skew_ns == sum(max(row) - min(row) for row in came)
    assert found.exposed_skew_ns == sum(max(row) - min(row) for row, use, seen, _ in pairs if use and seen)
    middle = (members + 1) // 2 - 1
    assert found.recoverable_ns == sum(max(row) - sorted(row)[middle] for row, use, seen, _ in pairs if use and seen)
    assert int(found.caused_ns.sum()) == sum(sum(row) for row, (_, lead) in zip(waits, leads, strict=True) if lead)
    assert found.critical_ns.tolist() == [sum(lead for last, lead in leads if last == m) for m in range(members)]
    critical, late = ([[0] * members for _ in came] for _ in range(2))
    for step, row, (last, lead) in zip(trial, came, leads, strict=True):
        if step >= 0:
            critical[step][last] += lead
            late[step] = [total + own - min(row) for total, own in zip(late[step], row, strict=True)]
    assert found.trial_critical_ns.tolist() == critical
    assert found.trial_late_ns.tolist() == late
    assert found.trial_count.tolist() == [trial.count(step) for step in range(len(came))]


def test_the_mean_skew_of_63_replays():
    """87 calls a replay, 31.578 us apart on average, are 2,747.3 us a token."""
    assert pytest.approx(2747.3, abs=0.05) == 87 * 31.578
    came = np.zeros((63 * 87, 8), dtype=np.int64)
    came[:, 5] = 31_578
    one = arrivals(came, per_step=87)
    skew = np.ptp(one.arrival, axis=0)
    per_token = skew.reshape(63, 87).sum(axis=1)
    assert set(per_token.tolist()) == {2_747_286}


def test_clock_offsets_do_not_reach_the_verdict():
    """End to end on rows: rank 2 is 5 us late, the clocks are up to 14 us apart."""
    from tests.analyses.oracle_rows import aligned

    late = np.zeros((40 * 17, 4))
    late[:, 2] = 5_000
    alignment = aligned(with_clocks(decode_job(4, 40, 8, 1, late_ns=late), np.array([0, 14e3, -14e3, 9e3])))
    rows = alignment.members.filter("accepted")
    came = rows["arrival_ns"].to_numpy().reshape(-1, 4)
    precision = Precision(alignment.sets[0].residual_ns, alignment.sets[0].asymmetry_ns)
    assert judge(came, precision, per_step=17, step_ns=9e5).rank == 2


@given(st.integers(1, 400), st.integers(2, 64))
@settings(max_examples=50, deadline=None)
def test_tails_are_those_of_the_binomial_distribution(count, members):
    wins = np.arange(count + 1)
    assert _at_least(wins, count, 1 / members).tolist() == binom.sf(wins - 1, count, 1 / members).tolist()
