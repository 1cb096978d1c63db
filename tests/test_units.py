"""Numbers for people: one unit a column, thousands apart, never a wrong digit."""

from __future__ import annotations

import pytest

from tracelens import units


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 us"),
        (99_999, "100.00 us"),
        (123_456, "123.5 us"),
        (7_764_000, "7.764 ms"),
        (99_999_999_999, "100,000.000 ms"),
        (123_456_789_012, "123.457 s"),
        (-1_500, "-1.50 us"),
    ],
)
def test_times(value: float | None, expected: str) -> None:
    assert units.format_ns(value) == expected


def test_a_column_has_one_unit_chosen_by_its_largest() -> None:
    scale = units.scale_of("gap_ns", [5, None, -2_500_000])
    assert (scale.symbol, scale.format(5), scale.format(-2_500_000), scale.format(-4)) == (
        "ms",
        "0.000",
        "-2.500",
        "0.000",
    )


@pytest.mark.parametrize(
    ("name", "values", "symbol", "shown"),
    [
        ("elapsed_frac", [0.1234], "%", "12.3"),
        ("message_bytes", [8192], "KiB", "8.0"),
        ("message_bytes", [100], "B", "100"),
        ("bus_bw_gbps", [123.456], "GB/s", "123.5"),
        ("step_us", [560.125], "us", "560.12"),
        ("kernel_count", [1234567], "", "1,234,567"),
        ("p_value", [1.2345e-12], "", "1.2e-12"),
        ("compute_ratio", [1.0789], "", "1.079"),
        ("calls_per_step", [64.0], "", "64.00"),
    ],
)
def test_columns_by_their_suffix(name: str, values: list[float], symbol: str, shown: str) -> None:
    scale = units.scale_of(name, values)
    assert (scale.symbol, scale.format(values[0])) == (symbol, shown)


def test_single_figures() -> None:
    assert units.format_bytes(8 << 20) == "8.0 MiB"
    assert units.format_frac(0.032) == "3.2 %"
    assert units.format_frac(None) == "-"


def test_what_is_counted_is_one_or_several() -> None:
    assert [units.plural(count, "step") for count in (0, 1, 2, 1024)] == ["0 steps", "1 step", "2 steps", "1,024 steps"]
    assert units.plural(2, "class", "classes") == "2 classes"
