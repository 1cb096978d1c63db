"""Reading ahead: the next batches are decoded while this one is worked on."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any, TypeVar

T = TypeVar("T")
_WAIT_S = 0.05


def ahead(items: Iterator[T], count: int = 2) -> Iterator[T]:
    """The same items, up to `count` of them made ahead by a thread of its own.

    What goes wrong there is raised here. Whoever stops early waits until the item in the making is made.
    """
    made: Queue[tuple[str, Any]] = Queue(count)
    stopped = Event()

    def put(kind: str, value: Any) -> None:
        while not stopped.is_set():
            try:
                made.put((kind, value), timeout=_WAIT_S)
            except Full:
                continue
            return

    def run() -> None:
        try:
            for item in items:
                put("item", item)
                if stopped.is_set():
                    break
            put("end", None)
        except BaseException as error:
            put("error", error)
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    thread = Thread(target=run, name="reading ahead", daemon=True)
    thread.start()
    try:
        while True:
            try:
                kind, value = made.get(timeout=1.0)
            except Empty:
                continue
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        stopped.set()
        thread.join()
