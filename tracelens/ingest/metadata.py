"""What an export says about itself: versions, clocks, graphs, and whether it is complete.

The tables read here also hold whole process environments, command lines, users and paths. Only listed keys and
values of a fixed shape are ever fetched, and the filter is part of the query: what is not wanted never leaves the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from tracelens.ingest import nsys
from tracelens.ingest.diagnostics import Told, read_diagnostics
from tracelens.ingest.discover import Found
from tracelens.ingest.identity import Identity, read_identity
from tracelens.ingest.sources import Source
from tracelens.ingest.values import number_in, whole, written

_METADATA_TABLES = ("META_DATA_EXPORT", "META_DATA_CAPTURE", "EXPORT_META_DATA")
_KNOWN_SCHEMAS = (2, 3)
#: No session is this long (52 days). Below it, times of many ranks can be added without leaving 64 bits.
LONGEST_NS = 2**52
_LARGEST_SHIFT_NS = 2**62


@dataclass
class Metadata:
    """One export's own facts, and the rows they become in the raw tables.

    Attributes:
        shift_ns: what the exporter added to every timestamp.
        graph_launch_count: launches of graphs whose work left no row at all.
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
    identity: Identity = field(default_factory=Identity)
    notices: list[Told] = field(default_factory=list)

    def insert(self, db: duckdb.DuckDBPyConnection, number: int) -> None:
        """Writes this export's rows into the raw tables under its number."""
        db.execute(
            "INSERT INTO raw_export VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [number, self.shown, self.stem, self.nsys_version, self.schema_version, self.hostname, self.start_utc_ns]
            + [self.system_clock_ns, self.session_ns, self.shift_ns, self.graph_mode, self.has_graph_table]
            + [self.graph_launch_count, self.partial, self.size_bytes, self.identity.words],
        )
        for table, rows in (
            ("raw_process", self.identity.processes),
            ("raw_gpu", self.identity.gpus),
            ("raw_rank_evidence", self.identity.evidence),
        ):
            _insert(db, table, [(number, *row) for row in rows])
        _insert(db, "raw_notice", self.notices)


def _insert(db: duckdb.DuckDBPyConnection, table: str, rows: list[Any]) -> None:
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        db.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608 - our own names


def read_metadata(source: Source, found: Found) -> Metadata:
    """Everything small that an export says about itself."""
    meta = Metadata(found.shown, Path(found.shown).stem, _size(found))
    pairs = _pairs(source)
    meta.nsys_version = pairs.get("EXPORT_PRODUCT_VERSION")
    meta.schema_version = pairs.get("EXPORT_SCHEMA_VERSION")
    meta.partial = any(
        pairs.get(key) not in (None, "", "all", "*")
        for key in ("EXPORT_PARAM_TABLES_TO_EXPORT", "EXPORT_PARAM_TIMES_TO_EXPORT")
    )
    _read_clocks(source, meta, pairs)
    _read_graphs(source, meta)
    meta.identity = read_identity(source, meta.hostname)
    meta.notices += read_diagnostics(source)
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
    major = number_in((meta.schema_version or "").split(".")[0])
    if meta.schema_version is not None and major not in _KNOWN_SCHEMAS:
        meta.notices.append(
            (
                "unknown-schema",
                "warning",
                f"{source.shown}: schema {meta.schema_version[:40]} is not one of those known here (2, 3); its tables were read by the names they have",
                "",
                None,
            )
        )
    return meta


def _size(found: Found) -> int:
    if found.path.is_dir():
        return sum(file.stat().st_size for file in found.path.iterdir() if file.is_file())
    return found.path.stat().st_size


def _pairs(source: Source) -> dict[str, str]:
    """The whitelisted metadata; of a repeated name the smallest value."""
    keys = ", ".join(f"'{key}'" for key in nsys.METADATA_KEYS)
    pairs: dict[str, str] = {}
    for table in _METADATA_TABLES:
        if {"name", "value"} <= set(source.columns(table)):
            for name, value in source.select(table, ("name", "value"), f"name IN ({keys})"):
                if value is not None:
                    pairs.setdefault(str(name), str(written(value)))
    return pairs


def _values(source: Source, table: str, column: str) -> list[int]:
    if column not in source.columns(table):
        return []
    return [number for (value,) in source.select(table, (column,)) if (number := whole(value)) is not None]


def _read_clocks(source: Source, meta: Metadata, pairs: dict[str, str]) -> None:
    start = _values(source, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    clock = _values(source, "TARGET_INFO_SESSION_START_TIME", "systemClockNs")
    # One row per machine that a report covers; the session is as long as the longest of them.
    session = [one for one in _values(source, "ANALYSIS_DETAILS", "duration") if 0 < one < LONGEST_NS]
    meta.start_utc_ns = min(start, default=None)
    meta.system_clock_ns = min(clock, default=None)
    meta.session_ns = max(session, default=None)
    if "EXPORT_CONFIG_TIME_SHIFT" in pairs:
        meta.shift_ns = _shift(meta, pairs["EXPORT_CONFIG_TIME_SHIFT"])
    else:
        # Exporters before 2023 name the request but not the sum; normalising adds the session's UTC start.
        if (pairs.get("EXPORT_PARAM_TIME_NORMALIZE") or "").lower() in ("true", "1"):
            meta.shift_ns += meta.start_utc_ns or 0
        meta.shift_ns += _shift(meta, pairs.get("EXPORT_PARAM_TIME_SHIFT") or "0")
    meta.hostname = read_hostname(source)


def read_hostname(source: Source) -> str | None:
    """Name of the machine that was captured."""
    if not {"name", "value"} <= set(source.columns("TARGET_INFO_SYSTEM_ENV")):
        return None
    names = source.select("TARGET_INFO_SYSTEM_ENV", ("value",), "name = 'Hostname' AND value IS NOT NULL")
    return written(names[0][0]) if names else None


def _shift(meta: Metadata, text: str) -> int:
    """The exporter's shift; one that is no sensible number is told and not undone."""
    shift = number_in(text)
    if shift is not None and abs(shift) < _LARGEST_SHIFT_NS:
        return shift
    meta.notices.append(
        (
            "unknown-shift",
            "warning",
            f"{meta.shown}: the exporter's time shift is no usable number, so times are read as they stand",
            "Export again without --ts-shift.",
            None,
        )
    )
    return 0


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
    calls, kernels = source.columns(nsys.RUNTIME), source.columns(nsys.KERNEL)
    if not ({"id", "value"} <= set(source.columns(nsys.STRINGS)) and "nameId" in calls):
        return
    ids = [whole(one) for (one,) in source.select(nsys.STRINGS, ("id",), "value LIKE 'cu%GraphLaunch%'")]
    listed = ", ".join(str(one) for one in ids if one is not None)
    if not listed:
        return
    launches = f"nameId IN ({listed})"
    if "graphNodeId" in kernels and source.count(nsys.KERNEL, "graphNodeId <> 0"):
        return
    if "correlationId" in calls and "correlationId" in kernels:
        # Nodes that were traced share their launch's correlation id, also where no column numbers them.
        seen = f"correlationId IN (SELECT correlationId FROM {nsys.RUNTIME} WHERE {launches})"  # noqa: S608 - constants
        if source.count(nsys.KERNEL, seen):
            return
    meta.graph_launch_count = source.count(nsys.RUNTIME, launches)
