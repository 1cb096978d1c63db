"""Columns that repeat together, numbered as bytes before any of them is decoded.

Of a kernel's row only its times and its launch are its own; device, process, stream, name, shape and graph node are
those of every other launch of the same kernel. All that is such a row's *form*:

    record:     start | end | device | stream | correlation | pid | name | ... | grid | block
    form's bytes:             device | stream |  (blanked)  | pid | name | ... | grid | block | layout

Rows whose bytes are equal, under an equal layout, have equal values. A thousand rows hold a few hundred forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.ingest.sqlite_layouts import Bytes, Flags, Ints, Layouts, Spread, distinct

Codes = npt.NDArray[np.int32]


@dataclass(frozen=True)
class FormsOfBlock:
    """The forms of a block's rows.

    Attributes:
        codes: per row, the number of its form.
        found: per form, its bytes and, in the last eight, the number of its layout.
    """

    codes: Codes
    found: Bytes


class FormBytes:
    """Numbers the bytes of the columns that repeat.

    Args:
        buffer: the block's buffer, with padding behind it.
        layouts: layouts of the wanted columns.
        first: the wanted columns from this one on repeat together.
    """

    def __init__(self, buffer: Bytes, layouts: Layouts, first: int) -> None:
        self._buffer = buffer
        self._layouts = layouts
        self._mine = slice(first, None)

    def number(self, body: Ints, spread: Spread) -> FormsOfBlock:
        """The forms of rows whose values begin at `body` of the buffer."""
        before, width = (
            self._layouts.before[self._mine, spread.numbers],
            self._layouts.width[self._mine, spread.numbers],
        )
        begin = before.min(axis=0)
        reach = int(((before + width).max(axis=0) - begin).max())
        words = reach // 8 + 2  # the bytes, and the layout's number
        item = np.dtype((np.void, 8 * words))
        # Everything between the columns is blanked out: a mask's byte is -1 from where a value begins to where it ends.
        edges = np.zeros((len(begin), 8 * words + 1), np.int8)
        layout = np.arange(len(begin))
        np.add.at(edges, (layout, before - begin), -1)
        np.add.at(edges, (layout, before - begin + width), 1)
        masks = np.cumsum(edges, axis=1, dtype=np.int8)[:, :-1].copy()
        cells = np.ndarray((len(self._buffer) - 8 * words + 1,), item, self._buffer, strides=(1,))
        firsts = body + (begin[:1] if len(set(begin.tolist())) == 1 else np.take(begin, spread.which, mode="clip"))
        taken = cells[firsts].view("<u8").reshape(-1, words)
        same = bool((masks == masks[0]).all())
        blank = masks[:1] if same else np.take(masks.view(item).ravel(), spread.which, mode="clip")
        taken &= blank.view("<u8").reshape(-1, words)
        taken[:, -1] = spread.numbers[spread.which]
        codes, found = distinct(taken.view(np.uint8))
        return FormsOfBlock(codes, found)

    def together(self, blocks: Sequence[FormsOfBlock]) -> tuple[Codes, list[tuple[Ints, Flags | None]]]:
        """The forms of several blocks as one: the number of each row's form, and the columns of the distinct ones."""
        widest = max(block.found.shape[1] for block in blocks)
        joined = np.zeros((sum(len(block.found) for block in blocks), widest), np.uint8)
        at = 0
        for block in blocks:
            mine = joined[at : at + len(block.found)]
            mine[:, : block.found.shape[1] - 8] = block.found[:, :-8]
            mine[:, -8:] = block.found[:, -8:]
            at += len(block.found)
        codes, found = distinct(joined)
        parts, at = [], 0
        for block in blocks:
            parts.append(np.take(codes[at : at + len(block.found)], block.codes, mode="clip"))
            at += len(block.found)
        return np.concatenate(parts), self._decoded(found)

    def _decoded(self, found: Bytes) -> list[tuple[Ints, Flags | None]]:
        layout = found[:, -8:].copy().view("<i8").ravel()
        before, width = self._layouts.before[self._mine, layout], self._layouts.width[self._mine, layout]
        first = np.arange(len(found)) * found.shape[1] - before.min(axis=0)
        words = np.ndarray((found.size - 7,), ">i8", np.ascontiguousarray(found), strides=(1,))
        values = words[first + before].astype(np.int64) >> np.where(width > 0, 64 - 8 * width, 63)
        np.copyto(values, self._layouts.one[self._mine, layout], where=width == 0, casting="unsafe")
        absent = self._layouts.absent[self._mine, layout]
        return [(one, null if null.any() else None) for one, null in zip(values, absent, strict=True)]
