"""`sql`: any question to the model tables, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.running import refused, snapshot, tracelens
from tracelens.analyses.query import sql, table_schema
from tracelens.errors import UsageError
from tracelens.simulate import Kernel, Range, write_events
from tracelens.trace import LoadedTrace, empty_trace, open_trace


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sql")
    rows = [Kernel("gemm", 1_000, 3_000, launch=(100, 200)), Kernel("norm", 4_000, 5_000), Range("step", 1, 500)]
    return write_events(rows, folder / "x.sqlite")


@pytest.fixture(scope="module")
def trace(path: Path) -> Any:
    with open_trace([str(path)]) as loaded:
        yield loaded


def ask(path: Path, query: str, form: str = "json") -> Any:
    return tracelens("sql", path, query, "--format", form)


def test_a_question(path: Path) -> None:
    query = (
        'SELECT name, end_ns - start_ns AS "length_ns" FROM event JOIN kernel_name USING (name_id) ORDER BY event_id'
    )
    assert ask(path, query).json["rows"] == [
        {"name": "gemm", "length_ns": 2_000},
        {"name": "norm", "length_ns": 1_000},
    ]
    assert ask(path, "  FROM rank SELECT rank").json["rows"] == [{"rank": 0}]
    assert ask(path, " -- what\nSELECT 1 AS one; -- that").json["rows"] == [{"one": 1}]
    assert ask(path, "/* what */ (SELECT 1 AS one)").json["rows"] == [{"one": 1}]
    assert ask(path, "WITH e AS (SELECT * FROM event) SELECT count(*) AS n FROM e").json["rows"] == [{"n": 2}]


def test_tables_that_are_loaded_on_demand(path: Path) -> None:
    assert ask(path, "SELECT count(*) AS n FROM launch").json["rows"] == [{"n": 1}]
    assert ask(path, "SELECT text FROM nvtx").json["rows"] == [{"text": "step"}]


def test_an_empty_answer(path: Path) -> None:
    assert ask(path, "SELECT rank FROM event WHERE false").json["rows"] == []
    for form in ("table", "csv", "markdown"):
        assert ask(path, "SELECT rank FROM event WHERE false", form).code == 0


SECRET = "known-only-to-this-file"
ATTACKS = [
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM read_csv_auto('{file}')",
    "SELECT * FROM '{file}'",
    'SELECT * FROM "{file}"',
    "SELECT * FROM '{folder}/secret.csv'",
    "FROM '{folder}/*.csv'",
    'SELECT * FROM "{folder}/secret.json"',
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM read_blob('{file}')",
    "SELECT * FROM read_json('{file}')",
    "SELECT * FROM read_json_auto('{file}')",
    "SELECT * FROM read_ndjson_objects('{file}')",
    "SELECT * FROM read_parquet('{file}')",
    "SELECT * FROM parquet_scan('{file}')",
    "SELECT * FROM parquet_metadata('{file}')",
    "SELECT * FROM parquet_file_metadata('{file}')",
    "SELECT * FROM sniff_csv('{file}')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM sqlite_scan('{file}', 'StringIds')",
    "SELECT * FROM read_duckdb('{file}')",
    "SELECT * FROM query('SELECT * FROM read_text(''{file}'')')",
    "SELECT * FROM query_table('{file}')",
    "SELECT (SELECT content FROM read_text('{file}')) AS stolen",
    "SELECT getenv('SECRET_OF_THE_ENVIRONMENT')",
    "SELECT getvariable('x'), getenv('SECRET_OF_THE_ENVIRONMENT')",
    "SELECT * FROM sql_auto_complete('{file}'), read_text('{file}')",
    "COPY event TO '{folder}/stolen.csv'",
    "COPY (SELECT 1) TO '{folder}/stolen.parquet'",
    "EXPORT DATABASE '{folder}/stolen'",
    "ATTACH '{folder}/other.db' AS other",
    "ATTACH '{file}' AS other (TYPE sqlite)",
    "CREATE TABLE mine AS SELECT 1",
    "CREATE TEMP TABLE mine AS SELECT 1",
    "INSERT INTO notice VALUES ('a', 'info', '', '', 1)",
    "DELETE FROM event_row",
    "UPDATE rank SET rank = 5",
    "DROP TABLE event_row",
    "ALTER TABLE rank ADD COLUMN x INTEGER",
    "SET enable_external_access = true",
    "RESET enable_external_access",
    "PRAGMA enable_profiling",
    "CALL pragma_version()",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SELECT 1; SELECT * FROM read_text('{file}')",
    "SELECT 1; DROP TABLE event_row",
    "WITH gone AS (DELETE FROM event_row RETURNING *) SELECT * FROM gone",
    "EXPLAIN ANALYZE SELECT * FROM read_text('{file}')",
    "VACUUM",
    "CHECKPOINT",
    "BEGIN",
    "COMMIT; DROP TABLE event_row",
    "USE memory",
    "PREPARE q AS SELECT 1",
    "",
    ";",
    "SELECT",
    "\x00",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_can_be_written_attached_or_read(
    trace: LoadedTrace, path: Path, attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = path.parent
    file = folder / "secret.txt"
    file.write_text(SECRET)
    (folder / "secret.csv").write_text(f"a\n{SECRET}\n")
    (folder / "secret.json").write_text(f'{{"a": "{SECRET}"}}')
    monkeypatch.setenv("SECRET_OF_THE_ENVIRONMENT", SECRET)
    before = snapshot(folder)
    with pytest.raises(UsageError) as refusal:
        sql(trace, attack.format(file=file, folder=folder))
    assert SECRET not in str(refusal.value)
    assert str(refusal.value).count("\n") <= 1
    assert snapshot(folder) == before
    assert sql(trace, "SELECT count(*) AS n FROM event").item() == 2
    assert sql(trace, "SELECT count(*) AS n FROM notice WHERE code = 'a'").item() == 0


@pytest.mark.parametrize(
    "source",
    ["duckdb_settings()", "duckdb_databases()", "duckdb_secrets()", "pragma_database_list()", "pragma_user_agent()"],
)
def test_the_engine_tells_nothing_of_the_machine(trace: LoadedTrace, source: str) -> None:
    with pytest.raises(UsageError, match="outside the model tables"):
        sql(trace, f"SELECT * FROM {source}")
    with pytest.raises(UsageError, match="outside the model tables"):
        sql(trace, f"SELECT (SELECT count(*) FROM (FROM {source})) AS n FROM event")


@pytest.mark.parametrize("name", ["current_setting('secret_directory')", "getenv('HOME')"])
def test_values_of_the_machine_cannot_be_asked_for(trace: LoadedTrace, name: str) -> None:
    with pytest.raises(UsageError):
        sql(trace, f"SELECT rank, {name} FROM event")


def test_harmless_functions_work(trace: LoadedTrace) -> None:
    assert sql(trace, "SELECT sum(i) AS n FROM range(5) t(i)").item() == 10
    assert sql(trace, "SELECT unnest([1, 2]) AS n").height == 2
    assert sql(trace, "SELECT * FROM (VALUES (1), (2)) t(n)").height == 2
    assert sql(trace, "SELECT count(*) AS n FROM event JOIN rank USING (rank)").item() == 2


def test_every_command_refuses_an_attack_in_two_lines(path: Path) -> None:
    assert "one SELECT" in refused(ask(path, "SELECT 1; DROP TABLE event_row"))
    assert "last argument" in refused(ask(path, "DROP TABLE event_row"))
    assert "last argument" in refused(tracelens("sql", path))
    assert "no_such_table" in refused(ask(path, "SELECT * FROM no_such_table"))


TYPES = [
    "SELECT sum(start_ns) AS a, 1.5::DECIMAL(10,3) AS b, 2::HUGEINT AS c FROM event",
    "SELECT NULL AS a, true AS b, 'x' AS c, 1.5::DOUBLE AS d, 'nan'::DOUBLE AS e, 'inf'::FLOAT AS f",
    "SELECT [1, 2] AS a, {'x': 1, 'y': 'z'} AS b, MAP {'k': 1} AS c, [[1], [2]] AS d",
    "SELECT '\\xff\\x00'::BLOB AS a, DATE '2026-01-01' AS b, TIMESTAMP '2026-01-01 10:00:00' AS c, INTERVAL 3 DAY AS d",
    "SELECT uuid '5c9a5380-d76d-414b-3975-000000000001' AS a, '101'::BIT AS b, TIME '10:00:00' AS c, 255::UTINYINT AS d",
    "SELECT 18446744073709551615::UBIGINT AS a, 170141183460469231731687303715884105727::HUGEINT AS b",
    "SELECT TIMESTAMPTZ '2026-01-01 10:00:00+00' AS a, 'a'::ENUM('a', 'b') AS b, [NULL, 1] AS c, [] AS d",
    "SELECT 1 AS a, 2 AS a, 3 AS A, 4 AS b",
    'SELECT 1 AS " ", 2 AS "with space", 3 AS "=formula", 4 AS "<b>", 5 AS "a\nb"',
    "SELECT * FROM event JOIN rank USING (rank)",
    "SELECT e, r FROM event e JOIN rank r USING (rank)",
]


@pytest.mark.parametrize("query", TYPES)
@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown", "parquet"])
def test_any_type_in_any_format(path: Path, tmp_path: Path, query: str, form: str) -> None:
    options = ["-o", str(tmp_path / "out.parquet")] if form == "parquet" else []
    ran = tracelens("sql", path, query, "--format", form, *options)
    assert ran.code == 0, ran.err[-1500:]
    if form == "json":
        json.loads(ran.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_every_public_table_and_column_is_documented() -> None:
    with empty_trace() as empty:
        schema = table_schema(empty)["schema"]
        columns = sql(
            empty,
            "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal AND schema_name = 'main'"
            " AND NOT regexp_matches(table_name, '^(raw_|event_row|name_text|string_name|main_device|session_window|rank_place|not_a_rank|copy_label|alignment_)')",
        ).rows()
    assert set(columns) == set(schema.select("table", "column").rows())
    assert {"export", "process", "rank", "kernel_name", "event", "launch", "nvtx", "notice", "ledger"} <= set(
        schema["table"]
    )
    for row in schema.rows(named=True):
        assert row["table_meaning"], row
        assert row["meaning"], row


def test_the_schema_needs_no_capture(tmp_path: Path) -> None:
    ran = tracelens("sql", "--schema", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert "event" in ran.out
    assert tracelens("sql", "--schema", "--format", "json").json["schema"][0]["table"]


def test_a_query_that_is_interrupted_leaves_the_trace_usable(trace: LoadedTrace) -> None:
    with pytest.raises(UsageError):
        sql(trace, "SELECT error('stop')")
    assert sql(trace, "SELECT 1 AS n").item() == 1
    assert os.getpid() > 0


@pytest.mark.parametrize("table", ["clock", "collective_member", "gap", "step", "step_member"])
def test_what_analyses_find_can_be_asked(path: Path, table: str) -> None:
    """Computed on demand, also where there is nothing to find, and documented to the last column."""
    (row,) = ask(path, f"SELECT count(*) AS n FROM {table}").json["rows"]
    assert row["n"] >= 0
    with empty_trace() as trace:
        told = table_schema(trace)["schema"].filter(pl.col("table") == table)
        assert told["meaning"].null_count() == 0
        assert set(told["column"]) == set(sql(trace, f"SELECT * FROM {table}").columns)


def test_a_gap_by_cause(path: Path) -> None:
    """gemm ends at 3 us, norm starts at 4 us without a launch of its own."""
    rows = ask(path, "SELECT rank, gap_ns, cause FROM gap").json["rows"]
    assert rows == [{"rank": 0, "gap_ns": 1_000, "cause": "unknown"}]
