"""Everything that tracelens refuses to do, as one tree.

    TracelensError
    ├── UsageError            the words of the command do not fit together
    ├── InputError            a file cannot be used as a capture
    │   ├── NoCaptureError    nothing to read was found, or several unrelated runs were
    │   ├── NotAnExportError  the file is not an nsys SQLite export
    │   ├── DamagedError      it is one, but broken, half-written or locked
    │   └── MissingDataError  it is whole, but a table or column that the answer needs is absent
    ├── RankError             ranks contradict each other, or a named rank is not there
    ├── SelectionError        the selected window, steps or phase hold nothing
    ├── RuleError             a bucket map or a pattern is wrong
    ├── NotComparableError    two runs, or two statistics, cannot be set against each other
    ├── NotIdentifiableError  the data cannot carry the number that was asked for
    ├── ExecutorError         other processes or machines could not do their share of the work
    ├── HarnessError          an engine's benchmark did not end well
    └── OutputError           the answer cannot be written where it was asked to go

Each carries what was seen and expected (the message) and what to try next (the hint); the command line prints
both and exits with 2. A bug is any other exception: exit 70, with its traceback.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"[a-z]+(?=[ :,]|$)")
_COMMANDS = frozenset({"nsys", "tracelens", "pip", "python", "sqlite3"})


def as_sentence(hint: str) -> str:
    """`hint` as a line of its own: with a capital, unless it begins with a command, a flag or a name."""
    first = _WORD.match(hint)
    return hint if first is None or first[0] in _COMMANDS else hint[0].upper() + hint[1:]


class TracelensError(Exception):
    """A question that could not be answered.

    Args:
        message: what was seen and what was expected, one line.
        hint: what to try, one line; empty when there is nothing to try.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = as_sentence(hint)

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(TracelensError):
    """The words of the command do not fit together."""


class InputError(TracelensError):
    """A file cannot be used as a capture."""


class NoCaptureError(InputError):
    """Nothing to read was found, or several unrelated runs were."""


class NotAnExportError(InputError):
    """The file is not an nsys SQLite export."""


class DamagedError(InputError):
    """The file is an export, but broken, half-written or locked."""


class MissingDataError(InputError):
    """The export is whole, but a table or a column that the answer needs is absent."""


class RankError(TracelensError):
    """Ranks contradict each other, or a named rank is not there."""


class SelectionError(TracelensError):
    """The selected window, steps or phase hold nothing."""


class RuleError(TracelensError):
    """A bucket map or one of its patterns is wrong."""


class NotComparableError(TracelensError):
    """Two runs, or two statistics, cannot be set against each other."""


class NotIdentifiableError(TracelensError):
    """The data cannot carry the number that was asked for."""


class ExecutorError(TracelensError):
    """Other processes or machines could not do their share of the work."""


class HarnessError(TracelensError):
    """An engine's benchmark did not end well, or left no result that can be read."""


class OutputError(TracelensError):
    """The answer cannot be written where it was asked to go."""
