"""`tracelens simulate`: a synthetic capture in nsys's own format, with its truth."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tracelens.errors import OutputError, UsageError

if TYPE_CHECKING:
    from tracelens.simulate import CaptureSpec


def simulate(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write into; made if it is not there.")
    ],
    tp: Annotated[int, typer.Option(min=1, max=512, help="Tensor-parallel size: ranks.")] = 8,
    dp: Annotated[int, typer.Option(min=1, help="Replicas.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Decode steps.")] = 100,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the model.")] = 32,
    batch: Annotated[int, typer.Option(min=1, help="Requests per decode step.")] = 8,
    engine: Annotated[
        Literal["vllm", "sglang", "trtllm"], typer.Option(help="Whose kernel names and ranges.")
    ] = "vllm",
    launch: Annotated[
        Literal["graph", "piecewise", "eager"],
        typer.Option(help="CUDA graph replays, piecewise graphs, or eager calls."),
    ] = "graph",
    slow_rank: Annotated[int | None, typer.Option(min=0, help="A rank whose GPU computes more slowly.")] = None,
    slow_factor: Annotated[float, typer.Option(min=1.0, help="How much longer its kernels take.")] = 1.08,
    late_host_rank: Annotated[int | None, typer.Option(min=0, help="A rank whose host stalls in every step.")] = None,
    stall_us: Annotated[float, typer.Option(min=0, help="Length of each stall, us.")] = 176.0,
    stalls_per_step: Annotated[int, typer.Option(min=1, help="Stalls per step.")] = 48,
    one_file: Annotated[
        bool, typer.Option("--one-file/--per-rank", help="All ranks in one export, or one each.")
    ] = True,
    nsys_version: Annotated[str, typer.Option(help="Whose table layout.")] = "2026.2.1",
    seed: Annotated[int, typer.Option(help="Of the random generator; equal seeds give equal bytes.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Any other number or word of the specification."),
    ] = None,
) -> int:
    """A synthetic tensor-parallel capture in nsys's own format, with its truth as JSON."""
    from tracelens.simulate import VERSIONS, CaptureSpec, Slow, Stall, write

    if nsys_version not in VERSIONS:
        raise UsageError(f"--nsys-version {nsys_version} is not known", f"Choose from {', '.join(VERSIONS)}.")
    ranks = tp * dp
    faults: list[Any] = []
    for rank, fault in (
        (slow_rank, lambda one: Slow(ranks=(one,), factor=slow_factor)),
        (late_host_rank, lambda one: Stall(ranks=(one,), stall_ns=round(stall_us * 1e3), per_step=stalls_per_step)),
    ):
        if rank is not None:
            if rank >= ranks:
                raise UsageError(f"there is no rank {rank} among {ranks}", f"Ranks are 0 to {ranks - 1}.")
            faults.append(fault(rank))
    given: dict[str, Any] = {"tp": tp, "dp": dp, "steps": steps, "layers": layers, "batch": batch, "engine": engine}
    given |= {"launch": launch, "seed": seed, "faults": tuple(faults)}
    try:
        spec = CaptureSpec(**(given | _extra(CaptureSpec, set_ or [])))
        output.mkdir(parents=True, exist_ok=True)
        written = write(spec, output, one_file=one_file, nsys_version=nsys_version)
    except ValueError as error:
        raise UsageError(
            f"this capture cannot be simulated: {error}", "`tracelens simulate --help` lists the options."
        ) from error
    except FileExistsError as error:
        raise OutputError(
            f"{output} already holds a capture of that name", "Choose another folder; nothing is overwritten."
        ) from error
    except OSError as error:
        raise OutputError(
            f"{output} cannot be written ({error.strerror or type(error).__name__})", "Choose another folder."
        ) from error
    for path in written:
        sys.stdout.write(f"{path}\n")
    sys.stdout.write(f"\nnext: tracelens bucket {output}\n")
    return 0


def _extra(spec: type[CaptureSpec], assignments: list[str]) -> dict[str, Any]:
    """`--set field=value` as values of the field's own type."""
    known = {one.name: one for one in fields(spec)}
    found: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or name not in known:
            raise UsageError(f"--set {assignment!r}: no such field", f"Fields: {', '.join(sorted(known))}")
        default = known[name].default
        try:
            if isinstance(default, bool):
                found[name] = {"true": True, "false": False, "1": True, "0": False}[text.lower()]
            elif isinstance(default, tuple):
                found[name] = tuple(int(part) for part in text.split(",") if part)
            elif isinstance(default, (int, float)):
                found[name] = float(text) if isinstance(default, float) or "." in text else int(text)
            else:
                found[name] = int(text) if text.lstrip("-").isdigit() else text
        except (ValueError, KeyError) as error:
            raise UsageError(
                f"--set {assignment!r}: not a value of that field", f"Its default is {default!r}."
            ) from error
    return found
