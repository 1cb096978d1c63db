"""Exports drawn by hand: literal rows in, a valid nsys SQLite file out.

    write_events(
        [
            Kernel("gemm", 10_000, 15_000, launch=(2_000, 6_000)),
            Kernel("cross_device_reduce_1stage", 16_000, 22_000, launch=(6_500, 9_000)),
            Copy("D2H", 23_000, 24_000, launch=(9_500, 11_000)),
            Range("step[DECODE bs=8]", 1_000, 30_000),
            Thread("VLLM::Worker_TP0"),
        ],
        tmp_path / "rank0.sqlite",
    )

Times are nanoseconds since the session began. Defaults: process 1000, thread = process, device 0, context 1,
stream 7. A kernel, copy or memset with `launch=(begin, end)` gets a row of the launching API call too; without a
`correlation` it gets a fresh id of its process. Several kernels with one `correlation` and `graph_node`s are one
graph replay: give the launch once, as `Launch("cudaGraphLaunch_v10000", begin, end, correlation=...)`.
Anything else goes in as `Row(table, {column: value})`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tracelens.errors import UsageError
from tracelens.simulate.columns import (
    DRIVER,
    copy_memory_kinds,
    gpu_row,
    gpu_uuid,
    kernel_constants,
    old_gpu_row,
    short_name,
)
from tracelens.simulate.drawn import (
    COPY_KINDS,
    Copy,
    Diagnostic,
    Env,
    Event,
    Gpu,
    GraphTrace,
    Kernel,
    Launch,
    Memset,
    Process,
    Range,
    Row,
    Thread,
)
from tracelens.simulate.payloads import nccl_payload, payload_schema_rows
from tracelens.simulate.writer import ExportWriter, global_pid, global_tid

CAPTURED = (
    ("CAPTURE_EVENT_TYPE", "Cuda"),
    ("CAPTURE_EVENT_TYPE", "NvtxEvents"),
    ("CUDA_TRACE_SCOPE", "ProcessTree"),
)
"""What a capture's metadata say that it recorded."""

SESSION_UTC_NS = 1_780_000_000_000_000_000
"""When drawn sessions begin unless told otherwise (May 2026)."""


def write_events(
    rows: Iterable[Event],
    path: str | Path,
    *,
    nsys_version: str = "2026.2.1",
    without: Collection[str] = (),
    without_columns: Mapping[str, Collection[str]] | None = None,
    shuffle: int | None = None,
    shift_ns: int = 0,
    normalize: bool = False,
    id_offset: int = 0,
    utc_ns: int = SESSION_UTC_NS,
    system_clock_ns: int | None = 28_254_349_605,
    duration_ns: int | None = None,
    host: str = "node0",
    graph_trace: str | None = "Node",
    export_meta: Mapping[str, str] | None = None,
    capture_meta: Sequence[tuple[str, str]] = (),
    gpus: bool = True,
    lazy: bool = True,
) -> Path:
    """Write one export from literal rows.

    Args:
        rows: `Kernel`, `Copy`, `Memset`, `GraphTrace`, `Launch`, `Range`, `Thread`, `Process`, `Gpu`,
            `Diagnostic`, `Env` or `Row`, in any order.
        path: the file to make; it must not exist.
        nsys_version: one of 2022.2.1, 2023.3.1, 2024.6.2, 2025.3.2, 2026.2.1, old_unknown.
        without: tables to leave out, by name.
        without_columns: columns to leave out, per table.
        shuffle: a seed; every table's rows are then in a random order.
        shift_ns: as `nsys export --ts-shift`: added to every time and recorded.
        normalize: as `--ts-normalize=true`: the session's UTC start is added to every time and recorded.
        id_offset: added to string ids, correlation ids and graph node ids.
        utc_ns: session start, UTC.
        system_clock_ns: the machine's clock at session start (written where the version has it); None for NULL.
        duration_ns: session length; None is the last end plus 1 ms.
        host: host name.
        graph_trace: CUDA_GRAPH_TRACE_OPTIONS:MODE, "Node" or "Graph"; None leaves it out.
        export_meta: more rows of META_DATA_EXPORT (or EXPORT_META_DATA).
        capture_meta: more rows of META_DATA_CAPTURE; names may repeat.
        gpus: write rows of the GPUs that were used.
        lazy: False also makes the tables that have no rows.

    Returns:
        The path.

    Raises:
        OutputError: the file exists.
        UsageError: unknown version or copy kind.
    """
    drawn = list(rows)
    path = Path(path)
    with ExportWriter(
        path,
        nsys_version,
        without=without,
        without_columns=without_columns,
        shuffle=shuffle,
        shift_ns=shift_ns,
        normalize_ns=utc_ns if normalize else 0,
        string_id_start=1 + id_offset,
        lazy=lazy,
    ) as writer:
        drawing = _Drawing(writer, id_offset)
        for row in drawn:
            drawing.add(row)
        if gpus:
            drawing.add_gpus()
        drawing.add_processes()
        for table, values in drawing.tables.items():
            writer.insert_rows(table, values)
        duration = duration_ns if duration_ns is not None else drawing.last_end + 1_000_000
        writer.session(utc_ns, system_clock_ns, duration, host, DRIVER)
        pairs = list(CAPTURED)
        if graph_trace is not None:
            pairs.append(("CUDA_GRAPH_TRACE_OPTIONS:MODE", graph_trace))
        writer.metadata(utc_ns, host=host, export=export_meta, capture=[*pairs, *capture_meta])
    return path


class _Drawing:
    """Rows of the export's tables, collected from drawn events."""

    def __init__(self, writer: ExportWriter, id_offset: int) -> None:
        self.writer = writer
        self.id_offset = id_offset
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self.last_end = 0
        self._fresh: dict[int, int] = {}
        self._processes: dict[int, str] = {}
        self._devices: dict[tuple[int, int], int] = {}
        self._named_devices: set[tuple[int, int]] = set()
        self._domains: dict[tuple[int, str], int] = {}
        self._schemas: dict[tuple[str, ...], int] = {}
        self._gpu_ids: set[int] = set()

    def add(self, row: Event) -> None:
        match row:
            case Kernel():
                self._kernel(row)
            case Copy():
                self._copy(row)
            case Memset():
                self._put("CUPTI_ACTIVITY_KIND_MEMSET", self._device_row(row) | {"bytes": row.bytes, "memKind": 2})
            case GraphTrace():
                graph_exec = row.graph_exec if row.graph_exec is not None else row.graph + 1
                self._put(
                    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
                    self._device_row(row) | {"graphId": row.graph, "graphExecId": graph_exec},
                )
            case Launch():
                self._launch(row)
            case Range():
                self._range(row)
            case Thread():
                self._processes.setdefault(row.pid, "python3")
                tid = global_tid(row.pid, row.pid if row.tid is None else row.tid)
                name = self.writer.string(row.name)
                self._put("ThreadNames", {"nameId": name, "priority": row.priority, "globalTid": tid})
            case Process():
                self._processes[row.pid] = row.name
            case Gpu():
                self._gpu(row)
            case Diagnostic():
                values: dict[str, Any] = {
                    "timestamp": row.at,
                    "timestampType": 1,
                    "source": row.source,
                    "severity": row.severity,
                }
                self._put("DIAGNOSTIC_EVENT", values | {"text": row.text})
            case Env():
                values = {"globalVid": 1 << 48, "devStateName": "Local (CLI)", "nameEnum": row.number}
                self._put("TARGET_INFO_SYSTEM_ENV", values | {"name": row.name, "value": row.value})
            case Row():
                self._put(row.table, dict(row.values))

    def add_gpus(self) -> None:
        for pid, device in self._devices:
            if (pid, device) in self._named_devices or (-1, device) in self._named_devices:
                continue
            if device < 1024:
                self._gpu(Gpu(device, pid=pid))

    def add_processes(self) -> None:
        for pid, name in self._processes.items():
            self._put("PROCESSES", {"globalPid": global_pid(pid), "pid": pid, "name": name})

    def _put(self, table: str, values: dict[str, Any]) -> None:
        self.tables.setdefault(table, []).append(values)
        end = values.get("end")
        if isinstance(end, int) and end < 1 << 61:
            self.last_end = max(self.last_end, end)

    def _device_row(self, row: Kernel | Copy | Memset | GraphTrace) -> dict[str, Any]:
        correlation = row.correlation
        if correlation is None:
            correlation = self._fresh[row.pid] = self._fresh.get(row.pid, 100_000) + 1
        if row.launch is not None:
            self._launch(Launch(row.api, *row.launch, correlation=correlation, pid=row.pid, tid=row.launch_tid))
        self._processes.setdefault(row.pid, "python3")
        self._devices.setdefault((row.pid, row.device), len(self._devices))
        values = {
            "start": row.start,
            "end": row.end,
            "deviceId": row.device,
            "contextId": row.context,
            "greenContextId": 0,
            "streamId": row.stream,
            "correlationId": correlation + self.id_offset,
            "globalPid": global_pid(row.pid),
        }
        node = getattr(row, "graph_node", None)
        if node is not None:
            values["graphNodeId"] = node + self.id_offset
        return values

    def _kernel(self, row: Kernel) -> None:
        name = self.writer.string(row.name)
        short = self.writer.string(row.short if row.short is not None else short_name(row.name))
        values = self._device_row(row) | kernel_constants()
        values |= {"demangledName": name, "shortName": short, "mangledName": short, "graphId": row.graph}
        values |= dict(zip(("gridX", "gridY", "gridZ"), row.grid, strict=True))
        values |= dict(zip(("blockX", "blockY", "blockZ"), row.block, strict=True))
        self._put("CUPTI_ACTIVITY_KIND_KERNEL", values)

    def _copy(self, row: Copy) -> None:
        if row.kind not in COPY_KINDS:
            raise UsageError(f"no copy kind {row.kind!r}", f"one of {', '.join(COPY_KINDS)}")
        source, target = copy_memory_kinds(COPY_KINDS[row.kind])
        values = {"bytes": row.bytes, "copyKind": COPY_KINDS[row.kind], "srcKind": source, "dstKind": target}
        self._put("CUPTI_ACTIVITY_KIND_MEMCPY", self._device_row(row) | values | {"copyCount": 1})

    def _launch(self, row: Launch) -> None:
        self._processes.setdefault(row.pid, "python3")
        correlation = None if row.correlation is None else row.correlation + self.id_offset
        self._put(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            {
                "start": row.start,
                "end": row.end,
                "eventClass": int(row.driver),
                "globalTid": global_tid(row.pid, row.pid if row.tid is None else row.tid),
                "correlationId": correlation,
                "nameId": self.writer.string(row.api),
                "returnValue": 0,
            },
        )

    def _range(self, row: Range) -> None:
        self._processes.setdefault(row.pid, "python3")
        thread = global_tid(row.pid, row.pid if row.tid is None else row.tid)
        domain = self._domain(row.pid, row.domain, thread) if row.domain else 0
        values: dict[str, Any] = {
            "start": row.start,
            "end": None if row.type == 34 else row.end,
            "eventType": row.type,
            "globalTid": thread,
            "domainId": domain,
            "rangeId": row.range_id,
            "text": None if row.registered else row.text,
            "textId": self.writer.string(row.text) if row.registered else None,
        }
        if row.type == 60:
            values["endGlobalTid"] = thread if row.end_tid is None else global_tid(row.pid, row.end_tid)
        if row.payload is not None:
            if row.payload_as in ("json", "both"):
                inside = ", ".join(f'"{name}":{value}' for name, value in row.payload.items())
                values["jsonText"] = "{" + inside + "}"
            if row.payload_as in ("binary", "both"):
                values["binaryData"] = nccl_payload(row.payload, self._schema(row.payload, domain), domain)
        self._put("NVTX_EVENTS", values)

    def _domain(self, pid: int, name: str, thread: int) -> int:
        number = self._domains.get((pid, name))
        if number is None:
            number = 1 + sum(1 for owner, _ in self._domains if owner == pid)
            self._domains[pid, name] = number
            made = {"start": -1_957_198_520, "eventType": 75, "text": name, "globalTid": thread, "domainId": number}
            self._put("NVTX_EVENTS", made)
        return number

    def _schema(self, fields: Mapping[str, int], domain: int) -> int:
        key = tuple(fields)
        number = self._schemas.get(key)
        if number is None:
            number = self._schemas[key] = 16_777_216 + len(self._schemas) + 5
            schema, entries = payload_schema_rows(fields, number, domain)
            for row in (schema, *entries):
                self.add(row)
        return number

    def _gpu(self, row: Gpu) -> None:
        self._named_devices.add((-1 if row.pid is None else row.pid, row.device))
        gpu = row.device if row.gpu is None else row.gpu
        uuid = row.uuid or gpu_uuid(gpu)
        if gpu not in self._gpu_ids:
            self._gpu_ids.add(gpu)
            self._put("TARGET_INFO_GPU", gpu_row(gpu, row.name, uuid, row.bus))
        self._put("TARGET_INFO_CUDA_GPU", old_gpu_row(row.device, row.name, row.pid, row.bus))
        owners = sorted(pid for pid, device in self._devices if device == row.device) if row.pid is None else [row.pid]
        for pid in owners:
            values = {"gpuId": gpu, "cudaId": row.device, "pid": pid, "uuid": uuid, "numMultiprocessors": 132}
            self._put("TARGET_INFO_CUDA_DEVICE", values)
