"""Derived tables in a trace's database, written when they are asked for and by the trace that asks last.

Traces with other options share one database, and each has its own steps and gaps: a table is written again when its
owner is not the one that wrote it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from tracelens.trace import LoadedTrace

_WRITERS: dict[tuple[int, str], weakref.ref[Any]] = {}


def register(trace: LoadedTrace, table: str, owner: object, write: Callable[[], None]) -> None:
    """Calls `write()` unless `owner` is what the table holds already."""
    key = (id(trace.db), table)
    known = _WRITERS.get(key)
    if known is not None and known() is owner:
        return
    write()
    _WRITERS[key] = weakref.ref(owner)
