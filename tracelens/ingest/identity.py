"""Who ran: processes, GPUs, and what gives a process a rank.

Titles, environments and command lines hold secrets. A title leaves only its parallel coordinates, an environment
only whole numbers behind listed names, of a command line only words of a fixed list; the filters are part of the queries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tracelens.ingest import nsys
from tracelens.ingest.payload import communicator_ranks
from tracelens.ingest.sources import Source
from tracelens.ingest.values import whole, written

_ENVIRONMENT_TABLES = ("META_DATA_CAPTURE", "EXPORT_META_DATA", "TARGET_INFO_SYSTEM_ENV")
_WORKER = "(lower({0}) LIKE '%worker\\_%' ESCAPE '\\' OR lower({0}) LIKE '%scheduler\\_%' ESCAPE '\\')"
_DIGITS_AT_MOST = 6


@dataclass
class Identity:
    """Rows of raw_process, raw_gpu and raw_rank_evidence, without the export's number, and the known words of its command line."""

    processes: list[tuple[Any, ...]] = field(default_factory=list)
    gpus: list[tuple[Any, ...]] = field(default_factory=list)
    evidence: list[tuple[Any, ...]] = field(default_factory=list)
    words: str | None = None


def read_identity(source: Source, hostname: str | None) -> Identity:
    """Processes, GPUs and rank evidence of one export.

    Args:
        source: the export.
        hostname: its machine: a bus address names a GPU only together with it.
    """
    environment = _environment(source)
    communicators: list[tuple[Any, ...]] = list(communicator_ranks(source))
    return Identity(_processes(source), _gpus(source, hostname), environment + communicators, _command_words(source))


def _processes(source: Source) -> list[tuple[Any, ...]]:
    """Rows of (globalPid, pid, title, dp, pp, tp) of every process listed."""
    titles: dict[int, dict[str, int]] = {}
    columns = set(source.columns("PROCESSES"))
    if {"globalPid", "name"} <= columns:
        for pid, name in source.select("PROCESSES", ("globalPid", "name"), _WORKER.format("name")):
            process = whole(pid)
            if process is not None and (parts := nsys.worker_parts(str(written(name)))):
                titles.setdefault(process, parts)
    for process, parts in _thread_titles(source).items():
        titles.setdefault(process, parts)
    known = set(titles)
    if "globalPid" in columns:
        known |= {process for (pid,) in source.select("PROCESSES", ("globalPid",)) if (process := whole(pid))}
    rows = []
    for pid in sorted(known):
        parts = titles.get(pid, {})
        title = "_".join(f"{kind.upper()}{number}" for kind, number in sorted(parts.items())) or None
        rows.append((pid, nsys.pid_of(pid), title, parts.get("dp"), parts.get("pp"), parts.get("tp")))
    return rows


def _thread_titles(source: Source) -> dict[int, dict[str, int]]:
    """Coordinates by process from its threads' names: the main thread's, else those on which its threads agree."""
    has_names = {"nameId", "globalTid"} <= set(source.columns("ThreadNames"))
    if not has_names or not {"id", "value"} <= set(source.columns(nsys.STRINGS)):
        return {}
    texts = {
        identifier: nsys.worker_parts(str(written(text)))
        for one, text in source.select(nsys.STRINGS, ("id", "value"), _WORKER.format("value"))
        if (identifier := whole(one)) is not None
    }
    if not texts:
        return {}
    listed = ", ".join(map(str, texts))
    main: dict[int, dict[str, int]] = {}
    agreed: dict[int, list[dict[str, int]]] = {}
    for name, thread in source.select("ThreadNames", ("nameId", "globalTid"), f"nameId IN ({listed})"):
        identifier, tid = whole(name), whole(thread)
        if identifier is None or tid is None or not (parts := texts.get(identifier)):
            continue
        process = tid & ~0xFFFFFF
        if tid & 0xFFFFFF == nsys.pid_of(tid):
            main.setdefault(process, parts)
        agreed.setdefault(process, []).append(parts)
    for process, several in agreed.items():
        if all(parts == several[0] for parts in several):
            main.setdefault(process, several[0])
    return main


def _gpus(source: Source, hostname: str | None) -> list[tuple[Any, ...]]:
    """Rows of (pid, ordinal, name, uuid, identity): the GPU behind each ordinal, by TARGET_INFO_CUDA_DEVICE where it exists.

    Without that table the list of GPUs is the machine's and ordinals are taken as its ids; a launcher that shows each
    process one GPU makes that wrong, so such a row has no identity.
    """
    gpus: dict[int, tuple[str | None, str | None, str | None]] = {}
    columns = source.columns("TARGET_INFO_GPU")
    identifier = next((name for name in ("id", "deviceId") if name in columns), None)
    if identifier and "name" in columns:
        for row in _picked(source, "TARGET_INFO_GPU", (identifier, "name", "uuid", "busLocation")):
            if (gpu := whole(row[0])) is not None:
                gpus.setdefault(gpu, (written(row[1]), written(row[2]), written(row[3])))
    if {"gpuId", "cudaId", "pid"} <= set(source.columns("TARGET_INFO_CUDA_DEVICE")):
        rows = []
        for gpu, ordinal, pid, uuid in _picked(source, "TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid", "uuid")):
            number = whole(gpu)
            name, known, bus = gpus.get(-1 if number is None else number, (None, None, None))
            its = written(uuid) or known
            rows.append((whole(pid), whole(ordinal), name, its, its or _place(hostname, bus)))
        return rows
    if gpus:
        return [(None, gpu, name, uuid, None) for gpu, (name, uuid, _) in sorted(gpus.items())]
    if {"deviceId", "name"} <= set(source.columns("TARGET_INFO_CUDA_GPU")):
        return [
            (
                whole(pid),
                whole(device),
                written(name),
                None,
                _place(hostname, written(bus)) if pid is not None else None,
            )
            for device, name, pid, bus in _picked(
                source, "TARGET_INFO_CUDA_GPU", ("deviceId", "name", "pid", "pciBusId")
            )
        ]
    return []


def _place(hostname: str | None, bus: str | None) -> str | None:
    return f"{hostname} {bus}" if hostname and bus else None


def _picked(source: Source, table: str, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Rows of a table; columns that it lacks are None."""
    present = [name for name in columns if name in source.columns(table)]
    rows = (dict(zip(present, row, strict=True)) for row in source.select(table, present))
    return [tuple(row.get(name) for name in columns) for row in rows]


def _environment(source: Source) -> list[tuple[Any, ...]]:
    """Rank numbers from the environment: whole numbers behind listed names, and nothing else, leave the file."""
    found: set[tuple[str, int]] = set()
    for table in _ENVIRONMENT_TABLES:
        if not {"name", "value"} <= set(source.columns(table)):
            continue
        for variable in nsys.RANK_VARIABLES:
            prefix = len(variable) + 1
            digits = f"substr(value, {prefix + 1})"
            where = (
                f"substr(value, 1, {prefix}) = '{variable}='"
                f" AND length(value) BETWEEN {prefix + 1} AND {prefix + _DIGITS_AT_MOST} AND trim({digits}, '0123456789') = ''"
            )
            for (value,) in source.select(table, ("value",), where):
                found.add((variable, int(str(written(value))[prefix:])))
    return [(None, variable, number, None, None, None) for variable, number in sorted(found)]


def _command_words(source: Source) -> str | None:
    """Which known words stand in captured command lines and process titles; the words alone, never the line."""
    lines = " AND (name LIKE 'PROCESS\\_%:COMMAND' ESCAPE '\\' OR name LIKE 'PROCESS\\_%:ARGUMENT%' ESCAPE '\\')"
    places = (("META_DATA_CAPTURE", "value", lines), ("EXPORT_META_DATA", "value", lines), ("PROCESSES", "name", ""))
    present = [place for place in places if {"name", place[1]} <= set(source.columns(place[0]))]
    found = [
        word
        for word in nsys.COMMAND_WORDS
        if any(source.count(table, f"lower({column}) LIKE '%{word}%'{rest}") for table, column, rest in present)
    ]
    return ",".join(found) or None
