"""Who and where: processes, titles, GPUs, environment, session and metadata of a simulated export."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.simulate.clocks import RankClock
from tracelens.simulate.columns import DRIVER, gpu_row, gpu_uuid, kernel_constants, old_gpu_row, short_name
from tracelens.simulate.events import Events
from tracelens.simulate.owners import Owner, device_columns, rank_environment, title
from tracelens.simulate.spec import CaptureSpec
from tracelens.simulate.writer import ExportWriter, global_pid, global_tid

FOREIGN_PID = 1_777


class MachineRows:
    """Writes what one export says about its machine."""

    def __init__(self, spec: CaptureSpec, events: Events, writer: ExportWriter) -> None:
        self.spec = spec
        self.events = events
        self.writer = writer

    def rank(self, owner: Owner, clock: RankClock) -> None:
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
        shape: dict[str, Any] = {"gridX": 1, "gridY": 1, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1}
        if spec.side_contexts and owner.device > 0:
            start = spec.start_ns - 200_000_000 + 10_000 * np.arange(3)
            text = writer.string("void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<int>>")
            columns = device_columns(owner, clock, start, start + 1_600) | kernel_constants() | shape
            columns |= {"deviceId": 0, "contextId": 1, "streamId": 7, "demangledName": text, "shortName": text}
            columns["correlationId"] = 100 + np.arange(3)
            writer.insert("CUPTI_ACTIVITY_KIND_KERNEL", 3, columns)
        if spec.bad_rows:
            good = int(clock.to_local(self.events.start[rank, 0]))
            shapes = [(0, 0), (good + 900, good), (1 << 62, (1 << 62) + 500), (-(1 << 63), -(1 << 63) + 1)]
            chosen = [shapes[i % len(shapes)] for i in range(spec.bad_rows)]
            name = next(op.name for op in self.events.ops if op.kind == 0)
            columns = {
                "demangledName": writer.string(name),
                "shortName": writer.string(short_name(name)),
                "start": [a for a, _ in chosen],
                "end": [b for _, b in chosen],
                "deviceId": owner.device,
                "contextId": owner.context,
                "streamId": 7,
                "globalPid": global_pid(owner.pid),
                "correlationId": 2 + np.arange(spec.bad_rows),
            }
            columns |= kernel_constants() | shape
            writer.insert("CUPTI_ACTIVITY_KIND_KERNEL", spec.bad_rows, columns, shifted=False)

    def machine(self, who: list[Owner], clock: RankClock, last_ns: int) -> None:
        """Processes, GPUs, environment, session and metadata of the export; `last_ns` is its last end."""
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
        duration = last_ns + 50_000_000
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
        columns = device_columns(owner, clock, start, start + 3_000) | kernel_constants()
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
