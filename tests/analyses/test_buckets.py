"""Where time went: every instant once, to the nanosecond, against walks and unions that share no code with it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.running import REAL, by_rank, needs_real, refused, tracelens
from tracelens.analyses import selection
from tracelens.analyses.buckets import buckets
from tracelens.analyses.info import info
from tracelens.analyses.timeline import timeline
from tracelens.simulate import Copy, GraphTrace, Kernel, Memset, write_events
from tracelens.trace import Options, open_trace

GEMM, NORM, REDUCE = "void gemm<(int)8>(float *)", "void rms_norm<float>(float *)", "cross_device_reduce_1stage"
REAL_FILES = ["h100x2_before", "h100x2_after", "power_iteration_2025_3", "gaussian_2022_4", "one_kernel_2025_1", "tiny_2026_1"]  # fmt: skip


def union_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of a union, by walking sorted intervals."""
    total, reach = 0, None
    for start, end in sorted(intervals):
        if reach is None or start > reach:
            total, reach = total + end - start, end
        elif end > reach:
            total, reach = total + end - reach, end
    return total


def device_rows(path: Path) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """(globalPid, deviceId) -> intervals of kernels, copies and memsets, straight from SQLite."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as con:
        present = {name for (name,) in con.execute("SELECT name FROM sqlite_master")}
        for kind in ("KERNEL", "MEMCPY", "MEMSET"):
            table = f"CUPTI_ACTIVITY_KIND_{kind}"
            if table in present:
                for pid, device, start, end in con.execute(f'SELECT globalPid, deviceId, start, "end" FROM {table}'):
                    found.setdefault((pid, device), []).append((start, end))
    return found


def answer(path: Path, *options: str) -> dict[str, Any]:
    ran = tracelens("bucket", path, "--format", "json", *options)
    assert ran.code == 0, ran.err
    return ran.json


@needs_real
@pytest.mark.parametrize("name", REAL_FILES)
@pytest.mark.parametrize("attribution", ["first", "compute-first"])
def test_real_exports_conserve_time(name: str, attribution: str) -> None:
    """Buckets + idle = span, and what is not idle = the naive union, for every rank, to the ns."""
    path = REAL / f"{name}.sqlite"
    rows = by_rank(answer(path, "--attribution", attribution))
    expected = sorted(device_rows(path).items(), key=lambda item: item[0][1])
    assert len(rows) == len(expected)
    for (_, intervals), (_, mine) in zip(expected, sorted(rows.items()), strict=True):
        span = max(end for _, end in intervals) - min(start for start, _ in intervals)
        assert sum(mine.values()) == span
        assert sum(mine.values()) - mine["idle"] == union_ns(intervals)


@needs_real
def test_minimal_columns_gives_an_answer() -> None:
    path = REAL / "minimal_columns.sqlite"
    found = answer(path)
    assert sum(row["elapsed_ns"] for row in found["buckets"]) == 403_990_000
    assert "globalPid" in found["notices"][0]["message"]


@needs_real
@pytest.mark.parametrize("name", ["no_kernels_2025_5", "no_cuda_2023_1"])
def test_exports_without_kernels_are_refused(name: str) -> None:
    said = refused(tracelens("bucket", REAL / f"{name}.sqlite"))
    assert "CUPTI_ACTIVITY_KIND_KERNEL" in said


def script_sweep(path: Path) -> dict[str, int]:
    """gputrc2graph's arithmetic, written anew: all devices of one export sorted by start, the first starter owns."""
    rows: list[tuple[int, int, str]] = []
    labels = {1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device", 9: "Host-to-Host", 10: "Peer-to-Peer"}
    labels |= {11: "Unified Host-to-Device", 12: "Unified Device-to-Host"}
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as con:
        present = {name for (name,) in con.execute("SELECT name FROM sqlite_master")}
        rows += con.execute(
            'SELECT k.start, k."end", s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName'
        ).fetchall()
        if "CUPTI_ACTIVITY_KIND_MEMCPY" in present:
            for start, end, kind in con.execute('SELECT start, "end", copyKind FROM CUPTI_ACTIVITY_KIND_MEMCPY'):
                rows.append((start, end, f"[CUDA memcpy {labels[kind]}]"))
        if "CUPTI_ACTIVITY_KIND_MEMSET" in present:
            for start, end in con.execute('SELECT start, "end" FROM CUPTI_ACTIVITY_KIND_MEMSET'):
                rows.append((start, end, "[CUDA memset]"))
    rows.sort(key=lambda row: (row[0], -row[1], row[2]))
    owned: dict[str, int] = {}
    reach = rows[0][0]
    for start, end, name in rows:
        gain = max(0, end - max(start, reach))
        owned[name] = owned.get(name, 0) + gain
        reach = max(reach, end)
    return owned


@needs_real
@pytest.mark.parametrize("name", REAL_FILES)
def test_compat_equals_an_independent_sweep(name: str) -> None:
    path = REAL / f"{name}.sqlite"
    found = answer(path, "--compat", "gputrc2graph", "--kernels")
    assert {row["kernel_name"]: row["elapsed_ns"] for row in found["kernels"]} == script_sweep(path)
    assert {row["rank"] for row in found["buckets"]} == {None}
    assert "idle" not in {row["bucket"] for row in found["buckets"]}


def test_the_first_starter_owns_what_overlaps(tmp_path: Path) -> None:
    """
    gemm  |--------|             0..100
    norm      |--------|         60..160   owns 100..160
    copy        |--|             80..120   owns nothing
    """
    rows = [Kernel(GEMM, 1_000, 1_100), Kernel(NORM, 1_060, 1_160, stream=8), Copy("D2H", 1_080, 1_120, stream=9)]
    path = write_events(rows, tmp_path / "x.sqlite")
    found = {row["bucket"]: row for row in answer(path)["buckets"]}
    assert {name: (row["kernel_ns"], row["busy_ns"], row["elapsed_ns"]) for name, row in found.items()} == {
        "gemm": (100, 100, 100),
        "norm": (100, 100, 60),
        "non-gpu-H_D_memops": (40, 40, 0),
        "idle": (0, 0, 0),
    }


def test_of_two_that_start_together_the_longer_owns(tmp_path: Path) -> None:
    rows = [Kernel(NORM, 1_000, 1_050), Kernel(GEMM, 1_000, 1_080, stream=8), Memset(1_000, 1_080, stream=9)]
    found = by_rank(answer(write_events(rows, tmp_path / "x.sqlite")))[0]
    assert found == {"gemm": 80, "norm": 0, "non-gpu-H_D_memops": 0, "idle": 0}


def test_compute_first(tmp_path: Path) -> None:
    """The collective runs 0..100, compute inside it 40..60: 80 and 20."""
    rows = [Kernel(REDUCE, 1_000, 1_100), Kernel(GEMM, 1_040, 1_060, stream=8)]
    path = write_events(rows, tmp_path / "x.sqlite")
    collective = next(name for name in by_rank(answer(path))[0] if name not in ("gemm", "idle"))
    assert by_rank(answer(path))[0] == {collective: 100, "gemm": 0, "idle": 0}
    assert by_rank(answer(path, "--attribution", "compute-first"))[0] == {collective: 80, "gemm": 20, "idle": 0}


def test_zero_length_events_count_and_take_no_time(tmp_path: Path) -> None:
    rows = [Kernel(GEMM, 1_000, 1_100), Kernel(NORM, 500, 500), Kernel(NORM, 1_200, 1_200), Kernel(NORM, 1_050, 1_050)]
    found = answer(write_events(rows, tmp_path / "x.sqlite"))["buckets"]
    assert [(row["bucket"], row["kernel_count"], row["elapsed_ns"]) for row in found] == [
        ("gemm", 1, 100),
        ("norm", 3, 0),
        ("idle", 0, 0),
    ]


def test_a_rank_with_zero_length_events_only(tmp_path: Path) -> None:
    found = answer(write_events([Kernel(GEMM, 5, 5), Kernel(GEMM, 9, 9)], tmp_path / "x.sqlite"))["buckets"]
    assert [(row["bucket"], row["kernel_count"], row["elapsed_ns"], row["elapsed_frac"]) for row in found] == [
        ("gemm", 2, 0, None),
        ("idle", 0, 0, None),
    ]


def test_each_rank_has_its_own_time(tmp_path: Path) -> None:
    """Eight devices do the same work: eight times one device's, and the script's way sees one."""
    rows = [Kernel(GEMM, 1_000, 2_000, pid=100 + rank, device=rank) for rank in range(8)]
    path = write_events(rows, tmp_path / "x.sqlite")
    assert by_rank(answer(path)) == {rank: {"gemm": 1_000, "idle": 0} for rank in range(8)}
    found = answer(path, "--compat", "gputrc2graph")
    assert [(row["rank"], row["elapsed_ns"], row["kernel_ns"]) for row in found["buckets"]] == [(None, 1_000, 8_000)]
    assert found["notices"][0]["code"] == "one-timeline"
    assert found["notices"][0]["count"] == 8


def test_the_script_sweeps_each_export_apart(tmp_path: Path) -> None:
    """Two files of one GPU each: nothing overlaps, and there is no word of one timeline."""
    paths = [write_events([Kernel(GEMM, 1_000, 2_000 + n)], tmp_path / f"rank{n}.sqlite") for n in range(2)]
    ran = tracelens("bucket", *paths, "--compat", "gputrc2graph", "--format", "json")
    assert [(row["elapsed_ns"], row["kernel_ns"]) for row in ran.json["buckets"]] == [(2_001, 2_001)]
    assert "one-timeline" not in {row["code"] for row in ran.json["notices"]}


def test_the_host_row_of_the_script(tmp_path: Path) -> None:
    path = write_events([Kernel(GEMM, 1_000, 501_000)], tmp_path / "x.sqlite")
    found = answer(path, "--compat", "gputrc2graph", "--non-profiled-s", "0.002")["buckets"]
    assert [(row["bucket"], row["elapsed_ns"], row["elapsed_frac"]) for row in found] == [
        ("gemm", 500_000, 0.25),
        ("cpu_non_gpu", 1_500_000, 0.75),
    ]
    assert "shorter" in refused(tracelens("bucket", path, "--compat", "gputrc2graph", "--non-profiled-s", "0.0001"))
    assert "--compat" in refused(tracelens("bucket", path, "--non-profiled-s", "1"))
    assert "knows no --ranks" in refused(tracelens("bucket", path, "--compat", "gputrc2graph", "--ranks", "0"))


def test_fifty_rows_and_one_microsecond(tmp_path: Path) -> None:
    """Fewer than 100 rows divide nothing by zero, and 1 us in 10 s is seen."""
    rows = [Kernel(GEMM, 200_000_000 * n, 200_000_000 * n + 100_000_000) for n in range(1, 51)]
    rows[7] = Kernel(GEMM, 1_600_000_000, 1_700_001_000)
    assert by_rank(answer(write_events(rows, tmp_path / "x.sqlite")))[0]["gemm"] == 5_000_001_000


def test_kernels_sum_to_their_buckets(tmp_path: Path) -> None:
    rows = [Kernel(f"{GEMM}#{n % 3}", 1_000 + 90 * n, 1_100 + 90 * n, stream=n % 2) for n in range(20)]
    rows += [Kernel(NORM, 1_500, 1_700, stream=5)]
    found = answer(write_events(rows, tmp_path / "x.sqlite"), "--kernels")
    sums: dict[str, list[int]] = {}
    for row in found["kernels"]:
        mine = sums.setdefault(row["bucket"], [0, 0, 0])
        for place, field in enumerate(("kernel_count", "kernel_ns", "elapsed_ns")):
            mine[place] += row[field]
    assert sums == {
        row["bucket"]: [row["kernel_count"], row["kernel_ns"], row["elapsed_ns"]]
        for row in found["buckets"]
        if row["bucket"] != "idle"
    }


EVENT = st.tuples(
    st.sampled_from([GEMM, NORM, REDUCE, "copy"]),
    st.integers(0, 3),
    st.integers(0, 400),
    st.integers(0, 90),
    st.integers(0, 1),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EVENT, min_size=1, max_size=40), st.sampled_from(["first", "compute-first"]), st.integers(0, 1))
def test_time_is_conserved_whatever_runs(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, int, int, int, int]], attribution: Any, shift: int
) -> None:
    """Any events on two ranks: buckets + idle = span, busy = union, and each share within its own bounds."""
    rows: list[Any] = [Kernel(GEMM, 1_000, 1_010, pid=1 + rank, device=rank) for rank in range(2)]
    for name, stream, start, length, rank in drawn:
        place = {"pid": 1 + rank, "device": rank, "stream": stream}
        begin = 1_000 + start - 500 * shift
        rows.append(
            Copy("D2D", begin, begin + length, **place)
            if name == "copy"
            else Kernel(name, begin, begin + length, **place)
        )
    path = write_events(rows, tmp_path_factory.mktemp("any") / "x.sqlite", shuffle=len(rows))
    with open_trace([str(path)], Options(attribution=attribution)) as trace:
        table = buckets(trace).buckets
    for rank in range(2):
        mine = {row["bucket"]: row for row in table.rows(named=True) if row["rank"] == rank}
        intervals = device_rows(path)[(1 << 48) | (1 + rank) << 24, rank]
        long = [(start, end) for start, end in intervals if end > start]
        assert sum(row["elapsed_ns"] for row in mine.values()) == max(end for _, end in long) - min(s for s, _ in long)
        assert sum(row["elapsed_ns"] for name, row in mine.items() if name != "idle") == union_ns(intervals)
        assert sum(row["kernel_ns"] for row in mine.values()) == sum(end - start for start, end in intervals)
        assert all(
            0 <= row["elapsed_ns"] <= row["busy_ns"] <= row["kernel_ns"] for n, row in mine.items() if n != "idle"
        )


def test_unclassified_time_and_missing_collectives_are_told(tmp_path: Path) -> None:
    rows = [Kernel("zzz_unheard_of", 1_000, 9_000, pid=1 + rank, device=rank) for rank in range(2)]
    found = {row["code"]: row for row in answer(write_events(rows, tmp_path / "x.sqlite"))["notices"]}
    assert "zzz_unheard_of" in found["unclassified"]["message"]
    assert found["no-collectives"]["count"] == 2


def test_graph_time_is_opaque_and_conserved(tmp_path: Path) -> None:
    rows = [Kernel(GEMM, 1_000, 1_100), GraphTrace(1_050, 1_300), GraphTrace(1_400, 1_500, graph=2)]
    assert by_rank(answer(write_events(rows, tmp_path / "x.sqlite")))[0] == {
        "gemm": 100,
        "graph_opaque": 300,
        "idle": 100,
    }


@pytest.mark.parametrize("attribution", ["first", "compute-first"])
@pytest.mark.parametrize("ranks", [None, (2, 5)])
def test_the_timeline_tells_what_the_table_of_events_does(
    attribution: Any, ranks: tuple[int, ...] | None, tmp_path: Path
) -> None:
    """The same answer whether the events come from the table or along a timeline; spans too, of any rank.

    rank 0  |gemm  |...|norm |     rank 2  | (no length)     rank 5   |all-reduce  |
                                                                        |gemm|
    """
    rows = [Kernel(GEMM, 1_000, 1_100, device=0), Kernel(NORM, 1_150, 1_200, device=0), Copy("D2H", 900, 900, device=0)]
    rows += [Kernel(NORM, 7_000, 7_000, device=2), Kernel(NORM, 8_000, 8_000, device=2)]
    rows += [
        Kernel(REDUCE, 2_000, 2_100, device=5),
        Kernel(GEMM, 2_040, 2_060, device=5, stream=8),
        Memset(1, 1, device=5),
    ]
    path = write_events(rows, tmp_path / "x.sqlite")
    given = {rank: (str(path), rank) for rank in (0, 2, 5)}
    options = Options(attribution=attribution, ranks=ranks, rank_map=given)
    with open_trace([str(path)], options) as plain, open_trace([str(path)], options) as along:
        timeline(along)
        told = [
            {name: frame.rows() for name, frame in buckets(one, kernels=True).tables.items()} for one in (plain, along)
        ]
        assert told[0] == told[1]
        assert info(plain)["ranks"].rows() == info(along)["ranks"].rows()
        for one in (plain, along):
            assert selection.spans(one).equals(
                one.rows(Path(selection.__file__).with_suffix(".sql"), "spans", ranks=one.ranks)
            )
