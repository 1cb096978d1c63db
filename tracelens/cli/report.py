"""`tracelens report`: the kernel-budget report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens.cli.options import Asked, over_trace_to_file
from tracelens.errors import UsageError

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tracelens.analyses.compare import CompareResult
    from tracelens.analyses.scaling import ScalingResult
    from tracelens.api import Trace


@over_trace_to_file
def report(
    asked: Asked,
    compare: Annotated[
        str | None, typer.Option(metavar="OTHER", help="Also what changed: OTHER is the run before.")
    ] = None,
    scaling: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Also measured against predicted: JSON that tracelens scaling wrote."),
    ] = None,
) -> int:
    """The kernel-budget report: one HTML page that opens anywhere, without a network."""
    from contextlib import ExitStack

    from tracelens.views.output import check_target
    from tracelens.views.terminal import Screen, notices

    target = Path(asked.output.file or "report.html")
    if target.suffix.lower() not in ("", ".html", ".htm"):
        raise UsageError(f"the report is a web page, not a {target.suffix} file", "-o report.html")
    check_target(target, force=asked.output.force)
    scaled = None if scaling is None else _scaled(Path(scaling))
    with ExitStack() as stack:
        trace = stack.enter_context(asked.load())
        compared = None if compare is None else _compared(asked, compare, trace, stack)
        result = trace.report(target, compared=compared, scaled=scaled, force=asked.output.force)
    Screen(sys.stdout).sentences(
        [*result.sentences[:1], f"The report: {target} ({target.stat().st_size / 1e6:.1f} MB)"]
    )
    sys.stdout.flush()
    notices(result.notices, sys.stderr)
    return 1 if asked.output.strict and any(notice.severity == "warning" for notice in result.notices) else 0


def _compared(asked: Asked, other: str, trace: Trace, stack: ExitStack) -> CompareResult:
    from tracelens.api import compare

    before = stack.enter_context(asked.load((other,)))
    trace.steps()  # The page shows them too; what a comparison finds by itself it does not leave behind.
    return compare(before, trace)


def _scaled(path: Path) -> ScalingResult:
    """The points of a `tracelens scaling` run, read from its JSON."""
    import json

    import polars as pl

    from tracelens.analyses.scaling import ScalingResult

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["command"] != "scaling":
            raise KeyError("command")
        tables = {name: schema.frame(found[name]) for name, schema in ScalingResult.schemas.items() if name in found}
        parts = [name for name in found["points"][0] if name not in tables["points"].columns]
        tables["points"] = tables["points"].with_columns(
            pl.Series(name, [row[name] for row in found["points"]], dtype=pl.Float64) for name in parts
        )
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError, pl.exceptions.PolarsError) as error:
        raise UsageError(
            f"{path} is not what tracelens scaling writes", "Make it: tracelens scaling ... -o scaling.json"
        ) from error
    return ScalingResult(tables, provenance=found.get("provenance", {}))
