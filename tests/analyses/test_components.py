"""Connected components against walking the links one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analyses.components import components

LINKS = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), max_size=20)


@given(links=LINKS)
def test_components_are_what_links_connect(links: list[tuple[int, int]]) -> None:
    group = list(range(15))
    for left, right in links:
        group = [group[left] if one == group[right] else one for one in group]
    order = list(dict.fromkeys(group))
    left, right = np.array(links, np.int64).reshape(-1, 2).T
    assert components(15, left, right).tolist() == [order.index(one) for one in group]


def test_a_long_chain_in_any_order() -> None:
    order = np.random.default_rng(0).permutation(5000)
    assert components(5000, order[1:], order[:-1]).tolist() == [0] * 5000
    assert components(0, order[:0], order[:0]).tolist() == []
