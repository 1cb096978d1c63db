"""What a load may use: threads, memory, other processes; and a DuckDB that keeps to it."""

from __future__ import annotations

import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import duckdb

from tracelens.ingest import cache
from tracelens.memory import default_bytes

LOCAL = "local"
_DUCKDB_SHARE = 0.75
"""Of the memory allowed, what DuckDB may hold while captures are loaded; the program and what it reads take the rest."""


@dataclass(frozen=True)
class Means:
    """What a load may use.

    Attributes:
        loader: `sqlite` forces the plain reading path.
        use_cache: whether stored loads are used, and made.
        threads: None: as many as the machine has.
        memory_bytes: limit; None: half the machine's, at most 4 GB.
        executor: `local`, or `dask://HOST:PORT`.
    """

    loader: Literal["auto", "sqlite"] = "auto"
    use_cache: bool = True
    threads: int | None = None
    memory_bytes: int | None = None
    executor: str = LOCAL

    @property
    def thread_count(self) -> int:
        """How many threads, or processes, may work at once."""
        return self.threads or len(os.sched_getaffinity(0))

    @property
    def limit_bytes(self) -> int:
        """How much memory may be used."""
        return self.memory_bytes or default_bytes()


def connect(means: Means, base: Path | None = None) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB that downloads nothing, reads no file by itself, and keeps to the given limits.

    Args:
        means: the limits.
        base: where what does not fit into memory goes; DuckDB's own default lies in the current directory.
    """
    db = duckdb.connect()
    db.execute(
        "SET autoinstall_known_extensions = false; SET autoload_known_extensions = false; SET enable_progress_bar = false"
    )
    db.execute("SET python_enable_replacements = false")
    # What a query has freed goes back to the system while the analyses work, instead of at DuckDB's next query.
    db.execute("SET allocator_background_threads = true")
    # DuckDB makes this folder when it needs it, and removes it at the end.
    spill = (base or Path(tempfile.gettempdir())) / f"{cache.SPILL}{os.getpid()}-{secrets.token_hex(8)}"
    db.execute("SET temp_directory = ?", [str(spill)])
    db.execute("SET TimeZone = 'UTC'")
    if means.threads:
        db.execute("SET threads = ?", [means.threads])
    db.execute("SET memory_limit = ?", [f"{int(_DUCKDB_SHARE * means.limit_bytes)}B"])
    return db
