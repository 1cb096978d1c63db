"""Damaged captures: the fuzzer's first mutations, and the kinds of damage that once slipped through."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from benchmarks.fuzz_exports import BYTES, draw, judge, mutate
from tests.running import refused, tracelens

#: Mutations that once crashed: a damaged page inside a table, a schema that is no UTF-8, rows out of order, a length
#: of gigabytes.
ONCE_WRONG = (61, 94, 102, 115, 119, 125, 177, 718)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return draw(tmp_path_factory.mktemp("fuzz") / "base.sqlite").read_bytes()


def test_the_drawing_itself_is_right(base: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(base)
    assert judge(path).startswith("right")


@pytest.mark.parametrize("first", range(0, 24, 12))
def test_no_mutation_gives_a_wrong_total_in_silence(base: bytes, tmp_path: Path, first: int) -> None:
    wrong = []
    for number in range(first, first + 12):
        what = mutate(base, tmp_path / "x.sqlite", number)
        verdict = judge(tmp_path / "x.sqlite")
        if not verdict.startswith(("right", "refused")):
            wrong.append((number, what, verdict))
    assert not wrong


@pytest.mark.parametrize("number", ONCE_WRONG)
def test_damage_that_once_slipped_through(base: bytes, tmp_path: Path, number: int) -> None:
    mutate(base, tmp_path / "x.sqlite", number)
    refused(tracelens("info", tmp_path / "x.sqlite"))


def test_a_mutation_is_what_its_number_says(base: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.sqlite"
        for number in (1, 2, 3):
            mutate(base, path, number)
            first = path.read_bytes()
            mutate(base, path, number)
            assert path.read_bytes() == first
    assert len({one.__name__ for one in BYTES}) >= 9
