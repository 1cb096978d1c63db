"""What every command prints: it fits, it is plain in a pipe, and its records keep the envelope."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tracelens.api import Trace, compare, load
from tracelens.frames import Result
from tracelens.views import bucket, collectives, gaps, info, records, skew, steps
from tracelens.views import compare as comparison
from tracelens.views.terminal import Screen

CAPTURE = next((Path(__file__).parents[1] / "fixtures" / "slow_rank_tp4").glob("*.sqlite"))
Shown = tuple[Result, Callable[..., None]]


@pytest.fixture(scope="module")
def trace() -> Iterator[Trace]:
    with load(str(CAPTURE), use_cache=False) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def answers(trace: Trace) -> dict[str, Shown]:
    found = trace.steps()
    return {
        "info": (trace.info(), info.show),
        "bucket": (trace.buckets(), bucket.show),
        "bucket --kernels": (trace.buckets(kernels=True), bucket.show),
        "steps": (found, steps.show),
        "steps --all": (found, partial(steps.show, every=True)),
        "gaps": (trace.gaps(), gaps.show),
        "gaps --all": (trace.gaps(all=True), gaps.show),
        "collectives": (trace.collectives(), collectives.show),
        "collectives --all": (trace.collectives(all=True), collectives.show),
        "skew": (trace.skew(), skew.show),
        "compare": (compare(trace, trace), comparison.show),
    }


@pytest.mark.parametrize("width", [80, 100])
def test_tables_fit_and_are_plain(answers: dict[str, Shown], width: int) -> None:
    for words, (result, show) in answers.items():
        stream = io.StringIO()
        show(result, Screen(stream, width=width))
        text = stream.getvalue()
        assert text.isascii(), words
        assert "\x1b" not in text, words
        assert max(len(line) for line in text.splitlines()) <= width, words


def test_records_keep_the_envelope_and_the_columns(answers: dict[str, Shown]) -> None:
    for words, (result, _) in answers.items():
        written, lines = io.StringIO(), io.StringIO()
        records.write_json(result, "1", written)
        records.write_csv(result, lines)
        answer: dict[str, Any] = json.loads(written.getvalue(), parse_constant=pytest.fail)
        assert list(answer)[:5] == ["tracelens", "command", "schema", "provenance", "notices"], words
        assert (answer["command"], answer["schema"]) == (words.split()[0], 1)
        heads = [row for row in csv.reader(io.StringIO(lines.getvalue())) if row]
        for name, frame in result.tables.items():
            assert [list(row) for row in answer[name][:1]] == [frame.columns][: frame.height]
            assert frame.columns in heads, words


def test_every_result_draws_and_shows_itself(trace: Trace, answers: dict[str, Shown]) -> None:
    for words, (result, _) in answers.items():
        assert "<table>" in result._repr_html_()
        if words != "info":
            assert len(result.figure().data) > 0, words
    assert len(trace.report().figure().data) > 0
    assert "tp4.sqlite" in trace._repr_html_()
