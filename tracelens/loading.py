"""From captures to a DuckDB with the model tables: read anew, or opened as an earlier load left them.

    captures --key--> stored load? --yes--> its tables and files
                          | no
                          v
    events of every export --> names, ranks --> events in order --> a stored load for the next time

What cannot be written costs time, never the answer: from the cache's folder a load moves to the system's folder for
temporary files, and from there into memory.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import duckdb

from tracelens.frames import Notice
from tracelens.ingest import cache, cache_tables, raw
from tracelens.ingest.discover import Found
from tracelens.ingest.event_runs import EventRuns, ScratchError
from tracelens.memory import default_bytes
from tracelens.model import build

#: Captures of fewer bytes, or events, are read in less time than a stored load is worth.
_SMALL_BYTES, _FEW_EVENTS = 8_000_000, 200_000
#: Share of the memory that events may take while they are read.
_RUNS_SHARE = 0.2
_EVENT_FILES = "events-*.parquet"


@dataclass(frozen=True)
class Means:
    """What a load may use.

    Attributes:
        loader: `sqlite` forces the plain reading path.
        use_cache: whether stored loads are used, and made.
        threads: None: as many as the machine has.
        memory_bytes: limit; None: half the machine's, at most 4 GB.
    """

    loader: Literal["auto", "sqlite"] = "auto"
    use_cache: bool = True
    threads: int | None = None
    memory_bytes: int | None = None


@dataclass
class Loaded:
    """Captures whose model tables are in a DuckDB.

    Attributes:
        db: the connection.
        exports: the captures, open for what is loaded later.
        remarks: what slowed the load down; nothing of the captures.
    """

    db: duckdb.DuckDBPyConnection
    exports: raw.Exports
    remarks: list[Notice] = field(default_factory=list)
    _load: cache.Load | None = None

    def ensure(self, part: Literal["launch", "nvtx"]) -> None:
        """Makes the table `launch` or `nvtx`: from the stored load, or from the captures, for the next time too."""
        keeps = self._load is not None and self._load.stored
        if self._load is not None and keeps and cache_tables.load_part(self.db, self._load, part, self.exports.shown):
            return
        before, written = cache_tables.row_counts(self.db), False
        if part == "launch":
            raw.load_launches(self.exports, self.db)
            build.build_launches(self.db)
        else:
            written = self._read_ranges()
        if self._load is not None and keeps:
            try:
                cache_tables.save_part(self.db, self._load, part, before, self.exports.shown, written)
            except OSError as error:
                self.remarks.append(_not_stored(error))

    def _read_ranges(self) -> bool:
        """Makes `nvtx`: of a file in the load's folder (True), or in memory where there is none or it cannot be written."""
        if self._load is not None:
            try:
                self._write_ranges(self._load)
            except (OSError, duckdb.IOException, duckdb.PermissionException) as error:
                self.remarks.append(_in_memory(error))
            else:
                return True
        try:
            raw.load_ranges(self.exports, self.db)
            build.build_nvtx(self.db)
        finally:
            raw.drop_ranges(self.db)
        return False

    def _write_ranges(self, load: cache.Load) -> None:
        # Beside the load, whose folder others may use: what is not finished goes with the process.
        scratch = cache.draft(load.folder.parent)
        try:
            rows = scratch.file("rows.parquet")
            raw.load_ranges(self.exports, self.db, scratch.file("ranges.duckdb"))
            build.build_nvtx(self.db, rows)
            kept = cache_tables.part_rows(load, "nvtx")
            rows.replace(kept)
            build.read_nvtx(self.db, kept)
        finally:
            raw.drop_ranges(self.db)
            scratch.close()

    def close(self) -> None:
        """Gives files, memory and disk back."""
        self.exports.close()
        self.db.close()
        if self._load is not None:
            self._load.close()


def open_captures(
    found: Sequence[Found],
    means: Means,
    rank_map: Mapping[int, tuple[str, int | None]] | None = None,
    expected: int | None = None,
    progress: raw.Progress | None = None,
) -> Loaded:
    """Loads the captures of one run.

    Args:
        found: its files.
        means: what may be used.
        rank_map: rank -> (path, device or None).
        expected: number of ranks that the job has.
        progress: called with (file, rows read, rows in all).

    Raises:
        InputError, RankError: see `tracelens.errors`.
    """
    root = cache.root() if means.use_cache and cache.limit_bytes() and _size(found) >= _SMALL_BYTES else None
    choices = (sorted((rank_map or {}).items()), expected, means.loader)
    key = cache.key_of(found, choices) if root is not None else None
    if key is not None and (reopened := _reopen(found, means, key)) is not None:
        return reopened
    remarks: list[Notice] = []
    bases = [root] if key is not None else []
    if _size(found) >= _SMALL_BYTES:
        bases.append(Path(tempfile.gettempdir()))
    for base in [*bases, None]:
        reading = _Reading(found, means, rank_map, expected, progress, base)
        try:
            loaded = reading.run()
        except ScratchError as error:
            remarks.append(_not_stored(error) if base == root else _in_memory(error))
            continue
        try:
            if base is not None and base == root and key is not None and key == cache.key_of(found, choices):
                reading.publish(loaded, key)
        except BaseException:
            loaded.close()
            raise
        loaded.remarks[:0] = remarks
        return loaded
    raise AssertionError("a load in memory writes nothing")


def connect(means: Means, base: Path | None = None) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB that downloads nothing, reads no file by itself, and keeps to the given limits.

    Args:
        means: the limits.
        base: where what does not fit into memory goes; DuckDB's own default lies in the current directory.
    """
    db = duckdb.connect()
    db.execute(
        "SET autoinstall_known_extensions = false; SET autoload_known_extensions = false; SET enable_progress_bar = false"
    )
    db.execute("SET python_enable_replacements = false")
    # DuckDB makes this folder when it needs it, and removes it at the end.
    spill = (base or Path(tempfile.gettempdir())) / f"{cache.SPILL}{os.getpid()}-{secrets.token_hex(8)}"
    db.execute("SET temp_directory = ?", [str(spill)])
    db.execute("SET TimeZone = 'UTC'")
    if means.threads:
        db.execute("SET threads = ?", [means.threads])
    db.execute("SET memory_limit = ?", [f"{_memory(means)}B"])
    return db


def _memory(means: Means) -> int:
    return means.memory_bytes or default_bytes()


def _size(found: Sequence[Found]) -> int:
    """Bytes of the captures; what cannot be looked at counts nothing, and fails when it is read."""
    total = 0
    for one in found:
        try:
            files = one.path.iterdir() if one.kind == "folder" else [one.path]
            total += sum(file.stat().st_size for file in files)
        except OSError:
            continue
    return total


def _reopen(found: Sequence[Found], means: Means, key: str) -> Loaded | None:
    """A stored load as it was left; None where there is none."""
    opened = cache.open_load(key)
    if opened is None:
        return None
    load, _ = opened
    try:
        db = connect(means, load.folder.parent)
        try:
            shown = [one.shown for one in found]
            cache_tables.load_tables(db, load, shown)
            _open_events(db, load)
            exports = raw.reopen(list(found), db, means.loader)
        except BaseException:
            db.close()
            raise
    except BaseException:
        load.close()
        raise
    return Loaded(db, exports, [], load)


def _open_events(db: duckdb.DuckDBPyConnection, load: cache.Load) -> None:
    # Where a query of the user's own has shut DuckDB off from everything outside, the load's files stay within reach.
    db.execute("SET allowed_directories = ?", [[str(load.folder)]])
    build.read_events(db, load.files(_EVENT_FILES))


class _Reading:
    """One attempt to read captures, writing under `base`; None: nowhere."""

    def __init__(
        self,
        found: Sequence[Found],
        means: Means,
        rank_map: Mapping[int, tuple[str, int | None]] | None,
        expected: int | None,
        progress: raw.Progress | None,
        base: Path | None,
    ) -> None:
        self._found, self._means, self._progress = found, means, progress
        self._rank_map, self._expected, self._base = rank_map, expected, base
        self._load: cache.Load | None = None
        self._event_count = 0

    def run(self) -> Loaded:
        """Reads everything.

        Raises:
            ScratchError: something could not be written.
            InputError, RankError: see `tracelens.errors`.
        """
        if self._base is not None:
            try:
                self._load = cache.draft(self._base)
            except OSError as error:
                raise ScratchError(*error.args) from error
        try:
            return self._read()
        except BaseException:
            if self._load is not None:
                self._load.close()
            raise

    def _read(self) -> Loaded:
        db = connect(self._means, self._base)
        try:
            folder = self._load.folder if self._load is not None else None
            runs = EventRuns(int(_RUNS_SHARE * _memory(self._means)) if folder else None, folder)
            exports = raw.load_events(list(self._found), db, self._means.loader, self._progress, runs)
            try:
                build.build_names(db)
                build.build_ranks(db, self._rank_map, self._expected)
                self._event_count = runs.row_count
                remarks = [_spilled(runs.spilled_bytes)] if runs.spilled_bytes else []
                many = runs.row_count + exports.range_count > _FEW_EVENTS
                self._order(db, runs, folder if many else None)
            except BaseException:
                exports.close()
                raise
        except BaseException:
            db.close()
            raise
        return Loaded(db, exports, remarks, self._load)

    def _order(self, db: duckdb.DuckDBPyConnection, runs: EventRuns, folder: Path | None) -> None:
        try:
            files = build.build_events(db, runs, folder, self._means.threads or os.cpu_count() or 1)
        except OSError as error:
            raise ScratchError(*error.args) from error
        runs.close()
        if files and self._load is not None:
            _open_events(db, self._load)
        elif self._load is not None:  # few events, all in memory
            self._load.close()
            self._load = None

    def publish(self, loaded: Loaded, key: str) -> None:
        """Stores the load for the next time, if it can be."""
        if self._load is None:
            return
        try:
            shown = [one.shown for one in self._found]
            about = {"event_count": self._event_count, "rank_count": self._rank_count(loaded.db)}
            stored = cache_tables.save_tables(loaded.db, self._load, shown) and self._load.publish(key, about)
        except OSError as error:
            loaded.remarks.append(_not_stored(error))
            return
        if stored:
            _open_events(loaded.db, self._load)

    @staticmethod
    def _rank_count(db: duckdb.DuckDBPyConnection) -> int:
        return int(db.execute("SELECT count(*) FROM rank").fetchall()[0][0])


def _not_stored(error: OSError) -> Notice:
    return Notice(
        "cache-unwritable",
        "info",
        f"this load could not be stored ({_reason(error)}): the next question reads the capture anew",
        "Free some space, let XDG_CACHE_HOME name a folder that can be written, or use --no-cache.",
    )


def _in_memory(error: Exception) -> Notice:
    return Notice(
        "temporary-unwritable",
        "info",
        f"no temporary file could be written ({_reason(error)}): the load takes more memory",
        "Free some space, or let TMPDIR name a folder that can be written.",
    )


def _spilled(size_bytes: int) -> Notice:
    return Notice(
        "memory-exceeded",
        "info",
        f"{size_bytes / 1e6:,.0f} MB of events went through the disk while they were loaded, to keep within the memory allowed",
        "Allow more with --memory.",
    )


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
