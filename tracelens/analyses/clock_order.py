"""The times of each instance's members put in order: few members, many instances."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

_NETWORK_MEMBERS = 16
"""More members than this are sorted faster one instance after the other."""


def put_in_order(times: npt.NDArray[Any]) -> None:
    """Sort each column of [members, instances] in place."""
    if len(times) > _NETWORK_MEMBERS:
        ordered = np.ascontiguousarray(times.T)
        ordered.sort(axis=1)
        times[:] = ordered.T
        return
    # Two rows at a time are compared for all instances at once.
    lower = np.empty_like(times[0])
    for first, second in _exchanges(len(times)):
        np.minimum(times[first], times[second], out=lower)
        np.maximum(times[first], times[second], out=times[second])
        times[first] = lower


@cache
def _exchanges(count: int) -> tuple[tuple[int, int], ...]:
    """Pairs of rows that, put in order one after the other, put all rows in order: Batcher's odd-even merge sort."""

    def pairs() -> Iterator[tuple[int, int]]:
        run = 1
        while run < count:
            step = run
            while step:
                for begin in range(step % run, count - step, 2 * step):
                    for low in range(begin, min(begin + step, count - step)):
                        if low // (2 * run) == (low + step) // (2 * run):
                            yield low, low + step
                step //= 2
            run *= 2

    return tuple(pairs())


def middles(ordered: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Median of each column of [members, instances] in order, float64."""
    count = len(ordered)
    return np.asarray((ordered[(count - 1) // 2] + ordered[count // 2]) / 2, dtype=np.float64)
