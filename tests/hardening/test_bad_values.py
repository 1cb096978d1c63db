"""For every table and column that is read: absent, empty, NULL, of a wrong type, dangling, repeated, negative, huge.

Whatever a column holds, a command answers or refuses; what it leaves out, it counts; and busy and idle still make the
span.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.running import Ran, count, tracelens
from tracelens.simulate import Copy, Diagnostic, GraphTrace, Kernel, Memset, Process, Range, Thread, write_events

#: Every column that ingest reads, by table.
READ = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "start end deviceId streamId correlationId globalPid demangledName shortName graphNodeId graphId gridX blockX",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start end deviceId streamId correlationId globalPid bytes copyKind graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start end deviceId streamId correlationId globalPid bytes",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start end deviceId streamId correlationId globalPid graphId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end globalTid correlationId nameId",
    "NVTX_EVENTS": "start end eventType globalTid text textId domainId jsonText binaryData",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "schemaId name type offset",
    "StringIds": "id value",
    "META_DATA_EXPORT": "name value",
    "META_DATA_CAPTURE": "name value",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs systemClockNs",
    "ANALYSIS_DETAILS": "duration",
    "TARGET_INFO_SYSTEM_ENV": "name value",
    "PROCESSES": "globalPid name",
    "ThreadNames": "nameId globalTid",
    "TARGET_INFO_GPU": "id name uuid busLocation",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid uuid",
    "DIAGNOSTIC_EVENT": "severity text",
}
VALUES: dict[str, Any] = {
    "NULL": None,
    "text": "text",
    "real": 2.5,
    "bytes": b"\xff\x00\xfe",
    "negative": -7,
    "zero": 0,
    "huge": 2**62,
    "largest": 2**63 - 1,
    "smallest": -(2**63),
    "empty": "",
    "infinite": float("inf"),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks with everything on them, in tables that take any value."""
    rows: list[Any] = [Diagnostic("some events were lost", severity=2)]
    payload = {"NCCL communicator ID": 77, "No. of ranks": 2, "Rank": 0}
    for rank in range(2):
        place: dict[str, Any] = {"pid": 100 + rank, "device": rank}
        rows += [Process(f"Worker_TP{rank}", 100 + rank), Thread(f"Worker_TP{rank}", 100 + rank)]
        rows.append(
            Range(
                "ncclCommInitRank",
                1,
                2,
                pid=100 + rank,
                domain="NCCL",
                registered=True,
                payload=payload | {"Rank": rank},
                payload_as="both",
            )
        )
        for step in range(4):
            at = 100_000 * (step + 1)
            rows.append(Range(f"step[DECODE bs={step}]", at, at + 40_000, pid=100 + rank))
            rows.append(Kernel("gemm", at + 10_000, at + 20_000, launch=(at + 1_000, at + 2_000), **place))
            rows.append(
                Kernel("cross_device_reduce_1stage", at + 20_500, at + 25_000, launch=(at + 2_100, at + 2_500), **place)
            )
            rows.append(Kernel("norm", at + 25_500, at + 26_000, launch=(at + 3_000, at + 3_400), **place))
            rows.append(Copy("D2H", at + 27_000, at + 28_000, launch=(at + 3_500, at + 3_600), **place))
            rows.append(Memset(at + 28_500, at + 29_000, launch=(at + 3_700, at + 3_800), **place))
            rows.append(GraphTrace(at + 30_000, at + 35_000, launch=(at + 3_900, at + 4_000), **place))
    folder = tmp_path_factory.mktemp("values")
    path = write_events(rows, folder / "drawn.sqlite", capture_meta=[("PROCESS_0:COMMAND", "vllm serve")])
    loose = folder / "tp2.sqlite"
    with contextlib.closing(sqlite3.connect(loose, isolation_level=None)) as con:
        con.execute("ATTACH ? AS drawn", (str(path),))
        for name, declared in con.execute("SELECT name, sql FROM drawn.sqlite_master WHERE type = 'table'").fetchall():
            con.execute(declared.replace("NOT NULL", "").replace("PRIMARY KEY", ""))
            con.execute(f'INSERT INTO "{name}" SELECT * FROM drawn."{name}"')
    return loose


def changed(plain: Path, target: Path, *statements: tuple[str, tuple[Any, ...]]) -> Path:
    target.write_bytes(plain.read_bytes())
    with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as con:
        for statement, parameters in statements:
            con.execute(statement, parameters)
    return target


def check(ran: Ran, path: Path, what: str) -> None:
    """An answer whose sums hold and whose rows are all accounted for, or a refusal in three lines."""
    assert "Traceback" not in ran.err, (what, ran.err[-2500:])
    if ran.code == 2:
        assert 1 <= ran.lines <= 3, (what, ran.err)
        return
    assert ran.code == 0, (what, ran.code, ran.err[-500:])
    answer = json.loads(ran.out)
    counted = {row["code"]: row["count"] for row in answer["notices"]}
    for row in answer["ledger"]:
        assert row["rows_read"] == count(path, row["table"]), (what, row)
        assert row["rows_read"] == row["rows_used"] + row["rows_excluded"], (what, row)
        assert min(row["rows_read"], row["rows_used"], row["rows_excluded"]) >= 0, (what, row)
        assert bool(row["reason"]) == bool(row["rows_excluded"]), (what, row)
        if row["table"].startswith("CUPTI_ACTIVITY_KIND_") and "timestamp" in (row["reason"] or ""):
            assert counted.keys() & {"bad-timestamps", "bad-launch-timestamps"}, (what, row)
    for row in answer["ranks"]:
        if row["busy_ns"] is not None:
            assert 0 <= row["busy_ns"] <= row["span_ns"] == row["end_ns"] - row["start_ns"], (what, row)


@pytest.mark.parametrize("table", list(READ))
def test_bad_values_in_every_column(plain: Path, tmp_path: Path, table: str) -> None:
    """Every bad value in every column, each in rows of its own."""
    columns = READ[table].split()
    cells = [(column, value) for value in VALUES.values() for column in columns]
    statements = [
        (f'UPDATE "{table}" SET "{column}" = ? WHERE rowid % {len(cells)} = {place}', (value,))
        for place, (column, value) in enumerate(cells)
    ]
    path = changed(plain, tmp_path / "tp2.sqlite", *statements)
    check(tracelens("info", path, "--format", "json"), path, f"mixed {table}")


@pytest.mark.parametrize("table", [name for name in READ if name.startswith(("CUPTI", "NVTX_EVENTS", "StringIds"))])
def test_one_bad_value_in_a_whole_column(plain: Path, tmp_path: Path, table: str) -> None:
    """Each column in turn, with the value that its place in the table picks; the fuzzer tries the others."""
    for place, column in enumerate(READ[table].split()):
        name = ("huge", "NULL", "text", "smallest", "zero")[place % 5]
        path = changed(plain, tmp_path / "tp2.sqlite", (f'UPDATE "{table}" SET "{column}" = ?', (VALUES[name],)))
        ran = tracelens("info", path, "--format", "json", "--no-cache")
        check(ran, path, f"all {table}.{column} = {name}")


@pytest.mark.parametrize("table", list(READ))
@pytest.mark.parametrize("name", ["absent", "doubled"])
def test_one_table_absent_or_doubled(plain: Path, tmp_path: Path, table: str, name: str) -> None:
    statement = f'DROP TABLE "{table}"' if name == "absent" else f'INSERT INTO "{table}" SELECT * FROM "{table}"'
    path = changed(plain, tmp_path / "tp2.sqlite", (statement, ()))
    check(tracelens("info", path, "--format", "json", "--no-cache"), path, f"{name} {table}")


def test_tables_that_are_views(plain: Path, tmp_path: Path) -> None:
    """A view may run anything; an export has tables."""
    path = changed(
        plain,
        tmp_path / "tp2.sqlite",
        ("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO behind", ()),
        ("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT * FROM behind", ()),
        ("DROP TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE", ()),
    )
    assert tracelens("bucket", path).code == 2


#: The report asks every analysis.
COMMANDS = ["report"]
HARD = {
    "starts of another epoch": 'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = start + 4611686018427387904, "end" = "end" + 4611686018427387904 WHERE rowid % 2',
    "ends before starts": 'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "end" = start - 1 WHERE rowid % 3 = 0',
    "zero stamps": 'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 0, "end" = 0 WHERE rowid % 3 = 0',
    "no stamps but one": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = NULL WHERE rowid > 1",
    "no session": "DELETE FROM ANALYSIS_DETAILS",
    "no session, wild stamps": 'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "end" = 4611686018427387904 WHERE rowid = 5; DELETE FROM ANALYSIS_DETAILS',
    "tiny session": "UPDATE ANALYSIS_DETAILS SET duration = 1",
    "huge session": "UPDATE ANALYSIS_DETAILS SET duration = 9223372036854775807",
    "no streams": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = NULL",
    "no processes": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = NULL",
    "one name": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = (SELECT min(demangledName) FROM CUPTI_ACTIVITY_KIND_KERNEL)",
    "dangling names": "DELETE FROM StringIds",
    "calls all at once": 'UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = 5, "end" = 5',
    "calls after their kernels": 'UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = start + 400000, "end" = "end" + 400000',
    "one correlation id": "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = 1",
    "ranges that never end": 'UPDATE NVTX_EVENTS SET "end" = NULL',
    "ranges of zero length": 'UPDATE NVTX_EVENTS SET "end" = start',
    "ranges at once": 'UPDATE NVTX_EVENTS SET start = 100000, "end" = 200000',
    "everything at once": 'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 100000, "end" = 200000',
    "one nanosecond each": 'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "end" = start + 1',
    "nothing takes time": 'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "end" = start; DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY; DELETE FROM CUPTI_ACTIVITY_KIND_MEMSET; DELETE FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE',
    "one kernel in all": "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid > 1",
}


@pytest.mark.parametrize("case", list(HARD))
def test_every_analysis_survives_what_a_capture_can_hold(plain: Path, tmp_path: Path, case: str) -> None:
    from tests.commands import registered, words

    statements = [(one.strip(), ()) for one in HARD[case].split(";") if one.strip()]
    path = changed(plain, tmp_path / "tp2.sqlite", *statements)
    check(tracelens("info", path, "--format", "json"), path, case)
    for command in COMMANDS:
        if command in registered():
            ran = tracelens(*words(command, path, tmp_path))
            assert ran.code in (0, 2), (case, command, ran.err[-2500:])
            assert ran.code == 0 or 1 <= ran.lines <= 3, (case, command, ran.err)
