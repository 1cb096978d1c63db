"""Long arrays taken block by block, and the places in them where something changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 1 << 17
"""So many events at a time: what is worked out of them fits into the processor's cache, and so does no harm to memory."""


def blocks(low: int, high: int, size: int | None = None) -> Iterator[slice]:
    """Slices of at most `size` places, `BLOCK` without one, that cover [low, high) in order."""
    size = size or BLOCK
    for begin in range(low, high, size):
        yield slice(begin, min(begin + size, high))


def run_starts(*columns: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Places of the rows that differ from the row before, the first among them, int64."""
    changes = np.zeros(len(columns[0]), bool)
    changes[:1] = True
    for values in columns:
        changes[1:] |= values[1:] != values[:-1]
    return np.flatnonzero(changes)
