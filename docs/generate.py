"""Writes the pages of this folder that repeat what the program knows: `python docs/generate.py`.

- `cli.md`: every command and option, from the commands' own help.
- `schema.md`: the tables of `tracelens sql` and of every command's answer, from their schemas.
- console blocks of `walkthroughs.md` and `guide.md`: the commands are run and their output is put in.

A console block holds one command. A comment above it may say what of the output is shown, what is left out becomes
`...`, and with which exit code the command ends:

    <!-- show: 1-4, "Buckets"+8; exit 2 -->

`1-4` are lines, `"Buckets"+8` is the first line that holds the text and the 7 behind it, `none` is nothing at all.
The commands of a page run in order, in one new folder. `tests/docs` checks that all of it is up to date.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pkgutil
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PAGES_WITH_CONSOLES = ("walkthroughs.md", "guide.md")
_GENERATED = "<!-- Written by docs/generate.py: change the program's own texts, then run it. -->\n"


def pages() -> dict[str, str]:
    """Name -> text of the pages that are generated whole."""
    return {"cli.md": cli_page(), "schema.md": schema_page()}


# ---------------------------------------------------------------------------------------------- the command line


def cli_page() -> str:
    """The reference of the command line."""
    import typer

    from tracelens.cli.app import build

    root = typer.main.get_command(build())
    commands = list(_commands(root, "tracelens"))
    shared = _shared(commands)
    parts = [
        "# The command line",
        _GENERATED,
        "`tracelens COMMAND --help` prints the same. `TRACE...` is explained under [captures](#captures), and [every "
        "command over a capture](#options-of-every-command-over-a-capture) takes the options listed there.\n",
        _table(
            ("command", "answers"),
            [(f"[`{path}`](#{_anchor(path)})", _first_sentence(command.help)) for path, command in commands],
        ),
        _EXIT_CODES,
        _CAPTURES,
        "## Options of every command over a capture\n",
    ]
    for panel, options in shared.items():
        parts.append(f"**{panel}**\n")
        parts.append(_table(("option", "meaning"), options.values()))
    for path, command in commands:
        parts.append(f"## {path}\n")
        parts.append(_prose(command.help or ""))
        context = _context(root, command)
        parts.append(f"```text\n{command.get_usage(context).replace('Usage: ', f'Usage: {path}', 1).strip()}\n```\n")
        own, common = _split(command, context, shared)
        if own:
            parts.append(_table(("argument or option", "meaning"), own))
        if common:
            names = " ".join(f"`{name}`" for name in common)
            panels = {panel for panel, options in shared.items() if set(options) <= set(common)}
            every = panels == set(shared)
            where = "#options-of-every-command-over-a-capture"
            parts.append(
                f"And [every option]({where}) over a capture.\n" if every else f"And [these]({where}): {names}\n"
            )
    return "\n".join(parts)


_EXIT_CODES = """## Exit codes

| code | means |
| --- | --- |
| 0 | done |
| 1 | done, and a gate tripped: `--fail-above`, or `--strict` with a warning |
| 2 | could not do it: usage, input, or not comparable; one or two lines on stderr say what was seen and what to try |
| 70 | a bug, with a traceback |
| 130 | interrupted |

Tables go to stdout. Progress (on a terminal only), notices and errors go to stderr. `NO_COLOR` is honoured, and
`COLUMNS` sets the width of tables in a pipe (100 without it).
"""

_CAPTURES = """## Captures

`TRACE...` is one or more of: a `.sqlite` export, an `.nsys-rep` report (exported through `nsys`, where that is on the
PATH), a folder as `nsys export --type parquetdir` or `arrowdir` writes it, a folder that holds any of these, or a glob.
Without it, the exports of the current directory are used. All captures of one command are ranks of one run; `compare`
and `scaling` take several runs and name them themselves.

Lists are one word with commas and ranges: `--ranks 0-7,9`. Only `--tp`, `--lambda-us`, `--batch-size` and the like take
several plain numbers as well: `--tp 1 2 4 8` is `--tp 1,2,4,8`.
"""


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, one in command.commands.items():
        if hasattr(one, "commands"):
            yield from _commands(one, f"{path} {name}")
        else:
            yield f"{path} {name}", one


def _context(root: Any, command: Any) -> Any:
    return type(root).context_class(command, info_name="")


def _shared(commands: list[tuple[str, Any]]) -> dict[str, dict[str, tuple[str, str]]]:
    """Panel -> name -> (option, meaning) of what the commands over a capture share."""
    (skew,) = (command for path, command in commands if path == "tracelens skew")
    context = type(skew).context_class(skew)
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for one in skew.params:
        panel = getattr(one, "rich_help_panel", None)
        if panel is not None:
            found.setdefault(panel, {})[one.opts[0]] = _record(one, context)
    return found


def _split(
    command: Any, context: Any, shared: dict[str, dict[str, tuple[str, str]]]
) -> tuple[list[tuple[str, str]], list[str]]:
    """The (option, meaning) rows of a command's own, and the names of those that it shares."""
    own, common = [], []
    known = {name: record for options in shared.values() for name, record in options.items()}
    for one in command.params:
        if one.name == "help":
            continue
        record = _record(one, context)
        if known.get(one.opts[0]) == record:
            common.append(one.opts[0])
        else:
            own.append(record)
    return own, common


def _record(parameter: Any, context: Any) -> tuple[str, str]:
    names, meaning = parameter.get_help_record(context)
    return f"`{names}`", " ".join(meaning.split()).replace("(table)", "table")


# ------------------------------------------------------------------------------------------------- the schemas


def schema_page() -> str:
    """Tables of `tracelens sql`, then tables of every answer."""
    parts = [
        "# Tables and columns",
        _GENERATED,
        "Units stand in names: `_ns` whole nanoseconds, `_us` microseconds, `_ms` milliseconds, `_frac` a share from 0 to 1, "
        "`_bytes`, `_gbps` 10^9 bytes a second, `_count`. Null means not measured, never zero. What each quantity is: "
        "[definitions](definitions.md).\n",
        "## Tables of `tracelens sql`\n",
        'Times are in the export\'s own time: 0 is where its session begins. `tracelens sql tp8.sqlite "SELECT ..."` may '
        "name any of these; `tracelens sql --schema` prints the same list.\n",
    ]
    for name, (meaning, rows) in _model_tables().items():
        parts.append(f"### {name}\n\n{meaning}.\n")
        parts.append(_table(("column", "type", "unit", "meaning"), rows))
    parts.append("## Tables of each command's answer\n")
    parts.append(
        'In JSON each is a list of objects beside `"tracelens"` (version), `"command"`, `"schema"` (1), `"provenance"` and '
        '`"notices"`; CSV and Parquet hold one table a file. In Python they are polars frames: '
        "`tracelens.load(path).skew().verdict`.\n"
    )
    for command, schemas in _answers().items():
        parts.append(f"### tracelens {command}\n")
        for name, schema in schemas.items():
            parts.append(f"**`{name}`**: {schema.row}\n")
            rows = [
                (f"`{column.name}`", _dtype(column.dtype), column.unit or unit_of(column.name), column.meaning)
                for column in schema.columns
            ]
            parts.append(_table(("column", "type", "unit", "meaning"), rows))
    return "\n".join(parts)


def _model_tables() -> dict[str, tuple[str, list[tuple[str, ...]]]]:
    from tracelens.analyses.query import table_schema
    from tracelens.trace import empty_trace

    with empty_trace() as trace:
        frame = table_schema(trace)["schema"]
    found: dict[str, tuple[str, list[tuple[str, ...]]]] = {}
    for table, row, column, dtype, meaning in frame.iter_rows():
        found.setdefault(table, (row, []))[1].append((f"`{column}`", dtype, unit_of(column), meaning))
    return found


def _answers() -> dict[str, dict[str, Any]]:
    """Command -> table -> schema, in the order of the command line."""
    from tracelens import analyses
    from tracelens.cli.app import COMMANDS
    from tracelens.frames import Result

    for module in sorted(one.name for one in pkgutil.iter_modules(analyses.__path__)):
        importlib.import_module(f"tracelens.analyses.{module}")
    found: dict[str, dict[str, Any]] = {}
    waiting = [Result]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if (
            kind.command
            and kind.schemas
            and kind.__module__.startswith("tracelens.analyses.")
            and kind.__name__ != "Answer"
        ):
            found.setdefault(kind.command, {}).update(kind.schemas)
    order = list(COMMANDS)
    return dict(sorted(found.items(), key=lambda one: (order.index(one[0].split()[0]), one[0])))


#: Suffix of a column's name -> its unit.
_UNITS = {
    "ns": "ns", "us": "us", "ms": "ms", "s": "s", "frac": "share", "count": "count", "bytes": "bytes", "gbps": "GB/s",
    "ppm": "ppm", "mib": "MiB",
}  # fmt: skip


def unit_of(column: str) -> str:
    """The unit that a column's name carries; empty where it carries none."""
    if "_" not in column:
        return "bytes" if column == "bytes" else ""
    return _UNITS.get(column.rsplit("_", 1)[-1], "")


def _dtype(dtype: Any) -> str:
    import polars as pl

    return str(pl.DataFrame(schema={"x": dtype}).schema["x"]).lower()


# ------------------------------------------------------------------------------------------- blocks with output

_BLOCK = re.compile(
    r"(?P<comment><!-- show: (?P<show>[^\n]*?)(?:; exit (?P<exit>\d+))? -->\n)?"
    r"```console\n\$ (?P<command>(?:[^\n]*\\\n)*[^\n]*)\n(?P<output>.*?)```\n",
    re.DOTALL,
)


def with_outputs(page: str, folder: Path) -> str:
    """A page with its commands run anew, in order, in `folder`.

    Raises:
        RuntimeError: a command ended otherwise than the page says.
    """

    def run(block: re.Match[str]) -> str:
        command = block["command"].replace("\\\n", " ")
        code, output = _run(shlex.split(command), folder)
        expected = int(block["exit"] or 0)
        if code != expected:
            raise RuntimeError(f"$ {command}\nended with {code}, not {expected}:\n{output}")
        shown = "\n".join(selected(output.rstrip("\n").split("\n"), block["show"] or ""))
        return f"{block['comment'] or ''}```console\n$ {block['command']}\n{shown}{chr(10) if shown else ''}```\n"

    return _BLOCK.sub(run, page)


def selected(lines: list[str], show: str) -> list[str]:
    """The lines that a `show` comment asks for, `...` where some are left out; all of them without one.

    Raises:
        RuntimeError: no line holds a text that it names.
    """
    show = show.strip()
    if show == "none":
        return []
    kept: set[int] = set()
    for first, last, text, more in re.findall(r'(\d+)-(\d+)|"([^"]*)"\+(\d+)', show):
        if first:
            kept |= set(range(int(first) - 1, int(last)))
            continue
        at = next((place for place, line in enumerate(lines) if text in line), None)
        if at is None:
            raise RuntimeError(f"no line of the output holds {text!r}:\n" + "\n".join(lines))
        kept |= set(range(at, at + int(more)))
    if not show:
        return lines
    shown: list[str] = []
    for place, line in enumerate(lines):
        if place in kept:
            shown.append(line)
        elif not shown or shown[-1] != "...":
            shown.append("...")
    return shown


def _run(words: list[str], folder: Path) -> tuple[int, str]:
    """Runs one command line of ours in this process: exit code, stdout and stderr as they come."""
    from tracelens.cli import run

    if words[0] != "tracelens":
        raise RuntimeError(f"a console block runs tracelens, not {words[0]}")
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8", newline="", write_through=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            code = run(words[1:])
    finally:
        os.chdir(before)
    stream.flush()
    return code, raw.getvalue().decode()


# ------------------------------------------------------------------------------------------------------- words


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A table cell: bars escaped; angle brackets outside code are no markup."""
    text = " ".join(text.split()).replace("|", "\\|")
    return text if text.startswith("`") else text.replace("<", "&lt;")


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split())


def _prose(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n")).replace("<", "&lt;") + "\n"


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


@contextlib.contextmanager
def plain_surroundings() -> Iterator[Path]:
    """A new folder to run commands in, with everything that could change their output held fixed."""
    with tempfile.TemporaryDirectory() as folder:
        fixed = {
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "XDG_CACHE_HOME": f"{folder}/.cache",
            "TRACELENS_CACHE": f"{folder}/.cache",
        }
        before = {name: os.environ.get(name) for name in fixed}
        os.environ.update(fixed)
        try:
            work = Path(folder) / "work"
            work.mkdir()
            yield work
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def main(names: list[str]) -> None:
    """Writes all pages, or those that are named."""
    chosen = names or [*pages(), *PAGES_WITH_CONSOLES]
    for name in chosen:
        path = DOCS / name
        if name in PAGES_WITH_CONSOLES:
            with plain_surroundings() as folder:
                text = with_outputs(path.read_text(), folder)
        else:
            text = pages()[name]
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"written: {path.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent))
    main(sys.argv[1:])
