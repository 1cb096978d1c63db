"""Steps that were averaged, cut or counted wrongly, end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.drawn import GEMM, MS, US, decode, kernel, mark, titles
from tests.running import refused, tracelens
from tracelens.simulate import CaptureSpec, simulate, write, write_events


def test_mixed_steps_do_not_shift_the_decode_latency(tmp_path: Path) -> None:
    """28 decode steps of 10 ms and 4 mixed ones of 60 ms: nobody's step takes 16.25 ms (vllm-project/vllm#44806)."""
    kinds = ([("execute_context_0(0)_generation_8(8)", 10)] * 7 + [("execute_context_1(82)_generation_8(8)", 60)]) * 4
    rows, at = [*titles(1)], 10 * MS
    for text, length in [*kinds, kinds[0]]:
        rows += [
            mark(text, 0, at - 50 * US, at - 10 * US),
            kernel(GEMM, 0, at, at + length * MS - 100 * US, at - 40 * US),
        ]
        at += length * MS
    answer = tracelens("steps", write_events(rows, tmp_path / "rank0.sqlite"), "--format", "json")
    summary = {row["phase"]: row for row in answer.json["summary"]}
    assert [(name, row["step_count"], row["mean_ns"]) for name, row in sorted(summary.items())] == [
        ("decode", 28, 10 * MS),
        ("mixed", 4, 60 * MS),
    ]
    shown = tracelens("steps", tmp_path / "rank0.sqlite").out
    assert shown.startswith("Decode step bs=8: p50 10.000 ms")
    assert "16.25" not in shown


def test_graphs_of_three_batch_sizes_add_up_to_the_servers_count(tmp_path: Path) -> None:
    """Three graphs in turn and no ranges: each its own class, all together the server's count (sgl-project/sglang-omni#760)."""
    write(CaptureSpec(tp=2, layers=2, steps=66, rungs=(8, 16, 32), nvtx="none"), tmp_path, truth=False)
    answer = tracelens("steps", "--format", "json", cwd=tmp_path).json
    mine = [row for row in answer["steps"] if row["rank"] == 0]
    assert answer["provenance"]["marker"] == "graph"
    graphs = {row["graph_id"] for row in mine}
    assert len(graphs) == 3
    assert [sum(row["graph_id"] == one for row in mine) for one in sorted(graphs)] == [22, 22, 22]
    assert all(len({row["kernel_count"] for row in mine if row["graph_id"] == one}) == 1 for one in graphs)
    assert all(row["busy_ns"] + row["gap_ns"] == row["step_ns"] for row in mine)
    assert sum(row["step_count"] for row in answer["summary"]) == 65


def test_client_pauses_are_in_no_step(tmp_path: Path) -> None:
    """Five requests with 80 ms of client idle between them (sgl-project/sglang#28224)."""
    spec = CaptureSpec(tp=2, layers=1, steps=20, requests=5, request_idle_ns=80 * MS)
    capture = simulate(spec)
    write(capture, tmp_path, truth=False)
    answer = tracelens("steps", "--format", "json", cwd=tmp_path).json
    facts = answer["provenance"]
    assert facts["idle_between_count"] == 4
    assert facts["idle_between_ns"] == pytest.approx(4 * 80 * MS, rel=0.01)
    (decoding,) = answer["summary"]
    assert decoding["p99_ns"] < 1 * MS
    assert decoding["p99_with_idle_ns"] > 80 * MS
    causes = tracelens("gaps", "--format", "json", cwd=tmp_path).json["causes"]
    assert {row["gap_count"] for row in causes if row["cause"] == "idle"} == {4}


def test_a_capture_cut_in_its_last_step_and_a_rank_that_ends_early(tmp_path: Path) -> None:
    """The tail is lost, on one rank thirteen steps of it (NVIDIA-NeMo/RL#4090): told, and in no statistic."""
    spec = CaptureSpec(tp=2, layers=2, steps=40, bubble_ns=100 * MS, lost_tail=(7, 0), lost_tail_steps=(0, 13))
    write(spec, tmp_path, truth=False, one_file=False)
    answer = tracelens("steps", "--format", "json", cwd=tmp_path).json
    told = {notice["code"]: notice["message"] for notice in answer["notices"]}
    assert "(rank 1: 27 of 40, ends 1,20" in told["ranks-differ-in-steps"]
    assert " ms early)" in told["ranks-differ-in-steps"]
    assert answer["provenance"]["partial_steps"] == 14
    assert answer["summary"][0]["step_count"] == 26


def test_ranges_of_another_thread_that_never_close(tmp_path: Path) -> None:
    """Start-end ranges, closed by another thread or by nobody; what runs before the first is in none (GindaChen/nsys-ai#307)."""
    rows = [*titles(1), kernel("warm_up_kernel", 0, 5 * MS, 6 * MS, 4 * MS)]
    for step in range(5):
        at = (10 + step) * MS
        end = None if step == 4 else at + 100 * US
        rows.append(
            mark(
                "execute_context_0(0)_generation_4(4)", 0, at, end, type=60, range_id=step, end_tid=777, registered=True
            )
        )
        rows.append(kernel(GEMM, 0, at + 300 * US, at + 900 * US, at + 10 * US))
    answer = tracelens("steps", write_events(rows, tmp_path / "rank0.sqlite"), "--format", "json").json
    assert [(row["step"], row["rung"], row["step_ns"]) for row in answer["steps"]] == [
        (0, "bs=4", 1 * MS),
        (1, "bs=4", 1 * MS),
        (2, "bs=4", 1 * MS),
        (3, "bs=4", 1 * MS),
        (4, "bs=4", 600 * US),
    ]
    assert answer["provenance"]["outside_count"] == 1


@pytest.mark.parametrize(
    ("expected_ms", "severity", "said"),
    [
        ("10", "info", "+0.0%"),
        ("8", "warning", "+25.0%; nothing is scaled, and above 5 %"),
        ("20", "warning", "-50.0%"),
    ],
)
def test_the_profilers_part_of_a_step_is_told_and_nothing_is_scaled(
    tmp_path: Path, expected_ms: str, severity: str, said: str
) -> None:
    """The step without the profiler is known (NVIDIA-NeMo/Megatron-Bridge#3311)."""
    rows = [*titles(1)]
    for step in range(8):
        at = (10 + 10 * step) * MS
        rows += [decode(0, at - 50 * US), kernel(GEMM, 0, at, at + 9 * MS, at - 40 * US)]
    path = write_events(rows, tmp_path / "rank0.sqlite")
    answer = tracelens("steps", path, "--expect-ms", expected_ms, "--format", "json").json
    (told,) = [notice for notice in answer["notices"] if notice["code"] == "profiler-overhead"]
    assert told["severity"] == severity
    assert said in told["message"]
    assert answer["summary"][0]["p50_ns"] == 10 * MS
    if expected_ms == "20":
        assert "no step time" in refused(tracelens("steps", path, "--expect-ms", "0"))
