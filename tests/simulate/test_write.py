"""What is written is what was simulated, on the clocks that each export would show."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracelens.errors import OutputError, UsageError
from tracelens.simulate import VERSIONS, CaptureSpec, ClockJump, LostRun, simulate, write
from tracelens.simulate.writer import BULK_ROWS, ExportWriter

SMALL = CaptureSpec(tp=2, layers=1, steps=3)


def read(path: Path, query: str) -> list[tuple[Any, ...]]:
    con = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return con.execute(query).fetchall()
    finally:
        con.close()


def tables(path: Path) -> set[str]:
    return {name for (name,) in read(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("one_file", [True, False])
def test_every_version_holds_the_rows(tmp_path: Path, version: str, one_file: bool) -> None:
    capture = simulate(SMALL)
    paths = write(capture, tmp_path, one_file=one_file, nsys_version=version)
    assert [path.name for path in paths] == (["tp2.sqlite"] if one_file else ["rank0.sqlite", "rank1.sqlite"])
    total = 0
    for path in paths:
        assert read(path, "PRAGMA integrity_check") == [("ok",)]
        for kind in ("KERNEL", "MEMCPY", "MEMSET"):
            total += read(path, f"SELECT count(*) FROM CUPTI_ACTIVITY_KIND_{kind}")[0][0]
        assert ("META_DATA_EXPORT" in tables(path)) == (version not in ("old_unknown", "2022.2.1"))
        assert ("EXPORT_META_DATA" in tables(path)) == (version == "2022.2.1")
    assert total == capture.event_rows == 2 * capture.events.count


def test_rows_join_and_carry_local_times(tmp_path: Path) -> None:
    """Each kernel joins one call; start and end are the true ones read on the GPU's clock."""
    spec = CaptureSpec(
        tp=2,
        layers=2,
        steps=4,
        gpu_offset_ns=(9_000, -14_000),
        gpu_drift_ppm=(30.0, -12.5),
        gpu_jumps=(ClockJump(1, 0.5, 4_000),),
    )
    capture = simulate(spec)
    (path,) = write(capture, tmp_path)
    clocks = capture.clocks()
    for rank in range(2):
        rows = read(
            path,
            f"""SELECT k.start, k.end, r.start, d.value FROM CUPTI_ACTIVITY_KIND_KERNEL k
                JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
                  ON r.correlationId = k.correlationId AND r.globalTid & ~16777215 = k.globalPid
                JOIN StringIds d ON d.id = demangledName
                WHERE deviceId = {rank} ORDER BY k.start, k.end""",
        )
        events = capture.events
        kernels = np.flatnonzero(np.array([op.kind == 0 for op in events.ops])[events.op])
        start, end = events.start[rank, kernels], events.end[rank, kernels]
        assert [row[0] for row in rows] == clocks[rank].to_local(start).tolist()
        assert [row[1] for row in rows] == clocks[rank].to_local(end).tolist()
        assert [row[2] for row in rows] == events.launch_begin[rank, events.launch[kernels]].tolist()
        assert [row[3] for row in rows] == [events.ops[op].name for op in events.op[kernels]]
    half = clocks[1].middle_ns
    assert clocks[1].to_local(half) - half == -14_000 + 4_000
    assert clocks[1].to_local(half - 1_000_000) - (half - 1_000_000) == -14_000 + 12
    assert clocks[0].to_local(half + 1_000_000) - (half + 1_000_000) == 9_000 + 30


def test_separate_sessions(tmp_path: Path) -> None:
    """Files begin at different times and record UTC with an error; true times agree once both are undone."""
    spec = CaptureSpec(
        tp=2, layers=1, steps=3, session_spread_ns=200_000_000, utc_error_ns=(6_000_000, -6_000_000), ranks_per_host=1
    )
    capture = simulate(spec)
    paths = write(capture, tmp_path, one_file=False)
    clocks = capture.clocks(one_file=False)
    assert clocks[0].session_start_ns != clocks[1].session_start_ns
    for clock, path in zip(clocks, paths, strict=True):
        ((first,),) = read(path, "SELECT min(start) FROM CUPTI_ACTIVITY_KIND_MEMCPY")
        assert first + clock.session_start_ns == capture.events.start[clock.rank].min()
        ((utc, system),) = read(path, "SELECT utcEpochNs, systemClockNs FROM TARGET_INFO_SESSION_START_TIME")
        assert utc == clock.utc_ns
        assert system == clock.system_clock_ns
        assert read(path, "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'") == [
            (f"node{clock.rank}",)
        ]
    assert clocks[0].utc_ns - clocks[0].session_start_ns - clocks[1].utc_ns + clocks[1].session_start_ns == 12_000_000
    assert clocks[0].boot_ns != clocks[1].boot_ns


def test_same_bytes_every_time(tmp_path: Path) -> None:
    spec = CaptureSpec(tp=2, layers=2, steps=5, seed=3, launch="eager", all_reduce="nccl", nccl_payload="both")
    first = write(spec, tmp_path / "a")
    second = write(spec, tmp_path / "b")
    third = write(CaptureSpec(**{**vars(spec), "seed": 4}), tmp_path / "c")
    assert first[0].read_bytes() == second[0].read_bytes()
    assert (tmp_path / "a" / "truth.json").read_bytes() == (tmp_path / "b" / "truth.json").read_bytes()
    assert first[0].read_bytes() != third[0].read_bytes()


def test_large_batches_take_the_same_values(tmp_path: Path) -> None:
    """The bulk path and the row path write one content."""
    spec = CaptureSpec(tp=1, layers=8, steps=BULK_ROWS // 80 + 20)
    capture = simulate(spec)
    (path,) = write(capture, tmp_path, truth=False)
    kernels = np.array([op.kind == 0 for op in capture.events.ops])[capture.events.op]
    assert kernels.sum() > BULK_ROWS
    rows = read(path, "SELECT start, end, typeof(graphNodeId), typeof(clusterX) FROM CUPTI_ACTIVITY_KIND_KERNEL")
    assert [row[:2] for row in rows] == list(
        zip(capture.events.start[0, kernels].tolist(), capture.events.end[0, kernels].tolist(), strict=True)
    )
    assert {row[2] for row in rows} == {"integer", "null"}
    assert {row[3] for row in rows} == {"integer"}


def test_graph_columns(tmp_path: Path) -> None:
    """One replay's kernels share a correlation id; node ids repeat from replay to replay and differ inside one."""
    (path,) = write(SMALL, tmp_path / "a")
    replays = read(
        path,
        """SELECT correlationId, count(*), count(DISTINCT graphNodeId), min(graphId), max(graphId)
           FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE graphNodeId IS NOT NULL AND deviceId = 0 GROUP BY 1 ORDER BY 1""",
    )
    assert len(replays) == 3
    assert len({row[1:] for row in replays}) == 1
    assert replays[0][1] == replays[0][2]
    (old,) = write(SMALL, tmp_path / "b", nsys_version="2025.3.2")
    columns = {row[1] for row in read(old, "PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
    assert "graphNodeId" in columns
    assert "graphId" not in columns


def test_graph_level_capture(tmp_path: Path) -> None:
    (path,) = write(CaptureSpec(tp=2, layers=1, steps=3, graph_capture="graph"), tmp_path)
    assert read(path, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE") == [(6,)]
    assert read(path, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE graphNodeId IS NOT NULL") == [(0,)]
    assert ("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Graph") in read(path, "SELECT * FROM META_DATA_CAPTURE")


@pytest.mark.parametrize(
    ("engine", "text", "title"),
    [
        ("vllm", "execute_context_0(0)_generation_8(8)", "VLLM::Worker_TP1"),
        ("sglang", "step[DECODE bs=8]", "sglang::scheduler_TP1"),
        ("trtllm", "[Executor] _forward_step 2: 0 ctx reqs, 8 gen reqs", "trtllm-worker_TP1"),
    ],
)
def test_each_engine_speaks_its_grammar(tmp_path: Path, engine: str, text: str, title: str) -> None:
    spec = CaptureSpec(tp=2, layers=1, steps=3, engine=engine)
    (path,) = write(spec, tmp_path)
    ranges = read(path, "SELECT text, eventType FROM NVTX_EVENTS WHERE domainId = 0")
    assert (text, 59) in ranges
    assert len(ranges) == 6
    assert (title,) in read(path, "SELECT value FROM ThreadNames JOIN StringIds ON id = nameId")


@pytest.mark.parametrize("close", ["after", "early", "model"])
def test_ranges_close_when_asked(tmp_path: Path, close: str) -> None:
    """Every range opens before its first launch; what it still covers at its end depends."""
    spec = CaptureSpec(tp=1, layers=1, steps=4, nvtx_close=close, nvtx_type=60, nvtx_registered=True)
    (path,) = write(spec, tmp_path)
    ranges = read(
        path,
        "SELECT start, end, value, endGlobalTid = globalTid FROM NVTX_EVENTS JOIN StringIds ON id = textId ORDER BY 1",
    )
    calls = read(
        path,
        """SELECT start, value FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId
           WHERE value NOT LIKE '%Synchronize%' ORDER BY 1""",
    )
    assert all(same for *_, same in ranges)
    inside = [[value for at, value in calls if start <= at < end] for start, end, *_ in ranges]
    everything = [
        "cudaMemcpyAsync_v3020",
        "cudaGraphLaunch_v10000",
        "cudaMemsetAsync_v3020",
        "cudaLaunchKernel_v7000",
        "cudaMemcpyAsync_v3020",
    ]
    assert inside == [everything[: 2 if close == "model" else 5]] * 4
    ((last,),) = read(path, "SELECT max(end) FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind = 2")
    assert (ranges[-1][1] > last) == (close == "after")


def test_nccl_ranges_and_payloads(tmp_path: Path) -> None:
    spec = CaptureSpec(tp=2, dp=2, layers=1, steps=2, launch="eager", all_reduce="nccl", nccl_payload="json")
    (path,) = write(spec, tmp_path)
    rows = read(
        path,
        """SELECT globalTid >> 24 & 16777215, value, jsonText, n.domainId FROM NVTX_EVENTS n
           JOIN StringIds ON id = textId ORDER BY 1, start""",
    )
    assert [row[1] for row in rows if row[0] == 2000] == ["ncclCommInitRankConfig"] + [
        "ncclAllReduce",
        "ncclAllReduce",
        "ncclAllGather",
    ] * 2
    by_pid = {pid: {json.loads(row[2])["NCCL communicator ID"] for row in rows if row[0] == pid} for pid, *_ in rows}
    assert [len(ids) for ids in by_pid.values()] == [1, 1, 1, 1]
    ids = [ids.pop() for ids in by_pid.values()]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    inits = [json.loads(row[2]) for row in rows if row[1] == "ncclCommInitRankConfig"]
    assert [(init["Rank"], init["No. of ranks"]) for init in inits] == [(0, 2), (1, 2), (0, 2), (1, 2)]
    domains = read(path, "SELECT globalTid >> 24 & 16777215, domainId FROM NVTX_EVENTS WHERE text = 'NCCL'")
    assert dict(domains) == {2000: 1, 2007: 2, 2014: 1, 2021: 2}


def test_identity_evidence(tmp_path: Path) -> None:
    plain = dict(
        read(write(SMALL, tmp_path / "a")[0], "SELECT DISTINCT deviceId, globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL")
    )
    assert len(plain) == 2
    hidden = CaptureSpec(tp=2, layers=1, steps=2, visible_devices=True, titles="none", rank_env=True)
    (path,) = write(hidden, tmp_path / "b")
    assert read(path, "SELECT DISTINCT deviceId FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(0,)]
    assert read(path, "SELECT gpuId, cudaId FROM TARGET_INFO_CUDA_DEVICE ORDER BY 1") == [(0, 0), (1, 0)]
    assert "ThreadNames" not in tables(path)
    assert ("PROCESS_1:ENVIRONMENT_VARIABLE", "RANK=1") in read(path, "SELECT * FROM META_DATA_CAPTURE")
    single = CaptureSpec(tp=2, layers=1, steps=2, one_process=True)
    (path,) = write(single, tmp_path / "c")
    assert read(
        path, "SELECT count(DISTINCT globalPid), count(DISTINCT contextId) FROM CUPTI_ACTIVITY_KIND_KERNEL"
    ) == [(1, 2)]
    assert read(
        path,
        """SELECT count(*) FROM (SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL
           GROUP BY 1 HAVING count(DISTINCT deviceId) > 1)""",
    ) == [(0,)]


def test_disturbances(tmp_path: Path) -> None:
    spec = CaptureSpec(
        tp=2,
        layers=1,
        steps=3,
        side_contexts=True,
        foreign_process=True,
        bad_rows=4,
        secrets=("hunter2", "swordfish"),
        lost_launches=2,
        lost_runs=(LostRun(1, 0.5, 4),),
    )
    capture = simulate(spec)
    (path,) = write(capture, tmp_path)
    kernels = "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL"
    assert read(path, f"{kernels} WHERE globalPid >> 24 & 16777215 = 1777") == [(50,)]
    assert read(
        path, f"{kernels} WHERE start = 0 AND end = 0 OR end < start OR start > 1 << 60 OR start < -(1 << 60)"
    ) == [(8,)]
    assert read(path, f"{kernels} WHERE deviceId = 0 AND globalPid >> 24 & 16777215 = 2007") == [(3,)]
    assert capture.event_rows == 2 * capture.events.count - 4
    everything = " ".join(str(row) for table in tables(path) for row in read(path, f'SELECT * FROM "{table}"'))
    assert "hunter2" in everything
    assert "swordfish" in everything
    ((orphans,),) = read(
        path,
        """SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k WHERE graphNodeId IS NOT NULL AND NOT EXISTS
           (SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME r
            WHERE r.correlationId = k.correlationId AND r.globalTid & ~16777215 = k.globalPid)""",
    )
    assert orphans > 0


def test_repeat_tiles_the_block(tmp_path: Path) -> None:
    once = simulate(CaptureSpec(tp=2, layers=1, steps=5))
    thrice = simulate(CaptureSpec(tp=2, layers=1, steps=5, repeat=3))
    (path,) = write(thrice, tmp_path)
    rows = np.array(read(path, "SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE deviceId = 1 ORDER BY 1"))
    count = len(rows) // 3
    np.testing.assert_array_equal(rows[count : 2 * count], rows[:count] + once.period_ns)
    assert (rows[1:, 0] >= rows[:-1, 1]).all()
    assert thrice.event_rows == 3 * once.event_rows
    ids = read(
        path,
        "SELECT count(*), count(DISTINCT correlationId) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE globalTid >> 24 & 16777215 = 2000",
    )
    assert ids[0][0] == ids[0][1]
    with pytest.raises(UsageError, match="cannot lose rows"):
        simulate(CaptureSpec(repeat=2, lost_head=5))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "rank1.sqlite").write_text("mine")
    with pytest.raises(OutputError, match=r"rank1\.sqlite exists"):
        write(SMALL, tmp_path, one_file=False)
    assert [path.name for path in tmp_path.iterdir()] == ["rank1.sqlite"]
    with pytest.raises(OutputError, match="not a folder"):
        write(SMALL, tmp_path / "rank1.sqlite")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_nothing_stays_of_an_interrupted_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """The second rank's file fails half-way: neither it nor the first stays."""
    held = ExportWriter.session

    def fail(self: ExportWriter, *rest: Any) -> None:
        if self.path.name == "rank1.sqlite":
            raise error
        held(self, *rest)

    monkeypatch.setattr(ExportWriter, "session", fail)
    with pytest.raises(error):
        write(SMALL, tmp_path, one_file=False)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(ExportWriter, "session", fail)
    with pytest.raises(OutputError, match="disk is full"):
        write(SMALL, tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be made"):
        write(SMALL, tmp_path / "file" / "below")


def test_truth_file(tmp_path: Path) -> None:
    capture = simulate(SMALL)
    write(capture, tmp_path, name="mine")
    body = json.loads((tmp_path / "truth.json").read_text())
    assert body["files"] == ["mine.sqlite"]
    assert body["mean_wait_ns"] == capture.truth.mean_wait_ns().tolist()
    assert [clock["rank"] for clock in body["clocks"]] == [0, 1]
    assert body["steps"]["step_ns"] == capture.truth.steps.step_ns.tolist()


def test_shift_and_shuffle(tmp_path: Path) -> None:
    (plain,) = write(SMALL, tmp_path / "a")
    (moved,) = write(SMALL, tmp_path / "b", shift_ns=77, shuffle=1)
    query = "SELECT start, end, correlationId, globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL"
    rows = [(start - 77, end - 77, *rest) for start, end, *rest in read(moved, query)]
    assert rows != read(plain, query)
    assert sorted(rows) == sorted(read(plain, query))
