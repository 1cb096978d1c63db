"""Captures that are incomplete, damaged or hold more than they should, end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.drawn import GEMM, MS, NCCL, US, decode, kernel, titles
from tests.running import by_rank, edit, refused, snapshot, tables, tracelens
from tracelens.simulate import CaptureSpec, Copy, Diagnostic, Launch, Memset, Row, write, write_events


def test_replays_without_their_kernels_are_no_idle_gpu(tmp_path: Path) -> None:
    """Six replays a step, traced as wholes: busy, opaque, and not 99 % idle (ashalliants/ninfer-3090#53)."""
    write(
        CaptureSpec(tp=2, layers=8, steps=20, launch="pieces", graph_capture="graph", bubble_ns=5_000),
        tmp_path,
        truth=False,
    )
    ran = tracelens("bucket", "--format", "json", cwd=tmp_path)
    for parts in by_rank(ran.json, "elapsed_frac").values():
        assert parts["graph_opaque"] > 0.8
        assert parts["idle"] < 0.2
    assert any(
        "--cuda-graph-trace=node" in notice["hint"] for notice in ran.json["notices"] if notice["severity"] == "warning"
    )
    assert tracelens("bucket", "--strict", cwd=tmp_path).code == 1


def test_replays_that_left_nothing_are_noticed_by_their_launches(tmp_path: Path) -> None:
    """807 launches of graphs over 128 steps, and hardly a kernel: no table of graphs at all (ashalliants/ninfer-3090#53)."""
    rows = [*titles(1)]
    for step in range(60):
        at = (10 + 5 * step) * MS
        rows += [
            Launch(
                "cudaGraphLaunch_v10000", at + k * 500 * US, at + k * 500 * US + 20 * US, 5000 + 10 * step + k, pid=100
            )
            for k in range(6)
        ]
        rows += [kernel("sample_kernel", 0, at + 4 * MS, at + 4 * MS + 20 * US, at + 3_900 * US)]
    path = write_events(rows, tmp_path / "rank0.sqlite", graph_trace="Graph")
    ran = tracelens("bucket", path, "--format", "json")
    (told,) = [notice for notice in ran.json["notices"] if notice["code"] == "graph-invisible"]
    assert (told["severity"], told["count"]) == ("warning", 360)
    assert "--cuda-graph-trace=node" in told["hint"]
    assert "looks idle" in told["message"]
    assert [row["idle_frac"] for row in tracelens("info", path, "--format", "json").json["ranks"]] == [None]


def test_busy_is_never_more_than_the_span(tmp_path: Path) -> None:
    """2,260.3 ms of kernels in a span of 2,008.6 ms: 98.5 % busy, not 112.5 % (GindaChen/nsys-ai#574)."""
    begin = 1_000 * MS
    rows = [
        kernel(GEMM, 0, begin, begin + 1_300 * MS),
        kernel(GEMM, 0, begin + 1_330_300 * US, begin + 1_656_400 * US),
        kernel(NCCL, 0, begin + 1_374_400 * US, begin + 2_008_600 * US, stream=20),
    ]
    path = write_events(rows, tmp_path / "rank0.sqlite")
    answer = tracelens("bucket", path, "--format", "json").json
    kernels = sum(row["kernel_ns"] for row in answer["buckets"])
    parts = by_rank(answer)[0]
    assert (kernels, sum(parts.values())) == (2_260_300 * US, 2_008_600 * US)
    assert parts["idle"] == 30_300 * US
    assert 1 - parts["idle"] / 2_008_600_000 == pytest.approx(0.985, abs=0.0005)
    assert parts == {"gemm": 1_626_100 * US, "nccl_and_custom_ar": 352_200 * US, "idle": 30_300 * US}


def test_one_gpu_of_a_job_of_four(tmp_path: Path) -> None:
    """Workers that were not traced (vllm-project/vllm#10708): said, and no skew of zeros."""
    write(CaptureSpec(tp=1, layers=2, steps=20), tmp_path, truth=False)
    ran = tracelens("skew", "--expect-ranks", "4", "--format", "json", cwd=tmp_path)
    assert ran.code == 0
    assert "verdict" not in ran.json
    assert "1 of 4 ranks" in " ".join(notice["message"] for notice in ran.json["notices"])
    assert "--trace-fork-before-exec" in ran.out


def test_times_that_cannot_be(tmp_path: Path) -> None:
    """Zero times, an end before its start, a start before its launch (pytorch/kineto#1380): counted, and no figure moves."""
    rows = []
    for k in range(200):
        at = 10 * MS + k * 100 * US
        rows.append(kernel(GEMM, 0, at + 8 * US, at + 60 * US, at))
    good = write_events(rows, tmp_path / "good.sqlite")
    bad = write_events(
        [
            *rows,
            kernel("zero", 0, 0, 0),
            kernel("backwards", 0, 20 * MS, 19 * MS),
            kernel("far", 0, 10**17, 10**17 + 5),
        ],
        tmp_path / "bad.sqlite",
    )
    answers = [tracelens("bucket", path, "--format", "json").json for path in (good, bad)]
    assert answers[0]["buckets"] == answers[1]["buckets"]
    ledger = tracelens("info", bad, "--format", "json").json["ledger"]
    (row,) = [one for one in ledger if one["table"] == "CUPTI_ACTIVITY_KIND_KERNEL"]
    assert (row["rows_read"], row["rows_used"], row["rows_excluded"]) == (203, 200, 3)
    (told,) = [notice for notice in answers[1]["notices"] if notice["code"] == "bad-timestamps"]
    assert told["count"] == 3


def test_copies_and_sets_are_no_compute(tmp_path: Path) -> None:
    """Copies beside a collective do not hide it (facebookresearch/HolisticTraceAnalysis#162)."""
    at = 10 * MS
    rows = [
        kernel(NCCL, 0, at, at + 100 * US, stream=20),
        Copy("D2D", at, at + 100 * US, pid=100, stream=9),
        Memset(at, at + 50 * US, pid=100, stream=10),
        kernel(GEMM, 0, at + 100 * US, at + 200 * US),
    ]
    path = write_events(rows, tmp_path / "rank0.sqlite")
    (row,) = tracelens("collectives", path, "--format", "json").json["rank_operations"]
    assert row["overlap_frac"] == 0.0
    counts = by_rank(tracelens("bucket", path, "--format", "json").json, "kernel_count")[0]
    assert counts == {"gemm": 1, "nccl_and_custom_ar": 1, "non-gpu-H_D_memops": 2, "idle": 0}


def test_a_strange_process_on_the_gpu_is_listed_and_left_out(tmp_path: Path) -> None:
    """A system-wide trace holds another program (NVIDIA's release notes of 2025.6)."""
    write(CaptureSpec(tp=2, layers=2, steps=10, foreign_process=True), tmp_path, truth=False)
    ran = tracelens("info", "--format", "json", cwd=tmp_path)
    assert [row["rank"] for row in ran.json["ranks"]] == [0, 1]
    assert any("1777" in notice["message"] for notice in ran.json["notices"])


def test_what_the_profiler_did_itself_is_told_apart(tmp_path: Path) -> None:
    """Its own activity is no slowdown of the program, and lost events lead the answer (NVIDIA's pitfalls)."""
    rows = [
        kernel(GEMM, 0, 10 * MS, 12 * MS),
        Diagnostic("Some events may be incomplete", severity=2),
        *(
            Row("PROFILER_OVERHEAD", {"start": at * MS, "end": at * MS + 500 * US, "globalTid": 1, "nameId": 0})
            for at in (5, 13)
        ),
    ]
    path = write_events(rows, tmp_path / "rank0.sqlite")
    ran = tracelens("info", path, "--format", "json")
    assert ran.code == 0
    (told,) = [one for one in ran.json["notices"] if one["code"] == "profiler-activity"]
    assert told["severity"] == "info"
    assert "1.000 ms" in told["message"]
    assert ran.json["notices"][0]["severity"] == "warning"
    assert tracelens("info", path, "--strict").code == 1


OPTIONAL = ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "ThreadNames", "TARGET_INFO_GPU")


@pytest.mark.parametrize("table", OPTIONAL)
def test_a_table_that_is_not_there_takes_its_feature_and_nothing_else(tmp_path: Path, table: str) -> None:
    """Tables come and go between versions and flags (GindaChen/nsys-ai#294)."""
    (path,) = write(CaptureSpec(tp=2, layers=1, steps=8), tmp_path, truth=False)
    before = tracelens("bucket", path, "--format", "json").json["buckets"]
    assert table in tables(path)
    edit(path, f"DROP TABLE {table}")
    assert tracelens("bucket", path, "--format", "json").json["buckets"] == before
    for command in ("gaps", "skew"):
        ran = tracelens(command, path)
        assert ran.code == 0, (command, ran.err)
        assert ran.out


@pytest.mark.parametrize("column", ["start", "end", "deviceId"])
def test_a_column_that_cannot_be_missed_is_named(tmp_path: Path, column: str) -> None:
    (path,) = write(CaptureSpec(tp=2, layers=2, steps=5), tmp_path, truth=False)
    edit(path, f'ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN "{column}"')
    before = snapshot(tmp_path)
    assert column in refused(tracelens("bucket", path))
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("damage", ["zeroed header", "half", "text", "empty", "journal"])
def test_an_interrupted_export_is_told_in_two_lines(tmp_path: Path, damage: str) -> None:
    """`file is not a database` after an interrupted export (GindaChen/nsys-ai#126)."""
    (path,) = write(CaptureSpec(tp=2, layers=1, steps=8), tmp_path, truth=False)
    blob = path.read_bytes()
    if damage == "journal":
        path.with_name(path.name + "-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(600))
    else:
        path.write_bytes(
            {
                "zeroed header": bytes(100) + blob[100:],
                "half": blob[: len(blob) // 2],
                "text": b"step,ms\n1,2\n" * 50,
                "empty": b"",
            }[damage]
        )
    before = snapshot(tmp_path)
    for command in ("info", "skew"):
        said = refused(tracelens(command, path))
        assert path.name in said
    assert snapshot(tmp_path) == before


def test_no_collective_kernels_on_several_ranks_is_said_aloud(tmp_path: Path) -> None:
    """A renamed prefix once gave zero communication without a word (facebookresearch/HolisticTraceAnalysis#360)."""
    rows = [*titles(2)]
    for step in range(40):
        for rank in range(2):
            at = (10 + step) * MS
            rows += [
                decode(rank, at - 20 * US),
                kernel(GEMM, rank, at, at + 100 * US, at - 10 * US),
                kernel("ncXlDevKernel_AllReduxe", rank, at + 101 * US, at + 400 * US, at - 5 * US),
            ]
    ran = tracelens("bucket", write_events(rows, tmp_path / "tp2.sqlite"), "--format", "json")
    warned = [notice["message"] for notice in ran.json["notices"] if notice["severity"] == "warning"]
    assert any("no kernel that the collective table knows" in message for message in warned)
    assert any("ncXlDevKernel_AllReduxe" in message for message in warned)
