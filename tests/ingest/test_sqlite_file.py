"""Files that are no export, are half of one, or mean harm: what is said, and that nothing is touched."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tracelens.errors import DamagedError, InputError, MissingDataError, NotAnExportError
from tracelens.ingest.sqlite_file import CaseInsensitive, open_export, printable, quoted, select


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """StringIds with two rows, and a kernel table with one."""
    path = tmp_path / "x.sqlite"
    write(
        path,
        "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)",
        "INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'norm')",
        'CREATE TABLE KERNEL (start INTEGER NOT NULL, "end" INTEGER NOT NULL, name INTEGER)',
        "INSERT INTO KERNEL VALUES (10, 20, 1)",
    )
    return path


def write(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_tables_are_named_as_written_and_found_in_any_case(export: Path) -> None:
    with open_export(export, "x.sqlite") as file:
        tables = file.tables()
        assert dict(tables) == {
            "KERNEL": {"start": "INTEGER", "end": "INTEGER", "name": "INTEGER"},
            "StringIds": {"id": "INTEGER", "value": "TEXT"},
        }
        assert tables["stringids"]["VALUE"] == "TEXT"
        assert "kernel" in tables
        assert "absent" not in tables
        assert tables.get("absent") is None
        assert file.table("kernel").name == "KERNEL"
        assert file.table("STRINGIDS").row_key == "id"
        assert file.execute("SELECT value FROM StringIds WHERE id = ?", (2,)) == [("norm",)]
        assert file.row_count("KERNEL") == 1


def test_what_is_absent_is_named(export: Path) -> None:
    with open_export(export, "x.sqlite") as file:
        with pytest.raises(MissingDataError, match=r"x\.sqlite has no table MEMCPY"):
            file.table("MEMCPY")
        with pytest.raises(MissingDataError, match=r"x\.sqlite: table KERNEL has no column gridX, gridY"):
            file.table("KERNEL", ["start", "gridX", "gridY"])


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", DamagedError, "it is empty"),
        (b"\0" * 4096, DamagedError, "it begins with zeros"),
        (b"SQLite form", DamagedError, "it is cut off after 11 bytes"),
        (b"SQLite format 3\0" + b"\x10\0", DamagedError, "it is cut off after 18 bytes"),
        (
            b"SQLite format 3\0" + b"\x10\x01" + b"\1" * 90,
            DamagedError,
            "it is damaged: its header names a page size of 4097",
        ),
        (b"rank,start,end\n0,1,2\n", NotAnExportError, "it is not a SQLite database"),
        (b"\x1f\x8b\x08 ...", NotAnExportError, "it is a gzip file, not a SQLite database"),
        (b"PK\x03\x04 ...", NotAnExportError, "it is a zip file, not a SQLite database"),
        (b"PAR1 ...", NotAnExportError, "it is a Parquet file, not a SQLite database"),
    ],
)
def test_files_that_are_no_export(tmp_path: Path, content: bytes, error: type[InputError], message: str) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(content)
    with pytest.raises(error) as raised:
        open_export(path, "it")
    assert raised.value.message == message or raised.value.message.startswith(message + ":")
    assert str(tmp_path) not in str(raised.value)


def test_half_a_file(export: Path) -> None:
    content = export.read_bytes()
    export.write_bytes(content[: len(content) // 2])
    with pytest.raises(DamagedError, match=r"x\.sqlite is cut off: 6,144 bytes of 12,288 that its header announces"):
        open_export(export, "x.sqlite")


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "folder.sqlite").mkdir()
    os.mkfifo(tmp_path / "pipe.sqlite")
    (tmp_path / "dangling.sqlite").symlink_to(tmp_path / "gone")
    (tmp_path / "loop.sqlite").symlink_to(tmp_path / "loop.sqlite")
    expected = {
        "folder.sqlite": "is a directory, not a SQLite file",
        "pipe.sqlite": "is not a regular file",
        "dangling.sqlite": "points to a file that is not there",
        "loop.sqlite": "cannot be opened",
        "gone.sqlite": "does not exist",
    }
    for name, message in expected.items():
        with pytest.raises(InputError, match=f"^{name} {message}"):
            open_export(tmp_path / name, name)
    with pytest.raises(InputError, match="/dev/null is not a regular file"):
        open_export(Path("/dev/null"), "/dev/null")


def test_a_file_that_may_not_be_read(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match=r"x\.sqlite may not be read by this user"):
        open_export(export, "x.sqlite")


@pytest.mark.parametrize(
    "name",
    [
        "with space.sqlite",
        "a?b#c%41.sqlite",
        "größe ☃.sqlite",
        'it\'s "quoted".sqlite',
        "new\nline.sqlite",
        "a&mode=rw.sqlite",
    ],
)
def test_names_that_a_uri_could_trip_over(export: Path, name: str) -> None:
    path = export.rename(export.with_name(name))
    with open_export(path, name) as file:
        assert file.row_count("StringIds") == 2


def test_a_name_that_is_not_utf8(export: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(export.parent) + b"/\xff\xfe.sqlite"))
    export.rename(path)
    with open_export(path, "?") as file:
        assert file.row_count("StringIds") == 2


def test_symbolic_links_are_followed(export: Path, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "rank0.sqlite"
    link.symlink_to("../x.sqlite")
    with open_export(link, "links/rank0.sqlite") as file:
        assert file.row_count("KERNEL") == 1
    (tmp_path / "x.sqlite-wal").write_bytes(b"x")  # beside the file, not beside the link
    with pytest.raises(DamagedError, match=r"links/rank0\.sqlite has a write-ahead log"):
        open_export(link, "links/rank0.sqlite")


def test_nothing_is_written(export: Path, tmp_path: Path) -> None:
    write(export, "PRAGMA journal_mode = WAL", "INSERT INTO KERNEL VALUES (30, 40, 2)")  # closing empties the log
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    assert list(before) == ["x.sqlite"]
    with open_export(export, "x.sqlite") as file:
        assert file.row_count("KERNEL") == 2
        assert [path.name for path in tmp_path.iterdir()] == ["x.sqlite"]
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO KERNEL VALUES (1, 2, 3)",
        "DELETE FROM KERNEL",
        "CREATE TABLE t (a)",
        "CREATE TEMP TABLE t (a)",
        "DROP TABLE KERNEL",
        "ATTACH DATABASE ':memory:' AS other",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = WAL",
        "VACUUM INTO 'copy.sqlite'",
        "SELECT load_extension('x')",
        "CREATE VIRTUAL TABLE t USING fts5(a)",
    ],
)
def test_nothing_but_reading_is_allowed(export: Path, statement: str) -> None:
    content = export.read_bytes()
    with open_export(export, "x.sqlite") as file, pytest.raises(DamagedError):
        file.execute(statement)
    assert export.read_bytes() == content


def test_a_log_with_changes_is_refused(export: Path) -> None:
    connection = sqlite3.connect(export)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("INSERT INTO KERNEL VALUES (30, 40, 2)")
    connection.commit()
    try:
        with pytest.raises(DamagedError, match=r"has a write-ahead log beside it \(-wal\)") as raised:
            open_export(export, "x.sqlite")
        assert "wal_checkpoint" in raised.value.hint
    finally:
        connection.close()
    with open_export(export, "x.sqlite") as file:
        assert file.row_count("KERNEL") == 2


def test_a_rollback_journal_is_refused(export: Path) -> None:
    journal = export.with_name("x.sqlite-journal")
    journal.write_bytes(bytes.fromhex("d9d505f920a163d7") + b"\0" * 504)
    with pytest.raises(DamagedError, match="was left half-written"):
        open_export(export, "x.sqlite")
    journal.write_bytes(b"\0" * 512)  # what a finished transaction leaves with a persistent journal
    open_export(export, "x.sqlite").close()


def test_a_file_being_written_is_refused(export: Path) -> None:
    """Another process is inside a transaction and keeps its journal in memory: only the lock tells."""
    program = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('PRAGMA journal_mode = MEMORY');"
        "c.execute('BEGIN IMMEDIATE'); print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(export)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        with pytest.raises(DamagedError, match=rf"x.sqlite is being written \(process {writer.pid}\)"):
            open_export(export, "x.sqlite")
    open_export(export, "x.sqlite").close()


def test_a_file_that_changes_is_noticed(export: Path) -> None:
    with open_export(export, "x.sqlite") as file:
        file.check_unchanged()
        write(export, "INSERT INTO KERNEL VALUES (30, 40, 2)")
        os.utime(export, ns=(1, 1))
        with pytest.raises(DamagedError, match=r"x\.sqlite changed while it was read"):
            file.check_unchanged()
        export.unlink()
        with pytest.raises(DamagedError, match=r"x\.sqlite vanished while it was read"):
            file.check_unchanged()


def test_only_stored_columns_of_real_tables_are_seen(tmp_path: Path) -> None:
    """A view, a virtual table and a generated column pose as nsys's: they run code of the file's author."""
    path = tmp_path / "x.sqlite"
    write(
        path,
        "CREATE TABLE real (a INTEGER, b INTEGER GENERATED ALWAYS AS (length(zeroblob(1000000000))) VIRTUAL, c)",
        "INSERT INTO real (a, c) VALUES (1, 2)",
        "CREATE VIEW KERNEL AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n AS start FROM r",
        "CREATE VIRTUAL TABLE MEMCPY USING fts5(start)",
        "CREATE TRIGGER t AFTER INSERT ON real BEGIN DELETE FROM real; END",
        "CREATE INDEX i ON real (a)",
    )
    with open_export(path, "x.sqlite") as file:
        tables = file.tables()
        assert tables["real"] == {"a": "INTEGER", "c": ""}
        assert "KERNEL" not in tables
        assert "MEMCPY" not in tables
        assert not file.table("real").plain


def test_an_index_that_contradicts_its_table_is_not_used(tmp_path: Path) -> None:
    """An index over the only column would answer instead of the table; here it is an older, shorter one."""
    path = tmp_path / "x.sqlite"
    write(
        path, "CREATE TABLE t (a INTEGER, b TEXT)", "INSERT INTO t VALUES (1, 'x'), (2, 'y')", "CREATE INDEX i ON t (a)"
    )
    with open_export(path, "x.sqlite") as file:
        plan = file.execute(f"EXPLAIN QUERY PLAN {select(['a'], 't')}")
        assert plan[0][3] == "SCAN t"


def test_text_that_is_not_utf8_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    write(path, "CREATE TABLE t (a TEXT)", "INSERT INTO t VALUES (CAST(x'41ff42' AS TEXT))")
    with open_export(path, "x.sqlite") as file:
        assert file.execute("SELECT a FROM t") == [("A\N{REPLACEMENT CHARACTER}B",)]


def test_a_broken_schema_is_damage(export: Path) -> None:
    write(
        export,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = 'CREATE TABLE \x1b[31m (' WHERE name = 'KERNEL'",
    )
    with (
        pytest.raises(DamagedError, match=r"x\.sqlite is damaged: ") as raised,
        open_export(export, "x.sqlite") as file,
    ):
        file.tables()
    assert "\x1b" not in str(raised.value)


def test_names_are_quoted() -> None:
    assert quoted('a"b') == '"a""b"'
    assert select(["end", "rowid"], 'x"; DROP TABLE y') == 'SELECT "end", rowid FROM "x""; DROP TABLE y" NOT INDEXED'


def test_shown_text_is_harmless_and_short() -> None:
    assert printable("a\x1b[31mb\n") == "a�[31mb�"
    assert printable("x" * 300) == "x" * 199 + "…"


def test_case_insensitive_lookup() -> None:
    names = CaseInsensitive({"StringIds": 1})
    assert (names["STRINGIDS"], names.get("stringids"), names.get("other", 7), names.written("stringids")) == (
        1,
        1,
        7,
        "StringIds",
    )
    with pytest.raises(KeyError):
        names["other"]
