"""Which names a map is judged by: those of a capture, with their time, or the shipped examples, without."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tracelens.ruleset.corpus import example_names
from tracelens.trace import LoadedTrace

_SQL = Path(__file__).with_suffix(".sql")


def names_of_trace(trace: LoadedTrace) -> pl.DataFrame:
    """kernel_name, kernel_ns of every name that ran on a rank, largest first."""
    return trace.rows(_SQL, "names", ranks=trace.ranks)


def names_of_examples() -> pl.DataFrame:
    """kernel_name of the shipped examples; kernel_ns is null, since they never ran."""
    names = example_names()
    return pl.DataFrame(
        {"kernel_name": names, "kernel_ns": [None] * len(names)},
        schema={"kernel_name": pl.String, "kernel_ns": pl.Int64},
    )
