"""Results as machine records: JSON, CSV, Parquet, Markdown.

JSON is one object: `tracelens` (version), `command`, `schema` (1), `provenance`, `notices`, then each table as a
list of row objects, one row a line. A table that could not be computed is absent; one without rows is `[]`.
CSV holds one table a file: `-o out.csv` writes the first table of the result to `out.csv` and each other one to
`out.<table>.csv`; on a stream each table is preceded by a line `# <table>`, and tables are a blank line apart
(a result with one table is plain CSV, without that line).
Parquet follows CSV's file names; it carries each column's meaning and the envelope as metadata.
Markdown is for people: units as in the terminal, full names.

Bytes depend on the result alone: no clock, locale, width or dictionary order enters.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

import polars as pl

from tracelens.errors import OutputError, UsageError
from tracelens.frames import Notice, Result, Schema
from tracelens.units import MISSING, scale_of
from tracelens.views.output import Writer, write_files
from tracelens.views.text import visible

SCHEMA_VERSION = 1
Format = Literal["json", "csv", "parquet", "markdown"]

SUFFIXES: Mapping[str, Format] = {
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".md": "markdown",
    ".markdown": "markdown",
}
_ROWS_PER_SLICE = 50_000
_NON_ASCII = re.compile(r"[^\x00-\x7e]")
_FORMULA_START = r"^[=+\-@\t\r\n]"
_MARKDOWN_SPECIAL = re.compile(r"([\\`*\[\]<>|&~$])")


def format_of(path: Path | str) -> Format:
    """The format that a file name's suffix asks for.

    Raises:
        UsageError: no format has that suffix.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise UsageError(f"no format has the suffix {suffix or '(none)'!r}", f"use one of {known}, or say --format")
    return SUFFIXES[suffix]


def write(result: Result, fmt: Format, version: str, stream: TextIO) -> None:
    """Write a whole result to a text stream (stdout).

    Raises:
        OutputError: Parquet was asked for; it is binary and one file a table.
    """
    if fmt == "json":
        write_json(result, version, stream)
    elif fmt == "csv":
        write_csv(result, stream)
    elif fmt == "markdown":
        write_markdown(result, stream)
    else:
        raise OutputError("parquet is binary and needs a file", "add -o FILE.parquet")


def write_file(result: Result, path: Path | str, fmt: Format, version: str, *, force: bool = False) -> list[Path]:
    """Write a result to a file, or to one file a table where the format holds one table a file.

    Returns:
        The files written, the main table's first.

    Raises:
        OutputError: a target exists (without `force`) or cannot be written; then none of them has changed.
    """
    target = Path(path)
    writers: dict[Path, Writer] = {}
    if fmt in ("csv", "parquet"):
        for position, name in enumerate(result.tables):
            place = target if position == 0 else target.with_suffix(f".{name}{target.suffix}")
            writers[place] = _table_writer(result, name, fmt, version)
        if not writers:
            raise OutputError(f"nothing to write to {target}: no table could be computed", "the notices say why")
    else:
        writers[target] = _text_writer(lambda stream: write(result, fmt, version, stream))
    write_files(writers, force=force)
    return list(writers)


def write_json(result: Result, version: str, stream: TextIO) -> None:
    """Write the JSON envelope; ASCII only, NaN and infinities as null, one row a line."""
    head = {
        "tracelens": version,
        "command": result.command,
        "schema": SCHEMA_VERSION,
        "provenance": _plain(result.provenance),
        "notices": [_notice(notice) for notice in result.notices],
    }
    parts = [f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in head.items()]
    stream.write("{" + ",\n".join(parts))
    for name, frame in result.tables.items():
        stream.write(f",\n{json.dumps(name)}: [")
        first = True
        for lines in _json_rows(frame):
            stream.write(("\n" if first else ",\n") + lines)
            first = False
        stream.write("]" if first else "\n]")
    stream.write("}\n")


def write_csv(result: Result, stream: TextIO) -> None:
    """Write every table; with more than one, each under a line `# <table>`."""
    for position, (name, frame) in enumerate(result.tables.items()):
        if len(result.tables) > 1:
            stream.write(("\n" if position else "") + f"# {name}\n")
        write_csv_table(frame, stream)


def write_csv_table(frame: pl.DataFrame, stream: TextIO) -> None:
    """Write one table as CSV: comma, LF, quotes where needed, null as nothing, lists as `0,1,2`.

    A text cell that a spreadsheet would run as a formula (it begins with `=`, `+`, `-`, `@`, a tab or a line
    break) gets a leading apostrophe. Numbers are never touched.
    """
    for part in _slices(_flat(frame), keep_empty=True):
        offset, rows = part
        safe = rows.with_columns(
            pl.when(pl.col(name).str.contains(_FORMULA_START))
            .then(pl.lit("'") + pl.col(name))
            .otherwise(pl.col(name))
            .alias(name)
            for name, dtype in rows.schema.items()
            if dtype == pl.String
        )
        stream.write(safe.write_csv(include_header=offset == 0))


def write_parquet_table(frame: pl.DataFrame, schema: Schema, stream: BinaryIO, metadata: Mapping[str, str]) -> None:
    """Write one table as Parquet: column meanings and units as field metadata, `metadata` on the file."""
    import pyarrow.parquet

    table = frame.fill_nan(None).to_arrow()
    described = {column.name: column for column in schema.columns}
    fields = [
        field.with_metadata({"comment": described[field.name].meaning, "unit": described[field.name].unit})
        if field.name in described
        else field
        for field in table.schema
    ]
    arrow_schema = pyarrow.schema(fields, metadata={**metadata, "comment": schema.row})
    pyarrow.parquet.write_table(table.cast(arrow_schema), stream, compression="zstd")


def write_markdown(result: Result, stream: TextIO) -> None:
    """Write sentences, tables and notices as GitHub-flavoured Markdown."""
    for sentence in result.sentences:
        stream.write(f"{_markdown_text(sentence)}\n\n")
    for name, frame in result.tables.items():
        if len(result.tables) > 1:
            stream.write(f"### {name}\n\n")
        write_markdown_table(frame, result.schemas[name], stream)
        stream.write("\n")
    for notice in result.notices:
        count = "" if notice.untold_count is None else f" ({notice.untold_count:,})"
        hint = f" {_markdown_text(notice.hint)}" if notice.hint else ""
        stream.write(f"- **{notice.severity}**: {_markdown_text(notice.message)}{count}{hint}\n")


def write_markdown_table(frame: pl.DataFrame, schema: Schema | None, stream: TextIO) -> None:
    """Write one table as a pipe table; numbers right-aligned in one unit a column, null as `-`."""
    heads, columns, rules = [], [], []
    for name, texts, symbol, numeric in cells(frame, schema):
        heads.append(_markdown_text(name) + (f" ({symbol})" if symbol else ""))
        columns.append([_markdown_text(text) for text in texts])
        rules.append("---:" if numeric else "---")
    stream.write("| " + " | ".join(heads) + " |\n| " + " | ".join(rules) + " |\n")
    for row in zip(*columns, strict=True):
        stream.write("| " + " | ".join(row) + " |\n")


def cells(
    frame: pl.DataFrame, schema: Schema | None, one_unit: Collection[str] = ()
) -> Iterator[tuple[str, list[str], str, bool]]:
    """Each column ready for people: its name without the unit's suffix, its texts, its unit, whether numeric.

    Text is made visible but not shortened; null is `-`. The columns `one_unit` share the unit of the largest of them.
    """
    units = {column.name: column.unit for column in schema.columns} if schema else {}
    together = [value for name in one_unit if name in frame.columns for value in frame[name].to_list()]
    for name in frame.columns:
        series = frame[name]
        if series.dtype.is_numeric():
            values = series.to_list()
            if is_identifier(name):
                yield name, [MISSING if value is None else str(value) for value in values], "", True
                continue
            scale = scale_of(name, together if name in one_unit else values, units.get(name, ""))
            yield bare_name(name), [scale.format(value) for value in values], scale.symbol, True
        elif series.dtype == pl.Boolean:
            yield name, [MISSING if value is None else "yes" if value else "no" for value in series], "", False
        else:
            texts = _flat(series.to_frame())[name].cast(pl.String)
            yield name, [MISSING if value is None else visible(value) for value in texts], "", False


def is_identifier(name: str) -> bool:
    """Whether a whole number of this name is a label, not an amount: written without separators or unit."""
    return name in _IDENTIFIERS


_IDENTIFIERS = frozenset(
    {"rank", "dp", "pp", "tp", "pid", "device", "stream", "step", "set", "position", "instance", "communicator"}
    | {"straggler_rank", "worst_rank", "graph_id", "rule", "schema_version", "start_utc_ns"}
)


def bare_name(name: str) -> str:
    """A column's name without the suffix that its head shows as a unit: `gap_ns` is `gap`."""
    for suffix in ("_ns", "_frac", "_bytes", "_gbps", "_us", "_ppm"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


_NO_NOUNS = frozenset(
    {"matched", "unmatched", "first", "last", "inside", "outside", "straddling", "between", "accepted", "excluded"}
)


def plural(name: str) -> str:
    """A count's name as a head: `kernel_count` is `kernels`, `launch_count` `launches`, `matched_count` `matched`."""
    if not name.endswith("_count"):
        return name
    noun = name.removesuffix("_count")
    if noun.rsplit("_", 1)[-1] in _NO_NOUNS:
        return noun
    return f"{noun}es" if noun.endswith(("ch", "s", "sh", "x")) else f"{noun}s"


def _plain(value: Any) -> Any:
    """`value` as JSON knows it: mappings by key order given, tuples as lists, NaN as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if hasattr(value, "item"):
        return _plain(value.item())
    return str(value)


def _notice(notice: Notice) -> dict[str, Any]:
    return {
        "code": notice.code,
        "severity": notice.severity,
        "message": notice.message,
        "hint": notice.hint,
        "count": notice.count,
    }


def _json_rows(frame: pl.DataFrame) -> Iterator[str]:
    """The rows as JSON objects, a comma and a line break between them, in pieces of bounded size."""
    for _, rows in _slices(frame.fill_nan(None)):
        floats = [name for name, dtype in rows.schema.items() if dtype.is_float()]
        finite = rows.with_columns(pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name) for name in floats)
        text = finite.write_ndjson()
        text = text.rstrip("\n").replace("\n", ",\n")
        yield text if text.isascii() and "\x7f" not in text else _NON_ASCII.sub(_unicode_escape, text)


def _unicode_escape(match: re.Match[str]) -> str:
    return json.dumps(match.group())[1:-1] if match.group() != "\x7f" else "\\u007f"


def _slices(frame: pl.DataFrame, *, keep_empty: bool = False) -> Iterator[tuple[int, pl.DataFrame]]:
    if frame.is_empty() and keep_empty:
        yield 0, frame
    for offset in range(0, frame.height, _ROWS_PER_SLICE):
        yield offset, frame.slice(offset, _ROWS_PER_SLICE)


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """`frame` with lists written as `0,1,2` and NaN as null, for formats whose cells hold one value."""
    return frame.fill_nan(None).with_columns(
        pl.col(name).list.eval(pl.element().cast(pl.String)).list.join(",").alias(name)
        for name, dtype in frame.schema.items()
        if isinstance(dtype, pl.List)
    )


def _markdown_text(text: str) -> str:
    return _MARKDOWN_SPECIAL.sub(r"\\\1", visible(text))


def _text_writer(write_text: Callable[[TextIO], None]) -> Writer:
    def writer(stream: BinaryIO) -> None:
        text = TextIOWrapper(stream, encoding="utf-8", newline="\n", write_through=False)
        write_text(text)
        text.detach()

    return writer


def _table_writer(result: Result, name: str, fmt: Format, version: str) -> Writer:
    frame = result.tables[name]
    if fmt == "csv":
        return _text_writer(lambda stream: write_csv_table(frame, stream))
    envelope = {
        "tracelens": version,
        "command": result.command,
        "schema": str(SCHEMA_VERSION),
        "table": name,
        "provenance": json.dumps(_plain(result.provenance), allow_nan=False),
        "notices": json.dumps([_notice(notice) for notice in result.notices], allow_nan=False),
    }
    return lambda stream: write_parquet_table(frame, result.schemas[name], stream, envelope)
