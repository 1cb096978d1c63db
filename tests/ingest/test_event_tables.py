"""Kernels, copies and memsets of every version: names by id or inline, columns that are missing, rows that are no use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.running import edit, refused, tracelens
from tracelens.simulate import VERSIONS, Copy, Kernel, Memset, write_events
from tracelens.trace import Options, open_trace

K = "CUPTI_ACTIVITY_KIND_KERNEL"
ROWS = [
    Kernel("void gemm<(int)8>(float *)", 1_000, 3_000, launch=(100, 200)),
    Kernel("void norm<float>(float *)", 4_000, 5_000, launch=(300, 400)),
    Copy("D2H", 6_000, 6_500, launch=(500, 600), bytes=64),
    Memset(7_000, 7_100, launch=(700, 800)),
]


def names(path: Path) -> list[tuple[str, int, int]]:
    with open_trace([str(path)]) as trace:
        return trace.db.execute("SELECT name, start_ns, end_ns FROM event JOIN kernel_name USING (name_id) ORDER BY event_id").fetchall()  # fmt: skip


def codes(path: Path) -> dict[str, str]:
    with open_trace([str(path)]) as trace:
        return {one.code: one.message for one in trace.notices}


@pytest.mark.parametrize("version", list(VERSIONS))
def test_every_version_gives_the_same_events(tmp_path: Path, version: str) -> None:
    assert names(write_events(ROWS, tmp_path / "x.sqlite", nsys_version=version)) == [
        ("void gemm<(int)8>(float *)", 1_000, 3_000),
        ("void norm<float>(float *)", 4_000, 5_000),
        ("[CUDA memcpy Device-to-Host]", 6_000, 6_500),
        ("[CUDA memset]", 7_000, 7_100),
    ]


@pytest.mark.parametrize("loader", ["auto", "sqlite"])
def test_both_loaders_agree(tmp_path: Path, loader: Any) -> None:
    path = write_events(ROWS, tmp_path / "x.sqlite")
    with open_trace([str(path)], Options(loader=loader)) as trace:
        trace.ensure("launch")
        assert trace.db.execute("SELECT count(*), sum(end_ns) FROM event").fetchall() == [(4, 21_600)]
        assert trace.db.execute("SELECT count(*), sum(start_ns) FROM launch").fetchall() == [(4, 1_600)]


def test_names_inline_in_the_row(tmp_path: Path) -> None:
    path = write_events(ROWS, tmp_path / "x.sqlite")
    columns = "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName TEXT"
    picked = "start, end, deviceId, streamId, correlationId, globalPid, (SELECT value FROM StringIds WHERE id = demangledName)"
    edit(
        path,
        f"CREATE TABLE old ({columns})",
        f"INSERT INTO old SELECT {picked} FROM {K}",
        f"DROP TABLE {K}",
        f"ALTER TABLE old RENAME TO {K}",
    )
    assert [name for name, _, _ in names(path)][:2] == ["void gemm<(int)8>(float *)", "void norm<float>(float *)"]


@pytest.mark.parametrize("how", ["NULL", "987654"])
def test_the_short_name_stands_in_for_a_missing_one(tmp_path: Path, how: str) -> None:
    """A capture that a newer nsys re-exported: one demangled name is NULL, or an id that StringIds does not hold."""
    path = write_events(ROWS, tmp_path / "x.sqlite")
    edit(path, "CREATE TABLE copy AS SELECT * FROM " + K, f"DROP TABLE {K}", f"ALTER TABLE copy RENAME TO {K}")
    edit(path, f"UPDATE {K} SET demangledName = {how} WHERE start = 4000")
    assert [name for name, _, _ in names(path)][:2] == ["void gemm<(int)8>(float *)", "norm"]
    assert "unknown-names" not in codes(path)


def test_a_name_that_nothing_explains_is_counted(tmp_path: Path) -> None:
    path = write_events(ROWS, tmp_path / "x.sqlite")
    edit(path, f"UPDATE {K} SET demangledName = 987654, shortName = 987654, mangledName = 987654 WHERE start = 4000")
    assert [name for name, _, _ in names(path)][:2] == ["void gemm<(int)8>(float *)", "[unknown kernel]"]
    assert codes(path)["unknown-names"].startswith("1 kernel ")


def test_without_strings_time_is_told_and_names_are_unknown(tmp_path: Path) -> None:
    path = write_events(ROWS, tmp_path / "x.sqlite", without=["StringIds"])
    assert [name for name, _, _ in names(path)][:2] == ["[unknown kernel]", "[unknown kernel]"]
    assert codes(path)["unknown-names"].startswith("2 kernels")


def test_strings_without_their_columns_are_no_strings(tmp_path: Path) -> None:
    """SQLite reads a quoted name that is no column as a text: every kernel would be called `value`."""
    path = write_events(ROWS, tmp_path / "x.sqlite")
    edit(path, "ALTER TABLE StringIds RENAME COLUMN value TO text")
    assert [name for name, _, _ in names(path)][:2] == ["[unknown kernel]", "[unknown kernel]"]


@pytest.mark.parametrize("column", ["start", "end", "deviceId"])
def test_a_kernel_table_without_a_needed_column_is_refused_by_name(tmp_path: Path, column: str) -> None:
    path = write_events(ROWS, tmp_path / "x.sqlite", without_columns={K: [column]})
    assert f"{K} has no column {column}" in refused(tracelens("bucket", path))


def test_a_kernel_table_without_any_name_is_refused(tmp_path: Path) -> None:
    columns = {K: ["demangledName", "shortName", "mangledName"]}
    path = write_events(ROWS, tmp_path / "x.sqlite", without_columns=columns)
    assert "has no column demangledName, shortName or mangledName" in refused(tracelens("bucket", path))


@pytest.mark.parametrize(
    "column", ["streamId", "correlationId", "globalPid", "graphNodeId", "graphId", "gridX", "contextId"]
)
def test_other_columns_may_be_missing(tmp_path: Path, column: str) -> None:
    whole = write_events(ROWS, tmp_path / "whole.sqlite")
    path = write_events(ROWS, tmp_path / "x.sqlite", without_columns={K: [column]})
    assert names(path)[:2] == names(whole)[:2]
    if column in ("streamId", "correlationId", "globalPid"):
        assert column in codes(path)["column-missing"]


@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"])
def test_copies_without_a_needed_column_are_left_out_and_counted(tmp_path: Path, table: str) -> None:
    path = write_events(ROWS, tmp_path / "x.sqlite", without_columns={table: ["deviceId"]})
    assert len(names(path)) == 3
    assert table in codes(path)["column-missing"]
    ledger = {row["table"]: row for row in tracelens("info", path, "--format", "json").json["ledger"]}
    assert (ledger[table]["rows_read"], ledger[table]["rows_used"]) == (1, 0)
    assert ledger[table]["reason"] == "1 no column deviceId"


def test_values_that_are_no_integers_are_counted(tmp_path: Path) -> None:
    path = write_events(ROWS, tmp_path / "x.sqlite")
    edit(path, f"UPDATE {K} SET streamId = 'seven', start = 4000.5 WHERE start = 4000")
    assert len(names(path)) == 3
    assert "start (1)" in codes(path)["wrong-type"]
    assert "streamId (1)" in codes(path)["wrong-type"]
    assert codes(path)["bad-timestamps"].startswith("1 row ")


def test_nothing_on_the_gpu_is_a_refusal_that_says_what_to_trace(tmp_path: Path) -> None:
    from tracelens.simulate import Launch

    said = refused(tracelens("bucket", write_events([Launch("cudaMalloc", 1, 2)], tmp_path / "a.sqlite")))
    assert "no GPU work" in said
    assert "--trace-fork-before-exec=true" in said
    said = refused(tracelens("bucket", write_events([Copy("H2D", 1, 2)], tmp_path / "b.sqlite")))
    assert "no kernel inside" in said
    said = refused(tracelens("bucket", write_events([], tmp_path / "c.sqlite", lazy=False)))
    assert "no kernel inside" in said


@pytest.mark.parametrize(
    ("kind", "label"), [(1, "Host-to-Device"), (8, "Device-to-Device"), (10, "Peer-to-Peer"), (99, "Unknown")]
)
def test_labels_of_copies(tmp_path: Path, kind: int, label: str) -> None:
    path = write_events(ROWS, tmp_path / "x.sqlite")
    edit(path, f"UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET copyKind = {kind}")
    assert names(path)[2][0] == f"[CUDA memcpy {label}]"


def test_two_processes_may_use_one_correlation_id(tmp_path: Path) -> None:
    """Both launched their kernel under id 5, at 100 and at 300."""
    rows = [
        Kernel("gemm", 1_000, 2_000, launch=(100, 200), correlation=5, pid=1, device=0),
        Kernel("gemm", 1_100, 2_100, launch=(300, 400), correlation=5, pid=2, device=1),
    ]
    with open_trace([str(write_events(rows, tmp_path / "x.sqlite"))]) as trace:
        trace.ensure("launch")
        assert trace.db.execute(
            "SELECT rank, l.start_ns FROM event e JOIN rank r USING (rank) JOIN launch l ON l.process = r.process"
            " AND l.correlation = e.correlation ORDER BY rank"
        ).fetchall() == [(0, 100), (1, 300)]


def test_one_graph_launch_of_many_nodes_is_one_launch(tmp_path: Path) -> None:
    from tracelens.simulate import Launch

    rows: list[Any] = [Launch("cudaGraphLaunch_v10000", 100, 200, correlation=7)]
    rows += [Kernel("gemm", 1_000 * n, 1_000 * n + 500, correlation=7, graph_node=n) for n in range(1, 1066)]
    with open_trace([str(write_events(rows, tmp_path / "x.sqlite"))]) as trace:
        trace.ensure("launch")
        assert trace.db.execute("SELECT count(*), bool_and(graph_launch) FROM launch").fetchall() == [(1, True)]
        assert trace.db.execute("SELECT count(*) FROM event").fetchall() == [(1065,)]
