"""Waiting that looked like communication, end to end."""

from __future__ import annotations

import math
import random
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from tests.cases.drawn import GATHER, GEMM, MS, NCCL, US, arriving, decode, kernel, titles, two_stage
from tests.running import tracelens
from tracelens.simulate import CaptureSpec, Late, Range, Rotating, Slow, write, write_events


def entry_skews() -> list[int]:
    """159 delays in ns, median 158 us, p90 about 1 ms, the largest 14 ms, 74.0 ms in all."""
    drawn = [round(158_000 * math.exp(1.44 * NormalDist().inv_cdf((k + 0.5) / 159))) for k in range(158)]
    drawn = [min(one, 9 * MS) for one in drawn] + [14 * MS]
    # What is missing to the published sum goes to calls between the median and the p90.
    for place in range(100, 140):
        drawn[place] += (74 * MS - sum(drawn)) // (140 - place)
    return sorted(drawn)


def test_half_a_step_of_all_reduce_is_one_late_host(tmp_path: Path) -> None:
    """TP2, 150 ms steps, 159 all-reduces each: rank 0's host launches late (vllm-project/vllm#52777)."""
    draw = random.Random(1)
    steps = [draw.sample(entry_skews(), 159) for _ in range(22)]
    arriving(tmp_path / "tp2.sqlite", steps, [0])
    answer = tracelens("skew", "--format", "json", cwd=tmp_path).json
    (verdict,) = answer["verdict"]
    assert verdict["skew_per_step_ns"] == pytest.approx(74 * MS, rel=0.01)
    assert (verdict["straggler_rank"], verdict["class"], verdict["cause"]) == (0, "arrival_skew", "host")
    assert "cudaLaunchKernel" in verdict["cause_detail"]
    (operation,) = answer["operations"]
    assert operation["skew_p50_ns"] == pytest.approx(158 * US, abs=100)
    assert operation["skew_p90_ns"] == pytest.approx(1 * MS, rel=0.03)
    assert operation["skew_max_ns"] == pytest.approx(14 * MS, abs=100)
    assert operation["transfer_p50_ns"] == pytest.approx(10 * US, abs=100)
    # What the late rank waits for stands before compute, and only there.
    edges = tracelens("gaps", "--ranks", "0", "--format", "json", cwd=tmp_path).json["edges"]
    late = [row for row in edges if row["cause"] == "host_late"]
    assert {row["after_kernel"] for row in late} == {GEMM}
    assert sum(row["gap_ns"] for row in late) == pytest.approx(22 * 74 * MS, rel=0.02)


@pytest.mark.parametrize("late_ns", [0, 50_000, 250_000, 1_000_000])
def test_a_known_delay_comes_back_as_waiting_and_the_transfer_stays(tmp_path: Path, late_ns: int) -> None:
    """A delay on one rank is what each other rank waits, through the command line (vllm-project/vllm#57037)."""
    faults = (Late((1,), late_ns),) if late_ns else ()
    write(CaptureSpec(tp=4, layers=2, steps=20, faults=faults), tmp_path, truth=False)
    answer = tracelens("skew", "--format", "json", cwd=tmp_path).json
    mean = {row["rank"]: row["wait_ns"] / row["matched_count"] for row in answer["ranks"]}
    assert [mean[rank] for rank in (0, 2, 3)] == pytest.approx([late_ns] * 3, abs=1_200)
    reduce = next(row for row in answer["operations"] if row["collective"] == "all_reduce")
    assert reduce["transfer_p50_ns"] == pytest.approx(9_500, abs=200)


def test_skew_adds_up_to_the_published_time_per_token(tmp_path: Path) -> None:
    """63 replays of 87 all-reduces, 31.578 us apart each: 2,747.3 us a token (1CatAI/1Cat-vLLM#173)."""
    arriving(tmp_path / "tp2.sqlite", [[31_578] * 87] * 63, [0, 1])
    (verdict,) = tracelens("skew", "--format", "json", cwd=tmp_path).json["verdict"]
    assert (verdict["matched_count"], verdict["unmatched_count"]) == (5_481, 0)
    assert verdict["skew_per_step_ns"] == pytest.approx(2_747_286, abs=3_000)
    assert verdict["straggler_rank"] is None


def test_a_stagger_of_ranks_is_no_latency_of_the_operation(tmp_path: Path) -> None:
    """Ranks pushed apart by a host sync: the longest duration grows from 87.4 to 113.4 us (SemiAnalysisAI/InferenceX#2422)."""
    longest, shown = [], []
    for name, skew in (("together", 0), ("apart", 26 * US)):
        folder = tmp_path / name
        folder.mkdir()
        arriving(folder / "tp2.sqlite", [[skew] * 4] * 20, [0, 1], transfer=87_400)
        answer = tracelens("collectives", "--all", "--format", "json", cwd=folder).json
        longest.append(max(row["end_ns"] - row["start_ns"] for row in answer["instances"]))
        (row,) = answer["operations"]
        shown.append([row["transfer_p50_ns"], row["transfer_min_p50_ns"], row["completion_p50_ns"]])
    assert longest == [87_400, 113_400]
    for row in shown:
        assert row == pytest.approx([87_400] * 3, abs=50)


def test_a_few_bytes_that_take_milliseconds_are_waiting_not_bandwidth(tmp_path: Path) -> None:
    """228 bytes over four GPUs in 4 ms (NVIDIA/nccl#701): the size is known, and still it is a late rank."""
    rows = list(titles(4))
    payload = {"comm": 77, "nranks": 4, "count": 57, "bytes": 228}
    for step in range(36):
        at = 10 * MS + step * 6 * MS
        for rank in range(4):
            late = 4 * MS if rank == 2 else 0
            rows.append(decode(rank, at - 20 * US))
            rows.append(kernel(GEMM, rank, at, at + 100 * US + late, at - 10 * US))
            rows.append(
                Range("ncclAllReduce", at - 7 * US, at - 3 * US, pid=100 + rank, domain="NCCL", payload=payload)
            )
            rows.append(kernel(NCCL, rank, at + 101 * US + late, at + 4_121 * US, at - 6 * US))
            rows.append(kernel(GATHER, rank, at + 4_130 * US, at + 4_150 * US, at - 2 * US))
    write_events(rows, tmp_path / "tp4.sqlite")
    answer = tracelens("skew", "--format", "json", cwd=tmp_path).json
    row = next(row for row in answer["operations"] if row["collective"] == "all_reduce")
    assert row["duration_p50_ns"] == pytest.approx(4_020 * US, rel=0.01)
    assert row["transfer_p50_ns"] == pytest.approx(20 * US, rel=0.02)
    assert row["class"] == "arrival_skew"
    assert answer["verdict"][0]["straggler_rank"] == 2
    assert answer["verdict"][0]["cause"] == "device"


def test_two_of_a_legacy_nccl_kernel_with_a_wide_spread(tmp_path: Path) -> None:
    """614 and 1,110 us under nccl's old prefix, one rank given: waiting cannot be told apart (vllm-project/vllm#2442)."""
    name = "ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)"
    rows = [
        kernel(name, 0, 10 * MS, 10 * MS + 614 * US),
        kernel(name, 0, 12 * MS, 12 * MS + 1_110 * US),
        kernel(GEMM, 0, 13_110 * US, 13_110 * US + 321 * US),
    ]
    path = write_events([*rows], tmp_path / "rank0.sqlite")
    ran = tracelens("collectives", path, "--format", "json")
    (row,) = ran.json["operations"]
    assert (row["collective"], row["implementation"], row["call_count"]) == ("all_reduce", "nccl", 2)
    assert (row["duration_p50_ns"], row["wait_p50_ns"]) == (862 * US, None)
    assert "durations-include-waiting" in {notice["code"] for notice in ran.json["notices"]}
    shares = {row["bucket"]: row["kernel_ns"] for row in tracelens("bucket", path, "--format", "json").json["buckets"]}
    assert shares["nccl_and_custom_ar"] / sum(shares.values()) == pytest.approx(0.843, abs=0.0005)


def test_who_arrives_last_in_86_of_100(tmp_path: Path) -> None:
    """Eight ranks, rank 4 last in 155 of 180 collectives and waiting least (AMD-AGI/TraceLens#599)."""
    late = [4 if place % 36 not in (3, 11, 19, 27, 35) else (place // 36) % 4 for place in range(180)]
    assert late.count(4) == 155
    arriving(tmp_path / "tp8.sqlite", [[30 * US] * 5] * 36, late, ranks=8)
    answer = tracelens("skew", "--format", "json", cwd=tmp_path).json
    first = answer["ranks"][4]
    assert (first["rank"], first["matched_count"], first["last_count"]) == (4, 180, 155)
    assert first["last_frac"] == pytest.approx(0.861, abs=0.0005)
    assert first["wait_ns"] == min(row["wait_ns"] for row in answer["ranks"])
    assert answer["verdict"][0]["straggler_rank"] == 4
    lines = tracelens("skew", cwd=tmp_path).out.splitlines()
    title = next(place for place, line in enumerate(lines) if line.startswith("Ranks"))
    rule = next(place for place, line in enumerate(lines) if place > title and line.startswith("----"))
    body = [line.split() for line in lines[rule + 1 :]]
    assert body[0][:2] == ["4", "86.1"]
    assert [row[0] for row in body[:5]][1:] == ["0", "1", "2", "3"]


def test_ranks_with_other_kernels_are_not_compared(tmp_path: Path) -> None:
    """Two pipeline stages, each with its own all-reduce: two communicators, waits only inside each (NVIDIA's pitfalls)."""
    rows = list(titles(4))
    for step in range(40):
        at = 10 * MS + step * 300 * US + (step * step % 7) * US
        for rank in range(4):
            stage = rank // 2
            begin = at + stage * 140 * US
            rows.append(kernel(GEMM if stage == 0 else "second_stage_gemm", rank, begin, begin + 20 * US))
            name = two_stage(2) if stage == 0 else NCCL
            rows.append(kernel(name, rank, begin + (21 + rank % 2) * US, begin + 40 * US))
            rows.append(kernel(GATHER, rank, begin + 50 * US, begin + 60 * US + stage * US))
    write_events(rows, tmp_path / "four.sqlite")
    verdict = tracelens("skew", "--format", "json", cwd=tmp_path).json["verdict"]
    assert [row["members"] for row in verdict] == ["0-1", "2-3"]
    assert [row["skew_per_step_ns"] is None or row["skew_per_step_ns"] < 3 * US for row in verdict] == [True, True]


def test_medians_of_an_even_count_lie_between(tmp_path: Path) -> None:
    """1, 2, 3 and 4 us: the median is 2.5 us, not the upper one, and its head says of what (flashinfer-ai/flashinfer#4818)."""
    rows = [kernel(NCCL, 0, 10 * MS + k * MS, 10 * MS + k * MS + k * US) for k in (1, 2, 3, 4)]
    path = write_events(rows, tmp_path / "rank0.sqlite")
    (row,) = tracelens("collectives", path, "--format", "json").json["operations"]
    assert row["duration_p50_ns"] == 2_500
    assert "Operations (median over instances; duration includes waiting)" in tracelens("collectives", path).out


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"steps": 12, "faults": (Slow((2,), 1.2),)},
            "rank 2 is last in 100% of 12 steps, which are too few to name one (20 are needed)",
        ),
        (
            {"steps": 40, "bubble_ns": 8_000_000, "faults": (Late((1,), 3_000),)},
            "rank 1 is last in 100% of the steps, but by too little: less than 0.5% of a step",
        ),
        ({"steps": 40, "faults": (Rotating(20_000),)}, "the late rank changes from step to step"),
    ],
)
def test_why_nobody_is_named_is_said_as_it_is(tmp_path: Path, spec: dict[str, Any], said: str) -> None:
    """Late in every step is not rotating, also where it is too little or too short to name a rank."""
    write(CaptureSpec(**({"tp": 4, "layers": 2} | spec)), tmp_path, truth=False)
    (verdict,) = tracelens("skew", "--format", "json", cwd=tmp_path).json["verdict"]
    assert verdict["straggler_rank"] is None
    assert said in verdict["sentence"]
