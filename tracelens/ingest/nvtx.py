"""NVTX ranges and marks: text by id or inline, domains numbered per process, NCCL payloads decoded.

PyTorch's `emit_nvtx` leaves one range per operator, millions in a capture, each with a text of its own
(`aten::add, op_id = 4711`). They mark no step and no collective, so they stay in the file and are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa

from tracelens.ingest import nsys
from tracelens.ingest.payload import COMMUNICATOR, MESSAGE_BYTES, Layout, as_bytes, decode_json, read_layout
from tracelens.ingest.sources import Source, strings

_OPERATOR = "text LIKE '%, op_id = %'"
_SCHEMA = pa.schema(
    [
        ("thread", pa.int64()),
        ("domain", pa.string()),
        ("text", pa.string()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("kind", pa.int64()),
    ]
    + [("comm_id", pa.uint64()), ("message_bytes", pa.int64())]
)


def load_nvtx(source: Source, db: duckdb.DuckDBPyConnection, number: int, shift_ns: int) -> None:
    """Loads one export's ranges and marks into `raw_nvtx`.

    Rows without a thread or a start are left out and counted; an unclosed range keeps the end that nsys gave it (the
    session's), a mark has none.
    """
    columns = source.columns(nsys.NVTX)
    if not columns:
        return
    total = source.count(nsys.NVTX)
    db.execute("INSERT INTO raw_read VALUES (?, ?, NULL, ?)", [number, nsys.NVTX, total])
    missing = [name for name in ("start", "eventType", "globalTid") if name not in columns]
    if missing or ("text" not in columns and "textId" not in columns):
        lacking = missing[0] if missing else "text"
        db.execute(
            "INSERT INTO raw_notice VALUES ('nvtx-columns-missing', 'warning', ?, '', NULL)",
            [f"{source.shown}: {nsys.NVTX} has no {lacking}: NVTX ranges cannot be used"],
        )
        return
    domains = _domains(source, columns)
    layout = read_layout(source)
    wanted: list[str] = [
        name
        for name in ("start", "end", "eventType", "globalTid", "text", "textId", "domainId", "jsonText", "binaryData")
        if name in columns
    ]
    kinds = f"eventType IN ({nsys.NVTX_MARK}, {nsys.NVTX_PUSH_POP}, {nsys.NVTX_START_END})"
    where = f"{kinds} AND (text IS NULL OR NOT {_OPERATOR})" if "text" in columns else kinds
    texts = _registered(source, columns)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in source.texts(nsys.NVTX, wanted, where):
            yield _decoded(batch, wanted, domains, texts, layout)

    reader = pa.RecordBatchReader.from_batches(_SCHEMA, batches())
    db.register("incoming", reader)
    shift = int(shift_ns)
    try:
        db.execute(
            f"INSERT INTO raw_nvtx SELECT {number}, thread, domain, text, start_ns - {shift}, end_ns - {shift}, kind, comm_id, message_bytes FROM incoming"  # noqa: S608
            " WHERE thread IS NOT NULL AND start_ns IS NOT NULL AND text IS NOT NULL"
        )
    finally:
        db.unregister("incoming")
        reader.close()


def _registered(source: Source, columns: dict[str, str]) -> dict[int, str]:
    """Texts of the registered strings that ranges use."""
    if "textId" not in columns:
        return {}
    ids = {int(one) for (one,) in source.select(nsys.NVTX, ("textId",), "textId IS NOT NULL GROUP BY textId")}
    return strings(source, ids)


def _domains(source: Source, columns: dict[str, str]) -> dict[tuple[int, int], str]:
    """(process, domain id) -> name. Ids are given per process, in the order in which domains were made."""
    if not {"domainId", "globalTid"} <= set(columns) or "text" not in columns:
        return {}
    rows = source.select(nsys.NVTX, ("globalTid", "domainId", "text"), f"eventType = {nsys.NVTX_DOMAIN}")
    return {
        (int(thread) & ~0xFFFFFF, int(domain)): str(text)
        for thread, domain, text in rows
        if None not in (thread, domain, text)
    }


def _decoded(
    batch: pa.RecordBatch, wanted: list[str], domains: dict[tuple[int, int], str], texts: dict[int, str], layout: Layout
) -> pa.RecordBatch:
    values: dict[str, list[Any]] = {name: batch.column(position).to_pylist() for position, name in enumerate(wanted)}
    size = batch.num_rows
    nothing: list[Any] = [None] * size
    threads = values["globalTid"]
    inline, ids = values.get("text", nothing), values.get("textId", nothing)
    text = [own if own is not None else texts.get(identifier) for own, identifier in zip(inline, ids, strict=True)]
    names = [
        ""
        if not domain or thread is None
        else domains.get((thread & ~0xFFFFFF, domain), "NCCL" if str(said).startswith("nccl") else "?")
        for thread, domain, said in zip(threads, values.get("domainId", nothing), text, strict=True)
    ]
    fields = [
        decode_json(json) if json else (layout.decode(as_bytes(blob)) if blob else {})
        for json, blob in zip(values.get("jsonText", nothing), values.get("binaryData", nothing), strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(threads, pa.int64()),
            pa.array(names, pa.string()),
            pa.array(text, pa.string()),
            pa.array(values["start"], pa.int64()),
            pa.array(values.get("end", nothing), pa.int64()),
            pa.array(values["eventType"], pa.int64()),
            pa.array([one.get(COMMUNICATOR) for one in fields], pa.uint64()),
            pa.array([one.get(MESSAGE_BYTES) for one in fields], pa.int64()),
        ],
        schema=_SCHEMA,
    )
