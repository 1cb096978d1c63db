"""What can be told of a pattern without a map: its alternatives, and whether it explodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import regex

PROBE_LIMIT_S = 0.25
"""A pattern that searches one probe for longer than this explodes."""

_REPEATS = re.compile(r"[*+{]")
_FLAGS = re.compile(r"\(\?[a-zA-Z]+\)")


def alternatives(pattern: str) -> list[str]:
    """The alternatives at the top of a pattern, in order; the pattern itself where it has one only.

    `a|b(?:c|d)|[|]` gives `a`, `b(?:c|d)` and `[|]`; a leading `(?i)` goes to each.
    """
    flags = _FLAGS.match(pattern)
    prefix = flags.group() if flags else ""
    parts = [""]
    depth, in_class, at = 0, False, len(prefix)
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            parts[-1] += pattern[at : at + 2]
            at += 2
            continue
        if in_class:
            in_class = letter != "]"
        elif letter == "[":
            in_class = True
            if pattern[at + 1 : at + 2] in ("]", "^") and pattern[at + 1 :].lstrip("^").startswith("]"):
                end = pattern.index("]", at) + 1
                parts[-1] += pattern[at:end]
                at = end
                continue
        elif letter == "(":
            depth += 1
        elif letter == ")":
            depth -= 1
        if letter == "|" and not depth and not in_class:
            parts.append("")
        else:
            parts[-1] += letter
        at += 1
    return [prefix + part for part in parts if part] or [pattern]


def exploding_probe(pattern: str, names: Iterable[str] = ()) -> str | None:
    """A text on which a pattern searches for too long; null if none of the probes is one, or it is no regex.

    Args:
        pattern: its own letters make the probes.
        names: real names to try as well.
    """
    compiled = compiled_or_reason(pattern)
    if isinstance(compiled, str) or not _REPEATS.search(pattern):
        return None
    return _made_probe(pattern) or _first_slow(compiled, names)


@cache
def _made_probe(pattern: str) -> str | None:
    letters = list(dict.fromkeys([*re.findall(r"[A-Za-z0-9_ :<=,]", pattern), "a", "0", "_", " "]))[:24]
    # The engine gives up at once on a text without a letter that the pattern must have, so some probes open with all.
    opening = "".join(letters)
    probes = [letter * 2000 + "!" for letter in letters]
    probes += [opening + letter * 2000 + "!" for letter in letters]
    probes += [opening + "a0_" * 700 + "!", opening + "aA " * 700 + "!"]
    return _first_slow(regex.compile(pattern), probes)


def _first_slow(compiled: Any, probes: Iterable[str]) -> str | None:
    for probe in probes:
        try:
            compiled.search(probe, timeout=PROBE_LIMIT_S)
        except TimeoutError:
            return probe
    return None


def matches(compiled: Any, names: Sequence[str], among: Iterable[int]) -> set[int]:
    """Positions of the names that a compiled pattern is found in; one that takes too long counts as not found."""
    found = set()
    for index in among:
        try:
            if compiled.search(names[index], timeout=PROBE_LIMIT_S):
                found.add(index)
        except TimeoutError:
            continue
    return found


@cache
def compiled_or_reason(pattern: str, *, ignore_case: bool = False) -> Any:
    """The compiled pattern, or the reason, a text, why it is not one."""
    try:
        return regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    except (regex.error, OverflowError, RecursionError, ValueError) as error:
        return str(error) or type(error).__name__
