"""Which of many things are linked, by whatever detour: the connected components of an undirected graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def components(count: int, left: npt.NDArray[np.integer], right: npt.NDArray[np.integer]) -> Ints:
    """A label per thing, equal for all that links connect; labels ascend from 0 in the order of first appearance.

    Args:
        count: number of things.
        left, right: [links] the things that each link connects.
    """
    # Every root hooks on to the least root beside it: each round at least halves the roots of what is connected.
    root = np.arange(count)
    while True:
        one, other = root[left], root[right]
        apart = one != other
        if not bool(apart.any()):
            break
        left, right, one, other = left[apart], right[apart], one[apart], other[apart]
        np.minimum.at(root, np.maximum(one, other), np.minimum(one, other))
        while not np.array_equal(above := root[root], root):
            root = above
    label: Ints = np.unique(root, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return label
