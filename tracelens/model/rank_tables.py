"""Builds export, process and rank, and notices what is odd about the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from tracelens.errors import MissingDataError
from tracelens.frames import Notice
from tracelens.model.notices import add_notice, take_notices
from tracelens.model.ranks import Candidate, Communicator, Numbering, number_ranks
from tracelens.sqlfiles import queries
from tracelens.units import plural

_HERE = Path(__file__).parent
_BASE = queries(_HERE / "base.sql")
_EVENTS = queries(_HERE / "events.sql")
_MOST_NAMED = 16


def build_ranks(
    db: duckdb.DuckDBPyConnection,
    rank_map: Mapping[int, tuple[str, int | None]] | None,
    expected: int | None,
) -> None:
    """Builds export, process and rank, and notices what is odd about them.

    Raises:
        MissingDataError: no device has kernels.
        RankError: an explicit rank map that does not fit.
    """
    for table in ("export", "process", "rank"):
        db.execute(_BASE[table])
    take_notices(db)
    candidates = _candidates(db)
    numbering = number_ranks(candidates, rank_map, expected)
    if not numbering.ranks:
        paths = [path for (path,) in db.execute("SELECT path FROM export ORDER BY export").fetchall()]
        raise MissingDataError(
            f"{_some(paths)}: no kernel inside with a usable time, so there is no GPU time to explain",
            "Was CUDA traced, in the worker processes too? nsys profile --trace=cuda,nvtx --trace-fork-before-exec=true",
        )
    _insert_ranks(db, candidates, numbering)
    for notice in _rank_notices(candidates, numbering, expected):
        add_notice(db, notice)


def _some(names: Sequence[object]) -> str:
    return ", ".join(map(str, names[:_MOST_NAMED])) + (", ..." if len(names) > _MOST_NAMED else "")


def _candidates(db: duckdb.DuckDBPyConnection) -> list[Candidate]:
    exports = {
        row[0]: row
        for row in db.execute("SELECT export, shown, stem, hostname, start_utc_ns FROM raw_export").fetchall()
    }
    parts = {
        (row[0], row[1]): {
            kind: value for kind, value in zip(("dp", "pp", "tp"), row[2:], strict=True) if value is not None
        }
        for row in db.execute("SELECT export, global_pid, dp, pp, tp FROM raw_process").fetchall()
    }
    gpus = {
        (export, pid, device): identity
        for export, pid, device, identity in db.execute(
            "SELECT export, pid, device, gpu_identity FROM raw_gpu WHERE gpu_identity IS NOT NULL AND pid IS NOT NULL ORDER BY ALL"
        ).fetchall()
    }
    communicators: dict[tuple[int, int], list[Communicator]] = {}
    environment: dict[int, dict[str, set[int]]] = {}
    for export, global_pid, kind, number, size, communicator, start_ns in db.execute(
        "SELECT export, global_pid, kind, number, size, communicator, start_ns FROM raw_rank_evidence ORDER BY ALL"
    ).fetchall():
        if kind == "nccl":
            communicators.setdefault((export, global_pid), []).append(
                Communicator(communicator, number, size, start_ns)
            )
        else:
            environment.setdefault(export, {}).setdefault(kind, set()).add(number)
    found = []
    for export, global_pid, device, kernel_count, kernel_ns, graph_count, _, first_ns in db.execute(
        _EVENTS["candidates"]
    ).fetchall():
        _, shown, stem, host, start_utc_ns = exports[export]
        # A variable that stands in one export with two values tells nothing of any one of its processes.
        variables = {
            name: next(iter(values)) for name, values in environment.get(export, {}).items() if len(values) == 1
        }
        found.append(
            Candidate(
                export,
                global_pid,
                device,
                kernel_count + graph_count,
                int(kernel_ns),
                first_ns,
                stem,
                shown,
                host,
                start_utc_ns,
                parts.get((export, global_pid)) or None,
                tuple(communicators.get((export, global_pid), ())),
                variables,
                gpus.get((export, (global_pid >> 24) & 0xFFFFFF, device)),
            )
        )
    return found


def _insert_ranks(db: duckdb.DuckDBPyConnection, candidates: Sequence[Candidate], numbering: Numbering) -> None:
    by_place = {one.place: one for one in candidates}
    processes = {
        (export, global_pid): process
        for process, export, global_pid in db.execute("SELECT process, export, global_pid FROM process").fetchall()
    }
    gpus = {
        (export, pid, device): (name, uuid)
        for export, pid, device, name, uuid in db.execute(
            "SELECT export, pid, device, gpu_name, gpu_uuid FROM raw_gpu ORDER BY ALL DESC"
        ).fetchall()
    }
    shared: dict[tuple[int, int], int] = {}
    for export, _, device in numbering.ranks:
        shared[export, device] = shared.get((export, device), 0) + 1
    clocks: dict[tuple[Any, ...], int] = {}
    rows, places = [], []
    for place, rank in sorted(numbering.ranks.items(), key=lambda item: item[1]):
        one = by_place[place]
        # Every GPU has its own clock; where a launcher shows each process one GPU, equal ordinals are different GPUs.
        its = one.gpu or one.device
        gpu: tuple[Any, ...] = (one.export, its) if shared[one.export, one.device] == 1 or one.gpu else one.place
        parts = one.parts or {}
        pid = (one.global_pid >> 24) & 0xFFFFFF
        name, uuid = gpus.get((one.export, pid, one.device)) or gpus.get((one.export, None, one.device)) or (None, None)
        rows.append(
            [rank, parts.get("dp"), parts.get("pp"), parts.get("tp"), one.export, processes[one.export, one.global_pid]]
            + [one.device, name, uuid, numbering.source, clocks.setdefault(gpu, len(clocks))]
        )
        places.append([rank, one.export, one.global_pid, one.device])
    db.executemany("INSERT INTO rank VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    db.executemany("INSERT INTO rank_place VALUES (?, ?, ?, ?)", places)
    if numbering.rejected:
        db.executemany(
            "INSERT INTO not_a_rank VALUES (?, ?, ?, ?)",
            [[*place, reason] for place, reason in sorted(numbering.rejected.items())],
        )


def _rank_notices(candidates: Sequence[Candidate], numbering: Numbering, expected: int | None) -> list[Notice]:
    by_place = {one.place: one for one in candidates}
    notices = [_not_a_rank(by_place[place], reason) for place, reason in sorted(numbering.rejected.items())]
    notices += [
        Notice(
            "rank-evidence-unusable",
            "warning",
            f"ranks could not be taken from the {kind}: {example}; they were numbered by {numbering.source}",
            "Give a map: --rank-map 0=path:device,1=...",
        )
        for kind, example in numbering.unusable
    ]
    notices += _missing(candidates, sorted(numbering.ranks.values()), expected)
    gpus: dict[str, list[int]] = {}
    for place, rank in sorted(numbering.ranks.items(), key=lambda item: item[1]):
        if identity := by_place[place].gpu:
            gpus.setdefault(identity, []).append(rank)
    notices += [
        Notice(
            "gpu-shared",
            "warning",
            f"{_ranks(sharing)} ran on the same GPU",
            "Was one report given twice, or did two processes share the GPU?",
            len(sharing),
        )
        for sharing in gpus.values()
        if len(sharing) > 1
    ]
    return notices


def _ranks(ranks: Sequence[int]) -> str:
    """`rank 0 and rank 1`, of many the first ones and how many more."""
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return " and ".join(f"rank {rank}" for rank in ranks[:_MOST_NAMED]) + more


def _not_a_rank(one: Candidate, reason: str) -> Notice:
    where = f"{one.shown}: device {one.device} of process {(one.global_pid >> 24) & 0xFFFFFF}"
    if reason == "foreign process":
        return Notice(
            "foreign-process",
            "warning",
            f"{where} does not belong to the job ({plural(one.kernel_count, 'kernel')}): not a rank",
            "",
            one.kernel_count,
        )
    if reason == "side context":
        told = f"{where} is a side context ({plural(one.kernel_count, 'kernel')}): not a rank"
        return Notice("side-context", "info", told, "", one.kernel_count)
    return Notice("no-kernels", "info", f"{where} ran no kernel: not a rank", "", None)


def _missing(candidates: Sequence[Candidate], ranks: Sequence[int], expected: int | None) -> list[Notice]:
    wanted = expected or max(((one.environment or {}).get("WORLD_SIZE", 0) for one in candidates), default=0)
    notices = []
    if wanted and len(ranks) < wanted:
        present = set(ranks)
        first = []
        for rank in range(wanted):
            if rank not in present:
                first.append(rank)
            if len(first) > _MOST_NAMED:
                break
        notices.append(
            Notice(
                "ranks-missing",
                "warning",
                f"{len(ranks)} of {wanted} ranks present; missing: {_some(first)}",
                "Were all workers traced? nsys needs --trace-fork-before-exec=true for forked workers; pass the files of all ranks.",
                wanted - len(ranks),
            )
        )
    if expected and len(ranks) > expected:
        notices.append(
            Notice(
                "ranks-unexpected",
                "warning",
                f"{len(ranks)} ranks present, {expected} expected",
                "`tracelens info` shows how each was identified; --rank-map names them.",
                len(ranks) - expected,
            )
        )
    return notices
