"""Builds the table `nvtx`, in memory or as a file: a capture may hold tens of millions of ranges."""

from __future__ import annotations

import glob
from itertools import pairwise
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from tracelens.frames import Notice
from tracelens.model import ledger
from tracelens.model.notices import add_notice, take_notices
from tracelens.sqlfiles import queries
from tracelens.units import plural

_SQL = queries(Path(__file__).with_suffix(".sql"))
#: So many rows are put in order at once, fewer where texts are long; more would only take more memory.
_PART_ROWS, _PART_TEXT_BYTES = 1 << 20, 1 << 27
#: So many rows of each part are looked at to find where it begins.
_SAMPLES = 64
_BATCH_ROWS = 1 << 17
_FIRST, _LAST = (-(2**31), -(2**63)), (2**31 - 1, 2**63 - 1)


def build_nvtx(db: duckdb.DuckDBPyConnection, file: Path | None = None) -> None:
    """Builds nvtx from raw_nvtx.

    Args:
        db: holds raw_nvtx.
        file: where its rows go, for `read_nvtx`; None: into memory.

    Raises:
        OSError: the file cannot be written.
    """
    db.execute(_SQL["rows"])
    if file is None:
        db.execute(_SQL["in_memory"])
    else:
        _write(db, file)
    db.execute(_SQL["drop"])
    take_notices(db)
    ((unclosed,),) = db.execute(_SQL["unclosed"]).fetchall()
    if unclosed:
        add_notice(
            db,
            Notice(
                "nvtx-unclosed",
                "info",
                f"{plural(unclosed, 'NVTX range')} still open when the capture ended; nsys closed what was open there",
                "",
                unclosed,
            ),
        )
    ledger.enter_tables(db, ("NVTX_EVENTS",), db.execute(_SQL["excluded"]).fetchall())


def read_nvtx(db: duckdb.DuckDBPyConnection, file: Path) -> None:
    """Makes nvtx of the file that `build_nvtx` wrote."""
    db.read_parquet(glob.escape(str(file))).create_view("nvtx", replace=True)


def _write(db: duckdb.DuckDBPyConnection, file: Path) -> None:
    """Writes the rows in order, part by part, so that memory holds one part at a time."""
    ((width,),) = db.execute(_SQL["text_width"]).fetchall()
    rows = max(_SAMPLES, min(_PART_ROWS, int(_PART_TEXT_BYTES / (width or 1))))
    every = rows // _SAMPLES
    sampled = db.execute(_SQL["sampled"], {"every": every}).fetchall()
    cuts = [_FIRST, *sampled[_SAMPLES::_SAMPLES], _LAST]
    writer: pq.ParquetWriter | None = None
    try:
        for (low, low_ns), (high, high_ns) in pairwise(cuts):
            bounds = {"low": low, "low_ns": low_ns, "high": high, "high_ns": high_ns}
            with db.sql(_SQL["part"], params=bounds).to_arrow_reader(min(rows, _BATCH_ROWS)) as reader:
                if writer is None:
                    repeating = [name for name in reader.schema.names if name not in ("start_ns", "end_ns")]
                    writer = pq.ParquetWriter(
                        file, reader.schema, compression="zstd", compression_level=1, use_dictionary=repeating
                    )
                for batch in reader:
                    writer.write_batch(batch)
    finally:
        if writer is not None:
            writer.close()
