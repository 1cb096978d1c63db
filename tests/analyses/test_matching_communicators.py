"""Clocks that are tied pair by pair agree on every other pair, whatever the order of the ties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.analyses.clock import Clock
from tracelens.analyses.matching_communicators import Frames, RankClock

OFFSET = np.array([0.0, 12e6, -7e3, 3e9, 400.0])
DRIFT = np.array([0.0, 30e-6, -12e-6, 5e-6, 0.0])


def shown(rank, true):
    return true + OFFSET[rank] + DRIFT[rank] * true


def against(one, other, at=5e8):
    """The clock of `other` as seen from `one`, fitted exactly at a true time, on other's own time."""
    slope = (1 + DRIFT[other]) / (1 + DRIFT[one]) - 1
    return Clock(
        shown(other, at), np.array([-np.inf]), np.array([shown(other, at) - shown(one, at)]), np.array([slope])
    )


@given(st.permutations([(0, 1), (2, 3), (1, 3), (2, 4)]))
@settings(max_examples=24, deadline=None)
def test_ties_in_any_order(ties):
    """0-1, 2-3, 1-3, 2-4: one set; then every rank's time of one moment reads the same on the lowest rank's clock."""
    frames = Frames([RankClock(rank, rank, rank) for rank in range(5)])
    for one, other in ties:
        frames.tie(one, other, against(one, other))
    assert len(set(frames.root)) == 1
    for rank in range(1, 5):
        clock = frames.between(0, rank)
        own = shown(rank, 5.2e8)
        assert own - clock.at(own) == pytest.approx(shown(0, 5.2e8), abs=5)
        back = frames.between(rank, 0)
        reference = shown(0, 5.2e8)
        assert reference - back.at(reference) == pytest.approx(own, abs=5)


def test_recorded_differences_and_windows():
    """One export 100 us; one boot 1 ms by the system clock; else 1 s by UTC; nothing without session times."""
    one = RankClock(0, 0, 0, "node0", 1_000_000_000_500, 70_000_000_000)
    same_export = RankClock(1, 1, 0, "node0", 1_000_000_000_500, 70_000_000_000)
    same_boot = RankClock(2, 2, 1, "node0", 1_000_300_000_900, 70_300_000_000)
    elsewhere = RankClock(3, 3, 2, "node1", 1_000_000_900_500, 9_000)
    unknown = RankClock(4, 4, 3, "node0")
    assert (one.window(same_export), one.recorded_difference(same_export)) == (100_000, 0)
    assert (one.window(same_boot), one.recorded_difference(same_boot)) == (1_000_000, -300_000_000)
    assert (one.window(elsewhere), one.recorded_difference(elsewhere)) == (1_000_000_000, -900_000)
    assert (one.window(unknown), one.recorded_difference(unknown)) == (None, None)


def test_epochs_move_the_difference():
    """Times that count from each rank's first event: 250 ns later on the second, which then shows 250 ns less."""
    one, other = RankClock(0, 0, 0, epoch_ns=1_000), RankClock(1, 1, 0, epoch_ns=1_250)
    assert one.recorded_difference(other) == -250


def test_two_processes_on_one_gpu_share_its_clock():
    frames = Frames([RankClock(0, 7, 0), RankClock(1, 7, 0), RankClock(2, 8, 0)])
    assert frames.between(0, 1).at(123.0) == 0.0
    assert frames.between(0, 2) is None
