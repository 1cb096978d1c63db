"""Working ahead: threads make the next results while this one is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_order(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """The results of `work` for every item, in the order of the items.

    At most one result more than there are threads is made ahead. What goes wrong is raised where the result would
    stand. Whoever stops early waits until the results in the making are made.
    """
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(threads, "working ahead")
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > threads + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
