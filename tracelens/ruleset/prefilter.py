"""A cheap first look: which names can a pattern match at all?

Python's regex engines walk every name at every position for every pattern, which takes a second for ten thousand
names and fifty rules. A relaxed pattern, with look-arounds and end anchors dropped, matches every name that the
pattern itself matches and more; it runs in polars' linear-time engine, and only the names that it finds are
searched with the pattern itself. Answers are therefore those of the pattern, whatever the two engines disagree on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import polars as pl

_FOREIGN = re.compile(
    r"\[\[|&&|--|~~|\|\||\\[^\w]?[AZbBGKRXpPNhHvVzgkm1-9]|\(\?(?!:|i:|i\)|[=!]|<[=!])|[*+?}][+]|\{|(?<!^)\(\?i\)"
)
_LOOKAROUND = re.compile(r"\(\?<?[=!]")


@cache
def relaxed(pattern: str) -> str | None:
    """A pattern for the linear engine that matches wherever `pattern` does; null where none can be made safely."""
    if not pattern.isascii() or _FOREIGN.search(pattern):
        return None
    kept: list[str] = []
    at = 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            kept.append(pattern[at : at + 2])
            at += 2
        elif letter == "[":
            end = _class_end(pattern, at)
            if "[" in pattern[at + 1 : end]:  # a class within a class, for one engine only
                return None
            kept.append(pattern[at:end])
            at = end
        elif _LOOKAROUND.match(pattern, at):
            at = _group_end(pattern, at)
            if pattern[at : at + 1] in ("*", "?"):
                at += 1
        elif letter == "$":
            at += 1
        else:
            kept.append(letter)
            at += 1
    text = "".join(kept)
    try:
        pl.Series([""]).str.contains(text)
    except pl.exceptions.PolarsError:
        return None
    return text


def as_series(names: Sequence[str]) -> pl.Series:
    """The names for `candidates`; those that are not ASCII are always candidates, so what they hold does not count."""
    return pl.Series([name if name.isascii() else "" for name in names], dtype=pl.String)


def candidates(pattern: str, names: Sequence[str], series: pl.Series, left: Sequence[int]) -> Sequence[int]:
    """Those of the positions `left` whose name the pattern may match.

    Args:
        pattern: a regex in Python's syntax.
        names: all names.
        series: the names at `left`, in that order, by `as_series`.
        left: positions in `names`.
    """
    text = relaxed(pattern)
    if text is None or not left:
        return left
    found = series.str.contains(text)
    return [index for index, hit in zip(left, found, strict=True) if hit or not names[index].isascii()]


def _class_end(pattern: str, at: int) -> int:
    """Just behind the character class that starts at `at`."""
    at += 1
    if pattern[at : at + 1] == "^":
        at += 1
    if pattern[at : at + 1] == "]":
        at += 1
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def _group_end(pattern: str, at: int) -> int:
    """Just behind the group that starts at `at`."""
    depth = 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            at += 1
        elif letter == "[":
            at = _class_end(pattern, at) - 1
        elif letter == "(":
            depth += 1
        elif letter == ")":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return at
