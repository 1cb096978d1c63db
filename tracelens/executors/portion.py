"""One portion of a run, as one process reads it: its raw tables at once, its events when their order is known.

    exports --read--> raw tables, to whoever puts the run together;  events, kept here
                          | names and ranks of the whole run are found
                          v
    events kept here --write--> files of ordered, numbered events, which need no further work

Nothing else leaves the process: no row of an export as it was, and no text but names of kernels, API calls and ranges.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from tracelens.errors import DamagedError
from tracelens.executors.means import Means, connect
from tracelens.ingest import raw
from tracelens.ingest.discover import Found
from tracelens.ingest.event_runs import EventRuns
from tracelens.model import build, event_files
from tracelens.model.event_files import Order

Part = Literal["launch", "nvtx"]
#: Share of a process's memory that events may take while they are kept.
RUNS_SHARE = 0.2
#: What loading a part fills.
_OF_PART: dict[Part, tuple[str, ...]] = {
    "launch": ("raw_launch", "raw_launch_aside", "raw_string", "raw_notice", "raw_read", "raw_excluded"),
    "nvtx": ("ranges.nvtx_row", "ranges.nvtx_text", "ranges.nvtx_domain", "raw_notice", "raw_read", "raw_excluded"),
}


@dataclass(frozen=True)
class Portion:
    """Exports of a run that one process reads, one after the other.

    Attributes:
        first: the number of the first export.
        found: their files.
    """

    first: int
    found: tuple[Found, ...]

    @property
    def numbers(self) -> range:
        """The exports' numbers."""
        return range(self.first, self.first + len(self.found))

    @property
    def shown(self) -> str:
        """The files, for a message."""
        more = f" and {len(self.found) - 1} more" if len(self.found) > 1 else ""
        return self.found[0].shown + more


@dataclass(frozen=True)
class Told:
    """What a portion told when it was read.

    Attributes:
        tables: its rows of the raw tables, by table.
        seen: size and time of change of each of its files, by the export's number.
    """

    tables: Mapping[str, pa.Table]
    seen: Mapping[int, raw.Stamp]


@dataclass(frozen=True)
class PartRequest:
    """A part of a portion that is read after its events.

    Attributes:
        part: `launch` or `nvtx`.
        portion: the exports.
        known: rows of raw_export and session_window of these exports.
        seen: as in `Told`; empty where the events were not read by this process's run.
    """

    part: Part
    portion: Portion
    known: Mapping[str, pa.Table]
    seen: Mapping[int, raw.Stamp]


def read(portion: Portion, means: Means, base: Path, runs: EventRuns, progress: raw.Progress | None = None) -> Told:
    """Reads a portion.

    Args:
        portion: the exports.
        means: the limits of this process.
        base: where what does not fit into memory goes.
        runs: receives the events.
        progress: called with (file, rows read, rows in all).

    Raises:
        InputError: see `tracelens.errors`.
    """
    with contextlib.closing(connect(means, base)) as db:
        exports = raw.load_events(list(portion.found), db, means.loader, progress, runs, portion.first)
        try:
            names = [name for (name,) in db.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
            return Told({name: _whole(db, name) for name in names}, dict(exports.seen))
        finally:
            exports.close_files()


def write(runs: EventRuns, order: Order, folder: Path, threads: int) -> list[Path]:
    """Writes the events of some exports: those of ranks, and in `others-EXPORT.parquet` those of none.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    files = event_files.write_ranks(runs, order, folder, threads)
    for export in sorted({place[0] for _, place in order.others}):
        files.append(folder / f"others-{export:06}.parquet")
        mine = event_files.other_tables(runs, order.of([export]).others, order.name_ids)
        pq.write_table(pa.concat_tables(mine), files[-1], compression="zstd")
    return files


def read_others(folder: Path) -> Iterator[pa.Table]:
    """The events of no rank that `write` left in a folder, in the order of their exports; the files are removed."""
    for file in sorted(folder.glob("others-*.parquet")):
        with pq.ParquetFile(file) as opened:
            for number in range(opened.num_row_groups):
                yield opened.read_row_group(number)
        file.unlink()


def write_part(request: PartRequest, means: Means, base: Path, folder: Path) -> list[Path]:
    """Reads a part and writes its raw tables, as `PART-TABLE-EXPORT.parquet`; of API calls those that can have launched something.

    Raises:
        InputError: see `tracelens.errors`.
        OSError: the disk is full, or the folder cannot be written.
    """
    portion = request.portion
    scratch = folder / f"ranges-{portion.first:06}.duckdb"
    with contextlib.closing(connect(means, base)) as db:
        raw.create(db)
        insert(db, request.known)
        exports = raw.known(list(portion.found), db, means.loader)
        exports.first = portion.first
        exports.seen = dict(request.seen)
        try:
            if request.part == "launch":
                raw.load_launches(exports, db)
                raw.load_correlations(exports, db)
                build.set_launches_aside(db)
            else:
                raw.load_ranges(exports, db, scratch)
        finally:
            exports.close()
        files = []
        for name in _OF_PART[request.part]:
            files.append(folder / f"{request.part}-{name}-{portion.first:06}.parquet")
            _write_batches(db, name, files[-1])
    scratch.unlink(missing_ok=True)
    return files


def insert_part(db: duckdb.DuckDBPyConnection, part: Part, folder: Path, file: Path | None = None) -> None:
    """Fills the raw tables with what `write_part` left in a folder, in the order of the exports.

    Args:
        db: receives them.
        part: what.
        folder: holds the files.
        file: as in `raw.load_ranges`.
    """
    if part == "launch":
        raw.create_launches(db)
    else:
        raw.create_ranges(db, file)
    for name in _OF_PART[part]:
        for file in sorted(folder.glob(f"{part}-{name}-*.parquet")):
            with pq.ParquetFile(file) as opened:
                for number in range(opened.num_row_groups):
                    insert(db, {name: opened.read_row_group(number)})


def insert(db: duckdb.DuckDBPyConnection, tables: Mapping[str, pa.Table]) -> None:
    """Appends rows to raw tables."""
    for name, rows in tables.items():
        if rows.num_rows:
            db.register("incoming", rows)
            db.execute(f"INSERT INTO {name} SELECT * FROM incoming")  # noqa: S608 - our own names
            db.unregister("incoming")


def check_seen(portion: Portion, expected: Mapping[int, raw.Stamp], seen: Mapping[int, raw.Stamp]) -> None:
    """That files read anew are those that were read before.

    Raises:
        DamagedError: one changed.
    """
    for number, one in zip(portion.numbers, portion.found, strict=True):
        if expected[number] != seen[number]:
            raise DamagedError(f"{one.shown} changed while it was read", "Wait until it is written, then try again.")


def _whole(db: duckdb.DuckDBPyConnection, name: str) -> pa.Table:
    return db.sql(f"SELECT * FROM {name}").to_arrow_table()  # noqa: S608 - our own names


def _write_batches(db: duckdb.DuckDBPyConnection, name: str, path: Path) -> None:
    reader: Any = db.sql(f"SELECT * FROM {name}").to_arrow_reader(1 << 17)  # noqa: S608 - our own names
    with pq.ParquetWriter(path, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
