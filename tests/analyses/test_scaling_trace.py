"""The mean step of simulated captures against their truth, and a whole sweep from captures alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.running import tracelens
from tracelens.analyses import blocks, late_hosts
from tracelens.analyses import scaling_trace as module
from tracelens.analyses.alignment import align
from tracelens.analyses.gap_search import find_gaps
from tracelens.analyses.ladder_rungs import Setup
from tracelens.analyses.ladder_trace import observed_ladder
from tracelens.analyses.residual import TracedStep
from tracelens.analyses.scaling import scaling
from tracelens.analyses.scaling_points import Question, SweepPoint
from tracelens.analyses.scaling_presets import model_shape
from tracelens.analyses.scaling_trace import traced_step
from tracelens.analyses.skew_context import context
from tracelens.analyses.step_search import find_steps
from tracelens.api import load
from tracelens.errors import MissingDataError, SelectionError
from tracelens.frames import Notice
from tracelens.simulate import Capture, CaptureSpec, scenario, simulate, write
from tracelens.sqlfiles import queries
from tracelens.trace import LoadedTrace

ORACLE = Path(__file__).with_name("oracle_scaling.sql")
SHAPE = model_shape("llama-3-8b")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Capture, Path]]:
    """Llama-3-8B on 1, 2, 4 and 8 GPUs at 5 us per all-reduce; at 8, rank 5 makes the others wait 300 us a step."""
    folder = tmp_path_factory.mktemp("sweep")
    found = {}
    for label, spec in scenario("scaling").items():
        capture = simulate(replace(spec, steps=14))
        (path,) = write(capture, folder / label)
        found[spec.tp] = (capture, path)
    return found


@pytest.fixture(scope="module")
def traced(sweep: dict[int, tuple[Capture, Path]]) -> dict[int, tuple[TracedStep, list[Notice]]]:
    found = {}
    for tp, (_, path) in sweep.items():
        with load(path) as trace:
            found[tp] = traced_step(trace, tp, shape=SHAPE)
    return found


def test_the_mean_step_is_the_truths(
    sweep: dict[int, tuple[Capture, Path]], traced: dict[int, tuple[TracedStep, list[Notice]]]
) -> None:
    """Step, waits, transfers and gaps per step are those of the simulator's own clock."""
    capture, _ = sweep[8]
    step, notices = traced[8]
    truth = capture.truth
    used = truth.steps.complete & ~truth.steps.warm_up
    assert not notices
    assert step.step_count == used.sum()
    assert step.tokens == 1
    assert step.step_ns == pytest.approx(truth.steps.step_ns[used].mean(), rel=1e-4)
    assert step.wait_ns == pytest.approx(truth.steps.wait_ns[used].mean(), rel=0.02)
    # One of eight ranks is late by 300.8 us: the others wait 7/8 of it in the mean, and the step would gain all of it.
    assert step.skew_ns is not None
    assert 300_800 * 0.99 < step.skew_ns < 300_800 * 1.05
    (all_reduce,) = step.all_reduces
    assert (all_reduce.implementation, all_reduce.message_bytes) == ("custom_2stage", 8192)
    assert all_reduce.call_count == 64
    assert all_reduce.transfer_p50_ns == pytest.approx(5000, rel=0.02)
    for cause, gap_ns in truth.steps.gap_ns.items():
        if cause != "idle":
            assert step.gaps_ns.get(cause, 0) == pytest.approx(gap_ns[used].mean(), abs=300), cause


def test_the_parts_of_a_step_sum_to_it(traced: dict[int, tuple[TracedStep, list[Notice]]]) -> None:
    for step, _ in traced.values():
        parts = sum(step.compute_ns.values()) + sum(step.gaps_ns.values())
        parts += sum(one.wait_ns + one.transfer_ns for one in step.collectives)
        assert parts == pytest.approx(step.step_ns, abs=1)


def test_late_hosts_count_where_their_rank_arrives_last() -> None:
    """Removing a host's part saves time only on the rank that the others wait for.

        rank 0   |AA|hhhhhhh|B|#####|hh|C|...####|        h host part of a gap, # collective, . waits in it
        rank 1   |AAAA|hh|B|...#####|hhhhh|C|####|
                             instance 0        1           rank 0 last in 0 (7 us), rank 1 in 1 (5 us): 12 us a step

    The means over ranks would be (7 + 2 + 2 + 5) / 2 = 8.
    """
    ways = [
        late_hosts.Way(*map(np.array, ([10, 19], [7, 2], [11, 20], [0, 1], [True, False]))),
        late_hosts.Way(*map(np.array, ([7, 22], [2, 5], [8, 23], [0, 1], [False, True]))),
    ]
    assert late_hosts.lost_ns(ways, np.array([2, 2])) / 2 == 12
    # What follows no collective is lost once.
    after = late_hosts.Way(*map(np.array, ([24], [3], [11, 20], [0, 1], [True, False])))
    assert late_hosts.lost_ns([*ways, after], np.array([2, 2])) / 2 == 12 + 1.5


def expected(trace: LoadedTrace, rows: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The same sums by DuckDB, from the tables of every gap, collective and member of a step."""
    find_steps(trace)
    find_gaps(trace)
    align(trace)
    trace.db.register("scaling_window", rows.select("rank", "step").to_arrow())
    found = {name: trace.rows(ORACLE, name) for name in queries(ORACLE)}
    trace.db.unregister("scaling_window")
    return found


def test_a_sweep_of_captures_names_the_waiting(traced: dict[int, tuple[TracedStep, list[Notice]]]) -> None:
    """The fit is off by far; against the traced 5 us the residual of TP 8 is waiting, and nothing is left over."""
    points = [SweepPoint(tp, [], step) for tp, (step, _) in traced.items()]
    result = scaling(points, Question(SHAPE))
    eight = result.points.row(by_predicate=pl.col("tp") == 8, named=True)
    assert eight["reference_source"] == "median transfer traced at TP 2"
    assert eight["reference_lambda_us"] == pytest.approx(5, rel=0.02)
    parts = {
        name: eight[name]
        for name in result.points.columns
        if name.endswith("_us") and result.points.columns.index(name) > 11
    }
    assert max(parts, key=lambda name: abs(parts[name])) == "wait_us"
    # Seven of eight ranks wait 300.8 us; the eighth computes longer by as much.
    assert parts["wait_us"] == pytest.approx(300.8 * 7 / 8, rel=0.03)
    assert parts["rest_us"] == pytest.approx(0, abs=0.02)
    assert sum(parts.values()) == pytest.approx(eight["residual_us"], abs=1e-9)
    fitted = dict(result.fit.select("parameter", "value").iter_rows())
    assert fitted["lambda_at_largest_us"] > 9
    assert "waiting for late ranks" in " ".join(result.sentences)
    four = result.points.row(by_predicate=pl.col("tp") == 4, named=True)
    assert four["wait_us"] < 15


def test_the_command_reads_results_and_captures_together(
    sweep: dict[int, tuple[Capture, Path]], tmp_path: Path
) -> None:
    words = []
    for tp in (2, 8):
        capture, path = sweep[tp]
        truth = capture.truth.steps
        seconds = float(np.median(truth.step_ns[truth.complete])) / 1e9
        result = tmp_path / f"tp{tp}.jsonl"
        result.write_text(
            f'{{"batch_size": 1, "input_len": 128, "output_len": 128, "median_decode_latency": {seconds}}}\n'
        )
        words += ["--tp", f"{tp}={result},{path}"]
    ran = tracelens("scaling", *words, "--model-preset", "llama-3-8b", "--format", "json")
    assert ran.code == 0, ran.err
    answer = ran.json
    assert {row["statistic"] for row in answer["points"]} == {"median_decode_step"}
    eight = answer["points"][-1]
    assert eight["all_reduce_us"] > 500
    assert eight["wait_us"] > 200
    assert abs(eight["rest_us"]) < 10  # a median against means


def test_one_rank_alone_cannot_tell_waiting(sweep: dict[int, tuple[Capture, Path]]) -> None:
    with load(sweep[8][1], ranks=(0,)) as trace:
        step, notices = traced_step(trace, 8, shape=SHAPE)
    assert step.wait_ns == 0
    assert step.transfer_p50_ns is None
    assert "ranks-missing" in {notice.code for notice in notices}


def test_a_rung_that_is_not_there(sweep: dict[int, tuple[Capture, Path]]) -> None:
    with load(sweep[1][1]) as trace, pytest.raises(SelectionError, match="no complete decode step of 64 tokens"):
        traced_step(trace, 1, tokens=64)


def test_the_switch_between_batches(tmp_path: Path) -> None:
    """Batches 8, 31, 32 and 64 in one capture: custom to 31 tokens, NCCL from 256 KiB."""
    (path,) = write(simulate(replace(scenario("switch")["run"], steps=40)), tmp_path)
    with load(path) as trace:
        result = observed_ladder(trace, Setup("vllm", "9.0", 1), tp=None, width=4096)
        by_rung = {tokens: traced_step(trace, 8, tokens=tokens, shape=SHAPE)[0] for tokens in (31, 32)}
    assert result.observed.select("implementation", "message_bytes", "tokens", "agrees").rows() == [
        ("custom_1stage", 8 * 8192, 8, True),
        ("custom_1stage", 31 * 8192, 31, True),
        ("nccl", 32 * 8192, 32, True),
        ("nccl", 64 * 8192, 64, True),
    ]
    assert result.sentences[0] == (
        "The all-reduce switches from custom_1stage at 248.0 KiB (31 tokens) to nccl at 256.0 KiB (32 tokens)."
    )
    assert [by_rung[tokens].all_reduces[0].label for tokens in (31, 32)] == ["custom_1stage_248KiB", "nccl_256KiB"]


def test_a_capture_without_all_reduces_has_no_ladder(tmp_path: Path) -> None:
    (path,) = write(simulate(CaptureSpec(tp=1, steps=12)), tmp_path)
    with load(path) as trace, pytest.raises(MissingDataError, match="shows no all-reduce"):
        observed_ladder(trace, Setup("vllm", "9.0", 8), tp=8, width=4096)


@pytest.mark.parametrize(
    "kind",
    [
        {"launch": "eager"},
        {"launch": "piecewise", "side_stream": "compute"},
        {"side_stream": "collective"},
        {"pdl_ns": 500, "nvtx": "none"},
        {"moe": True, "ep": "deep_ep", "dp": 2, "tp": 2},
        {"sequence_parallel": True, "requests": 2, "steps": 12},
        {"prefill_every": 5, "lost_head_steps": 2},
    ],
    ids=str,
)
def test_steps_of_every_kind_close(kind: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlap, replicas, missing markers, prefill between, lost rows: compute, gaps and collectives are the step."""
    monkeypatch.setattr(blocks, "BLOCK", 1000)
    spec = CaptureSpec(**{"steps": 24, "layers": 3, **kind})  # type: ignore[arg-type]
    (path,) = write(simulate(spec), tmp_path)
    with load(path) as trace:
        step, notices = traced_step(trace, spec.tp, shape=SHAPE)
        known = context(trace)
        rows, _ = module._chosen_steps(trace, None)
        chosen = np.zeros(known.steps.table.height + 1, bool)
        chosen[rows["row"].to_numpy()] = True
        oracle = expected(trace, rows)
        gaps_ns = {cause: gap_ns / rows.height for cause, gap_ns in oracle["gaps"].iter_rows()}
        assert step.gaps_ns == pytest.approx(gaps_ns, rel=1e-12)
        assert module._members(known, chosen).equals(oracle["collectives"])
        lost_ns, accepted_count = oracle["late_host"].row(0)
        assert late_hosts.late_hosts_ns(known, chosen) == lost_ns
        assert known.operations.accepted.sum() == accepted_count
        assert module._group_size(known) == (oracle["group_size"].item() or 0)
        order = ["implementation", "message_bytes", "tokens", "in_graph"]
        reduces = oracle["all_reduces"].with_columns(pl.col("in_graph").fill_null(False))
        reduces = reduces.group_by(order).agg(pl.col("call_count").sum()).sort(order)
        assert module._all_reduces(known).group_by(order).agg(pl.col("call_count").sum()).sort(order).equals(reduces)
    parts = sum(step.compute_ns.values()) + sum(step.gaps_ns.values())
    parts += sum(one.wait_ns + one.transfer_ns for one in step.collectives)
    assert parts == pytest.approx(step.step_ns, abs=1)
    assert step.step_count >= 10
    assert not notices
    assert (step.tokens is None) == ("nvtx" in kind)


def test_the_capture_of_another_size_is_told(sweep: dict[int, tuple[Capture, Path]]) -> None:
    with load(sweep[4][1]) as trace:
        _, notices = traced_step(trace, 2, shape=SHAPE)
    assert [notice.code for notice in notices] == ["more-ranks-than-tp"]
