"""Every command over a capture, as a user would type it: what hardening tests run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.running import Ran, tracelens
from tracelens.cli.app import COMMANDS

#: command -> the words after it; {path} is a capture, {out} a folder for what the command writes.
OVER_TRACE: dict[str, list[str]] = {
    "info": ["{path}"],
    "bucket": ["{path}", "--kernels"],
    "steps": ["{path}"],
    "gaps": ["{path}", "--all"],
    "collectives": ["{path}", "--all"],
    "skew": ["{path}"],
    "compare": ["{path}", "{path}"],
    "scaling": ["--tp", "1={path}", "--tp", "2={path}"],
    "ladder": ["{path}", "--engine", "vllm", "--arch", "9.0", "--tp", "2", "--width", "4096"],
    "report": ["{path}", "-o", "{out}/report.html", "--force"],
    "export": ["{path}", "-o", "{out}/trace.json.gz", "--force"],
    "sql": ["{path}", "SELECT * FROM event JOIN kernel_name USING (name_id) ORDER BY event_id"],
}
#: Commands that read no capture.
WITHOUT_TRACE = {"predict", "rules", "sweep", "simulate", "demo", "capture", "cache"}
#: Those whose answer is a file, whatever the format.
WRITE_FILES = {"report", "export"}
FORMATS = ("table", "json", "csv", "markdown")


def registered() -> list[str]:
    """Commands over a capture that this version has; one that no test knows is a mistake here."""
    unknown = set(COMMANDS) - set(OVER_TRACE) - WITHOUT_TRACE
    assert not unknown, f"say in tests/commands.py how to run {unknown}"
    return [name for name in OVER_TRACE if name in COMMANDS]


def words(command: str, path: Path | str, out: Path | str = "") -> list[str]:
    """The command line of a command."""
    return [command, *(word.replace("{path}", str(path)).replace("{out}", str(out)) for word in OVER_TRACE[command])]


def run(command: str, path: Path | str, out: Path, *options: str) -> Ran:
    """Runs a command over a capture."""
    return tracelens(*words(command, path, out), *options)


def every_output(path: Path | str, out: Path, formats: tuple[str, ...] = FORMATS) -> Iterator[tuple[str, Ran]]:
    """Runs every command in every format: (what was run, what it did)."""
    for command in registered():
        for form in ("",) if command in WRITE_FILES else formats:
            yield f"{command} {form}".strip(), run(command, path, out, *(("--format", form) if form else ()))
