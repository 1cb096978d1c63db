"""Formatting of times, bytes, shares and counts for people.

Analyses compute in integer nanoseconds and bytes; only a view rounds, and one column is rounded in one unit, so
that its numbers can be compared by eye. Machine formats do not pass through here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

MISSING = "-"


@dataclass(frozen=True)
class Scale:
    """How the numbers of one column are written.

    Attributes:
        symbol: the unit as it stands in the column's head, `ms`, `KiB`, `%`, or empty.
        divisor: a value divided by it is in that unit.
        decimals: digits after the point; negative for two significant digits (probabilities).
    """

    symbol: str
    divisor: float
    decimals: int

    def format(self, value: float | int | None) -> str:
        """`value` in this unit, thousands apart; `-` for null and for a number that is not finite."""
        if value is None or value != value or value in (float("inf"), float("-inf")):
            return MISSING
        if self.decimals < 0:
            return f"{value:.2g}"
        if self.divisor == 1 and self.decimals == 0 and isinstance(value, int):
            return f"{value:,}"
        text = f"{value / self.divisor:,.{self.decimals}f}"
        if text.startswith("-") and not text.strip("-0.,"):
            text = text[1:]
        return text


COUNT = Scale("", 1, 0)
PERCENT = Scale("%", 0.01, 1)


def _largest(values: Iterable[float | int | None]) -> float:
    return max((abs(value) for value in values if value is not None and value == value), default=0)


def time_scale(values_ns: Iterable[float | int | None]) -> Scale:
    """The unit for a column of nanoseconds, by its largest magnitude.

    Below 1 us whole ns; below 1 ms us with one or two digits; below 100 s ms with three digits, so that
    a difference of 1 us still shows in a budget of seconds; above, seconds.
    """
    largest = _largest(values_ns)
    if largest < NS_PER_US:
        return Scale("ns", 1, 0)
    if largest < 100 * NS_PER_US:
        return Scale("us", NS_PER_US, 2)
    if largest < NS_PER_MS:
        return Scale("us", NS_PER_US, 1)
    if largest < 100 * NS_PER_S:
        return Scale("ms", NS_PER_MS, 3)
    return Scale("s", NS_PER_S, 3)


def bytes_scale(values: Iterable[float | int | None]) -> Scale:
    """The unit for a column of bytes, by its largest magnitude; powers of 1,024."""
    largest = _largest(values)
    for symbol, divisor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if largest >= divisor:
            return Scale(symbol, divisor, 1)
    return Scale("B", 1, 0)


def scale_of(name: str, values: Iterable[float | int | None], unit: str = "") -> Scale:
    """The unit for a numeric column: by its schema's unit, else by the suffix of its name.

    `_ns`, `_bytes`, `_frac`, `_gbps`, `_us`, `_ppm`, `_count` are known; anything else is written as it is,
    whole numbers without a point and others with four significant digits after rounding to the column.
    """
    if unit == "ns" or name.endswith("_ns"):
        return time_scale(values)
    if unit == "bytes" or name.endswith("_bytes"):
        return bytes_scale(values)
    if unit == "frac" or name.endswith("_frac"):
        return PERCENT
    if unit == "GB/s" or name.endswith("_gbps"):
        return Scale("GB/s", 1, 1)
    if unit == "us" or name.endswith("_us"):
        return Scale("us", 1, 2)
    if name.endswith("_ppm"):
        return Scale("ppm", 1, 3)
    if name == "p_value":
        return Scale("", 1, -1)
    finite = [value for value in values if value is not None]
    if all(isinstance(value, int) for value in finite):
        return COUNT
    largest = _largest(finite)
    return Scale("", 1, 1 if largest >= 1000 else 2 if largest >= 10 else 3 if largest >= 0.1 else 5)


def format_ns(value: float | int | None) -> str:
    """One time with its own unit, for sentences: `7.764 ms`, `2.10 us`, `-` for null."""
    scale = time_scale([value])
    text = scale.format(value)
    return text if text == MISSING else f"{text} {scale.symbol}"


def format_bytes(value: float | int | None) -> str:
    """One size with its own unit: `8.0 KiB`."""
    scale = bytes_scale([value])
    text = scale.format(value)
    return text if text == MISSING else f"{text} {scale.symbol}"


def format_frac(value: float | None) -> str:
    """A share as a percentage with one digit: `12.3 %`."""
    text = PERCENT.format(value)
    return text if text == MISSING else f"{text} %"


def plural(count: int, noun: str, several: str | None = None) -> str:
    """A number and what it counts, for sentences: `1 step`, `2 steps`, `1,024 steps`; `several` for other plurals."""
    return f"{count:,} {noun if count == 1 else several or f'{noun}s'}"
