"""Results and traces as HTML for a notebook's output cell: sentences, tables, notices; no script, nothing fetched."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from tracelens.frames import Notice, Result, Schema
from tracelens.views.records import cells, plural
from tracelens.views.text import shorten_middle, visible

_ROWS = 20
_TEXT = 90
_STYLE = (
    "<style>.tracelens{font:13px/1.5 system-ui,sans-serif}.tracelens table{border-collapse:collapse;margin:4px 0 14px;"
    "font-variant-numeric:tabular-nums}.tracelens th,.tracelens td{padding:2px 10px;border-bottom:1px solid rgba(128,128,"
    "128,.25);text-align:left}.tracelens .n{text-align:right}.tracelens p{margin:2px 0}.tracelens .lead{font-weight:600}"
    ".tracelens .note{opacity:.7}</style>"
)


def result_html(result: Result, *, rows: int = _ROWS) -> str:
    """What a result's `_repr_html_` returns: its sentences, the first rows of each table, its notices."""
    parts = [_STYLE, '<div class="tracelens">']
    for position, sentence in enumerate(result.sentences):
        parts.append(f"<p{' class=lead' if position == 0 else ''}>{_safe(sentence)}</p>")
    for name, frame in result.tables.items():
        parts.append(table_html(frame, result.schemas.get(name), title=name, rows=rows))
    parts.extend(_notices(result.notices))
    return "".join([*parts, "</div>"])


def trace_html(
    exports: Sequence[str], ranks: Sequence[int], facts: Iterable[tuple[str, Any]], notices: Iterable[Notice]
) -> str:
    """What a trace's `_repr_html_` returns: its exports, ranks, some facts, and what was noticed on loading."""
    lines = [("exports", ", ".join(exports)), ("ranks", ", ".join(map(str, ranks))), *facts]
    body = "".join(f"<tr><th>{_safe(str(key))}</th><td>{_safe(str(value))}</td></tr>" for key, value in lines)
    return "".join([_STYLE, '<div class="tracelens"><table>', body, "</table>", *_notices(notices), "</div>"])


def table_html(frame: pl.DataFrame, schema: Schema | None, *, title: str = "", rows: int = _ROWS) -> str:
    """One table: units in the heads, meanings on hover, long texts shortened in the middle, the rest counted."""
    meanings = {column.name: column.meaning for column in schema.columns} if schema else {}
    heads, columns = [], []
    for (bare, texts, unit, numeric), name in zip(cells(frame.head(rows), schema), frame.columns, strict=True):
        kind = ' class="n"' if numeric else ""
        label = plural(bare).replace("_", " ") + (f" ({unit})" if unit else "")
        heads.append(f'<th{kind} title="{_safe(meanings.get(name, ""))}">{_safe(label)}</th>')
        columns.append([f"<td{kind}>{html.escape(shorten_middle(text, _TEXT, '…'))}</td>" for text in texts])
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in zip(*columns, strict=True))
    more = (
        f'<p class="note">{frame.height - rows:,} more row{"" if frame.height - rows == 1 else "s"}</p>'
        if frame.height > rows
        else ""
    )
    caption = f"<p><b>{_safe(title)}</b></p>" if title else ""
    return f"{caption}<table><thead><tr>{''.join(heads)}</tr></thead><tbody>{body}</tbody></table>{more}"


def _notices(notices: Iterable[Notice]) -> list[str]:
    return [
        f'<p class="note">{notice.severity}: {_safe(notice.message)}'
        + ("" if notice.untold_count is None else f" ({notice.untold_count:,})")
        + (f" {_safe(notice.hint)}" if notice.hint else "")
        + "</p>"
        for notice in notices
    ]


def _safe(text: str) -> str:
    return html.escape(visible(text), quote=True)
