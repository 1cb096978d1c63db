"""One export, whatever its container: an SQLite file, or the folder of tables that nsys writes as Parquet or Arrow.

A source answers four questions: which tables and columns are there, a few rows of a small table, the text behind
string ids, and a large table as Arrow batches. It never writes, and it never fetches text that was not asked for.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from tracelens.errors import DamagedError, NotAnExportError
from tracelens.ingest import nsys
from tracelens.ingest.discover import Found
from tracelens.ingest.forms import numbered
from tracelens.ingest.readers import Loader, ReadReport, read_columns, read_events, read_text_rows
from tracelens.ingest.report import ExportedReport
from tracelens.ingest.sqlite_file import SqliteFile, open_export, quoted
from tracelens.ingest.values import as_int64, ordered, whole, written

_IDS_PER_QUERY = 500
BATCH_ROWS = 131_072


class Source(Protocol):
    """A readable export."""

    shown: str

    def columns(self, table: str) -> dict[str, str]:
        """Columns of a table, name -> declared type; empty when the table is absent."""
        ...

    def select(self, table: str, columns: Sequence[str], where: str = "") -> list[tuple[Any, ...]]:
        """Rows of a small table, in an order of their values. `where` is constant SQL that SQLite and DuckDB both read."""
        ...

    def count(self, table: str, where: str = "") -> int:
        """How many rows a table holds, of those that `where` lets through."""
        ...

    def about(self, table: str) -> int:
        """About how many rows a table holds, at once; 0 only where it is empty."""
        ...

    def integers(
        self, table: str, columns: Sequence[str], on_rows: Callable[[int], None] | None
    ) -> tuple[Iterator[pa.RecordBatch], ReadReport]:
        """A large table's integer columns, as nullable int64 batches in any order."""
        ...

    def events(
        self, table: str, own: Sequence[str], repeated: Sequence[str], on_rows: Callable[[int], None] | None
    ) -> tuple[Iterator[pa.RecordBatch], ReadReport]:
        """As `integers`, but what repeats from row to row as forms (`ingest.forms`)."""
        ...

    def texts(
        self, table: str, columns: Sequence[str], where: str = "", blobs: Collection[str] = ()
    ) -> tuple[Iterator[pa.RecordBatch], ReadReport]:
        """A large table's columns, text included, as batches in any order; those in `blobs` as bytes."""
        ...

    def close(self) -> None:
        """Gives the file back."""
        ...


def open_source(found: Found, loader: Loader) -> Source:
    """The source behind a capture file.

    Raises:
        InputError: the file is missing, broken, or not an export of nsys.
    """
    source: Source
    if found.kind == "folder":
        source = FolderSource(found.path, found.shown)
    elif found.kind == "report":
        source = ReportSource(found.path, found.shown, loader)
    else:
        source = SqliteSource(found.path, found.shown, loader)
    if not any(source.columns(table) for table in nsys.SIGNATURE_TABLES):
        source.close()
        raise NotAnExportError(
            f"{found.shown}: a database, but not an nsys export (none of its tables are nsys's)",
            "Export the report with: nsys export --type=sqlite REPORT.nsys-rep",
        )
    return source


def strings(source: Source, ids: Iterable[int]) -> dict[int, str]:
    """The texts behind string ids; ids that the export does not know are absent from the answer.

    An id with several texts, which only a damaged export has, gets the first of them in the order of the alphabet.
    """
    if not {"id", "value"} <= set(source.columns(nsys.STRINGS)):
        return {}
    wanted = sorted(set(ids))
    texts: dict[int, str] = {}
    for begin in range(0, len(wanted), _IDS_PER_QUERY):
        listed = ",".join(str(int(one)) for one in wanted[begin : begin + _IDS_PER_QUERY])
        for identifier, value in source.select(nsys.STRINGS, ("id", "value"), f"id IN ({listed})"):
            number, text = whole(identifier), written(value)
            if number is not None and text is not None:
                texts.setdefault(number, text)
    return texts


class SqliteSource:
    """An SQLite export, opened read-only."""

    def __init__(self, path: Path, shown: str, loader: Loader) -> None:
        self.shown = shown
        self._loader = loader
        self._file: SqliteFile = open_export(path, shown)
        self._tables = {name.upper(): (name, columns) for name, columns in self._file.tables().items()}

    def columns(self, table: str) -> dict[str, str]:
        """Columns of a table, name -> declared type; empty when the table is absent."""
        return self._tables.get(table.upper(), ("", {}))[1]

    def _name(self, table: str) -> str:
        return self._tables[table.upper()][0]

    def select(self, table: str, columns: Sequence[str], where: str = "") -> list[tuple[Any, ...]]:
        """Rows of a small table."""
        listed = ", ".join(quoted(column) for column in columns)
        condition = f" WHERE {where}" if where else ""
        return ordered(self._file.execute(f"SELECT {listed} FROM {quoted(self._name(table))}{condition}"))  # noqa: S608 - quoted

    def count(self, table: str, where: str = "") -> int:
        """How many rows a table holds, of those that `where` lets through."""
        condition = f" WHERE {where}" if where else ""
        ((count,),) = self._file.execute(f"SELECT COUNT(*) FROM {quoted(self._name(table))}{condition}")  # noqa: S608 - quoted
        return int(count)

    def about(self, table: str) -> int:
        """About how many rows a table holds, at once; 0 only where it is empty."""
        if not self._file.table(self._name(table)).row_ids:
            return self.count(table)
        name = quoted(self._name(table))
        ((first,),) = self._file.execute(f"SELECT min(rowid) FROM {name} NOT INDEXED")  # noqa: S608 - quoted
        ((last,),) = self._file.execute(f"SELECT max(rowid) FROM {name} NOT INDEXED")  # noqa: S608 - quoted
        return 0 if first is None else max(1, int(last) - int(first) + 1)

    def integers(
        self, table: str, columns: Sequence[str], on_rows: Callable[[int], None] | None
    ) -> tuple[Iterator[pa.RecordBatch], ReadReport]:
        """A large table's integer columns, as nullable int64 batches."""
        report = ReadReport()
        return read_columns(
            self._file, self._name(table), columns, loader=self._loader, report=report, on_rows=on_rows
        ), report

    def events(
        self, table: str, own: Sequence[str], repeated: Sequence[str], on_rows: Callable[[int], None] | None
    ) -> tuple[Iterator[pa.RecordBatch], ReadReport]:
        """As `integers`, but what repeats from row to row as forms."""
        report = ReadReport()
        return read_events(
            self._file, self._name(table), own, repeated, loader=self._loader, report=report, on_rows=on_rows
        ), report

    def texts(
        self, table: str, columns: Sequence[str], where: str = "", blobs: Collection[str] = ()
    ) -> tuple[Iterator[pa.RecordBatch], ReadReport]:
        """A large table's columns, text included."""
        report = ReadReport()
        return read_text_rows(
            self._file, self._name(table), columns, where=where, blobs=blobs, loader=self._loader, report=report
        ), report

    def close(self) -> None:
        """Gives the file back."""
        self._file.close()


class ReportSource(SqliteSource):
    """A report, exported through nsys for as long as it is read."""

    def __init__(self, path: Path, shown: str, loader: Loader) -> None:
        self._report = ExportedReport(path, shown)
        try:
            super().__init__(self._report.path, shown, loader)
        except BaseException:
            self._report.close()
            raise

    def close(self) -> None:
        """Gives the export back and removes it."""
        super().close()
        self._report.close()


class FolderSource:
    """A folder written by `nsys export --type=parquetdir` or `arrowdir`: one file per table."""

    def __init__(self, path: Path, shown: str) -> None:
        self.shown = shown
        self._db = duckdb.connect()
        self._db.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
        self._tables: dict[str, tuple[str, dict[str, str]]] = {}
        try:
            self._read(path)
        except BaseException:
            self._db.close()
            raise

    def _read(self, path: Path) -> None:
        for file in sorted(path.iterdir()):
            if file.suffix not in (".parquet", ".arrow") or not file.is_file():
                continue
            try:
                relation = (
                    self._db.read_parquet(glob.escape(str(file)))
                    if file.suffix == ".parquet"
                    else self._db.from_arrow(_arrow_table(file))
                )
                self._db.register(
                    file.stem, relation.to_arrow_table()
                ) if file.suffix == ".arrow" else relation.create_view(file.stem)
            except (duckdb.Error, pa.ArrowInvalid, OSError) as error:
                raise DamagedError(
                    f"{self.shown}: {file.name} cannot be read ({type(error).__name__})", "Export the report again."
                ) from error
            self._tables[file.stem.upper()] = (
                file.stem,
                dict(zip(relation.columns, map(str, relation.types), strict=True)),
            )

    def columns(self, table: str) -> dict[str, str]:
        """Columns of a table, name -> declared type; empty when the table is absent."""
        return self._tables.get(table.upper(), ("", {}))[1]

    def _query(self, table: str, columns: Sequence[str], where: str) -> duckdb.DuckDBPyRelation:
        listed = ", ".join(quoted(column) for column in columns)
        condition = f" WHERE {where}" if where else ""
        try:
            return self._db.sql(f"SELECT {listed} FROM {quoted(self._tables[table.upper()][0])}{condition}")  # noqa: S608 - quoted
        except duckdb.Error as error:
            raise DamagedError(
                f"{self.shown}: table {table} cannot be read ({type(error).__name__})", "Export the report again."
            ) from error

    def select(self, table: str, columns: Sequence[str], where: str = "") -> list[tuple[Any, ...]]:
        """Rows of a small table."""
        return ordered(self._query(table, columns, where).fetchall())

    def count(self, table: str, where: str = "") -> int:
        """How many rows a table holds, of those that `where` lets through."""
        condition = f" WHERE {where}" if where else ""
        name = quoted(self._tables[table.upper()][0])
        ((count,),) = self._db.execute(f"SELECT COUNT(*) FROM {name}{condition}").fetchall()  # noqa: S608 - quoted
        return int(count)

    def about(self, table: str) -> int:
        """How many rows a table holds."""
        return self.count(table)

    def integers(
        self, table: str, columns: Sequence[str], on_rows: Callable[[int], None] | None
    ) -> tuple[Iterator[pa.RecordBatch], ReadReport]:
        """A large table's integer columns, as nullable int64 batches."""
        report = ReadReport()

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in self._query(table, columns, "").to_arrow_reader(BATCH_ROWS):
                arrays = []
                for name, array in zip(columns, batch.columns, strict=True):
                    numbers, wrong = as_int64(array)
                    arrays.append(numbers)
                    if wrong:
                        report.wrong_type_count[name] = report.wrong_type_count.get(name, 0) + wrong
                report.rows += batch.num_rows
                if on_rows:
                    on_rows(batch.num_rows)
                yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

        return batches(), report

    def events(
        self, table: str, own: Sequence[str], repeated: Sequence[str], on_rows: Callable[[int], None] | None
    ) -> tuple[Iterator[pa.RecordBatch], ReadReport]:
        """As `integers`, but what repeats from row to row as forms."""
        batches, report = self.integers(table, [*own, *repeated], on_rows)
        return (numbered(batch, len(own)) for batch in batches), report

    def texts(
        self,
        table: str,
        columns: Sequence[str],
        where: str = "",
        blobs: Collection[str] = (),  # noqa: ARG002 - DuckDB's columns have one type each
    ) -> tuple[Iterator[pa.RecordBatch], ReadReport]:
        """A large table's columns, text included."""
        report = ReadReport()

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in self._query(table, columns, where).to_arrow_reader(BATCH_ROWS):
                report.rows += batch.num_rows
                yield batch

        return batches(), report

    def close(self) -> None:
        """Gives the files back."""
        self._db.close()


def _arrow_table(file: Path) -> pa.Table:
    with pa.memory_map(str(file)) as mapped:
        try:
            return pa.ipc.open_file(mapped).read_all()
        except pa.ArrowInvalid:
            return pa.ipc.open_stream(mapped).read_all()
