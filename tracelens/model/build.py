"""Builds the model tables from the raw tables, in one DuckDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from tracelens.errors import MissingDataError
from tracelens.frames import Notice
from tracelens.model.ranks import Candidate, Numbering, number_ranks
from tracelens.sqlfiles import queries

_HERE = Path(__file__).parent
_BASE = queries(_HERE / "base.sql")
_NAMES = queries(_HERE / "names.sql")
_EVENTS = queries(_HERE / "events.sql")
_LAUNCHES = queries(_HERE / "launches.sql")
_COMMENTS = queries(_HERE / "comments.sql")


def build_names(db: duckdb.DuckDBPyConnection, copy_labels: Mapping[int, str]) -> list[str]:
    """Numbers the names of all events.

    Args:
        copy_labels: copy kind -> the name of a copy of that kind.

    Returns:
        the names; a name's position is its name_id.
    """
    db.execute(_BASE["copy_label"])
    db.executemany("INSERT INTO copy_label VALUES (?, ?)", sorted(copy_labels.items()))
    db.execute(_NAMES["collect"])
    return [str(name) for (name,) in db.execute("SELECT name FROM name_text ORDER BY name_id").fetchall()]


def write_kernel_names(db: duckdb.DuckDBPyConnection, classified: pl.DataFrame) -> None:
    """Writes the table `kernel_name` from one row per name, in the order that `build_names` gave."""
    db.execute(_NAMES["kernel_name"])
    db.register("incoming", classified.to_arrow())
    db.execute("INSERT INTO kernel_name BY NAME SELECT * FROM incoming ORDER BY name_id")
    db.unregister("incoming")


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
    db.execute("INSERT INTO notice SELECT * FROM raw_notice ORDER BY ALL")
    db.execute(_EVENTS["main_device"])
    db.execute(_EVENTS["sound"])
    candidates = _candidates(db)
    numbering = number_ranks(candidates, rank_map, expected)
    if not numbering.ranks:
        shown = ", ".join(
            dict.fromkeys(row[0] for row in db.execute("SELECT path FROM export ORDER BY export").fetchall())
        )
        raise MissingDataError(
            f"{shown}: no kernel inside, so there is no GPU time to explain",
            "Was CUDA traced, in the worker processes too? nsys profile --trace=cuda,nvtx --trace-fork-before-exec=true ...",
        )
    _insert_ranks(db, candidates, numbering)
    for notice in _rank_notices(db, candidates, numbering, expected):
        add_notice(db, notice)


def build_events(db: duckdb.DuckDBPyConnection) -> None:
    """Builds event and other_event, their notices, and the ledger of the tables read so far; then frees the raw rows."""
    db.execute(_EVENTS["event"])
    db.execute(_EVENTS["other_event"])
    excluded = db.execute(_EVENTS["excluded"]).fetchall()
    bad = sum(count for _, reason, count in excluded if reason in ("bad timestamp", "no time or device"))
    if bad:
        add_notice(
            db,
            Notice(
                "bad-timestamps",
                "warning",
                f"{bad} rows have impossible timestamps or no device and are left out",
                "",
                bad,
            ),
        )
    (unknown,) = _row(db, _NAMES["unknown_count"])
    if unknown:
        add_notice(
            db,
            Notice(
                "unknown-names",
                "warning",
                f"{unknown} kernels have a name id that the export does not explain",
                "Export the report again.",
                unknown,
            ),
        )
    graphs = _row(db, "SELECT count(*), coalesce(sum(end_ns - start_ns), 0)::BIGINT FROM event_row WHERE kind = 3")
    if graphs[0]:
        add_notice(
            db,
            Notice(
                "graph-level",
                "warning",
                f"CUDA graphs were traced as a whole: {graphs[0]} launches, {graphs[1] / 1e6:.1f} ms, whose kernels are invisible (bucket graph_opaque)",
                "Record again with: nsys profile --cuda-graph-trace=node",
                int(graphs[0]),
            ),
        )
    else:
        _notice_invisible_graphs(db)
    _ledger(db, excluded)
    db.execute(_COMMENTS["always"])
    db.execute(_COMMENTS["event_view"])


def build_empty(db: duckdb.DuckDBPyConnection) -> None:
    """Builds the tables of a capture without any export, for their documentation."""
    for table in ("export", "process", "rank"):
        db.execute(_BASE[table])
    db.execute(_EVENTS["main_device"])
    db.execute(_EVENTS["sound"])
    build_events(db)


def build_launches(db: duckdb.DuckDBPyConnection) -> None:
    """Builds launch from raw_launch."""
    db.execute(_LAUNCHES["launch"])
    (repeated,) = _row(db, _LAUNCHES["repeated_count"])
    if repeated:
        add_notice(
            db,
            Notice(
                "repeated-correlation",
                "warning",
                f"{repeated} correlation ids stand on several API calls; the first call counts as the launch",
                "",
                repeated,
            ),
        )
    (without,) = _row(db, _LAUNCHES["without_launch"])
    (total,) = _row(db, "SELECT count(*) FROM event_row")
    if without:
        add_notice(
            db,
            Notice(
                "events-without-launch",
                "info",
                f"{without} of {total} events have no API call in the capture: the cause of a gap before them is unknown",
                "",
                without,
            ),
        )
    (kept,) = _row(db, "SELECT count(*) FROM launch")
    _ledger_call_table(db, kept, "CUPTI_ACTIVITY_KIND_RUNTIME", "put no work on a rank's device")
    db.execute("DROP TABLE raw_launch")
    db.execute(_COMMENTS["launch"])


def build_nvtx(db: duckdb.DuckDBPyConnection) -> None:
    """Builds nvtx from raw_nvtx."""
    db.execute(_LAUNCHES["nvtx"])
    (kept,) = _row(db, "SELECT count(*) FROM nvtx")
    _ledger_call_table(
        db, kept, "NVTX_EVENTS", "per-operator ranges of PyTorch, domain rows, other kinds, processes without GPU work"
    )
    db.execute("DROP TABLE raw_nvtx")
    db.execute(_COMMENTS["nvtx"])


def add_notice(db: duckdb.DuckDBPyConnection, notice: Notice) -> None:
    """Appends to the table `notice`."""
    db.execute(
        "INSERT INTO notice VALUES (?, ?, ?, ?, ?)",
        [notice.code, notice.severity, notice.message, notice.hint, notice.count],
    )


def _row(db: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...]:
    row = db.execute(sql).fetchone()
    return row if row is not None else (0,)


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
        (export, pid, device): uuid
        for export, pid, device, uuid in db.execute(
            "SELECT export, pid, device, gpu_uuid FROM raw_gpu WHERE gpu_uuid IS NOT NULL AND pid IS NOT NULL"
        ).fetchall()
    }
    nccl: dict[tuple[int, int], list[tuple[int, int | None]]] = {}
    environment: dict[int, dict[str, int]] = {}
    for export, pid, kind, number, size in db.execute(
        "SELECT export, pid, kind, number, size FROM raw_rank_evidence ORDER BY ALL"
    ).fetchall():
        if kind == "nccl":
            nccl.setdefault((export, pid), []).append((number, size))
        else:
            environment.setdefault(export, {}).setdefault(kind, number)
    found = []
    for export, global_pid, device, kernel_count, kernel_ns, graph_count, _, first_ns in db.execute(
        _EVENTS["candidates"]
    ).fetchall():
        _, shown, stem, host, start_utc_ns = exports[export]
        pid = (global_pid >> 24) & 0xFFFFFF
        found.append(
            Candidate(
                export,
                global_pid,
                device,
                kernel_count + graph_count,
                kernel_ns,
                first_ns,
                stem,
                shown,
                host,
                start_utc_ns,
                parts.get((export, global_pid)) or None,
                tuple(nccl.get((export, pid), ())),
                environment.get(export),
                gpus.get((export, pid, device)),
            )
        )
    return found


def _insert_ranks(db: duckdb.DuckDBPyConnection, candidates: Sequence[Candidate], numbering: Numbering) -> None:
    by_place = {one.place: one for one in candidates}
    clocks: dict[tuple[Any, ...], int] = {}
    ordinals = [(export, device) for export, _, device in numbering.ranks]
    rows, places = [], []
    for place, rank in sorted(numbering.ranks.items(), key=lambda item: item[1]):
        one = by_place[place]
        # Every GPU has its own clock; where a launcher shows each process one GPU, equal ordinals are different GPUs.
        gpu = (
            (one.export, one.gpu or one.device)
            if ordinals.count((one.export, one.device)) == 1 or one.gpu
            else one.place
        )
        parts = one.parts or {}
        (process,) = db.execute(
            "SELECT process FROM process WHERE export = ? AND global_pid = ?", [one.export, one.global_pid]
        ).fetchall()[0]
        named = db.execute(
            "SELECT gpu_name, gpu_uuid FROM raw_gpu WHERE export = ? AND device = ? AND (pid = ? OR pid IS NULL) ORDER BY pid NULLS LAST LIMIT 1",
            [one.export, one.device, (one.global_pid >> 24) & 0xFFFFFF],
        ).fetchall()
        name, uuid = named[0] if named else (None, None)
        rows.append(
            [
                rank,
                parts.get("dp"),
                parts.get("pp"),
                parts.get("tp"),
                one.export,
                process,
                one.device,
                name,
                uuid,
                numbering.source,
                clocks.setdefault(gpu, len(clocks)),
            ]
        )
        places.append([rank, one.export, one.global_pid, one.device])
    db.executemany("INSERT INTO rank VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    db.executemany("INSERT INTO rank_place VALUES (?, ?, ?, ?)", places)
    if numbering.rejected:
        db.executemany(
            "INSERT INTO not_a_rank VALUES (?, ?, ?, ?)",
            [[*place, reason] for place, reason in sorted(numbering.rejected.items())],
        )


def _rank_notices(
    db: duckdb.DuckDBPyConnection, candidates: Sequence[Candidate], numbering: Numbering, expected: int | None
) -> list[Notice]:
    notices = []
    by_place = {one.place: one for one in candidates}
    for place, reason in sorted(numbering.rejected.items()):
        one = by_place[place]
        told = {
            "side context": f"{one.shown}: device {one.device} of process {(one.global_pid >> 24) & 0xFFFFFF} is a side context ({one.kernel_count} kernels), not a rank",
            "foreign process": f"{one.shown}: process {(one.global_pid >> 24) & 0xFFFFFF} on device {one.device} does not belong to the job ({one.kernel_count} kernels), not a rank",
        }.get(reason)
        if told:
            notices.append(
                Notice(
                    reason.replace(" ", "-"),
                    "info" if reason == "side context" else "warning",
                    told,
                    "",
                    one.kernel_count,
                )
            )
    notices += [
        Notice(
            "rank-evidence-unusable",
            "warning",
            f"ranks could not be taken from the {kind}: {example}; they were numbered by {numbering.source}",
            "Give a map: --rank-map 0=path:device,1=...",
            None,
        )
        for kind, example in numbering.unusable
    ]
    ranks = sorted(numbering.ranks.values())
    wanted = expected or max(((one.environment or {}).get("WORLD_SIZE", 0) for one in candidates), default=0)
    if wanted and len(ranks) < wanted:
        missing = [rank for rank in range(wanted) if rank not in ranks]
        notices.append(
            Notice(
                "ranks-missing",
                "warning",
                f"{len(ranks)} of {wanted} ranks present; missing: {', '.join(map(str, missing[:16]))}{', ...' if len(missing) > 16 else ''}",
                "Were all workers traced? nsys needs --trace-fork-before-exec=true for forked workers; pass the files of all ranks.",
                wanted - len(ranks),
            )
        )
    gpus: dict[str, list[Candidate]] = {}
    for one in candidates:
        if one.place in numbering.ranks and one.gpu:
            gpus.setdefault(one.gpu, []).append(one)
    for sharing in gpus.values():
        if len(sharing) > 1:
            told = " and ".join(f"rank {numbering.ranks[one.place]}" for one in sharing)
            notices.append(
                Notice(
                    "gpu-shared",
                    "warning",
                    f"{told} ran on the same GPU",
                    "Was one report given twice, or did two processes share the GPU?",
                    len(sharing),
                )
            )
    del db
    return notices


def _notice_invisible_graphs(db: duckdb.DuckDBPyConnection) -> None:
    """Before 2024 nsys exported a graph-level capture without any row for its graphs."""
    launches, nodes = _row(
        db,
        "SELECT (SELECT coalesce(sum(graph_launch_count), 0)::BIGINT FROM raw_export), (SELECT count(*) FROM event_row WHERE coalesce(graph_node, 0) <> 0)",
    )
    if launches and not nodes:
        add_notice(
            db,
            Notice(
                "graph-invisible",
                "warning",
                f"{launches} CUDA graph launches left no row in this export: their GPU time is unknown and looks idle",
                "Record again with: nsys profile --cuda-graph-trace=node",
                int(launches),
            ),
        )


def _ledger(db: duckdb.DuckDBPyConnection, excluded: Sequence[tuple[Any, ...]]) -> None:
    reasons: dict[int, list[tuple[str, int]]] = {}
    for kind, reason, count in excluded:
        reasons.setdefault(int(kind), []).append((reason, count))
    for kind, table, rows in db.execute(
        "SELECT kind, table_name, sum(rows_read)::BIGINT FROM raw_read WHERE kind IS NOT NULL GROUP BY ALL ORDER BY ALL"
    ).fetchall():
        left = sum(count for _, count in reasons.get(kind, []))
        told = "; ".join(f"{count} {reason}" for reason, count in reasons.get(kind, []))
        db.execute("INSERT INTO ledger VALUES (NULL, ?, ?, ?, ?, ?)", [table, rows, rows - left, left, told])


def _ledger_call_table(db: duckdb.DuckDBPyConnection, kept: int, table: str, reason: str) -> None:
    (rows,) = _row(
        db, f"SELECT coalesce(sum(rows_read), 0)::BIGINT FROM raw_read WHERE kind IS NULL AND table_name = '{table}'"
    )
    db.execute(
        "INSERT INTO ledger VALUES (NULL, ?, ?, ?, ?, ?)",
        [table, rows, kept, rows - kept, f"{rows - kept} {reason}" if rows > kept else ""],
    )
