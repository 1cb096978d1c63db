"""Reads SQL from its own files.

A file holds one query, or several, each under a line `-- name: <name>`. What stands before the first such line is
the file's head: what one row is, each column with unit and meaning, the order, the definition.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_SECTION = re.compile(r"^-- name: (\w+)[ \t]*$", re.MULTILINE)


@cache
def queries(path: Path) -> dict[str, str]:
    """The named queries of an SQL file.

    Args:
        path: an `.sql` file beside the Python that runs it, usually `Path(__file__).with_suffix(".sql")`.

    Returns:
        name -> SQL text; a file without `-- name:` lines gives one entry, named after the file.
    """
    text = path.read_text(encoding="utf-8")
    marks = list(_SECTION.finditer(text))
    if not marks:
        return {path.stem: text}
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return {mark.group(1): text[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)}
