"""Working ahead: every result in order; errors stand where the result would; whoever stops early leaves no thread behind."""

from __future__ import annotations

import threading
import time

import pytest

from tracelens.ingest.ahead import in_order


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_results_are_in_order(threads: int) -> None:
    def slower_at_first(number: int) -> int:
        time.sleep(0.001 if number % 3 == 0 else 0)
        return number * number

    assert list(in_order(slower_at_first, range(50), threads)) == [number * number for number in range(50)]
    assert list(in_order(slower_at_first, [], threads)) == []


def test_an_error_arrives_after_the_results_before_it() -> None:
    def work(number: int) -> int:
        if number == 2:
            raise OSError("the disk is gone")
        return number

    results = in_order(work, range(50), 2)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(OSError, match="gone"):
        next(results)


def test_stopping_early_begins_nothing_new() -> None:
    begun: list[int] = []
    results = in_order(begun.append, range(1_000_000), 2)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(begun) < 10
    assert not [one for one in threading.enumerate() if one.name.startswith("working ahead")]
