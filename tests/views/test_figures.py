"""Figures hold the tables' numbers, and a name from a capture cannot become markup in one."""

from __future__ import annotations

import polars as pl
import pytest

from tests.views.frames_tp8 import bucket_result
from tests.views.report_tp8 import HOSTILE, ReportResult, report_result
from tracelens.views import figures


def test_budget_bars_are_the_elapsed_times() -> None:
    figure = figures.of(bucket_result(3))
    bars = {trace.name: trace for trace in figure.data}
    assert list(bars) == ["gemm", "collective", "attn", "norm", "idle"]
    assert list(bars["gemm"].x) == [40.0, 40.0, 43.2]
    assert list(bars["gemm"].y) == ["rank 0", "rank 1", "rank 2"]
    assert figure.layout.xaxis.title.text == "ms"


def test_steps_are_points_by_phase() -> None:
    figure = figures.step_latency(report_result(steps=40)["step_points"])
    assert [(trace.name, len(trace.x)) for trace in figure.data] == [("prefill", 2), ("decode", 38)]


def test_heat_map_has_a_row_a_rank() -> None:
    figure = figures.waiting(report_result(steps=40)["position_waits"], "position")
    assert list(figure.data[0].y) == [f"rank {rank}" for rank in range(8)]
    assert len(figure.data[0].z[0]) == 33


def test_gaps_split_and_operations() -> None:
    report = report_result(steps=40)
    assert [trace.name for trace in figures.gap_causes(report["causes"]).data][:2] == ["in graph", "host late"]
    assert [trace.name for trace in figures.collective_split(report["collective_split"]).data] == [
        "wait",
        "transfer",
        "hidden",
    ]
    assert [list(trace.x) for trace in figures.operations(report["operations"]).data] == [[25.1, 31.0], [10.4, 30.0]]


def test_changes_are_sorted_by_size_and_escaped() -> None:
    frame = pl.DataFrame(
        {
            "name": ["a", HOSTILE],
            "delta_ns": [500, -248_800],
            "ci_low_ns": [-900, None],
            "ci_high_ns": [1_900, None],
            "significant": [False, None],
        }
    )
    figure = figures.changes(frame)
    assert list(figure.data[0].x) == [-248.8, 0.5]
    assert "<" not in figure.data[0].y[0]


def test_scaling_and_prediction() -> None:
    points = pl.DataFrame({"tp": [1, 8], "step_us": [4481.0, None], "predicted_us": [4481.0, 1200.0]})
    assert [trace.name for trace in figures.scaling(points).data] == ["measured", "predicted"]
    prediction = pl.DataFrame(
        {"tp": [1, 8, 1, 8], "lambda_us": [2.0, 2.0, 5.0, 5.0], "step_us": [4481.0, 700.0, 4481.0, 900.0]}
    )
    assert [list(trace.y) for trace in figures.predicted(prediction).data] == [[4481.0, 700.0], [4481.0, 900.0]]


def test_no_figure_for_a_result_without_one() -> None:
    with pytest.raises(LookupError, match="no figure"):
        figures.of(ReportResult({}))
