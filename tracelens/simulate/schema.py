"""The tables of an nsys SQLite export, as six exporter versions write them.

One entry is one table; one word in it is one column::

    name[:TYPE][!][@first][~last]

`TYPE` is INTEGER unless given, `!` means NOT NULL, `@n` the first generation that has the column and `~n` the
last. A generation is the index of a version in `VERSIONS`, oldest first. Where no export of a version was at
hand for a table (nsys leaves empty tables out), the columns of its neighbours are used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracelens.errors import UsageError


@dataclass(frozen=True)
class Version:
    """One exporter version.

    Attributes:
        name: the short form that callers use, `2026.2.1`.
        generation: position among the known versions, 0 the oldest.
        product: EXPORT_PRODUCT_VERSION; empty before exports carried metadata.
        schema: EXPORT_SCHEMA_VERSION; empty likewise.
    """

    name: str
    generation: int
    product: str
    schema: str


VERSIONS: dict[str, Version] = {
    version.name: version
    for version in (
        Version("old_unknown", 0, "", ""),
        Version("2022.2.1", 1, "2022.2.1.31", "2.9.1"),
        Version("2023.3.1", 2, "2023.3.1.92", "3.4.0"),
        Version("2024.6.2", 3, "2024.6.2.225", "3.16.1"),
        Version("2025.3.2", 4, "2025.3.2.474", "3.20.3"),
        Version("2026.2.1", 5, "2026.2.1.210", "3.25.0"),
    )
}


@dataclass(frozen=True)
class SchemaColumn:
    """One column of one version's table: its SQLite type and whether NULL is refused."""

    name: str
    type: str
    not_null: bool

    @property
    def sql(self) -> str:
        """The column's definition in CREATE TABLE."""
        return f'"{self.name}" {self.type}{" NOT NULL" if self.not_null else ""}'


_GPU_OLD = """
    vmId! name:TEXT! pciBusId:TEXT globalMemoryBandwidth! globalMemorySize! constantMemorySize! l2CacheSize!
    numThreadsPerWarp! coreClockRate! numMemcpyEngines! numMultiprocessors! maxIPC! maxWarpsPerMultiprocessor!
    maxBlocksPerMultiprocessor! maxRegistersPerBlock! maxSharedMemoryPerBlock! maxThreadsPerBlock! maxBlockDimX!
    maxBlockDimY! maxBlockDimZ! maxGridDimX! maxGridDimY! maxGridDimZ! computeCapabilityMajor!
    computeCapabilityMinor! deviceId! pid maxSharedMemoryPerMultiprocessor maxRegistersPerMultiprocessor
"""

_GPU = """
    vmId! id! name:TEXT busLocation:TEXT isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount
    pwGpuId uuid:TEXT luid chipName:TEXT cuDevice ctxswDevPath:TEXT ctrlDevPath:TEXT revision nodeMask constantMemory
    maxIPC maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm
    threadsPerWarp asyncEngines maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX maxBlockDimY
    maxBlockDimZ maxGridDimX maxGridDimY maxGridDimZ computeMajor computeMinor smMajor smMinor
"""

# table -> (first generation, last generation, columns)
_TABLES: dict[str, tuple[int, int, str]] = {
    "StringIds": (0, 9, "id! value:TEXT!"),
    "NVTX_PAYLOAD_SCHEMAS": (
        4,
        9,
        "domainId schemaId name:TEXT type flags numEntries payloadSize alignTo",
    ),
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": (
        4,
        9,
        "domainId! schemaId! idx! flags type name:TEXT description:TEXT arrayOrUnionDetail offset",
    ),
    "TARGET_INFO_SYSTEM_ENV": (1, 1, "globalVid! devStateName:TEXT! name:TEXT! nameEnum! value:TEXT!"),
    "TARGET_INFO_SYSTEM_ENV ": (2, 9, "globalVid devStateName:TEXT! name:TEXT! nameEnum! value:TEXT!"),
    "TARGET_INFO_NIC_INFO": (
        4,
        9,
        "GUID! stateName:TEXT! nicId! name:TEXT! deviceId! vendorId! linkLayer!",
    ),
    "TARGET_INFO_SESSION_START_TIME": (1, 9, "utcEpochNs utcTime:TEXT localTime:TEXT systemClockNs@5"),
    "ANALYSIS_DETAILS": (1, 9, "globalVid! duration! startTime! stopTime!"),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": (
        2,
        9,
        "timestamp@5 deviceId! contextId! greenContextId@5 streamId! correlationId globalPid eventId! eventSyncId@5",
    ),
    "DIAGNOSTIC_EVENT": (3, 9, "timestamp! timestampType! source! severity! text:TEXT! globalPid"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        0,
        9,
        "start! end! deviceId! contextId! greenContextId@4 streamId! correlationId globalPid deprecatedSyncType@4"
        " syncType! eventId! eventSyncId@4",
    ),
    "PROFILER_OVERHEAD": (0, 4, "start! end! globalTid correlationId~0 nameId! returnValue!"),
    "PROFILER_OVERHEAD ": (5, 9, "start! end! globalTid nameId! overheadType!"),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": (
        5,
        9,
        "start! end! eventClass! globalTid correlationId nameId overheadType!",
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        0,
        9,
        "start! end! deviceId! contextId! greenContextId@4 streamId! correlationId globalPid value! bytes! graphNodeId"
        " memKind",
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        0,
        9,
        "start! end! deviceId! contextId! greenContextId@4 streamId! correlationId globalPid bytes! copyKind!"
        " deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause@1"
        " graphNodeId virtualAddress@1 copyCount@4",
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        0,
        9,
        "start! end! deviceId! contextId! greenContextId@4 streamId! correlationId globalPid demangledName!"
        " shortName! mangledName@1 launchType cacheConfig registersPerThread! gridX! gridY! gridZ! blockX! blockY!"
        " blockZ! staticSharedMemory! dynamicSharedMemory! localMemoryPerThread! localMemoryTotal! gridId!"
        " sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig@1 qmdBulkReleaseDone@5 qmdPreexitDone@5"
        " qmdLastCtaDone@5 graphId@5 clusterX@5 clusterY@5 clusterZ@5 clusterSchedulingPolicy@5"
        " maxPotentialClusterSize@5 maxActiveClusters@5 sharedMemoryRequestedPercentage@5"
        " tensorSizeMinusOneElements:TEXT!@5",
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
        3,
        9,
        "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid graphId! graphExecId!",
    ),
    "CUDA_GRAPH_EVENTS": (
        1,
        2,
        "start! end! eventClass! globalTid nameId! graphNodeId! originalGraphNodeId",
    ),
    "CUDA_GRAPH_NODE_EVENTS": (
        3,
        9,
        "start! end! eventClass! globalTid nameId! graphNodeId! originalGraphNodeId",
    ),
    "CUDA_GRAPH_EVENTS ": (
        3,
        9,
        "start! end! eventClass! globalTid nameId! graphId originalGraphId graphExecId",
    ),
    "PROCESSES": (1, 9, "globalPid pid name:TEXT"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        0,
        9,
        "start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId@1",
    ),
    "NVTX_EVENTS": (
        0,
        9,
        "start! end eventType! rangeId category color text:TEXT globalTid endGlobalTid textId domainId uint64Value"
        " int64Value doubleValue:REAL uint32Value int32Value floatValue:REAL jsonTextId jsonText:TEXT"
        " binaryData:TEXT@4",
    ),
    "ThreadNames": (0, 9, "nameId! priority globalTid"),
    "TARGET_INFO_CUDA_GPU": (0, 0, _GPU_OLD),
    "TARGET_INFO_GPU": (1, 9, _GPU),
    "TARGET_INFO_CUDA_DEVICE": (4, 9, "gpuId cudaId! pid! uuid:TEXT@5 numMultiprocessors@5"),
    "TARGET_INFO_CUDA_CONTEXT_INFO": (
        4,
        9,
        "nullStreamId! hwId! vmId! processId! deviceId! contextId! parentContextId isGreenContext",
    ),
    "TARGET_INFO_CUDA_NULL_STREAM": (0, 2, "streamId! hwId! vmId! processId! deviceId! contextId!"),
    "TARGET_INFO_CUDA_STREAM": (0, 9, "streamId! hwId! vmId! processId! contextId! priority! flag!"),
    "META_DATA_CAPTURE": (2, 9, "name:TEXT! value:TEXT"),
    "META_DATA_EXPORT": (2, 9, "name:TEXT! value:TEXT"),
    "EXPORT_META_DATA": (1, 1, "name:TEXT! value:TEXT"),
    "ENUM_CUDA_MEMCPY_OPER": (2, 9, "id! name:TEXT label:TEXT"),
    "ENUM_NSYS_EVENT_TYPE": (2, 9, "id! name:TEXT label:TEXT"),
}

TIME_COLUMNS = ("start", "end", "timestamp")
"""Columns that an exporter's time shift moves."""

_WORD = re.compile(r"(\w+?)(?::(\w+))?(!)?(?:@(\d))?(?:~(\d))?$")


def version_named(name: str) -> Version:
    """The exporter version called `name`, with or without its build number.

    Raises:
        UsageError: none of the known versions.
    """
    for version in VERSIONS.values():
        if name in (version.name, version.product):
            return version
    raise UsageError(f"no nsys version {name!r} in the simulator", f"one of {', '.join(VERSIONS)}")


def tables_of(version: Version) -> dict[str, tuple[SchemaColumn, ...]]:
    """Every table that `version` may write, with its columns in order."""
    tables: dict[str, tuple[SchemaColumn, ...]] = {}
    for table, (first, last, words) in _TABLES.items():
        if not first <= version.generation <= last:
            continue
        columns = []
        for word in words.split():
            match = _WORD.match(word)
            if match is None:
                raise ValueError(f"{table}: {word!r} is not a column")
            name, kind, bang, since, until = match.groups()
            if int(since or 0) <= version.generation <= int(until or 9):
                columns.append(SchemaColumn(name, kind or "INTEGER", bang is not None))
        tables[table.strip()] = tuple(columns)
    return tables


def create_table(table: str, columns: tuple[SchemaColumn, ...]) -> str:
    """The CREATE TABLE statement of one table."""
    keyed = table == "StringIds" or table.startswith("ENUM_")
    body = ",\n    ".join(column.sql + (" PRIMARY KEY" if keyed and column.name == "id" else "") for column in columns)
    return f'CREATE TABLE "{table}" (\n    {body}\n)'
