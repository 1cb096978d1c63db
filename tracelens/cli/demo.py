"""`tracelens demo`: a first look without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens.errors import OutputError

if TYPE_CHECKING:
    from tracelens.simulate import CaptureSpec

#: What is simulated: an 8-GPU decode whose rank 5 computes 6 % more slowly, and whose GPU clocks are 12 us apart.
RANKS, STEPS, SLOW_RANK, SLOW_FACTOR = 8, 120, 5, 1.06


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the capture and the report.")
    ] = Path("tracelens-demo"),
) -> int:
    """Simulates a capture of 8 GPUs with one slow rank, says what it shows, and writes the report."""
    from tracelens.api import load
    from tracelens.views import bucket, skew
    from tracelens.views.terminal import Screen, notices

    capture = _capture(output)
    with load(capture) as trace:
        screen = Screen(sys.stdout)
        screen.line(
            f"A simulated decode of {RANKS} GPUs, {STEPS} steps; rank {SLOW_RANK} computes {SLOW_FACTOR - 1:.0%} more slowly."
        )
        screen.line()
        result = trace.skew()
        skew.show(result, screen)
        bucket.show(trace.buckets(), screen)
        report = output / "report.html"
        trace.report(report, force=True)
        sys.stdout.flush()
        notices(result.notices, sys.stderr)
    sys.stdout.write(
        f"\nThe capture: {capture}\nThe report:  {report} (open it in a browser)\nIts truth:   {output / 'truth.json'}\n\n"
        "On your own capture:\n"
        "  tracelens capture -- vllm serve MODEL --tensor-parallel-size 8     how to take it\n"
        "  tracelens info tp8.sqlite                                          what is in it\n"
        "  tracelens bucket tp8.sqlite                                        where the time went\n"
        "  tracelens skew tp8.sqlite                                          who makes whom wait\n"
        "  tracelens report tp8.sqlite -o report.html                         all of it in one page\n"
    )
    return 0


def _capture(folder: Path) -> Path:
    """The demo's capture in `folder`; one that is there already is used again."""
    from tracelens.simulate import CaptureSpec, Slow, write

    capture = folder / f"tp{RANKS}.sqlite"
    spec = CaptureSpec(
        tp=RANKS,
        steps=STEPS,
        layers=32,
        seed=1,
        gpu_offset_max_ns=12_000,
        gpu_drift_max_ppm=0.5,
        faults=(Slow(ranks=(SLOW_RANK,), factor=SLOW_FACTOR),),
    )
    if capture.exists():
        if _is_of(spec, folder / "truth.json"):
            return capture
        raise OutputError(f"{capture} exists, and it is not the demo's", "Choose another folder: tracelens demo -o DIR")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write(spec, folder)
    except OSError as error:
        raise OutputError(
            f"{folder} cannot be written ({error.strerror or type(error).__name__})",
            "Choose another folder: tracelens demo -o DIR",
        ) from error
    return capture


def _is_of(spec: CaptureSpec, truth: Path) -> bool:
    """Whether the truth that stands beside a capture says that it was made of this specification."""
    import json
    from dataclasses import asdict

    try:
        told = json.loads(truth.read_bytes())["spec"]
    except (OSError, ValueError, TypeError, KeyError):
        return False
    mine = json.loads(json.dumps({key: value for key, value in asdict(spec).items() if key != "faults"}))
    return isinstance(told, dict) and all(told.get(key) == value for key, value in mine.items())
