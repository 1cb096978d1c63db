"""The residual's parts close, whatever the capture shows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracelens.analyses.residual import (
    Prediction,
    TracedCollective,
    TracedStep,
    attribute,
    implementation_switches,
    part_name,
    size_label,
)

names = st.sampled_from(["gemm", "attn", "norm", "host_late", "in_graph", "dependency"])
times = st.floats(0, 1e7)


@st.composite
def captures(draw: st.DrawFn, tp: int) -> TracedStep:
    groups = draw(
        st.lists(
            st.tuples(st.sampled_from(["all_reduce", "all_gather"]), times, times, st.integers(1, 200)), max_size=4
        )
    )
    collectives = [
        TracedCollective(
            operation,
            f"kind{number}",
            draw(st.sampled_from([None, 100, 8192, 1 << 20])),
            calls,
            wait,
            transfer,
            transfer,
        )
        for number, (operation, wait, transfer, calls) in enumerate(groups)
    ]
    return TracedStep(
        tp,
        draw(times),
        10,
        1,
        draw(st.dictionaries(names, times)),
        draw(st.dictionaries(names, times)),
        0.0,
        collectives,
    )


@given(captures(8), st.none() | captures(1), times, times, st.floats(0, 1e5), st.floats(0, 1e5))
def test_the_parts_sum_to_the_residual(
    traced: TracedStep, one: TracedStep | None, step_ns: float, t1_ns: float, lambda_ns: float, bandwidth_ns: float
) -> None:
    predicted = Prediction(t1_ns, lambda_ns, bandwidth_ns, 64, t1_ns / 8 + 64 * lambda_ns + bandwidth_ns)
    parts = attribute(step_ns, predicted, traced, one)
    assert sum(parts.values()) == round(step_ns) - round(predicted.step_ns)
    assert list(parts)[-1] == "rest"


@given(captures(8), captures(1))
def test_nothing_is_left_over_when_the_capture_is_the_measurement(traced: TracedStep, one: TracedStep) -> None:
    """Parts that sum to the captures' own steps explain everything: rest is rounding alone."""

    def closed(step: TracedStep) -> TracedStep:
        total = sum(step.compute_ns.values()) + sum(step.gaps_ns.values())
        total += sum(group.wait_ns + group.transfer_ns for group in step.collectives)
        return TracedStep(step.tp, total, 10, 1, step.compute_ns, step.gaps_ns, collectives=step.collectives)

    traced, one = closed(traced), closed(TracedStep(1, 0, 10, 1, one.compute_ns, one.gaps_ns))
    predicted = Prediction(one.step_ns, 5000, 1000, 64, one.step_ns / 8 + 64 * 5000 + 1000)
    parts = attribute(traced.step_ns, predicted, traced, one)
    if traced.collectives:
        assert abs(parts["rest"]) <= len(parts)


def test_a_residual_by_hand() -> None:
    """TP 2, predicted 1,000 + 2 x 5 x 64 ns less; 64 layer calls of 6 ns, one more for the embedding, a gather of 9 ns.

    measured 1,500 = compute 900 + gaps 80 + wait 100 + all-reduces 65 x 6 + gather 9 + 21 that nothing explains
    predicted 1,320 = t(1)/2 1,000 + 64 x 5
    """
    groups = [
        TracedCollective("all_reduce", "nccl", 8192, 65, 100, 390, 6),
        TracedCollective("all_gather", "nccl", None, 1, 0, 9, 9),
    ]
    traced = TracedStep(2, 1479, 10, 1, {"gemm": 900}, {"host_late": 80}, collectives=groups)
    one = TracedStep(1, 2000, 10, 1, {"gemm": 1700}, {"host_late": 60, "in_graph": 240})
    parts = attribute(1500, Prediction(2000, 5, 0, 64, 1320), traced, one)
    assert parts == {
        "wait": 100,
        "transfer_nccl_8KiB": 64,
        "extra_collectives": 15,
        "gap_host_late": 50,
        "gap_in_graph": -120,
        "compute_gemm": 50,
        "rest": 21,
    }


def test_labels_and_names() -> None:
    assert [size_label(size) for size in (8192, 1 << 20, 100, None)] == ["8KiB", "1MiB", "100B", "unknown_size"]
    assert part_name("transfer_custom_1stage_unknown_size") == "transfer of custom_1stage above the reference"
    assert part_name("transfer_nccl_256KiB") == "transfer of nccl at 256KiB above the reference"
    assert part_name("gap_host_late") == "gaps (host_late)"
    assert part_name("compute_gemm") == "gemm slower than 1/p"
    assert part_name("compute_gemm", -135_000) == "gemm faster than 1/p"
    assert part_name("transfer_nccl_256KiB", -1) == "transfer of nccl at 256KiB below the reference"


def test_no_switch_no_sentence() -> None:
    same = [
        TracedStep(tp, 1, 1, 1, collectives=[TracedCollective("all_reduce", "nccl", 1, 1, 0, 1, 1)]) for tp in (2, 4)
    ]
    assert implementation_switches([*same, TracedStep(8, 1, 1, 1)]) == []
