"""Each scenario holds what it says."""

from __future__ import annotations

import numpy as np
import pytest

from tracelens.errors import UsageError
from tracelens.simulate import SCENARIOS, Truth, scenario, simulate


def truth_of(name: str, label: str = "run") -> Truth:
    return simulate(scenario(name)[label]).truth


def median_step(name: str, label: str) -> float:
    return float(np.median(truth_of(name, label).decode_step_ns()))


def test_names_and_sentences() -> None:
    assert all(SCENARIOS[name].name == name and SCENARIOS[name].says for name in SCENARIOS)
    with pytest.raises(UsageError, match="no scenario"):
        scenario("sunshine")


@pytest.mark.parametrize(
    ("name", "rank"), [("slow-gpu", 5), ("slow-kernel", 3), ("late-host", 0), ("apart", 2), ("replicas", 6)]
)
def test_one_rank_makes_the_others_wait(name: str, rank: int) -> None:
    truth = truth_of(name)
    caused = truth.caused_wait_ns()
    assert caused.argmax() == rank
    assert caused[rank] > 0.8 * caused.sum() - 16 * 200_000
    assert np.nanargmin(truth.mean_wait_ns()) == rank


def test_nobody_is_late() -> None:
    for name in ("balanced", "requests", "speculative", "switch", "phases"):
        assert np.ptp(truth_of(name).mean_wait_ns()) < 150


def test_late_group() -> None:
    wait = truth_of("late-group").mean_wait_ns()
    assert wait[:4] == pytest.approx(50_000, rel=0.02)
    assert wait[4:] == pytest.approx(200, abs=300)


def test_regression_is_one_gather() -> None:
    """7.73 -> 7.98 ms: 3.2 %, the reported loss of throughput."""
    before, after = median_step("regression", "before"), median_step("regression", "after")
    assert after - before == pytest.approx(249_000, abs=5_000)
    assert 1 - before / after == pytest.approx(0.032, abs=0.002)
    assert (truth_of("regression", "before").steps.collective_count == 161).all()


def test_host_cost_moves_into_waiting() -> None:
    before, after = truth_of("host-cost", "before"), truth_of("host-cost", "after")
    late = after.steps.gap_ns["host_late"] - before.steps.gap_ns["host_late"]
    assert late[5, 0] == pytest.approx(48 * 176_000, rel=0.02)
    assert abs(late[5, 1:]).max() < 100_000
    assert after.steps.wait_ns[5, 1:].min() > 0.8 * 48 * 176_000
    calls = [truth.collectives.transfer_ns.mean() for truth in (before, after)]
    assert calls[1] == pytest.approx(calls[0], rel=0.01)


def test_scaling_has_one_lambda_and_one_straggler() -> None:
    for tp in (2, 4, 8):
        assert truth_of("scaling", f"tp{tp}").lambda_ns == pytest.approx(5_000, abs=60)
    wait = truth_of("scaling", "tp8").steps.wait_ns[5]
    assert np.delete(wait, 5) == pytest.approx(300_000, rel=0.05)
