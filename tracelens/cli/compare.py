"""`tracelens compare`: what changed per step between two runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import typer

from tracelens.cli.options import Asked, over_trace_options
from tracelens.errors import UsageError

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tracelens.analyses.compare import CompareResult
    from tracelens.analyses.gate import Gate
    from tracelens.api import Trace


@over_trace_options
def compare(
    asked: Asked,
    sides: Annotated[
        list[str],
        typer.Argument(
            metavar="BEFORE AFTER [MORE...]",
            help="The runs; a side may be several captures of one build: A1.sqlite,A2.sqlite or a quoted glob.",
        ),
    ],
    fail_above: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Exit with 1 if the metric surely grew by more, e.g. 2%.")
    ] = None,
    metric: Annotated[
        str, typer.Option(help="What --fail-above looks at: step, collective, gap, gap:CAUSE or bucket:NAME.")
    ] = "step",
    inconclusive: Annotated[
        Literal["fail", "pass"], typer.Option(help="What --fail-above makes of an interval that holds the limit.")
    ] = "pass",
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A small file of per-step figures: with one capture and no such file it is saved; with one capture and the file, the file is BEFORE.",
        ),
    ] = None,
) -> int:
    """What changed per step, with evidence; percentages are of step time, not of tokens per second."""
    from contextlib import ExitStack

    from tracelens.analyses.gate import judge
    from tracelens.cli.present import present
    from tracelens.views import compare as view

    limit = _percent(fail_above)
    with ExitStack() as stack:
        if baseline is not None and len(sides) == 1 and not Path(baseline).exists():
            return _save(asked, sides[0], Path(baseline), stack)
        results = _results(asked, sides, baseline, stack)
        if len(results) > 1 and (asked.output.file or asked.output.format not in ("table", "markdown")):
            raise UsageError(
                f"{len(results)} comparisons in one {asked.output.format}",
                "Compare one pair at a time, or print a table.",
            )
        # Before anything is printed: a metric that is not there is a refusal, not an answer with a complaint after it.
        gates = [None if limit is None else judge(result, limit, metric) for _, result in results]
        code = 0
        for place, ((name, result), gate) in enumerate(zip(results, gates, strict=True)):
            if len(results) > 1:
                sys.stdout.write(("\n" if place else "") + f"== {sides[0]} -> {name}\n")
            code = max(code, present(result, asked.output, view.show))
            if gate is not None:
                code = max(code, _tell(gate, inconclusive))
        return code


def _results(asked: Asked, sides: list[str], baseline: str | None, stack: ExitStack) -> list[tuple[str, CompareResult]]:
    """Each later run against the first, or the one run against the baseline."""
    from tracelens.analyses.compare import check_ranks, compare_figures
    from tracelens.analyses.compare_sides import load_side, rungs_of, shared_rung, side_figures
    from tracelens.api import compare as compare_traces

    if baseline is not None:
        if len(sides) != 1:
            raise UsageError(
                f"--baseline with {len(sides)} runs", "Give the one run to save, or to compare with the saved one."
            )
        saved = load_side(Path(baseline))
        found = []
        for trace in _load(asked, sides[0], stack):
            check_ranks(len(saved.ranks), len(trace.ranks))
            _, chosen, _ = shared_rung([(saved.phase, saved.rung, saved.step_count)], rungs_of(trace))
            found.append(side_figures(trace, *chosen))
        return [(sides[0], compare_figures([saved], found))]
    if len(sides) < 2:
        raise UsageError("compare needs two runs", "tracelens compare before.sqlite after.sqlite")
    loaded = [_load(asked, side, stack) for side in sides]
    return [(side, compare_traces(loaded[0], other)) for side, other in zip(sides[1:], loaded[1:], strict=True)]


def _load(asked: Asked, side: str, stack: ExitStack) -> list[Trace]:
    """The captures of one side: a comma separates captures of one build; a folder or a glob is one capture."""
    return [stack.enter_context(asked.load((part,))) for part in side.split(",") if part]


def _save(asked: Asked, side: str, path: Path, stack: ExitStack) -> int:
    from tracelens.analyses.compare_sides import rungs_of, side_figures
    from tracelens.errors import NotComparableError
    from tracelens.units import plural
    from tracelens.views.output import write_atomically

    traces = _load(asked, side, stack)
    if len(traces) != 1:
        raise UsageError("a baseline holds one capture", "Name one capture to save.")
    rungs = rungs_of(traces[0])
    if not rungs:
        raise NotComparableError(f"{side}: no complete step to keep", "`tracelens steps` shows what there is.")
    phase, rung, count = next((one for one in rungs if one[0] == "decode"), rungs[0])
    blob = side_figures(traces[0], phase, rung).save()

    def write(stream: BinaryIO) -> None:
        stream.write(blob)

    write_atomically(path, write, force=asked.output.force)
    sys.stdout.write(f"{path}: {plural(count, 'step')} of {phase} {rung}, {len(blob) / 1e3:.0f} kB\n")
    return 0


def _tell(gate: Gate, inconclusive: str) -> int:
    """Says how the gate stands; returns the exit code."""
    sys.stdout.flush()
    sys.stderr.write(f"gate: {gate.sentence}\n")
    return 1 if gate.outcome == "fail" or (gate.outcome == "inconclusive" and inconclusive == "fail") else 0


def _percent(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text.strip().removesuffix("%")) / 100
    except ValueError as error:
        raise UsageError(f"--fail-above {text!r} is not a percentage", "Give it as 2% or 2.") from error
    if not 0 <= value < 100:
        raise UsageError(f"--fail-above {text!r} is out of range", "Give a share of the step, e.g. 2%.")
    return value
