"""What is kept of one run: `command.txt`, `log.txt`, the benchmark's own result, and `state.json`.

The state is written before and after a run, whole or not at all, so that a sweep that was cut off knows what is done.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tracelens.analyses.harness_results import Measurement, read_results
from tracelens.errors import InputError, OutputError, UsageError
from tracelens.sweep.plan import Run, shown

RUNNING = "running"
DONE = "done"
FAILED = "failed"
TIMED_OUT = "timed out"
INTERRUPTED = "interrupted"
NO_RESULT = "no result"
BAD_RESULT = "bad result"
PENDING = "pending"


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: one of this module's words.
        reason: why it is not done, in one line; empty when it is.
        exit_code: of the program, negative for a signal; null when it never started or never ended.
        measurement: what the result holds; null unless done.
        kept: whether it was done before, and was not run again.
    """

    status: str
    reason: str = ""
    exit_code: int | None = None
    measurement: Measurement | None = None
    kept: bool = False


def log_path(run: Run) -> Path:
    """Where the program's output goes."""
    return run.folder / "log.txt"


def _state_path(run: Run) -> Path:
    return run.folder / "state.json"


def begin(run: Run) -> None:
    """Make the folder, drop what an earlier try left, and write the command.

    SGLang's benchmark appends to its result file, so a stale one would be read as this run's.

    Raises:
        OutputError: the folder cannot be made or written.
    """
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
        for path in (run.result, *run.produces):
            path.unlink(missing_ok=True)
        (run.folder / "command.txt").write_text("".join(f"{shown(one)}\n" for one in run.commands), encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"cannot write in {run.folder}: {error.strerror or error}", "choose another --workdir"
        ) from error
    write_state(run, Outcome(RUNNING))


def write_state(run: Run, outcome: Outcome) -> None:
    """Record how a run stands; atomic.

    Raises:
        OutputError: the folder cannot be written.
    """
    state = {
        "commands": [list(one) for one in run.commands],
        "status": outcome.status,
        "exit_code": outcome.exit_code,
        "reason": outcome.reason,
    }
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=run.folder, prefix=".state-")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(state, stream, indent=1)
            stream.write("\n")
        Path(temporary).replace(_state_path(run))
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise OutputError(f"cannot write in {run.folder}: {error.strerror or error}") from error


def read_outcome(run: Run) -> Outcome:
    """How a run stands, from its folder.

    A run counts as done only if its state says so and its result can still be read.

    Raises:
        UsageError: the folder holds a finished run of another command.
    """
    state = _read_state(run)
    if state is None:
        return Outcome(PENDING)
    status = state.get("status")
    same = state.get("commands") == [list(one) for one in run.commands]
    if status == DONE and not same:
        raise UsageError(
            f"{run.folder} holds a finished run of another command", "use another --workdir, or --rerun to run it again"
        )
    if status == DONE:
        return check_result(run)
    if not isinstance(status, str) or not same:
        return Outcome(PENDING)
    code = state.get("exit_code")
    reason = state.get("reason")
    return Outcome(status, reason if isinstance(reason, str) else "", code if isinstance(code, int) else None)


def _read_state(run: Run) -> dict[str, object] | None:
    try:
        state = json.loads(_state_path(run).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) else None


def check_result(run: Run) -> Outcome:
    """The outcome of a run whose program ended well: done, or why its result cannot be used."""
    missing = [path.name for path in (run.result, *run.produces) if not path.is_file()]
    if missing:
        return Outcome(NO_RESULT, f"the program ended well but wrote no {', '.join(missing)}", 0)
    try:
        found = read_results(run.result, run.tp, batch=run.batch, output_len=run.output_len)
    except InputError as error:
        return Outcome(BAD_RESULT, error.message, 0)
    return Outcome(DONE, "", 0, found[-1])
