"""Periods of sequences whose inner parts repeat too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analyses.step_cycles import Cycles, cycle_starts, regularity_at
from tracelens.array_room import ArrayRoom

ROOM = ArrayRoom(1 << 20, Path())


def cycles(text: str, ranks: int = 1) -> Cycles | None:
    """One letter per kernel, the same on every rank."""
    tokens = np.array([ord(letter) for letter in text] * ranks, np.int64)
    return cycle_starts(ROOM, tokens, np.repeat(np.arange(ranks), len(text)))


@pytest.mark.parametrize("layers", [4, 32, 126])
def test_a_step_is_found_around_its_layers(layers: int) -> None:
    """E (layer) x L N S, 6 times; the capture begins and ends in the middle of a step."""
    step = "e" + "abcdef" * layers + "ns"
    found = cycles(("abcdefns" + step * 6 + "eabcdef"), ranks=2)
    assert found is not None
    assert found.length == len(step)
    assert chr(found.token) in "ens"
    assert found.regularity == 1.0
    assert len(found.places) in (12, 14)


def test_equal_graphs_are_a_cycle_each() -> None:
    found = cycles("aaaaaaaa")
    assert found is not None
    assert (found.length, len(found.places)) == (1, 8)


def test_six_launches_are_one_cycle() -> None:
    found = cycles("fmmmml" * 10)
    assert found is not None
    assert (found.length, len(found.places)) == (6, 10)


def test_a_token_that_comes_every_few_steps_does_not_make_longer_ones() -> None:
    """x stands in every fourth step only."""
    step = "e" + "abc" * 24 + "ns"
    found = cycles((step * 3 + step[:-1] + "xs") * 8)
    assert found is not None
    assert found.length == len(step)


def test_nothing_repeats() -> None:
    assert cycles("abcdefghijklmnopqrstuvwxyz") is None
    assert cycles("ab") is None
    assert cycles("") is None


def test_a_cut_that_fits_half_of_the_sequence_says_so() -> None:
    tokens = np.array([ord(letter) for letter in "eab" * 10 + "uvwxyzklmnopqrstcdfghij123456"], np.int64)
    places = np.flatnonzero(tokens == ord("e"))
    assert regularity_at(ROOM, tokens, np.zeros(len(tokens), np.int64), places) < 0.8


@given(st.text("abc", min_size=1, max_size=6), st.integers(2, 20), st.integers(4, 9), st.integers(0, 5))
def test_the_period_does_not_depend_on_where_the_capture_begins(layer: str, layers: int, steps: int, cut: int) -> None:
    step = "e" + layer * layers + "s"
    found = cycles((step * steps)[cut:])
    assert found is not None
    assert found.length == len(step)
