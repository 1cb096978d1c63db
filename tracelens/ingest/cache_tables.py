"""The small tables of a stored load: written beside its events, and read back into DuckDB.

What the user typed may tell of the machine, and nsys's host name does, so neither is stored: file names stand as
marks, which turn into the names of today when the load is opened.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from tracelens.ingest.cache import Load

#: Every table that a question may need once the events are there.
_TABLES = (
    "raw_export",
    "raw_read",
    "raw_excluded",
    "raw_notice",
    "raw_string",
    "session_window",
    "export",
    "process",
    "rank",
    "rank_place",
    "not_a_rank",
    "notice",
    "ledger",
    "name_text",
    "other_event",
)
_WITH_NAMES = {
    "raw_export": ("shown",),
    "export": ("path",),
    "raw_notice": ("message", "hint"),
    "notice": ("message", "hint"),
}
_NEVER_STORED = {"raw_export": ("hostname", "stem"), "export": ("hostname",)}
_BEGIN, _END = "\x02", "\x03"
#: Notices and the ledger grow with a part.
_GROWING = ("notice", "ledger")


def save_tables(db: duckdb.DuckDBPyConnection, load: Load, shown: Sequence[str]) -> bool:
    """Writes the small tables into the load's folder; False where a text cannot be kept apart from a mark.

    Args:
        db: the connection that holds them.
        load: a draft.
        shown: the captures' names, in their order.

    Raises:
        OSError: the disk is full.
    """
    for name in _TABLES:
        rows = _marked(name, _whole(db, name), shown)
        if rows is None:
            return False
        _write(rows, load.file(f"table-{name}.parquet"))
    return True


def load_tables(db: duckdb.DuckDBPyConnection, load: Load, shown: Sequence[str]) -> None:
    """Makes the small tables of a stored load."""
    for name in _TABLES:
        _make(db, name, _named(name, pq.ParquetFile(load.file(f"table-{name}.parquet")).read(), shown))


def row_counts(db: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """How many rows the tables have to which a part adds."""
    return {
        name: int(db.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0])  # noqa: S608 - our own names
        for name in _GROWING
    }


def part_rows(load: Load, part: str) -> Path:
    """The file of a load that holds the rows of a part."""
    return load.file(f"{part}-rows.parquet")


def save_part(
    db: duckdb.DuckDBPyConnection, load: Load, part: str, before: dict[str, int], shown: Sequence[str], written: bool
) -> None:
    """Adds a table that was built after the load, `launch` or `nvtx`, and what it brought along, to a stored load.

    Args:
        db: the connection that holds it.
        load: the stored load.
        part: the table.
        before: `row_counts` before it was built.
        shown: the captures' names.
        written: whether its rows are in their file already.

    Raises:
        OSError: the disk is full.
    """
    files = [part_rows(load, part)]
    for name in _GROWING:
        added = _marked(name, _whole(db, name).slice(before[name]), shown)
        if added is None:
            return
        files.append(load.file(f"{part}-{name}.parquet"))
        _write_new(added, files[-1])
    if not written:
        _write_new_batches(db, part, files[0])
    load.add_part(part, {}, files)


def load_part(db: duckdb.DuckDBPyConnection, load: Load, part: str, shown: Sequence[str]) -> bool:
    """Makes the table of a part, if the stored load has it."""
    if load.part(part) is None:
        return False
    relation = db.read_parquet(glob.escape(str(part_rows(load, part))))
    relation.create_view(part)
    for name in _GROWING:
        _append(db, name, _named(name, pq.ParquetFile(load.file(f"{part}-{name}.parquet")).read(), shown))
    return True


def _whole(db: duckdb.DuckDBPyConnection, name: str) -> pa.Table:
    return db.sql(f"SELECT * FROM {name}").to_arrow_table()  # noqa: S608 - our own names


def _write(rows: pa.Table, path: Path) -> None:
    pq.write_table(rows, path, compression="zstd")


def _write_new(rows: pa.Table, path: Path) -> None:
    """Two processes may write the same part: each writes a file of its own, and the last one's stays."""
    beside = path.with_name(f".{path.name}-{id(rows):x}")
    _write(rows, beside)
    beside.replace(path)


def _write_new_batches(db: duckdb.DuckDBPyConnection, part: str, path: Path) -> None:
    reader = db.sql(f"SELECT * FROM {part}").to_arrow_reader(1 << 17)  # noqa: S608 - our own names
    beside = path.with_name(f".{path.name}-{id(reader):x}")
    with pq.ParquetWriter(beside, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch, row_group_size=1 << 17)
    beside.replace(path)


def _make(db: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    db.register("incoming", rows)
    db.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM incoming")  # noqa: S608 - our own names
    db.unregister("incoming")


def _append(db: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    db.register("incoming", rows)
    db.execute(f"INSERT INTO {name} SELECT * FROM incoming")  # noqa: S608 - our own names
    db.unregister("incoming")


def _marked(name: str, rows: pa.Table, shown: Sequence[str]) -> pa.Table | None:
    """A table without names; None where a text already holds what a mark is made of."""
    for column in _WITH_NAMES.get(name, ()):
        texts = rows.column(column).to_pylist()
        if any(text is not None and (_BEGIN in text or _END in text) for text in (*texts, *shown)):
            return None
        order = sorted(enumerate(shown), key=lambda one: -len(one[1]))  # a name may begin with another
        rows = _with(rows, column, [_mark(text, order) for text in texts])
    for column in _NEVER_STORED.get(name, ()):
        rows = _with(rows, column, [None] * rows.num_rows)
    return rows


def _mark(text: str | None, order: Iterable[tuple[int, str]]) -> str | None:
    if text is None:
        return None
    pieces = [text]
    for number, name in order:
        if name:
            mark = f"{_BEGIN}{number}{_END}"
            pieces = [
                part
                for piece in pieces
                for part in ([piece] if piece.startswith(_BEGIN) else _between(piece.split(name), mark))
            ]
    return "".join(pieces)


def _between(pieces: Sequence[str], mark: str) -> list[str]:
    joined = [pieces[0]]
    for piece in pieces[1:]:
        joined += [mark, piece]
    return joined


def _named(name: str, rows: pa.Table, shown: Sequence[str]) -> pa.Table:
    """A table with the names of today."""
    for column in _WITH_NAMES.get(name, ()):
        texts = rows.column(column).to_pylist()
        rows = _with(rows, column, [None if text is None else _unmark(text, shown) for text in texts])
    return rows


def _unmark(text: str, shown: Sequence[str]) -> str:
    first, *rest = text.split(_BEGIN)
    parts = [first]
    for one in rest:
        number, _, after = one.partition(_END)
        parts += [shown[int(number)], after]
    return "".join(parts)


def _with(rows: pa.Table, column: str, values: Sequence[str | None]) -> pa.Table:
    at = rows.schema.get_field_index(column)
    return rows.set_column(at, rows.schema.field(at), pa.array(values, rows.schema.field(at).type))
