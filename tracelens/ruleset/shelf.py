"""Where the shipped data lies: `tracelens/rules` of an installed wheel, `rules/` beside the package of a checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tracelens.errors import RuleError

_PACKAGE = Path(__file__).resolve().parent.parent


@cache
def rules_folder() -> Path:
    """The folder of shipped maps and tables.

    Raises:
        RuleError: neither place holds it, so the installation is broken.
    """
    for folder in (_PACKAGE / "rules", _PACKAGE.parent / "rules"):
        if (folder / "collectives.json").is_file():
            return folder
    raise RuleError("the shipped rules are missing from this installation", "reinstall nsys-tracelens")


def read_text(path: Path, shown: str | None = None) -> str:
    """The text of a rule file, which must be UTF-8; `shown` is how errors name it.

    Raises:
        RuleError: the file is absent, unreadable, too large or not UTF-8.
    """
    shown = shown or str(path)
    try:
        if not path.is_file():
            raise RuleError(f"no rule file {shown}", "see `tracelens rules list` for the shipped maps")
        if path.stat().st_size > 4_000_000:
            raise RuleError(f"{shown} is over 4 MB: not a bucket map", "a map is a JSON file of regexes and buckets")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RuleError(f"{shown} is not UTF-8 text (byte {error.start})", "a map is a JSON file") from error
    except OSError as error:
        raise RuleError(f"{shown} cannot be read: {error.strerror}") from error
