"""What every command prints: it fits, it is plain in a pipe, and its records keep the envelope."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.running import tracelens
from tracelens.api import compare, load

CAPTURE = next((Path(__file__).parents[1] / "fixtures" / "slow_rank_tp4").glob("*.sqlite"))
COMMANDS = [
    ["info"],
    ["bucket"],
    ["bucket", "--kernels"],
    ["steps"],
    ["steps", "--all"],
    ["gaps"],
    ["gaps", "--all"],
    ["collectives"],
    ["skew"],
]


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_tables_fit_and_are_plain(words: list[str], width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = tracelens(*words, str(CAPTURE))
    assert ran.code == 0, ran.err
    assert ran.out.isascii()
    assert "\x1b" not in ran.out
    assert max(len(line) for line in ran.out.splitlines()) <= width


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_json_keeps_the_envelope_and_csv_the_columns(words: list[str]) -> None:
    answer = json.loads(tracelens(*words, str(CAPTURE), "--format", "json").out, parse_constant=pytest.fail)
    assert list(answer)[:5] == ["tracelens", "command", "schema", "provenance", "notices"]
    assert (answer["command"], answer["schema"]) == (words[0], 1)
    text = tracelens(*words, str(CAPTURE), "--format", "csv").out
    tables = {name: rows for name, rows in answer.items() if isinstance(rows, list) and name != "notices" and rows}
    parts = text.split("\n\n") if "\n\n" in text else [text]
    heads = [next(csv.reader(io.StringIO(part.removeprefix(f"# {part[2:].splitlines()[0]}\n")))) for part in parts]
    for rows in tables.values():
        assert list(rows[0]) in heads


def test_every_result_draws_and_shows_itself() -> None:
    with load(str(CAPTURE), use_cache=False) as trace:
        results = [trace.buckets(), trace.steps(), trace.gaps(), trace.collectives(), trace.skew(), trace.report()]
        results.append(compare(trace, trace))
        for result in results:
            assert len(result.figure().data) > 0, result.command
            assert "<table>" in result._repr_html_()
        assert "tp4.sqlite" in trace._repr_html_()
