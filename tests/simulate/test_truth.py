"""Truth agrees with itself, with naive sums over the rows, and with what was planted."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.simulate import CaptureSpec, Costlier, LostCall, LostRun, Slow, Stretch, Truth, simulate
from tracelens.simulate.observed import observed_rows
from tracelens.simulate.truth import CAUSES

SPECS = st.builds(
    CaptureSpec,
    seed=st.integers(0, 99),
    tp=st.integers(1, 4),
    dp=st.integers(1, 2),
    layers=st.integers(1, 3),
    steps=st.integers(2, 6),
    launch=st.sampled_from(["graph", "piecewise", "eager"]),
    graph_capture=st.sampled_from(["node", "graph"]),
    rungs=st.sampled_from([(), (4, 16)]),
    requests=st.integers(1, 2),
    prefill_first=st.booleans(),
    side_stream=st.sampled_from(["", "compute", "collective"]),
    pdl_ns=st.sampled_from([0, 800]),
    host_ahead=st.booleans(),
    input_stream=st.sampled_from(["main", "copy"]),
    lost_head=st.sampled_from([0, 7, 70]),
    lost_tail=st.sampled_from([0, 5]),
    lost_launches=st.sampled_from([0, 9]),
    lost_runs=st.sampled_from([(), (LostRun(0, 0.5, 10),)]),
)


def naive_union(start: np.ndarray, end: np.ndarray, low: int, high: int) -> int:
    """Length of the union of [start, end) within [low, high), one interval at a time."""
    covered, reach = 0, low
    for first, last in sorted(zip(start.tolist(), end.tolist(), strict=True)):
        first, last = max(first, reach), min(last, high)
        if last > first:
            covered += last - first
            reach = last
        reach = max(reach, min(last, high))
    return covered


@settings(max_examples=60, deadline=None)
@given(SPECS)
def test_time_is_conserved(spec: CaptureSpec) -> None:
    """busy + gaps = window on every rank and step, and over the whole span."""
    capture = simulate(spec)
    truth = capture.truth
    steps = truth.steps
    gaps = sum(steps.gap_ns[cause] for cause in CAUSES)
    np.testing.assert_array_equal(steps.busy_ns + gaps, steps.step_ns)
    total = sum(truth.gap_total_ns[cause] for cause in CAUSES)
    np.testing.assert_array_equal(truth.busy_ns + total, truth.span_ns)
    assert (steps.exposed_ns >= 0).all()
    assert (steps.exposed_ns <= steps.collective_ns).all()
    assert (steps.collective_ns <= steps.busy_ns).all()
    for part in (truth.host_part_ns, truth.launch_part_ns):
        assert all((part[cause] >= 0).all() for cause in CAUSES)
    for cause in CAUSES:
        assert (truth.host_part_ns[cause] + truth.launch_part_ns[cause] <= truth.gap_total_ns[cause]).all()
    for rank in range(spec.ranks):
        rows = observed_rows(spec, capture.events, rank)
        for step in range(len(steps.complete)):
            if steps.edge_ns[step, rank] >= 0:
                low, high = int(steps.edge_ns[step, rank]), int(steps.window_end_ns[step, rank])
                assert steps.busy_ns[step, rank] == naive_union(rows.start, rows.end, low, high)


def test_balanced_default() -> None:
    """40 decode steps with 9 collectives each; all but the last are complete; nobody waits long."""
    truth = simulate(CaptureSpec()).truth
    assert truth.steps.phase == ["decode"] * 40
    assert truth.steps.rung == ["bs=8"] * 40
    assert truth.steps.complete.tolist() == [True] * 39 + [False]
    assert (truth.steps.collective_count == 9).all()
    assert len(truth.collectives.step) == 40 * 9
    assert truth.collectives.operation[:9] == ["all_reduce"] * 8 + ["all_gather"]
    assert truth.collectives.position[:10].tolist() == [*range(9), 0]
    assert truth.mean_wait_ns().max() < 1_000
    assert np.ptp(truth.decode_step_ns()) < 20_000


def test_idle_between_requests() -> None:
    """Five requests with 80 ms of client idle: four idles, outside every step, and the steps before incomplete."""
    truth = simulate(CaptureSpec(tp=2, layers=2, steps=10, requests=5)).truth
    idle = np.flatnonzero((truth.idle_between_ns > 0).all(axis=1))
    assert idle.tolist() == [9, 19, 29, 39]
    assert truth.idle_between_ns[idle].min() > 80_000_000
    assert not truth.steps.complete[[9, 19, 29, 39, 49]].any()
    assert truth.steps.complete.sum() == 45
    assert truth.steps.step_ns.max() < 5_000_000
    np.testing.assert_array_equal(truth.gap_total_ns["idle"], truth.idle_between_ns.sum(axis=0))


def test_short_client_pauses_are_gaps() -> None:
    """1 ms is under the 5 ms floor: an ordinary gap at the step's edge."""
    truth = simulate(CaptureSpec(tp=2, layers=2, steps=10, requests=3, request_idle_ns=1_000_000)).truth
    assert (truth.idle_between_ns == 0).all()
    assert truth.steps.complete.sum() == 29
    assert (truth.steps.gap_ns["step_boundary"][[9, 19]] > 1_000_000).all()


def test_bubble_before_each_replay() -> None:
    """2 ms of scheduler time between steps is a boundary gap of each step."""
    truth = simulate(CaptureSpec(tp=2, layers=2, steps=51, bubble_ns=2_000_000)).truth
    boundary = truth.steps.gap_ns["step_boundary"][:50]
    assert (boundary > 2_000_000).all()
    assert (boundary < 2_040_000).all()


def test_queued_kernels_are_back_to_back() -> None:
    """An eager step whose host runs ahead has ordinary distances; an event wait on it is a dependency."""
    quick = {"launch": "eager", "tp": 2, "host_cost_ns": 300, "api_ns": 700, "host_ahead": True}
    truth = simulate(CaptureSpec(**quick, dependency_gap_ns=9_000)).truth
    per_step = {cause: truth.steps.gap_ns[cause][10].sum() for cause in CAUSES}
    assert per_step["back_to_back"] > 60_000
    assert per_step["dependency"] == pytest.approx(2 * 4 * 9_000, rel=0.1)
    assert per_step["host_late"] == 0


def test_cut_edges() -> None:
    """70 rows lost at the head, 5 at the tail: step 0 is gone, step 1 partial, the last cut."""
    truth = simulate(CaptureSpec(lost_head=70, lost_tail=5)).truth
    assert truth.steps.cut[:3].all(axis=1).tolist() == [True, True, False]
    assert (truth.steps.edge_ns[0] == -1).all()
    assert truth.steps.complete.tolist() == [False, False] + [True] * 37 + [False]
    assert truth.collectives.complete[:9].any() == np.False_


def test_heads_differ_by_rank() -> None:
    truth = simulate(CaptureSpec(tp=2, lost_head=(0, 130), lost_tail_steps=(3, 0))).truth
    assert truth.steps.cut[:, 0].tolist() == [False] * 37 + [True] * 3
    assert truth.steps.cut[:4, 1].tolist() == [True, True, True, False]
    assert truth.steps.complete.sum() == 37 - 3 - 1
    complete = truth.collectives.complete
    assert (complete == complete[:, :1]).all(), "an instance is complete for all or none"


def test_one_lost_call() -> None:
    """63 replays of 87 calls, one dropped on rank 1 in replay 40: 5,480 of 5,481 whole."""
    truth = simulate(CaptureSpec(tp=2, layers=43, steps=63, lost_calls=(LostCall(1, 40, 17),))).truth
    calls = truth.collectives
    assert calls.complete[:, 0].sum() == 5_480
    assert not calls.kept[40 * 87 + 17, 1]
    assert calls.kept[40 * 87 + 17, 0]


def test_replicas_and_experts() -> None:
    """TP2 x DP3 with expert parallelism: three TP communicators, and one of all six ranks."""
    truth = simulate(CaptureSpec(tp=2, dp=3, moe=True, ep="deep_ep", layers=2, steps=5)).truth
    assert truth.members == {0: (0, 1), 1: (2, 3), 2: (4, 5), 3: (0, 1, 2, 3, 4, 5)}
    calls = truth.collectives
    everyone = np.array(calls.operation) == "all_to_all"
    assert (calls.communicator[everyone] == 3).all()
    assert calls.communicator[~everyone][0].tolist() == [0, 0, 1, 1, 2, 2]
    assert np.isnan(truth.mean_wait_ns(1)[[0, 1, 4, 5]]).all()
    assert np.isfinite(truth.mean_wait_ns(3)).all()


def test_implementation_switch() -> None:
    spec = CaptureSpec(rungs=(8, 64), switch_batch=32, all_reduce="custom_1stage", all_reduce_large="nccl", steps=4)
    calls = simulate(spec).truth.collectives
    reduces = np.array(calls.operation) == "all_reduce"
    by_step = [{calls.implementation[i] for i in np.flatnonzero(reduces & (calls.step == step))} for step in range(4)]
    assert by_step == [{"custom_1stage"}, {"nccl"}, {"custom_1stage"}, {"nccl"}]


def test_mixed_steps_as_long_as_asked() -> None:
    spec = CaptureSpec(tp=2, steps=28, mixed_every=7, mixed_factor=6.0)
    truth = simulate(spec).truth
    mixed = np.array(truth.steps.phase) == "mixed"
    ratio = np.median(truth.steps.step_ns[mixed & truth.steps.complete]) / np.median(truth.decode_step_ns())
    assert ratio == pytest.approx(6.0, rel=0.1)


def test_costlier_all_gather() -> None:
    base, after = (
        simulate(CaptureSpec(faults=faults, kernel_noise=0.0)).truth
        for faults in ((), (Costlier("all_gather", 249_000),))
    )
    assert np.median(after.decode_step_ns()) - np.median(base.decode_step_ns()) == pytest.approx(249_000, abs=2_000)


def test_warm_up_is_planted() -> None:
    truth = simulate(CaptureSpec(tp=2, steps=60, warm_up_steps=16)).truth
    assert truth.steps.warm_up.sum() == 16
    warm = np.median(truth.steps.step_ns[:16])
    assert warm > 1.2 * np.median(truth.decode_step_ns())


def test_slow_bucket_and_kernel() -> None:
    def gemm_and_rest(spec: CaptureSpec) -> tuple[float, float]:
        events = simulate(spec).events
        buckets = np.array([op.bucket for op in events.ops])[events.op]
        took = events.end - events.start
        gemm, compute = buckets == "gemm", ~np.isin(buckets, ["gemm", "collective"])
        return (
            took[1, gemm].sum() / took[0, gemm].sum(),
            took[1, compute].sum() / took[0, compute].sum(),
        )

    assert gemm_and_rest(CaptureSpec(faults=(Slow((1,), 1.2, bucket="gemm"),))) == pytest.approx((1.2, 1.0), abs=0.01)
    assert gemm_and_rest(CaptureSpec(faults=(Slow((1,), 1.2, kernel="act_and_mul"),)))[0] == pytest.approx(1, abs=0.01)
    assert gemm_and_rest(CaptureSpec(faults=(Slow((1,), 1.08),))) == pytest.approx((1.08, 1.075), abs=0.01)


def test_schedule_of_stretches() -> None:
    plan = (Stretch("prefill", 1, 4, 256), Stretch("decode", 3, 4), Stretch("speculative", 2, 4))
    truth = simulate(CaptureSpec(schedule=plan, speculative=2)).truth
    assert truth.steps.phase == ["prefill"] + ["decode"] * 5
    assert truth.steps.rung == ["bs=256"] + ["bs=4"] * 5


@pytest.mark.parametrize("spec", [CaptureSpec(), CaptureSpec(tp=1), CaptureSpec(graph_capture="graph", steps=3)])
def test_json_is_plain(spec: CaptureSpec) -> None:
    truth = simulate(spec).truth
    body: dict[str, Any] = json.loads(json.dumps(truth.to_json()))
    assert body["ranks"] == spec.ranks
    assert body["spec"]["layers"] == 4
    assert len(body["steps"]["complete"]) == spec.steps
    assert len(body["collectives"]["step"]) == body["collective_calls"]


def test_graph_level_capture_hides_calls() -> None:
    truth: Truth = simulate(CaptureSpec(graph_capture="graph")).truth
    assert not truth.collectives.kept.any()
    assert (truth.steps.gap_ns["in_graph"] == 0).all()
    assert (truth.steps.kernel_count == 1).all()
