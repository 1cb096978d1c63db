"""Values of an export as the types that they should have: SQLite stores any type in any column."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

_LARGEST = 2**63 - 1


def whole(value: object) -> int | None:
    """`value` if it is an integer of 64 bits, else None."""
    if isinstance(value, int) and not isinstance(value, bool) and -_LARGEST - 1 <= value <= _LARGEST:
        return value
    return None


def written(value: object) -> str | None:
    """`value` as text, None if it is NULL; bytes that are not UTF-8 are replaced, and so are lone surrogates."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value).encode("utf-8", "replace").decode("utf-8")


def number_in(value: object) -> int | None:
    """The integer that a text spells, as metadata values do; None if it spells none of 64 bits."""
    text = written(value)
    if text is None or len(text) > 20:
        return None
    try:
        return whole(int(text))
    except ValueError:
        return None


def ordered(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows in an order of their values alone, so that their place in the file decides nothing."""
    return sorted(rows, key=lambda row: [(value is not None, type(value).__name__, value) for value in row])


def as_int64(array: pa.Array) -> tuple[pa.Array, int]:
    """An array as nullable int64, and how many values were no integers of 64 bits and became null."""
    if array.type == pa.int64():
        return array, 0
    try:
        cast = array.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        cast = pa.array([whole(value) for value in array.to_pylist()], pa.int64())
    else:
        if not (pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
            cast = pa.nulls(len(array), pa.int64())
    return cast, cast.null_count - array.null_count


def as_text(array: pa.Array) -> pa.Array:
    """An array as strings; bytes that are not UTF-8 are replaced."""
    if pa.types.is_string(array.type):
        return array
    try:
        return array.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.array([written(value) for value in array.to_pylist()], pa.string())
