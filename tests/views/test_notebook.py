"""What a notebook shows: escaped, short, and complete in what it says was left out."""

from __future__ import annotations

from tests.views.frames_tp8 import bucket_result
from tests.views.report_tp8 import HOSTILE, report_result
from tracelens.views.notebook import result_html, trace_html


def test_result_shows_sentence_units_and_the_rest() -> None:
    page = result_html(bucket_result(8), rows=5)
    assert "<p class=lead>Rank 2 computes 1.08 times as long as its peers.</p>" in page
    assert '<th class="n" title="exclusive time">elapsed (ms)</th>' in page
    assert "35 more rows" in page
    assert "warning: no step marker fits (3) Try --step-marker REGEX" in page


def test_hostile_names_are_escaped() -> None:
    page = result_html(report_result(steps=20))
    assert "<img" not in page
    assert "\x1b" not in page
    assert "&lt;/script&gt;" in page
    assert "<script" not in trace_html([HOSTILE], [0], [("marker", HOSTILE)], ())


def test_a_result_shows_itself_and_draws_itself() -> None:
    result = bucket_result(2)
    assert result._repr_html_() == result_html(result)
    assert [trace.name for trace in result.figure().data] == ["gemm", "collective", "attn", "norm", "idle"]
