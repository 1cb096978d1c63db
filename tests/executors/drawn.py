"""Captures of many files, and everything that a load makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tracelens import loading
from tracelens.executors import crew, pool
from tracelens.simulate import CaptureSpec, Late, write
from tracelens.trace import Options, open_trace

SPEC = CaptureSpec(
    tp=4, layers=1, steps=12, all_reduce="nccl", nccl_payload="both", foreign_process=True, side_contexts=True,
    prefill_every=8, faults=(Late((1,), 20_000),),
)  # fmt: skip
_TABLES = ("event", "other_event", "export", "process", "rank", "kernel_name", "launch", "nvtx", "notice", "ledger")

#: In a process of its own: every capture of several files is read by a pool.
LIFTED = (
    "import sys; from tracelens import loading; from tracelens.executors import crew, pool;"
    "loading._SMALL_BYTES = loading._FEW_EVENTS = pool.POOL_BYTES = 0; crew.PORTION_BYTES = 1; crew._SHARES_EACH = 64;"
    "from tracelens.cli import run; sys.exit(run(sys.argv[1:]))"
)


def lift(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `LIFTED`, in this process."""
    monkeypatch.setattr(loading, "_SMALL_BYTES", 0)
    monkeypatch.setattr(loading, "_FEW_EVENTS", 0)
    monkeypatch.setattr(pool, "POOL_BYTES", 0)
    monkeypatch.setattr(crew, "PORTION_BYTES", 1)
    monkeypatch.setattr(crew, "_SHARES_EACH", 64)  # each file by itself


def rank_files(folder: Path, spec: CaptureSpec = SPEC) -> list[str]:
    """A capture with a file per rank, of which the last calls a name of its own."""
    return [str(one) for one in write(spec, folder, one_file=False, truth=False)]


def tables(paths: list[str], **options: Any) -> dict[str, list[Any]]:
    """Every row of every model table, in the order in which they lie."""
    with open_trace(paths, Options(use_cache=False, **options)) as trace:
        trace.ensure("launch")
        trace.ensure("nvtx")
        return {name: trace.db.sql(f"SELECT * FROM {name}").fetchall() for name in _TABLES}
