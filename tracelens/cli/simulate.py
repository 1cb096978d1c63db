"""`tracelens simulate`: a synthetic capture in nsys's own format, with its truth."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tracelens.errors import OutputError, UsageError

if TYPE_CHECKING:
    from tracelens.simulate import CaptureSpec


def simulate(
    context: typer.Context,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder to write into; made if it is not there."),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A ready-made problem (`list` names them) with a folder for each of its captures; "
            "only --steps and --set still apply.",
        ),
    ] = None,
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
    from tracelens.simulate import VERSIONS, CaptureSpec, write

    if scenario == "list":
        return _list()
    if output is None:
        raise UsageError("simulate needs a folder to write into", "tracelens simulate -o DIR")
    if nsys_version not in VERSIONS:
        raise UsageError(f"--nsys-version {nsys_version} is not known", f"Choose from {', '.join(VERSIONS)}.")
    extra = _extra(CaptureSpec, set_ or [])
    written: list[Path] = []
    folder = output
    try:
        if scenario is None:
            given: dict[str, Any] = {"tp": tp, "dp": dp, "steps": steps, "layers": layers, "batch": batch}
            given |= {"engine": engine, "launch": launch, "seed": seed}
            stall = (late_host_rank, round(stall_us * 1e3), stalls_per_step)
            given["faults"] = _faults(tp * dp, (slow_rank, slow_factor), stall)
            captures = {"": CaptureSpec(**(given | extra))}
        else:
            captures = _scenario(scenario, context, extra)
        for label, spec in captures.items():
            folder = output / label
            folder.mkdir(parents=True, exist_ok=True)
            written += write(spec, folder, one_file=one_file, nsys_version=nsys_version)
    except ValueError as error:
        raise UsageError(
            f"this capture cannot be simulated: {error}", "`tracelens simulate --help` lists the options."
        ) from error
    except OSError as error:
        raise OutputError(
            f"{folder} cannot be written ({error.strerror or type(error).__name__})", "Choose another folder."
        ) from error
    for path in written:
        sys.stdout.write(f"{path}\n")
    if {"before", "after"} <= set(captures):
        sys.stdout.write(f"\nnext: tracelens compare {output / 'before'} {output / 'after'}\n")
    else:
        sys.stdout.write(f"\nnext: tracelens bucket {written[-1].parent}\n")
    return 0


def _list() -> int:
    """The scenarios, one a line, with what an analysis should find in each."""
    from tracelens.simulate import SCENARIOS

    for one in SCENARIOS.values():
        sys.stdout.write(f"{one.name:<12}  {one.says}\n")
    return 0


def _scenario(name: str, context: typer.Context, extra: dict[str, Any]) -> dict[str, CaptureSpec]:
    """The captures of a scenario by the folder that each goes to; a single one goes to the folder itself."""
    from tracelens.simulate import scenario

    captures = scenario(name)
    given = {one for one in context.params if _typed(context, one)}
    useless = sorted(given - {"output", "scenario", "steps", "set_", "one_file", "nsys_version"})
    if useless:
        option = "--" + useless[0].replace("_", "-")
        raise UsageError(f"--scenario {name} sets {option} itself", "Leave it out, or change a field with --set.")
    changed = ({"steps": context.params["steps"]} if "steps" in given else {}) | extra
    return {label if len(captures) > 1 else "": replace(spec, **changed) for label, spec in captures.items()}


def _typed(context: typer.Context, parameter: str) -> bool:
    """Whether the user gave this option."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name != "DEFAULT"


def _faults(ranks: int, slow: tuple[int | None, float], late: tuple[int | None, int, int]) -> tuple[Any, ...]:
    """The faults that the options ask for."""
    from tracelens.simulate import Slow, Stall

    for rank in (slow[0], late[0]):
        if rank is not None and rank >= ranks:
            raise UsageError(f"there is no rank {rank} among {ranks}", f"Ranks are 0 to {ranks - 1}.")
    faults: list[Any] = []
    if slow[0] is not None:
        faults.append(Slow(ranks=(slow[0],), factor=slow[1]))
    if late[0] is not None:
        faults.append(Stall(ranks=(late[0],), stall_ns=late[1], per_step=late[2]))
    return tuple(faults)


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
