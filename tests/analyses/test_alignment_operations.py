"""Collective operations put together from kernels, and told apart."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.analyses.alignment_operations import _heads, grouped


@given(st.lists(st.tuples(st.integers(-3, 9), st.sampled_from([0, 7, 2**40])), max_size=60))
@settings(max_examples=200, deadline=None)
def test_groups_are_those_of_a_dictionary(pairs):
    """Two columns, one of a single byte; few groups and more than few."""
    expected = {}
    for row, pair in enumerate(pairs):
        expected.setdefault(pair, []).append(10 * row)
    one = np.array([a for a, _ in pairs], np.int8)
    two = np.array([b for _, b in pairs], np.int64)
    found = [(values, rows.tolist()) for values, rows in grouped(10 * np.arange(len(pairs)), one, two)]
    assert found == sorted(expected.items())


def test_kernels_of_one_operation():
    """Ids 10 to 16 on two streams; `>` finishes what the kernel before it on its stream began.

    stream 7   |10-----|11>-|12>-|    |15---|      one operation of three kernels, one of one
    stream 8   |13>|  |14----|16>|                 13 finishes what began before the capture: no operation
    """
    head, last = _heads(np.arange(10, 17), np.array([11, 12, 13, 16]), np.array([10, 11, -1, 14]))
    assert head.tolist() == [0, 4, 5]
    assert last.tolist() == [2, 6, 5]
