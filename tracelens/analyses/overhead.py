"""What the profiler adds to a step, where its duration without the profiler is known. Told, never subtracted."""

from __future__ import annotations

import polars as pl

from tracelens.errors import UsageError
from tracelens.frames import Notice
from tracelens.trace import LoadedTrace

LARGE_FRAC = 0.05
"""Above this, gaps may be more the profiler's than the program's."""


def profiler_overhead(trace: LoadedTrace, summary: pl.DataFrame) -> tuple[Notice, ...]:
    """The traced step against the one that `--expect-ms` gives.

    Args:
        trace: for the option.
        summary: of the steps, one row per phase and rung: phase, rung, step_count, p50_ns.

    Returns:
        One notice; none without the option.

    Raises:
        UsageError: the expected duration is not positive.
    """
    expected_ms = trace.options.expect_ms
    if expected_ms is None:
        return ()
    if expected_ms <= 0:
        raise UsageError(f"--expect-ms {expected_ms:g} is no step time", "Give the step without the profiler, in ms.")
    if summary.is_empty():
        return (
            Notice(
                "profiler-overhead",
                "warning",
                f"no whole step to hold against the {expected_ms:.3f} ms expected",
                "`tracelens steps` shows what there is.",
                None,
            ),
        )
    # The kind that the answer opens with: decode where there is any, the most frequent.
    shown = summary.sort(pl.col("phase") != "decode", -pl.col("step_count"), "rung", nulls_last=True).row(0, named=True)
    traced_ms = shown["p50_ns"] / 1e6
    more = traced_ms / expected_ms - 1
    told = (
        f"the traced {shown['phase']} step takes {traced_ms:.3f} ms, {expected_ms:.3f} ms were expected without the "
        f"profiler: {more:+.1%}; nothing is scaled"
    )
    if more > LARGE_FRAC:
        return (
            Notice(
                "profiler-overhead",
                "warning",
                f"{told}, and above 5 % it is probably the gaps that are longer, not the kernels",
                "Trace less: no backtraces, no context switches, --trace=cuda,nvtx alone.",
                None,
            ),
        )
    if more < -LARGE_FRAC:
        hint = "A traced step that is shorter is another batch, context or build."
        return (Notice("profiler-overhead", "warning", told, hint, None),)
    return (Notice("profiler-overhead", "info", told, "", None),)
