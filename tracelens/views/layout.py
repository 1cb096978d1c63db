"""Laying out a table in characters: what each column needs, and what gives when it does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from tracelens.frames import Schema
from tracelens.views.records import cells, plural

GAP = 2
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass
class Field:
    """One column as it will be drawn."""

    name: str
    words: list[str]
    unit: str
    texts: list[str]
    numeric: bool
    width: int = 0
    style: str = ""

    def natural(self) -> int:
        """The width that shows every cell whole; the head may wrap between words."""
        head = max((len(word) for word in [*self.words, self.unit]), default=0)
        return max([head, *(cells_wide(text) for text in self.texts)])

    def lines(self, width: int) -> list[str]:
        """The head's words, filled greedily into `width`."""
        lines: list[str] = []
        for word in self.words:
            if lines and len(lines[-1]) + 1 + len(word) <= width:
                lines[-1] += f" {word}"
            else:
                lines.append(word)
        return lines

    def at_ease(self) -> int:
        """The width at which the words take two lines at most."""
        width = self.width
        while len(self.lines(width)) > 2:
            width += 1
        return width

    def head(self, width: int) -> list[str]:
        """The head's lines: its words, then the unit."""
        lines = self.lines(width)
        if self.unit:
            if lines and len(lines) == 1 and len(lines[0]) + 1 + len(self.unit) <= width:
                lines[0] += f" {self.unit}"
            else:
                lines.append(self.unit)
        return lines


def cells_wide(text: str) -> int:
    """The cells that `text` takes: East Asian wide characters take two."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def pad(text: str, width: int, right: bool) -> str:
    """`text` filled up with blanks to `width` cells."""
    space = " " * max(0, width - cells_wide(text))
    return space + text if right else text + space


def drawn_bar(value: float, scale: float, width: int, blocks: bool) -> str:
    """A bar as long as `value` is of `scale`, in at most `width` cells: eighths of a block, or `#`."""
    if scale <= 0 or value <= 0:
        return ""
    cells_filled = value / scale * width
    if not blocks:
        return "#" * max(1, round(cells_filled))
    eighths = max(1, round(cells_filled * 8))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def runs(keys: list[object], height: int) -> list[range]:
    """The row ranges of equal consecutive keys; one range without keys."""
    if not keys:
        return [range(height)]
    starts = [index for index in range(height) if index == 0 or keys[index] != keys[index - 1]]
    return [range(start, end) for start, end in zip(starts, [*starts[1:], height], strict=True)]


def with_totals(
    frame: pl.DataFrame, blocks: list[range], total: Sequence[str], group: str | None
) -> tuple[pl.DataFrame, list[str]]:
    """`frame` with a total row after each block and a blank row between blocks; and what each row is."""
    pieces: list[pl.DataFrame] = []
    kinds: list[str] = []
    spread = len(blocks) > 1 and any(len(block) > 1 for block in blocks)
    empty = pl.DataFrame({name: [None] for name in frame.columns}, schema=frame.schema)
    for position, block in enumerate(blocks):
        if position and spread:
            pieces.append(empty)
            kinds.append("blank")
        rows = frame.slice(block.start, len(block))
        pieces.append(rows)
        kinds.extend(["row"] * len(block))
        if total:
            # A sum over nothing but nulls is not measured either: polars would say 0.
            summed = [name for name in total if rows[name].null_count() < rows.height]
            sums = {name: rows[name].sum() if name in summed else None for name in frame.columns}
            if group in frame.columns:
                sums[str(group)] = rows[str(group)][0]
            pieces.append(pl.DataFrame({name: [value] for name, value in sums.items()}, schema=frame.schema))
            kinds.append("total")
    return pl.concat(pieces), kinds


def spread(values: list[float | None], kinds: list[str]) -> list[float | None]:
    """One value a row of `kinds`: those given for plain rows, null for totals and blanks."""
    iterator: Iterator[float | None] = iter(values)
    return [next(iterator) if kind == "row" else None for kind in kinds]


def fields_of(
    frame: pl.DataFrame,
    schema: Schema | None,
    labels: Mapping[str, str],
    kinds: list[str],
    group: str | None,
    one_unit: Sequence[str],
) -> list[Field]:
    """The columns of a table with its totals and blanks; repeated values of the group are left empty."""
    fields = []
    for (bare, texts, unit, numeric), name in zip(cells(frame, schema, one_unit), frame.columns, strict=True):
        words = labels.get(name, plural(bare)).split()
        if name not in labels:
            words = [word for part in words for word in part.split("_") if word]
        shown = ["" if kind == "blank" else text for kind, text in zip(kinds, texts, strict=True)]
        fields.append(Field(name, words, unit, shown, numeric))
    if group is not None:
        for field in fields:
            if field.name == group:
                previous = None
                for index, text in enumerate(field.texts):
                    if kinds[index] == "blank":
                        previous = None
                    elif text == previous:
                        field.texts[index] = ""
                    else:
                        previous = text
    _name_totals(fields, kinds, group)
    return fields


def _name_totals(fields: list[Field], kinds: list[str], group: str | None) -> None:
    """Write `total` into the first text cell of each total row, and clear the cells that sum nothing."""
    place = next((field for field in fields if not field.numeric and field.name != group), None)
    for index, kind in enumerate(kinds):
        if kind != "total":
            continue
        for field in fields:
            if field.texts[index] == "-":
                field.texts[index] = ""
        if place is not None:
            place.texts[index] = "total"


def shrink(fields: list[Field], room: int, least: int) -> bool:
    """Narrow text fields, widest first, until a line fits in `room`; whether it does."""
    while True:
        excess = sum(field.width for field in fields) + GAP * (len(fields) - 1) - room
        if excess <= 0:
            return True
        wide = [field for field in fields if not field.numeric and field.width > max(least, _head_width(field))]
        if not wide:
            return False
        # Down to the next widest at most, so that two long columns end up alike.
        ordered = sorted(wide, key=lambda field: -field.width)
        widest = ordered[0]
        next_width = ordered[1].width if len(ordered) > 1 else 0
        step = excess if widest.width - next_width >= excess else max(1, widest.width - next_width)
        widest.width = max(least, _head_width(widest), widest.width - step)


def _head_width(field: Field) -> int:
    return max((len(word) for word in [*field.words, field.unit]), default=0)
