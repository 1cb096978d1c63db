"""The schemas are those of real exports: compared with CREATE TABLE statements and with real files, where present."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tracelens.errors import UsageError
from tracelens.simulate.schema import VERSIONS, create_table, tables_of, version_named

SHARED = Path(__file__).parents[3] / "shared"


def columns_of(con: sqlite3.Connection, table: str) -> list[tuple[str, str, bool]]:
    return [(row[1], row[2], bool(row[3])) for row in con.execute(f'PRAGMA table_info("{table}")')]


@pytest.mark.parametrize("name", VERSIONS)
def test_every_version_makes_valid_tables(name: str) -> None:
    con = sqlite3.connect(":memory:")
    for table, columns in tables_of(VERSIONS[name]).items():
        con.execute(create_table(table, columns))
        assert [column.name for column in columns] == [row[0] for row in columns_of(con, table)]
    con.close()


@pytest.mark.parametrize("name", VERSIONS)
def test_columns_equal_those_of_real_exports(name: str) -> None:
    path = SHARED / "ddl" / f"{name}.sql"
    if not path.exists():
        pytest.skip("no CREATE TABLE statements of real exports here")
    con = sqlite3.connect(":memory:")
    con.executescript(path.read_text())
    ours = tables_of(VERSIONS[name])
    for (table,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        assert [(c.name, c.type, c.not_null) for c in ours[table]] == columns_of(con, table), table
    con.close()


def test_columns_that_came_and_went() -> None:
    def names(version: str, table: str) -> set[str]:
        return {column.name for column in tables_of(VERSIONS[version]).get(table, ())}

    assert "graphId" in names("2026.2.1", "CUPTI_ACTIVITY_KIND_KERNEL")
    assert "graphId" not in names("2025.3.2", "CUPTI_ACTIVITY_KIND_KERNEL")
    assert "mangledName" not in names("old_unknown", "CUPTI_ACTIVITY_KIND_KERNEL")
    assert not names("2023.3.1", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
    assert "systemClockNs" in names("2026.2.1", "TARGET_INFO_SESSION_START_TIME")
    assert "systemClockNs" not in names("2025.3.2", "TARGET_INFO_SESSION_START_TIME")
    assert "binaryData" not in names("2023.3.1", "NVTX_EVENTS")
    assert names("2022.2.1", "EXPORT_META_DATA")
    assert not names("2022.2.1", "META_DATA_EXPORT")
    assert not names("old_unknown", "TARGET_INFO_SESSION_START_TIME")


def test_versions_are_found_by_either_name() -> None:
    assert version_named("2026.2.1") is version_named("2026.2.1.210")
    with pytest.raises(UsageError, match="no nsys version"):
        version_named("1999.1")
