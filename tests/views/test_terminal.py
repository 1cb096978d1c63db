"""Tables on a terminal and in a pipe."""

from __future__ import annotations

import io

import polars as pl
import pytest

from tests.views.frames_tp8 import GEMM, bucket_result
from tracelens.errors import TracelensError
from tracelens.frames import Notice
from tracelens.views import bucket
from tracelens.views.terminal import Screen, notices
from tracelens.views.text import shorten_middle, visible


def drawn(width: int = 100, attached: bool = False, **options: object) -> list[str]:
    stream = io.StringIO()
    frame = pl.DataFrame(
        {
            "rank": [0, 0, 1],
            "kernel_name": [GEMM, "norm\x1b[2J\n", None],
            "kernel_count": [1280, 64, None],
            "gap_ns": [1_500, 2_345_678, None],
            "share_frac": [0.25, 0.75, None],
        }
    )
    Screen(stream, width=width, attached=attached).table(frame, **options)  # type: ignore[arg-type]
    return stream.getvalue().splitlines()


def test_piped_table_is_plain_aligned_and_names_units() -> None:
    lines = drawn(width=72)
    assert all(len(line) <= 72 for line in lines)
    assert all(line.isascii() and "\x1b" not in line for line in lines)
    assert "..." in lines[3]
    assert "norm\\x1b[2J\\n" in lines[4]
    assert [line.split()[-1] for line in lines[:6]] == ["share", "%", "-----", "25.0", "75.0", "-"]


def test_totals_and_groups() -> None:
    frame = pl.DataFrame({"rank": [0, 0, 1, 1], "bucket": ["a", "b", "a", "b"], "elapsed_ns": [1000, 2000, 500, 700]})
    stream = io.StringIO()
    Screen(stream, width=80).table(frame, group="rank", total=["elapsed_ns"])
    assert stream.getvalue().splitlines() == [
        "              elapsed",
        "rank  bucket       us",
        "----  ------  -------",
        "   0  a          1.00",
        "      b          2.00",
        "      total      3.00",
        "",
        "   1  a          0.50",
        "      b          0.70",
        "      total      1.20",
        "",
    ]


def test_nothing_measured_sums_to_nothing_measured() -> None:
    frame = pl.DataFrame({"rank": [0, 0], "step_ns": [None, None]}, schema={"rank": pl.Int32, "step_ns": pl.Int64})
    stream = io.StringIO()
    Screen(stream, width=80).table(frame, total=["step_ns"])
    assert "0" not in stream.getvalue().splitlines()[-2]


def test_what_does_not_fit_goes_and_is_named() -> None:
    lines = drawn(width=38, optional=["share_frac", "kernel_count"])
    assert lines[-3:] == ["(share_frac, kernel_count: no room in", "38 columns)", ""]
    assert all(len(line) <= 38 for line in lines)


@pytest.mark.parametrize("width", [80, 100])
def test_bucket_tables_fit(width: int) -> None:
    stream = io.StringIO()
    bucket.show(bucket_result(8, kernels=True), Screen(stream, width=width))
    assert max(len(line) for line in stream.getvalue().splitlines()) <= width


def test_bars_only_where_a_person_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "█" in "".join(drawn(attached=True, bar="share_frac"))
    assert "\x1b" not in "".join(drawn(attached=True, bar="share_frac"))
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b[" in "".join(drawn(attached=True, bar="share_frac"))
    assert "█" not in "".join(drawn(bar="share_frac"))


def test_a_stream_that_cannot_write_a_letter_gets_an_escape() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Screen(stream, width=80, attached=True).line("größe")
    stream.flush()
    assert b"gr\\xf6\\xdfe" in raw.getvalue()


def test_limit_and_empty() -> None:
    assert drawn(limit=1)[-2] == "(2 more rows)"
    stream = io.StringIO()
    Screen(stream, width=80).table(pl.DataFrame({"a": []}), title="Nothing")
    assert stream.getvalue() == "Nothing\n(no rows)\n\n"


def test_notices_warnings_first() -> None:
    stream = io.StringIO()
    notices([Notice("b", "info", "seen", "", 2), Notice("a", "warning", "bad\x1b", "do this")], stream)
    assert stream.getvalue() == "warning: bad\\x1b\n  Do this\nnote: seen (2)\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x1b[0m\n", "a\\x1b[0m\\n"),
        ("\u202eabc\u200b", "\\u202eabc\\u200b"),
        ("\ud800", "\\ud800"),
        ("größe 日本", "größe 日本"),
    ],
)
def test_what_has_no_ink_is_written_out(text: str, expected: str) -> None:
    assert visible(text) == expected


def test_names_are_shortened_in_the_middle() -> None:
    assert shorten_middle("abcdefghijklmnop", 10) == "abcd...nop"
    assert [len(shorten_middle("x" * 50, width)) for width in range(0, 60, 7)] == [0, 7, 14, 21, 28, 35, 42, 49, 50]


def test_columns_that_are_compared_share_a_unit() -> None:
    frame = pl.DataFrame({"device_ns": [1_500], "host_ns": [7]})
    stream = io.StringIO()
    Screen(stream, width=80).table(frame, one_unit=["device_ns", "host_ns"])
    assert stream.getvalue().splitlines()[-2].split() == ["1.50", "0.01"]


def test_two_long_columns_are_shortened_alike() -> None:
    frame = pl.DataFrame({"before": ["a" * 70], "after": ["b" * 90], "gap_ns": [5]})
    stream = io.StringIO()
    Screen(stream, width=60).table(frame)
    before, after, _ = stream.getvalue().splitlines()[2].split()
    assert abs(len(before) - len(after)) <= 1


@pytest.mark.parametrize(
    ("message", "count", "shown"),
    [
        ("12 rows are left out", 12, "12 rows are left out"),
        ("1,024 rows are left out", 1024, "1,024 rows are left out"),
        ("1024 rows", 1024, "1024 rows"),
        ("the clock was stepped", 2, "the clock was stepped (2)"),
        ("2.5 us off, 112 of them", 2, "2.5 us off, 112 of them (2)"),
        ("nothing was found", 0, "nothing was found"),
    ],
)
def test_a_count_stands_once(message: str, count: int, shown: str) -> None:
    stream = io.StringIO()
    notices([Notice("a", "info", message, "", count)], stream)
    assert stream.getvalue() == f"note: {shown}\n"


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("give --lambda-us", "Give --lambda-us"),
        ("known: a, b", "Known: a, b"),
        ("--clock ends aligns", "--clock ends aligns"),
        ("tracelens info shows", "tracelens info shows"),
        ("", ""),
    ],
)
def test_hints_are_sentences(hint: str, shown: str) -> None:
    assert Notice("a", "info", "seen", hint).hint == shown
    assert TracelensError("seen", hint).hint == shown
