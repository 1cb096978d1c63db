"""`tracelens simulate` writes what its options say, and the ready-made scenarios."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.running import refused, tracelens
from tracelens.simulate import SCENARIOS


def test_list_names_every_scenario_with_what_it_shows() -> None:
    ran = tracelens("simulate", "--scenario", "list")
    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()] == list(SCENARIOS)
    assert all(SCENARIOS[name].says in ran.out for name in SCENARIOS)


def test_one_capture_goes_into_the_folder_itself(tmp_path: Path) -> None:
    ran = tracelens("simulate", "--scenario", "balanced", "--steps", "2", "-o", "one", cwd=tmp_path)
    assert ran.code == 0
    assert ran.out == "one/tp8.sqlite\n\nnext: tracelens bucket one\n"
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["tp8.sqlite", "truth.json"]


def test_a_pair_goes_into_a_folder_each_and_can_be_compared(tmp_path: Path) -> None:
    small = ("--steps", "3", "--set", "layers=2", "--set", "tp=2")
    ran = tracelens("simulate", "--scenario", "regression", *small, "-o", "pair", cwd=tmp_path)
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "pair/before/tp2.sqlite",
        "pair/after/tp2.sqlite",
        "",
        "next: tracelens compare pair/before pair/after",
    ]
    truth = json.loads((tmp_path / "pair/after/truth.json").read_text())
    assert truth != json.loads((tmp_path / "pair/before/truth.json").read_text())


def test_one_file_per_rank(tmp_path: Path) -> None:
    ran = tracelens("simulate", "--tp", "2", "--steps", "2", "--layers", "1", "--per-rank", "-o", "x", cwd=tmp_path)
    assert ran.out.splitlines()[:2] == ["x/rank0.sqlite", "x/rank1.sqlite"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scenario", "sunshine", "-o", "x"], "no scenario 'sunshine'"),
        (["--scenario", "balanced", "--tp", "4", "-o", "x"], "--scenario balanced sets --tp itself"),
        (["--scenario", "balanced", "--slow-rank", "1", "-o", "x"], "sets --slow-rank itself"),
        ([], "needs a folder to write into"),
        (["--tp", "2", "--slow-rank", "2", "-o", "x"], "there is no rank 2 among 2"),
        (["--set", "colour=red", "-o", "x"], "no such field"),
        (["--nsys-version", "1999.1", "-o", "x"], "is not known"),
    ],
)
def test_what_cannot_be_simulated(arguments: list[str], words: str, tmp_path: Path) -> None:
    assert words in refused(tracelens("simulate", *arguments, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    small = ("simulate", "--tp", "1", "--steps", "1", "--layers", "1", "-o", "x")
    assert tracelens(*small, cwd=tmp_path).code == 0
    assert "x/tp1.sqlite exists" in refused(tracelens(*small, cwd=tmp_path))
    (tmp_path / "file").touch()
    assert "file cannot be written" in refused(tracelens(*small[:-1], "file", cwd=tmp_path))
