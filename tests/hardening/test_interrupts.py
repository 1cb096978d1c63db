"""Ctrl-C at any time: exit 130, no traceback, nothing half-written, and never a good file replaced by a broken one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.running import snapshot, tracelens
from tracelens.ingest import readers, sources
from tracelens.simulate import Kernel, write_events

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_events(
        [Kernel("gemm", 10 * n, 10 * n + 5, launch=(5 * n, 5 * n + 1)) for n in range(1, 3_000)], tmp_path / "x.sqlite"
    )


def interrupted_after(batches: int, monkeypatch: pytest.MonkeyPatch, what: Callable[[], BaseException]) -> None:
    """Reading stops as if the user had pressed ctrl-C between two batches."""
    reading = readers.read_events

    def stopped(*arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(reading(*arguments, **options | {"batch_rows": 500, "loader": "sqlite"})):
            if number == batches:
                raise what()
            yield batch

    monkeypatch.setattr(sources, "read_events", stopped)


@pytest.mark.parametrize("command", ["bucket", "info"])
@pytest.mark.parametrize("batches", [0, 2])
def test_while_rows_stream(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int, command: str
) -> None:
    interrupted_after(batches, monkeypatch, KeyboardInterrupt)
    target = tmp_path / "out.json"
    target.write_text("good")
    before = snapshot(tmp_path)
    ran = tracelens(command, path, "-o", target, "--force")
    assert (ran.code, ran.out) == (130, "")
    assert ran.err == "tracelens: interrupted\n"
    assert snapshot(tmp_path) == before


def test_while_an_answer_is_written(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tracelens.views import records

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for form, name in (
        ("json", "_json_rows"),
        ("csv", "write_csv_table"),
        ("parquet", "write_parquet_table"),
        ("md", "write_markdown_table"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(records, name, stopped)
            target = tmp_path / f"out.{form}"
            target.write_text("good")
            before = snapshot(tmp_path)
            assert tracelens("bucket", path, "-o", target, "--force").code == 130, form
            assert snapshot(tmp_path) == before, form


def test_a_full_disk_keeps_the_old_file(path: Path, tmp_path: Path) -> None:
    """/dev/full takes nothing."""
    target = tmp_path / "out.json"
    target.write_text("good")
    ran = tracelens("bucket", path, "-o", "/dev/full", "--format", "json", "--force")
    assert ran.code == 2
    assert "No space left" in ran.err
    assert target.read_text() == "good"


def test_an_existing_file_is_not_replaced_without_force(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("good")
    assert tracelens("bucket", path, "-o", target).code == 2
    assert target.read_text() == "good"
    assert tracelens("bucket", path, "-o", target, "--force").code == 0
    assert target.read_text() != "good"


def test_a_capture_is_never_its_own_output(path: Path) -> None:
    before = path.read_bytes()
    assert tracelens("bucket", path, "-o", path).code == 2
    assert tracelens("bucket", path, "--format", "json", "-o", path).code == 2
    assert path.read_bytes() == before


def test_a_reader_that_leaves(path: Path) -> None:
    """`tracelens sql ... | head -1`: no traceback, no complaint."""
    line = f"'{sys.executable}' cli.py sql '{path}' 'SELECT * FROM event' --format csv --no-cache | head -1; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.stdout.startswith("event_id,")
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "BrokenPipe" not in ran.stderr


def test_a_signal_at_any_moment(path: Path, tmp_path: Path) -> None:
    """A real SIGINT into a running command, at several moments of its life."""
    folder = tmp_path / "work"
    folder.mkdir()
    target = folder / "out.json"
    target.write_text("good")
    codes = []
    for delay in (0.15, 0.5, 0.9):
        command = [sys.executable, str(ROOT / "cli.py"), "info", str(path), "-o", str(target), "--force", "--no-cache"]
        ran = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(folder)})  # fmt: skip
        time.sleep(delay)
        ran.send_signal(signal.SIGINT)
        _, err = ran.communicate(timeout=60)
        codes.append(ran.returncode)
        assert ran.returncode in (0, 130, -signal.SIGINT), (delay, err)
        if ran.returncode == 130:
            assert "Traceback" not in err, (delay, err)
        assert [one.name for one in folder.iterdir()] == ["out.json"]
        content = target.read_text()
        assert content == "good" or content.rstrip().endswith("}")
    assert codes
