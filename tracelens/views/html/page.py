"""The page: texts in HTML, tables and charts as data for the script beside them."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

from tracelens.frames import Notice, Result
from tracelens.views.html.definitions import DEFINITIONS
from tracelens.views.html.encode import script_json, table
from tracelens.views.html.sections import facts, sections, tiles
from tracelens.views.output import write_atomically
from tracelens.views.text import visible

_SCRIPTS = ("base.js", "tables.js", "bars.js", "lines.js", "heat.js", "timeline.js", "main.js")
_MARK = re.compile(r"<!--([A-Z]+)-->")
# A table longer than this is embedded in part, and the page says so; what a chart needs whole is bounded where it is made.
ROWS_EMBEDDED = 6_000
_SENTENCES_SHOWN = 5
_UNCUT = frozenset({"slices", "waits", "position_waits", "arrivals"})
# The host's name belongs to `info` and `clock` alone: a report is passed around.
_PRIVATE = ("hostname",)


_COMMAND = re.compile("`([^`]+)`")

_ONE_UNIT: Mapping[str, tuple[str, ...]] = {
    "skew_ranks": ("lateness_mean_ns", *(f"{part}_lateness_ns" for part in ("device", "host", "upstream", "other"))),
    "collective_split": ("wait_ns", "transfer_ns", "unsplit_ns", "hidden_ns"),
    "buckets": ("kernel_ns", "busy_ns", "elapsed_ns"),
    "step_buckets": ("kernel_ns", "busy_ns", "elapsed_ns"),
    "kernels": ("kernel_ns", "elapsed_ns"),
}


def write_report(result: Result, path: Path | str, *, version: str, title: str = "", force: bool = False) -> Path:
    """Write the report file, whole or not at all.

    Args:
        result: the tables named in the package's docstring, sentences, notices and provenance.
        path: the file to write.
        version: of tracelens, for the footer.
        title: by default the exports' names.
        force: replace a file that is there.

    Raises:
        OutputError: the file exists or cannot be written.
    """
    target = Path(path)
    document = render(result, version=version, title=title).encode("utf-8", errors="backslashreplace")

    def write(stream: BinaryIO) -> None:
        stream.write(document)

    write_atomically(target, write, force=force)
    return target


def render(result: Result, *, version: str, title: str = "") -> str:
    """The whole page as text."""
    plan = sections(result)
    data = {"sections": plan, "tables": {name: _embedded(result, name) for name in result.tables}}
    parts = {
        "TITLE": _escape(title or _title(result)),
        "STYLE": _asset("report.css"),
        "SUBTITLE": _escape(" · ".join(facts(result))),
        "TILES": _tiles(result),
        "VERDICTS": _verdicts(result.sentences),
        "NOTICES": _notices(result.notices),
        "NAVIGATION": "".join(f'<li><a href="#{part["id"]}">{_escape(part["title"])}</a></li>' for part in plan),
        "DEFINITIONS": "".join(f"<dt>{_escape(term)}</dt><dd>{_escape(text)}</dd>" for term, text in DEFINITIONS),
        "PROVENANCE": _provenance(result.provenance),
        "VERSION": _escape(version),
        "DATA": script_json(data),
        "SCRIPT": "\n".join(_asset(name) for name in _SCRIPTS),
    }
    # One pass over the template: what is put in is never searched again.
    return _MARK.sub(lambda mark: parts[mark.group(1)], _asset("report.html"))


def _embedded(result: Result, name: str) -> dict[str, Any]:
    frame = result.tables[name].drop(_PRIVATE, strict=False)
    shown = frame if name in _UNCUT else frame.head(ROWS_EMBEDDED)
    return table(shown, result.schemas.get(name), rows_of=frame.height, one_unit=_ONE_UNIT.get(name, ()))


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _escape(text: str) -> str:
    return html.escape(visible(text), quote=True)


def _title(result: Result) -> str:
    exports = result.tables.get("exports")
    if exports is None or exports.is_empty():
        return "Kernel budget"
    names = [str(path).rstrip("/").rsplit("/", 1)[-1] for path in exports["path"]]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _tiles(result: Result) -> str:
    return "".join(
        f'<div class="tile{" warn" if warn else ""}"><span class="tile-label">{_escape(label)}</span>'
        f'<span class="tile-value">{_escape(value)}</span><span class="tile-note">{_escape(note)}</span></div>'
        for label, value, note, warn in tiles(result)
    )


def _verdicts(sentences: Sequence[str]) -> str:
    if not sentences:
        return '<p class="verdict">No verdict could be given; the notices say why.</p>'
    first, *rest = sentences
    # The verdict's first sentence carries; what follows it explains.
    lead, stop, more = first.partition(". ")
    items = "".join(f"<li>{_escape(sentence)}</li>" for sentence in rest[:_SENTENCES_SHOWN])
    others = "".join(f"<li>{_escape(sentence)}</li>" for sentence in rest[_SENTENCES_SHOWN:])
    return (
        f'<p class="verdict">{_escape(lead + stop.rstrip())}</p>'
        + (f'<p class="because">{_escape(more)}</p>' if more else "")
        + (f'<ul class="findings">{items}</ul>' if items else "")
        + (
            f'<details class="notes"><summary>{len(rest) - _SENTENCES_SHOWN} more</summary>'
            f'<ul class="findings">{others}</ul></details>'
            if others
            else ""
        )
    )


def _notices(notices: Sequence[Notice]) -> str:
    if not notices:
        return ""
    warnings = [notice for notice in notices if notice.severity == "warning"]
    others = [notice for notice in notices if notice.severity != "warning"]
    shown = "".join(_notice(notice) for notice in warnings)
    parts = [f'<ul class="notices" aria-label="Warnings">{shown}</ul>'] if warnings else []
    if others:
        shown = "".join(_notice(notice) for notice in others)
        word = "note" if len(others) == 1 else "notes"
        parts.append(
            f'<details class="notes"><summary>{len(others)} {word} on the data</summary>'
            f'<ul class="notices">{shown}</ul></details>'
        )
    return "".join(parts)


def _notice(notice: Notice) -> str:
    count = "" if notice.untold_count is None else f' <span class="count">({notice.untold_count:,})</span>'
    # Hints name commands between backticks, as a terminal shows them.
    words = _COMMAND.sub(r"<code>\1</code>", _escape(notice.hint))
    hint = f'<span class="hint">{words}</span>' if words else ""
    return (
        f'<li class="{notice.severity}"><code>{_escape(notice.code)}</code> {_escape(notice.message)}{count}{hint}</li>'
    )


def _provenance(provenance: Mapping[str, Any]) -> str:
    return "".join(
        f"<dt>{_escape(str(key).replace('_', ' '))}</dt><dd>{_value(value)}</dd>" for key, value in provenance.items()
    )


def _pairs(items: Sequence[Any]) -> str:
    """A list of small mappings, one a line; folded away where it is long."""
    lines = "<br>".join(
        ", ".join(f"{_escape(str(key)).replace('_', ' ')} {_value(part)}" for key, part in item.items())
        if isinstance(item, Mapping)
        else _value(item)
        for item in items
    )
    return lines if len(items) <= 4 else f"<details><summary>{len(items)} entries</summary>{lines}</details>"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "<br>".join(f"{_escape(str(key))}: {_value(item)}" for key, item in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, Mapping) for item in value):
            return _pairs(value)
        return ", ".join(_value(item) for item in value) or "-"
    return "-" if value is None else _escape(str(value))
