"""Why a rank came late: the parts sum to the lateness, always."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.analyses.lateness import (
    Stretches,
    device_detail,
    main_cause,
    mean_lateness,
    reference_member,
    split_lateness,
)


def stretches(arrival, previous, device, host, elsewhere=None, usable=None):
    arrival = np.array(arrival, np.int64)
    return Stretches(
        arrival,
        np.array(previous, np.int64),
        np.array(device, np.int64),
        np.array(host, np.int64),
        np.zeros(arrival.shape, bool) if elsewhere is None else np.array(elsewhere),
        np.ones(len(arrival), bool) if usable is None else np.array(usable),
    )


def test_the_reference_is_the_lower_median():
    """Of four the second, of three the middle one, of two the first, of five the third."""
    assert reference_member(np.array([[40, 10, 30, 20]])).tolist() == [3]
    assert reference_member(np.array([[30, 10, 20]])).tolist() == [2]
    assert reference_member(np.array([[20, 10]])).tolist() == [1]
    assert reference_member(np.array([[5, 4, 3, 2, 1]])).tolist() == [2]


def test_three_ranks_three_reasons():
    """All left the collective before at 100.

    rank 0   ]--60 device--|160                       the reference
    rank 1   ]----80 device----|180                   20 later: device
    rank 2   ]--60 device--,, 30 host ,,|195          35 later: 30 host, 5 other
    """
    found = split_lateness(stretches([[160, 180, 195]], [[100, 100, 100]], [[60, 80, 60]], [[0, 0, 30]]))
    # Arrivals 160, 180, 195: the lower median of three is the middle one, rank 1.
    assert found.lateness.tolist() == [[-20, 0, 15]]
    assert found.device.tolist() == [[-20, 0, -20]]
    assert found.host.tolist() == [[0, 0, 30]]
    assert found.upstream.tolist() == [[0, 0, 0]]
    assert found.other.tolist() == [[0, 0, 5]]


def test_upstream_counts_only_from_another_communicator():
    """Rank 1 left its collective 40 later; only where that was another communicator's it is upstream."""
    same = split_lateness(stretches([[100, 140]], [[50, 90]], [[50, 50]], [[0, 0]]))
    assert (same.upstream.tolist(), same.other.tolist()) == ([[0, 0]], [[0, 40]])
    other = split_lateness(stretches([[100, 140]], [[50, 90]], [[50, 50]], [[0, 0]], [[False, True]]))
    assert (other.upstream.tolist(), other.other.tolist()) == ([[0, 40]], [[0, 0]])


def test_instances_without_a_previous_one_are_left_out():
    found = split_lateness(
        stretches([[1, 2], [10, 20]], [[0, 0], [5, 5]], [[0, 0], [5, 15]], [[0, 0], [0, 0]], usable=[False, True])
    )
    assert found.lateness.tolist() == [[0, 10]]


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
def test_the_parts_sum_exactly(rows):
    arrival, previous, device, host, elsewhere = ([[row[k] for row in instance] for instance in rows] for k in range(5))
    found = split_lateness(stretches(arrival, previous, device, host, elsewhere))
    assert (found.device + found.host + found.upstream + found.other == found.lateness).all()
    halves = [
        [part[at] for at in (slice(None, 5), slice(5, None))] for part in (arrival, previous, device, host, elsewhere)
    ]
    means = mean_lateness(stretches(*half) for half in zip(*halves, strict=True) if half[0])
    assert means["lateness"].tolist() == np.rint(found.lateness.sum(axis=0) / len(rows)).tolist()
    assert (means["device"] + means["host"] + means["upstream"] + means["other"] == means["lateness"]).all()
    assert (np.sort(found.lateness, axis=1)[:, (len(rows[0]) + 1) // 2 - 1] == 0).all()


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
