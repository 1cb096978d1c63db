"""Long arrays taken block by block, on several threads, and the places in them where something changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

P = TypeVar("P")
R = TypeVar("R")

BLOCK = 1 << 17
"""So many events at a time: what is worked out of them fits into the processor's cache, and so does no harm to memory."""


def blocks(low: int, high: int, size: int | None = None) -> Iterator[slice]:
    """Slices of at most `size` places, `BLOCK` without one, that cover [low, high) in order."""
    size = size or BLOCK
    for begin in range(low, high, size):
        yield slice(begin, min(begin + size, high))


def each(work: Callable[[P], R], parts: Iterable[P], threads: int) -> Iterator[R]:
    """`work(part)` of every part, in the order of the parts, on so many threads.

    numpy leaves the interpreter to other threads while it works through a block. What `work` changes must belong to its
    part alone. Few answers wait at a time, so that they take no more memory than blocks do.
    """
    waiting: deque[Future[R]] = deque()
    parts = list(parts)
    if threads < 2 or len(parts) < 2:
        yield from map(work, parts)
        return
    with ThreadPoolExecutor(threads) as pool:
        try:
            for part in parts:
                waiting.append(pool.submit(work, part))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def run_starts(*columns: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Places of the rows that differ from the row before, the first among them, int64."""
    changes = np.zeros(len(columns[0]), bool)
    changes[:1] = True
    for values in columns:
        changes[1:] |= values[1:] != values[:-1]
    return np.flatnonzero(changes)
