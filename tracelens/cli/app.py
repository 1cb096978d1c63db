"""The table of contents of the command line."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from tracelens import __version__
from tracelens.errors import UsageError

#: Commands in the order of `--help`: name -> module that defines a function of that name (`-` as `_`).
COMMANDS = {
    "demo": "demo",
    "info": "info",
    "bucket": "bucket",
    "steps": "steps",
    "gaps": "gaps",
    "collectives": "collectives",
    "skew": "skew",
    "compare": "compare",
    "report": "report",
    "export": "export",
    "sql": "sql",
    "predict": "predict",
    "scaling": "scaling",
    "sweep": "sweep",
    "ladder": "ladder",
    "capture": "capture",
    "simulate": "simulate",
    # Groups of commands, which typer lists last.
    "rules": "rules",
    "cache": "cache",
}

_INTERRUPTED = 130


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"tracelens {__version__}\n")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Where each decode step's time goes on many GPUs, and which rank makes the others wait.

    Reads Nsight Systems exports of vLLM, SGLang and TensorRT-LLM. A first look without a GPU: tracelens demo
    """


def build() -> typer.Typer:
    """The whole command line; importing a command's module imports nothing heavy."""
    app = typer.Typer(
        name="tracelens",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name, module_name in COMMANDS.items():
        module = importlib.import_module(f"tracelens.cli.{module_name}")
        command = getattr(module, name.replace("-", "_"))
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name, cls=getattr(command, "command_class", None))(command)
    return app


def invoke(arguments: list[str]) -> int:
    """Runs one command line.

    Returns:
        the exit code that the command gave.

    Raises:
        UsageError: the words do not fit a command.
    """
    command = typer.main.get_command(build())
    try:
        code = command.main(arguments, prog_name="tracelens", standalone_mode=False)
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except SystemExit as error:  # what typer makes of a reader that left
        raise BrokenPipeError from error
    except typer.Exit as error:
        return error.exit_code
    except Exception as error:
        shown = getattr(error, "format_message", None)
        if shown is None:
            raise
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "tracelens"
        message = " ".join(shown().replace("Value error, ", "").split())  # pydantic's word for itself, click's list
        if not message:  # no arguments: the help was printed
            return 2
        raise UsageError(message, f"See: {path} --help") from error
    if code == _INTERRUPTED:  # what typer makes of ctrl-C
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0
