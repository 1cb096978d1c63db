"""A measured sweep: points, references, fit, residual parts. Captures are literal mean steps here."""

from __future__ import annotations

import polars as pl
import pytest

from tracelens.analyses.harness_results import (
    MEAN_GENERATION,
    MEAN_GENERATION_PER_TOKEN,
    MEDIAN_DECODE_STEP,
    Measurement,
)
from tracelens.analyses.residual import TracedCollective, TracedStep
from tracelens.analyses.scaling import POINTS, ScalingResult, scaling
from tracelens.analyses.scaling_points import GIVEN, Question, SweepPoint, literal_us
from tracelens.analyses.scaling_presets import ModelShape, model_shape
from tracelens.errors import NotComparableError, NotIdentifiableError, UsageError

SHAPE = model_shape("llama-3-8b")
T1_US = 4480.552
SIZES = (1, 2, 4, 8)


def ideal_us(tp: int, lambda_us: float = 5.0, tokens: int = 1) -> float:
    bandwidth = 64 * 2 * (tp - 1) / tp * tokens * 8192 / 900e9 * 1e6
    return T1_US / tp + (64 * lambda_us + bandwidth if tp > 1 else 0)


def sglang(tp: int, step_us: float, batch: int = 1) -> Measurement:
    return Measurement(tp, MEDIAN_DECODE_STEP, step_us, batch / step_us * 1e6, batch, 128, 128, source=f"tp{tp}.jsonl")


def vllm(tp: int, generation_us: float) -> Measurement:
    return Measurement(tp, MEAN_GENERATION, generation_us, source=f"tp{tp}.json")


def capture(
    tp: int,
    *,
    wait_us: float = 0,
    lambda_us: float = 5,
    implementation: str = "custom_1stage",
    tokens: int = 1,
    calls: int = 64,
    gather_us: float = 0,
    host_us: float = 0,
    gemm_us: float = 0,
) -> TracedStep:
    """A step of t(1)/p: 4,000 us of GEMM and 400 of attention, 80.552 of gaps in graphs, all over p, and extras."""
    compute = {"attn": 400e3 / tp, "gemm": 4000e3 / tp + gemm_us * 1e3}
    gaps = {"in_graph": 80.552e3 / tp} | ({"host_late": host_us * 1e3} if host_us else {})
    collectives = []
    if tp > 1:
        transfer = calls * lambda_us * 1e3
        collectives = [
            TracedCollective(
                "all_reduce", implementation, tokens * 8192, calls, wait_us * 1e3, transfer, lambda_us * 1e3
            )
        ]
    if gather_us:
        collectives.append(TracedCollective("all_gather", "nccl", None, 1, 0, gather_us * 1e3, gather_us * 1e3))
    step_ns = sum(compute.values()) + sum(gaps.values())
    step_ns += sum(one.wait_ns + one.transfer_ns for one in collectives)
    skew_ns, late_host_ns = wait_us * tp / (tp - 1) * 1e3 if tp > 1 else None, host_us * 1e3
    return TracedStep(tp, step_ns, 200, tokens, compute, gaps, skew_ns, late_host_ns, collectives)


def row(result: ScalingResult, tp: int) -> dict[str, object]:
    return result.points.row(by_predicate=pl.col("tp") == tp, named=True)


def fit_row(result: ScalingResult, parameter: str) -> dict[str, object]:
    return result.fit.row(by_predicate=pl.col("parameter") == parameter, named=True)


def part_columns(result: ScalingResult) -> list[str]:
    return [name for name in result.points.columns if name not in POINTS.names]


def test_a_clean_sweep() -> None:
    """Speed-up, efficiency and throughput per size; lambda 5 us from every side; no residual."""
    result = scaling([SweepPoint(tp, [sglang(tp, ideal_us(tp))]) for tp in SIZES], Question(SHAPE))
    assert result.points.columns == POINTS.names
    assert result.points["statistic"].to_list() == [MEDIAN_DECODE_STEP] * 4
    eight = row(result, 8)
    assert eight["speedup"] == pytest.approx(5.085, abs=0.001)
    assert eight["efficiency"] == pytest.approx(0.6357, abs=0.0001)
    assert eight["tokens_per_s"] == pytest.approx(1e6 / ideal_us(8))
    assert eight["reference_source"] == "fitted without TP 8"
    assert eight["reference_lambda_us"] == pytest.approx(5)
    assert eight["residual_us"] == pytest.approx(0, abs=1e-6)
    assert fit_row(result, "lambda_us")["value"] == pytest.approx(5)
    assert fit_row(result, "lambda_us")["accepted"]
    assert fit_row(result, "lambda_at_largest_us")["value"] == pytest.approx(5)
    assert fit_row(result, "t1_us")["value"] == pytest.approx(T1_US)
    assert fit_row(result, "crossing_tp")["value"] == pytest.approx(T1_US / 320)


def test_one_slow_rank_at_tp8_is_waiting_not_lambda() -> None:
    """True lambda 5, 300 us of waiting at TP 8 only: the fitted lambda is 9.7, the residual says waiting."""
    points = [
        SweepPoint(tp, [sglang(tp, ideal_us(tp) + (300 if tp == 8 else 0))], capture(tp, wait_us=300 if tp == 8 else 0))
        for tp in SIZES
    ]
    result = scaling(points, Question(SHAPE))
    largest = fit_row(result, "lambda_at_largest_us")
    assert largest["value"] == pytest.approx(9.69, abs=0.01)
    assert not largest["accepted"]
    assert "one lambda does not fit all" in str(largest["reason"])
    eight = row(result, 8)
    assert eight["reference_source"] == "median transfer traced at TP 2"
    assert eight["reference_lambda_us"] == 5
    assert eight["residual_us"] == pytest.approx(300, abs=0.01)
    assert eight["wait_us"] == 300
    assert max(part_columns(result), key=lambda name: abs(float(str(eight[name])))) == "wait_us"
    assert "TP 8 takes 300 us more than predicted: waiting for late ranks +300.0 us" in " ".join(result.sentences)
    assert row(result, 4)["residual_us"] == pytest.approx(0, abs=0.01)
    assert eight["all_reduce_us"] == pytest.approx(620)
    assert eight["all_reduce_frac"] == pytest.approx(620 / 1180.069, rel=1e-4)


def test_without_captures_the_point_is_left_out_of_its_own_reference() -> None:
    points = [SweepPoint(tp, [sglang(tp, ideal_us(tp) + (300 if tp == 8 else 0))]) for tp in SIZES]
    eight = row(scaling(points, Question(SHAPE)), 8)
    assert eight["reference_source"] == "fitted without TP 8"
    assert eight["residual_us"] == pytest.approx(300, abs=1e-6)


def test_a_capture_that_is_slower_than_the_benchmark_is_told() -> None:
    """The profiler adds 20 %: it stands in the residual as unexplained, and a notice says so."""
    points = [SweepPoint(tp, [sglang(tp, capture(tp).step_ns / 1.2e3)], capture(tp)) for tp in SIZES]
    result = scaling(points, Question(SHAPE))
    assert "capture-differs" in {notice.code for notice in result.notices}
    assert row(result, 8)["rest_us"] == pytest.approx(-880.069 * (1 - 1 / 1.2) + T1_US / 8 * (1 - 1 / 1.2), abs=0.1)


def test_a_given_reference_goes_first() -> None:
    points = [SweepPoint(tp, [sglang(tp, ideal_us(tp))], capture(tp)) for tp in SIZES]
    eight = row(scaling(points, Question(SHAPE, lambda_us=2)), 8)
    assert (eight["reference_lambda_us"], eight["reference_source"]) == (2, "given")
    assert eight["residual_us"] == pytest.approx(64 * 3, abs=0.01)


def test_an_implementation_switch_at_batch_32_is_named_with_its_size() -> None:
    """256 KiB a message: custom at TP 2 and 4, NCCL with 22 us at TP 8."""
    points = [
        SweepPoint(
            tp,
            [],
            capture(
                tp, tokens=32, lambda_us=22 if tp == 8 else 5, implementation="nccl" if tp == 8 else "custom_1stage"
            ),
        )
        for tp in SIZES
    ]
    result = scaling(points, Question(SHAPE, tokens=32))
    eight = row(result, 8)
    bandwidth = 64 * 1.75 * 32 * 8192 / 900e9 * 1e6
    assert eight["transfer_nccl_256KiB_us"] == pytest.approx(64 * 17 - bandwidth, abs=0.01)
    text = " ".join(result.sentences)
    assert "custom_1stage at TP 4 and nccl at TP 8 at 256.0 KiB a message (32 tokens)" in text
    assert "transfer of nccl at 256KiB above the reference" in text
    lambda_fit = fit_row(result, "lambda_us")
    assert not lambda_fit["accepted"]
    assert str(lambda_fit["reason"]).startswith("constant lambda rejected")
    assert "constant-lambda-rejected" in {notice.code for notice in result.notices}
    assert [fit_row(result, f"transfer_at_tp{tp}_us")["value"] for tp in (2, 4, 8)] == [5, 5, 22]


def test_each_kind_of_excess_lands_in_its_part() -> None:
    """At TP 8: 65 calls (one for the embedding) of 5 us, a 12 us gather, 40 us of host gaps, 25 us of slow GEMM."""
    points = [
        SweepPoint(1, [], capture(1)),
        SweepPoint(2, [], capture(2)),
        SweepPoint(8, [], capture(8, calls=65, gather_us=12, host_us=40, gemm_us=25)),
    ]
    result = scaling(points, Question(SHAPE, lambda_us=5))
    eight = row(result, 8)
    bandwidth = 64 * 1.75 * 8192 / 900e9 * 1e6
    expected = {
        "wait_us": 0,
        "transfer_custom_1stage_8KiB_us": -bandwidth,
        "extra_collectives_us": 17,
        "gap_host_late_us": 40,
        "gap_in_graph_us": 0,
        "compute_attn_us": 0,
        "compute_gemm_us": 25,
        "rest_us": 0,
    }
    assert part_columns(result) == list(expected)
    for name, value in expected.items():
        assert eight[name] == pytest.approx(value, abs=0.002), name
    assert sum(float(str(eight[name])) for name in expected) == pytest.approx(
        float(str(eight["residual_us"])), abs=1e-9
    )


def test_without_a_capture_at_tp1_compute_is_one_part() -> None:
    points = [SweepPoint(2, [], capture(2)), SweepPoint(8, [], capture(8, gemm_us=25))]
    result = scaling(points, Question(SHAPE, bytes_t1_us=T1_US))
    eight = row(result, 8)
    assert [name for name in part_columns(result) if name.startswith("compute")] == ["compute_and_kv_us"]
    # The gaps of TP 1 are in t(1): they leave compute by as much as they enter the gaps.
    assert eight["compute_and_kv_us"] == pytest.approx(25 - 80.552 / 8, abs=0.002)
    assert eight["gap_in_graph_us"] == pytest.approx(80.552 / 8, abs=0.002)
    assert "t1-from-bytes" in {notice.code for notice in result.notices}


def test_two_statistics_stand_apart() -> None:
    """vLLM's generations and SGLang's decode steps in one question: two groups, no ratio across, the fit labelled."""
    points = [SweepPoint(tp, [vllm(tp, 130 * ideal_us(tp)), sglang(tp, ideal_us(tp))]) for tp in SIZES]
    result = scaling(points, Question(SHAPE))
    by_statistic = {key[0]: frame for key, frame in result.points.group_by("statistic")}
    assert set(by_statistic) == {MEAN_GENERATION, MEDIAN_DECODE_STEP}
    for frame in by_statistic.values():
        assert frame.sort("tp")["speedup"].to_list() == pytest.approx([T1_US / ideal_us(tp) for tp in SIZES])
    assert by_statistic[MEAN_GENERATION]["predicted_us"].null_count() == 4
    assert by_statistic[MEAN_GENERATION]["residual_us"].null_count() == 4
    assert "statistics-apart" in {notice.code for notice in result.notices}
    assert f"lambda_us[{MEDIAN_DECODE_STEP}]" in result.fit["parameter"].to_list()
    assert not fit_row(result, f"lambda_us[{MEAN_GENERATION}]")["accepted"]


def test_a_ratio_across_statistics_is_refused() -> None:
    points = [SweepPoint(1, [vllm(1, 570_000)]), SweepPoint(8, [sglang(8, 881)])]
    with pytest.raises(NotComparableError, match="no ratio may cross them"):
        scaling(points, Question(SHAPE))


def test_a_ratio_across_batches_is_refused() -> None:
    points = [SweepPoint(1, [sglang(1, 4481)]), SweepPoint(8, [sglang(8, 1300, batch=64)])]
    with pytest.raises(NotComparableError, match="bs=64"):
        scaling(points, Question(SHAPE))


def test_batches_of_one_file_stand_apart() -> None:
    points = [
        SweepPoint(tp, [sglang(tp, ideal_us(tp)), sglang(tp, ideal_us(tp, tokens=64) + 50, batch=64)]) for tp in SIZES
    ]
    labels = scaling(points, Question(SHAPE)).points["statistic"].unique().sort().to_list()
    assert labels == [f"{MEDIAN_DECODE_STEP} bs=1 in=128 out=128", f"{MEDIAN_DECODE_STEP} bs=64 in=128 out=128"]


def test_a_larger_size_that_is_slower_says_so_and_splits() -> None:
    points = [SweepPoint(4, [], capture(4)), SweepPoint(8, [], capture(8, wait_us=900))]
    result = scaling(points, Question(SHAPE, bytes_t1_us=T1_US))
    text = " ".join(result.sentences)
    assert "TP 8 is slower than TP 4" in text
    assert "collectives +900 us, everything else -560 us" in text
    assert row(result, 8)["speedup"] < 1
    assert "baseline-not-tp1" in {notice.code for notice in result.notices}


def test_fixed_cost_that_is_not_communication() -> None:
    """1,000 us of host cost at every p above 1 looks like 20.6 us per all-reduce; the capture shows 5."""
    points = [SweepPoint(tp, [sglang(tp, ideal_us(tp) + (1000 if tp > 1 else 0))], capture(tp)) for tp in SIZES]
    result = scaling(points, Question(SHAPE))
    reason = str(fit_row(result, "lambda_us")["reason"])
    assert reason.startswith("fixed cost that is not communication")
    assert "fixed-cost" in {notice.code for notice in result.notices}


def test_whole_generations_with_an_affine_fit() -> None:
    """The published 7B table: c over 64 all-reduces and 20 tokens is 71.8 us, far above any all-reduce."""
    points = [
        SweepPoint(tp, [Measurement(tp, GIVEN, ms * 1e3)])
        for tp, ms in zip(SIZES, (153.8, 128.6, 107.4, 97.6), strict=True)
    ]
    shape = ModelShape("custom", 32, 4096)
    result = scaling(points, Question(shape, fit="affine", output_tokens=20))
    assert fit_row(result, "a_us")["value"] == pytest.approx(63_847, abs=1)
    assert fit_row(result, "c_us")["value"] == pytest.approx(91_922, abs=1)
    assert fit_row(result, "lambda_equivalent_us")["value"] == pytest.approx(71.8, abs=0.05)
    assert fit_row(result, "a_us")["r2"] == pytest.approx(0.983, abs=0.0005)
    assert row(result, 8)["efficiency"] == pytest.approx(0.197, abs=0.0005)


@pytest.mark.parametrize("fit", ["affine", "model"])
def test_a_published_outlier_gets_no_prediction(fit: str) -> None:
    points = [
        SweepPoint(tp, [Measurement(tp, GIVEN, ms * 1e3)])
        for tp, ms in zip((1, 2, 4), (142.5, 100.4, 207.8), strict=True)
    ]
    with pytest.raises(NotIdentifiableError, match="no prediction"):
        scaling(points, Question(ModelShape("custom", 40, 5120), fit=fit))  # type: ignore[arg-type]
    shown = scaling(points, Question(ModelShape("custom", 40, 5120), fit="none"))
    assert shown.points.height == 3
    assert "fit" not in shown.tables


def test_one_size_alone_is_refused_unless_a_reference_is_given() -> None:
    point = [SweepPoint(8, [sglang(8, 1181)])]
    with pytest.raises(NotIdentifiableError, match="1 distinct TP size"):
        scaling(point, Question(SHAPE, bytes_t1_us=T1_US))
    eight = row(scaling(point, Question(SHAPE, bytes_t1_us=T1_US, lambda_us=5)), 8)
    assert eight["residual_us"] == pytest.approx(300, abs=0.1)


def test_two_sizes_fit_lambda_but_not_t1_as_well() -> None:
    points = [SweepPoint(tp, [sglang(tp, ideal_us(tp))]) for tp in (1, 8)]
    result = scaling(points, Question(SHAPE))
    assert result.fit["parameter"].to_list() == ["lambda_at_largest_us"]
    assert "fit-needs-three" in {notice.code for notice in result.notices}
    assert row(result, 8)["reference_lambda_us"] is None


def test_without_a_shape_there_are_points_only() -> None:
    result = scaling([SweepPoint(tp, [sglang(tp, ideal_us(tp))]) for tp in SIZES], Question())
    assert list(result.tables) == ["points"]
    assert {notice.code for notice in result.notices} == {"no-shape"}


def test_what_if() -> None:
    """100 calls of 20 us brought to 5 us save 1.5 ms; without skew 300 us of the mean over ranks are 343 of the step; without late hosts 40 us."""
    shape = ModelShape("custom", 50, 4096)
    points = [SweepPoint(tp, [], capture(tp, calls=100, lambda_us=20, wait_us=300, host_us=40)) for tp in (2, 4, 8)]
    question = Question(shape, bytes_t1_us=T1_US, what_if=("lambda=5", "no-skew", "no-host-gaps"))
    answers = scaling(points, question).what_if.filter(pl.col("tp") == 8)
    saved = dict(answers.select("change", "saved_us").iter_rows())
    assert saved == pytest.approx({"lambda=5": 1500, "no-skew": 300 * 8 / 7, "no-host-gaps": 40})
    assert (answers["step_us"] - answers["saved_us"]).to_list() == pytest.approx(answers["step_after_us"].to_list())
    with pytest.raises(UsageError, match="no change that can be answered"):
        scaling(points, Question(shape, bytes_t1_us=T1_US, what_if=("faster",)))


def test_statistics_of_unknown_workload_take_the_known_one() -> None:
    measurements = [
        Measurement(1, MEAN_GENERATION_PER_TOKEN, 4481, batch=1),
        Measurement(8, MEAN_GENERATION_PER_TOKEN, 900),
    ]
    result = scaling([SweepPoint(one.tp, [one]) for one in measurements], Question())
    assert result.points["speedup"].to_list() == pytest.approx([1, 4481 / 900])


def test_a_size_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="given twice"):
        scaling([SweepPoint(8, [sglang(8, 881), sglang(8, 882)])], Question(SHAPE))


def test_literal_times() -> None:
    assert literal_us("153.8ms") == 153_800
    assert literal_us("881us") == 881
    assert literal_us("tp8.json") is None
