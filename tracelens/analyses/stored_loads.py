"""The loads that are kept for the next question."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar

import polars as pl

from tracelens.frames import Column, Notice, Result, Schema
from tracelens.ingest import cache

_SCHEMA = Schema(
    "one stored load, the one that was longest unused first",
    Column("load", pl.String, "Its name: a digest of what the captures contain, not of where they lie"),
    Column("size_bytes", pl.Int64, "On disk", "bytes"),
    Column("event_count", pl.Int64, "Events of its ranks", "count"),
    Column("rank_count", pl.Int64, "Ranks", "count"),
    Column("used_utc", pl.String, "When it was last used, UTC"),
    Column("in_use", pl.Boolean, "Whether a process holds it now"),
)


class CacheListResult(Result):
    """What is stored."""

    command: ClassVar[str] = "cache list"
    schemas: ClassVar = {"loads": _SCHEMA}


class CacheClearResult(Result):
    """What was removed."""

    command: ClassVar[str] = "cache clear"
    schemas: ClassVar = {"removed": _SCHEMA}


def list_loads() -> CacheListResult:
    """Every stored load, and how much they take together of what they may."""
    loads = cache.stored()
    total = sum(one.size_bytes for one in loads)
    told = f"{_counted(len(loads))}, {total / 1e9:,.2f} of at most {cache.limit_bytes() / 1e9:g} GB."
    return CacheListResult({"loads": _frame(loads)}, (), {"limit_bytes": cache.limit_bytes()}, (told,))


def clear_loads() -> CacheClearResult:
    """Removes every stored load but those that a process holds."""
    before = cache.stored()
    cache.clear()
    left = {one.key for one in cache.stored()}
    gone = [one for one in before if one.key not in left]
    total = sum(one.size_bytes for one in gone)
    notices = (Notice("cache-in-use", "info", f"{_counted(len(left))} could not be removed: in use", "", len(left)),)
    told = f"{_counted(len(gone))} removed, {total / 1e9:,.2f} GB."
    return CacheClearResult({"removed": _frame(gone)}, notices if left else (), {}, (told,))


def _frame(loads: list[cache.Stored]) -> pl.DataFrame:
    return _SCHEMA.frame(
        [
            {
                "load": one.key,
                "size_bytes": one.size_bytes,
                "event_count": one.about.get("event_count"),
                "rank_count": one.about.get("rank_count"),
                "used_utc": datetime.fromtimestamp(int(one.used_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "in_use": one.in_use,
            }
            for one in loads
        ]
    )


def _counted(count: int) -> str:
    return f"{count} stored load{'' if count == 1 else 's'}"
