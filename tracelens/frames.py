"""What an answer is made of: frames with a checked schema, notices, and where the answer came from.

Every analysis returns a `Result`. Its tables are polars frames whose columns, order, types, units and meanings
stand in a `Schema`; the schema is checked when the result is made, and the same schema feeds `--describe`, the
docs and the report, so that a column is explained once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import polars as pl

from tracelens.errors import as_sentence

Severity = Literal["info", "warning"]


@dataclass(frozen=True, order=True)
class Notice:
    """Something the reader must know to trust, or distrust, an answer.

    Attributes:
        code: stable identifier in kebab-case, for programs.
        severity: `info`, or `warning` (with `--strict` a warning makes the exit code 1).
        message: what was seen, one sentence.
        hint: what to do about it; may be empty.
        count: how many rows, ranks or instances it concerns; null where a number has no meaning.
    """

    code: str
    severity: Severity
    message: str
    hint: str = ""
    count: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "hint", as_sentence(self.hint))

    @property
    def untold_count(self) -> int | None:
        """`count` where the message does not tell that number itself, for views to add; null for none and for 0."""
        if not self.count or re.search(rf"(?<![\d.,])(?:{self.count}|{self.count:,})(?![\d]|[.,]\d)", self.message):
            return None
        return self.count


@dataclass(frozen=True)
class Column:
    """One column of a table: its name, type, unit and meaning.

    Attributes:
        name: as in the machine output; the suffix carries the unit (`_ns`, `_frac`, `_count`, ...).
        dtype: a polars data type.
        meaning: one sentence without a full stop.
        unit: `ns`, `frac`, `count`, `bytes`, `GB/s`, `us`, ... or empty.
    """

    name: str
    dtype: pl.DataType | type[pl.DataType]
    meaning: str
    unit: str = ""


class Schema:
    """The columns of one table, in order; checks frames against itself.

    Args:
        row: what one row is, one sentence without a full stop.
        columns: the columns in output order.
    """

    def __init__(self, row: str, *columns: Column) -> None:
        self.row = row
        self.columns = columns

    @property
    def names(self) -> list[str]:
        """Column names in output order."""
        return [column.name for column in self.columns]

    def empty(self) -> pl.DataFrame:
        """A frame of this schema without rows: the analysis ran and found nothing."""
        return pl.DataFrame(schema={column.name: column.dtype for column in self.columns})

    def frame(self, data: pl.DataFrame | Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> pl.DataFrame:
        """`data` with exactly this schema's columns, in order and type.

        Raises:
            KeyError: a column is missing; that is a bug of the analysis, never of the input.
        """
        if isinstance(data, pl.DataFrame):
            frame = data
        elif isinstance(data, Mapping):
            frame = pl.DataFrame(dict(data))
        else:
            rows = list(data)
            frame = pl.DataFrame(rows, infer_schema_length=None) if rows else self.empty()
        missing = [name for name in self.names if name not in frame.columns]
        if missing:
            raise KeyError(f"columns {missing} are missing from a table of: {self.row}")
        return frame.select(pl.col(column.name).cast(column.dtype) for column in self.columns)

    def check(self, frame: pl.DataFrame) -> pl.DataFrame:
        """`frame` itself, if its columns, order and types are those of the schema.

        Raises:
            TypeError: they differ; a bug of the analysis.
        """
        expected = {
            column.name: pl.DataFrame(schema={column.name: column.dtype}).schema[column.name] for column in self.columns
        }
        if dict(frame.schema) != expected or frame.columns != self.names:
            raise TypeError(f"a table of: {self.row}\nexpected {expected}\ngot      {dict(frame.schema)}")
        return frame

    def describe(self) -> pl.DataFrame:
        """One row per column: column, dtype, unit, meaning."""
        return pl.DataFrame(
            {
                "column": self.names,
                "dtype": [str(column.dtype) for column in self.columns],
                "unit": [column.unit for column in self.columns],
                "meaning": [column.meaning for column in self.columns],
            }
        )


@dataclass(frozen=True)
class Result:
    """The answer to one question: named frames, sentences, notices and provenance.

    Subclasses name their command and declare one `Schema` per table. A table that could not be computed is absent
    from `tables`, and a notice says why; a table with no rows was computed and is empty. `result["buckets"]` and
    `result.buckets` are the same frame.

    Attributes:
        tables: name -> frame, in output order.
        notices: what the reader must know, most severe first.
        provenance: exports, versions, ranks, rule set, step marker, window, clock method, attribution.
        sentences: the answer in words, most important first; may be empty.
    """

    command: ClassVar[str] = ""
    schemas: ClassVar[Mapping[str, Schema]] = {}

    tables: Mapping[str, pl.DataFrame]
    notices: tuple[Notice, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, frame in self.tables.items():
            self.schemas[name].check(frame)

    def figure(self) -> Any:
        """The answer as a plotly figure (`plotly.graph_objects.Figure`); see `tracelens.views.figures.of`.

        Raises:
            LookupError: there is no figure for this kind of answer.
        """
        from tracelens.views import figures  # drawn only when asked for: frames themselves know no view

        return figures.of(self)

    def _repr_html_(self) -> str:
        from tracelens.views.notebook import result_html

        return result_html(self)

    def __getitem__(self, table: str) -> pl.DataFrame:
        return self.tables[table]

    def __getattr__(self, name: str) -> pl.DataFrame:
        tables = self.__dict__.get("tables", {})
        if name in tables:
            frame: pl.DataFrame = tables[name]
            return frame
        raise AttributeError(f"{type(self).__name__} has no table {name!r}; it has {', '.join(tables) or 'none'}")
