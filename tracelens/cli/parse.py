"""The words of options as values: rank lists, step ranges, times, rank maps."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tracelens.errors import UsageError
from tracelens.memory import bytes_of, default_bytes

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NUMBER = re.compile(r"[0-9]{1,18}")
_MOST_RANKS = 65_536
_RANKS_END = 1 << 20
_LEAST_MEMORY = 64 * 10**6


def ranks(text: str) -> tuple[int, ...]:
    """`0-7,9` as (0, ..., 7, 9)."""
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise UsageError(f"--ranks {text!r} is not a list of ranks", "Give it as 0-7 or 0,2,5.")
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if last < first or last - first > _MOST_RANKS:
            raise UsageError(f"--ranks {text!r}: {part} is not a range", "Give it as 0-7 or 0,2,5.")
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


def steps(text: str) -> tuple[int, int]:
    """`10-50` as (10, 50); `7` as (7, 7)."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--steps {text!r} is not a range of steps", "Give it as 10-50.")
    first, last = int(match.group(1)), int(match.group(2) or match.group(1))
    if last < first:
        raise UsageError(f"--steps {text!r} runs backwards", f"Did you mean {last}-{first}?")
    return first, last


def time_s(text: str) -> tuple[float | None, float | None]:
    """`1.5..2` as (1.5, 2.0); either side may be left open."""
    low, dots, high = text.partition("..")
    try:
        window = (float(low) if low.strip() else None, float(high) if high.strip() else None)
    except ValueError:
        dots = ""
        window = (None, None)
    if not dots or window == (None, None) or any(value is not None and not abs(value) < 1e9 for value in window):
        raise UsageError(
            f"--time {text!r} is not a window",
            "Give it in seconds from the first event: --time 1.5..2.0, 1.5.. or ..2.0",
        )
    if None not in window and window[0] >= window[1]:  # type: ignore[operator]
        raise UsageError(f"--time {text!r} is empty", "Give it as FROM..TO with FROM before TO.")
    return window


def rank_map(text: str) -> dict[int, tuple[str, int | None]]:
    """A rank map: `0=a.sqlite:0,1=a.sqlite:1`, or a file with one such entry a line, or a JSON object.

    Raises:
        UsageError: an entry cannot be read, or a rank or a GPU stands there twice.
    """
    entries = text.split(",")
    if "=" not in text or _is_file(text):
        entries = _rank_map_file(Path(text))
    found: dict[int, tuple[str, int | None]] = {}
    for entry in entries:
        rank, equals, place = entry.strip().partition("=")
        path, colon, device = place.rpartition(":")
        if not colon or not _NUMBER.fullmatch(device):
            path, device = place, ""
        if not equals or not _NUMBER.fullmatch(rank.strip()) or not path:
            raise UsageError(
                f"--rank-map: {entry.strip()!r} is not rank=path:device",
                "Give it as 0=tp8.sqlite:0,1=tp8.sqlite:1 or as a file.",
            )
        if int(rank) >= _RANKS_END:
            raise UsageError(f"--rank-map gives rank {int(rank)}; no rank is that large", "")
        if int(rank) in found:
            raise UsageError(f"--rank-map gives rank {int(rank)} twice", "Give each GPU one rank.")
        found[int(rank)] = (path.strip(), int(device) if device else None)
    return found


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # longer than any file's name, or none at all
        return False


def _rank_map_file(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a name that no file has
        raise UsageError(
            f"--rank-map {path}: cannot be read ({type(error).__name__})", "Give a file, or rank=path:device,..."
        ) from error
    if text.lstrip().startswith("{"):
        try:
            return [f"{rank}={place}" for rank, place in json.loads(text).items()]
        except (ValueError, AttributeError) as error:
            raise UsageError(f"--rank-map {path}: not a JSON object of rank: path:device", "") from error
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def memory(text: str | None) -> str:
    """A memory limit; by default half the machine's, at most 4 GB."""
    if text is None:
        return f"{default_bytes()}B"
    try:
        limit = bytes_of(text)
    except ValueError:
        limit = 0
    if limit < _LEAST_MEMORY:
        raise UsageError(f"--memory {text!r} is not a size of at least 64MB", "Give it as 4GB or 800MB.")
    return f"{limit}B"
