"""One SQLite file opened for reading, so that nothing is written beside it and no content of it can do harm.

The file is looked at before SQLite touches it: what kind of file it is, its magic bytes, its length, whether
someone is writing it. Then it is opened with `mode=ro&immutable=1`: SQLite takes no lock, makes no `-shm` and no
`-journal`, and works on read-only mounts. An immutable file is read without its write-ahead log, so a file with a
log that holds anything is refused: the numbers would be those of an older state.

The schema inside is not trusted: only real tables with stored columns are named by `SqliteFile.tables`; views,
virtual tables and generated columns are absent as far as tracelens is concerned.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from tracelens.errors import DamagedError, InputError, MissingDataError, NotAnExportError

MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_LOCK_BYTES_START = 0x40000000  # SQLite's pending, reserved and shared lock bytes lie here, whatever the page size
_LOCK_BYTES_COUNT = 512
_MAX_VALUE_BYTES = 64 * 1024 * 1024  # the longest text or blob that is ever read

_EXPORT = "give an export: nsys export --type sqlite REPORT.nsys-rep"
_EXPORT_AGAIN = "export it again: nsys export --type sqlite --force-overwrite true REPORT.nsys-rep"
_OTHER_FORMATS = (
    (b"\x1f\x8b", "a gzip file", "unpack it first"),
    (b"PK\x03\x04", "a zip file", "unpack it first"),
    (b"(\xb5/\xfd", "a zstd file", "unpack it first"),
    (b"PAR1", "a Parquet file", "give the folder that nsys wrote it into"),
    (b"{", "JSON or text", ""),
)

V = TypeVar("V")


class CaseInsensitive(dict[str, V], Generic[V]):
    """A dict whose keys are looked up without regard to case, as SQLite does, and listed as they were written."""

    def __init__(self, items: Mapping[str, V]) -> None:
        """Copy `items`; it is not changed afterwards."""
        super().__init__(items)
        self._written = {name.lower(): name for name in items}

    def __getitem__(self, name: str) -> V:
        """The value under the name, however it is written."""
        return super().__getitem__(self._written[name.lower()])

    def __contains__(self, name: object) -> bool:
        """Whether the name is there, however it is written."""
        return isinstance(name, str) and name.lower() in self._written

    def get(self, name: str, default: Any = None) -> Any:
        """The value under the name, or `default`."""
        try:
            return self[name]
        except KeyError:
            return default

    def written(self, name: str) -> str:
        """The name as the file writes it."""
        return self._written[name.lower()]


@dataclass(frozen=True)
class Table:
    """One real table of the file.

    Attributes:
        name: as the file writes it.
        root_page: page number (from 1) of the root of its b-tree.
        columns: stored columns in declared order: name -> declared type ('' where none is declared).
        row_key: name of the column that is the row id (`INTEGER PRIMARY KEY`), if there is one.
        row_ids: its rows have ids, which `rowid` names.
        plain: it has row ids, and every declared column is stored in each record in declared order.
    """

    name: str
    root_page: int
    columns: CaseInsensitive[str]
    row_key: str | None
    row_ids: bool
    plain: bool


def quoted(name: str) -> str:
    """An identifier as it may stand in SQL."""
    return '"' + name.replace('"', '""') + '"'


def select(columns: Sequence[str], table: str, where: str = "") -> str:
    """SQL that reads plain columns of one table in the table's own order; the only place that assembles SQL.

    Args:
        columns: names of columns, or `rowid`; each is quoted, but for a `rowid` that is no column.
        table: the table; no index is used, so an index that contradicts it cannot change the answer.
        where: a condition of our own (never from the file) with `?` for values; empty for every row.
    """
    listed = ", ".join("rowid" if name == "rowid" else quoted(name) for name in columns)
    condition = f" WHERE {where}" if where else ""
    return f"SELECT {listed} FROM {quoted(table)} NOT INDEXED{condition}"  # noqa: S608  identifiers are quoted


def printable(text: str, limit: int = 200) -> str:
    """Text from a file or from SQLite, safe to show: control characters replaced, cut at `limit` characters."""
    shown = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


class SqliteFile:
    """A SQLite file open for reading; made by `open_export`. Use as a context manager, or `close` it.

    Attributes:
        path: where the file really lies (symbolic links followed); never shown to the user.
        shown: the path as the user typed it, for messages.
        uri: what SQLite was asked to open.
        size_bytes: length of the file when it was opened.
        header: its first 100 bytes.
    """

    def __init__(self, path: Path, shown: str, size_bytes: int, mtime_ns: int, header: bytes) -> None:
        """Connect to a file that `open_export` has checked."""
        self.path = path
        self.shown = shown
        self.size_bytes = size_bytes
        self.header = header
        self.uri = f"file://{quote(os.fsencode(path))}?mode=ro&immutable=1"
        self._mtime_ns = mtime_ns
        self._tables: CaseInsensitive[Table] | None = None
        with self.reading():
            self._connection = connect(self.uri)

    def __enter__(self) -> SqliteFile:
        """The file itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the connection; nothing can be read afterwards."""
        self._connection.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What SQLite says of the file, said as a `DamagedError`."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError, MemoryError) as error:  # the last two: broken names, broken lengths
            what = printable(str(error)) if isinstance(error, sqlite3.Error) else "impossible names or lengths"
            raise self.damaged(what) from error

    def damaged(self, what: str) -> DamagedError:
        """The error for a file whose content contradicts itself."""
        return DamagedError(f"{self.shown} is damaged: {what}", _EXPORT_AGAIN)

    def check_unchanged(self) -> None:
        """Compare the file with what was opened.

        Raises:
            DamagedError: someone wrote to it, or replaced it, while it was read.
        """
        try:
            now = self.path.stat()
        except OSError as error:
            raise DamagedError(f"{self.shown} vanished while it was read", "") from error
        if (now.st_size, now.st_mtime_ns) != (self.size_bytes, self._mtime_ns):
            raise DamagedError(f"{self.shown} changed while it was read", "wait until it is written, then try again")

    def tables(self) -> CaseInsensitive[CaseInsensitive[str]]:
        """Every real table: name -> (column -> declared type), names as written, looked up in any case.

        Views, virtual tables, generated columns and SQLite's own tables are left out.

        Raises:
            DamagedError: the schema cannot be read.
        """
        tables = self.table_details()
        return CaseInsensitive({name: table.columns for name, table in tables.items()})

    def table_details(self) -> CaseInsensitive[Table]:
        """Every real table with its root page and the shape of its rows; see `tables`."""
        if self._tables is None:
            with self.reading():
                self._tables = CaseInsensitive({table.name: table for table in _tables(self._connection)})
        return self._tables

    def table(self, name: str, columns: Sequence[str] = ()) -> Table:
        """The table, which holds at least `columns`.

        Raises:
            MissingDataError: the table or a column is absent.
            DamagedError: the schema cannot be read.
        """
        tables = self.table_details()
        if name not in tables:
            raise MissingDataError(f"{self.shown} has no table {name}", "")
        table = tables[name]
        missing = [column for column in columns if column not in table.columns]
        if missing:
            raise MissingDataError(f"{self.shown}: table {name} has no column {', '.join(missing)}", "")
        return table

    def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a small query. Text that is not UTF-8 has the offending bytes replaced.

        Raises:
            DamagedError: SQLite cannot read the file.
        """
        with self.reading():
            return self._connection.execute(sql, params).fetchall()

    def row_count(self, table: str) -> int:
        """COUNT(*) of a table."""
        [(count,)] = self.execute(f"SELECT COUNT(*) FROM {quoted(table)} NOT INDEXED")  # noqa: S608  identifiers are quoted
        return int(count)

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection itself, for readers that stream; wrap its use in `reading`."""
        return self._connection


def connect(uri: str) -> sqlite3.Connection:
    """A connection that can only read, and that runs nothing which the file's schema brings along."""
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    try:
        connection.text_factory = _text
        for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}").close()
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_authorizer(_authorize)
    except BaseException:
        connection.close()
        raise
    return connection


def open_export(path: Path, shown: str) -> SqliteFile:
    """Open a SQLite export for reading, or say why not. Nothing is ever written to it or beside it.

    Args:
        path: the file; symbolic links are followed.
        shown: how the user named it; the only form in which messages name it.

    Raises:
        InputError: there is no such file, it is no regular file, or it may not be read.
        NotAnExportError: it is not a SQLite database.
        DamagedError: empty, header zeroed, shorter than its header says, being written, or left half-written
            (a rollback journal or a write-ahead log with content lies beside it).
    """
    real = Path(os.path.realpath(path))
    try:
        _check_kind(real.stat(), shown)
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        dangling = path.is_symlink()
        raise InputError(
            f"{shown} {'points to a file that is not there' if dangling else 'does not exist'}", ""
        ) from error
    except PermissionError as error:
        raise InputError(f"{shown} may not be read by this user", "ask its owner, or copy it") from error
    except OSError as error:
        raise InputError(f"{shown} cannot be opened: {error.strerror}", "") from error
    try:
        status = os.fstat(descriptor)
        _check_kind(status, shown)
        header = os.pread(descriptor, _HEADER_BYTES, 0)
        _check_header(header, status.st_size, shown)
        _check_writer(descriptor, shown)
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror}", "") from error
    finally:
        os.close(descriptor)
    _check_companions(real, shown)
    return SqliteFile(real, shown, status.st_size, status.st_mtime_ns, header)


def _check_kind(status: os.stat_result, shown: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{shown} is a directory, not a SQLite file", "")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{shown} is not a regular file", "save what it yields to a file first")


def _check_header(header: bytes, size_bytes: int, shown: str) -> None:
    if not header:
        raise DamagedError(f"{shown} is empty", _EXPORT_AGAIN)
    if header.count(0) == len(header):
        raise DamagedError(f"{shown} begins with zeros: an export that was interrupted", _EXPORT_AGAIN)
    if not header.startswith(MAGIC):
        if MAGIC.startswith(header):
            raise DamagedError(f"{shown} is cut off after {len(header)} bytes", _EXPORT_AGAIN)
        for prefix, name, hint in _OTHER_FORMATS:
            if header.startswith(prefix):
                raise NotAnExportError(f"{shown} is {name}, not a SQLite database", hint)
        raise NotAnExportError(f"{shown} is not a SQLite database", _EXPORT)
    if len(header) < _HEADER_BYTES:
        raise DamagedError(f"{shown} is cut off after {len(header)} bytes", _EXPORT_AGAIN)
    page_size = page_size_of(header)
    if page_size < 512 or page_size & (page_size - 1):
        raise DamagedError(f"{shown} is damaged: its header names a page size of {page_size}", _EXPORT_AGAIN)
    changes, page_count = struct.unpack(">II", header[24:32])
    (count_valid_for,) = struct.unpack(">I", header[92:96])
    if page_count and changes == count_valid_for and size_bytes < page_count * page_size:
        raise DamagedError(
            f"{shown} is cut off: {size_bytes:,} bytes of {page_count * page_size:,} that its header announces",
            _EXPORT_AGAIN,
        )


def page_size_of(header: bytes) -> int:
    """Page size in bytes that a database header names (1 stands for 65536)."""
    (size,) = struct.unpack(">H", header[16:18])
    return 65536 if size == 1 else int(size)


def _check_writer(descriptor: int, shown: str) -> None:
    """Ask who holds SQLite's write locks, without taking any; file systems without locks say nobody."""
    question = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, _LOCK_BYTES_START, _LOCK_BYTES_COUNT, 0)
    with suppress(OSError):
        answer = struct.unpack("hhqqi4x", fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
        if answer[0] != fcntl.F_UNLCK:
            writer = f" (process {answer[4]})" if answer[4] > 0 else ""
            raise DamagedError(f"{shown} is being written{writer}", "wait until that is done, then try again")


def _check_companions(real: Path, shown: str) -> None:
    with suppress(FileNotFoundError), Path(f"{real}-wal").open("rb") as log:
        if os.fstat(log.fileno()).st_size:
            raise DamagedError(
                f"{shown} has a write-ahead log beside it (-wal) with changes that are not in the file yet",
                "close the program that has it open, or run: sqlite3 FILE 'PRAGMA wal_checkpoint(TRUNCATE)'",
            )
    with suppress(FileNotFoundError), Path(f"{real}-journal").open("rb") as journal:
        if journal.read(len(_JOURNAL_MAGIC)) == _JOURNAL_MAGIC:
            raise DamagedError(
                f"{shown} is being written or was left half-written: a rollback journal (-journal) lies beside it",
                _EXPORT_AGAIN,
            )


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


_ALLOWED_PRAGMAS = frozenset({"table_xinfo", "index_list"})


def _authorize(action: int, first: str | None, second: str | None, *_place: str | None) -> int:
    """Allow reading and SQLite's own functions; deny everything that writes, attaches or configures."""
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and second != "load_extension":
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and first in _ALLOWED_PRAGMAS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _tables(connection: sqlite3.Connection) -> Iterator[Table]:
    """The real tables. A table is plain when its rows have ids and no declared column is missing from the record."""
    listed = connection.execute(
        "SELECT name, rootpage FROM sqlite_master WHERE type = 'table' AND typeof(rootpage) = 'integer'"
        " AND rootpage > 0 AND typeof(name) = 'text' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
    ).fetchall()
    for name, root_page in listed:
        described = connection.execute(f"PRAGMA table_xinfo({quoted(name)})").fetchall()
        columns = {column: declared or "" for _, column, declared, _, _, _, hidden in described if hidden == 0}
        keys = [column for _, column, _, _, _, position, _ in described if position]
        row_ids = _has_row_ids(connection, name, columns)
        row_key = keys[0] if row_ids and len(keys) == 1 and columns.get(keys[0], "").upper() == "INTEGER" else None
        plain = row_ids and len(columns) == len(described)
        yield Table(name, root_page, CaseInsensitive(columns), row_key, row_ids, plain)


def _has_row_ids(connection: sqlite3.Connection, table: str, columns: Mapping[str, str]) -> bool:
    if any(column.lower() in ("rowid", "_rowid_", "oid") for column in columns):
        return False  # the row id may be hidden by a column of that name: treated as if there were none
    try:
        connection.execute(f"{select(['rowid'], table)} LIMIT 0").close()
    except sqlite3.OperationalError:
        return False
    return True
