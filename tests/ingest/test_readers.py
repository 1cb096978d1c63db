"""Every way of reading gives the same rows, counts what is no integer, and streams."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracelens.errors import DamagedError, MissingDataError
from tracelens.ingest import readers, sqlite_rows
from tracelens.ingest.readers import ReadReport, read_columns, read_text_rows
from tracelens.ingest.sqlite_file import SqliteFile, open_export
from tracelens.ingest.sqlite_rows import Place

EXPORTS = Path(__file__).parents[3] / "shared" / "exports"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.sqlite"


def make(path: Path, ddl: str, rows: Sequence[Sequence[Any]]) -> Path:
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute(ddl)
    if rows:
        connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(rows[0]))})", rows)
    connection.commit()
    connection.close()
    return path


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for batch in batches:
        batch.validate(full=True)
        rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return rows


# How to make each way read: a condition keeps the page decoder away.
WAYS: dict[str, dict[str, Any]] = {"pages": {}, "adbc": {"where": "1"}, "sqlite": {"loader": "sqlite"}}


@pytest.mark.parametrize("way", WAYS)
def test_integers_and_nulls(path: Path, way: str) -> None:
    """The first batch of b is all null: a driver that guesses types from it must not guess wrongly."""
    stored = [(n, None if n < 300 else n << 40) for n in range(1000)]
    make(path, "CREATE TABLE t (a INTEGER, b INTEGER)", stored)
    report = ReadReport()
    taken: list[int] = []
    with open_export(path, "x.sqlite") as file:
        batches = read_columns(file, "T", ["B", "a"], batch_rows=100, report=report, on_rows=taken.append, **WAYS[way])
        first = next(batches)
        assert first.schema == pa.schema([("B", pa.int64()), ("a", pa.int64())])
        rows = rows_of(iter([first])) + rows_of(batches)
    assert rows == [(b, a) for a, b in stored]
    assert report == ReadReport(1000, {}, way, report.fallback_reason)
    assert sum(taken) == 1000


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at", [0, 5, 999])
@pytest.mark.parametrize("odd", [2.5, 1e300, "17 apples", "", b"\x00\xff", 10.0**18 + 0.5])
def test_what_is_no_integer_is_null_and_counted(path: Path, way: str, at: int, odd: Any) -> None:
    stored: list[tuple[Any, ...]] = [(n, n * 2) for n in range(1000)]
    stored[at] = (at, odd)
    make(path, "CREATE TABLE t (a INTEGER, b INTEGER)", stored)
    kept = None if not (isinstance(odd, float) and odd == int(odd) and abs(odd) < 2**63) else int(odd)
    report = ReadReport()
    with open_export(path, "x.sqlite") as file:
        rows = rows_of(read_columns(file, "t", ["a", "b"], batch_rows=100, report=report, **WAYS[way]))
    assert rows == [*[(n, n * 2) for n in range(at)], (at, kept), *[(n, n * 2) for n in range(at + 1, 1000)]]
    assert report.wrong_type_count == ({} if kept is not None else {"b": 1})


@pytest.mark.parametrize("way", WAYS)
def test_a_column_that_holds_no_integer_at_all(path: Path, way: str) -> None:
    make(path, "CREATE TABLE t (a INTEGER, b TEXT, c REAL)", [(n, f"n{n}", n / 2) for n in range(500)])
    report = ReadReport()
    with open_export(path, "x.sqlite") as file:
        rows = rows_of(read_columns(file, "t", ["a", "b", "c"], report=report, **WAYS[way]))
    assert rows == [(n, None, None) for n in range(500)]
    assert report.wrong_type_count == {"b": 500, "c": 500}


@pytest.mark.parametrize("loader", ["auto", "sqlite"])
def test_a_condition_runs_in_sqlite(path: Path, loader: Any) -> None:
    make(path, "CREATE TABLE t (a INTEGER, b INTEGER)", [(n, n % 7) for n in range(1000)])
    with open_export(path, "x.sqlite") as file:
        wanted = {"where": "b = ? OR a < ?", "params": (3, 2), "loader": loader}
        rows = rows_of(read_columns(file, "t", ["a"], batch_rows=10, **wanted))
        assert rows == [(n,) for n in range(1000) if n % 7 == 3 or n < 2]
        assert rows_of(read_text_rows(file, "t", ["a"], batch_rows=10, **wanted)) == rows


def test_a_switch_in_the_middle_keeps_the_condition(path: Path) -> None:
    """The fast driver stops at row 600; the plain one goes on behind row 599, with the same condition."""
    make(path, "CREATE TABLE t (a INTEGER, b INTEGER)", [(n, 0.5 if n == 600 else n % 7) for n in range(1000)])
    report = ReadReport()
    with open_export(path, "x.sqlite") as file:
        rows = rows_of(
            read_columns(file, "t", ["a", "b"], where="a % 2 = ?", params=(0,), batch_rows=100, report=report)
        )
    assert rows == [(n, None if n == 600 else n % 7) for n in range(0, 1000, 2)]
    assert report.loader_used == "sqlite"
    assert report.wrong_type_count == {"b": 1}


def test_absent_tables_and_columns_are_named_at_once(path: Path) -> None:
    make(path, "CREATE TABLE t (a INTEGER)", [])
    with open_export(path, "x.sqlite") as file:
        with pytest.raises(MissingDataError, match="has no table u"):
            read_columns(file, "u", ["a"])
        with pytest.raises(MissingDataError, match="table t has no column b"):
            read_text_rows(file, "t", ["a", "b"])


@pytest.mark.parametrize("loader", ["auto", "sqlite"])
def test_text_comes_as_text(path: Path, loader: Any) -> None:
    """Invalid UTF-8, a number and bytes in a column of text; a first batch without any text."""
    make(path, "CREATE TABLE t (a INTEGER, b TEXT, c DOUBLE, d TEXT)", [(n, None, None, None) for n in range(150)])
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO t VALUES (150, 'norm', 2.5, x'00ff')")
    connection.execute("INSERT INTO t VALUES (151, CAST(x'41ff42' AS TEXT), 3, NULL)")
    connection.execute("INSERT INTO t VALUES (152, x'41ff', NULL, 'text')")
    connection.execute("INSERT INTO t VALUES (153, 17, 1, x'')")
    connection.execute("INSERT INTO t VALUES (154, '\N{GREEK SMALL LETTER LAMDA}' || char(0) || 'x', 1, NULL)")
    connection.commit()
    connection.close()
    report = ReadReport()
    with open_export(path, "x.sqlite") as file:
        batches = list(
            read_text_rows(file, "t", ["a", "b", "c", "d"], blobs=["d"], batch_rows=100, loader=loader, report=report)
        )
    assert {batch.schema for batch in batches} == {
        pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64()), ("d", pa.binary())])
    }
    rows = rows_of(iter(batches))
    assert rows[:150] == [(n, None, None, None) for n in range(150)]
    assert rows[150:] == [
        (150, "norm", 2.5, b"\x00\xff"),
        (151, "A\N{REPLACEMENT CHARACTER}B", 3.0, None),
        (152, "A\N{REPLACEMENT CHARACTER}", None, b"text"),
        (153, "17", 1.0, b""),
        (154, "λ\0x", 1.0, None),
    ]
    assert report.rows == 155
    assert report.wrong_type_count == {}


@pytest.mark.parametrize("loader", ["auto", "sqlite"])
def test_text_where_numbers_belong(path: Path, loader: Any) -> None:
    make(
        path,
        "CREATE TABLE t (a INTEGER, b TEXT, c DOUBLE)",
        [("x" if n == 120 else n, "t", "y" if n > 148 else n) for n in range(150)],
    )
    report = ReadReport()
    with open_export(path, "x.sqlite") as file:
        rows = rows_of(read_text_rows(file, "t", ["a", "b", "c"], batch_rows=100, loader=loader, report=report))
    assert rows == [(None if n == 120 else n, "t", None if n > 148 else float(n)) for n in range(150)]
    assert report.wrong_type_count == {"a": 1, "c": 1}


@pytest.mark.parametrize("loader", ["auto", "sqlite"])
def test_long_texts_do_not_pile_up(path: Path, loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """400 names of 10 kB with a budget of half a megabyte: batches end early, and fewer rows are fetched at once."""
    monkeypatch.setattr(sqlite_rows, "_LARGE_BYTES", 1 << 16)
    monkeypatch.setattr(sqlite_rows, "_MOST_BYTES", 1 << 19)
    monkeypatch.setattr(readers, "_TEXT_BATCH_BYTES", 1 << 19)
    make(path, "CREATE TABLE t (a TEXT)", [("x" * 10_000,) for _ in range(400)])
    with open_export(path, "x.sqlite") as file:
        sizes = [(batch.num_rows, batch.nbytes) for batch in read_text_rows(file, "t", ["a"], loader=loader)]
    assert sum(rows for rows, _ in sizes) == 400
    assert max(size for _, size in sizes) < 700_000


def test_ids_of_strings(path: Path) -> None:
    make(
        path,
        "CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)",
        [(n * 3, f"kernel {n}") for n in range(500)],
    )
    with open_export(path, "x.sqlite") as file:
        rows = rows_of(read_text_rows(file, "t", ["id", "value"], where="id IN (6, 30, 31)"))
    assert rows == [(6, "kernel 2"), (30, "kernel 10")]


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_changes_while_it_is_read(path: Path, way: str) -> None:
    make(path, "CREATE TABLE t (a INTEGER)", [(n,) for n in range(1000)])
    with open_export(path, "x.sqlite") as file:
        batches = read_columns(file, "t", ["a"], batch_rows=100, **WAYS[way])
        next(batches)
        with path.open("ab") as writer:
            writer.write(b"\0" * 512)
        with pytest.raises(DamagedError, match="changed while it was read"):
            list(batches)


@pytest.mark.parametrize("way", WAYS)
def test_a_reader_may_be_left_in_the_middle(path: Path, way: str) -> None:
    make(path, "CREATE TABLE t (a INTEGER)", [(n,) for n in range(10_000)])
    with open_export(path, "x.sqlite") as file:
        batches = read_columns(file, "t", ["a"], batch_rows=100, **WAYS[way])
        assert next(batches).num_rows >= 100
        batches.close()  # type: ignore[attr-defined]
        assert len(rows_of(read_columns(file, "t", ["a"], **WAYS[way]))) == 10_000


def test_places_only_move_forward(path: Path) -> None:
    make(path, "CREATE TABLE t (a INTEGER)", [])
    with open_export(path, "x.sqlite") as file:
        place = Place()
        place.advance([-(2**63), 0, 7], file)
        place.advance([], file)
        assert place.row_id == 7
        for ids in ([7], [8, 8], [9, 8], [6, 20]):
            with pytest.raises(DamagedError, match="out of order or occur twice"):
                place.advance(ids, file)


values = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=5), st.binary(max_size=5)
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(values, values, values), max_size=40), batch_rows=st.sampled_from([1, 3, 1000]))
def test_all_ways_agree(path: Path, rows: list[tuple[Any, ...]], batch_rows: int) -> None:
    make(path, "CREATE TABLE t (a INTEGER, b INTEGER, c TEXT)", rows)
    connection = sqlite3.connect(path)
    connection.text_factory = bytes
    stored = connection.execute("SELECT a, b FROM t").fetchall()
    texts = connection.execute("SELECT CAST(c AS BLOB) FROM t").fetchall()
    connection.close()
    expected = [tuple(value if type(value) is int else None for value in row) for row in stored]
    wrong = {
        name: count
        for at, name in enumerate("ab")
        if (count := sum(row[at] is not None and type(row[at]) is not int for row in stored))
    }
    with open_export(path, "x.sqlite") as file:
        for way in WAYS.values():
            report = ReadReport()
            assert rows_of(read_columns(file, "t", ["a", "b"], batch_rows=batch_rows, report=report, **way)) == expected
            assert report.wrong_type_count == wrong
        for loader in ("auto", "sqlite"):
            found = rows_of(read_text_rows(file, "t", ["c"], batch_rows=batch_rows, loader=loader))  # type: ignore[arg-type]
            assert found == [(None if text is None else text.decode("utf-8", "replace"),) for (text,) in texts]


def integer_columns(file: SqliteFile, table: str) -> list[str]:
    return [name for name, declared in file.tables()[table].items() if "INT" in declared.upper()]


@pytest.mark.skipif(not EXPORTS.is_dir(), reason="the real exports are not beside this checkout")
@pytest.mark.parametrize("name", sorted(path.name for path in EXPORTS.glob("*.sqlite")) or ["none"])
def test_real_exports_read_alike(name: str) -> None:
    """Every table of every export, by each way; the large tables by their pages."""
    with open_export(EXPORTS / name, name) as file:
        for table, columns in file.tables().items():
            wanted = integer_columns(file, table)
            if wanted:
                report = ReadReport()
                rows = rows_of(read_columns(file, table, wanted, report=report))
                assert rows == rows_of(read_columns(file, table, wanted, loader="sqlite"))
                assert len(rows) == file.row_count(table)
                if table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY"):
                    starts = ["start", "end"]
                    report = ReadReport()
                    batches = list(read_columns(file, table, starts, report=report))
                    assert report.loader_used == "pages"
                    flat = np.concatenate([batch.column("start").to_numpy() for batch in batches]) if batches else []
                    assert len(flat) == len(rows)
            texts = rows_of(read_text_rows(file, table, list(columns)))
            assert texts == rows_of(read_text_rows(file, table, list(columns), loader="sqlite"))
