"""Frames as compact columns for the page's script, and JSON that is safe inside a script element."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import polars as pl

from tracelens.frames import Schema
from tracelens.units import scale_of
from tracelens.views.records import bare_name, is_identifier, plural
from tracelens.views.text import shorten_middle

_DICTIONARY_SAVES = 2
_SIGNIFICANT = 9
# A demangled name can run to 100 kB; a page is for eyes, and machine formats hold the whole.
LONGEST_TEXT = 800


def table(
    frame: pl.DataFrame, schema: Schema | None, *, rows_of: int | None = None, one_unit: Collection[str] = ()
) -> dict[str, Any]:
    """One table as the script reads it.

    Args:
        frame: the rows to embed.
        schema: gives each column's meaning and unit.
        rows_of: how many rows the full table has, where `frame` is a part of it.
        one_unit: columns that are compared with each other and therefore share a unit.

    Returns:
        `rows` (count), `of` (count of the full table), `row` (what one row is), `columns`: for each a name, a
        label, a unit, divisor and decimals (numbers), a meaning, a type (`n` number, `i` identifier, `s` text,
        `b` boolean) and its values `v`; texts that repeat are indices `v` into `d`.
    """
    described = {column.name: column for column in schema.columns} if schema else {}
    columns = []
    together = [value for name in one_unit if name in frame.columns for value in frame[name].to_list()]
    for name in frame.columns:
        column = described.get(name)
        entry = _column(frame[name], column.unit if column else "", together if name in one_unit else None)
        if column is not None and column.meaning:
            entry["meaning"] = column.meaning
        columns.append(entry)
    return {
        "rows": frame.height,
        "of": frame.height if rows_of is None else rows_of,
        "row": schema.row if schema else "",
        "columns": columns,
    }


def script_json(value: Any) -> str:
    """`value` as JSON that cannot end the script element or start a comment in it; ASCII only."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _column(series: pl.Series, unit: str, scaled_by: list[Any] | None) -> dict[str, Any]:
    name = series.name
    if series.dtype == pl.Boolean:
        return {"name": name, "label": _label(name), "type": "b", "v": series.to_list()}
    if series.dtype.is_numeric():
        if series.dtype.is_float():
            finite = pl.when(pl.col(name).is_finite()).then(pl.col(name).round_sig_figs(_SIGNIFICANT))
            values = series.to_frame().select(finite.alias(name))[name].to_list()
        else:
            values = series.to_list()
        if is_identifier(name):
            return {"name": name, "label": _label(name), "type": "i", "v": values}
        scale = scale_of(name, scaled_by or values, unit)
        return {
            "name": name,
            "label": _label(bare_name(name)),
            "type": "n",
            "unit": scale.symbol,
            "divisor": scale.divisor,
            "decimals": scale.decimals,
            "v": values,
        }
    texts = _texts(series)
    unique = texts.drop_nulls().unique(maintain_order=True).to_list()
    if len(unique) * _DICTIONARY_SAVES < texts.len():
        index = {text: position for position, text in enumerate(unique)}
        coded = [None if text is None else index[text] for text in texts]
        return {"name": name, "label": _label(name), "type": "s", "d": unique, "v": coded}
    return {"name": name, "label": _label(name), "type": "s", "v": texts.to_list()}


def _texts(series: pl.Series) -> pl.Series:
    if isinstance(series.dtype, pl.List):
        joined = series.to_frame().select(
            pl.col(series.name).list.eval(pl.element().cast(pl.String)).list.join(", ").alias(series.name)
        )
        return joined[series.name]
    texts = series.cast(pl.String)
    if (texts.str.len_chars() > LONGEST_TEXT).any():
        cut = [None if text is None else shorten_middle(text, LONGEST_TEXT, " … ") for text in texts]
        return pl.Series(series.name, cut, dtype=pl.String)
    return texts


def _label(name: str) -> str:
    return plural(name).replace("_", " ")
