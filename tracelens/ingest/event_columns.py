"""Columns of events in as few bytes as their values need.

Most columns of a capture hold few distinct values (streams, graph nodes, launch shapes) or small numbers (durations,
correlation ids), so ten million events fit where their nine columns of 64 bits would not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_WIDTHS = (np.uint8, np.int16, np.uint16, np.int32, np.uint32)


def numbers(array: pa.Array) -> tuple[Ints, Flags | None]:
    """An int64 array's values, those of nulls 0, and which are null; None where none is."""
    if array.null_count == 0:
        return array.to_numpy(), None
    missing = array.is_null().to_numpy(zero_copy_only=False)
    return array.fill_null(0).to_numpy(), missing


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """The same numbers in the narrowest type that holds them."""
    if len(values) == 0:
        return values.astype(np.uint8)
    low, high = int(values.min()), int(values.max())
    for width in _WIDTHS:
        bounds = np.iinfo(width)
        if bounds.min <= low and high <= bounds.max:
            return values.astype(width)
    return values.astype(np.int64)


@dataclass
class Codes:
    """Values numbered in the order of their appearance; null is a value like any other."""

    _code: dict[Any, int] = field(default_factory=dict)

    def encode(self, array: pa.Array) -> NDArray[np.int32]:
        """The number of each value."""
        coded = array.dictionary_encode(null_encoding="encode")
        own = np.array([self.number(value) for value in coded.dictionary.to_pylist()] or [0], np.int32)
        numbered: NDArray[np.int32] = own[coded.indices.to_numpy(zero_copy_only=False)]
        return numbered

    def number(self, value: Any) -> int:
        """The number of one value."""
        return self._code.setdefault(value, len(self._code))

    @property
    def values(self) -> list[Any]:
        """The values; a value's place is its number."""
        return list(self._code)


def launch_shape(columns: Mapping[str, pa.Array], names: Sequence[str]) -> pa.Array:
    """One number for the values of several columns: equal values, equal numbers; the number itself means nothing.

    A null counts as a value of its own. Different values give equal numbers by a chance of one in 2^63.
    """
    mixed = np.zeros(len(columns[names[0]]), np.uint64)
    for name in names:
        values, missing = numbers(columns[name])
        part = values.view(np.uint64)
        if missing is not None:
            part = np.where(missing, np.uint64(0x9E3779B97F4A7C15), part)
        mixed ^= part
        mixed *= np.uint64(0xD6E8FEB86659FD93)
        mixed ^= mixed >> np.uint64(32)
    return pa.array((mixed >> np.uint64(1)).view(np.int64))
