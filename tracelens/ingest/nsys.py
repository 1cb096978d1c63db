"""The names nsys uses in its exports, and what each version calls them.

A loader branches on tables and columns that exist, never on version numbers: the schema moved in every release
between 2021 and 2026, and a 2026 exporter can re-export a 2022 capture with columns that hold only NULL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH_TRACE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
DRIVER = "CUPTI_ACTIVITY_KIND_DRIVER"  # separate from RUNTIME in a few old exports
NVTX = "NVTX_EVENTS"
STRINGS = "StringIds"

#: Tables that show that a SQLite file came from nsys at all, in any version.
SIGNATURE_TABLES = (
    STRINGS,
    KERNEL,
    RUNTIME,
    NVTX,
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "ANALYSIS_DETAILS",
    "TARGET_INFO_SYSTEM_ENV",
    "TARGET_INFO_GPU",
)


@dataclass(frozen=True)
class EventTable:
    """How one table of device events is spelt.

    Attributes:
        table: nsys's name.
        kind: 0 kernel, 1 copy, 2 memset, 3 graph launch as a whole.
        required: raw name -> nsys column that an answer cannot do without.
        optional: raw name -> nsys column that is NULL where the export has none.
    """

    table: str
    kind: int
    required: dict[str, str]
    optional: dict[str, str]


_TIMES = {"start_ns": "start", "end_ns": "end", "device": "deviceId"}
_PLACE = {"stream": "streamId", "correlation": "correlationId", "global_pid": "globalPid"}

EVENT_TABLES = (
    EventTable(
        KERNEL,
        0,
        _TIMES,
        _PLACE
        | {"name": "demangledName", "short_name": "shortName", "graph_node": "graphNodeId", "graph": "graphId"}
        | {"grid_x": "gridX", "grid_y": "gridY", "grid_z": "gridZ"}
        | {"block_x": "blockX", "block_y": "blockY", "block_z": "blockZ"},
    ),
    EventTable(
        MEMCPY,
        1,
        _TIMES,
        _PLACE | {"bytes": "bytes", "copy_kind": "copyKind", "graph_node": "graphNodeId"},
    ),
    EventTable(MEMSET, 2, _TIMES, _PLACE | {"bytes": "bytes", "graph_node": "graphNodeId"}),
    EventTable(GRAPH_TRACE, 3, _TIMES, _PLACE | {"graph": "graphId"}),
)

#: Columns that name a kernel, best first: template arguments tell kernels apart that the short name merges.
NAME_COLUMNS = ("demangledName", "shortName", "mangledName")

#: copyKind -> the label nsys prints in `[CUDA memcpy LABEL]`. Fallback for exports without ENUM_CUDA_MEMCPY_OPER,
#: and the one spelling for all versions: older exporters wrote HtoD where newer ones write Host-to-Device.
COPY_LABELS = {
    0: "[CUDA memcpy Unknown]",
    1: "[CUDA memcpy Host-to-Device]",
    2: "[CUDA memcpy Device-to-Host]",
    3: "[CUDA memcpy Host-to-Array]",
    4: "[CUDA memcpy Array-to-Host]",
    5: "[CUDA memcpy Array-to-Array]",
    6: "[CUDA memcpy Array-to-Device]",
    7: "[CUDA memcpy Device-to-Array]",
    8: "[CUDA memcpy Device-to-Device]",
    9: "[CUDA memcpy Host-to-Host]",
    10: "[CUDA memcpy Peer-to-Peer]",
    11: "[CUDA memcpy Unified Host-to-Device]",
    12: "[CUDA memcpy Unified Device-to-Host]",
    13: "[CUDA memcpy Unified Device-to-Device]",
}

#: NVTX event types; the numbers are the same from 2022 to 2026.
NVTX_MARK, NVTX_PUSH_POP, NVTX_START_END, NVTX_DOMAIN = 34, 59, 60, 75

#: Severities of DIAGNOSTIC_EVENT above information. 4 is "verbose".
DIAGNOSTIC_WARNING, DIAGNOSTIC_ERROR = 2, 3

#: The only environment entries that are ever fetched. Captures hold whole environments, secrets included.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")

#: The only metadata keys that are ever fetched (privacy: the same tables hold environments and command lines).
METADATA_KEYS = (
    "EXPORT_PRODUCT_VERSION",
    "EXPORT_SCHEMA_VERSION",
    "EXPORT_CONFIG_TIME_SHIFT",
    "EXPORT_PARAM_TIME_NORMALIZE",
    "EXPORT_PARAM_TIME_SHIFT",
    "EXPORT_PARAM_TABLES_TO_EXPORT",
    "EXPORT_PARAM_TIMES_TO_EXPORT",
    "EXPORT_PARAM_INCLUDE_BLOBS",
    "EXPORT_PARAM_INCLUDE_JSON",
)

#: Words that say which engine and model ran; nothing else of a command line or a title is ever fetched.
COMMAND_WORDS = (
    "vllm",
    "sglang",
    "trtllm",
    "tensorrt_llm",
    "gpt-oss",
    "gpt_oss",
    "deepseek",
    "kimi",
    "mixtral",
    "qwen",
    "qwq",
    "nemotron",
    "mamba",
    "jamba",
    "llama",
)

_PART = re.compile(r"_(DP|PP|TP)_?([0-9]+)")
_TITLE = re.compile(r"(?:Worker|scheduler)((?:_[A-Z]+_?[0-9]+)+)", re.IGNORECASE)
_LONGEST_PART = 6  # digits


def worker_parts(title: str) -> dict[str, int]:
    """The parallel coordinates in a worker's title: `VLLM::Worker_DP1_TP3` -> {"dp": 1, "tp": 3}.

    Titles without coordinates, and anything that is not a worker's or scheduler's, give an empty dict.
    """
    match = _TITLE.search(title)
    if match is None:
        return {}
    parts = {kind.lower(): number for kind, number in _PART.findall(match.group(1).upper())}
    if any(len(number) > _LONGEST_PART for number in parts.values()):
        return {}
    return {kind: int(number) for kind, number in parts.items()}


def pid_of(global_id: int) -> int:
    """The process id inside a globalPid or globalTid: `hwId<<56 | vmId<<48 | pid<<24 | tid`."""
    return (global_id >> 24) & 0xFFFFFF
