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
    from tracelens.analyses.collectives import CollectivesResult
    from tracelens.analyses.compare import CompareResult
    from tracelens.analyses.gaps import GapsResult
    from tracelens.analyses.info import InfoResult
    from tracelens.analyses.report import ReportResult
    from tracelens.analyses.scaling import ScalingResult
    from tracelens.analyses.skew import SkewResult
    from tracelens.analyses.steps import StepsResult


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

    def report(
        self,
        path: str | PathLike[str] | None = None,
        *,
        compared: CompareResult | None = None,
        scaled: ScalingResult | None = None,
        force: bool = False,
    ) -> ReportResult:
        """Everything the kernel-budget report shows; with a path, the page is written there.

        Args:
            path: the HTML file to write; None: none.
            compared: the answer of `compare`, which then opens the page.
            scaled: the answer of `scaling`, which then closes it.
            force: replace a file that is there.

        Raises:
            OutputError: the file exists or cannot be written.
        """
        from tracelens.analyses.report import report

        if path is None:
            return report(self, compared=compared, scaled=scaled)
        from pathlib import Path

        from tracelens import __version__
        from tracelens.views.html import write_report
        from tracelens.views.output import check_target

        check_target(Path(path), force=force)
        result = report(self, compared=compared, scaled=scaled)
        write_report(result, Path(path), version=__version__, force=force)
        return result

    def _repr_html_(self) -> str:
        from tracelens.views.notebook import trace_html

        told = self.provenance()
        return trace_html(
            told["exports"], told["ranks"], [("rules", told["rules"]), ("engine", told["engine"])], self.notices
        )

    def steps(self) -> StepsResult:
        """Latency, collective time and gaps per step, and a summary; see `tracelens.analyses.steps.steps`."""
        from tracelens.analyses.steps import steps

        return steps(self)

    def gaps(self, *, all: bool = False) -> GapsResult:
        """Why the GPU idled, by cause; see `tracelens.analyses.gaps.gaps`."""
        from tracelens.analyses.gaps import gaps

        return gaps(self, all=all)

    def collectives(self, *, all: bool = False) -> CollectivesResult:
        """Each collective operation: calls, duration, wait, transfer; see `tracelens.analyses.collectives.collectives`."""
        from tracelens.analyses.collectives import collectives

        return collectives(self, all=all)

    def skew(self) -> SkewResult:
        """Who makes whom wait, how much it costs, and why; see `tracelens.analyses.skew.skew`."""
        from tracelens.analyses.skew import skew

        return skew(self)

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
