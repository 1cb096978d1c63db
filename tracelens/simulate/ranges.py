"""The NVTX rows of a simulated export: the engine's steps, modules, NCCL calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.simulate.clocks import RankClock
from tracelens.simulate.events import Events
from tracelens.simulate.ops import ALL_GROUP
from tracelens.simulate.owners import Owner
from tracelens.simulate.payloads import nccl_payload, payload_schema_rows
from tracelens.simulate.spec import CaptureSpec
from tracelens.simulate.timeline import Timeline
from tracelens.simulate.writer import ExportWriter, global_tid

NCCL_RANGES = {
    "all_reduce": ("ncclAllReduce", 5),
    "all_gather": ("ncclAllGather", 4),
    "reduce_scatter": ("ncclReduceScatter", 7),
    "broadcast": ("ncclBroadcast", 6),
    "send_recv": ("ncclSend", 9),
}
SCHEMA_BASE = 16_777_216
COMMUNICATOR_BASE = 0xC0DE_5EED_0000_1000
"""Communicator ids use the sign bit of 64, as NCCL's hashes do half the time."""


class RangeRows:
    """Writes the ranges of one export, rank by rank."""

    def __init__(self, spec: CaptureSpec, timeline: Timeline, events: Events, writer: ExportWriter) -> None:
        self.spec = spec
        self.timeline = timeline
        self.events = events
        self.writer = writer

    def rank(self, owner: Owner, clock: RankClock, shift: int, block: int) -> None:
        """All ranges of one rank in one repetition of the block."""
        spec, timeline, rank = self.spec, self.timeline, owner.rank
        tid = global_tid(owner.pid, owner.tid)
        if spec.nvtx == "engine":
            begin = np.array([int(step.iteration_begin[rank]) for step in timeline.steps]) + shift
            finish = np.array([int(step.range_end[rank]) for step in timeline.steps]) + shift
            number = block * len(begin) + np.arange(len(begin))
            texts = [
                timeline.programs[step.program].range_text.replace("{i}", str(i))
                for i, step in zip(number, timeline.steps, strict=True)
            ]
            columns: dict[str, Any] = {
                "start": clock.to_session(begin),
                "end": clock.to_session(finish),
                "eventType": spec.nvtx_type,
                "globalTid": tid,
                "domainId": 0,
            }
            if spec.nvtx_registered:
                columns["textId"] = self.writer.strings(texts)
            else:
                columns["text"] = texts
            if spec.nvtx_type == 60:
                columns |= {"endGlobalTid": tid, "rangeId": number + 1}
            self.writer.insert("NVTX_EVENTS", len(begin), columns)
        if spec.nvtx_inner:
            self._inner_ranges(owner, clock, shift)
        if spec.nccl_ranges:
            self._nccl_ranges(owner, clock, shift, block)

    def _inner_ranges(self, owner: Owner, clock: RankClock, shift: int) -> None:
        events = self.events
        begin = clock.to_session(events.launch_begin[owner.rank] + shift)
        finish = clock.to_session(events.launch_end[owner.rank] + shift)
        for depth in range(self.spec.nvtx_inner):
            columns: dict[str, Any] = {
                "start": begin - 40 * (self.spec.nvtx_inner - depth),
                "end": finish + 40 * (self.spec.nvtx_inner - depth),
                "eventType": 59,
                "globalTid": global_tid(owner.pid, owner.tid),
                "domainId": 0,
            }
            # Half as registered strings, half spelt in the row, as libraries do one or the other.
            if depth % 2:
                columns["text"] = f"module.{depth}"
            else:
                columns["textId"] = self.writer.string(f"module.{depth}")
            self.writer.insert("NVTX_EVENTS", len(begin), columns)

    def _nccl_ranges(self, owner: Owner, clock: RankClock, shift: int, block: int) -> None:
        """Host-side ranges of eager NCCL calls, and of the communicators' creation."""
        events, rank = self.events, owner.rank
        nccl = np.array(
            [bool(op.family and op.family.nccl and op.family.operation in NCCL_RANGES) for op in events.ops]
        )
        rows = np.flatnonzero(nccl[events.op] & (events.graph < 0))
        made = any(op.family is not None and op.family.nccl for op in events.ops)
        if not made:
            return
        tid = global_tid(owner.pid, owner.tid)
        if block == 0:
            self._communicators(owner, clock, tid)
        if not len(rows):
            return
        launch = events.launch[rows]
        op = events.op[rows]
        texts, payloads = {}, {}
        for number in np.unique(op):
            family = events.ops[number].family
            name, schema = NCCL_RANGES[family.operation if family else "all_reduce"]
            texts[number] = self.writer.string(name)
            fields = {
                "NCCL communicator ID": self._communicator(rank, events.ops[number].group),
                "Message size [bytes]": events.ops[number].bytes,
            }
            payloads[number] = self._payload(owner, fields, SCHEMA_BASE + schema)
        columns: dict[str, Any] = {
            "start": clock.to_session(events.launch_begin[rank, launch] + shift) - 600,
            "end": clock.to_session(events.launch_end[rank, launch] + shift) + 200,
            "eventType": 59,
            "globalTid": tid,
            "domainId": owner.nccl_domain,
            "textId": np.array([texts[number] for number in op]),
        }
        for name in ("jsonText", "binaryData"):
            values = [payloads[number].get(name) for number in op]
            if any(value is not None for value in values):
                columns[name] = values
        self.writer.insert("NVTX_EVENTS", len(rows), columns)

    def _communicators(self, owner: Owner, clock: RankClock, tid: int) -> None:
        spec, rank = self.spec, owner.rank
        self.writer.insert(
            "NVTX_EVENTS",
            owner.nccl_domain,
            {
                "start": -1_957_198_520,
                "eventType": 75,
                "text": ["CCCL", "NCCL"][-owner.nccl_domain :],
                "globalTid": tid,
                "domainId": np.arange(1, owner.nccl_domain + 1),
            },
        )
        groups = [(0, spec.tp, rank % spec.tp)] if spec.tp > 1 else []
        if spec.ep and spec.dp > 1:
            groups.append((ALL_GROUP, spec.ranks, rank))
        for place, (group, members, own) in enumerate(groups):
            fields = {
                "NCCL communicator ID": self._communicator(rank, group),
                "No. of ranks": members,
                "Rank": own,
                "CUDA device": owner.device,
            }
            begin = int(clock.to_session(spec.start_ns - 400_000_000 + 20_000_000 * place + 10_000 * rank))
            self.writer.insert(
                "NVTX_EVENTS",
                1,
                {
                    "start": begin,
                    "end": begin + 15_000_000,
                    "eventType": 59,
                    "globalTid": tid,
                    "domainId": owner.nccl_domain,
                    "textId": self.writer.string("ncclCommInitRankConfig"),
                    **{name: [value] for name, value in self._payload(owner, fields, SCHEMA_BASE + 11).items()},
                },
            )

    def _communicator(self, rank: int, group: int) -> int:
        number = self.spec.dp if group == ALL_GROUP and self.spec.dp > 1 else rank // self.spec.tp
        return COMMUNICATOR_BASE + 0x1F3 * number

    def _payload(self, owner: Owner, fields: dict[str, int], schema: int) -> dict[str, Any]:
        chosen = self.spec.nccl_payload
        payload: dict[str, Any] = {}
        if chosen in ("json", "both"):
            payload["jsonText"] = "{" + ", ".join(f'"{name}":{value}' for name, value in fields.items()) + "}"
        if chosen in ("binary", "both") and self.writer.has("NVTX_EVENTS", "binaryData"):
            payload["binaryData"] = nccl_payload(fields, schema, owner.nccl_domain)
            head, entries = payload_schema_rows(fields, schema, owner.nccl_domain)
            self.writer.insert_rows(head.table, [dict(head.values)])
            self.writer.insert_rows("NVTX_PAYLOAD_SCHEMA_ENTRIES", [dict(entry.values) for entry in entries])
        return payload
