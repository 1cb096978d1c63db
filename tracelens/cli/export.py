"""`tracelens export`: the capture for other tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.cli.options import Asked, over_trace_to_file
from tracelens.errors import UsageError

if TYPE_CHECKING:
    from tracelens.api import Trace
    from tracelens.frames import Notice

_KINDS = ".json or .json.gz (Perfetto, chrome://tracing), .duckdb, .parquet"


@over_trace_to_file
def export(asked: Asked) -> int:
    """A trace for Perfetto (-o x.json.gz) on one clock, or the model tables (-o x.duckdb, -o x.parquet)."""
    from tracelens.views.output import check_target
    from tracelens.views.terminal import notices

    if asked.output.file is None:
        raise UsageError("export needs -o FILE", f"The suffix says what is written: {_KINDS}.")
    target = Path(asked.output.file)
    name = target.name.lower()
    write = {
        ".json": _picture,
        ".json.gz": _picture,
        ".duckdb": _duckdb,
        ".parquet": _parquet,
    }.get(".json.gz" if name.endswith(".json.gz") else target.suffix.lower())
    if write is None:
        raise UsageError(f"export writes no {target.suffix or 'file without a suffix'}", f"Choose from {_KINDS}.")
    check_target(target, force=asked.output.force)
    with asked.load() as trace:
        written, seen = write(trace, target, asked.output.force)
    for path in written:
        sys.stdout.write(f"{path}  {path.stat().st_size / 1e6:.1f} MB\n")
    sys.stdout.flush()
    notices(seen, sys.stderr)
    return 1 if asked.output.strict and any(notice.severity == "warning" for notice in seen) else 0


def _picture(trace: Trace, target: Path, force: bool) -> tuple[list[Path], tuple[Notice, ...]]:
    from tracelens.analyses.export import picture
    from tracelens.views.perfetto import TraceFrames, write_trace

    drawn = picture(trace)
    frames = TraceFrames(
        drawn.ranks,
        drawn.events,
        drawn.origin_ns,
        steps=drawn.steps,
        waits=drawn.waits,
        arrows=drawn.arrows,
        buckets=drawn.buckets,
        gaps=drawn.gaps,
        metadata=drawn.metadata,
    )
    write_trace(frames, target, force=force)
    return [target], drawn.notices


def _duckdb(trace: Trace, target: Path, force: bool) -> tuple[list[Path], tuple[Notice, ...]]:
    from tracelens.analyses.export import write_duckdb
    from tracelens.views.output import staged

    with staged(target, force=force) as temporary:
        write_duckdb(trace, temporary)
    return [target], trace.notices


def _parquet(trace: Trace, target: Path, force: bool) -> tuple[list[Path], tuple[Notice, ...]]:
    from functools import partial

    from tracelens.analyses.export import model_tables, table_rows
    from tracelens.views.tables_file import Described, write_parquet

    tables = [
        Described(table.name, table.meaning, table.columns, partial(table_rows, trace, table))
        for table in model_tables(trace)
    ]
    return write_parquet(tables, target, main="event", force=force), trace.notices
