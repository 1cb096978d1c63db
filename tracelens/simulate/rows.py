"""One export of a simulated capture: its rows, table by table, on the clocks that the export would show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.simulate.clocks import RankClock
from tracelens.simulate.columns import copy_memory_kinds, kernel_constants, short_name
from tracelens.simulate.events import Events
from tracelens.simulate.machine import MachineRows
from tracelens.simulate.ops import MEMCPY, MEMSET
from tracelens.simulate.owners import Owner, device_columns, owners
from tracelens.simulate.ranges import RangeRows
from tracelens.simulate.spec import CaptureSpec
from tracelens.simulate.timeline import Timeline
from tracelens.simulate.writer import ExportWriter, global_tid

Ints = npt.NDArray[np.int64]

CHUNK_ROWS = 200_000
"""Rows that are laid out at once: bounds the memory of a big export."""


def write_export(
    spec: CaptureSpec,
    timeline: Timeline,
    events: Events,
    period_ns: int,
    clocks: list[RankClock],
    path: Path,
    *,
    nsys_version: str,
    shuffle: int | None,
    shift_ns: int,
    normalize: bool,
) -> None:
    """Write the export that holds the ranks of `clocks`."""
    clock = clocks[0]
    who = owners(spec, [clock.rank for clock in clocks])
    with ExportWriter(
        path,
        nsys_version,
        shuffle=shuffle,
        shift_ns=shift_ns,
        normalize_ns=clock.utc_ns if normalize else 0,
    ) as writer:
        tables = _Tables(spec, timeline, events, period_ns, writer)
        machine = MachineRows(spec, events, writer)
        for owner, rank_clock in zip(who, clocks, strict=True):
            tables.rank(owner, rank_clock)
            machine.rank(owner, rank_clock)
        machine.machine(who, clock, tables.last_ns)


class _Tables:
    """Writes the tables of one export."""

    def __init__(
        self,
        spec: CaptureSpec,
        timeline: Timeline,
        events: Events,
        period_ns: int,
        writer: ExportWriter,
    ) -> None:
        self.spec = spec
        self.timeline = timeline
        self.events = events
        self.period_ns = period_ns
        self.writer = writer
        self.ranges = RangeRows(spec, timeline, events, writer)
        self.last_ns = 0
        ops = events.ops
        self.op_kind = np.array([op.kind for op in ops])
        self.op_stream = np.array([op.stream for op in ops])
        self.op_bytes = np.array([op.bytes for op in ops])
        self.op_copy = np.array([op.copy_kind for op in ops])
        self.op_grid = np.array([op.grid for op in ops])
        self.op_block = np.array([op.block for op in ops])
        self.op_attention = np.array([op.bucket == "attention" for op in ops])
        kernels = [op.kind == 0 for op in ops]
        names = {op.name: writer.string(op.name) for op in ops if op.kind == 0}
        shorts = {name: writer.string(short_name(name)) for name in names}
        self.op_name = np.array([names[op.name] if k else 0 for op, k in zip(ops, kernels, strict=True)])
        self.op_short = np.array([shorts[op.name] if k else 0 for op, k in zip(ops, kernels, strict=True)])
        plans = [timeline.programs[p].launches[n] for p, n in events.launch_plan]
        self.launch_api = writer.strings([plan.api for plan in plans])
        # node ids: the graph in the high half, the place inside it in the low one
        place = np.arange(events.count) - np.maximum.accumulate(
            np.where(np.diff(events.launch, prepend=-1) != 0, np.arange(events.count), 0)
        )
        self.node = (events.graph << 32) + place

    def rank(self, owner: Owner, clock: RankClock) -> None:
        """All rows of one rank."""
        spec, events, rank = self.spec, self.events, owner.rank
        rows = np.flatnonzero(events.kept[rank])
        hidden = np.zeros(0, np.int64)
        if spec.graph_capture == "graph":
            hidden = rows[events.graph[rows] >= 0]
            rows = rows[events.graph[rows] < 0]
        launches = self._launched(rank)
        for block in range(spec.repeat):
            shift = block * self.period_ns
            launch_shift = block * len(events.launch_plan)
            for at in range(0, len(rows), CHUNK_ROWS):
                self._gpu_rows(owner, clock, rows[at : at + CHUNK_ROWS], shift, launch_shift)
            if len(hidden):
                self._graph_rows(owner, clock, hidden, shift, launch_shift)
            self._launches(owner, clock, launches, shift, launch_shift)
            self.ranges.rank(owner, clock, shift, block)

    def _correlation(self, owner: Owner, launch: Ints) -> Ints:
        # three ids apart: other API calls take the ones between
        return owner.correlation_base + 3 * owner.correlation_step * launch

    def _device(self, owner: Owner, clock: RankClock, start: Ints, end: Ints) -> dict[str, Any]:
        columns = device_columns(owner, clock, start, end)
        self.last_ns = max(self.last_ns, int(columns["end"].max(initial=0)))
        return columns

    def _gpu_rows(self, owner: Owner, clock: RankClock, rows: Ints, shift: int, launch_shift: int) -> None:
        events = self.events
        op = events.op[rows]
        graph = events.graph[rows]
        outside = graph < 0
        common = self._device(
            owner, clock, events.start[owner.rank, rows] + shift, events.end[owner.rank, rows] + shift
        )
        columns: dict[str, Any] = {
            "streamId": self.op_stream[op],
            "correlationId": self._correlation(owner, events.launch[rows] + launch_shift),
            "graphNodeId": np.ma.MaskedArray(self.node[rows] + 1_000 + 17 * owner.rank, mask=outside),
        }
        kind = self.op_kind[op]
        for table, number in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", 0),
            ("CUPTI_ACTIVITY_KIND_MEMCPY", MEMCPY),
            ("CUPTI_ACTIVITY_KIND_MEMSET", MEMSET),
        ):
            hit = kind == number
            count = int(hit.sum())
            if not count:
                continue
            part = {
                name: value[hit] if isinstance(value, np.ndarray) else value
                for name, value in (common | columns).items()
            }
            chosen = op[hit]
            if number == 0:
                part |= kernel_constants() | {
                    "demangledName": self.op_name[chosen],
                    "shortName": self.op_short[chosen],
                    "mangledName": self.op_short[chosen],
                    "graphId": np.ma.MaskedArray(graph[hit], mask=outside[hit]),
                }
                for axis, letter in enumerate("XYZ"):
                    part[f"grid{letter}"] = self.op_grid[chosen, axis]
                    part[f"block{letter}"] = self.op_block[chosen, axis]
                if self.spec.growth_ns:
                    # eager attention is split further as the context grows; a graph keeps the grid it was captured with
                    splits = events.step[rows][hit] // 32 * (outside[hit] & self.op_attention[chosen])
                    part["gridZ"] = part["gridZ"] + splits
            elif number == MEMCPY:
                kinds = self.op_copy[chosen]
                ends = np.array([copy_memory_kinds(int(kind)) for kind in kinds]).reshape(-1, 2)
                part |= {"bytes": self.op_bytes[chosen], "copyKind": kinds, "copyCount": 1}
                part |= {"srcKind": ends[:, 0], "dstKind": ends[:, 1]}
            else:
                part |= {"bytes": self.op_bytes[chosen], "memKind": 2}
            self.writer.insert(table, count, part)

    def _graph_rows(self, owner: Owner, clock: RankClock, rows: Ints, shift: int, launch_shift: int) -> None:
        events, rank = self.events, owner.rank
        launches, first = np.unique(events.launch[rows], return_index=True)
        begin = np.minimum.reduceat(events.start[rank, rows], first) + shift
        finish = np.maximum.reduceat(events.end[rank, rows], first) + shift
        graph = events.graph[rows][first]
        columns = {
            "streamId": events.stream[rows][first],
            "correlationId": self._correlation(owner, launches + launch_shift),
            "graphId": graph,
            "graphExecId": graph + 1,
        }
        self.writer.insert(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", len(launches), self._device(owner, clock, begin, finish) | columns
        )

    def _launched(self, rank: int) -> Ints:
        """Launches that the rank made and the capture holds."""
        ran = np.zeros(len(self.events.launch_plan), bool)
        ran[self.events.launch[self.events.executed[rank]]] = True
        ran[: int(self.spec.per_rank("lost_launches")[rank])] = False
        return np.flatnonzero(ran)

    def _launches(self, owner: Owner, clock: RankClock, launches: Ints, shift: int, launch_shift: int) -> None:
        events, rank = self.events, owner.rank
        begin = clock.to_session(events.launch_begin[rank, launches] + shift)
        finish = clock.to_session(events.launch_end[rank, launches] + shift)
        common: dict[str, Any] = {"eventClass": 0, "globalTid": global_tid(owner.pid, owner.tid), "returnValue": 0}
        for at in range(0, len(launches), CHUNK_ROWS):
            part = slice(at, at + CHUNK_ROWS)
            columns = {
                "start": begin[part],
                "end": finish[part],
                "correlationId": self._correlation(owner, launches[part] + launch_shift),
                "nameId": self.launch_api[launches[part]],
            }
            self.writer.insert("CUPTI_ACTIVITY_KIND_RUNTIME", len(launches[part]), common | columns)
        self._waits(owner, clock, common, shift, launch_shift)

    def _waits(self, owner: Owner, clock: RankClock, common: dict[str, Any], shift: int, launch_shift: int) -> None:
        """The host's wait for a read-back after each step's launches: of that step, or of the one before if it runs ahead."""
        timeline, rank, events = self.timeline, owner.rank, self.events
        last = np.cumsum([len(timeline.programs[step.program].launches) for step in timeline.steps]) - 1
        begin = events.launch_end[rank, last] + 300
        done = np.array(
            [
                int(step.end[rank, timeline.programs[step.program].read_back]) + self.spec.sync_ns
                for step in timeline.steps
            ]
        )
        if self.spec.host_ahead:
            ahead = np.array([not step.idle_after_ns for step in timeline.steps])
            done = np.where(ahead, np.concatenate([begin[:1], done[:-1]]), done)
        finish = np.maximum(done, begin + (150 if self.spec.host_ahead else 400))
        lost = int(self.spec.per_rank("lost_launches")[rank])
        use = last >= lost
        columns: dict[str, Any] = {
            "start": clock.to_session(begin + shift)[use],
            "end": clock.to_session(finish + shift)[use],
            "correlationId": (self._correlation(owner, last + launch_shift) + owner.correlation_step)[use],
            "nameId": self.writer.string("cudaEventSynchronize_v3020"),
        }
        self.writer.insert("CUPTI_ACTIVITY_KIND_RUNTIME", int(use.sum()), common | columns)
        if use.any():
            self.last_ns = max(self.last_ns, int(columns["end"].max()))
