"""From captures to a DuckDB with the model tables: read anew, or opened as an earlier load left them.

    captures --key--> stored load? --yes--> its tables and files
                          | no
                          v
    events of every export --> names, ranks --> events in order --> a stored load for the next time

What cannot be written costs time, never the answer: from the cache's folder a load moves to the system's folder for
temporary files, and from there into memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import duckdb

from tracelens.array_room import ArrayRoom
from tracelens.errors import ExecutorError
from tracelens.executors import crew, pool
from tracelens.executors.crew import Crew
from tracelens.executors.means import LOCAL, Means, connect
from tracelens.executors.portion import RUNS_SHARE, Part, Portion, insert_part
from tracelens.frames import Notice
from tracelens.ingest import cache, cache_tables, raw
from tracelens.ingest.discover import Found
from tracelens.ingest.event_runs import EventRuns, ScratchError
from tracelens.memory import return_freed
from tracelens.model import build

__all__ = ["LOCAL", "Loaded", "Means", "connect", "open_captures"]

#: Captures of fewer bytes, or events, are read in less time than a stored load is worth.
_SMALL_BYTES, _FEW_EVENTS = 8_000_000, 200_000
_EVENT_FILES = "events-*.parquet"
#: Of the memory allowed, what an analysis may hold in arrays of all events, and DuckDB beside it; the rest is for the
#: program and what it works on at the moment.
_ARRAYS_SHARE, _DUCKDB_SHARE = 0.25, 0.5
#: A cluster is taken to have so many workers: how many it has changes while it works.
_CLUSTER_WORKERS = 32


@dataclass
class Loaded:
    """Captures whose model tables are in a DuckDB.

    Attributes:
        db: the connection.
        exports: the captures, open for what is loaded later.
        means: what may be used for that.
        remarks: what slowed the load down; nothing of the captures.
    """

    db: duckdb.DuckDBPyConnection
    exports: raw.Exports
    means: Means
    remarks: list[Notice] = field(default_factory=list)
    _load: cache.Load | None = None

    @cached_property
    def room(self) -> ArrayRoom:
        """Where arrays with an element for each event are made; from the first on, DuckDB has less for itself."""
        limit = self.means.limit_bytes
        return_freed()
        self.db.execute("SET memory_limit = ?", [f"{int(_DUCKDB_SHARE * limit)}B"])
        return ArrayRoom(int(_ARRAYS_SHARE * limit), self._beside)

    @property
    def room_remarks(self) -> list[Notice]:
        """What arrays that had no room in memory meant."""
        if "room" not in self.__dict__:
            return []
        told = [_arrays_spilled(self.room.spilled_bytes)] if self.room.spilled_bytes else []
        return told + ([_in_memory(self.room.failure)] if self.room.failure else [])

    @property
    def _beside(self) -> Path:
        """Where temporary files go."""
        return self._load.folder.parent if self._load is not None else Path(tempfile.gettempdir())

    def ensure(self, part: Part) -> None:
        """Makes the table `launch` or `nvtx`: from the stored load, or from the captures, for the next time too."""
        keeps = self._load is not None and self._load.stored
        if self._load is not None and keeps and cache_tables.load_part(self.db, self._load, part, self.exports.shown):
            return
        before, written = cache_tables.row_counts(self.db), False
        if part == "launch":
            self._fill(part)
            build.build_launches(self.db)
        else:
            written = self._read_ranges()
        if self._load is not None and keeps:
            try:
                cache_tables.save_part(self.db, self._load, part, before, self.exports.shown, written)
                if part == "launch" and self._load.part(part) is not None:
                    build.read_launches(self.db, cache_tables.part_rows(self._load, part))
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
            self._fill("nvtx")
            build.build_nvtx(self.db)
        finally:
            raw.drop_ranges(self.db)
        return False

    def _write_ranges(self, load: cache.Load) -> None:
        # Beside the load, whose folder others may use: what is not finished goes with the process.
        scratch = cache.draft(load.folder.parent)
        try:
            rows = scratch.file("rows.parquet")
            self._fill("nvtx", scratch.file("ranges.duckdb"))
            build.build_nvtx(self.db, rows)
            kept = cache_tables.part_rows(load, "nvtx")
            rows.replace(kept)
            build.read_nvtx(self.db, kept)
        finally:
            raw.drop_ranges(self.db)
            scratch.close()

    def _fill(self, part: Part, file: Path | None = None) -> None:
        """Fills the raw tables of a part from the captures; rows of NVTX may go to a file meanwhile."""
        base = self._beside
        hired = _hire(self.exports.found, self.means, base)
        if hired is not None:
            try:
                passing = self._read_apart(hired, part, base)
            except OSError as error:
                if self.means.executor != LOCAL:
                    raise _nowhere(error) from error
            else:
                try:
                    insert_part(self.db, part, passing.folder, file)
                finally:
                    passing.close()
                return
        if part == "launch":
            raw.load_launches(self.exports, self.db)
        else:
            raw.load_ranges(self.exports, self.db, file)

    def _read_apart(self, hired: Crew, part: Part, base: Path) -> cache.Load:
        """The raw tables of a part, read by other processes, as files in a folder under `base`."""
        passing = cache.draft(base)
        try:
            with hired:
                crew.read_part(
                    hired, part, _portions(self.exports.found, self.means), self.exports.seen, self.db, passing.folder
                )
        except BaseException:
            passing.close()
            raise
        return passing

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
    large = sum(_sizes(found)) >= _SMALL_BYTES
    root = cache.root() if means.use_cache and cache.limit_bytes() and large else None
    choices = (sorted((rank_map or {}).items()), expected, means.loader)
    key = cache.key_of(found, choices) if root is not None else None
    if key is not None and (reopened := _reopen(found, means, key)) is not None:
        return reopened
    remarks: list[Notice] = []
    last = OSError()
    bases = [root] if key is not None else []
    if large or means.executor != LOCAL:
        bases.append(Path(tempfile.gettempdir()))
    for base in [*bases, None]:
        if base is None and means.executor != LOCAL:
            raise _nowhere(last)
        reading = _Reading(found, means, rank_map, expected, progress, base)
        try:
            loaded = reading.run()
        except ScratchError as error:
            last = error
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


def _sizes(found: Sequence[Found]) -> list[int]:
    """Bytes of each capture; what cannot be looked at counts nothing, and fails when it is read."""
    sizes = []
    for one in found:
        try:
            files = one.path.iterdir() if one.kind == "folder" else [one.path]
            sizes.append(sum(file.stat().st_size for file in files))
        except OSError:
            sizes.append(0)
    return sizes


def _portions(found: Sequence[Found], means: Means) -> list[Portion]:
    workers = means.thread_count if means.executor == LOCAL else _CLUSTER_WORKERS
    return crew.portions_of(found, _sizes(found), workers)


def _hire(found: Sequence[Found], means: Means, base: Path) -> Crew | None:
    """The processes that read these captures; None: this one alone."""
    if means.executor != LOCAL:
        from tracelens.executors.cluster import Cluster

        return Cluster(found, means)
    count = pool.worker_count(means, _portions(found, means), sum(_sizes(found)))
    return pool.Pool(count, means, base) if count > 1 else None


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
    return Loaded(db, exports, means, [], load)


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
            hired = _hire(self._found, self._means, folder.parent) if folder is not None else None
            if folder is not None and hired is not None:
                return self._read_apart(db, hired, folder)
            runs = EventRuns(int(RUNS_SHARE * self._means.limit_bytes) if folder else None, folder)
            exports = raw.load_events(list(self._found), db, self._means.loader, self._progress, runs)
            try:
                self._build_ranks(db)
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
        return Loaded(db, exports, self._means, remarks, self._load)

    def _read_apart(self, db: duckdb.DuckDBPyConnection, hired: Crew, folder: Path) -> Loaded:
        """As `_read`, by other processes."""
        with hired:
            seen = crew.load_events(hired, _portions(self._found, self._means), db, self._progress)
            self._build_ranks(db)
            self._event_count = crew.build_events(hired, db, folder)
        assert self._load is not None  # it has the folder
        _open_events(db, self._load)
        exports = raw.known(list(self._found), db, self._means.loader)
        exports.seen = seen
        return Loaded(db, exports, self._means, [], self._load)

    def _build_ranks(self, db: duckdb.DuckDBPyConnection) -> None:
        build.build_names(db)
        build.build_ranks(db, self._rank_map, self._expected)

    def _order(self, db: duckdb.DuckDBPyConnection, runs: EventRuns, folder: Path | None) -> None:
        try:
            files = build.build_events(db, runs, folder, self._means.thread_count)
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


def _nowhere(error: OSError) -> ExecutorError:
    return ExecutorError(
        f"what the workers read could not be written here ({_reason(error)})",
        "Free some space, let TMPDIR name a folder that can be written, or read here: --executor local",
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


def _arrays_spilled(size_bytes: int) -> Notice:
    return Notice(
        "memory-exceeded",
        "info",
        f"{size_bytes / 1e6:,.0f} MB of arrays lay in temporary files, to keep within the memory allowed",
        "Allow more with --memory.",
    )


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
