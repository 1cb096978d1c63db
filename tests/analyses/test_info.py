"""What is in a capture: exports, ranks, and the ledger of every row that was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.running import REAL, count, edit, needs_real, tracelens
from tracelens.simulate import Copy, Env, GraphTrace, Kernel, Launch, Memset, Process, Range, write_events

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"


def ledger(*paths: Path) -> dict[str, dict[str, Any]]:
    ran = tracelens("info", *paths, "--format", "json")
    assert ran.code == 0, ran.err
    return {row["table"]: row for row in ran.json["ledger"]}


def test_what_is_said_of_exports_and_ranks(tmp_path: Path) -> None:
    rows: list[Any] = [Process("VLLM::Worker_DP1_TP0", 100)]
    rows += [Kernel("gemm", 1_000, 2_000, pid=100, stream=7), Kernel("gemm", 5_000, 6_000, pid=100, stream=9)]
    rows += [Copy("D2H", 1_500, 2_500, pid=100, stream=9), Memset(8_000, 9_000, pid=100)]
    path = write_events(rows, tmp_path / "x.sqlite", host="gpu17")
    answer = tracelens("info", path, "--format", "json").json
    assert answer["exports"] == [
        {
            "path": str(path),
            "nsys_version": answer["exports"][0]["nsys_version"],
            "schema_version": "3.25.0",
            "hostname": "gpu17",
            "start_utc_ns": 1_780_000_000_000_000_000,
            "graph_trace": "none",
            "size_bytes": path.stat().st_size,
        }
    ]
    (rank,) = answer["ranks"]
    gpu = {"hostname": "gpu17", "pid": 100, "device": 0, "gpu_name": "NVIDIA H100 80GB HBM3", "rank_source": "title"}
    counts = {"kernel_count": 2, "memcpy_count": 1, "memset_count": 1, "stream_count": 2}
    times = {"start_ns": 1_000, "end_ns": 9_000, "span_ns": 8_000, "busy_ns": 3_500, "idle_frac": 0.5625}
    assert rank == {"rank": 1, "dp": 1, "pp": None, "tp": 0, "path": str(path)} | gpu | counts | times


def test_the_ledger_counts_every_row_once(tmp_path: Path) -> None:
    """Of nine kernels: three of the rank, one side context's, one foreign, four with impossible times."""
    rows: list[Any] = [Process("Worker_TP0", 1), Kernel("fill", 5, 6, pid=1, device=3)]
    rows += [Kernel("gemm", 1_000 * n, 1_000 * n + 900, pid=1, launch=(10 * n, 10 * n + 5)) for n in range(1, 4)]
    rows += [Kernel("other", 100, 200, pid=66)]
    rows += [Kernel("bad", 0, 0, pid=1), Kernel("bad", 50, 40, pid=1), Kernel("bad", -70_000_000_000, 5, pid=1)]
    rows += [
        Kernel("bad", 5, 2**62, pid=1),
        Launch("cudaMalloc", 1, 2, pid=1),
        Launch("cudaLaunchKernel", 3, 4, 999, pid=1),
    ]
    rows += [Range("a", 1, 2, pid=1), Range("aten::add, op_id = 7", 1, 2, pid=1)]
    path = write_events(rows, tmp_path / "x.sqlite")
    found = ledger(path)
    kernels = found["CUPTI_ACTIVITY_KIND_KERNEL"]
    assert (kernels["rows_read"], kernels["rows_used"], kernels["rows_excluded"]) == (9, 3, 6)
    assert kernels["reason"] == "4 bad timestamp; 1 foreign process; 1 side context"
    assert (found[RUNTIME]["rows_read"], found[RUNTIME]["rows_used"]) == (5, 3)
    assert found[RUNTIME]["reason"] == "2 put no work on a rank's device"
    assert (found["NVTX_EVENTS"]["rows_read"], found["NVTX_EVENTS"]["rows_used"]) == (2, 1)
    answer = tracelens("bucket", path, "--format", "json").json
    (told,) = [row for row in answer["notices"] if row["code"] == "bad-timestamps"]
    assert (told["severity"], told["count"]) == ("warning", 4)


@needs_real
@pytest.mark.parametrize("name", ["h100x2_before", "power_iteration_2025_3", "gaussian_2022_4", "one_kernel_2025_1", "tiny_2026_1", "minimal_columns"])  # fmt: skip
def test_real_ledgers_agree_with_sqlite(name: str) -> None:
    path = REAL / f"{name}.sqlite"
    for table, row in ledger(path).items():
        assert row["rows_read"] == count(path, table) == row["rows_used"] + row["rows_excluded"], row


@needs_real
def test_kernels_without_a_launch_are_counted() -> None:
    answer = tracelens("info", REAL / "h100x2_before.sqlite", "--format", "json").json
    (told,) = [row for row in answer["notices"] if row["code"] == "events-without-launch"]
    assert (told["severity"], told["count"]) == ("info", 31)


def test_the_ledger_of_several_exports_adds_up(tmp_path: Path) -> None:
    paths = [
        write_events(
            [Kernel("gemm", 1, 9), Kernel("bad", 0, 0), Env("DeviceEnvironment", f"RANK={n}")],
            tmp_path / f"r_{n}.sqlite",
        )
        for n in range(3)
    ]
    row = ledger(*paths)["CUPTI_ACTIVITY_KIND_KERNEL"]
    assert (row["rows_read"], row["rows_used"], row["reason"]) == (6, 3, "3 bad timestamp")


def test_api_calls_of_both_tables_are_accounted_for(tmp_path: Path) -> None:
    """A few old exports keep driver calls apart."""
    path = write_events(
        [Kernel("gemm", 1_000, 2_000, launch=(1, 2)), Kernel("norm", 3_000, 4_000, launch=(5, 6))],
        tmp_path / "x.sqlite",
    )
    edit(
        path,
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_DRIVER AS SELECT * FROM {RUNTIME} WHERE start = 5",
        f"DELETE FROM {RUNTIME} WHERE start = 5",
    )
    found = ledger(path)
    assert [
        (found[name]["rows_read"], found[name]["rows_used"]) for name in (RUNTIME, "CUPTI_ACTIVITY_KIND_DRIVER")
    ] == [(1, 1), (1, 1)]


def test_calls_with_impossible_times_launch_nothing(tmp_path: Path) -> None:
    rows = [Kernel("gemm", 1_000 * n, 1_000 * n + 500, launch=(10 * n, 10 * n + 5), correlation=n) for n in range(1, 5)]
    rows.append(Kernel("gemm", 9_000, 9_500, correlation=4))
    path = write_events([*rows, Launch("cudaLaunchKernel_v7000", 41, 42, correlation=4)], tmp_path / "x.sqlite")
    edit(
        path,
        f'UPDATE {RUNTIME} SET "end" = start - 1 WHERE correlationId = 2',
        f'UPDATE {RUNTIME} SET start = 0, "end" = 0 WHERE correlationId = 3',
    )
    assert ledger(path)[RUNTIME]["reason"] == "2 bad timestamp; 1 repeats a correlation id"
    codes = {row["code"]: row["count"] for row in tracelens("info", path, "--format", "json").json["notices"]}
    assert codes["bad-launch-timestamps"] == 2
    assert codes["repeated-correlation"] == 1
    assert codes["events-without-launch"] == 2


def test_the_mode_of_graphs(tmp_path: Path) -> None:
    cases = {
        "none": [Kernel("gemm", 1, 9)],
        "node": [Kernel("gemm", 1, 9, graph_node=5)],
        "graph": [Kernel("gemm", 1, 9), GraphTrace(10, 20)],
    }
    for mode, rows in cases.items():
        path = write_events(rows, tmp_path / f"{mode}.sqlite")
        assert tracelens("info", path, "--format", "json").json["exports"][0]["graph_trace"] == mode
