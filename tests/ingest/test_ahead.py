"""Reading ahead: the same items in the same order; errors arrive, and whoever stops early leaves no thread behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tracelens.ingest.ahead import ahead


def test_the_items_are_the_same() -> None:
    assert list(ahead(iter(range(100)))) == list(range(100))
    assert list(ahead(iter(()))) == []


def test_an_error_arrives_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    reading = ahead(items())
    assert next(reading) == 1
    with pytest.raises(OSError, match="gone"):
        next(reading)


def test_stopping_early_closes_what_was_read() -> None:
    closed = []

    def items() -> Iterator[int]:
        try:
            yield from range(1_000_000)
        finally:
            closed.append(True)

    reading = ahead(items())
    assert next(reading) == 0
    reading.close()  # type: ignore[attr-defined]
    assert closed == [True]
    assert not [one for one in threading.enumerate() if one.name == "reading ahead"]
