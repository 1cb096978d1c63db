"""What is in a capture: exports, ranks and the ledger on a terminal."""

from __future__ import annotations

import polars as pl

from tracelens.frames import Result
from tracelens.views.terminal import Screen


def show(result: Result, screen: Screen) -> None:
    """Draw an info result: exports, ranks and how each was found, and what was read but not used."""
    screen.sentences(result.sentences)
    exports = result.tables.get("exports")
    if exports is not None:
        screen.table(
            exports,
            result.schemas["exports"],
            title="Exports",
            columns=["path", "nsys_version", "schema_version", "hostname", "graph_trace", "size_bytes"],
            optional=["schema_version", "hostname"],
        )
    ranks = result.tables.get("ranks")
    if ranks is not None:
        several = exports is not None and exports.height > 1
        parts = [name for name in ("dp", "pp", "tp") if name in ranks.columns and ranks[name].n_unique() > 1]
        columns = ["rank", *parts, *(["path"] if several else []), "pid", "device", "gpu_name", "rank_source"]
        columns += ["kernel_count", "memcpy_count", "memset_count", "stream_count", "span_ns", "busy_ns", "idle_frac"]
        screen.table(
            ranks,
            result.schemas["ranks"],
            title="Ranks",
            columns=columns,
            optional=["memset_count", "stream_count", "memcpy_count", "pid", "busy_ns", "path", "gpu_name"],
        )
    ledger = result.tables.get("ledger")
    if ledger is not None:
        left_out = ledger.filter(pl.col("rows_excluded") > 0)
        screen.table(
            left_out if left_out.height else ledger,
            result.schemas["ledger"],
            title="Rows read and not used" if left_out.height else "Rows read (all used)",
        )
