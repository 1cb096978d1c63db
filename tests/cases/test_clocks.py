"""Clocks of different machines, end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.running import Ran, tracelens
from tracelens.simulate import CaptureSpec, Late, simulate, write

#: Two hosts, one second of decode with long pauses; rank 1 comes 50 us late before each collective.
TWO_HOSTS = CaptureSpec(
    tp=2, layers=2, steps=50, bubble_ns=20_000_000, ranks_per_host=1, utc_error_ns=0, faults=(Late((1,), 50_000),)
)


def asked(folder: Path, *options: str, **clocks: Any) -> Ran:
    """`skew` over the two files of that job."""
    capture = simulate(CaptureSpec(**({**vars(TWO_HOSTS)} | clocks)))
    write(capture, folder, one_file=False, truth=False)
    return tracelens("skew", "--format", "json", *options, cwd=folder)


def waits(ran: Ran) -> list[float]:
    return [row["wait_ns"] / row["matched_count"] for row in ran.json["ranks"]]


def test_hosts_350_us_apart_are_put_on_one_clock(tmp_path: Path) -> None:
    """The second host's clock is 350 us ahead (meta-pytorch/attention-gym#487)."""
    ran = asked(tmp_path, gpu_offset_ns=(0, 350_000), gpu_drift_ppm=0.0)
    first, second = ran.json["clock"]
    assert (first["offset_ns"], second["method"]) == (0, "ends")
    assert second["offset_ns"] == pytest.approx(350_000, abs=100)
    assert second["residual_ns"] < 5_000
    assert waits(ran) == pytest.approx([50_000, 0], abs=300)
    assert ran.json["verdict"][0]["straggler_rank"] == 1


def test_a_clock_that_drifts_from_350_to_380_us(tmp_path: Path) -> None:
    """The same with 30 us of drift over the capture's second."""
    ran = asked(tmp_path, gpu_offset_ns=(0, 365_000), gpu_drift_ppm=(0.0, 30.0))
    second = ran.json["clock"][1]
    assert second["drift_ppm"] == pytest.approx(30.0, abs=0.5)
    assert second["offset_ns"] == pytest.approx(365_000, abs=1_500)
    assert second["residual_ns"] < 5_000
    assert waits(ran) == pytest.approx([50_000, 0], abs=300)


def test_trusting_the_clocks_of_two_hosts_is_wrong_by_their_difference_and_says_so(tmp_path: Path) -> None:
    ran = asked(tmp_path, "--clock", "trust", gpu_offset_ns=(0, 350_000), gpu_drift_ppm=0.0)
    assert waits(ran)[0] == pytest.approx(400_000, abs=1_000)
    told = " ".join(notice["message"] for notice in ran.json["notices"] if notice["severity"] == "warning")
    assert "host" in told
    assert "clock" in told
    assert {row["method"] for row in ran.json["clock"]} == {"trust"}
    assert {row["residual_ns"] for row in ran.json["clock"]} == {None}
