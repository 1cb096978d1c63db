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
from tracelens.ingest.values import whole, written

COMMUNICATOR = "NCCL communicator ID"
MESSAGE_BYTES = "Message size [bytes]"
RANK = "Rank"
RANKS = "No. of ranks"

#: Little-endian header before the payload's own bytes: domain, schema, size and offset, eight bytes each.
_HEADER = struct.Struct("<4Q")
#: Bytes of the payload entry types that NCCL uses: int32, uint64, size_t.
_FORMATS = {5: "<i", 18: "<Q", 22: "<Q"}
_MOST_BYTES = 1 << 20
_LONGEST_NUMBER = 20
_MOST_RANKS = 1 << 20
_LARGEST = {COMMUNICATOR: 2**64 - 1}
_LARGEST_OTHER = 2**63 - 1


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
        return _possible(found)


def read_layout(source: Source) -> Layout:
    """The payload schemas of an export; its rows repeat once per process and carry no process, so they are merged."""
    fields: dict[int, dict[str, tuple[int, str]]] = {}
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if {"schemaId", "name", "type", "offset"} <= set(source.columns(table)):
        for schema, name, kind, offset in source.select(table, ("schemaId", "name", "type", "offset")):
            number, begin = whole(schema), 0 if offset is None else whole(offset)
            if (
                name in (COMMUNICATOR, MESSAGE_BYTES, RANK, RANKS)
                and kind in _FORMATS
                and number is not None
                and begin is not None
                and 0 <= begin < _MOST_BYTES
            ):
                fields.setdefault(number, {})[str(name)] = (begin, _FORMATS[kind])
    return Layout(fields)


def decode_json(text: str) -> dict[str, int]:
    """The known fields of one JSON payload; text that is no JSON object gives nothing."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    found: dict[str, int] = {}
    for name in (COMMUNICATOR, MESSAGE_BYTES, RANK, RANKS):
        value = values.get(name)
        if isinstance(value, str) and len(value) <= _LONGEST_NUMBER and value.isascii() and value.isdigit():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            found[name] = value
    return _possible(found)


def _possible(fields: dict[str, int]) -> dict[str, int]:
    """The fields that fit their columns: a communicator id has 64 bits, and no size or rank is negative."""
    return {name: value for name, value in fields.items() if 0 <= value <= _LARGEST.get(name, _LARGEST_OTHER)}


def as_bytes(value: Any) -> bytes:
    """A binary payload as SQLite hands it over: bytes, or text that holds bytes (the column is declared TEXT)."""
    if isinstance(value, bytes):
        return value
    return str(value).encode("latin-1", "replace")


def communicator_ranks(source: Source) -> list[tuple[int, str, int, int | None, int | None, int | None]]:
    """Ranks that processes took in their communicators.

    Returns:
        rows of (globalPid, `nccl`, rank, number of ranks, communicator id, when its creation began), without repeats.
    """
    columns = source.columns(nsys.NVTX)
    payloads = [name for name in ("jsonText", "binaryData") if name in columns]
    if not payloads or "globalTid" not in columns:
        return []
    named = []
    if "textId" in columns and {"id", "value"} <= set(source.columns(nsys.STRINGS)):
        found = source.select(nsys.STRINGS, ("id",), "value LIKE 'ncclCommInitRank%'")
        inits = [number for (one,) in found if (number := whole(one)) is not None]
        if inits:
            named.append(f"textId IN ({', '.join(map(str, inits))})")
    if "text" in columns:
        named.append("text LIKE 'ncclCommInitRank%'")
    if not named:
        return []
    layout = read_layout(source)
    start = ["start"] if "start" in columns else []
    rows: set[tuple[int, str, int, int | None, int | None, int | None]] = set()
    for thread, *values in source.select(nsys.NVTX, ("globalTid", *payloads, *start), " OR ".join(named)):
        fields: dict[str, int] = {}
        for name, value in zip(payloads, values, strict=False):
            if value is not None:
                fields |= decode_json(str(written(value))) if name == "jsonText" else layout.decode(as_bytes(value))
        tid, rank, size = whole(thread), fields.get(RANK), fields.get(RANKS)
        if tid is None or rank is None or not 0 <= rank < (size or _MOST_RANKS):
            continue
        begun = whole(values[-1]) if start else None
        rows.add((tid & ~0xFFFFFF, "nccl", rank, size, fields.get(COMMUNICATOR), begun))
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row])
