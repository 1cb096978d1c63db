"""The table of NVTX ranges: the same rows in the same order, however many parts they are put in order in."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.model import nvtx
from tracelens.model.build import build_nvtx

LEAST, MOST = -(2**63), 2**63 - 1
TIMES = st.sampled_from([LEAST, -5, 0, 1, 2, 3, MOST]) | st.integers(LEAST, MOST)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 3).map(lambda pid: pid << 24),
        st.sampled_from(["", "NCCL"]),
        st.sampled_from(["a", "b", "é" * 40]),
        TIMES,
        st.none() | TIMES,
        st.sampled_from([34, 59, 60]),
        st.none() | st.integers(0, 2**64 - 1),
        st.none() | st.integers(0, 9),
    ),
    max_size=60,
)


def database(rows: list[tuple[Any, ...]]) -> duckdb.DuckDBPyConnection:
    """Processes 0 to 2 of one export, and rows of raw_nvtx; those of a fourth process belong to nobody."""
    db = duckdb.connect()
    db.execute("""
        ATTACH ':memory:' AS ranges;
        CREATE TABLE ranges.nvtx_row (
            export INTEGER, thread BIGINT, domain VARCHAR, text VARCHAR, start_ns BIGINT, end_ns BIGINT, kind BIGINT,
            comm_id UBIGINT, message_bytes BIGINT
        );
        CREATE VIEW raw_nvtx AS SELECT * FROM ranges.nvtx_row;
        CREATE TABLE process AS SELECT 0 AS export, i::INTEGER AS process, i << 24 AS global_pid FROM range(3) t(i);
        CREATE TABLE raw_export AS SELECT 0 AS export, 100 AS session_ns;
        CREATE TABLE raw_notice (code VARCHAR, severity VARCHAR, message VARCHAR, hint VARCHAR, count BIGINT);
        CREATE TABLE notice AS SELECT * FROM raw_notice;
        CREATE TABLE raw_read AS SELECT NULL::UTINYINT AS kind, 'NVTX_EVENTS' AS table_name, 0 AS rows_read;
        CREATE TABLE raw_excluded (table_name VARCHAR, reason VARCHAR, row_count BIGINT);
        CREATE TABLE ledger (
            rank INTEGER, table_name VARCHAR, rows_read BIGINT, rows_used BIGINT, rows_excluded BIGINT, reason VARCHAR
        );
    """)
    if rows:
        db.executemany("INSERT INTO ranges.nvtx_row VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    return db


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """What nvtx should hold: longest first of those that start together, nulls last."""
    kept = []
    for thread, domain, text, start, end, kind, comm, size in rows:
        process = thread >> 24
        if process < 3:
            mark = kind == 34
            kept.append(
                (process, thread, domain, text, start, None if mark else end, "mark" if mark else "range", comm, size)
            )

    def last(value: int | None) -> tuple[bool, int]:
        return value is None, value or 0

    return sorted(
        kept,
        key=lambda r: (r[0], r[4], r[5] is None, -(r[5] or 0), r[1], r[2], r[3].encode(), r[6], last(r[7]), last(r[8])),
    )


@settings(deadline=None, max_examples=60)
@given(ROWS, st.sampled_from([(1, 1), (4, 2), (8, 4)]))
def test_parts_make_the_whole(tmp_path_factory: Any, rows: list[tuple[Any, ...]], size: tuple[int, int]) -> None:
    """Parts of a few rows, cut where samples say, in a file; and all at once, in memory."""
    file = tmp_path_factory.mktemp("nvtx") / "rows.parquet"
    with patch.object(nvtx, "_PART_ROWS", size[0]), patch.object(nvtx, "_SAMPLES", size[1]), database(rows) as db:
        build_nvtx(db, file)
        nvtx.read_nvtx(db, file)
        written = db.execute("SELECT * FROM nvtx").fetchall()
        ledger = db.execute("SELECT * FROM ledger").fetchall()
    with database(rows) as db:
        build_nvtx(db)
        assert written == db.execute("SELECT * FROM nvtx").fetchall() == in_order(rows)
        assert ledger == db.execute("SELECT * FROM ledger").fetchall()


def test_no_rows_make_an_empty_table(tmp_path: Path) -> None:
    with database([]) as db:
        build_nvtx(db, tmp_path / "rows.parquet")
        nvtx.read_nvtx(db, tmp_path / "rows.parquet")
        assert db.execute("SELECT count(*) FROM nvtx").fetchall() == [(0,)]
    assert pq.ParquetFile(tmp_path / "rows.parquet").schema_arrow.names[0] == "process"
