"""One export of a simulated capture: its rows, table by table, on the clocks that the export would show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.simulate.clocks import RankClock
from tracelens.simulate.events import Events
from tracelens.simulate.export_file import (
    DRIVER,
    copy_memory_kinds,
    gpu_row,
    gpu_uuid,
    kernel_constants,
    nccl_payload,
    old_gpu_row,
    payload_schema_rows,
    short_name,
)
from tracelens.simulate.program import ALL_GROUP, MEMCPY, MEMSET
from tracelens.simulate.spec import CaptureSpec
from tracelens.simulate.timeline import Timeline
from tracelens.simulate.writer import ExportWriter, global_pid, global_tid

Ints = npt.NDArray[np.int64]

CHUNK_ROWS = 200_000
FIRST_PID = 2_000
FOREIGN_PID = 1_777
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


@dataclass(frozen=True)
class Owner:
    """Who a rank is in its export: process, device as the process sees it, GPU of the machine."""

    rank: int
    pid: int
    device: int
    gpu: int
    context: int
    correlation_step: int
    correlation_base: int

    @property
    def nccl_domain(self) -> int:
        """The process's number of the NCCL domain: odd ranks made another domain before."""
        return 1 + self.rank % 2

    @property
    def tid(self) -> int:
        """The launching thread: the process's main one, or one per GPU when a process drives several."""
        return self.pid if self.correlation_step == 1 else self.pid + self.rank


def owners(spec: CaptureSpec, ranks: list[int]) -> list[Owner]:
    """The owner of each rank of one export."""
    found = []
    for rank in ranks:
        # one export is one machine, however many GPUs it then has
        gpu = rank if len(ranks) > 1 else rank % spec.ranks_per_host
        pid = FIRST_PID if spec.one_process else FIRST_PID + 7 * rank
        device = 0 if spec.visible_devices else gpu
        shared = spec.one_process and len(ranks) > 1
        found.append(
            Owner(
                rank=rank,
                pid=pid,
                device=device,
                gpu=gpu,
                context=1 + (gpu if shared else int(spec.side_contexts and device > 0)),
                correlation_step=len(ranks) if shared else 1,
                # processes count for themselves: the same ids turn up in several of them
                correlation_base=10_000 + (ranks.index(rank) if shared else 13 * rank),
            )
        )
    return found


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
    writer = ExportWriter(
        path,
        nsys_version,
        shuffle=shuffle,
        shift_ns=shift_ns,
        normalize_ns=clock.utc_ns if normalize else 0,
    )
    who = owners(spec, [clock.rank for clock in clocks])
    tables = _Tables(spec, timeline, events, period_ns, writer, len(who))
    for owner, rank_clock in zip(who, clocks, strict=True):
        tables.rank(owner, rank_clock)
    tables.machine(who, clock)
    writer.close()


class _Tables:
    """Writes the tables of one export."""

    def __init__(
        self,
        spec: CaptureSpec,
        timeline: Timeline,
        events: Events,
        period_ns: int,
        writer: ExportWriter,
        rank_count: int,
    ) -> None:
        self.spec = spec
        self.timeline = timeline
        self.events = events
        self.period_ns = period_ns
        self.writer = writer
        self.rank_count = rank_count
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
            self._ranges(owner, clock, shift, block)
        self._identity(owner, clock)

    def _correlation(self, owner: Owner, launch: Ints) -> Ints:
        # three ids apart: other API calls take the ones between
        return owner.correlation_base + 3 * owner.correlation_step * launch

    def _device(self, owner: Owner, clock: RankClock, start: Ints, end: Ints) -> dict[str, Any]:
        begin, finish = clock.to_local(start), clock.to_local(end)
        if len(finish):
            self.last_ns = max(self.last_ns, int(finish.max()))
        return {
            "start": begin,
            "end": finish,
            "deviceId": owner.device,
            "contextId": owner.context,
            "greenContextId": 0,
            "globalPid": global_pid(owner.pid),
        }

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
        """The host's wait for each step's read-back."""
        timeline, rank, events = self.timeline, owner.rank, self.events
        if self.spec.host_ahead:
            return
        last = np.cumsum([len(timeline.programs[step.program].launches) for step in timeline.steps]) - 1
        begin = events.launch_end[rank, last] + 300
        done = [
            int(step.end[rank, timeline.programs[step.program].read_back]) + self.spec.sync_ns
            for step in timeline.steps
        ]
        finish = np.maximum(np.array(done), begin + 400)
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

    def _ranges(self, owner: Owner, clock: RankClock, shift: int, block: int) -> None:
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
        texts = self.writer.strings([f"module.{depth}" for depth in range(self.spec.nvtx_inner)])
        for depth in range(self.spec.nvtx_inner):
            columns = {
                "start": begin - 40 * (self.spec.nvtx_inner - depth),
                "end": finish + 40 * (self.spec.nvtx_inner - depth),
                "eventType": 59,
                "globalTid": global_tid(owner.pid, owner.tid),
                "domainId": 0,
                "textId": texts[depth],
            }
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
            begin = clock.to_session(spec.start_ns - 400_000_000 + 20_000_000 * place + 10_000 * rank)
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

    def _identity(self, owner: Owner, clock: RankClock) -> None:
        """Titles, side contexts and impossible rows of one rank."""
        spec, rank, writer = self.spec, owner.rank, self.writer
        if spec.titles == "worker" and not spec.one_process:
            writer.insert(
                "ThreadNames",
                2,
                {
                    "nameId": writer.strings([title(spec, rank), "cuda-EvtHandlr"]),
                    "priority": 10,
                    "globalTid": np.array([global_tid(owner.pid, owner.pid), global_tid(owner.pid, owner.pid + 3)]),
                },
            )
        kernel = {"demangledName": int(self.op_name.max()), "shortName": int(self.op_short.max())}
        shape = {"gridX": 1, "gridY": 1, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1}
        if spec.side_contexts and owner.device > 0:
            start = spec.start_ns - 200_000_000 + 10_000 * np.arange(3)
            text = writer.string("void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<int>>")
            columns = self._device(owner, clock, start, start + 1_600) | kernel_constants() | shape
            columns |= {"deviceId": 0, "contextId": 1, "streamId": 7, "demangledName": text, "shortName": text}
            columns["correlationId"] = 100 + np.arange(3)
            writer.insert("CUPTI_ACTIVITY_KIND_KERNEL", 3, columns)
        if spec.bad_rows:
            good = int(clock.to_local(self.timeline.steps[0].start[rank, 0]))
            shapes = [(0, 0), (good + 900, good), (1 << 62, (1 << 62) + 500), (-(1 << 63), -(1 << 63) + 1)]
            chosen = [shapes[i % len(shapes)] for i in range(spec.bad_rows)]
            columns = {
                "start": [a for a, _ in chosen],
                "end": [b for _, b in chosen],
                "deviceId": owner.device,
                "contextId": owner.context,
                "streamId": 7,
                "globalPid": global_pid(owner.pid),
                "correlationId": 2 + np.arange(spec.bad_rows),
            }
            held, writer.shift_ns = writer.shift_ns, 0
            normalized, writer.normalize_ns = writer.normalize_ns, 0
            writer.insert("CUPTI_ACTIVITY_KIND_KERNEL", spec.bad_rows, columns | kernel | kernel_constants() | shape)
            writer.shift_ns, writer.normalize_ns = held, normalized

    def machine(self, who: list[Owner], clock: RankClock) -> None:
        """Processes, GPUs, environment, session and metadata of the export."""
        spec, writer = self.spec, self.writer
        if spec.foreign_process:
            self._foreign(who[0], clock)
        pids = sorted({owner.pid for owner in who})
        writer.insert(
            "PROCESSES",
            len(pids) + 1,
            {
                "globalPid": np.array([global_pid(pid) for pid in [990, *pids]]),
                "pid": np.array([990, *pids]),
                "name": ["bash"] + ["python3"] * len(pids),
            },
        )
        if spec.foreign_process:
            row = {"globalPid": global_pid(FOREIGN_PID), "pid": FOREIGN_PID, "name": "other_job"}
            writer.insert_rows("PROCESSES", [row])
        host = f"node{clock.host}"
        used: set[int] = set()
        for owner in who:
            gpu = gpu_uuid(owner.gpu + 16 * clock.host)
            if owner.gpu not in used:
                used.add(owner.gpu)
                writer.insert_rows("TARGET_INFO_GPU", [gpu_row(owner.gpu, spec.gpu_name, gpu)])
            writer.insert_rows("TARGET_INFO_CUDA_GPU", [old_gpu_row(owner.device, spec.gpu_name, owner.pid)])
            mapping = {"gpuId": owner.gpu, "cudaId": owner.device, "pid": owner.pid, "uuid": gpu}
            writer.insert_rows("TARGET_INFO_CUDA_DEVICE", [mapping | {"numMultiprocessors": 132}])
            context: dict[str, Any] = {"hwId": 0, "vmId": 1, "processId": owner.pid, "deviceId": owner.device}
            context |= {"contextId": owner.context, "nullStreamId": 7, "streamId": 7, "isGreenContext": 0}
            writer.insert_rows("TARGET_INFO_CUDA_CONTEXT_INFO", [context])
            writer.insert_rows("TARGET_INFO_CUDA_NULL_STREAM", [context])
        duration = self.last_ns + 50_000_000
        writer.session(clock.utc_ns, clock.system_clock_ns, duration, host, DRIVER)
        self._environment(who)
        mode = "Graph" if spec.graph_capture == "graph" else "Node"
        capture = [
            ("CAPTURE_EVENT_TYPE", "Cuda"),
            ("CAPTURE_EVENT_TYPE", "NvtxEvents"),
            ("CUDA_GRAPH_TRACE_OPTIONS:MODE", mode),
            ("CUDA_TRACE_SCOPE", "ProcessTree"),
            ("DISABLE_TIME_SYNC", "false"),
        ]
        if spec.rank_env:
            for place, owner in enumerate(who):
                capture += [
                    (f"PROCESS_{place}:ENVIRONMENT_VARIABLE", text) for text in rank_environment(spec, owner.rank)
                ]
        capture += [("PROCESS_0:ENVIRONMENT_VARIABLE", f"API_KEY_{i}={text}") for i, text in enumerate(spec.secrets)]
        capture += [("PROCESS_0:COMMAND", f"/home/{text}/bin/python3") for text in spec.secrets[:1]]
        capture += [(f"PROCESS_0:ARGUMENT_{i}", f"--token={text}") for i, text in enumerate(spec.secrets)]
        export = {"EXPORT_PARAM_INPUT_PATH_ABS": f"/home/{spec.secrets[0]}/run.nsys-rep"} if spec.secrets else {}
        writer.metadata(clock.utc_ns, host=host, capture=capture, export=export)
        if writer.version.generation >= 3:
            text = ["Profiling has started.", "Common injection library initialized successfully."]
            text += [f"Process was launched as: python3 serve.py --token={secret}" for secret in spec.secrets]
            writer.insert(
                "DIAGNOSTIC_EVENT",
                len(text),
                {
                    "timestamp": 900_000 * np.arange(len(text)),
                    "timestampType": 1,
                    "source": 1,
                    "severity": 1,
                    "text": text,
                },
            )

    def _environment(self, who: list[Owner]) -> None:
        spec, rows = self.spec, []
        for owner in who:
            variables = rank_environment(spec, owner.rank) if spec.rank_env else []
            rows += [("DeviceEnvironment", text) for text in variables]
        rows += [("DeviceEnvironment", f"SECRET_{i}={text}") for i, text in enumerate(spec.secrets)]
        rows += [("UserName", text) for text in spec.secrets[:1]]
        if rows:
            self.writer.insert(
                "TARGET_INFO_SYSTEM_ENV",
                len(rows),
                {
                    "globalVid": 1 << 48,
                    "devStateName": "Local (CLI)",
                    "nameEnum": 700,
                    "name": [name for name, _ in rows],
                    "value": [value for _, value in rows],
                },
            )

    def _foreign(self, owner: Owner, clock: RankClock) -> None:
        """An unrelated process that now and then uses the first GPU."""
        count, rng = 50, np.random.default_rng([self.spec.seed, 9])
        first, last = int(self.events.start.min()), int(self.events.end.max())
        start = np.sort(rng.integers(first, last, count))
        name = self.writer.string("void render::blit_kernel(float *, int)")
        columns = self._device(owner, clock, start, start + 3_000) | kernel_constants()
        columns |= {"globalPid": global_pid(FOREIGN_PID), "contextId": 1, "streamId": 7, "deviceId": owner.gpu}
        columns |= {"demangledName": name, "shortName": self.writer.string("blit_kernel")}
        columns |= {"correlationId": 50 + np.arange(count), "gridX": 64, "gridY": 1, "gridZ": 1}
        self.writer.insert("CUPTI_ACTIVITY_KIND_KERNEL", count, columns | {"blockX": 256, "blockY": 1, "blockZ": 1})
        self.writer.insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            count,
            {
                "start": clock.to_session(start - 9_000),
                "end": clock.to_session(start - 4_000),
                "globalTid": global_tid(FOREIGN_PID, FOREIGN_PID),
                "correlationId": 50 + np.arange(count),
                "nameId": self.writer.string("cudaLaunchKernel_v7000"),
            },
        )


def title(spec: CaptureSpec, rank: int) -> str:
    """What the engine calls the process of a rank."""
    replica, member = divmod(rank, spec.tp)
    parts = (f"DP{replica}_" if spec.dp > 1 else "") + f"TP{member}"
    if spec.engine == "sglang":
        return f"sglang::scheduler_{parts}"
    return f"VLLM::Worker_{parts}" if spec.engine == "vllm" else f"trtllm-worker_{parts}"


def rank_environment(spec: CaptureSpec, rank: int) -> list[str]:
    """The launcher's variables of a rank."""
    local = rank % spec.ranks_per_host
    if spec.engine == "trtllm":
        return [f"OMPI_COMM_WORLD_RANK={rank}", f"OMPI_COMM_WORLD_SIZE={spec.ranks}"]
    return [f"RANK={rank}", f"LOCAL_RANK={local}", f"WORLD_SIZE={spec.ranks}"]
