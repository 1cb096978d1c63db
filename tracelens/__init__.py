"""tracelens: where each decode step's time goes on many GPUs, and which rank makes the others wait.

import tracelens
trace = tracelens.load("tp8.sqlite")
trace.buckets()["buckets"]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["Notice", "Options", "Result", "Trace", "TracelensError", "compare", "load"]

if TYPE_CHECKING:
    from tracelens.analyses.compare import compare
    from tracelens.api import Trace, load
    from tracelens.errors import TracelensError
    from tracelens.frames import Notice, Result
    from tracelens.trace import Options

_HOMES = {
    "compare": "tracelens.analyses.compare",
    "load": "tracelens.api",
    "Notice": "tracelens.frames",
    "Options": "tracelens.trace",
    "Result": "tracelens.frames",
    "Trace": "tracelens.api",
    "TracelensError": "tracelens.errors",
}


def __getattr__(name: str) -> Any:
    # Imported on first use, so that `tracelens --help` starts without DuckDB and polars.
    if name not in _HOMES:
        raise AttributeError(f"module 'tracelens' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
