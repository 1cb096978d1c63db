"""A run put together from portions is the run that one process reads, however it was parted and in whatever order.

exports   0 | 1 2 | 3      portions: any runs of neighbours
read      2nd  3rd  1st    any order, any process
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest

from tests.cases.drawn import MS, US, kernel
from tests.executors.drawn import lift, rank_files, tables
from tracelens import loading
from tracelens.executors import crew, portion
from tracelens.executors.means import Means
from tracelens.executors.portion import PartRequest, Portion, Told
from tracelens.ingest.event_runs import EventRuns
from tracelens.model.event_files import Order
from tracelens.simulate import Launch, write_events


class Shuffled:
    """A crew of this process that does its work in a random order, as two processes would."""

    def __init__(self, seed: int, base: Path) -> None:
        self._draw, self._base = random.Random(seed), base
        #: Of two processes, which exports each keeps, and their events.
        self._kept: list[tuple[set[int], EventRuns]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _any_order(self, count: int) -> list[int]:
        return self._draw.sample(range(count), count)

    def read(self, portions: Sequence[Portion], progress: Any) -> list[Told]:
        told: dict[int, Told] = {}
        self._kept = [(set(), EventRuns(0, self._base)) for _ in range(2)]
        for number in self._any_order(len(portions)):
            exports, runs = self._draw.choice(self._kept)
            told[number] = portion.read(portions[number], Means(), self._base, runs)
            exports.update(portions[number].numbers)
        return [told[number] for number in range(len(portions))]

    def write(self, order: Order, folder: Path) -> None:
        kept = [self._kept[number] for number in self._any_order(len(self._kept))]
        for of, runs in kept:
            portion.write(runs, order.of(of), folder, 1)
            runs.close()

    def write_parts(self, requests: Sequence[PartRequest], folder: Path) -> None:
        for number in self._any_order(len(requests)):
            portion.write_part(requests[number], Means(), self._base, folder)


def parted(cuts: set[int], seed: int, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on captures are read by a `Shuffled` crew, parted before the exports in `cuts`."""

    def portions(found: Any, sizes: Any, workers: int) -> list[Portion]:
        edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(found)), len(found)]
        return [Portion(a, tuple(found[a:b])) for a, b in pairwise(edges)]

    monkeypatch.setattr(crew, "portions_of", portions)
    monkeypatch.setattr(loading, "_hire", lambda *_: Shuffled(seed, base))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Any]:
    """Two nodes of a job whose files come in another order than their ranks, one machine's with two ranks in a file."""
    folder = tmp_path_factory.mktemp("made")
    paths = rank_files(folder)
    patch = pytest.MonkeyPatch()
    lift(patch)
    expected = tables(paths, threads=1)
    patch.undo()
    return paths, expected


@pytest.mark.parametrize(("cuts", "seed"), [(set(), 0), ({1}, 1), ({2, 3}, 2), ({1, 2, 3}, 3), ({1, 2, 3}, 4)])
def test_however_it_is_parted(
    made: tuple[list[str], Any], tmp_path: Path, cuts: set[int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, expected = made
    lift(monkeypatch)
    parted(cuts, seed, tmp_path, monkeypatch)
    found = tables(paths)
    for name, rows in expected.items():
        assert found[name] == rows, name


@pytest.mark.parametrize("seed", range(3))
def test_ranks_of_different_files_may_alternate(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process drives devices 0 and 2, another 1 and 3, each traced into a file: numbered by device, ranks alternate."""
    paths = []
    for first in (0, 1):
        rows = [
            kernel(f"gemm{device}", device, MS + n * 10 * US, MS + n * 10 * US + US, launch=n * 10 * US)
            for device in (first, first + 2)
            for n in range(1, 20)
        ]
        paths.append(str(write_events(rows, tmp_path / f"node{first}.sqlite")))
    lift(monkeypatch)
    expected = tables(paths, threads=1)
    assert [row[1] for row in expected["event"]] == sorted(row[1] for row in expected["event"])
    assert {row[4] for row in expected["rank"]} == {0, 1}
    parted({1}, seed, tmp_path, monkeypatch)
    assert tables(paths) == expected


def test_calls_that_launched_nothing_are_counted_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls without an event: one in good order, two with impossible times, and one that waited for the device.

    Only the last travels; the ledger and the notices tell of all.
    """
    paths = []
    for number in (0, 1):
        rows: list[Any] = [kernel("gemm", number, MS + n * US, MS + n * US + 500, launch=n * US) for n in range(1, 90)]
        rows.append(Launch("cudaEventRecord_v3020", 5 * MS, 5 * MS + 10, pid=100 + number, correlation=10_001))
        rows.append(Launch("cudaStreamSynchronize_v3020", 6 * MS, 5 * MS, pid=100 + number, correlation=10_002))
        rows.append(Launch("cudaDeviceSynchronize_v3020", 7 * MS, 8 * MS, pid=100 + number, correlation=10_003))
        rows.append(Launch("cudaDeviceSynchronize_v3020", -(2**63), 2**63 - 1, pid=100 + number, correlation=10_004))
        paths.append(str(write_events(rows, tmp_path / f"rank{number}.sqlite")))
    lift(monkeypatch)
    expected = tables(paths, threads=1)
    assert any(row[-1] == 8 * MS for row in expected["launch"])  # the wait that ended then
    (runtime,) = [row for row in expected["ledger"] if row[1] == "CUPTI_ACTIVITY_KIND_RUNTIME"]
    assert "put no work" in runtime[5]
    assert "bad timestamp" in runtime[5]
    parted({1}, 0, tmp_path, monkeypatch)
    assert tables(paths) == expected


def test_neighbours_are_read_together_until_they_have_enough_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "PORTION_BYTES", 10)
    monkeypatch.setattr(crew, "FILE_BYTES", 0)
    found: Any = ["a", "b", "c", "d", "e"]
    parts = crew.portions_of(found, [4, 6, 12, 1, 1], 8)
    assert [(one.first, one.found) for one in parts] == [(0, ("a", "b")), (2, ("c",)), (3, ("d", "e"))]
    parts = crew.portions_of(found * 100, [4, 6, 12, 1, 1] * 100, 2)  # of many files, a few portions for each worker
    assert 6 <= len(parts) <= 8
    assert [one for part in parts for one in part.found] == found * 100
    assert [part.first for part in parts] == [0, *(part.numbers[-1] + 1 for part in parts[:-1])]
