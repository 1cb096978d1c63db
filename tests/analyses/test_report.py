"""The report's result: every part where the capture gives it, absent with a reason where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from tracelens.analyses.report import report
from tracelens.analyses.steps import steps as find
from tracelens.api import Trace, load
from tracelens.cli import run
from tracelens.views.html import render

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module")
def trace() -> Iterator[Trace]:
    with load(next((FIXTURES / "slow_rank_tp4").glob("*.sqlite")), use_cache=False) as loaded:
        yield loaded


def test_every_table_is_there(trace: Trace) -> None:
    assert set(report(trace).tables) == {
        *("findings", "buckets", "kernels", "step_buckets", "summary", "step_points", "collective_split", "waits"),
        *("verdict", "skew_ranks", "clock", "set_aside", "arrivals", "position_waits"),
        *("operations", "rank_operations", "causes", "edges", "slices", "exports", "ranks", "ledger"),
    }


def test_the_typical_step_is_a_budget_of_its_window(trace: Trace) -> None:
    result = report(trace)
    step = result.provenance["typical_step"]
    steps = find(trace)["steps"].filter(pl.col("step") == step).sort("rank")
    sums = result["step_buckets"].group_by("rank").agg(pl.col("elapsed_ns").sum()).sort("rank")
    assert sums["elapsed_ns"].to_list() == steps["step_ns"].to_list()


def test_drawn_slices_hold_the_busy_time_of_their_step(trace: Trace) -> None:
    result = report(trace)
    typical = result["slices"].filter(pl.col("view") == "typical")
    assert typical["step"].unique().to_list() == [result.provenance["typical_step"]]
    assert typical["start_ns"].min() == 0
    assert set(typical["kind"]) >= {"kernel", "wait", "transfer"}


def test_a_capture_without_waits_still_has_a_budget() -> None:
    with load(next((FIXTURES / "graph_level_tp2").glob("*.sqlite")), use_cache=False) as opaque:
        result = report(opaque)
    assert result["buckets"].height > 0
    assert "arrivals" not in result.tables
    assert any(notice.severity == "warning" for notice in result.notices)


def test_report_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(next((FIXTURES / "decode_tp2").glob("*.sqlite")))
    page = tmp_path / "r.html"
    assert run(["report", source, "-o", str(page), "--no-cache"]) == 0
    assert "The report:" in capsys.readouterr().out
    assert page.read_text().startswith("<!doctype html>")
    assert run(["report", source, "-o", str(page)]) == 2
    assert run(["report", source, "-o", str(page), "--force", "--compare", source]) == 0
    assert "comparison" in page.read_text()


def test_scaling_closes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = ["--tp=1=4481us", "--tp=2=2500us", "--tp=4=1500us", "--tp=8=1000us"]
    scaled = tmp_path / "scaling.json"
    assert run(["scaling", *points, "--model-preset", "llama-3-8b", "-o", str(scaled)]) == 0, capsys.readouterr().err
    source = str(next((FIXTURES / "decode_tp2").glob("*.sqlite")))
    page = tmp_path / "r.html"
    assert run(["report", source, "-o", str(page), "--scaling", str(scaled), "--no-cache"]) == 0
    assert "scaling_points" in page.read_text()
    (tmp_path / "odd.json").write_text('{"command": "scaling"}')
    assert run(["report", source, "-o", str(page), "--force", "--scaling", str(tmp_path / "odd.json")]) == 2
    assert "is not what tracelens scaling writes" in capsys.readouterr().err


def test_page_is_the_same_bytes_whatever_the_threads() -> None:
    pages = []
    for threads in (1, 4):
        with load(next((FIXTURES / "slow_rank_tp4").glob("*.sqlite")), use_cache=False, threads=threads) as loaded:
            pages.append(render(loaded.report(), version="1"))
    assert pages[0] == pages[1]
