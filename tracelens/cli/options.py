"""The options that every command over a trace shares, typed once.

`@over_trace` gives a command these options and hands it one `Asked`; nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from tracelens.api import Trace
    from tracelens.frames import Notice

Format = Literal["table", "json", "csv", "parquet", "markdown"]
_WHAT = "What to look at"
_HOW = "How to read it"
_OUT = "Output"
_MACHINE = "Machine"

Traces = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TRACE...",
        help="nsys exports (.sqlite), reports (.nsys-rep), parquetdir folders, folders of them, or globs; without any, those of the current directory.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Output:
    """Where the answer goes, and what counts as failure.

    Attributes:
        format: as asked, or by the suffix of `file`, or a table.
        file: where to write; None: stdout.
        force: whether an existing file may be replaced.
        strict: whether a notice of severity warning makes the exit code 1.
    """

    format: Format = "table"
    file: str | None = None
    force: bool = False
    strict: bool = False


@dataclass(frozen=True)
class Asked:
    """What the user asked for: captures, options, output."""

    traces: tuple[str, ...]
    options: dict[str, Any]
    output: Output
    _loaded: list[tuple[Trace, int]] = field(default_factory=list)

    def load(self, traces: tuple[str, ...] | None = None) -> Trace:
        """The capture, loaded; progress is shown on a terminal."""
        from tracelens.api import load
        from tracelens.cli.progress import on_terminal

        with on_terminal() as progress:
            trace = load(traces if traces is not None else self.traces, progress=progress, **self.options)
        self._loaded.append((trace, len(trace.remarks)))
        _remark(trace.remarks)
        return trace

    def finish(self) -> None:
        """Tells what slowed the work down since the captures were loaded."""
        for trace, told in self._loaded:
            _remark(trace.remarks[told:])


def _remark(remarks: tuple[Notice, ...]) -> None:
    """Tells what is of this machine, not of the capture, and so in no answer."""
    if remarks:
        import sys

        from tracelens.views.terminal import notices

        notices(remarks, sys.stderr)


def _trace_options(
    ranks: Annotated[str | None, typer.Option(help="Ranks to look at, e.g. 0-7,9.", rich_help_panel=_WHAT)] = None,
    steps: Annotated[str | None, typer.Option(help="Steps to look at, e.g. 10-50.", rich_help_panel=_WHAT)] = None,
    phase: Annotated[
        Literal["prefill", "decode", "mixed", "other"] | None,
        typer.Option(help="Only steps of this phase.", rich_help_panel=_WHAT),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="A..B", help="Seconds from the capture's first event, e.g. 1.5..2.", rich_help_panel=_WHAT
        ),
    ] = None,
    skip: Annotated[
        int | None,
        typer.Option(
            min=0, help="Leading steps to count as warm-up; without it they are found.", rich_help_panel=_WHAT
        ),
    ] = None,
    step_marker: Annotated[
        str | None, typer.Option(metavar="REGEX", help="NVTX ranges that begin a step.", rich_help_panel=_HOW)
    ] = None,
    steps_by: Annotated[
        Literal["auto", "nvtx", "graph", "anchor", "period"],
        typer.Option(help="What marks a step.", rich_help_panel=_HOW),
    ] = "auto",
    rank_map: Annotated[
        str | None,
        typer.Option(metavar="FILE|rank=path:device,...", help="Which GPU is which rank.", rich_help_panel=_HOW),
    ] = None,
    expect_ranks: Annotated[
        int | None, typer.Option(min=1, help="Ranks that the job has; missing ones are told.", rich_help_panel=_HOW)
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(metavar="FILE|NAME", help="Bucket map: a shipped name or a JSON file.", rich_help_panel=_HOW),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Engine whose map to use, e.g. vllm.", rich_help_panel=_HOW)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model whose map to use, e.g. llama.", rich_help_panel=_HOW)] = None,
    attribution: Annotated[
        Literal["first", "compute-first"],
        typer.Option(help="Who owns an instant that several events share.", rich_help_panel=_HOW),
    ] = "first",
    clock: Annotated[
        Literal["auto", "trust", "ends"],
        typer.Option(help="Align GPU clocks on the ends of collectives, or trust them.", rich_help_panel=_HOW),
    ] = "auto",
    expect_ms: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Step time without the profiler, ms: its overhead is told, nothing is scaled.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    loader: Annotated[
        Literal["auto", "sqlite"], typer.Option(help="sqlite: read through SQLite alone.", rich_help_panel=_MACHINE)
    ] = "auto",
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads, and processes that read many exports.", rich_help_panel=_MACHINE),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory to use; half the machine's, at most 4GB.", rich_help_panel=_MACHINE),
    ] = None,
    executor: Annotated[
        str,
        typer.Option(
            metavar="local|dask://HOST:PORT",
            help="Who reads the exports: this machine, or the workers of a dask scheduler.",
            rich_help_panel=_MACHINE,
        ),
    ] = "local",
    no_cache: Annotated[
        bool,
        typer.Option("--no-cache", help="Read the exports themselves, and store nothing.", rich_help_panel=_MACHINE),
    ] = False,
) -> dict[str, Any]:
    """The options of a load, as `tracelens.load` takes them."""
    from tracelens.cli import parse

    return {
        "ranks": parse.ranks(ranks) if ranks is not None else None,
        "steps": parse.steps(steps) if steps is not None else None,
        "phase": phase,
        "time_s": parse.time_s(time) if time is not None else None,
        "skip": skip,
        "step_marker": step_marker,
        "steps_by": steps_by,
        "attribution": attribution,
        "clock": clock,
        "rank_map": parse.rank_map(rank_map) if rank_map is not None else None,
        "expect_ranks": expect_ranks,
        "rules": rules,
        "engine": engine,
        "model": model,
        "expect_ms": expect_ms,
        "loader": loader,
        "threads": threads,
        "memory": parse.memory(memory),
        "executor": executor,
        "use_cache": not no_cache,
    }


def _output_options(
    format: Annotated[
        Format | None,
        typer.Option(help="How to print; with -o by its suffix.", show_default="table", rich_help_panel=_OUT),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write there instead of stdout.", rich_help_panel=_OUT),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.", rich_help_panel=_OUT)] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if there is a warning.", rich_help_panel=_OUT)
    ] = False,
) -> Output:
    """Where the answer goes."""
    if output is not None and format is None:
        from tracelens.views.records import format_of

        format = format_of(output)
    return Output(format or "table", output, force, strict)


def _file_options(
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="The file to write.", rich_help_panel=_OUT),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.", rich_help_panel=_OUT)] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if there is a warning.", rich_help_panel=_OUT)
    ] = False,
) -> Output:
    """Where the answer goes, for commands whose answer is a file of their own kind."""
    return Output(file=output, force=force, strict=strict)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in inspect.signature(function, eval_str=True).parameters.values()
    ]


def _called(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Calls `function` with its own among the given options, and takes those out."""
    return function(**{name: given.pop(name) for name in inspect.signature(function).parameters})


def _with(
    own: Callable[..., Any],
    added: list[inspect.Parameter],
    leading: list[inspect.Parameter],
    call: Callable[[dict[str, Any]], Any],
) -> Callable[..., Any]:
    """A command whose options are its own and the added ones."""
    mine = [one for one in _parameters(own) if one.name not in ("asked", "output_to")]
    signature = inspect.Signature([*leading, *mine, *added])

    def command(**given: Any) -> Any:
        return call(given)

    command.__name__ = own.__name__
    command.__doc__ = own.__doc__
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
    return command


def _finished(own: Callable[..., Any], asked: Asked, given: dict[str, Any]) -> Any:
    code = own(asked, **given)
    asked.finish()
    return code


def over_trace(own: Callable[..., Any]) -> Callable[..., Any]:
    """Turns `own(asked, **its options)` into a command over TRACE... with every shared option."""
    leading = [inspect.Parameter("traces", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Traces)]

    def call(given: dict[str, Any]) -> Any:
        traces = tuple(given.pop("traces") or ())
        return _finished(own, Asked(traces, _called(_trace_options, given), _called(_output_options, given)), given)

    return _with(own, [*_parameters(_trace_options), *_parameters(_output_options)], leading, call)


def over_trace_to_file(own: Callable[..., Any]) -> Callable[..., Any]:
    """As `over_trace`, for commands that write a file of their own kind (a page, a trace) and print no table."""
    leading = [inspect.Parameter("traces", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Traces)]

    def call(given: dict[str, Any]) -> Any:
        traces = tuple(given.pop("traces") or ())
        return _finished(own, Asked(traces, _called(_trace_options, given), _called(_file_options, given)), given)

    return _with(own, [*_parameters(_trace_options), *_parameters(_file_options)], leading, call)


def over_trace_options(own: Callable[..., Any]) -> Callable[..., Any]:
    """As `over_trace`, for commands that name their captures in arguments of their own."""

    def call(given: dict[str, Any]) -> Any:
        return _finished(own, Asked((), _called(_trace_options, given), _called(_output_options, given)), given)

    return _with(own, [*_parameters(_trace_options), *_parameters(_output_options)], [], call)


def with_output(own: Callable[..., Any]) -> Callable[..., Any]:
    """Turns `own(output_to, **its options)` into a command with the options of the output alone."""
    return _with(own, _parameters(_output_options), [], lambda given: own(_called(_output_options, given), **given))
