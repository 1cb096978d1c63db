"""Unions of half-open intervals, for the truth."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def merged(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Disjoint intervals that cover the same instants; input in order of start."""
    if len(start) == 0:
        return start, end
    reach = np.maximum.accumulate(end)
    fresh = np.concatenate([[True], start[1:] > reach[:-1]])
    firsts = np.flatnonzero(fresh)
    return start[firsts], reach[np.concatenate([firsts[1:] - 1, [len(start) - 1]])]


def union_length(start: Ints, end: Ints) -> int:
    """Length of the union; input in order of start."""
    begin, finish = merged(start, end)
    return int((finish - begin).sum())


def covered_before(begin: Ints, finish: Ints, at: Ints) -> Ints:
    """How much of the disjoint intervals lies before each instant."""
    if len(begin) == 0:
        return np.zeros(len(at), np.int64)
    total = np.concatenate([[0], np.cumsum(finish - begin)])
    place = np.searchsorted(begin, at, side="right")
    inside = np.where(place > 0, np.minimum(at, finish[np.maximum(place - 1, 0)]) - begin[np.maximum(place - 1, 0)], 0)
    return np.asarray(total[np.maximum(place - 1, 0)] + inside, np.int64)


def busy_within(start: Ints, end: Ints, low: Ints, high: Ints) -> Ints:
    """Length of the union within each window [low, high); 0 where low is -1."""
    begin, finish = merged(start, end)
    covered = covered_before(begin, finish, high) - covered_before(begin, finish, low)
    return np.where(low >= 0, np.maximum(covered, 0), 0)
