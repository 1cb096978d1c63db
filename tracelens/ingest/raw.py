"""Fills the raw tables (`raw_tables.sql`) of one DuckDB from any number of exports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelens.errors import MissingDataError
from tracelens.ingest import nsys
from tracelens.ingest.discover import Found
from tracelens.ingest.metadata import Metadata, read_metadata
from tracelens.ingest.nvtx import load_nvtx
from tracelens.ingest.readers import Loader, ReadReport
from tracelens.ingest.sources import Source, open_source, strings
from tracelens.sqlfiles import queries

_SQL = queries(Path(__file__).with_name("raw_tables.sql"))
Progress = Callable[[str, int, int], None]


@dataclass
class Exports:
    """The open exports of one run, and what is known about each.

    Attributes:
        found: the files, in the order that numbers the exports.
        sources: one open reader per file.
        metadata: one per file.
    """

    found: list[Found]
    loader: Loader = "auto"
    sources: list[Source] = field(default_factory=list)
    metadata: list[Metadata] = field(default_factory=list)

    def close(self) -> None:
        """Gives every file back."""
        for source in self.sources:
            source.close()


def load_events(
    found: list[Found], db: duckdb.DuckDBPyConnection, loader: Loader = "auto", progress: Progress | None = None
) -> Exports:
    """Opens the exports and loads what every question needs: events, names, processes, GPUs, rank evidence.

    Args:
        found: the files of one run.
        db: receives the raw tables.
        loader: `sqlite` forces the plain reading path.
        progress: called with (shown path, rows read so far, rows in all).

    Raises:
        InputError: a file is missing, broken, no nsys export, or without the columns that an answer needs.
    """
    db.execute(_SQL["create"])
    exports = Exports(found, loader)
    try:
        for number, one in enumerate(found):
            source = open_source(one, loader)
            exports.sources.append(source)
            meta = read_metadata(source, one)
            exports.metadata.append(meta)
            meta.insert(db, number)
            _load_event_tables(source, db, number, meta.shift_ns, progress)
    except BaseException:
        exports.close()
        raise
    return exports


def load_launches(exports: Exports, db: duckdb.DuckDBPyConnection) -> None:
    """Loads the CUDA API calls of every export into `raw_launch`."""
    db.execute(_SQL["create_launch"])
    for number, source in enumerate(exports.sources):
        for table in (nsys.RUNTIME, nsys.DRIVER):
            columns = source.columns(table)
            needed = {
                "start": "start_ns",
                "end": "end_ns",
                "globalTid": "thread",
                "correlationId": "correlation",
                "nameId": "string",
            }
            if not columns:
                continue
            missing = [name for name in ("start", "end", "correlationId") if _find(columns, name) is None]
            if missing:
                _notice(
                    db,
                    "launch-columns-missing",
                    "warning",
                    f"{source.shown}: {table} has no {missing[0]}: launches are unknown",
                    "",
                    None,
                )
                continue
            _read_integers(
                source,
                db,
                number,
                table,
                "raw_launch",
                {raw: name for name, raw in needed.items()},
                exports.metadata[number].shift_ns,
            )
        _load_strings(source, db, number, "raw_launch")


def load_ranges(exports: Exports, db: duckdb.DuckDBPyConnection) -> None:
    """Loads the NVTX ranges and marks of every export into `raw_nvtx`."""
    db.execute(_SQL["create_nvtx"])
    for number, source in enumerate(exports.sources):
        load_nvtx(source, db, number, exports.metadata[number].shift_ns)


def _load_event_tables(
    source: Source, db: duckdb.DuckDBPyConnection, number: int, shift_ns: int, progress: Progress | None
) -> None:
    present = [table for table in nsys.EVENT_TABLES if source.columns(table.table)]
    if not present:
        raise MissingDataError(
            f"{source.shown}: no GPU work inside (no {nsys.KERNEL} table, no copies)",
            "Was CUDA traced, in the worker processes too? nsys profile --trace=cuda,nvtx --trace-fork-before-exec=true ...",
        )
    total = sum(source.count(table.table) for table in present)
    if total == 0 or (
        nsys.KERNEL not in {table.table for table in present}
        and nsys.GRAPH_TRACE not in {table.table for table in present}
    ):
        raise MissingDataError(
            f"{source.shown}: no kernel inside (no {nsys.KERNEL} rows), so there is no GPU time to explain",
            "Was CUDA traced, in the worker processes too? nsys profile --trace=cuda,nvtx --trace-fork-before-exec=true ...",
        )
    total = sum(source.count(table.table) for table in present) if progress else 0
    done = 0

    def on_rows(rows: int) -> None:
        nonlocal done
        done += rows
        if progress:
            progress(source.shown, done, total)

    for table in present:
        columns = source.columns(table.table)
        for name in table.required.values():
            if _find(columns, name) is None:
                raise MissingDataError(
                    f"{source.shown}: {table.table} has no column {name}",
                    "Export the report again without filters: nsys export --type=sqlite REPORT.nsys-rep",
                )
        if table.kind == 0:
            _load_kernels(source, db, number, table, shift_ns, on_rows)
        else:
            wanted = {raw: name for raw, name in (table.required | table.optional).items()}
            _read_integers(
                source,
                db,
                number,
                table.table,
                "raw_other",
                wanted,
                shift_ns,
                constants={"kind": table.kind},
                on_rows=on_rows,
            )


def _load_kernels(
    source: Source,
    db: duckdb.DuckDBPyConnection,
    number: int,
    table: nsys.EventTable,
    shift_ns: int,
    on_rows: Callable[[int], None],
) -> None:
    columns = source.columns(table.table)
    name = _find(columns, "demangledName") or _find(columns, "shortName") or _find(columns, "mangledName")
    if name is None:
        raise MissingDataError(
            f"{source.shown}: {table.table} has no column demangledName, shortName or mangledName", ""
        )
    wanted = {
        raw: spelt for raw, spelt in (table.required | table.optional).items() if raw not in ("name", "short_name")
    }
    for raw, spelt in wanted.items():
        if raw in ("stream", "correlation", "global_pid") and _find(columns, spelt) is None:
            _notice(
                db, "column-missing", "warning", f"{source.shown}: {table.table} has no {spelt}: {_LOST[raw]}", "", None
            )
    if "INT" in columns[name].upper() or not columns[name]:
        _read_integers(
            source, db, number, table.table, "raw_kernel", wanted | {"string": name}, shift_ns, on_rows=on_rows
        )
        _load_strings(source, db, number, "raw_kernel")
    else:
        _read_named_inline(source, db, number, table.table, wanted, name, shift_ns, on_rows)


_LOST = {
    "stream": "kernels of different streams cannot be told apart",
    "correlation": "launches cannot be found, so gaps have no cause",
    "global_pid": "kernels of different processes cannot be told apart",
}
_SHAPE = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


def _find(columns: dict[str, str], name: str) -> str | None:
    """A column's own spelling: SQLite does not mind the case of a name, DuckDB's folders do."""
    for column in columns:
        if column.lower() == name.lower():
            return column
    return None


def _read_integers(
    source: Source,
    db: duckdb.DuckDBPyConnection,
    number: int,
    table: str,
    target: str,
    wanted: dict[str, str],
    shift_ns: int,
    constants: dict[str, int] | None = None,
    on_rows: Callable[[int], None] | None = None,
) -> None:
    """Reads `wanted` (raw name -> nsys column) into a raw table; absent columns stay NULL, shapes become one id."""
    columns = source.columns(table)
    spelt = {raw: found for raw, name in wanted.items() if (found := _find(columns, name)) is not None}
    batches, report = source.integers(table, list(spelt.values()), on_rows)
    renamed = (pa.RecordBatch.from_arrays(batch.columns, names=list(spelt)) for batch in batches)
    _insert(db, number, target, renamed, list(spelt), shift_ns, constants or {})
    _tell(source, db, number, table, report)


def _tell(source: Source, db: duckdb.DuckDBPyConnection, number: int, table: str, report: ReadReport) -> None:
    kind = next((one.kind for one in nsys.EVENT_TABLES if one.table == table), None)
    db.execute("INSERT INTO raw_read VALUES (?, ?, ?, ?)", [number, table, kind, report.rows])
    wrong = sum(report.wrong_type_count.values())
    if wrong:
        named = ", ".join(f"{column} ({count})" for column, count in sorted(report.wrong_type_count.items()) if count)
        _notice(
            db,
            "wrong-type",
            "warning",
            f"{source.shown}: {table} holds values that are not integers, read as missing: {named}",
            "",
            wrong,
        )


def _insert(
    db: duckdb.DuckDBPyConnection,
    number: int,
    target: str,
    batches: Iterator[pa.RecordBatch],
    names: Sequence[str],
    shift_ns: int,
    constants: dict[str, int],
) -> None:
    """Appends Arrow batches to a raw table; times lose the exporter's shift, grids and blocks become a shape id."""
    times = {"start_ns", "end_ns"}
    schema = pa.schema([(name, pa.string() if name == "text" else pa.int64()) for name in names])
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    db.register("incoming", reader)
    shaped = all(name in names for name in _SHAPE)
    target_columns = [
        row[0]
        for row in db.execute(
            "SELECT column_name FROM duckdb_columns() WHERE table_name = ? ORDER BY column_index", [target]
        ).fetchall()
    ]
    picked = []
    for column in target_columns:
        if column == "export":
            picked.append(str(number))
        elif column in constants:
            picked.append(str(constants[column]))
        elif column == "shape":
            picked.append(f"(hash({', '.join(_SHAPE)}) >> 1)::BIGINT" if shaped else "NULL")
        elif column in names:
            picked.append(f"{column} - {int(shift_ns)}" if column in times and shift_ns else column)
        else:
            picked.append("NULL")
    try:
        db.execute(f"INSERT INTO {target} SELECT {', '.join(picked)} FROM incoming")  # noqa: S608 - our own names
    finally:
        db.unregister("incoming")
        reader.close()


def _load_strings(source: Source, db: duckdb.DuckDBPyConnection, number: int, target: str) -> None:
    """Fetches the texts of the string ids that a raw table uses and `raw_string` does not hold yet."""
    used = db.execute(
        f"SELECT DISTINCT string FROM {target} WHERE export = ? AND string IS NOT NULL EXCEPT SELECT string FROM raw_string WHERE export = ?",  # noqa: S608 - our own name
        [number, number],
    ).fetchnumpy()["string"]
    ids = [int(one) for one in used]
    texts = strings(source, ids)
    rows = pa.table(
        {
            "export": pa.array([number] * len(ids), pa.int32()),
            "string": pa.array(ids, pa.int64()),
            "text": pa.array([texts.get(one) for one in ids], pa.string()),
        }
    )
    db.register("incoming", rows)
    db.execute("INSERT INTO raw_string SELECT * FROM incoming")
    db.unregister("incoming")


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
    spelt = {raw: found for raw, one in wanted.items() if (found := _find(columns, one)) is not None}
    ids: dict[str, int] = {}
    report = ReadReport()

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in source.texts(table, [*spelt.values(), name]):
            coded = pc.dictionary_encode(batch.column(len(spelt)).cast(pa.string()))
            own = np.array([ids.setdefault(text, len(ids)) for text in coded.dictionary.to_pylist()] or [0], np.int64)
            codes = coded.indices
            numbers = pa.array(
                own[codes.fill_null(0).to_numpy(zero_copy_only=False)], pa.int64(), mask=np.asarray(codes.is_null())
            )
            report.rows += batch.num_rows
            on_rows(batch.num_rows)
            yield pa.RecordBatch.from_arrays(
                [*(column.cast(pa.int64()) for column in batch.columns[: len(spelt)]), numbers],
                names=[*spelt, "string"],
            )

    _insert(db, number, "raw_kernel", batches(), [*spelt, "string"], shift_ns, {})
    db.executemany(
        "INSERT INTO raw_string VALUES (?, ?, ?)",
        [[number, identifier, text] for text, identifier in ids.items()] or [[number, -1, None]],
    )
    _tell(source, db, number, table, report)


def _notice(
    db: duckdb.DuckDBPyConnection, code: str, severity: str, message: str, hint: str, count: int | None
) -> None:
    db.execute("INSERT INTO raw_notice VALUES (?, ?, ?, ?, ?)", [code, severity, message, hint, count])
