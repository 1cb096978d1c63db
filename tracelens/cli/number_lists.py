"""Options that take several plain numbers: `--tp 1 2 4 8` and `--tp 1,2,4,8` alike.

The parser below the commands gives an option one word, so the words that follow such an option and look like numbers
are joined to it before it parses. Nothing else about the command line changes.

    @takes_number_lists("--tp")
    @with_output
    def predict(output_to: Output, tp: Annotated[str, typer.Option("--tp", metavar="N...")] = "1,2,4,8") -> int:
        sizes = ints("--tp", tp)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from typer.core import TyperCommand

from tracelens.errors import UsageError

_WORD = re.compile(r"[-+0-9.,eE]*[0-9][-+0-9.,eE]*|,")


def join_number_lists(arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    """`arguments` with the numbers that follow one of `options` joined into one word.

    Everything after a bare `--` stays as it is.
    """
    joined: list[str] = []
    at = 0
    while at < len(arguments):
        word = arguments[at]
        at += 1
        if word == "--":
            return [*joined, word, *arguments[at:]]
        name, equals, first = word.partition("=")
        if name not in options:
            joined.append(word)
            continue
        numbers = [first] if equals else []
        while at < len(arguments) and _WORD.fullmatch(arguments[at]):
            numbers.append(arguments[at])
            at += 1
        joined.append(f"{name}={','.join(numbers)}" if numbers else name)
    return joined


def takes_number_lists(*options: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Marks a command whose named options are number lists."""

    class NumberListCommand(TyperCommand):
        """Joins the words of each number list before parsing."""

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            return super().parse_args(ctx, join_number_lists(args, options))

    def mark(command: Callable[..., Any]) -> Callable[..., Any]:
        command.command_class = NumberListCommand  # type: ignore[attr-defined]
        return command

    return mark


def ints(option: str, text: str) -> list[int]:
    """The whole numbers of a list.

    Raises:
        UsageError: it is none, or holds anything else.
    """
    try:
        numbers = [int(word) for word in _words(text)]
    except ValueError:
        numbers = []
    if not numbers:
        raise UsageError(
            f"{option} {text!r} is not a list of whole numbers", f"Give it as {option} 1 2 4 8 or 1,2,4,8."
        )
    return numbers


def floats(option: str, text: str) -> list[float]:
    """The numbers of a list.

    Raises:
        UsageError: it is none, or holds anything else.
    """
    try:
        numbers = [float(word) for word in _words(text)]
    except ValueError:
        numbers = []
    if not numbers:
        raise UsageError(f"{option} {text!r} is not a list of numbers", f"Give it as {option} 2 5 10 or 2,5,10.")
    return numbers


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()
