"""NVTX ranges and marks: text by id or inline, domains numbered per process, NCCL payloads decoded.

PyTorch's `emit_nvtx` leaves one range per operator, millions in a capture, each with a text of its own
(`aten::add, op_id = 4711`). They mark no step and no collective, so they stay in the file and are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from tracelens.ingest import nsys
from tracelens.ingest.payload import COMMUNICATOR, MESSAGE_BYTES, Layout, as_bytes, decode_json, read_layout
from tracelens.ingest.readers import ReadReport
from tracelens.ingest.sources import Source, strings
from tracelens.ingest.streams import incoming
from tracelens.ingest.values import as_int64, as_text, whole, written
from tracelens.sqlfiles import queries

_SQL = queries(Path(__file__).with_suffix(".sql"))
_OPERATOR = "text LIKE '%, op_id = %'"
_INTEGERS = ("start", "end", "eventType", "globalTid", "textId", "domainId")
_SCHEMA = pa.schema(
    [(name, pa.int64()) for name in _INTEGERS]
    + [("text", pa.string()), ("comm_id", pa.uint64()), ("message_bytes", pa.int64())]
)


def load_nvtx(source: Source, db: duckdb.DuckDBPyConnection, number: int, shift_ns: int) -> None:
    """Loads one export's ranges and marks into the tables behind `raw_nvtx`.

    Rows without a thread, a start or a text are left out and counted; an unclosed range keeps the end that nsys gave
    it (the session's), a mark has none.
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
        _exclude(db, number, f"no column {lacking}", total)
        return
    wanted = [name for name in (*_INTEGERS, "text", "jsonText", "binaryData") if name in columns]
    kinds = f"eventType IN ({nsys.NVTX_MARK}, {nsys.NVTX_PUSH_POP}, {nsys.NVTX_START_END})"
    where = f"{kinds} AND (text IS NULL OR NOT {_OPERATOR})" if "text" in columns else kinds
    batches, report = source.texts(nsys.NVTX, wanted, where, blobs=("binaryData",))
    layout = read_layout(source)
    with incoming(db, _SCHEMA, (_plain(batch, wanted, layout, report) for batch in batches)):
        db.execute(_SQL["stage"], {"export": number, "shift_ns": shift_ns})
    _name_texts(source, db, number)
    _name_domains(source, db, number, columns)
    ((kept,),) = db.execute(_SQL["kept"], {"export": number}).fetchall()
    _exclude(db, number, "per-operator ranges of PyTorch, domain rows, other kinds", total - report.rows)
    _exclude(db, number, "no thread, start or text", report.rows - int(kept))
    wrong = sum(report.wrong_type_count.values())
    if wrong:
        named = ", ".join(f"{column} ({count})" for column, count in sorted(report.wrong_type_count.items()) if count)
        db.execute(
            "INSERT INTO raw_notice VALUES ('wrong-type', 'warning', ?, '', ?)",
            [f"{source.shown}: {nsys.NVTX} holds values that are not integers, read as missing: {named}", wrong],
        )


def _exclude(db: duckdb.DuckDBPyConnection, number: int, reason: str, rows: int) -> None:
    if rows:
        db.execute("INSERT INTO raw_excluded VALUES (?, ?, ?, ?)", [number, nsys.NVTX, reason, rows])


def _plain(batch: pa.RecordBatch, wanted: Sequence[str], layout: Layout, report: ReadReport) -> pa.RecordBatch:
    """A batch with the columns of `_SCHEMA`: integers as such, payloads as the two numbers that matter."""
    given = dict(zip(wanted, batch.columns, strict=True))
    nothing = pa.nulls(batch.num_rows, pa.int64())
    arrays = []
    for name in _INTEGERS:
        numbers, wrong = as_int64(given.get(name, nothing))
        arrays.append(numbers)
        if wrong:
            report.wrong_type_count[name] = report.wrong_type_count.get(name, 0) + wrong
    arrays.append(as_text(given["text"]) if "text" in given else pa.nulls(batch.num_rows, pa.string()))
    arrays += _payloads(given, layout, batch.num_rows)
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _payloads(given: Mapping[str, pa.Array], layout: Layout, rows: int) -> list[pa.Array]:
    """Communicator id and message size of each row; null where it has no payload."""
    filled = [name for name in ("jsonText", "binaryData") if name in given and given[name].null_count < rows]
    if not filled:
        return [pa.nulls(rows, pa.uint64()), pa.nulls(rows, pa.int64())]
    fields: list[dict[str, int]] = [{}] * rows
    for name in filled:
        for place, value in enumerate(given[name].to_pylist()):
            if value:
                said = decode_json(str(written(value))) if name == "jsonText" else layout.decode(as_bytes(value))
                fields[place] = fields[place] | said
    return [
        pa.array([one.get(COMMUNICATOR) for one in fields], pa.uint64()),
        pa.array([one.get(MESSAGE_BYTES) for one in fields], pa.int64()),
    ]


def _name_texts(source: Source, db: duckdb.DuckDBPyConnection, number: int) -> None:
    """Texts of the registered strings that staged rows use."""
    used = [int(one) for (one,) in db.execute(_SQL["used_texts"], {"export": number}).fetchall()]
    texts = strings(source, used)
    ids, values = pa.array(list(texts), pa.int64()), pa.array(list(texts.values()), pa.string())
    _fill(db, "ranges.nvtx_text", {"export": _same(number, len(texts)), "text_id": ids, "text": values})


def _name_domains(source: Source, db: duckdb.DuckDBPyConnection, number: int, columns: dict[str, str]) -> None:
    """(process, domain id) -> name. Ids are given per process, in the order in which domains were made."""
    if "domainId" not in columns:
        return
    picked = [name for name in ("globalTid", "domainId", "text", "textId") if name in columns]
    rows = [
        dict(zip(picked, row, strict=True))
        for row in source.select(nsys.NVTX, picked, f"eventType = {nsys.NVTX_DOMAIN}")
    ]
    texts = strings(source, [one for row in rows if (one := whole(row.get("textId"))) is not None])
    named: dict[tuple[int, int], str] = {}
    for row in rows:
        thread, domain = whole(row["globalTid"]), whole(row["domainId"])
        text = written(row.get("text")) or texts.get(whole(row.get("textId")) or 0)
        if thread is not None and domain is not None and text is not None:
            named.setdefault((thread & ~0xFFFFFF, domain), text)
    _fill(
        db,
        "ranges.nvtx_domain",
        {
            "export": _same(number, len(named)),
            "process": pa.array([process for process, _ in named], pa.int64()),
            "domain": pa.array([domain for _, domain in named], pa.int64()),
            "name": pa.array(list(named.values()), pa.string()),
        },
    )


def _same(number: int, rows: int) -> pa.Array:
    return pa.array([number] * rows, pa.int32())


def _fill(db: duckdb.DuckDBPyConnection, table: str, columns: dict[str, pa.Array]) -> None:
    db.register("incoming", pa.table(columns))
    db.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")  # noqa: S608 - our own name
    db.unregister("incoming")
