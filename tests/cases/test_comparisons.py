"""Before and after, through the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.running import refused, tracelens
from tracelens.simulate import CaptureSpec, Costlier, simulate, write

#: Per step 8 all-reduces and an all-gather, about half a millisecond.
BASE = CaptureSpec(tp=2, layers=4, steps=40, step_compute_ns=400_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of three builds: a base, a bad one, one faster than both; and the base on other GPUs or on more."""
    root = tmp_path_factory.mktemp("builds")
    for name, spec in {
        "base": BASE,
        "base2": replace(BASE, seed=1),
        "bad": replace(BASE, seed=2, step_compute_ns=551_000),
        "bad2": replace(BASE, seed=3, step_compute_ns=551_000),
        "now": replace(BASE, seed=4, step_compute_ns=260_000),
        "wide": replace(BASE, tp=4),
        "nvl": replace(BASE, seed=5, gpu_name="NVIDIA H100 NVL"),
        "costlier": replace(BASE, seed=6, faults=(Costlier("all_reduce", 2_000),)),
    }.items():
        write(simulate(spec), root / name, truth=False)
    return root


def test_three_builds_with_signs_that_agree_and_a_named_quantity(folder: Path) -> None:
    """Throughput fell by 22 % and then rose by 44 %: in time per step other numbers (sgl-project/sglang#28224)."""
    ran = tracelens("compare", "base", "bad", "now", cwd=folder)
    assert ran.code == 0
    heads = [line for line in ran.out.splitlines() if line.startswith("== ")]
    assert heads == ["== base -> bad", "== base -> now"]
    (bad,) = tracelens("compare", "base", "bad", "--format", "json", cwd=folder).json["verdict"]
    (back,) = tracelens("compare", "bad", "base", "--format", "json", cwd=folder).json["verdict"]
    assert bad["delta_ns"] == -back["delta_ns"] > 0
    assert bad["delta_frac"] == pytest.approx(bad["after_step_ns"] / bad["before_step_ns"] - 1, abs=1e-6)
    assert bad["delta_frac"] > 0.2
    assert ", -0." in ran.out[ran.out.index("== base -> now") :].split("% of the")[0]
    assert " ".join(ran.out.split()).count("% of the step") >= 2


def test_one_rank_given_says_that_durations_hold_waiting(folder: Path) -> None:
    """+2 us a call seen on rank 0 alone may be waiting (flashinfer-ai/flashinfer#3825)."""
    whole = tracelens("compare", "base", "costlier", "--format", "json", cwd=folder).json
    row = next(row for row in whole["collectives"] if row["name"].startswith("all_reduce"))
    assert row["time_part_ns"] / row["after_calls"] == pytest.approx(2_000, abs=50)
    alone = tracelens("compare", "base", "costlier", "--ranks", "0", cwd=folder)
    assert "a longer collective may be waiting" in alone.err
    assert "Give all ranks" in alone.err


def test_other_gpus_are_told(folder: Path) -> None:
    """A box of H100 NVL against one of H100 SXM (sgl-project/sglang#14665)."""
    ran = tracelens("compare", "base", "nvl", "--format", "json", cwd=folder)
    names = next(row for row in ran.json["environment"] if "gpu" in row["key"])
    assert (names["before"], names["after"]) == ("NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL")
    warned = [notice["message"] for notice in ran.json["notices"] if notice["severity"] == "warning"]
    assert any("NVIDIA H100 NVL" in message for message in warned)
    assert tracelens("compare", "base", "nvl", "--strict", cwd=folder).code == 1


def test_two_captures_a_side_and_nothing_is_left_over(folder: Path) -> None:
    """What no part explains is a line of its own, and the parts close to the ns (ROCm/vllm#1169)."""
    answer = tracelens("compare", "base,base2", "bad,bad2", "--format", "json", cwd=folder).json
    (verdict,) = answer["verdict"]
    parts = sum(row["delta_ns"] for table in ("buckets", "gaps") for row in answer[table])
    assert parts + verdict["unattributed_ns"] == verdict["delta_ns"]
    assert verdict["significant"] is True
    assert "single-capture" not in {notice["code"] for notice in answer["notices"]}
    one = tracelens("compare", "base", "bad", cwd=folder)
    assert "differences between runs of one build are not covered" in one.err
    assert "unattributed" in one.out


def test_another_number_of_gpus_is_no_comparison(folder: Path) -> None:
    """A mismatched pair is refused, not answered with a number (GindaChen/nsys-ai#523)."""
    said = refused(tracelens("compare", "base", "wide", cwd=folder))
    assert "2 ranks before, 4 after" in said


def test_both_sides_say_which_steps_they_are(folder: Path) -> None:
    """The same pair, whole or cut to some steps: the window is part of the answer (GindaChen/nsys-ai#523)."""
    shown = tracelens("compare", "base", "bad", "--steps", "5-24", cwd=folder)
    assert "n = 20 and 20 steps" in " ".join(shown.out.split())
    for side in ("before:", "after:"):
        (line,) = [line for line in shown.out.splitlines() if line.startswith(side)]
        assert "decode bs=8" in line
        assert "steps 5-24" in line
    answer = tracelens("compare", "base", "bad", "--format", "json", cwd=folder).json
    assert ["steps 0-38" in window for side in answer["provenance"]["windows"] for window in side] == [True, True]


def test_a_change_in_one_stretch_of_the_capture_is_found_by_time_too(folder: Path) -> None:
    """Only steps that lie in the chosen seconds on every rank count; none of them is clipped."""
    answer = tracelens("compare", "base", "bad", "--time", "0.005..0.015", "--format", "json", cwd=folder).json
    before, after = answer["provenance"]["steps"]
    assert 10 <= after < before <= 20
    (verdict,) = answer["verdict"]
    assert verdict["before_step_ns"] == pytest.approx(600_000, rel=0.01)


def test_whole_captures_and_steps_disagree(folder: Path, tmp_path: Path) -> None:
    """Neutral over the whole profile, and -29 % a step, from the same two files (GindaChen/nsys-ai#523)."""
    fast = replace(BASE, seed=7, step_compute_ns=250_000, requests=2, request_idle_ns=40_000_000, steps=20)
    write(simulate(fast), tmp_path / "fast", truth=False)
    ran = tracelens("compare", folder / "base", tmp_path / "fast", "--format", "json")
    (verdict,) = ran.json["verdict"]
    assert verdict["delta_frac"] < -0.2
    (told,) = [notice["message"] for notice in ran.json["notices"] if notice["code"] == "whole-capture-differs"]
    assert "over whole captures the change is +" in told
    assert "per step -2" in told
