"""Why a rank came late: the parts sum to the lateness, always."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.analyses.lateness import (
    device_detail,
    lateness_sums,
    main_cause,
    mean_lateness,
    reference_member,
    upstream_sums,
    work_of,
)

PLACES = {"lateness": 0, "upstream": 1, "device": 2, "host": 3}


def reference(arrival):
    """[instances][members] -> column of the lower median, of equal ones the lower first."""
    arrival = np.array(arrival, np.int64)
    return reference_member(arrival, np.sort(arrival, axis=1))


def means(arrival, previous, device, host, elsewhere=None):
    """`mean_lateness` of [instances][members], the way the parts are added up."""
    arrival, previous, device, host = (np.array(v, np.int64).T for v in (arrival, previous, device, host))
    elsewhere = np.zeros(arrival.shape, bool) if elsewhere is None else np.array(elsewhere).T
    at = reference(arrival.T)
    work = [work_of(d, h, at == row) for row, (d, h) in enumerate(zip(device, host, strict=True))]
    late, left = lateness_sums(arrival, at), upstream_sums(previous, elsewhere, at)
    return {name: v.tolist() for name, v in mean_lateness(arrival.shape[1], late, left, work).items()}


def test_the_reference_is_the_lower_median():
    """Of four the second, of three the middle one, of two the first, of five the third."""
    assert reference([[40, 10, 30, 20]]).tolist() == [3]
    assert reference([[30, 10, 20]]).tolist() == [2]
    assert reference([[20, 10]]).tolist() == [1]
    assert reference([[5, 4, 3, 2, 1]]).tolist() == [2]


@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(st.integers(0, 3), min_size=n, max_size=n), min_size=1)))
@settings(max_examples=150, deadline=None)
def test_the_reference_of_members_that_arrive_together(rows):
    expected = [sorted(range(len(row)), key=lambda k: (row[k], k))[(len(row) + 1) // 2 - 1] for row in rows]
    assert reference(rows).tolist() == expected


def test_three_ranks_three_reasons():
    """All left the collective before at 100.

    rank 0   ]--60 device--|160                       the earliest
    rank 1   ]----80 device----|180                   the reference
    rank 2   ]--60 device--,, 30 host ,,|195          15 later: 30 host, 5 other, less 20 device
    """
    assert means([[160, 180, 195]], [[100, 100, 100]], [[60, 80, 60]], [[0, 0, 30]]) == {
        "lateness": [-20, 0, 15],
        "device": [-20, 0, -20],
        "host": [0, 0, 30],
        "upstream": [0, 0, 0],
        "other": [0, 0, 5],
    }


def test_upstream_counts_only_from_another_communicator():
    """Rank 1 left its collective 40 later; only where that was another communicator's it is upstream."""
    same = means([[100, 140]], [[50, 90]], [[50, 50]], [[0, 0]])
    assert (same["upstream"], same["other"]) == ([0, 0], [0, 40])
    other = means([[100, 140]], [[50, 90]], [[50, 50]], [[0, 0]], [[False, True]])
    assert (other["upstream"], other["other"]) == ([0, 40], [0, 0])


def test_nothing_is_told_without_instances():
    assert mean_lateness(0, np.zeros(2, np.int64), np.zeros(2, np.int64), []) == {}


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.lists(
            st.lists(st.tuples(*[st.integers(0, 10**7)] * 4, st.booleans()), min_size=n, max_size=n),
            min_size=1,
            max_size=12,
        )
    )
)
@settings(max_examples=150, deadline=None)
def test_means_as_instance_by_instance(rows):
    """Each member's own arrival, device, host less those of the instance's reference, and its rest."""
    found = means(*([[row[k] for row in instance] for instance in rows] for k in range(5)))
    columns = dict.fromkeys(("lateness", "device", "host", "upstream"), 0)
    for instance in rows:
        order = sorted(range(len(instance)), key=lambda k: (instance[k][0], k))
        usual = instance[order[(len(instance) + 1) // 2 - 1]]
        own = {name: np.array([member[k] - usual[k] for member in instance]) for name, k in PLACES.items()}
        own["upstream"] *= np.array([member[4] or usual[4] for member in instance])
        columns = {name: columns[name] + own[name] for name in columns}
    expected = {name: np.rint(total / len(rows)).astype(int) for name, total in columns.items()}
    expected["other"] = expected["lateness"] - expected["device"] - expected["host"] - expected["upstream"]
    assert found == {name: values.tolist() for name, values in expected.items()}


def test_causes():
    """The largest part, if it holds 60 %."""
    assert main_cause({"lateness": 100, "device": 60, "host": 40, "upstream": 0, "other": 0}) == "device"
    assert main_cause({"lateness": 100, "device": 50, "host": 45, "upstream": 5, "other": 0}) == "mixed"
    assert main_cause({"lateness": 100, "device": -20, "host": 130, "upstream": 0, "other": -10}) == "host"


def test_uniform_or_one_bucket():
    """8 % more in every bucket that matters is clock, power or heat; 30 % more in one is imbalance."""
    usual = {"gemm": 800.0, "attn": 150.0, "norm": 50.0, "topk": 1.0}
    slower = {bucket: 1.08 * ns for bucket, ns in usual.items()} | {"topk": 1.0}
    assert device_detail(slower, usual) == ("uniform", None, sum(slower.values()) / 1001.0)
    kind, bucket, factor = device_detail(usual | {"attn": 195.0}, usual)
    assert (kind, bucket) == ("imbalance", "attn")
    assert factor == 1046.0 / 1001.0
