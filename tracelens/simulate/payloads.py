"""NCCL's typed range payloads, as exports carry them: bytes, and the schema that explains them."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from tracelens.simulate.drawn import Row


def nccl_payload(fields: Mapping[str, int], schema_id: int, domain_id: int) -> bytes:
    """The fields as a payload of that schema: a header of four u64, then each field in 8 bytes (4 for ranks)."""
    body = b""
    for name, value in fields.items():
        body += struct.pack("<q" if value < 0 else "<Q", value) if _wide(name) else struct.pack("<i", value)
    return struct.pack("<4Q", domain_id, schema_id, len(body), 32 + len(body)) + body


def payload_schema_rows(fields: Mapping[str, int], schema_id: int, domain_id: int) -> tuple[Row, list[Row]]:
    """The rows that describe such a payload: its schema and the schema's entries."""
    entries, offset = [], 0
    for index, name in enumerate(fields):
        kind = 18 if "ommunicator ID" in name else 22 if _wide(name) else 5
        entries.append(
            Row(
                "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                {
                    "domainId": domain_id,
                    "schemaId": schema_id,
                    "idx": index,
                    "type": kind,
                    "name": name,
                    "offset": offset or None,
                },
            )
        )
        offset += 8 if _wide(name) else 4
    schema = {
        "domainId": domain_id,
        "schemaId": schema_id,
        "type": 1,
        "numEntries": len(entries),
        "payloadSize": offset,
    }
    return Row("NVTX_PAYLOAD_SCHEMAS", schema), entries


def _wide(name: str) -> bool:
    return "ommunicator ID" in name or "bytes" in name
