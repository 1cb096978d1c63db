"""The public face: `load` gives a `Trace`, and a `Trace` answers questions.

import tracelens
trace = tracelens.load("tp8.sqlite")
trace.buckets()["buckets"]          # a polars frame
trace.skew().sentences[0]           # the verdict in words
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal

from tracelens.trace import LoadedTrace, Options, open_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from tracelens.analyses.buckets import BucketResult
    from tracelens.analyses.compare import CompareResult
    from tracelens.analyses.info import InfoResult


class Trace(LoadedTrace):
    """A loaded capture. Every method answers one question and returns a result of named polars frames."""

    def info(self) -> InfoResult:
        """What is in the capture, which ranks, and what is wrong with it."""
        from tracelens.analyses.info import info

        return info(self)

    def buckets(
        self,
        *,
        kernels: bool = False,
        compat: Literal["gputrc2graph"] | None = None,
        non_profiled_s: float | None = None,
    ) -> BucketResult:
        """Where each rank's time went, bucket by bucket; see `tracelens.analyses.buckets.buckets`."""
        from tracelens.analyses.buckets import buckets

        return buckets(self, kernels=kernels, compat=compat, non_profiled_s=non_profiled_s)

    def sql(self, query: str) -> pl.DataFrame:
        """Runs one read-only query on the model tables; see `tracelens.analyses.query.sql`."""
        from tracelens.analyses.query import sql

        return sql(self, query)


def load(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]] = (),
    *,
    progress: Callable[[str, int, int], None] | None = None,
    **options: Any,
) -> Trace:
    """Loads the captures of one run.

    Args:
        paths: exports, reports, folders or globs; none: those of the current directory.
        progress: called with (file, rows read, rows in all).
        **options: the fields of `tracelens.trace.Options`.

    Raises:
        TracelensError: see `tracelens.errors`.
    """
    several = [paths] if isinstance(paths, (str, PathLike)) else list(paths)
    return open_trace([fspath(path) for path in several], Options(**options), progress, kind=Trace)


def compare(before: Trace | Sequence[Trace], after: Trace | Sequence[Trace]) -> CompareResult:
    """What changed per step between two runs, each one capture or several; see `tracelens.analyses.compare.compare`."""
    from tracelens.analyses.compare import compare

    return compare(before, after)
