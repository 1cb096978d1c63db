"""From a table's integer columns to a raw table: shifts undone, strings looked up, rows counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import duckdb
import pyarrow as pa

from tracelens.ingest import nsys
from tracelens.ingest.readers import ReadReport
from tracelens.ingest.sources import Source, strings
from tracelens.ingest.streams import incoming

_TIMES = ("start_ns", "end_ns")


def find_column(columns: Mapping[str, str], name: str) -> str | None:
    """A column's own spelling: SQLite does not mind the case of a name, DuckDB's folders do."""
    for column in columns:
        if column.lower() == name.lower():
            return column
    return None


def read_integers(
    source: Source,
    db: duckdb.DuckDBPyConnection,
    number: int,
    table: str,
    target: str,
    wanted: Mapping[str, str],
    shift_ns: int,
    constants: Mapping[str, str] | None = None,
    on_rows: Callable[[int], None] | None = None,
) -> None:
    """Reads `wanted` (raw name -> nsys column) into a raw table; absent columns stay NULL.

    Args:
        number: the export's number.
        target: the raw table.
        shift_ns: what the exporter added to every time.
        constants: raw name -> SQL of a value that every row gets.
        on_rows: called with the number of rows of each batch.
    """
    columns = source.columns(table)
    spelt = {raw: found for raw, name in wanted.items() if (found := find_column(columns, name)) is not None}
    batches, report = source.integers(table, list(spelt.values()), on_rows)
    renamed = (pa.RecordBatch.from_arrays(batch.columns, names=list(spelt)) for batch in batches)
    insert(db, number, target, renamed, list(spelt), shift_ns, constants or {})
    tell_read(source, db, number, table, report)


def tell_read(source: Source, db: duckdb.DuckDBPyConnection, number: int, table: str, report: ReadReport) -> None:
    """Enters what was read of a table, and notices values of the wrong type."""
    db.execute("INSERT INTO raw_read VALUES (?, ?, ?, ?)", [number, table, _kind(table), report.rows])
    wrong = sum(report.wrong_type_count.values())
    if wrong:
        named = ", ".join(f"{column} ({count})" for column, count in sorted(report.wrong_type_count.items()) if count)
        notice(
            db,
            "wrong-type",
            "warning",
            f"{source.shown}: {table} holds values that are not integers, read as missing: {named}",
            count=wrong,
        )


def unusable(
    source: Source, db: duckdb.DuckDBPyConnection, number: int, table: str, kind: int | None, reason: str
) -> None:
    """Enters a table whose rows are all left out."""
    rows = source.count(table)
    db.execute("INSERT INTO raw_read VALUES (?, ?, ?, ?)", [number, table, kind, rows])
    db.execute("INSERT INTO raw_excluded VALUES (?, ?, ?, ?)", [number, table, reason, rows])


def insert(
    db: duckdb.DuckDBPyConnection,
    number: int,
    target: str,
    batches: Iterable[pa.RecordBatch],
    names: Sequence[str],
    shift_ns: int,
    constants: Mapping[str, str],
) -> None:
    """Appends Arrow batches of int64 to a raw table; times lose the exporter's shift."""
    schema = pa.schema([(name, pa.int64()) for name in names])
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
            picked.append(constants[column])
        elif column in names:
            # A time that leaves 64 bits when the shift is undone is no time.
            undone = f"try_cast({column}::HUGEINT - {int(shift_ns)} AS BIGINT)"
            picked.append(undone if column in _TIMES and shift_ns else column)
        else:
            picked.append("NULL")
    with incoming(db, schema, batches):
        db.execute(f"INSERT INTO {target} SELECT {', '.join(picked)} FROM incoming")  # noqa: S608 - our own names


def load_strings(
    source: Source, db: duckdb.DuckDBPyConnection, number: int, target: str, column: str = "string"
) -> None:
    """Fetches the texts of the string ids that a raw table's column uses and `raw_string` does not hold yet."""
    used = db.execute(
        f"SELECT DISTINCT {column} FROM {target} WHERE export = ? AND {column} IS NOT NULL EXCEPT SELECT string FROM raw_string WHERE export = ?",  # noqa: S608 - our own names
        [number, number],
    ).fetchnumpy()[column]
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


def notice(
    db: duckdb.DuckDBPyConnection, code: str, severity: str, message: str, hint: str = "", count: int | None = None
) -> None:
    """Notes what a reader must know."""
    db.execute("INSERT INTO raw_notice VALUES (?, ?, ?, ?, ?)", [code, severity, message, hint, count])


def _kind(table: str) -> int | None:
    return next((one.kind for one in nsys.EVENT_TABLES if one.table == table), None)
