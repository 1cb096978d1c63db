"""Several plain numbers after one option."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.cli.number_lists import floats, ints, join_number_lists
from tracelens.errors import UsageError

OPTIONS = ("--tp", "--lambda-us")


@pytest.mark.parametrize(
    ("typed", "parsed"),
    [
        ("--tp 1 2 4 8", "--tp=1,2,4,8"),
        ("--tp 1,2,4,8", "--tp=1,2,4,8"),
        ("--tp=1 2 4", "--tp=1,2,4"),
        ("--tp 1, 2, 4", "--tp=1,,2,,4"),
        ("--tp 1 2 --lambda-us 2.5 1e1 --format json", "--tp=1,2 --lambda-us=2.5,1e1 --format json"),
        ("trace.sqlite --tp 8 other", "trace.sqlite --tp=8 other"),
        ("--tp -1 2", "--tp=-1,2"),
        ("--tp 8 -o x.json", "--tp=8 -o x.json"),
        ("--tp --format json", "--tp --format json"),
        ("--tp 1 2 -- --tp 1 2", "--tp=1,2 -- --tp 1 2"),
        ("--tpx 1 2", "--tpx 1 2"),
    ],
)
def test_joining(typed: str, parsed: str) -> None:
    assert join_number_lists(typed.split(), OPTIONS) == parsed.split()


@given(st.lists(st.integers(0, 10**6), min_size=1), st.lists(st.sampled_from([" ", ",", ", "]), min_size=1))
def test_every_way_of_writing_a_list_reads_the_same(numbers: list[int], gaps: list[str]) -> None:
    text = "".join(f"{number}{gaps[place % len(gaps)]}" for place, number in enumerate(numbers)).rstrip(", ")
    joined = join_number_lists(["--tp", *text.split()], OPTIONS)
    assert len(joined) == 1
    assert ints("--tp", joined[0].removeprefix("--tp=")) == numbers


@pytest.mark.parametrize("text", ["", ",", "1.5", "a", "1 x"])
def test_what_is_no_list_of_whole_numbers(text: str) -> None:
    with pytest.raises(UsageError, match="--tp"):
        ints("--tp", text)


def test_floats() -> None:
    assert floats("--lambda-us", "2,5.5 1e1") == [2.0, 5.5, 10.0]
    with pytest.raises(UsageError, match="list of numbers"):
        floats("--lambda-us", "fast")
