"""What an export says about itself: versions, clocks, processes, GPUs, ranks, and what it warns of.

The tables read here also hold whole process environments, command lines, users and paths. Only listed keys and
values of a fixed shape are ever fetched, and the filter is part of the query: what is not wanted never leaves the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import duckdb

from tracelens.ingest import nsys
from tracelens.ingest.discover import Found
from tracelens.ingest.payload import communicator_ranks
from tracelens.ingest.sources import Source

_METADATA_TABLES = ("META_DATA_EXPORT", "META_DATA_CAPTURE", "EXPORT_META_DATA")
_ENVIRONMENT_TABLES = ("META_DATA_CAPTURE", "EXPORT_META_DATA", "TARGET_INFO_SYSTEM_ENV")
_MISSING_EVENTS = ("incomplete", "not all", "dropped", "lost", "missing", "overflow", "discard", "truncat")


@dataclass
class Metadata:
    """One export's own facts, and the rows they become in the raw tables.

    Attributes:
        shift_ns: what the exporter added to every timestamp.
    """

    shown: str
    stem: str
    size_bytes: int
    nsys_version: str | None = None
    schema_version: str | None = None
    hostname: str | None = None
    start_utc_ns: int | None = None
    system_clock_ns: int | None = None
    session_ns: int | None = None
    shift_ns: int = 0
    graph_mode: str | None = None
    has_graph_table: bool = False
    graph_launch_count: int = 0
    partial: bool = False
    engine: str | None = None
    processes: list[tuple[Any, ...]] = field(default_factory=list)
    gpus: list[tuple[Any, ...]] = field(default_factory=list)
    evidence: list[tuple[Any, ...]] = field(default_factory=list)
    notices: list[tuple[Any, ...]] = field(default_factory=list)

    def insert(self, db: duckdb.DuckDBPyConnection, number: int) -> None:
        """Writes this export's rows into the raw tables under its number."""
        db.execute(
            "INSERT INTO raw_export VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [number, self.shown, self.stem, self.nsys_version, self.schema_version, self.hostname, self.start_utc_ns]
            + [self.system_clock_ns, self.session_ns, self.shift_ns, self.graph_mode, self.has_graph_table]
            + [self.graph_launch_count, self.partial, self.size_bytes, self.engine],
        )
        for table, rows in (
            ("raw_process", self.processes),
            ("raw_gpu", self.gpus),
            ("raw_rank_evidence", self.evidence),
        ):
            if rows:
                marks = ", ".join("?" * (len(rows[0]) + 1))
                db.executemany(f"INSERT INTO {table} VALUES ({marks})", [(number, *row) for row in rows])  # noqa: S608 - our own names
        if self.notices:
            db.executemany("INSERT INTO raw_notice VALUES (?, ?, ?, ?, ?)", self.notices)


def read_metadata(source: Source, found: Found) -> Metadata:
    """Everything small that an export says about itself."""
    meta = Metadata(found.shown, found.path.stem, _size(found))
    pairs = _pairs(source)
    meta.nsys_version = pairs.get("EXPORT_PRODUCT_VERSION")
    meta.schema_version = pairs.get("EXPORT_SCHEMA_VERSION")
    meta.shift_ns = _integer(pairs.get("EXPORT_CONFIG_TIME_SHIFT")) or 0
    meta.partial = any(
        pairs.get(key) not in (None, "", "all", "*")
        for key in ("EXPORT_PARAM_TABLES_TO_EXPORT", "EXPORT_PARAM_TIMES_TO_EXPORT")
    )
    _read_clocks(source, meta, pairs)
    _read_graphs(source, meta)
    _read_processes(source, meta)
    _read_gpus(source, meta)
    _read_rank_evidence(source, meta)
    _read_engine(source, meta)
    _read_diagnostics(source, meta)
    if meta.partial:
        meta.notices.append(
            (
                "partial-export",
                "warning",
                f"{source.shown}: exported with a filter on tables or times, so launches and kernels may not belong together",
                "Export without --tables and --times.",
                None,
            )
        )
    if _integer((meta.schema_version or "3").split(".")[0]) not in (None, 2, 3):
        meta.notices.append(
            (
                "unknown-schema",
                "warning",
                f"{source.shown}: schema {meta.schema_version} is newer than any known here; its tables were read by the names they have",
                "",
                None,
            )
        )
    return meta


def _size(found: Found) -> int:
    if found.path.is_dir():
        return sum(file.stat().st_size for file in found.path.iterdir() if file.is_file())
    return found.path.stat().st_size


def _integer(text: object) -> int | None:
    try:
        return int(str(text))
    except (TypeError, ValueError):
        return None


def _pairs(source: Source) -> dict[str, str]:
    """The whitelisted metadata; the first value of a repeated name."""
    keys = ", ".join(f"'{key}'" for key in nsys.METADATA_KEYS)
    pairs: dict[str, str] = {}
    for table in _METADATA_TABLES:
        if {"name", "value"} <= set(source.columns(table)):
            for name, value in source.select(table, ("name", "value"), f"name IN ({keys})"):
                if value is not None:
                    pairs.setdefault(str(name), str(value))
    return pairs


def _first(source: Source, table: str, column: str) -> int | None:
    if column not in source.columns(table):
        return None
    values = [value for (value,) in source.select(table, (column,)) if isinstance(value, int)]
    return values[0] if values else None


def _read_clocks(source: Source, meta: Metadata, pairs: dict[str, str]) -> None:
    if "EXPORT_CONFIG_TIME_SHIFT" not in pairs:
        # Exporters before 2023 name the request but not the sum; normalising adds the session's UTC start.
        if (pairs.get("EXPORT_PARAM_TIME_NORMALIZE") or "").lower() in ("true", "1"):
            meta.shift_ns += _first(source, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs") or 0
        meta.shift_ns += _integer(pairs.get("EXPORT_PARAM_TIME_SHIFT")) or 0
    meta.start_utc_ns = _first(source, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    meta.system_clock_ns = _first(source, "TARGET_INFO_SESSION_START_TIME", "systemClockNs")
    meta.session_ns = _first(source, "ANALYSIS_DETAILS", "duration")
    if {"name", "value"} <= set(source.columns("TARGET_INFO_SYSTEM_ENV")):
        names = source.select("TARGET_INFO_SYSTEM_ENV", ("value",), "name = 'Hostname'")
        meta.hostname = str(names[0][0]) if names else None


def _read_graphs(source: Source, meta: Metadata) -> None:
    if {"name", "value"} <= set(source.columns("META_DATA_CAPTURE")):
        modes = source.select(
            "META_DATA_CAPTURE",
            ("value",),
            "name LIKE '%CUDA_GRAPH_TRACE_OPTIONS:MODE' AND lower(value) IN ('graph', 'node')",
        )
        meta.graph_mode = str(modes[0][0]).lower() if modes else None
    meta.has_graph_table = bool(source.columns(nsys.GRAPH_TRACE)) and source.count(nsys.GRAPH_TRACE) > 0
    if meta.has_graph_table or meta.graph_mode == "node":
        return
    # Before 2024 a graph-level capture has no table of its graphs: only their launch calls give it away.
    if {"id", "value"} <= set(source.columns(nsys.STRINGS)) and "nameId" in source.columns(nsys.RUNTIME):
        ids = [int(one) for (one,) in source.select(nsys.STRINGS, ("id",), "value LIKE 'cu%GraphLaunch%'")]
        if ids:
            listed = ", ".join(map(str, ids))
            meta.graph_launch_count = source.count(nsys.RUNTIME, f"nameId IN ({listed})")


def _read_processes(source: Source, meta: Metadata) -> None:
    """Processes, and the coordinates in their worker titles; the title itself may hold a command line and is dropped."""
    titles: dict[int, dict[str, int]] = {}
    worker = "(lower({0}) LIKE '%worker\\_%' ESCAPE '\\' OR lower({0}) LIKE '%scheduler\\_%' ESCAPE '\\')"
    columns = set(source.columns("PROCESSES"))
    if {"globalPid", "name"} <= columns:
        for pid, name in source.select("PROCESSES", ("globalPid", "name"), worker.format("name")):
            if parts := nsys.worker_parts(str(name)):
                titles.setdefault(int(pid), parts)
    if {"nameId", "globalTid"} <= set(source.columns("ThreadNames")) and source.columns(nsys.STRINGS):
        texts = {
            int(one): str(text) for one, text in source.select(nsys.STRINGS, ("id", "value"), worker.format("value"))
        }
        if texts:
            listed = ", ".join(map(str, texts))
            for name, thread in source.select("ThreadNames", ("nameId", "globalTid"), f"nameId IN ({listed})"):
                if thread is not None and (parts := nsys.worker_parts(texts[int(name)])):
                    titles.setdefault(int(thread) & ~0xFFFFFF, parts)
    known = (
        {int(pid) for (pid,) in source.select("PROCESSES", ("globalPid",)) if pid is not None}
        if "globalPid" in columns
        else set()
    )
    for pid in sorted(known | set(titles)):
        parts = titles.get(pid, {})
        title = "_".join(f"{kind.upper()}{number}" for kind, number in sorted(parts.items())) or None
        meta.processes.append((pid, nsys.pid_of(pid), title, parts.get("dp"), parts.get("pp"), parts.get("tp")))


def _read_gpus(source: Source, meta: Metadata) -> None:
    """GPU behind each (process, ordinal): by TARGET_INFO_CUDA_DEVICE where it exists, else the ordinal of the list."""
    gpus: dict[int, tuple[str | None, str | None]] = {}
    columns = source.columns("TARGET_INFO_GPU")
    identifier = next((name for name in ("id", "deviceId") if name in columns), None)
    if identifier and "name" in columns:
        wanted = [identifier, "name"] + (["uuid"] if "uuid" in columns else [])
        for row in source.select("TARGET_INFO_GPU", wanted):
            gpus[int(row[0])] = (row[1], row[2] if len(row) > 2 else None)
    old = source.columns("TARGET_INFO_CUDA_GPU")
    if not gpus and {"deviceId", "name"} <= set(old):
        for device, name in source.select("TARGET_INFO_CUDA_GPU", ("deviceId", "name")):
            gpus[int(device)] = (name, None)
    devices = source.columns("TARGET_INFO_CUDA_DEVICE")
    if {"gpuId", "cudaId", "pid"} <= set(devices):
        wanted = ["gpuId", "cudaId", "pid"] + (["uuid"] if "uuid" in devices else [])
        for gpu, ordinal, pid, *uuid in source.select("TARGET_INFO_CUDA_DEVICE", wanted):
            name, known = gpus.get(-1 if gpu is None else int(gpu), (None, None))
            meta.gpus.append((pid, ordinal, name, (uuid[0] if uuid else None) or known))
    elif gpus:
        meta.gpus += [(None, device, name, uuid) for device, (name, uuid) in sorted(gpus.items())]


def _read_rank_evidence(source: Source, meta: Metadata) -> None:
    """Rank numbers from the environment: whole numbers behind listed names, and nothing else, leave the file."""
    for table in _ENVIRONMENT_TABLES:
        if not {"name", "value"} <= set(source.columns(table)):
            continue
        for variable in nsys.RANK_VARIABLES:
            digits = f"substr(value, {len(variable) + 2})"
            where = f"substr(value, 1, {len(variable) + 1}) = '{variable}=' AND length(value) BETWEEN {len(variable) + 2} AND {len(variable) + 8} AND trim({digits}, '0123456789') = ''"
            meta.evidence += [
                (None, variable, int(str(value).split("=")[1]), None)
                for (value,) in source.select(table, ("value",), where)
            ]
    meta.evidence += communicator_ranks(source)


def _read_engine(source: Source, meta: Metadata) -> None:
    """Which engine's name stands in a captured command line or process title; the word alone, never the line."""
    for word in nsys.ENGINE_WORDS:
        for table, column in (("META_DATA_CAPTURE", "value"), ("EXPORT_META_DATA", "value"), ("PROCESSES", "name")):
            columns = source.columns(table)
            if column not in columns:
                continue
            command = (
                ""
                if table == "PROCESSES"
                else " AND (name LIKE 'PROCESS\\_%:COMMAND' ESCAPE '\\' OR name LIKE 'PROCESS\\_%:ARGUMENT%' ESCAPE '\\')"
            )
            key = (
                "globalPid"
                if table == "PROCESSES" and "globalPid" in columns
                else ("name" if table != "PROCESSES" else "pid")
            )
            if key in columns and source.select(table, (key,), f"lower({column}) LIKE '%{word}%'{command}"):
                meta.engine = "trtllm" if word.startswith(("trt", "tensorrt")) else word
                return


def _read_diagnostics(source: Source, meta: Metadata) -> None:
    """Counts of warnings and errors that nsys left; their texts hold paths and users, so they are told in our words."""
    if not {"severity", "text"} <= set(source.columns("DIAGNOSTIC_EVENT")):
        return
    severe = f"severity IN ({nsys.DIAGNOSTIC_WARNING}, {nsys.DIAGNOSTIC_ERROR})"
    counts = {
        level: source.count("DIAGNOSTIC_EVENT", f"severity = {level}")
        for level in (nsys.DIAGNOSTIC_WARNING, nsys.DIAGNOSTIC_ERROR)
    }
    lost = " OR ".join(f"lower(text) LIKE '%{word}%'" for word in _MISSING_EVENTS)
    incomplete = source.count("DIAGNOSTIC_EVENT", f"{severe} AND ({lost})")
    nvtx = source.count("DIAGNOSTIC_EVENT", f"{severe} AND lower(text) LIKE '%nvtx%' AND ({lost})")
    total = sum(counts.values())
    if not total:
        return
    told = " and ".join(
        f"{count} {word}{'s' if count > 1 else ''}"
        for count, word in ((counts[3], "error"), (counts[2], "warning"))
        if count
    )
    meta.notices.append(
        (
            "diagnostics",
            "warning",
            f"{source.shown}: nsys left {told} in this capture",
            "Read them in Nsight Systems, under Diagnostics.",
            total,
        )
    )
    if incomplete:
        what = "NVTX ranges" if nvtx == incomplete else "events"
        meta.notices.append(
            (
                "events-missing",
                "warning",
                f"{source.shown}: nsys says that not all {what} were recorded, so totals may be too small",
                "Record a shorter window, or stop the capture before the processes end.",
                incomplete,
            )
        )
