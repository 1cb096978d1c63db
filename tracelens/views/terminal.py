"""Tables, sentences and notices for a terminal, plain when piped.

    screen = Screen(sys.stdout)
    screen.sentences(result.sentences)
    screen.table(frame, schema, title="...", columns=(...), optional=(...), group="rank", total=(...))
    notices(result.notices, sys.stderr)

A table is laid out here rather than by a library, because what has to give when it does not fit is the table's own
affair: long text is shortened in the middle, then optional columns go, one by one, and a line says which. Numbers
are right-aligned in one unit per column, and the head names the unit. Null is `-`.

On a terminal there are colours (unless `NO_COLOR` is set) and bars. Elsewhere the output is unstyled, drawn with
ASCII alone, and 100 columns wide unless `COLUMNS` says otherwise. `rich` is imported only when there is colour to
draw: `--help` and pipes never pay for it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

import polars as pl

from tracelens.frames import Notice, Schema
from tracelens.units import plural
from tracelens.views.layout import GAP, Field, drawn_bar, fields_of, pad, runs, shrink, spread, with_totals
from tracelens.views.text import encodable, shorten_middle, visible

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 100
_COMFORTABLE_TEXT = 36
_LEAST_TEXT = 14
_BAR_WIDTHS = (20, 12, 8)


class Screen:
    """Where a command's answer is drawn.

    Args:
        stream: usually stdout.
        width: columns; by default the terminal's, or 100 where there is none.
        attached: whether a person looks on; by default whether the stream is a terminal.
    """

    def __init__(self, stream: TextIO, *, width: int | None = None, attached: bool | None = None) -> None:
        """Draw on `stream`; nothing is written yet."""
        self.stream = stream
        self.attached = stream.isatty() if attached is None else attached
        self.colour = self.attached and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.width = width or shutil.get_terminal_size((PIPED_WIDTH, 24)).columns
        encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "")
        self.blocks = self.attached and encoding.startswith("utf")
        self._console: Console | None = None

    def line(self, text: str = "", style: str = "") -> None:
        """One line, as it is: nothing wraps, nothing is markup; control characters become visible."""
        self._spans([(text, style)])

    def sentences(self, sentences: Iterable[str]) -> None:
        """The answer in words, each wrapped to the width; a blank line after the last."""
        written = False
        for position, sentence in enumerate(sentences):
            self._wrapped(sentence, "bold" if position == 0 else "")
            written = True
        if written:
            self.line()

    def table(
        self,
        frame: pl.DataFrame,
        schema: Schema | None = None,
        *,
        title: str = "",
        columns: Sequence[str] | None = None,
        optional: Sequence[str] = (),
        group: str | None = None,
        total: Sequence[str] = (),
        bar: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
        quiet: tuple[str, str] | None = None,
        one_unit: Sequence[str] = (),
    ) -> None:
        """Draw one table.

        Args:
            frame: the rows, in the order to be shown.
            schema: gives units where a column's name does not.
            title: a line above it.
            columns: which columns, in which order; by default all.
            optional: columns that may be left out where the width is short, the first one first.
            group: a column whose repeated values are shown once, a blank line between groups.
            total: columns that a closing row `total` sums (one per group); the other cells of it stay empty.
            bar: a share column (0 to 1) to draw as bars on a terminal.
            labels: other words for a column's head.
            limit: at most this many rows; how many more there are is said.
            quiet: (column, value): rows with that text are dimmed.
            one_unit: columns that are compared with each other and therefore share a unit.
        """
        if title:
            self._wrapped(title, "bold")
        shown = frame.select(columns) if columns is not None else frame
        hidden = 0
        if limit is not None and shown.height > limit:
            hidden = shown.height - limit
            shown = shown.head(limit)
        if shown.is_empty():
            self.line("(no rows)", "dim")
            self.line()
            return
        bars = shown[bar].to_list() if bar and self.attached else []
        keys = frame.head(shown.height)[group].to_list() if group else []
        blocks = runs(keys, shown.height)
        shown, kinds = with_totals(shown, blocks, [name for name in total if name in shown.columns], group)
        if bars:
            bars = spread(bars, kinds)
        fields = fields_of(shown, schema, labels or {}, kinds, group, one_unit)
        dropped = self._fit(fields, optional, bool(bars))
        self._draw(fields, kinds, bars, quiet, shown)
        if dropped:
            self._wrapped(f"({', '.join(dropped)}: no room in {self.width} columns)", "dim")
        if hidden:
            self.line(f"({plural(hidden, 'more row')})", "dim")
        self.line()

    def _wrapped(self, text: str, style: str) -> None:
        import textwrap

        for line in textwrap.wrap(visible(text), max(self.width, 20), break_on_hyphens=False) or [""]:
            self.line(line, style)

    def _fit(self, fields: list[Field], optional: Sequence[str], bars: bool) -> list[str]:
        """Set every field's width so that a line fits; drops optional fields, and says which."""
        for field in fields:
            field.width = field.natural()
        dropped: list[str] = []
        droppable = [name for name in optional if any(field.name == name for field in fields)]
        while True:
            room = self.width - (_BAR_WIDTHS[-1] + GAP if bars else 0)
            if shrink(fields, room, _COMFORTABLE_TEXT):
                break
            if not droppable:
                shrink(fields, room, _LEAST_TEXT)
                break
            name = droppable.pop(0)
            dropped.append(name)
            fields[:] = [field for field in fields if field.name != name]
            for field in fields:
                field.width = field.natural()
        spare = room - sum(field.width for field in fields) - GAP * (len(fields) - 1)
        for field in fields:
            wider = field.at_ease() - field.width
            if wider <= spare:
                field.width += wider
                spare -= wider
        return dropped

    def _draw(
        self,
        fields: list[Field],
        kinds: list[str],
        bars: list[float | None],
        quiet: tuple[str, str] | None,
        shown: pl.DataFrame,
    ) -> None:
        heads = [field.head(field.width) for field in fields]
        height = max(len(head) for head in heads)
        for row in range(height):
            parts = []
            for field, head in zip(fields, heads, strict=True):
                text = head[row - (height - len(head))] if row >= height - len(head) else ""
                parts.append(pad(text, field.width, field.numeric))
            self._spans([((" " * GAP).join(parts).rstrip(), "bold cyan")])
        rule = "─" if self.blocks else "-"
        self._spans([((" " * GAP).join(rule * field.width for field in fields), "dim")])
        used = sum(field.width for field in fields) + GAP * len(fields)
        size = next((width for width in _BAR_WIDTHS if used + width <= self.width), _BAR_WIDTHS[-1])
        scale = max([value for value in bars if value is not None and value == value], default=0.0)
        quiet_rows = shown[quiet[0]].to_list() if quiet and quiet[0] in shown.columns else []
        for index, kind in enumerate(kinds):
            if kind == "blank":
                self.line()
                continue
            ellipsis = "…" if self.blocks else "..."
            style = "bold" if kind == "total" else ""
            if quiet and quiet_rows and quiet_rows[index] == quiet[1]:
                style = "dim"
            parts = [
                pad(shorten_middle(field.texts[index], field.width, ellipsis), field.width, field.numeric)
                for field in fields
            ]
            spans = [((" " * GAP).join(parts).rstrip() if not bars else (" " * GAP).join(parts), style)]
            if bars and bars[index] is not None:
                drawn = drawn_bar(bars[index] or 0.0, scale, size, self.blocks)
                spans.append((" " * GAP + drawn, "dim" if style == "dim" else "cyan"))
            self._spans(spans)

    def _spans(self, spans: list[tuple[str, str]]) -> None:
        encoding = getattr(self.stream, "encoding", None)
        safe = [(encodable(visible(text), encoding), style) for text, style in spans]
        if not self.colour:
            self.stream.write("".join(text for text, _ in safe).rstrip() + "\n")
            return
        from rich.console import Console
        from rich.text import Text

        if self._console is None:
            self._console = Console(
                file=self.stream, force_terminal=True, width=10_000, markup=False, highlight=False, emoji=False
            )
        line = Text()
        for text, style in safe:
            line.append(text, style=style or None)
        self._console.print(line, soft_wrap=True)


def notices(items: Iterable[Notice], stream: TextIO) -> None:
    """Write notices, warnings first: `warning: what was seen (12)` and its hint, indented, below."""
    screen = Screen(stream)
    for notice in sorted(items, key=lambda notice: notice.severity != "warning"):
        count = "" if notice.untold_count is None else f" ({notice.untold_count:,})"
        style = "yellow" if notice.severity == "warning" else "dim"
        label = "warning" if notice.severity == "warning" else "note"
        screen._spans([(f"{label}: ", f"bold {style}"), (notice.message + count, "")])
        if notice.hint:
            screen._spans([(f"  {notice.hint}", "dim")])
