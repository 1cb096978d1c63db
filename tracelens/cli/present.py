"""Prints or writes a result as asked; the same for every command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from tracelens import __version__
from tracelens.cli.options import Output
from tracelens.errors import UsageError
from tracelens.frames import Result


def present(result: Result, output: Output, show: Callable[..., None], **how: Any) -> int:
    """Hands a result to its view or to the records.

    Args:
        result: the answer.
        output: format, file, strictness.
        show: the terminal view, called as show(result, screen, **how).

    Returns:
        the exit code: 1 with `--strict` and a warning among the notices, else 0.
    """
    from tracelens.views import records
    from tracelens.views.terminal import Screen, notices

    if output.file is not None:
        if output.format == "table":
            raise UsageError("-o with --format table", "Name a file that ends in .json, .csv, .parquet or .md.")
        records.write_file(result, Path(output.file), output.format, __version__, force=output.force)
    elif output.format == "table":
        show(result, Screen(sys.stdout), **how)
    else:
        if isinstance(sys.stdout, TextIOWrapper):  # machine formats are the same bytes in any locale
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        records.write(result, output.format, __version__, sys.stdout)
    if output.format != "json" or output.file is not None:
        sys.stdout.flush()
        notices(result.notices, sys.stderr)
    return 1 if output.strict and any(notice.severity == "warning" for notice in result.notices) else 0
