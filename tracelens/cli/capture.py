"""`tracelens capture`: the nsys line that takes a capture which can answer every question."""

from __future__ import annotations

import glob
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from tracelens.errors import InputError, UsageError


def capture(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="The server's command line, after --.", show_default=False),
    ] = None,
    engine: Annotated[
        Literal["vllm", "sglang", "trtllm"] | None,
        typer.Option(help="Engine to advise for; by default what COMMAND names."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the report, without suffix.")] = "capture",
    delay: Annotated[int, typer.Option(min=0, help="Seconds before the window opens.")] = 60,
    duration: Annotated[int, typer.Option(min=1, help="Length of the window, seconds.")] = 30,
    run: Annotated[bool, typer.Option("--run", help="Run the two commands instead of printing them.")] = False,
) -> int:
    """Prints, or with --run runs, the right nsys profile line and the matching nsys export.

    Example: tracelens capture --engine vllm -- vllm serve MODEL --tensor-parallel-size 8
    """
    from tracelens.capture_line import CaptureLine, reasons

    words = tuple(command or ())
    if not words:
        raise UsageError(
            "capture needs the server's command line",
            "tracelens capture --engine vllm -- vllm serve MODEL --tensor-parallel-size 8",
        )
    named = engine or next(
        (word for word in ("vllm", "sglang", "trtllm") if any(word in part.lower() for part in words)), None
    )
    line = CaptureLine(words, name, delay, duration)
    if not run:
        sys.stdout.write(f"{shlex.join(line.profile())}\n{line.export_text()}\n\n")
        for flag, why in reasons(line, named):
            sys.stdout.write(f"# {flag}: {why}\n" if flag else f"# {why}\n")
        files = f"{name}.rank*.sqlite" if line.per_rank else f"{name}.sqlite"
        sys.stdout.write(f"\n# then: tracelens info {files}\n")
        return 0
    _run(line.profile())
    reports = sorted(Path().glob(f"{glob.escape(name)}.rank*.nsys-rep")) if line.per_rank else [None]
    for report in reports:
        _run(line.export(None if report is None else report.name.removesuffix(".nsys-rep")))
    return 0


def _run(words: list[str]) -> None:
    """Runs one command as the user would, without a shell."""
    import shutil
    import subprocess

    if shutil.which("nsys") is None:
        raise InputError(
            "nsys is not on the PATH", "Leave --run out to see the commands, and run them where nsys is installed."
        )
    done = subprocess.run(words, check=False)
    if done.returncode:
        task = "export" if words[:2] == ["nsys", "export"] else "profile"
        raise InputError(f"nsys {task} ended with exit code {done.returncode}", "Its own messages stand above.")
