"""Options' words as values; anything else is refused, whatever it is."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.cli import parse
from tracelens.errors import UsageError


def test_rank_lists() -> None:
    assert parse.ranks("0-3,9") == (0, 1, 2, 3, 9)
    assert parse.ranks("7") == (7,)
    assert parse.ranks(" 1, 0 ,1") == (1, 0)


def test_step_ranges() -> None:
    assert parse.steps("10-50") == (10, 50)
    assert parse.steps("7") == (7, 7)
    with pytest.raises(UsageError, match="backwards"):
        parse.steps("9-2")


def test_windows() -> None:
    assert parse.time_s("1.5..2") == (1.5, 2.0)
    assert parse.time_s("..2") == (None, 2.0)
    assert parse.time_s("-1..") == (-1.0, None)


def test_rank_maps() -> None:
    assert parse.rank_map("0=a.sqlite:0, 1=b:c.sqlite:1,2=d.sqlite") == {
        0: ("a.sqlite", 0),
        1: ("b:c.sqlite", 1),
        2: ("d.sqlite", None),
    }


def test_memory_sizes() -> None:
    assert parse.memory("4GB") == "4000000000B"
    assert parse.memory("800 MiB") == "800000000B"
    assert parse.memory(None).endswith("B")


@pytest.mark.parametrize("read", [parse.ranks, parse.steps, parse.time_s, parse.rank_map, parse.memory])
@settings(deadline=None)
@given(text=st.text(max_size=30) | st.from_regex(r"[0-9=:.,a-z²٣ -]{0,20}"))
def test_any_text_is_a_value_or_a_refusal(read, text: str) -> None:  # type: ignore[no-untyped-def]
    with contextlib.suppress(UsageError):
        read(text)
