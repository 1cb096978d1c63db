"""The command line itself: help for everything, one envelope, exit codes, and words that do not fit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import FORMATS, WITHOUT_TRACE, WRITE_FILES, registered, words
from tests.running import Ran, refused, tracelens
from tracelens import __version__
from tracelens.cli.app import COMMANDS
from tracelens.simulate import Diagnostic, Kernel, Range, write_events

ROOT = Path(__file__).parents[2]
CAPTURE = ROOT / "tests" / "fixtures" / "decode_tp2" / "tp2.sqlite"
#: Every command there is.
ALL = [
    "info", "bucket", "steps", "gaps", "collectives", "skew", "compare", "predict", "scaling", "sweep", "ladder", "rules",
    "report", "export", "sql", "simulate", "demo", "capture", "cache",
]  # fmt: skip
SHARED = [
    "--ranks", "--steps", "--phase", "--time", "--skip", "--step-marker", "--steps-by", "--rank-map", "--expect-ranks", "--rules",
    "--engine", "--model", "--attribution", "--clock", "--expect-ms", "--format", "--output", "--force", "--strict", "--no-cache",
    "--loader", "--threads", "--memory",
]  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [Kernel("gemm", 1_000, 3_000, launch=(100, 200)), Kernel("rms_norm", 4_000, 5_000), Range("step", 1, 500)]
    return write_events(rows, tmp_path_factory.mktemp("cli") / "x.sqlite")


def test_the_help_lists_every_command() -> None:
    ran = tracelens("--help")
    assert ran.code == 0
    listed = re.findall(r"^  ([a-z]+)  ", ran.out[ran.out.index("Commands:") :], re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)
    assert set(listed) == set(ALL)


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help(command: str) -> None:
    ran = tracelens(command, "--help")
    assert ran.code == 0, ran.err
    assert ran.err == ""
    assert ran.out.startswith(f"Usage: tracelens {command}")
    purpose = ran.out.splitlines()[2].strip()
    assert len(purpose) > 20
    options = re.findall(r"^  (?:-\w, )?(--[a-z-]+)(.*)$", ran.out, re.MULTILINE)
    undocumented = [name for name, rest in options if not rest.strip() and not _wrapped(ran.out, name)]
    assert not undocumented
    if command in registered() and command != "ladder":
        lacking = {option for option in SHARED if option not in ran.out}
        assert lacking <= ({"--format"} if command in WRITE_FILES else set())


def _wrapped(text: str, option: str) -> bool:
    """Whether an option's help stands on the line below it."""
    lines = text.splitlines()
    place = next(number for number, line in enumerate(lines) if option in line)
    return place + 1 < len(lines) and lines[place + 1].startswith(" " * 20)


def test_commands_and_tests_know_each_other() -> None:
    assert set(COMMANDS) == set(registered()) | (WITHOUT_TRACE & set(COMMANDS))


def test_the_version() -> None:
    assert tracelens("--version").out == f"tracelens {__version__}\n"


@pytest.mark.parametrize(
    "line",
    [
        ["no-such-command"],
        ["bucket", "--no-such-option"],
        ["bucket", "--ranks"],
        ["bucket", "--attribution", "last"],
        ["bucket", "--format", "xml"],
        ["bucket", "--threads", "0"],
        ["bucket", "--threads", "many"],
        ["bucket", "--expect-ranks", "-1"],
        ["bucket", "--memory", "lots"],
        ["bucket", "--memory", "1KB"],
        ["bucket", "--steps", "9-2"],
        ["bucket", "--time", "soon"],
        ["bucket", "--rank-map", "0"],
        ["bucket", "--rules", "no-such-map"],
        ["bucket", "-o", "x.unknown"],
        ["bucket", "-o", "no/such/folder/x.json"],
        ["bucket", "-o", "x.json", "--format", "table"],
        ["bucket", "--format", "parquet"],
        ["sql"],
        ["compare", "{path}"],
        ["predict", "--tp", "0"],
        ["bucket", "\ud800"],
    ],
)
def test_words_that_do_not_fit_are_refused_in_three_lines(line: list[str], path: Path, tmp_path: Path) -> None:
    given = [word.replace("{path}", str(path)) for word in line]
    if line[0] == "bucket":
        given.insert(1, str(path))
    refused(tracelens(*given, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_nothing_at_all_prints_the_help() -> None:
    ran = tracelens()
    assert ran.code == 2
    assert "Commands:" in ran.out + ran.err


@pytest.mark.parametrize("command", registered())
def test_every_json_answer_has_one_envelope(command: str, tmp_path: Path) -> None:
    if command in WRITE_FILES:
        pytest.skip("writes a file of its own format")
    ran = tracelens(*words(command, CAPTURE, tmp_path), "--format", "json")
    assert ran.code in (0, 1), ran.err
    answer = ran.json
    assert list(answer)[:5] == ["tracelens", "command", "schema", "provenance", "notices"]
    assert (answer["tracelens"], answer["command"], answer["schema"]) == (__version__, command, 1)
    for notice in answer["notices"]:
        assert list(notice) == ["code", "severity", "message", "hint", "count"]
        assert notice["severity"] in ("info", "warning")
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", notice["code"])
        assert notice["count"] is None or isinstance(notice["count"], int)
        assert "\n" not in notice["message"]
    provenance = answer["provenance"]
    if command not in ("ladder", "compare", "scaling"):
        assert provenance["exports"] == [str(CAPTURE)]
        assert re.fullmatch(r"[0-9a-f]{64}", provenance["rules_sha256"])
        assert {"nsys_versions", "ranks", "rules", "attribution"} <= set(provenance)
    for name, rows in list(answer.items())[5:]:
        assert isinstance(rows, list), name
        assert len({tuple(row) for row in rows}) <= 1, name
        for column, value in (pair for row in rows[:50] for pair in row.items()):
            if column.endswith(("_ns", "_count", "_bytes")) and command != "sql":
                assert value is None or isinstance(value, int), (name, column, value)


@pytest.mark.parametrize("command", ["bucket", "info", "sql"])
def test_formats_say_the_same(command: str, tmp_path: Path, path: Path) -> None:
    """The columns of JSON, CSV and Parquet, and a table for people that holds the same rows."""
    import polars as pl

    answer = tracelens(*words(command, path), "--format", "json").json
    first = list(answer)[5]
    assert tracelens(*words(command, path), "-o", tmp_path / "x.csv").code == 0
    assert tracelens(*words(command, path), "-o", tmp_path / "x.parquet").code == 0
    columns = list(answer[first][0])
    assert (tmp_path / "x.csv").read_text().splitlines()[0] == ",".join(columns)
    table = pl.read_parquet(tmp_path / "x.parquet")
    assert table.columns == columns
    assert table.height == len(answer[first])
    for form in FORMATS:
        assert tracelens(*words(command, path), "--format", form).code == 0


def test_strict_makes_a_warning_a_failure(path: Path, tmp_path: Path) -> None:
    assert tracelens("bucket", path, "--strict").code == 0
    loud = write_events([Kernel("gemm", 1, 9), Diagnostic("events lost", severity=2)], tmp_path / "x.sqlite")
    ran = tracelens("bucket", loud, "--strict", "--format", "json")
    assert ran.code == 1
    assert ran.json["buckets"]


def test_notices_go_to_stderr_and_into_json(tmp_path: Path) -> None:
    loud = write_events([Kernel("gemm", 1, 9), Diagnostic("events lost", severity=2)], tmp_path / "x.sqlite")
    ran = tracelens("bucket", loud)
    assert "warning: " in ran.err
    assert "warning: " not in ran.out
    assert tracelens("bucket", loud, "--format", "json").err == ""
    csv = tracelens("bucket", loud, "--format", "csv")
    assert "warning: " in csv.err
    assert csv.out.startswith("rank,bucket,")


def test_a_bug_shows_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tracelens.api

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("this is not an error of the user's")

    monkeypatch.setattr(tracelens.api.Trace, "buckets", broken)
    ran = run_raw("bucket", path)
    assert ran.code == 70
    assert "Traceback" in ran.err
    assert "please report it" in ran.err


def test_memory_that_does_not_suffice_is_a_refusal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tracelens.api

    class OutOfMemoryException(Exception):  # noqa: N818 - DuckDB's name
        pass

    def hungry(*_: Any, **__: Any) -> None:
        raise OutOfMemoryException("could not allocate block")

    monkeypatch.setattr(tracelens.api.Trace, "buckets", hungry)
    assert "not enough memory" in refused(run_raw("bucket", path))


def run_raw(*line: str | Path) -> Ran:
    return tracelens(*line)


def test_colour_is_for_terminals(path: Path) -> None:
    assert "\x1b[" not in tracelens("bucket", path).out


def test_it_starts_quickly() -> None:
    """What `--help` imports; the time itself depends on the machine."""
    code = "import sys; from tracelens.cli import run; run(['bucket', '--help']); print([m for m in ('duckdb', 'polars', 'pyarrow', 'numpy', 'rich.table') if m in sys.modules], file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stderr.strip() == "[]"


def test_the_checkouts_runner_is_the_same_command(path: Path) -> None:
    ran = subprocess.run([sys.executable, str(ROOT / "cli.py"), "bucket", str(path), "--format", "json"], capture_output=True, text=True, check=True)  # fmt: skip
    assert json.loads(ran.stdout)["buckets"]
