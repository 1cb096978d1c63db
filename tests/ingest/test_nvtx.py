"""NVTX: ranges and marks of every kind, texts by id or inline, domains per process, payloads as JSON or bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.running import edit, tracelens
from tracelens.ingest.payload import COMMUNICATOR, MESSAGE_BYTES, RANK, RANKS, Layout, as_bytes, decode_json
from tracelens.simulate import Kernel, Range, write_events
from tracelens.simulate.export_file import nccl_payload
from tracelens.trace import open_trace

KERNEL = Kernel("gemm", 1_000, 2_000, launch=(100, 200))
OTHER = Kernel("gemm", 1_000, 2_000, launch=(100, 200), pid=2000, device=1)


def nvtx(path: Path, columns: str = "domain, text, start_ns, end_ns, kind") -> list[tuple[Any, ...]]:
    with open_trace([str(path)]) as trace:
        trace.ensure("nvtx")
        return trace.db.execute(f"SELECT {columns} FROM nvtx ORDER BY ALL").fetchall()


def codes(path: Path) -> dict[str, str]:
    with open_trace([str(path)]) as trace:
        trace.ensure("nvtx")
        return {one.code: one.message for one in trace.notices}


@pytest.mark.parametrize("loader", ["auto", "sqlite"])
def test_ranges_and_marks(tmp_path: Path, loader: str) -> None:
    rows = [
        KERNEL,
        Range("pushed", 10, 20),
        Range("registered", 30, 40, registered=True),
        Range("across threads", 50, 60, type=60, end_tid=7, range_id=3),
        Range("mark", 70, type=34),
        Range("ncclAllReduce", 80, 90, domain="NCCL", registered=True),
    ]
    path = write_events(rows, tmp_path / "x.sqlite")
    assert nvtx(path) == [
        ("", "across threads", 50, 60, "range"),
        ("", "mark", 70, None, "mark"),
        ("", "pushed", 10, 20, "range"),
        ("", "registered", 30, 40, "range"),
        ("NCCL", "ncclAllReduce", 80, 90, "range"),
    ]
    assert tracelens("info", path, "--loader", loader).code == 0


def test_domain_ids_are_each_processs_own(tmp_path: Path) -> None:
    """Domain 1 is `a` in one process and `b` in the other."""
    rows = [KERNEL, OTHER, Range("x", 1, 2, domain="a"), Range("y", 1, 2, domain="b", pid=2000)]
    path = write_events(rows, tmp_path / "x.sqlite")
    assert nvtx(path, "domain, text") == [("a", "x"), ("b", "y")]


def test_a_domain_made_outside_the_capture(tmp_path: Path) -> None:
    rows = [KERNEL, Range("ncclAllReduce", 1, 2, domain="NCCL", registered=True), Range("mine", 1, 2, domain="x")]
    path = edit(write_events(rows, tmp_path / "x.sqlite"), "DELETE FROM NVTX_EVENTS WHERE eventType = 75")
    assert nvtx(path, "domain, text") == [("?", "mine"), ("NCCL", "ncclAllReduce")]


def test_operators_of_pytorch_stay_in_the_file_and_are_counted(tmp_path: Path) -> None:
    rows = [KERNEL, Range("step", 1, 500), *(Range(f"aten::add, op_id = {n}", n, n + 1) for n in range(50))]
    path = write_events(rows, tmp_path / "x.sqlite")
    assert nvtx(path, "text") == [("step",)]
    ledger = {row["table"]: row for row in tracelens("info", path, "--format", "json").json["ledger"]}["NVTX_EVENTS"]
    assert (ledger["rows_read"], ledger["rows_used"], ledger["rows_excluded"]) == (51, 1, 50)


def test_a_shift_is_undone(tmp_path: Path) -> None:
    path = write_events([KERNEL, Range("x", -50, 60)], tmp_path / "x.sqlite", normalize=True)
    assert nvtx(path, "start_ns, end_ns") == [(-50, 60)]


def test_ranges_that_the_end_of_the_session_closed_are_told(tmp_path: Path) -> None:
    path = write_events(
        [KERNEL, Range("open", 1, 9_000), Range("shut", 1, 2)], tmp_path / "x.sqlite", duration_ns=9_000
    )
    assert codes(path)["nvtx-unclosed"].startswith("1 NVTX range ")


@pytest.mark.parametrize("how", ["json", "binary", "both"])
@pytest.mark.parametrize("loader", ["auto", "sqlite"])
def test_payloads(tmp_path: Path, how: str, loader: Any) -> None:
    """An id above 2^63, and bytes that are no UTF-8."""
    comm = 0xFF_FE_FD_FC_80_81_82_83
    payload = {"NCCL communicator ID": comm, "Message size [bytes]": 8192}
    rows = [KERNEL, Range("ncclAllReduce", 1, 2, domain="NCCL", registered=True, payload=payload, payload_as=how)]
    path = write_events(rows, tmp_path / "x.sqlite")
    assert nvtx(path, "text, comm_id, message_bytes") == [("ncclAllReduce", comm, 8192)]


def test_payloads_before_communicators_had_ids(tmp_path: Path) -> None:
    rows = [KERNEL, Range("ncclAllReduce", 1, 2, domain="NCCL", payload={"Message size [bytes]": 64})]
    assert nvtx(write_events(rows, tmp_path / "x.sqlite"), "comm_id, message_bytes") == [(None, 64)]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ('{"NCCL communicator ID": 5, "Rank": "3", "No. of ranks": 4}', {COMMUNICATOR: 5, RANK: 3, RANKS: 4}),
        ("[1, 2]", {}),
        ("{", {}),
        ("", {}),
        ("[" * 100_000, {}),
        ('{"Rank": -1, "Message size [bytes]": 1.5, "NCCL communicator ID": 99999999999999999999999}', {}),
        ('{"Rank": true, "No. of ranks": null}', {}),
        ('{"NCCL communicator ID": 18446744073709551615}', {COMMUNICATOR: 2**64 - 1}),
    ],
)
def test_json_payloads(text: str, fields: dict[str, int]) -> None:
    assert decode_json(text) == fields


LAYOUT = Layout({5: {COMMUNICATOR: (0, "<Q"), MESSAGE_BYTES: (8, "<Q"), RANK: (16, "<i")}})


def test_binary_payloads() -> None:
    whole = nccl_payload({COMMUNICATOR: 7, MESSAGE_BYTES: 64, RANK: 3}, 5, 1)
    assert LAYOUT.decode(whole) == {COMMUNICATOR: 7, MESSAGE_BYTES: 64, RANK: 3}
    assert LAYOUT.decode(whole[:31]) == {}
    assert LAYOUT.decode(whole[:-1]) == {}  # shorter than it says
    assert LAYOUT.decode(nccl_payload({COMMUNICATOR: 7}, 5, 1)) == {COMMUNICATOR: 7}
    assert LAYOUT.decode(nccl_payload({COMMUNICATOR: 7}, 6, 1)) == {}
    assert LAYOUT.decode(as_bytes(whole.decode("latin-1"))) == LAYOUT.decode(whole)


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_decode_to_something_possible(blob: bytes) -> None:
    assert all(0 <= value < 2**64 for value in LAYOUT.decode(blob).values())


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_decodes_to_something_possible(text: str) -> None:
    assert all(0 <= value < 2**64 for value in decode_json(text).values())


@pytest.mark.parametrize("column", ["start", "eventType", "globalTid"])
def test_a_table_without_a_needed_column_is_told(tmp_path: Path, column: str) -> None:
    path = write_events([KERNEL, Range("x", 1, 2)], tmp_path / "x.sqlite", without_columns={"NVTX_EVENTS": [column]})
    assert nvtx(path) == []
    assert column in codes(path)["nvtx-columns-missing"]


@pytest.mark.parametrize("column", ["end", "text", "textId", "domainId", "jsonText", "binaryData", "rangeId"])
def test_other_columns_may_be_missing(tmp_path: Path, column: str) -> None:
    rows = [KERNEL, Range("x", 1, 2), Range("y", 3, 4, registered=True)]
    path = write_events(rows, tmp_path / "x.sqlite", without_columns={"NVTX_EVENTS": [column]})
    kept = {"text": ["y"], "textId": ["x"]}.get(column, ["x", "y"])
    assert [text for (text,) in nvtx(path, "text")] == kept


def test_rows_that_say_nothing_are_counted(tmp_path: Path) -> None:
    path = write_events([KERNEL, *(Range(f"r{n}", n, n + 1) for n in range(6))], tmp_path / "x.sqlite")
    edit(path, "CREATE TABLE copy AS SELECT * FROM NVTX_EVENTS", "DROP TABLE NVTX_EVENTS")
    edit(path, "ALTER TABLE copy RENAME TO NVTX_EVENTS")
    edit(
        path,
        "UPDATE NVTX_EVENTS SET globalTid = NULL WHERE text = 'r0'",
        "UPDATE NVTX_EVENTS SET start = 'soon' WHERE text = 'r1'",
        "UPDATE NVTX_EVENTS SET globalTid = 77 WHERE text = 'r3'",
        "UPDATE NVTX_EVENTS SET text = NULL, textId = 123456 WHERE text = 'r2'",
    )
    assert [text for (text,) in nvtx(path, "text")] == ["r4", "r5"]
    ledger = {row["table"]: row for row in tracelens("info", path, "--format", "json").json["ledger"]}["NVTX_EVENTS"]
    assert (ledger["rows_read"], ledger["rows_used"]) == (6, 2)
    assert ledger["reason"] == "3 no thread, start or text; 1 of a process that the export does not list"
    assert "start (1)" in codes(path)["wrong-type"]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = write_events([KERNEL, Range("x", 1, 2)], tmp_path / "x.sqlite")
    edit(path, ("UPDATE NVTX_EVENTS SET text = CAST(? AS TEXT)", (b"ab\xff\xfe",)))
    assert nvtx(path, "text") == [("ab\ufffd\ufffd",)]
