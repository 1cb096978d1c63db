"""One capture, one answer, to the byte: whatever the order of rows, the threads, the names of files, the locale."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import WRITE_FILES, registered, words
from tests.running import REAL, needs_real, shuffled, tracelens
from tracelens.simulate import CaptureSpec, Copy, Kernel, Late, Memset, Range, write, write_events

ROOT = Path(__file__).parents[2]


def answers(command: str, path: Path, out: Path, *options: str) -> tuple[int, str, str, dict[str, bytes]]:
    """Exit code, outputs, and the files written by one command."""
    out.mkdir(exist_ok=True)
    form = () if command in WRITE_FILES else ("--format", "json")
    ran = tracelens(*words(command, path.name, out), *form, "--no-cache", *options, cwd=path.parent)
    return ran.code, ran.out, ran.err, {file.name: file.read_bytes() for file in sorted(out.iterdir())}


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, one of them late: 24 steps of eager and replayed work, with ranges and payloads."""
    spec = CaptureSpec(
        tp=2, layers=1, steps=24, all_reduce="nccl", nccl_payload="both", foreign_process=True, side_contexts=True,
        prefill_every=8, faults=(Late((1,), 20_000),),
    )  # fmt: skip
    (path,) = write(spec, tmp_path_factory.mktemp("plain"), truth=False)
    return path


@pytest.fixture(scope="module")
def mixed(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows in another order, under the same name."""
    return shuffled(capture, tmp_path_factory.mktemp("mixed") / capture.name, seed=7)


@pytest.mark.parametrize("command", registered())
def test_the_order_of_rows_changes_nothing(command: str, capture: Path, mixed: Path, tmp_path: Path) -> None:
    first = answers(command, capture, tmp_path / "out")
    for file in (tmp_path / "out").iterdir():
        file.unlink()
    second = answers(command, mixed, tmp_path / "out")
    assert first[0] == 0, first[2]
    sizes = [str(path.stat().st_size) for path in (capture, mixed)]
    assert first[1].replace(sizes[0], "SIZE") == second[1].replace(sizes[1], "SIZE")
    assert (first[0], first[2]) == (second[0], second[2])
    if command != "report":  # the page tells the size of the file
        assert first[3] == second[3]


@needs_real
@pytest.mark.parametrize("command", ["bucket", "gaps", "skew"])
def test_the_order_of_rows_of_a_real_export_changes_nothing(command: str, tmp_path: Path) -> None:
    for folder in ("plain", "mixed"):
        (tmp_path / folder).mkdir()
    plain, mixed = (tmp_path / folder / "tp2.sqlite" for folder in ("plain", "mixed"))
    shutil.copyfile(REAL / "h100x2_before.sqlite", plain)
    shuffled(plain, mixed)
    first, second = answers(command, plain, tmp_path / "out"), answers(command, mixed, tmp_path / "out")
    sizes = [str(path.stat().st_size) for path in (plain, mixed)]
    assert first[0] == 0, first[2]
    assert first[1].replace(sizes[0], "SIZE") == second[1].replace(sizes[1], "SIZE")
    assert first[2] == second[2]


@pytest.mark.parametrize("command", ["bucket", "steps", "skew", "sql"])
def test_threads_and_loaders_change_nothing(command: str, mixed: Path, tmp_path: Path) -> None:
    first = answers(command, mixed, tmp_path / "out", "--threads", "1")
    for options in (("--threads", "2"), ("--threads", "4", "--loader", "sqlite")):
        assert answers(command, mixed, tmp_path / "out", *options) == first


def ties(path: Path, seed: int) -> Path:
    """Hundreds of events that start, end and launch together, some equal in every value."""
    rows: list[Any] = []
    for rank in range(2):
        place: dict[str, Any] = {"pid": 1 + rank, "device": rank}
        for number in range(120):
            start = 1_000 + 100 * (number // 12)
            name = ("gemm", "norm", "cross_device_reduce_1stage")[number % 3]
            rows.append(Kernel(name, start, start + 50 * (number % 2), stream=number % 4, launch=(10, 20), **place))
            rows.append(Copy(("H2D", "D2H")[number % 2], start, start + 50, stream=number % 2, **place))
            rows.append(Memset(start, start + 50, **place))
            rows.append(Range(("a", "b")[number % 2], start, start + 10, pid=1 + rank))
            rows += [Kernel("gemm", start, start + 50, correlation=7, **place)] * 2
    return write_events(rows, path, shuffle=seed)


@pytest.mark.parametrize("command", ["bucket", "gaps", "sql"])
def test_ties_are_broken_by_values(command: str, tmp_path: Path) -> None:
    found = []
    for seed in (1, 3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        found.append(answers(command, ties(folder / "x.sqlite", seed), tmp_path / "out", "--threads", str(seed))[:3])
    assert found[0][0] == 0, found[0][2]
    assert found[0] == found[1]


def test_names_of_files_change_nothing_but_themselves(tmp_path: Path) -> None:
    """Four files under two sets of names that sort differently, with one rank map."""
    spec = CaptureSpec(tp=4, layers=1, steps=24, titles="none")
    paths = write(spec, tmp_path / "a", one_file=False, truth=False)
    renamed = []
    (tmp_path / "b").mkdir()
    for path, name in zip(paths, ("w", "c", "x", "a"), strict=True):
        renamed.append(Path(shutil.copyfile(path, tmp_path / "b" / f"{name}.sqlite")))
    found = []
    for several in (paths, renamed):
        places = ",".join(f"{rank}={path.name}" for rank, path in enumerate(several))
        for command in ("bucket", "skew", "steps"):
            if command in registered():
                ran = tracelens(command, *several, "--rank-map", places, "--format", "json")
                assert ran.code == 0, ran.err
                answer = ran.json
                answer["provenance"].pop("exports")
                found.append((command, answer))
    half = len(found) // 2
    assert found[:half] == found[half:]


def test_locale_and_time_zone_change_nothing(capture: Path) -> None:
    code = "import sys; from tracelens.cli import run; [run(['info', sys.argv[1], '--format', form]) for form in sys.argv[2:]]"
    found = set()
    for changed in (
        {"LC_ALL": "C", "TZ": "UTC"},
        {"LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "7"},
    ):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1", "COLUMNS": "100", **changed}
        command = [sys.executable, "-c", code, capture.name, "table", "json", "csv", "markdown"]
        ran = subprocess.run(command, cwd=capture.parent, capture_output=True, env=environment, check=False)
        assert ran.returncode == 0, ran.stderr[-1000:]
        assert ran.stdout.count(b"rank") > 4
        found.add((ran.stdout, ran.stderr))
    assert len(found) == 1
