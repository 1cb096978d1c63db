"""Small captures of steps, drawn by hand: us in, an opened trace out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tracelens.simulate import Copy, Kernel, Launch, Range, write_events
from tracelens.trace import LoadedTrace, Options, open_trace

GEMM, NORM, SAMPLE = "void gemm<(int)8>(float *)", "void rms_norm<float>(float *)", "void argmax_kernel<float>(float *)"
US = 1_000

_counter = itertools.count()


def load(rows: Iterable[Any], folder: Path, *, write: dict[str, Any] | None = None, **options: Any) -> LoadedTrace:
    """The trace of one export made of `rows`, whose clocks are trusted unless asked otherwise."""
    path = write_events(rows, folder / f"drawn{next(_counter)}.sqlite", **(write or {}))
    return open_trace([str(path)], Options(**({"clock": "trust"} | options)))


def kernel(name: str, start: float, end: float, launch: float | None = None, **more: Any) -> Kernel:
    """A kernel in us; its call begins at `launch` and lasts 2 us."""
    call = None if launch is None else (round(launch * US), round((launch + 2) * US))
    return Kernel(name, round(start * US), round(end * US), launch=call, **more)


def copy(kind: str, start: float, end: float, launch: float | None = None, **more: Any) -> Copy:
    """A copy in us; its call begins at `launch` and lasts 2 us."""
    call = None if launch is None else (round(launch * US), round((launch + 2) * US))
    return Copy(kind, round(start * US), round(end * US), launch=call, **more)


def mark(text: str, start: float, end: float, **more: Any) -> Range:
    """A range in us."""
    return Range(text, round(start * US), round(end * US), **more)


def replay(correlation: int, start: float, names: list[str], launch: float | None = None, **more: Any) -> list[Any]:
    """Nodes of one replay, 10 us each and 1 us apart, and the call that launched them (30 us)."""
    rows: list[Any] = [
        kernel(name, start + 11 * place, start + 11 * place + 10, correlation=correlation, graph_node=1 + place, **more)
        for place, name in enumerate(names)
    ]
    if launch is not None:
        where = {key: value for key, value in more.items() if key == "pid"}
        call = Launch("cudaGraphLaunch_v10000", round(launch * US), round((launch + 30) * US), correlation, **where)
        rows.append(call)
    return rows
