"""Fills the raw tables (`raw_tables.sql`) of one DuckDB from any number of exports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow as pa

from tracelens.errors import DamagedError
from tracelens.ingest import nsys
from tracelens.ingest.discover import Found
from tracelens.ingest.event_runs import EventRuns
from tracelens.ingest.event_tables import Progress, load_event_tables
from tracelens.ingest.integers import find_column, load_strings, notice, read_integers, unusable
from tracelens.ingest.metadata import read_hostname, read_metadata
from tracelens.ingest.nvtx import load_nvtx
from tracelens.ingest.readers import Loader
from tracelens.ingest.sources import Source, open_source
from tracelens.ingest.streams import incoming
from tracelens.sqlfiles import queries

__all__ = ["Exports", "Progress", "drop_ranges", "load_events", "load_launches", "load_ranges"]

_SQL = queries(Path(__file__).with_name("raw_tables.sql"))


#: A file's size and time of change.
Stamp = tuple[int, int]

#: More exports than this are not held open: a system grants a process about a thousand files.
_OPEN_AT_MOST = 32


@dataclass
class Exports:
    """The exports of one run, and what is known about each.

    Attributes:
        found: the files, in the order that numbers the exports.
        runs: their events, until the model takes them.
        first: the number of the first file.
        shifts_ns: per export, what the exporter added to every time.
        range_count: about how many NVTX rows they hold.
        seen: per export that was opened, its size and its time of change.
    """

    found: list[Found]
    loader: Loader = "auto"
    runs: EventRuns = field(default_factory=EventRuns)
    first: int = 0
    shifts_ns: dict[int, int] = field(default_factory=dict)
    range_count: int = 0
    seen: dict[int, Stamp] = field(default_factory=dict)
    _open: dict[int, Source] = field(default_factory=dict)

    @property
    def numbers(self) -> range:
        """The exports' numbers."""
        return range(self.first, self.first + len(self.found))

    @property
    def shown(self) -> list[str]:
        """The files' names, as they were typed."""
        return [one.shown for one in self.found]

    @contextlib.contextmanager
    def reading(self, number: int) -> Iterator[Source]:
        """The source of one export; of few exports it stays open, of many it is opened again each time.

        Raises:
            InputError: the file is missing, broken, or not the one that was read before.
        """
        one = self.found[number - self.first]
        source = self._open.get(number)
        if source is None:
            seen = _stamp(one)
            if self.seen.setdefault(number, seen) != seen:
                raise DamagedError(
                    f"{one.shown} changed while it was read", "Wait until it is written, then try again."
                )
            source = open_source(one, self.loader)
        # A report is held open whatever their number: opening it means exporting it.
        if len(self.found) > _OPEN_AT_MOST and one.kind != "report":
            try:
                yield source
            finally:
                source.close()
        else:
            self._open[number] = source
            yield source

    def close(self) -> None:
        """Gives every file back, and the events."""
        self.runs.close()
        self.close_files()

    def close_files(self) -> None:
        """Gives every file back."""
        while self._open:
            self._open.popitem()[1].close()


def _stamp(one: Found) -> Stamp:
    try:
        status = one.path.stat()
    except OSError:
        return (-1, -1)  # opening it says why
    return (status.st_size, status.st_mtime_ns)


def create(db: duckdb.DuckDBPyConnection) -> None:
    """Makes the raw tables that every question needs, without rows."""
    db.execute(_SQL["create"])


def load_events(
    found: list[Found],
    db: duckdb.DuckDBPyConnection,
    loader: Loader = "auto",
    progress: Progress | None = None,
    runs: EventRuns | None = None,
    first: int = 0,
) -> Exports:
    """Opens the exports and loads what every question needs: events, names, processes, GPUs, rank evidence.

    Args:
        found: the files of one run, or some of them that follow each other.
        db: receives the raw tables.
        loader: `sqlite` forces the plain reading path.
        progress: called with (shown path, rows read so far, rows in all).
        runs: receives the events; by default new ones, in memory.
        first: the number of the first file.

    Raises:
        InputError: a file is missing, broken, no nsys export, or without the columns that an answer needs.
    """
    create(db)
    exports = Exports(found, loader, runs or EventRuns(), first)
    try:
        for number, one in zip(exports.numbers, found, strict=True):
            with exports.reading(number) as source:
                meta = read_metadata(source, one)
                exports.shifts_ns[number] = meta.shift_ns
                meta.insert(db, number)
                load_event_tables(source, db, number, meta.shift_ns, meta.session_ns, exports.runs, progress)
                exports.range_count += source.about(nsys.NVTX) if source.columns(nsys.NVTX) else 0
    except BaseException:
        exports.close()
        raise
    return exports


def known(found: list[Found], db: duckdb.DuckDBPyConnection, loader: Loader = "auto") -> Exports:
    """The exports of a run whose raw tables are there already; none is opened."""
    return Exports(
        found, loader, shifts_ns=dict(db.execute("SELECT export, shift_ns FROM raw_export ORDER BY export").fetchall())
    )


def reopen(found: list[Found], db: duckdb.DuckDBPyConnection, loader: Loader = "auto") -> Exports:
    """The exports of a stored load, whose raw tables are there already; host names, which are not stored, are read.

    Raises:
        InputError: a file cannot be opened any more.
    """
    exports = known(found, db, loader)
    try:
        for number in exports.numbers:
            with exports.reading(number) as source:
                hostname = read_hostname(source)
            for table in ("raw_export", "export"):
                db.execute(f"UPDATE {table} SET hostname = ? WHERE export = ?", [hostname, number])  # noqa: S608
    except BaseException:
        exports.close()
        raise
    return exports


def create_launches(db: duckdb.DuckDBPyConnection) -> None:
    """Makes the raw tables of API calls, without rows."""
    db.execute(_SQL["create_launch"])


def load_launches(exports: Exports, db: duckdb.DuckDBPyConnection) -> None:
    """Loads the CUDA API calls of every export into `raw_launch`."""
    create_launches(db)
    for number in exports.numbers:
        with exports.reading(number) as source:
            for table in (nsys.RUNTIME, nsys.DRIVER):
                if source.columns(table):
                    _load_call_table(source, db, number, table, exports.shifts_ns[number])
            load_strings(source, db, number, "raw_launch")


def _load_call_table(source: Source, db: duckdb.DuckDBPyConnection, number: int, table: str, shift_ns: int) -> None:
    columns = source.columns(table)
    missing = [name for name in ("start", "end", "correlationId") if find_column(columns, name) is None]
    if missing:
        notice(
            db,
            "launch-columns-missing",
            "warning",
            f"{source.shown}: {table} has no {missing[0]}: launches are unknown",
        )
        unusable(source, db, number, table, None, f"no column {missing[0]}")
        return
    wanted = {"start_ns": "start", "end_ns": "end", "thread": "globalTid", "correlation": "correlationId"}
    read_integers(
        source, db, number, table, "raw_launch", wanted | {"string": "nameId"}, shift_ns, {"table_name": f"'{table}'"}
    )


def load_correlations(exports: Exports, db: duckdb.DuckDBPyConnection) -> None:
    """Loads into `raw_correlation` which correlation ids the events of each export bear."""
    db.execute(_SQL["create_correlation"])
    for number in exports.numbers:
        with exports.reading(number) as source:
            for table in nsys.EVENT_TABLES:
                column = find_column(source.columns(table.table), table.optional["correlation"])
                if column is not None:
                    batches, _ = source.integers(table.table, [column], None)
                    schema = pa.schema([("correlation", pa.int64())])
                    rows = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches)
                    with incoming(db, schema, rows):
                        db.execute(_SQL["add_correlation"], {"export": number})


def create_ranges(db: duckdb.DuckDBPyConnection, file: Path | None = None) -> None:
    """Makes `raw_nvtx` and the tables behind it, without rows, until `drop_ranges`.

    Args:
        db: receives them.
        file: where the rows go meanwhile, a file that does not exist; None: into memory.
    """
    db.execute(
        "ATTACH $place AS ranges (RECOVERY_MODE no_wal_writes)", {"place": ":memory:" if file is None else str(file)}
    )
    db.execute(_SQL["create_nvtx"])


def load_ranges(exports: Exports, db: duckdb.DuckDBPyConnection, file: Path | None = None) -> None:
    """Loads the NVTX ranges and marks of every export into `raw_nvtx`, until `drop_ranges`.

    Args:
        exports: the exports.
        db: receives the raw tables.
        file: where the rows go meanwhile, a file that does not exist; None: into memory.
    """
    create_ranges(db, file)
    for number in exports.numbers:
        with exports.reading(number) as source:
            load_nvtx(source, db, number, exports.shifts_ns[number])


def drop_ranges(db: duckdb.DuckDBPyConnection) -> None:
    """Drops `raw_nvtx` and what is behind it."""
    db.execute(_SQL["drop_nvtx"])
