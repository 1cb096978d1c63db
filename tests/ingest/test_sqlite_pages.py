"""The page decoder against SQLite: the same rows, or left to SQLite, or refused; never anything else."""

from __future__ import annotations

import os
import random
import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracelens.errors import TracelensError
from tracelens.ingest import sqlite_pages, sqlite_scan
from tracelens.ingest.forms import forms_of
from tracelens.ingest.readers import ReadReport, read_columns, read_events
from tracelens.ingest.sqlite_cells import refusal
from tracelens.ingest.sqlite_file import open_export
from tracelens.ingest.sqlite_scan import ReadersDisagreeError

KERNEL = (
    'CREATE TABLE KERNEL (start INTEGER NOT NULL, "end" INTEGER NOT NULL, deviceId INTEGER NOT NULL,'
    " correlationId INTEGER, globalPid INTEGER, name INTEGER, graphNodeId INTEGER, note TEXT)"
)
WANTED = ["start", "end", "deviceId", "correlationId", "globalPid", "name", "graphNodeId"]

# The ends of every width that a record can use, and the constants that take no byte at all.
EDGES = [0, 1, -1, 2, 127, -128, 128, 32767, -32768, 32768, 2**23 - 1, -(2**23), 2**23, 2**31 - 1, -(2**31), 2**31]
EDGES += [2**47 - 1, -(2**47), 2**47, 2**62, 2**63 - 1, -(2**63), 1_700_000_000_000_000_000]


def kernel_row(number: int, note: str = "") -> tuple[Any, ...]:
    start = 3_000_000_000 + number * 1_700
    correlation = None if number % 11 == 0 else number
    graph_node = (number % 3) << 32 | number if number % 3 else None
    return (
        start,
        start + number % 900,
        number % 8,
        correlation,
        (1 << 48) + number % 8 * 0x1000000,
        number % 300,
        graph_node,
        note,
    )


def make(
    path: Path, rows: Sequence[Sequence[Any]], ddl: str = KERNEL, page_bytes: int = 4096, auto_vacuum: int = 0
) -> Path:
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size = {page_bytes}")
    connection.execute(f"PRAGMA auto_vacuum = {auto_vacuum}")
    connection.execute(ddl)
    if rows:
        connection.executemany(f"INSERT INTO KERNEL VALUES ({', '.join('?' * len(rows[0]))})", rows)
    connection.commit()
    connection.close()
    return path


def change(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def by_sqlite(path: Path, columns: Sequence[str]) -> list[tuple[int | None, ...]]:
    """The oracle: Python's sqlite3 on the whole table, what is no integer as None."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    connection.text_factory = bytes
    try:
        listed = ", ".join(f'"{column}"' for column in columns)
        found = connection.execute(f"SELECT {listed} FROM KERNEL").fetchall()
    finally:
        connection.close()
    return [tuple(value if type(value) is int else None for value in row) for row in found]


def by_us(
    path: Path, columns: Sequence[str], batch_rows: int = 1000, own: int | None = None
) -> tuple[list[tuple[int | None, ...]], ReadReport]:
    """What the reader gives; `own`: how many of the columns are each row's own, where the rest is read as forms."""
    report = ReadReport()
    rows: list[tuple[int | None, ...]] = []
    with open_export(path, path.name) as file:
        if own is None:
            batches = read_columns(file, "KERNEL", columns, batch_rows=batch_rows, report=report)
        else:
            batches = read_events(file, "KERNEL", columns[:own], columns[own:], batch_rows=batch_rows, report=report)
        for batch in batches:
            batch.validate(full=True)
            read = batch.columns
            if own is not None:
                codes, forms = forms_of(batch)
                assert set(codes.tolist()) == set(range(len(forms[columns[-1]])))
                read = [*read[:-1], *(forms[name].take(pa.array(codes)) for name in columns[own:])]
            rows += zip(*(column.to_pylist() for column in read), strict=True)
    assert report.rows == len(rows)
    return rows, report


@pytest.mark.parametrize("page_bytes", [512, 1024, 4096, 16384, 65536])
@pytest.mark.parametrize("auto_vacuum", [0, 1, 2])
def test_every_page_size_and_vacuum_mode(tmp_path: Path, page_bytes: int, auto_vacuum: int) -> None:
    path = make(
        tmp_path / "x.sqlite", [kernel_row(n) for n in range(3000)], page_bytes=page_bytes, auto_vacuum=auto_vacuum
    )
    rows, report = by_us(path, WANTED)
    assert rows == by_sqlite(path, WANTED)
    assert (report.loader_used, report.fallback_reason) == ("pages", "")


@pytest.mark.parametrize("own", [None, 0, 2, 6])
def test_values_are_what_was_written(tmp_path: Path, own: int | None) -> None:
    """One row per edge of a width, in every column at once."""
    path = make(tmp_path / "x.sqlite", [(edge, edge, edge, edge, None, edge, edge, "") for edge in EDGES])
    rows, report = by_us(path, WANTED, own=own)
    assert rows == [(edge, edge, edge, edge, None, edge, edge) for edge in EDGES]
    assert report.loader_used == "pages"


def test_rows_that_repeat_are_told_once(tmp_path: Path) -> None:
    """Times differ in every row; device, process and name take eight values together, of two widths each."""
    kinds = [(n % 2 * 300, (1 << 48) * (n % 3), n % 2) for n in range(8)]
    stored = [(n, n + 5, kinds[n % 8][0], n, *kinds[n % 8][1:], None, "") for n in range(5000)]
    path = make(tmp_path / "x.sqlite", stored)
    columns = ["start", "end", "correlationId", "deviceId", "globalPid", "name", "graphNodeId"]
    rows, report = by_us(path, columns, own=3)
    assert rows == by_sqlite(path, columns)
    assert report.loader_used == "pages"
    with open_export(path, "x.sqlite") as file:
        [batch] = read_events(file, "KERNEL", columns[:3], columns[3:])
    _, forms = forms_of(batch)
    told = list(zip(*(forms[name].to_pylist() for name in columns[3:]), strict=True))
    assert set(told) == {(*kind, None) for kind in kinds}
    assert len(told) < 30  # once per width of the times before them


def test_rows_of_many_tables_interleaved(tmp_path: Path) -> None:
    """Pages of three tables lie in turns, as a writer of several event kinds leaves them."""
    path = make(tmp_path / "x.sqlite", [], page_bytes=512)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE other (a TEXT)")
    connection.execute("CREATE TABLE third (a INTEGER)")
    for number in range(0, 4000, 40):
        connection.executemany(
            "INSERT INTO KERNEL VALUES (?,?,?,?,?,?,?,?)", map(kernel_row, range(number, number + 40))
        )
        connection.executemany("INSERT INTO other VALUES (?)", [("x" * (number % 300),)] * 30)
        connection.executemany("INSERT INTO third VALUES (?)", [(number,)] * 200)
    connection.commit()
    connection.close()
    rows, report = by_us(path, WANTED)
    assert rows == by_sqlite(path, WANTED) == [kernel_row(n)[:7] for n in range(4000)]
    assert report.loader_used == "pages"


def test_deleted_rows_stay_deleted(tmp_path: Path) -> None:
    path = make(tmp_path / "x.sqlite", [kernel_row(n) for n in range(3000)], page_bytes=1024)
    change(path, "DELETE FROM KERNEL WHERE start % 7 = 0", "DELETE FROM KERNEL WHERE rowid BETWEEN 500 AND 900")
    change(path, "UPDATE KERNEL SET correlationId = 5000000000 + rowid WHERE rowid % 3 = 0")
    rows, report = by_us(path, WANTED)
    assert rows == by_sqlite(path, WANTED)
    assert report.loader_used == "pages"


@pytest.mark.parametrize("count", [0, 1])
def test_hardly_any_rows(tmp_path: Path, count: int) -> None:
    path = make(tmp_path / "x.sqlite", [kernel_row(n) for n in range(count)])
    rows, report = by_us(path, WANTED)
    assert rows == [kernel_row(n)[:7] for n in range(count)]
    assert report.loader_used == "pages"


def test_row_ids_of_any_size(tmp_path: Path) -> None:
    """Negative and huge row ids take nine bytes: pages that hold one are read by SQLite."""
    path = make(tmp_path / "x.sqlite", [])
    ids = [-(2**62), -5, 0, 1, 127, 128, 16384, 2**21, 2**28, 2**35, 2**42, 2**56, 2**62, 2**63 - 1]
    connection = sqlite3.connect(path)
    for number, row_id in enumerate(random.Random(1).sample(ids, len(ids))):
        connection.execute(
            'INSERT INTO KERNEL (rowid, start, "end", deviceId) VALUES (?, ?, ?, 0)', (row_id, number, number)
        )
    connection.executemany(
        'INSERT INTO KERNEL (rowid, start, "end", deviceId) VALUES (?, 7, 7, 7)', [(n,) for n in range(200, 3000)]
    )
    connection.commit()
    connection.close()
    rows, _ = by_us(path, WANTED)
    assert rows == by_sqlite(path, WANTED)


@pytest.mark.parametrize("own", [None, 2])
def test_a_few_odd_rows_are_read_by_sqlite_and_counted(tmp_path: Path, own: int | None) -> None:
    rows_in: list[Any] = [kernel_row(n) for n in range(20_000)]
    rows_in[4_000] = (1, 2, 3, 4.5, None, "text", b"\xff", "")
    rows_in[15_000] = (1, 2.5, 3, 4, 5, 6, 7, "")
    rows_in[15_001] = (1, 2, 3, 4, 5, 6, 7, "x" * 20_000)  # behind the wanted columns, but on overflow pages
    path = make(tmp_path / "x.sqlite", rows_in)
    rows, report = by_us(path, WANTED, own=own)
    assert rows == by_sqlite(path, WANTED)
    assert rows[4_000] == (1, 2, 3, None, None, None, None)
    assert report.loader_used == "pages"
    assert report.wrong_type_count == {"correlationId": 1, "name": 1, "graphNodeId": 1, "end": 1}


def test_text_behind_the_wanted_columns_does_no_harm(tmp_path: Path) -> None:
    """From 58 letters on, the type of a text takes two bytes of the record's header."""
    path = make(tmp_path / "x.sqlite", [kernel_row(n, "x" * (n % 130)) for n in range(2000)])
    rows, report = by_us(path, WANTED)
    assert rows == by_sqlite(path, WANTED)
    assert report.loader_used == "pages"


def test_many_odd_rows_change_the_reader_in_the_middle(tmp_path: Path) -> None:
    """The first half is integers; in the second, every tenth row holds a fraction: SQLite goes on where we stopped."""
    rows_in: list[Any] = [kernel_row(n) for n in range(40_000)]
    for number in range(30_000, 40_000, 10):
        rows_in[number] = (*rows_in[number][:5], 0.5, *rows_in[number][6:])
    path = make(tmp_path / "x.sqlite", rows_in)
    rows, report = by_us(path, WANTED)
    assert rows == by_sqlite(path, WANTED)
    assert report.loader_used == "sqlite"
    assert report.wrong_type_count == {"name": 1000}
    assert report.fallback_reason.startswith("many rows are not made of integers")


REFUSED = {
    "without row ids": (
        "CREATE TABLE KERNEL (start INTEGER, name INTEGER, PRIMARY KEY (start)) WITHOUT ROWID",
        "the table has no row ids",
    ),
    "primary key": ("CREATE TABLE KERNEL (start INTEGER PRIMARY KEY, name INTEGER)", "a wanted column is the row id"),
    "text before": ("CREATE TABLE KERNEL (note TEXT, start INTEGER, name INTEGER)", "a column of text"),
    "real before": ("CREATE TABLE KERNEL (note DOUBLE, start INTEGER, name INTEGER)", "a column of text or real"),
    "wanted real": ("CREATE TABLE KERNEL (start INTEGER, name REAL)", "a column of text or real"),
    "generated": (
        "CREATE TABLE KERNEL (start INTEGER, note INTEGER GENERATED ALWAYS AS (start + 1) VIRTUAL, name INTEGER)",
        "the table has no row ids, or generated columns",
    ),
    "stored": (
        "CREATE TABLE KERNEL (start INTEGER, note INTEGER GENERATED ALWAYS AS (start + 1) STORED, name INTEGER)",
        "the table has no row ids, or generated columns",
    ),
    "too many": (
        f"CREATE TABLE KERNEL (start INTEGER, {', '.join(f'c{n} INTEGER' for n in range(40))}, name INTEGER)",
        "a wanted column lies behind column 32",
    ),
    "a column named rowid": (
        "CREATE TABLE KERNEL (start INTEGER, rowid INTEGER, name INTEGER)",
        "the table has no row ids",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_tables_of_another_shape_are_left_to_sqlite(tmp_path: Path, case: str) -> None:
    ddl, reason = REFUSED[case]
    path = make(tmp_path / "x.sqlite", [], ddl)
    connection = sqlite3.connect(path)
    connection.executemany("INSERT INTO KERNEL (start, name) VALUES (?, ?)", [(n, 3 * n) for n in range(500)])
    connection.commit()
    connection.close()
    rows, report = by_us(path, ["start", "name"])
    assert rows == by_sqlite(path, ["start", "name"])
    assert report.fallback_reason.startswith(reason)
    assert report.loader_used in ("adbc", "sqlite")


def test_columns_added_later_take_their_default(tmp_path: Path) -> None:
    """Rows from before ALTER TABLE are short: SQLite fills in the default, the pages do not hold it."""
    path = make(tmp_path / "x.sqlite", [kernel_row(n) for n in range(2000)])
    change(path, "ALTER TABLE KERNEL DROP COLUMN note", "ALTER TABLE KERNEL ADD COLUMN added INTEGER DEFAULT 77")
    rows, report = by_us(path, [*WANTED, "added"])
    assert rows == by_sqlite(path, [*WANTED, "added"])
    assert {row[-1] for row in rows} == {77}
    assert report.loader_used == "adbc"
    rows, report = by_us(path, WANTED)
    assert rows == by_sqlite(path, WANTED)
    assert report.loader_used == "pages"


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (18, b"\x02\x02", "the file uses a write-ahead log"),
        (20, b"\x08", "its pages have reserved bytes"),
        (21, b"\x20", "unusual payload fractions"),
        (44, struct.pack(">I", 9), "an unknown schema format"),
    ],
)
def test_files_of_another_format_are_left_to_sqlite(tmp_path: Path, offset: int, value: bytes, reason: str) -> None:
    path = make(tmp_path / "x.sqlite", [kernel_row(n) for n in range(20)])
    content = bytearray(path.read_bytes())
    content[offset : offset + len(value)] = value
    with open_export(path, "x.sqlite") as file:
        table = file.table("KERNEL")
        file.header = bytes(content[:100])
        assert refusal(file, table, WANTED) == reason


integers = st.one_of(st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1), st.integers(-300, 300), st.none())
oddities = st.one_of(st.floats(allow_nan=False), st.text(max_size=80), st.binary(max_size=80))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_table_reads_as_sqlite_reads_it(tmp_path: Path, data: st.DataObject) -> None:
    column_count = data.draw(st.integers(1, 34))
    wanted = sorted(data.draw(st.sets(st.integers(0, column_count - 1), min_size=1, max_size=5)))
    few = data.draw(st.lists(st.tuples(*[integers] * column_count), min_size=1, max_size=12))
    rows: list[tuple[Any, ...]] = [few[n % len(few)] for n in range(data.draw(st.integers(0, 400)))]
    if rows and data.draw(st.booleans()):
        at, odd = data.draw(st.integers(0, len(rows) - 1)), data.draw(oddities)
        place = data.draw(st.integers(0, column_count - 1))
        rows[at] = (*rows[at][:place], odd, *rows[at][place + 1 :])
    ddl = f"CREATE TABLE KERNEL ({', '.join(f'c{n} INTEGER' for n in range(column_count))})"
    page_bytes = data.draw(st.sampled_from([512, 1024, 4096, 32768]))
    path = make(tmp_path / "x.sqlite", rows, ddl, page_bytes, data.draw(st.sampled_from([0, 1, 2])))
    step = data.draw(st.integers(0, 9))
    if step:
        change(
            path,
            f"DELETE FROM KERNEL WHERE rowid % {step + 1} = 0",
            f"UPDATE KERNEL SET c0 = 5 WHERE rowid % {step} = 0",
        )
    columns = [f"c{n}" for n in data.draw(st.permutations(wanted))]
    own = data.draw(st.none() | st.integers(0, len(columns) - 1))
    rows_read, report = by_us(path, columns, data.draw(st.sampled_from([1, 50, 100_000])), own)
    expected = by_sqlite(path, columns)
    assert rows_read == expected
    assert sum(report.wrong_type_count.values()) == _misfits(path, columns)


def _misfits(path: Path, columns: Sequence[str]) -> int:
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        listed = " + ".join(f"(typeof({column}) NOT IN ('integer', 'null'))" for column in columns)
        [(count,)] = connection.execute(f"SELECT coalesce(sum({listed}), 0) FROM KERNEL").fetchall()
    finally:
        connection.close()
    return int(count)


def damaged_copies(content: bytes, page_bytes: int, count: int, seed: int) -> list[bytes]:
    """Copies with one to eight bytes changed, half of them where pages keep their bookkeeping."""
    chance = random.Random(seed)
    copies = []
    for _ in range(count):
        copy = bytearray(content)
        for _ in range(chance.choice([1, 1, 1, 2, 8])):
            page = chance.randrange(len(copy) // page_bytes) * page_bytes
            at = chance.choice([chance.randrange(len(copy)), page + chance.randrange(40), chance.randrange(100)])
            copy[at] = chance.choice([chance.randrange(256), copy[at] ^ 1 << chance.randrange(8)])
        copies.append(bytes(copy))
    return copies


@pytest.mark.parametrize(("page_bytes", "own"), [(512, None), (4096, None), (512, 2), (4096, 2)])
def test_damage_is_refused_or_read_as_sqlite_reads_it(tmp_path: Path, page_bytes: int, own: int | None) -> None:
    path = make(tmp_path / "x.sqlite", [kernel_row(n, "x" * (n % 9)) for n in range(1500)], page_bytes=page_bytes)
    outcomes = {"refused": 0, "equal": 0}
    for copy in damaged_copies(path.read_bytes(), page_bytes, 250, seed=page_bytes):
        path.write_bytes(copy)
        try:
            rows, _ = by_us(path, WANTED, own=own)
        except TracelensError:
            outcomes["refused"] += 1
        else:
            assert rows == by_sqlite(path, WANTED)  # and SQLite must not stumble where we did not
            outcomes["equal"] += 1
    assert min(outcomes.values()) > 50


def test_a_tree_that_runs_in_circles_is_refused(tmp_path: Path) -> None:
    """A branch of the root points back to the root: followed blindly, it never ends."""
    path = make(tmp_path / "x.sqlite", [kernel_row(n) for n in range(3000)], page_bytes=512)
    with open_export(path, "x.sqlite") as file:
        root = file.table("KERNEL").root_page
    content = bytearray(path.read_bytes())
    page = (root - 1) * 512
    (pointer,) = struct.unpack(">H", content[page + 12 : page + 14])
    content[page + pointer : page + pointer + 4] = struct.pack(">I", root)
    path.write_bytes(bytes(content))
    with pytest.raises(TracelensError):
        by_us(path, WANTED)


def test_a_leaf_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    """SQLite would return its rows twice."""
    path = make(tmp_path / "x.sqlite", [kernel_row(n) for n in range(60)], page_bytes=512)
    with open_export(path, "x.sqlite") as file:
        root = file.table("KERNEL").root_page
    content = bytearray(path.read_bytes())
    page = (root - 1) * 512
    first, second = struct.unpack(">HH", content[page + 12 : page + 16])
    content[page + second : page + second + 4] = content[page + first : page + first + 4]
    path.write_bytes(bytes(content))
    assert len(by_sqlite(path, WANTED)) == 60
    with pytest.raises(TracelensError, match="out of order or occur twice"):
        by_us(path, WANTED)


def test_another_count_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "x.sqlite", [kernel_row(n) for n in range(60)])
    monkeypatch.setattr(sqlite_scan.RowCount, "result", lambda self: 59)
    with pytest.raises(ReadersDisagreeError, match="60 rows in the pages of KERNEL, where SQLite counts 59"):
        by_us(path, WANTED)


def test_samples_that_differ_send_the_table_to_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that reads one value wrongly is found out before it has given a row."""
    path = make(tmp_path / "x.sqlite", [kernel_row(n) for n in range(2000)])
    honest = sqlite_scan.Decoder.decode

    def mistaken(self: Any, places: Any) -> Any:
        rows = honest(self, places)
        rows.values[1][-1] += 1
        return rows

    monkeypatch.setattr(sqlite_scan.Decoder, "decode", mistaken)
    rows, report = by_us(path, WANTED)
    assert rows == by_sqlite(path, WANTED)
    assert report.loader_used == "adbc"
    assert report.fallback_reason == "SQLite reads other rows from the same pages"


def test_pages_are_read_in_the_order_asked(tmp_path: Path) -> None:
    """Pages forward, backward, far apart and more than a buffer holds: each where it is said to be."""
    page_bytes, page_count = 512, 9000
    path = tmp_path / "pages"
    path.write_bytes(b"".join(struct.pack(">I", number + 1).ljust(page_bytes, b"\0") for number in range(page_count)))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        pages = sqlite_pages.Pages(descriptor, page_bytes, page_count)
        chance = np.random.default_rng(3)
        for numbers in (
            np.arange(1, page_count + 1),
            np.arange(page_count, 0, -7),
            np.arange(1, page_count, 30),
            np.arange(1, page_count, 300),
            chance.permutation(page_count)[:3000] + 1,
        ):
            found: list[int] = []
            for count, places in pages.read(numbers.astype(np.int64)):
                assert count == len(places)
                found += [int.from_bytes(pages.buffer[place : place + 4].tobytes(), "big") for place in places]
            assert found == numbers.tolist()
    finally:
        os.close(descriptor)
