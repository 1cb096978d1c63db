"""Rows as a test draws them: one small record per event, thread, process or GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

COPY_KINDS = {"H2D": 1, "D2H": 2, "D2D": 8, "H2H": 9, "P2P": 10}


@dataclass(frozen=True)
class Kernel:
    """One kernel execution.

    Attributes:
        name: demangled name.
        start, end: device time.
        launch: begin and end of its API call; None writes no call.
        correlation: None takes a fresh id of the process.
        graph_node: node id when a graph replay ran it; `graph` is written where the version has the column.
        short: the short name; None derives it (no return type, namespace, template or arguments).
        launch_tid: the launching thread; None is the process's main thread.
    """

    name: str
    start: int
    end: int
    launch: tuple[int, int] | None = None
    correlation: int | None = None
    pid: int = 1000
    device: int = 0
    stream: int = 7
    context: int = 1
    grid: tuple[int, int, int] = (132, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    graph_node: int | None = None
    graph: int | None = None
    short: str | None = None
    api: str = "cudaLaunchKernel_v7000"
    launch_tid: int | None = None


@dataclass(frozen=True)
class Copy:
    """One memory copy: `kind` is H2D, D2H, D2D, H2H or P2P; the rest as for `Kernel`."""

    kind: str
    start: int
    end: int
    launch: tuple[int, int] | None = None
    bytes: int = 4096
    correlation: int | None = None
    pid: int = 1000
    device: int = 0
    stream: int = 7
    context: int = 1
    graph_node: int | None = None
    api: str = "cudaMemcpyAsync_v3020"
    launch_tid: int | None = None


@dataclass(frozen=True)
class Memset:
    """One memory fill; fields as for `Kernel`."""

    start: int
    end: int
    launch: tuple[int, int] | None = None
    bytes: int = 4096
    correlation: int | None = None
    pid: int = 1000
    device: int = 0
    stream: int = 7
    context: int = 1
    graph_node: int | None = None
    api: str = "cudaMemsetAsync_v3020"
    launch_tid: int | None = None


@dataclass(frozen=True)
class GraphTrace:
    """One replay of a whole graph, as a graph-level capture records it."""

    start: int
    end: int
    graph: int = 1
    launch: tuple[int, int] | None = None
    correlation: int | None = None
    pid: int = 1000
    device: int = 0
    stream: int = 7
    context: int = 1
    graph_exec: int | None = None
    api: str = "cudaGraphLaunch_v10000"
    launch_tid: int | None = None


@dataclass(frozen=True)
class Launch:
    """One CUDA API call on the host's clock; `correlation` joins it to what it started."""

    api: str
    start: int
    end: int
    correlation: int | None = None
    pid: int = 1000
    tid: int | None = None
    driver: bool = False


@dataclass(frozen=True)
class Range:
    """One NVTX range or mark.

    Attributes:
        type: 59 push-pop, 60 start-end, 34 mark (`end` is then ignored).
        domain: name of the domain, '' the default one; its creation event is written too.
        registered: the text goes through StringIds (textId), as NCCL's does.
        payload: NCCL-like fields, in order: name -> value; see `payload_as`.
        payload_as: "json" fills jsonText, "binary" binaryData, "both" both.
        end_tid: the thread that ended a start-end range, when another one.
    """

    text: str
    start: int
    end: int | None = None
    type: int = 59
    pid: int = 1000
    tid: int | None = None
    domain: str = ""
    registered: bool = False
    payload: Mapping[str, int] | None = None
    payload_as: str = "json"
    end_tid: int | None = None
    range_id: int | None = None


@dataclass(frozen=True)
class Thread:
    """A thread's name; without `tid` that of the main thread."""

    name: str
    pid: int = 1000
    tid: int | None = None
    priority: int = 10


@dataclass(frozen=True)
class Process:
    """A process's row; every process that owns another row has one anyway, named python3."""

    name: str
    pid: int = 1000


@dataclass(frozen=True)
class Gpu:
    """One GPU of the machine; every device that ran something has one anyway unless `write_events(gpus=False)`.

    `device` is the ordinal that processes see; `pid` limits the mapping to one process (CUDA_VISIBLE_DEVICES);
    `gpu` is the machine's id of it and defaults to `device`.
    """

    device: int = 0
    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str | None = None
    gpu: int | None = None
    pid: int | None = None
    bus: str | None = None


@dataclass(frozen=True)
class Diagnostic:
    """A diagnostic message: severity 1 information, 2 warning, 3 error."""

    text: str
    severity: int = 1
    at: int = 0
    source: int = 1


@dataclass(frozen=True)
class Env:
    """A line of TARGET_INFO_SYSTEM_ENV, for instance ("DeviceEnvironment", "RANK=3")."""

    name: str
    value: str
    number: int = 700


@dataclass(frozen=True)
class Row:
    """Any row at all of any table of the version."""

    table: str
    values: Mapping[str, Any] = field(default_factory=dict)


Event = Kernel | Copy | Memset | GraphTrace | Launch | Range | Thread | Process | Gpu | Diagnostic | Env | Row
