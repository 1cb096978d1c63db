"""What a newcomer types wrong: one or two lines, exit code 2, nothing written and nothing half answered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import refused, snapshot, tracelens
from tracelens.simulate import CaptureSpec, write

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small capture of two GPUs as tp2/tp2.sqlite, and a file that is no capture."""
    root = tmp_path_factory.mktemp("mistakes")
    write(CaptureSpec(tp=2, layers=2, steps=12), root / "tp2")
    (root / "notes.sqlite").write_text("not a database\n" * 40)
    (root / "empty").mkdir()
    return root


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("info nofile.sqlite", "no such file"),
        ("info notes.sqlite", "not a SQLite database"),
        ("bucket empty", "holds no nsys export"),
        ("bucket tp2 --engine vlm", "no shipped map is for the engine vlm"),
        ("bucket tp2 --model nosuch", "no shipped map is for vllm/nosuch"),
        ("bucket tp2 --phase foo", "Invalid value for '--phase': 'foo' is not one of"),
        ("bucket tp2 --phase prefill", "phase prefill holds no event"),
        ("steps tp2 --phase prefill", "phase prefill holds no event"),
        ("steps tp2 --steps 100-200", "steps 100-200 holds no event"),
        ("steps tp2 --time 7..8", "7..8 s holds no event"),
        ("skew tp2 --ranks 9", "rank 9 is not in the capture"),
        ("rules diff default nosuch", "nosuch is neither a shipped map nor a .json file"),
        ("rules diff default", "takes two maps"),
        ("compare tp2 tp2 --fail-above 2% --metric speed", "--metric speed is not known"),
        ("compare tp2 tp2 --fail-above 2% --metric bucket:nosuch", "there is no bucket nosuch"),
        ("report tp2 -o page.json", "the report is a web page"),
        ("sweep", "Missing option '--engine'. Choose from: vllm, sglang"),
        ("demo -o tp2x", "it is not the demo's"),
    ],
)
def test_it_is_refused(folder: Path, words: str, said: str) -> None:
    other = folder / "tp2x"
    if not other.exists():  # somebody's capture with the demo's file name
        other.mkdir()
        (other / "tp8.sqlite").write_bytes((folder / "tp2" / "tp2.sqlite").read_bytes())
    before = snapshot(folder)
    assert said in refused(tracelens(*words.split(), cwd=folder))
    assert snapshot(folder) == before


def test_all_steps_skipped_is_said_as_what_it_is(folder: Path) -> None:
    ran = tracelens("steps", "tp2", "--skip", "1000", cwd=folder)
    assert ran.code == 0
    assert ran.out.startswith("12 steps by nvtx, all whole ones counted as warm-up.")


@pytest.mark.skipif(os.name != "posix", reason="pipes of a POSIX shell")
def test_a_reader_that_leaves_early_is_no_gate_that_tripped(folder: Path) -> None:
    """`tracelens bucket ... | head -1` under pipefail."""
    program = [sys.executable, str(ROOT / "cli.py"), "sql", "tp2", "SELECT * FROM event"]
    with subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.read(1)
        running.stdout.close()
        errors = running.stderr.read()
    assert (running.returncode, errors) == (0, b"")


def test_a_query_says_which_choices_it_did_not_follow(folder: Path) -> None:
    """`--ranks 0` beside a query that asks for both ranks: the tables are whole, and that is said."""
    ran = tracelens("sql", "--ranks", "0", "tp2", "SELECT count(DISTINCT rank) AS n FROM event", cwd=folder)
    assert ran.code == 0
    assert ran.out.split() == ["n", "-", "2"]
    assert "--ranks did not narrow it" in ran.err


@pytest.mark.parametrize("command", ["bucket", "steps", "gaps", "collectives", "skew", "info"])
def test_every_answer_names_the_part_of_the_capture_it_is_about(folder: Path, command: str) -> None:
    windows = [
        tracelens(command, "tp2", *words, "--format", "json", cwd=folder).json["provenance"]["window"]
        for words in ((), ("--steps", "3-7"), ("--phase", "decode"))
    ]
    assert windows == ["whole capture", "steps 3-7", "phase decode"]
