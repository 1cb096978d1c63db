"""NCCL's typed NVTX payloads: which communicator an operation belongs to, and how many bytes it moved.

NCCL 2.25 and later puts a communicator id, equal on all its ranks, first into every payload; before that, only the
size. nsys exports the payload as JSON text (`--include-json=true`) or as bytes (`--include-blobs=true`), else not at
all. Fields are found by name: their types and the id of the reduction enum moved between NCCL releases.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

from tracelens.ingest import nsys
from tracelens.ingest.sources import Source

COMMUNICATOR = "NCCL communicator ID"
MESSAGE_BYTES = "Message size [bytes]"
RANK = "Rank"
RANKS = "No. of ranks"

#: Little-endian header before the payload's own bytes: domain, schema, size and offset, eight bytes each.
_HEADER = struct.Struct("<4Q")
#: Bytes of the payload entry types that NCCL uses: int32, uint64, size_t.
_FORMATS = {5: "<i", 18: "<Q", 22: "<Q"}


@dataclass(frozen=True)
class Layout:
    """Where the known fields of each payload schema stand: schema id -> field name -> (byte offset, struct format)."""

    fields: dict[int, dict[str, tuple[int, str]]]

    def decode(self, blob: bytes) -> dict[str, int]:
        """The known fields of one binary payload; what does not fit gives nothing rather than a guess."""
        if len(blob) < _HEADER.size:
            return {}
        _, schema, size, _ = _HEADER.unpack_from(blob)
        body = blob[_HEADER.size :]
        if size > len(body):
            return {}
        found: dict[str, int] = {}
        for name, (offset, form) in self.fields.get(schema, {}).items():
            if offset + struct.calcsize(form) <= len(body):
                found[name] = int(struct.unpack_from(form, body, offset)[0])
        return found


def read_layout(source: Source) -> Layout:
    """The payload schemas of an export; its rows repeat once per process and carry no process, so they are merged."""
    fields: dict[int, dict[str, tuple[int, str]]] = {}
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if {"schemaId", "name", "type", "offset"} <= set(source.columns(table)):
        for schema, name, kind, offset in source.select(table, ("schemaId", "name", "type", "offset")):
            if name in (COMMUNICATOR, MESSAGE_BYTES, RANK, RANKS) and kind in _FORMATS:
                fields.setdefault(int(schema), {})[str(name)] = (int(offset or 0), _FORMATS[int(kind)])
    return Layout(fields)


def decode_json(text: str) -> dict[str, int]:
    """The known fields of one JSON payload; text that is no JSON object gives nothing."""
    try:
        values = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(values, dict):
        return {}
    found: dict[str, int] = {}
    for name in (COMMUNICATOR, MESSAGE_BYTES, RANK, RANKS):
        try:
            found[name] = int(values[name])
        except (KeyError, TypeError, ValueError):
            continue
    return found


def as_bytes(value: Any) -> bytes:
    """A binary payload as SQLite hands it over: bytes, or text that holds bytes (the column is declared TEXT)."""
    if isinstance(value, bytes):
        return value
    return str(value).encode("latin-1", "replace")


def communicator_ranks(source: Source) -> list[tuple[int, str, int, int | None]]:
    """Ranks that processes took in their communicators: rows of (process id, `nccl`, rank, number of ranks)."""
    columns = source.columns(nsys.NVTX)
    payloads = [name for name in ("jsonText", "binaryData") if name in columns]
    if not payloads or not {"textId", "globalTid"} <= set(columns) or not source.columns(nsys.STRINGS):
        return []
    inits = [int(one) for (one,) in source.select(nsys.STRINGS, ("id",), "value LIKE 'ncclCommInitRank%'")]
    if not inits:
        return []
    layout = read_layout(source)
    listed = ", ".join(map(str, inits))
    rows: set[tuple[int, str, int, int | None]] = set()
    for thread, *values in source.select(nsys.NVTX, ("globalTid", *payloads), f"textId IN ({listed})"):
        fields: dict[str, int] = {}
        for name, value in zip(payloads, values, strict=True):
            if value is not None:
                fields |= decode_json(str(value)) if name == "jsonText" else layout.decode(as_bytes(value))
        if thread is not None and RANK in fields:
            rows.add((nsys.pid_of(int(thread)), "nccl", fields[RANK], fields.get(RANKS)))
    return sorted(rows, key=lambda row: (row[0], row[3] or 0, row[2]))
