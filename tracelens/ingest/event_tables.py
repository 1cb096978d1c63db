"""Kernels, copies, memsets and graph launches of one export, into the raw tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelens.errors import MissingDataError
from tracelens.ingest import nsys
from tracelens.ingest.integers import find_column, insert, load_strings, notice, read_integers, tell_read, unusable
from tracelens.ingest.readers import ReadReport
from tracelens.ingest.sources import Source
from tracelens.ingest.values import as_int64, as_text

Progress = Callable[[str, int, int], None]

_TRACE_CUDA = (
    "Was CUDA traced, in the worker processes too? nsys profile --trace=cuda,nvtx --trace-fork-before-exec=true"
)
_EXPORT_ALL = "Export the report again without filters: nsys export --type=sqlite REPORT.nsys-rep"
_LOST = {
    "stream": "kernels of different streams cannot be told apart",
    "correlation": "launches cannot be found, so gaps have no cause",
    "global_pid": "kernels of different processes cannot be told apart",
}


def load_event_tables(
    source: Source, db: duckdb.DuckDBPyConnection, number: int, shift_ns: int, progress: Progress | None
) -> None:
    """Loads what ran on the devices of one export.

    Raises:
        MissingDataError: there is no kernel, or kernels lack a column that an answer needs.
    """
    present = [table for table in nsys.EVENT_TABLES if source.columns(table.table)]
    if not present:
        raise MissingDataError(f"{source.shown}: no GPU work inside (no {nsys.KERNEL} table, no copies)", _TRACE_CUDA)
    rows = {table.kind: source.count(table.table) for table in present}
    if not rows.get(0) and not rows.get(3):
        raise MissingDataError(
            f"{source.shown}: no kernel inside (no {nsys.KERNEL} rows), so there is no GPU time to explain", _TRACE_CUDA
        )
    total = sum(rows.values())
    done = 0

    def on_rows(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(source.shown, done, total)

    for table in present:
        columns = source.columns(table.table)
        missing = [name for name in table.required.values() if find_column(columns, name) is None]
        if table.kind == 0:
            if missing:
                raise MissingDataError(f"{source.shown}: {table.table} has no column {missing[0]}", _EXPORT_ALL)
            _load_kernels(source, db, number, table, shift_ns, on_rows)
        elif missing:
            notice(
                db,
                "column-missing",
                "warning",
                f"{source.shown}: {table.table} has no {missing[0]}: its rows are left out",
                _EXPORT_ALL,
                rows[table.kind],
            )
            unusable(source, db, number, table.table, table.kind, f"no column {missing[0]}")
        else:
            kind = {"kind": str(table.kind)}
            wanted = table.required | table.optional
            read_integers(source, db, number, table.table, "raw_other", wanted, shift_ns, kind, on_rows)


def _load_kernels(
    source: Source,
    db: duckdb.DuckDBPyConnection,
    number: int,
    table: nsys.EventTable,
    shift_ns: int,
    on_rows: Callable[[int], None],
) -> None:
    columns = source.columns(table.table)
    names = [name for one in nsys.NAME_COLUMNS if (name := find_column(columns, one)) is not None]
    if not names:
        raise MissingDataError(
            f"{source.shown}: {table.table} has no column {', '.join(nsys.NAME_COLUMNS[:-1])} or {nsys.NAME_COLUMNS[-1]}",
            _EXPORT_ALL,
        )
    wanted = table.required | {raw: name for raw, name in table.optional.items() if raw not in ("name", "short_name")}
    for raw, name in wanted.items():
        if raw in _LOST and find_column(columns, name) is None:
            notice(db, "column-missing", "warning", f"{source.shown}: {table.table} has no {name}: {_LOST[raw]}")
    by_id = [name for name in names if "INT" in columns[name].upper() or not columns[name]]
    if by_id[:1] == names[:1]:
        read_integers(
            source, db, number, table.table, "raw_kernel", wanted | {"string": by_id[0]}, shift_ns, on_rows=on_rows
        )
        load_strings(source, db, number, "raw_kernel")
        if by_id[1:]:
            _name_nameless(source, db, number, table, wanted, by_id, shift_ns)
    else:
        _read_named_inline(source, db, number, table.table, wanted, names[0], shift_ns, on_rows)


def _name_nameless(
    source: Source,
    db: duckdb.DuckDBPyConnection,
    number: int,
    table: nsys.EventTable,
    wanted: dict[str, str],
    names: list[str],
    shift_ns: int,
) -> None:
    """Where some kernels' best name is missing or dangling, reads all of them again and takes the best that is there.

    Rare (captures re-exported by a newer nsys), so the other columns cost nothing where they are not needed.
    """
    nameless = db.execute(
        "SELECT count(*) FROM raw_kernel k LEFT JOIN raw_string s USING (export, string) WHERE export = ? AND s.text IS NULL",
        [number],
    ).fetchall()[0][0]
    if not nameless:
        return
    spelt = _spelt(source, table, wanted)
    columns = [f"name_{place}" for place in range(len(names))]
    db.execute("CREATE OR REPLACE TEMP TABLE named_kernel AS SELECT * FROM raw_kernel LIMIT 0")
    for column in columns:
        db.execute(f"ALTER TABLE named_kernel ADD COLUMN {column} BIGINT")
    batches, _ = source.integers(table.table, [*spelt.values(), *names], None)
    renamed = (pa.RecordBatch.from_arrays(batch.columns, names=[*spelt, *columns]) for batch in batches)
    insert(db, number, "named_kernel", renamed, [*spelt, *columns], shift_ns, {})
    for column in columns[1:]:
        load_strings(source, db, number, "named_kernel", column)
    known = "SELECT string FROM raw_string WHERE export = $1 AND text IS NOT NULL"
    best = ", ".join(f"if({column} IN ({known}), {column}, NULL)" for column in columns)
    db.execute("DELETE FROM raw_kernel WHERE export = ?", [number])
    db.execute(
        f"INSERT INTO raw_kernel BY NAME SELECT * EXCLUDE ({', '.join(columns)})"  # noqa: S608 - our own names
        f" REPLACE (coalesce({best}, {columns[0]}) AS string) FROM named_kernel",
        [number],
    )
    db.execute("DROP TABLE named_kernel")


def _spelt(source: Source, table: nsys.EventTable, wanted: dict[str, str]) -> dict[str, str]:
    columns = source.columns(table.table)
    return {raw: found for raw, name in wanted.items() if (found := find_column(columns, name)) is not None}


def _read_named_inline(
    source: Source,
    db: duckdb.DuckDBPyConnection,
    number: int,
    table: str,
    wanted: dict[str, str],
    name: str,
    shift_ns: int,
    on_rows: Callable[[int], None],
) -> None:
    """Kernels whose names stand in the row itself: names are numbered in order of appearance, then as by id."""
    columns = source.columns(table)
    spelt = {raw: found for raw, one in wanted.items() if (found := find_column(columns, one)) is not None}
    ids: dict[str, int] = {}
    incoming, report = source.texts(table, [*spelt.values(), name])

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in incoming:
            coded = pc.dictionary_encode(as_text(batch.column(len(spelt))))
            own = np.array([ids.setdefault(text, len(ids)) for text in coded.dictionary.to_pylist()] or [0], np.int64)
            codes = coded.indices
            numbers = pa.array(
                own[codes.fill_null(0).to_numpy(zero_copy_only=False)], pa.int64(), mask=np.asarray(codes.is_null())
            )
            arrays = []
            for column, array in zip(spelt.values(), batch.columns, strict=False):
                whole_numbers, wrong = as_int64(array)
                arrays.append(whole_numbers)
                if wrong:
                    report.wrong_type_count[column] = report.wrong_type_count.get(column, 0) + wrong
            on_rows(batch.num_rows)
            yield pa.RecordBatch.from_arrays([*arrays, numbers], names=[*spelt, "string"])

    insert(db, number, "raw_kernel", batches(), [*spelt, "string"], shift_ns, {})
    if ids:
        db.executemany(
            "INSERT INTO raw_string VALUES (?, ?, ?)", [[number, identifier, text] for text, identifier in ids.items()]
        )
    tell_read(source, db, number, table, ReadReport(report.rows, report.wrong_type_count))
