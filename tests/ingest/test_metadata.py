"""What an export says about itself, in every version, and what must never be fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.running import edit, tracelens
from tracelens.ingest.discover import find_captures
from tracelens.ingest.metadata import Metadata, read_metadata
from tracelens.ingest.nsys import pid_of, worker_parts
from tracelens.ingest.sources import open_source
from tracelens.simulate import VERSIONS, Diagnostic, GraphTrace, Kernel, Launch, Process, write_events

UTC = 1_780_000_000_000_000_000
KERNEL = Kernel("gemm", 1_000, 2_000, launch=(100, 200))


def read(path: Path) -> Metadata:
    (found,) = find_captures([str(path)])
    source = open_source(found, "auto")
    try:
        return read_metadata(source, found)
    finally:
        source.close()


def codes(meta: Metadata) -> dict[str, tuple[Any, ...]]:
    return {row[0]: row[1:] for row in meta.notices}


def test_versions_name_themselves(tmp_path: Path) -> None:
    found = {}
    for version in VERSIONS:
        meta = read(write_events([KERNEL], tmp_path / f"{version}.sqlite", nsys_version=version))
        found[version] = (meta.schema_version, meta.hostname, meta.session_ns, meta.start_utc_ns)
    assert found["2026.2.1"] == ("3.25.0", "node0", 1_002_000, UTC)
    assert found["2022.2.1"][1:] == ("node0", 1_002_000, UTC)
    assert found["old_unknown"] == (None, None, None, None)
    assert all(row[0] for version, row in found.items() if version != "old_unknown")


@pytest.mark.parametrize("version", ["2022.2.1", "2026.2.1"])
@pytest.mark.parametrize(
    "how", [{"shift_ns": 5_000_000_000}, {"normalize": True}, {"shift_ns": -700, "normalize": True}]
)
def test_an_exporters_shift_is_undone(tmp_path: Path, version: str, how: dict[str, Any]) -> None:
    rows = [KERNEL, Kernel("norm", -3_000, -2_000)]
    plain = write_events(rows, tmp_path / "plain.sqlite", nsys_version=version)
    moved = write_events(rows, tmp_path / "moved.sqlite", nsys_version=version, **how)
    assert read(moved).shift_ns == how.get("shift_ns", 0) + (UTC if how.get("normalize") else 0)
    answers = [tracelens("info", path, "--format", "json").json for path in (plain, moved)]
    assert [row["start_ns"] for row in answers[1]["ranks"]] == [-3_000]
    assert [row["end_ns"] for row in answers[1]["ranks"]] == [2_000]
    for answer in answers:
        for row in answer["ranks"] + answer["exports"]:
            row.pop("path")
            row.pop("size_bytes", None)
    assert answers[0]["ranks"] == answers[1]["ranks"]
    assert answers[0]["ledger"] == answers[1]["ledger"]


def test_a_shift_that_only_the_request_tells(tmp_path: Path) -> None:
    """Exporters before 2023 do not record the sum."""
    path = write_events([KERNEL], tmp_path / "x.sqlite", shift_ns=900, normalize=True)
    edit(path, "DELETE FROM META_DATA_EXPORT WHERE name = 'EXPORT_CONFIG_TIME_SHIFT'")
    assert read(path).shift_ns == UTC + 900


@pytest.mark.parametrize("value", ["soon", "9" * 40, str(2**63), "1.5", ""])
def test_a_shift_that_is_no_number_is_told(tmp_path: Path, value: str) -> None:
    path = write_events([KERNEL], tmp_path / "x.sqlite", export_meta={"EXPORT_CONFIG_TIME_SHIFT": value})
    assert read(path).shift_ns == 0
    assert "unknown-shift" in codes(read(path))


def test_a_shift_that_leaves_64_bits_loses_rows_not_sense(tmp_path: Path) -> None:
    path = write_events([KERNEL], tmp_path / "x.sqlite", export_meta={"EXPORT_CONFIG_TIME_SHIFT": str(-(2**61))})
    edit(path, ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = ?, end = ?", (2**62 + 2**61, 2**62 + 2**61 + 5)))
    assert tracelens("bucket", path).code == 2


@pytest.mark.parametrize(
    ("name", "partial"),
    [
        ({"EXPORT_PARAM_TABLES_TO_EXPORT": "CUPTI*"}, True),
        ({"EXPORT_PARAM_TIMES_TO_EXPORT": "1s/2s"}, True),
        ({"EXPORT_PARAM_TABLES_TO_EXPORT": "", "EXPORT_PARAM_TIMES_TO_EXPORT": "all"}, False),
    ],
)
def test_a_partial_export_is_told(tmp_path: Path, name: dict[str, str], partial: bool) -> None:
    meta = read(write_events([KERNEL], tmp_path / "x.sqlite", export_meta=name))
    assert ("partial-export" in codes(meta)) is partial


@pytest.mark.parametrize("version", ["4.1.0", "1.0", "next"])
def test_an_unknown_schema_is_a_warning_and_no_crash(tmp_path: Path, version: str) -> None:
    path = write_events([KERNEL], tmp_path / "x.sqlite", export_meta={"EXPORT_SCHEMA_VERSION": version})
    assert codes(read(path))["unknown-schema"][0] == "warning"
    assert tracelens("bucket", path).code == 0


def test_diagnostics_are_counted_and_their_texts_stay_in_the_file(tmp_path: Path) -> None:
    rows = [
        KERNEL,
        Diagnostic("Not all NVTX events might have been collected in /home/alice/run", severity=2),
        Diagnostic("Import failed for alice", severity=3),
        Diagnostic("fine, nothing lost", severity=1),
        Diagnostic("verbose", severity=4),
    ]
    found = codes(read(write_events(rows, tmp_path / "x.sqlite")))
    assert found["diagnostics"][1].endswith("nsys left 1 error and 1 warning in this capture")
    assert found["diagnostics"][3] == 2
    assert "not all NVTX ranges were recorded" in found["events-missing"][1]
    assert "alice" not in str(found)
    assert "fine" not in str(found)


def test_diagnostics_reach_json_and_strict(tmp_path: Path) -> None:
    path = write_events([KERNEL, Diagnostic("events may be incomplete", severity=2)], tmp_path / "x.sqlite")
    ran = tracelens("bucket", path, "--format", "json")
    assert (ran.code, {row["code"] for row in ran.json["notices"]} >= {"diagnostics", "events-missing"}) == (0, True)
    assert tracelens("bucket", path, "--strict").code == 1


class TestGraphs:
    def mode(self, path: Path) -> str:
        return str(tracelens("info", path, "--format", "json").json["exports"][0]["graph_trace"])

    def test_a_graph_level_capture_is_told_and_its_time_is_opaque(self, tmp_path: Path) -> None:
        """A kernel of 10 us, then a graph of 30 us.

        gemm  |--|
        graph      |------|
        """
        rows = [Kernel("gemm", 1_000, 11_000), GraphTrace(20_000, 50_000, graph=5, launch=(100, 200))]
        path = write_events(rows, tmp_path / "x.sqlite")
        ran = tracelens("bucket", path, "--kernels", "--format", "json")
        assert [(row["bucket"], row["elapsed_ns"]) for row in ran.json["buckets"]] == [
            ("graph_opaque", 30_000),
            ("gemm", 10_000),
            ("idle", 9_000),
        ]
        assert [row["kernel_name"] for row in ran.json["kernels"]] == ["[CUDA graph 5]", "gemm"]
        (told,) = [row for row in ran.json["notices"] if row["code"] == "graph-level"]
        assert "--cuda-graph-trace=node" in told["hint"]
        assert told["count"] == 1
        assert self.mode(path) == "graph"

    def test_a_map_cannot_place_what_is_inside_a_graph(self, tmp_path: Path) -> None:
        path = write_events([Kernel("gemm", 1, 2), GraphTrace(5, 9)], tmp_path / "x.sqlite")
        (tmp_path / "map.json").write_text('{"e": {"m": {"CUDA graph": "wrong", ".*": "all"}}}')
        ran = tracelens(
            "bucket", path, "--rules", tmp_path / "map.json", "--engine", "e", "--model", "m", "--format", "json"
        )
        assert [row["bucket"] for row in ran.json["buckets"]] == ["graph_opaque", "all", "idle"]

    def test_graphs_without_any_row_make_idle_time_unknown(self, tmp_path: Path) -> None:
        """Before 2024: twelve cudaGraphLaunch calls, one eager kernel, no graph table."""
        calls = [Launch("cudaGraphLaunch_v10000", 100 * n, 100 * n + 50, correlation=n) for n in range(1, 13)]
        path = write_events(
            [Kernel("gemm", 5_000, 6_000), *calls], tmp_path / "x.sqlite", nsys_version="2023.3.1", graph_trace=None
        )
        ran = tracelens("info", path, "--format", "json")
        (told,) = [row for row in ran.json["notices"] if row["code"] == "graph-invisible"]
        assert told["count"] == 12
        assert [(row["busy_ns"], row["idle_frac"]) for row in ran.json["ranks"]] == [(None, None)]
        assert ran.json["exports"][0]["graph_trace"] == "graph"
        rows = tracelens("bucket", path, "--format", "json").json["buckets"]
        assert [(row["bucket"], row["elapsed_ns"], row["elapsed_frac"]) for row in rows] == [
            ("gemm", 1_000, None),
            ("idle", None, None),
        ]

    def test_nodes_that_were_traced_are_visible(self, tmp_path: Path) -> None:
        rows: list[Any] = [Launch("cudaGraphLaunch_v10000", 100, 200, correlation=7)]
        rows += [Kernel("gemm", 1_000 * n, 1_000 * n + 500, correlation=7, graph_node=n) for n in range(1, 4)]
        path = write_events(rows, tmp_path / "x.sqlite", graph_trace=None)
        assert read(path).graph_launch_count == 0
        assert self.mode(path) == "node"

    def test_nodes_are_visible_also_where_no_column_numbers_them(self, tmp_path: Path) -> None:
        rows: list[Any] = [Launch("cudaGraphLaunch_v10000", 100, 200, correlation=7)]
        rows += [Kernel("gemm", 1_000 * n, 1_000 * n + 500, correlation=7, graph_node=n) for n in range(1, 4)]
        columns = {"CUPTI_ACTIVITY_KIND_KERNEL": ("graphNodeId", "graphId")}
        path = write_events(rows, tmp_path / "x.sqlite", without_columns=columns, graph_trace=None)
        assert read(path).graph_launch_count == 0

    def test_one_export_with_nodes_hides_no_other_without(self, tmp_path: Path) -> None:
        node: list[Any] = [Launch("cudaGraphLaunch_v10000", 100, 200, correlation=7)]
        node.append(Kernel("gemm", 1_000, 1_500, correlation=7, graph_node=1))
        blind: list[Any] = [Launch("cudaGraphLaunch_v10000", 100, 200, correlation=7), Kernel("gemm", 1_000, 1_500)]
        paths = [
            write_events(rows, tmp_path / f"rank{n}.sqlite", graph_trace=None) for n, rows in enumerate((node, blind))
        ]
        ran = tracelens("bucket", *paths, "--format", "json")
        assert "graph-invisible" in {row["code"] for row in ran.json["notices"]}


def test_worker_titles() -> None:
    assert worker_parts("VLLM::Worker_DP1_PP0_TP3_EP7") == {"dp": 1, "pp": 0, "tp": 3}
    assert worker_parts("sglang::scheduler_TP12") == {"tp": 12}
    assert worker_parts("worker_tp_2") == {"tp": 2}
    for title in ("", "python3", "TP3", "Worker", "Worker_TP", "Worker_TP9999999", "my Worker_TPx"):
        assert worker_parts(title) == {}


def test_ids() -> None:
    assert pid_of((1 << 48) | (148 << 24) | 9) == 148


@pytest.mark.parametrize(
    ("title", "engine"), [("VLLM::EngineCore", "vllm"), ("sglang::scheduler", "sglang"), ("trtllm-serve", "trtllm")]
)
def test_the_engines_word_and_nothing_else(tmp_path: Path, title: str, engine: str) -> None:
    path = write_events([KERNEL, Process(f"{title} --api-key=hunter2", 1000)], tmp_path / "x.sqlite")
    assert read(path).identity.words == engine
    meta = [("PROCESS_0:COMMAND", f"/opt/{engine} --token hunter2")]
    path = write_events([KERNEL], tmp_path / "y.sqlite", capture_meta=meta)
    assert read(path).identity.words == engine
    assert "hunter2" not in repr(read(path))


def test_small_tables_are_read_by_value_not_by_place(tmp_path: Path) -> None:
    """Names repeat and machines have rows of their own: any order of rows gives one answer."""
    path = write_events([KERNEL], tmp_path / "x.sqlite")
    for order in ("(1, 5, 0, 5), (2, 9, 0, 9), (3, 7, 0, 7)", "(2, 9, 0, 9), (3, 7, 0, 7), (1, 5, 0, 5)"):
        edit(path, "DELETE FROM ANALYSIS_DETAILS", f"INSERT INTO ANALYSIS_DETAILS VALUES {order}")
        assert read(path).session_ns == 9


def test_rows_that_contradict_each_other_give_one_answer_in_any_order(tmp_path: Path) -> None:
    """Two texts for one id, two hosts, two names of one GPU: wrong, but not by chance."""
    drawn = write_events([KERNEL, Process("Worker_TP0", 1000)], tmp_path / "drawn.sqlite")
    rows = {
        "StringIds (id, value)": ["(1, 'aaa')", "(1, 'bbb')"],
        "TARGET_INFO_SYSTEM_ENV (name, value)": ["('Hostname', 'n1')", "('Hostname', 'n0')"],
        "TARGET_INFO_GPU (id, name, uuid)": ["(0, 'L4', 'u1')", "(0, 'H200', 'u0')"],
        "PROCESSES (globalPid, name)": [
            f"({1000 << 24 | 1 << 48}, 'Worker_TP5')",
            f"({1000 << 24 | 1 << 48}, 'Worker_TP3')",
        ],
    }
    found = []
    for order in (1, -1):
        (tmp_path / str(order)).mkdir()
        path = tmp_path / str(order) / "x.sqlite"
        path.write_bytes(drawn.read_bytes())
        for target, values in rows.items():
            table = target.split()[0]
            edit(path, f"CREATE TABLE copy AS SELECT * FROM {table} LIMIT 0", f"DROP TABLE {table}")
            edit(path, f"ALTER TABLE copy RENAME TO {table}")
            edit(path, *(f"INSERT INTO {target} VALUES {value}" for value in values[::order]))
        edit(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 1", "DROP TABLE TARGET_INFO_CUDA_DEVICE")
        ran = tracelens("info", "x.sqlite", "--format", "json", cwd=path.parent)
        names = tracelens("sql", "x.sqlite", "SELECT name FROM kernel_name", "--format", "csv", cwd=path.parent)
        found.append((ran.json["ranks"], names.out))
    assert found[0] == found[1]


def test_values_of_any_type_in_any_column(tmp_path: Path) -> None:
    """SQLite stores what it is given; nothing here may crash."""
    path = write_events([KERNEL, Process("Worker_TP0", 1000)], tmp_path / "x.sqlite")
    for value in ("'text'", "NULL", "1.5", "x'ff00'", str(2**62), "-1", "''"):
        copy = tmp_path / f"v{abs(hash(value))}.sqlite"
        copy.write_bytes(path.read_bytes())
        for table in (
            "META_DATA_EXPORT",
            "META_DATA_CAPTURE",
            "TARGET_INFO_SYSTEM_ENV",
            "PROCESSES",
            "TARGET_INFO_GPU",
        ):
            for column in ("name", "value", "globalPid", "pid", "id", "uuid", "busLocation"):
                try:
                    edit(copy, f'UPDATE {table} SET "{column}" = {value}')
                except Exception:  # the table lacks the column, or forbids NULL
                    continue
        edit(copy, f"UPDATE TARGET_INFO_CUDA_DEVICE SET gpuId = {value}") if value != "NULL" else None
        ran = tracelens("info", copy)
        assert ran.code in (0, 2), (value, ran.err)
