"""Where the values of a record stand, found once for all rows that have the same types.

    header: one type per column, 1 byte each (0-9)       4  4  1  9  8  2 ...
    layout: bytes before each wanted value, its width    0 +4 +8 +9 ...

A table of millions of rows has a few dozen layouts: a column's widths follow the size of its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# Serial type -> width in bytes. Types that are no integers (real, text, blob, reserved), and the first byte of a longer
# varint, have none here: their layouts are not sound.
_WIDTHS = np.array([0, 1, 2, 3, 4, 6, 8, 0, 0, 0] + [0] * 246, np.int64)
_NULL, _ONE = 0, 9
_IS_INTEGER = np.array([one <= 9 and one != 7 for one in range(256)])


def distinct(values: Bytes) -> tuple[npt.NDArray[np.int32], Bytes]:
    """Rows of bytes numbered in the order of their appearance: the number of each, and the distinct rows."""
    count, width = values.shape
    array = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(values)])
    coded = array.dictionary_encode()
    found = np.frombuffer(coded.dictionary.buffers()[1], np.uint8, len(coded.dictionary) * width)
    return coded.indices.to_numpy(), found.reshape(-1, width)


@dataclass(frozen=True)
class Spread:
    """Which layout each row of a block has.

    Attributes:
        numbers: numbers of the layouts in the block.
        which: per row, the place of its layout in `numbers`.
    """

    numbers: Ints
    which: npt.NDArray[np.intp]

    def rows(self, of_layout: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A figure of each layout, per row; a single number where it is the same for all."""
        values = of_layout[self.numbers]
        if bool((values == values[0]).all()):
            return values[:1]
        return np.take(values, self.which, mode="clip")

    def any(self, of_layout: Flags) -> bool:
        """Whether something holds for a layout of the block."""
        return bool(of_layout[self.numbers].any())


class Layouts:
    """Layouts by their types, and what each says of the wanted columns.

    Args:
        places: positions of the wanted columns in the record, from 0.

    Attributes:
        sound: per layout, whether every type up to the last wanted column is an integer's.
        record_bytes: per layout, bytes of the values up to the last wanted column.
        before, width: per wanted column and layout, bytes before the value and of it.
        absent, one: per wanted column and layout, whether the value is null; whether it is the constant 1.
    """

    def __init__(self, places: Sequence[int]) -> None:
        self._places = np.array(places, np.int64)
        self._last = max(places)
        self._known: dict[bytes, int] = {}
        columns = len(places)
        self.sound: Flags = np.zeros(0, bool)
        self.record_bytes: Ints = np.zeros(0, np.int64)
        self.before, self.width = np.zeros((columns, 0), np.int64), np.zeros((columns, 0), np.int64)
        self.absent, self.one = np.zeros((columns, 0), bool), np.zeros((columns, 0), bool)

    def spread(self, types: Bytes) -> Spread:
        """The layouts of rows.

        Args:
            types: a row of types per row of the table; those behind the last wanted column are equal in all.
        """
        which, found = distinct(types)
        keys = [one.tobytes() for one in found]
        new = [place for place, key in enumerate(keys) if key not in self._known]
        if new:
            for place in new:
                self._known[keys[place]] = len(self._known)
            self._add(found[new, : self._last + 1])
        return Spread(np.array([self._known[key] for key in keys], np.int64), which.astype(np.intp))

    def _add(self, types: Bytes) -> None:
        widths = _WIDTHS[types]
        sound = _IS_INTEGER[types].all(axis=1)
        widths[~sound] = 0  # nothing is read by them, but places stay within the buffer
        before = np.cumsum(widths, axis=1) - widths
        mine = types[:, self._places]
        self.sound = np.concatenate([self.sound, sound])
        self.record_bytes = np.concatenate([self.record_bytes, widths.sum(axis=1)])
        self.before = np.concatenate([self.before, before[:, self._places].T], axis=1)
        self.width = np.concatenate([self.width, widths[:, self._places].T], axis=1)
        self.absent = np.concatenate([self.absent, (mine == _NULL).T], axis=1)
        self.one = np.concatenate([self.one, (mine == _ONE).T], axis=1)

    def values(
        self, words: npt.NDArray[np.int64], column: int, begin: Ints, spread: Spread
    ) -> tuple[Ints, Flags | None]:
        """A column's values, and which are null (None: none is).

        Args:
            words: the eight bytes from each byte of a buffer on, as if the low one came first.
            column: which of the wanted ones.
            begin: where in the buffer each row's values begin.
            spread: the layout of each row.
        """
        width = self.width[column]
        values: Ints = words[begin + spread.rows(self.before[column])]
        values.byteswap(inplace=True)
        np.right_shift(values, spread.rows(np.where(width > 0, 64 - 8 * width, 63)), out=values)
        if not spread.any(width == 0):
            return values, None
        # Null, or one of the constants 0 and 1, which take no byte.
        np.copyto(values, spread.rows(self.one[column].astype(np.int64)), where=spread.rows(width == 0))
        if not spread.any(self.absent[column]):
            return values, None
        return values, np.broadcast_to(spread.rows(self.absent[column]), len(values)).copy()
