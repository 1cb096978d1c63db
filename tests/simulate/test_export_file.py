"""Exports drawn by hand hold exactly what was drawn, in every version and with every disturbance."""

from __future__ import annotations

import json
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest

from tracelens.errors import OutputError, UsageError
from tracelens.simulate import (
    VERSIONS,
    Copy,
    Diagnostic,
    Env,
    Gpu,
    GraphTrace,
    Kernel,
    Launch,
    Memset,
    Process,
    Range,
    Row,
    Thread,
    write_events,
)
from tracelens.simulate.columns import short_name
from tracelens.simulate.export_file import SESSION_UTC_NS

DRAWN = [
    Kernel("void vllm::norm<c10::BFloat16, (int)8>(T1 *)", 10_000, 15_000, launch=(2_000, 6_000)),
    Kernel("nvjet_tst_64x8", 16_000, 22_000, correlation=7, graph_node=41, graph=3),
    Kernel("nvjet_tst_64x8", 22_500, 23_000, correlation=7, graph_node=42, graph=3),
    Launch("cudaGraphLaunch_v10000", 6_500, 9_000, correlation=7),
    Copy("D2H", 23_000, 24_000, launch=(9_500, 11_000), bytes=64),
    Memset(25_000, 25_500, bytes=4),
    Range("step[DECODE bs=8]", 1_000, 30_000),
    Thread("VLLM::Worker_TP0"),
]


def read(path: Path, query: str) -> list[tuple[Any, ...]]:
    con = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return con.execute(query).fetchall()
    finally:
        con.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_as_drawn(tmp_path: Path, version: str) -> None:
    path = write_events(DRAWN, tmp_path / "x.sqlite", nsys_version=version)
    kernels = read(
        path,
        """SELECT k.start, k.end, deviceId, streamId, correlationId, d.value, s.value, graphNodeId
           FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds d ON d.id = demangledName
           JOIN StringIds s ON s.id = shortName ORDER BY k.start""",
    )
    assert kernels == [
        (10_000, 15_000, 0, 7, 100_001, "void vllm::norm<c10::BFloat16, (int)8>(T1 *)", "norm", None),
        (16_000, 22_000, 0, 7, 7, "nvjet_tst_64x8", "nvjet_tst_64x8", 41),
        (22_500, 23_000, 0, 7, 7, "nvjet_tst_64x8", "nvjet_tst_64x8", 42),
    ]
    calls = read(
        path,
        """SELECT start, end, correlationId, value FROM CUPTI_ACTIVITY_KIND_RUNTIME
           JOIN StringIds ON id = nameId ORDER BY start""",
    )
    assert calls == [
        (2_000, 6_000, 100_001, "cudaLaunchKernel_v7000"),
        (6_500, 9_000, 7, "cudaGraphLaunch_v10000"),
        (9_500, 11_000, 100_002, "cudaMemcpyAsync_v3020"),
    ]
    assert read(path, "SELECT start, end, bytes, copyKind, srcKind, dstKind FROM CUPTI_ACTIVITY_KIND_MEMCPY") == [
        (23_000, 24_000, 64, 2, 2, 1)
    ]
    assert read(path, "SELECT start, bytes FROM CUPTI_ACTIVITY_KIND_MEMSET") == [(25_000, 4)]
    assert read(path, "SELECT start, end, eventType, text FROM NVTX_EVENTS") == [
        (1_000, 30_000, 59, "step[DECODE bs=8]")
    ]
    (thread,) = read(path, "SELECT value, globalTid FROM ThreadNames JOIN StringIds ON id = nameId")
    assert thread == ("VLLM::Worker_TP0", 1 << 48 | 1000 << 24 | 1000)


def test_join_of_kernels_and_calls(tmp_path: Path) -> None:
    """Two processes use one correlation id; only (globalPid, correlationId) joins."""
    rows = [
        Kernel("a", 10, 20, launch=(1, 2), correlation=5, pid=100),
        Kernel("b", 10, 20, launch=(3, 4), correlation=5, pid=200, device=1, launch_tid=201),
    ]
    path = write_events(rows, tmp_path / "x.sqlite")
    joined = read(
        path,
        """SELECT value, r.start, r.globalTid & 16777215 FROM CUPTI_ACTIVITY_KIND_KERNEL k
           JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
             ON r.correlationId = k.correlationId AND r.globalTid & ~16777215 = k.globalPid
           JOIN StringIds ON id = demangledName ORDER BY value""",
    )
    assert joined == [("a", 1, 100), ("b", 3, 201)]
    assert read(path, "SELECT pid, name FROM PROCESSES ORDER BY pid") == [(100, "python3"), (200, "python3")]
    assert read(path, "SELECT gpuId, cudaId, pid FROM TARGET_INFO_CUDA_DEVICE ORDER BY pid") == [
        (0, 0, 100),
        (1, 1, 200),
    ]


def test_times_are_shifted_as_exporters_do(tmp_path: Path) -> None:
    plain = write_events(DRAWN, tmp_path / "plain.sqlite")
    moved = write_events(DRAWN, tmp_path / "moved.sqlite", shift_ns=500, normalize=True)
    shift = SESSION_UTC_NS + 500
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        before = read(plain, f"SELECT start, end FROM {table} ORDER BY start")
        assert read(moved, f"SELECT start - {shift}, end - {shift} FROM {table} ORDER BY start") == before
    meta = dict(read(moved, "SELECT name, value FROM META_DATA_EXPORT"))
    assert meta["EXPORT_CONFIG_TIME_SHIFT"] == str(shift)
    assert meta["EXPORT_PARAM_TIME_NORMALIZE"] == "true"
    assert meta["EXPORT_PARAM_TIME_SHIFT"] == "500"
    assert read(moved, "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME") == [(SESSION_UTC_NS,)]


def test_shuffled_rows_are_the_same_rows(tmp_path: Path) -> None:
    rows = [Kernel(f"k{i}", 100 * i, 100 * i + 50, launch=(90 * i, 90 * i + 5)) for i in range(200)]
    ordered = write_events(rows, tmp_path / "a.sqlite")
    shuffled = write_events(rows, tmp_path / "b.sqlite", shuffle=3)
    (tmp_path / "again").mkdir()
    again = write_events(rows, tmp_path / "again" / "b.sqlite", shuffle=3)
    query = "SELECT start, end, correlationId, value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName"
    assert read(shuffled, query) != read(ordered, query)
    assert sorted(read(shuffled, query)) == sorted(read(ordered, query))
    assert shuffled.read_bytes() == again.read_bytes()


def test_tables_and_columns_can_be_missing(tmp_path: Path) -> None:
    path = write_events(
        DRAWN,
        tmp_path / "x.sqlite",
        without=("CUPTI_ACTIVITY_KIND_RUNTIME", "META_DATA_EXPORT"),
        without_columns={"CUPTI_ACTIVITY_KIND_KERNEL": ("graphId", "globalPid")},
        id_offset=1_000,
    )
    tables = {name for (name,) in read(path, "SELECT name FROM sqlite_master")}
    assert "CUPTI_ACTIVITY_KIND_KERNEL" in tables
    assert not tables & {"CUPTI_ACTIVITY_KIND_RUNTIME", "META_DATA_EXPORT"}
    names = {row[1] for row in read(path, "PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
    assert "graphNodeId" in names
    assert not names & {"graphId", "globalPid"}
    assert read(path, "SELECT min(id) FROM StringIds") == [(1_001,)]
    assert read(path, "SELECT DISTINCT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE graphNodeId > 0") == [
        (1_007,)
    ]


def test_empty_tables_only_when_not_lazy(tmp_path: Path) -> None:
    lazy = write_events([], tmp_path / "a.sqlite")
    eager = write_events([], tmp_path / "b.sqlite", lazy=False)
    query = "SELECT count(*) FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
    assert read(lazy, query) == [(0,)]
    assert read(eager, query) == [(1,)]
    assert read(eager, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(0,)]


def test_ranges_payloads_and_domains(tmp_path: Path) -> None:
    fields = {"NCCL communicator ID": 2**63 + 5, "No. of ranks": 4, "Rank": 2}
    rows = [
        Range("ncclCommInitRank", 1, 2, domain="NCCL", registered=True, payload=fields, payload_as="both"),
        Range("mark", 5, type=34),
        Range("iteration", 6, 9, type=60, range_id=3, end_tid=1001),
    ]
    path = write_events(rows, tmp_path / "x.sqlite")
    found = read(path, "SELECT start, end, eventType, text, textId, domainId FROM NVTX_EVENTS ORDER BY start")
    (number,) = {row[4] for row in found if row[4] is not None}
    assert found == [
        (-1_957_198_520, None, 75, "NCCL", None, 1),
        (1, 2, 59, None, number, 1),
        (5, None, 34, "mark", None, 0),
        (6, 9, 60, "iteration", None, 0),
    ]
    ((text, blob),) = read(path, "SELECT jsonText, binaryData FROM NVTX_EVENTS WHERE textId IS NOT NULL")
    assert json.loads(text) == fields
    assert struct.unpack("<4Q", blob[:32]) == (1, 16_777_221, 16, 48)
    assert struct.unpack("<Qii", blob[32:]) == (2**63 + 5, 4, 2)
    entries = read(path, 'SELECT name, type, "offset" FROM NVTX_PAYLOAD_SCHEMA_ENTRIES ORDER BY idx')
    assert entries == [("NCCL communicator ID", 18, None), ("No. of ranks", 5, 8), ("Rank", 5, 12)]


def test_other_rows(tmp_path: Path) -> None:
    rows = [
        GraphTrace(10, 90, graph=4, launch=(1, 5)),
        Diagnostic("some events were lost", severity=2),
        Env("DeviceEnvironment", "RANK=1"),
        Process("trtllm", pid=5),
        Gpu(3, name="NVIDIA B200", uuid="u-3"),
        Row("PROFILER_OVERHEAD", {"start": 1, "end": 2, "nameId": 1, "overheadType": 1}),
    ]
    path = write_events(rows, tmp_path / "x.sqlite", graph_trace="Graph")
    assert read(path, "SELECT start, end, graphId FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE") == [(10, 90, 4)]
    assert read(path, "SELECT severity, text FROM DIAGNOSTIC_EVENT") == [(2, "some events were lost")]
    assert ("DeviceEnvironment", "RANK=1") in read(path, "SELECT name, value FROM TARGET_INFO_SYSTEM_ENV")
    assert (5, "trtllm") in read(path, "SELECT pid, name FROM PROCESSES")
    assert ("u-3", "NVIDIA B200") in read(path, "SELECT uuid, name FROM TARGET_INFO_GPU")
    assert ("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Graph") in read(path, "SELECT name, value FROM META_DATA_CAPTURE")
    assert read(path, "SELECT start, end FROM PROFILER_OVERHEAD") == [(1, 2)]


def test_existing_files_are_never_touched(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        write_events(DRAWN, path)
    assert path.read_text() == "mine"
    with pytest.raises(OutputError, match="not a folder"):
        write_events(DRAWN, tmp_path / "absent" / "x.sqlite")


def test_unknown_copy_kind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no copy kind"):
        write_events([Copy("sideways", 1, 2)], tmp_path / "x.sqlite")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void vllm::act<c10::BFloat16, &vllm::silu<c10::BFloat16>, (bool)1>(T1 *, const T1 *, int)", "act"),
        ("void (anonymous namespace)::two_shot<a>(b)", "two_shot"),
        ("void <unnamed>::multimem<a, (int)16>(b)", "multimem"),
        ("std::enable_if<T2>(int)0&&x<T1>::exists, void>::type vllm::fused<T, (int)8>(T1 *)", "fused"),
        ("nvjet_tst_64x8", "nvjet_tst_64x8"),
        ("()", "()"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short
