"""The physics: operations in stream order, launches before starts, collectives that end together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.simulate import CaptureSpec, Costlier, Late, Leave, Rotating, Slow, Stall, simulate
from tracelens.simulate.timeline import run

QUIET: dict[str, Any] = {
    "kernel_noise": 0.0,
    "gap_jitter": 0.0,
    "latency_jitter": 0.0,
    "host_jitter": 0.0,
    "transfer_noise": 0.0,
    "end_scatter_ns": 0,
    "start_jitter_ns": 0,
}
"""Nothing random: every duration, gap and latency is nominal."""


def replay(spec: CaptureSpec) -> list[tuple[np.ndarray, np.ndarray]]:
    """A slow, plain executor of quiet specs: one operation at a time, one rank at a time."""
    timeline = run(spec)
    ranks = spec.ranks
    stream_end: list[dict[int, int]] = [{} for _ in range(ranks)]
    steps = []
    for step in timeline.steps:
        program = timeline.programs[step.program]
        start = np.zeros((ranks, len(program.ops)), np.int64)
        end = np.zeros_like(start)
        for i, op in enumerate(program.ops):
            plan = program.launches[program.launch[i]]
            for rank in range(ranks):
                before = stream_end[rank].get(op.stream, 0)
                earliest = before + round(program.gap[i])
                if program.root[i]:
                    earliest = max(earliest, step.launch_begin[rank, program.launch[i]] + round(plan.latency_ns))
                if op.after >= 0:
                    earliest = max(earliest, end[rank, op.after] + round(program.gap[i]))
                start[rank, i] = earliest
                end[rank, i] = earliest + max(1, round(op.duration_ns))
            if op.group >= 0:
                size = spec.ranks if op.group == 1 else spec.tp
                for first in range(0, ranks, size):
                    members = slice(first, first + size)
                    end[members, i] = start[members, i].max() + round(op.duration_ns)
            for rank in range(ranks):
                stream_end[rank][op.stream] = int(end[rank, i])
        steps.append((start, end))
    return steps


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"launch": "eager"},
        {"launch": "piecewise"},
        {"launch": "pieces", "graph_pieces": 3},
        {"side_stream": "compute"},
        {"side_stream": "collective"},
        {"host_ahead": True, "input_stream": "copy"},
        {"pdl_ns": 700, "launch": "eager"},
        {"moe": True, "ep": "deep_ep", "dp": 2, "tp": 2},
        {"speculative": 2},
        {"all_reduce": "mnnvl_two_shot"},
        {"launch": "eager", "faults": (Stall((1,), 50_000, per_step=5),)},
        {"launch": "eager", "faults": (Stall((1,), 50_000, per_step=5, sync=False),)},
    ],
    ids=str,
)
def test_equals_a_plain_executor(changes: dict[str, Any]) -> None:
    spec = CaptureSpec(**{"tp": 3, "layers": 2, "steps": 4} | QUIET | changes)
    for step, (start, end) in zip(run(spec).steps, replay(spec), strict=True):
        np.testing.assert_array_equal(step.start, start)
        np.testing.assert_array_equal(step.end, end)


SPECS = st.builds(
    CaptureSpec,
    seed=st.integers(0, 99),
    engine=st.sampled_from(["vllm", "sglang", "trtllm"]),
    dtype=st.sampled_from(["bf16", "fp8"]),
    tp=st.integers(1, 4),
    dp=st.integers(1, 2),
    layers=st.integers(1, 3),
    steps=st.integers(2, 5),
    rungs=st.sampled_from([(), (4, 16)]),
    prefill_every=st.sampled_from([0, 2]),
    mixed_every=st.sampled_from([0, 3]),
    speculative=st.sampled_from([0, 0, 2]),
    launch=st.sampled_from(["graph", "piecewise", "pieces", "eager"]),
    host_ahead=st.booleans(),
    side_stream=st.sampled_from(["", "compute", "collective"]),
    pdl_ns=st.sampled_from([0, 800]),
    dependency_gap_ns=st.sampled_from([0, 9_000]),
    all_reduce=st.sampled_from(["custom_1stage", "nccl", "fused_one_shot", "mnnvl_two_shot"]),
    input_stream=st.sampled_from(["main", "copy"]),
    broadcasts=st.booleans(),
    step_noise=st.sampled_from([0.0, 0.02]),
    faults=st.sampled_from(
        [
            (),
            (Late((0,), 30_000),),
            (Late((0,), 30_000, how="gap", every=2),),
            (Late((0,), 30_000, how="kernel"),),
            (Rotating(20_000),),
            (Slow((0,), 1.3, bucket="gemm"),),
            (Stall((0,), 40_000, per_step=4),),
            (Leave((0,), 1_500),),
            (Costlier("all_reduce", 2_000),),
        ]
    ),
)


@settings(max_examples=60, deadline=None)
@given(SPECS)
def test_what_always_holds(spec: CaptureSpec) -> None:
    capture = simulate(spec)
    events = capture.events
    assert (events.end >= events.start).all()
    assert (events.end - events.start)[events.executed].min() >= 1
    begin = np.take_along_axis(events.launch_begin, np.broadcast_to(events.launch, events.start.shape), axis=1)
    assert (events.start - begin)[events.executed].min() > 0, "nothing starts before its launch begins"
    assert (np.diff(events.launch_begin, axis=1) > 0).all() or (~events.executed).any()
    for rank in range(spec.ranks):
        for stream in np.unique(events.stream):
            rows = np.flatnonzero((events.stream == stream) & events.executed[rank])
            start, end = events.start[rank, rows], events.end[rank, rows]
            assert (np.diff(start) > 0).all(), "streams keep their order"
            if not spec.pdl_ns:
                assert (start[1:] >= end[:-1]).all(), "one operation at a time per stream"
    truth = capture.truth
    calls = truth.collectives
    assert (calls.wait_ns >= 0).all()
    late = tuple(rank for fault in spec.faults if isinstance(fault, Leave) for rank in fault.ranks)
    for group, ranks in truth.members.items():
        if len(ranks) < 2:
            continue
        rows = np.flatnonzero(calls.synchronising & (calls.communicator[:, ranks[0]] == group))
        waits = calls.wait_ns[np.ix_(rows, np.array(ranks))]
        assert (waits.min(axis=1) == 0).all(), "the last arriver does not wait"
        last = (calls.arrival_ns + calls.wait_ns)[np.ix_(rows, np.array(ranks))]
        assert (last == last[:, :1]).all(), "one last arrival per instance"
        ends = calls.barrier_end_ns[np.ix_(rows, np.array(ranks))]
        assert (ends > last).all(), "nobody leaves before the last has arrived"
        on_time = [place for place, rank in enumerate(ranks) if rank not in late]
        assert np.ptp(ends[:, on_time], axis=1).max(initial=0) < 12 * spec.end_scatter_ns


def test_injected_delay_comes_back_on_the_others() -> None:
    waits, transfers = [], []
    for delay in (0, 50_000, 250_000, 1_000_000):
        truth = simulate(CaptureSpec(tp=4, faults=(Late((2,), delay),))).truth
        calls = truth.collectives
        use = np.array(calls.operation) == "all_reduce"
        waits.append(calls.wait_ns[use].mean(axis=0))
        transfers.append(calls.transfer_ns[use].mean())
    for delay, wait in zip((0, 50_000, 250_000, 1_000_000), waits, strict=True):
        assert wait[[0, 1, 3]] == pytest.approx(delay, abs=600)
    assert np.ptp(transfers) < 60


def test_a_stalled_host_makes_exactly_that_gap() -> None:
    base = CaptureSpec(tp=2, layers=4, steps=6, launch="eager", **QUIET)
    stalled = CaptureSpec(tp=2, layers=4, steps=6, launch="eager", faults=(Stall((0,), 176_000, 10),), **QUIET)
    steps = [simulate(spec).truth.decode_step_ns() for spec in (base, stalled)]
    assert np.median(steps[1]) - np.median(steps[0]) == pytest.approx(1_760_000, rel=0.01)
    truth = simulate(stalled).truth
    assert truth.steps.gap_ns["host_late"][2, 0] >= 1_760_000
    assert truth.steps.gap_ns["host_late"][2, 1] == 0
    assert truth.mean_wait_ns()[0] == pytest.approx(0, abs=1)
    assert truth.caused_wait_ns()[0] > 0.99 * truth.caused_wait_ns().sum()


def test_who_leaves_late_arrives_late() -> None:
    truth = simulate(CaptureSpec(tp=4, faults=(Leave((1,), 1_500),), **QUIET)).truth
    calls = truth.collectives
    assert np.median((calls.end_ns - calls.end_ns[:, :1])[:, 1]) == 1_500
    inner = (calls.position > 0) & (np.array(calls.operation) == "all_reduce")
    assert np.median(calls.wait_ns[inner][:, [0, 2, 3]]) == 1_500


def test_ring_exchange_waits_for_one_neighbour() -> None:
    """Rank 2 comes 30 us late: rank 3 waits for it in the exchange, rank 1 does not; nothing synchronises."""
    spec = CaptureSpec(
        tp=4,
        layers=1,
        steps=3,
        all_reduce="send_recv_nccl",
        all_gather="send_recv",
        faults=(Late((2,), 30_000),),
        **QUIET,
    )
    truth = simulate(spec).truth
    calls = truth.collectives
    assert set(calls.operation) == {"send_recv"}
    assert not calls.synchronising.any()
    assert truth.lambda_ns is None
    first = calls.end_ns[0] - calls.arrival_ns[0]
    assert first.tolist() == [10_000, 10_000, 10_000, 40_000]


def test_rotating_delay_names_its_ranks() -> None:
    truth = simulate(CaptureSpec(tp=4, steps=60, faults=(Rotating(20_000),))).truth
    calls = truth.collectives
    assert set(truth.steps.late_rank) == {0, 1, 2, 3}
    last = calls.wait_ns.argmin(axis=1)
    assert (last == truth.steps.late_rank[calls.step])[1:].mean() > 0.98


def test_steps_correlate_as_asked() -> None:
    spec = CaptureSpec(tp=2, layers=1, steps=1500, step_noise=0.03, step_rho=0.6, kernel_noise=0.0)
    step_ns = simulate(spec).truth.decode_step_ns().astype(float)
    step_ns -= step_ns.mean()
    rho = (step_ns[1:] * step_ns[:-1]).sum() / (step_ns**2).sum()
    assert rho == pytest.approx(0.6, abs=0.08)


def test_compute_sums_to_what_was_asked() -> None:
    program = run(CaptureSpec(tp=2, step_compute_ns=560_000, steps=1, gemm_factor=1.25)).programs[0]
    buckets = np.array([op.bucket for op in program.ops])
    gemm = program.duration[buckets == "gemm"].sum()
    assert program.duration[program.compute].sum() - gemm * (1 - 1 / 1.25) == pytest.approx(560_000, rel=1e-6)
