"""From what the user typed to the files to read: exports, reports, folders and globs."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracelens.errors import InputError, NoCaptureError

Kind = Literal["sqlite", "report", "folder"]

_SUFFIXES: dict[str, Kind] = {
    ".sqlite": "sqlite",
    ".sqlite3": "sqlite",
    ".db": "sqlite",
    ".nsys-rep": "report",
    ".qdrep": "report",
}
_RANK = re.compile(r"rank[_-]?\d+", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Found:
    """One capture file.

    Attributes:
        path: where it is.
        shown: how the user typed it, or, found in a folder, the folder as typed and the file's name. Only this
            form is ever printed, so that no output tells more of the machine than the user did.
        kind: an SQLite export, a report to be exported first, or a folder of Parquet or Arrow files.
    """

    path: Path
    shown: str
    kind: Kind


def find_captures(traces: tuple[str, ...] | list[str]) -> list[Found]:
    """The captures that the arguments name, sorted by name with numbers compared as numbers.

    Args:
        traces: files, folders and globs; empty means the current directory.

    Raises:
        NoCaptureError: nothing matches, a path is missing, or a folder holds several unrelated runs.
        InputError: the system refuses a path: no permission, too long, links that lead in a circle.
    """
    for_whom = _shown(", ".join(traces)) or "the current directory"
    try:
        return _find(traces)
    except UnicodeEncodeError as error:
        raise InputError(f"{for_whom[:300]}: not the name of a file", "") from error
    except (OSError, RuntimeError) as error:  # RuntimeError: a circle of links, before Python 3.13
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "a link that leads to itself"
        raise InputError(f"{for_whom[:300]}: cannot be read ({reason})", "") from error


def _find(traces: tuple[str, ...] | list[str]) -> list[Found]:
    found: list[Found] = []
    if not traces:
        return _in_folder(Path(), "")
    for text in traces:
        path = Path(text)
        if path.is_dir() and not _is_export_folder(path):
            found += _in_folder(path, text)
        elif path.exists() or path.is_symlink():
            found.append(_one(path, text))
        elif glob.has_magic(text):
            matches = sorted(glob.glob(text, recursive=True), key=natural_key)  # noqa: PTH207 - keeps the typed form
            if not matches:
                raise NoCaptureError(
                    f"no file matches {text!r}", "Quote the pattern as the shell should see it, or name the files."
                )
            found += [_one(Path(match), match) for match in matches if _looks_like_capture(Path(match))]
        else:
            raise NoCaptureError(
                f"{_shown(text)}: no such file or folder",
                "Name an nsys .sqlite export, an .nsys-rep, or a folder of them.",
            )
    unique: dict[Path, Found] = {}
    for one in found:
        unique.setdefault(one.path.resolve(), one)
    result = sorted(unique.values(), key=lambda one: natural_key(one.shown))
    if not result:
        raise NoCaptureError(
            f"{_shown(', '.join(traces))}: no nsys export inside",
            "Export one: nsys export --type=sqlite REPORT.nsys-rep",
        )
    return result


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """A sort key under which `rank10` comes after `rank9`."""
    pieces = re.split(r"(\d+)", text)
    return [(1, int(piece), piece) if piece.isdecimal() else (0, 0, piece) for piece in pieces]


def _looks_like_capture(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES or _is_export_folder(path)


def _is_export_folder(path: Path) -> bool:
    """Whether a folder is what `nsys export --type=parquetdir` (or arrowdir) writes: one file per table."""
    if not path.is_dir():
        return False
    return any(
        (path / f"{name}{suffix}").is_file()
        for name in ("StringIds", "META_DATA_EXPORT")
        for suffix in (".parquet", ".arrow")
    )


def _shown(text: str) -> str:
    """A name as it can be printed and stored: bytes that are no UTF-8 as `\\xff`."""
    try:
        return os.fsencode(text).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # no file system's name
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _one(path: Path, typed: str) -> Found:
    shown = _shown(typed)
    if path.is_dir():
        if _is_export_folder(path):
            return Found(path, shown, "folder")
        raise NoCaptureError(
            f"{shown}: a folder, expected an nsys export",
            "Name the file inside it, or the folder that holds the exports.",
        )
    return Found(path, shown, _SUFFIXES.get(path.suffix.lower(), "sqlite"))


def _in_folder(folder: Path, typed: str) -> list[Found]:
    """The captures of one run in a folder; a report beside its own export is not read twice."""
    prefix = f"{typed.rstrip('/')}/" if typed else ""
    found = [
        _one(path, prefix + path.name)
        for path in sorted(folder.iterdir(), key=lambda path: natural_key(path.name))
        if not path.name.startswith(".") and _looks_like_capture(path)
    ]
    exported = {one.path.stem for one in found if one.kind != "report"}
    found = [one for one in found if one.kind != "report" or one.path.stem not in exported]
    where = typed or "the current directory"
    if not found:
        raise NoCaptureError(
            f"{where} holds no nsys export (.sqlite, .nsys-rep or a parquetdir)",
            "Name one: tracelens bucket tp8.sqlite; or look at a built-in capture: tracelens demo",
        )
    if not _one_run([one.path.stem for one in found]):
        names = ", ".join(_shown(one.path.name) for one in found[:6]) + (", ..." if len(found) > 6 else "")
        raise NoCaptureError(
            f"{where} holds {len(found)} captures that do not look like ranks of one run: {names}",
            "Name the ones that belong together, e.g. tracelens bucket " + found[0].shown,
        )
    return found


def _one_run(stems: list[str]) -> bool:
    """Whether names differ in nothing but a rank: `rank<N>` anywhere, or one number that counts 0, 1, 2, ..."""
    if len(stems) == 1:
        return True
    if len({_RANK.sub("rank#", stem) for stem in stems}) == 1:
        return True
    numbers = [_NUMBER.findall(stem) for stem in stems]
    if len({_NUMBER.sub("#", stem) for stem in stems}) != 1:
        return False
    changing = [column for column in zip(*numbers, strict=True) if len(set(column)) > 1]
    return len(changing) == 1 and sorted(int(number) for number in changing[0]) == list(range(len(stems)))
