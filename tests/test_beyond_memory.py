"""Memory that holds no array of all events: each of them lies in a file, the answers are the same to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import commands
from tracelens import array_room, loading

SPILLED = "MB of arrays lay in temporary files, to keep within the memory allowed"
CAPTURE = Path(__file__).parent / "fixtures" / "slow_rank_tp4"


def answer(command: str, capture: Path, out: Path) -> tuple[dict[str, bytes], str]:
    """(stdout and the files that a command writes, its stderr)."""
    out.mkdir(exist_ok=True)
    form = () if command in commands.WRITE_FILES else ("--format", "json")
    ran = commands.run(command, capture, out, *form)
    assert ran.code == 0, ran.err
    return {path.name: path.read_bytes() for path in out.iterdir()} | {"": ran.out.encode()}, ran.err


@pytest.mark.parametrize(
    "command", ["steps", "gaps", "collectives", "skew", "compare", "scaling", "ladder", "report", "export"]
)
def test_arrays_in_files_change_no_answer(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """|start|end|name|...| of every event mapped from files; the user is told on stderr, and nowhere else."""
    held, before = answer(command, CAPTURE, tmp_path / "out")
    monkeypatch.setattr(loading, "_ARRAYS_SHARE", 0)
    monkeypatch.setattr(array_room, "_SMALL_BYTES", 1)
    mapped, told = answer(command, CAPTURE, tmp_path / "out")
    assert mapped == held
    assert SPILLED not in before
    assert SPILLED in told
    assert [line for line in told.splitlines() if line in before.splitlines()] == before.splitlines()
