"""Carries out the runs of a sweep, one at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tracelens.errors import OutputError, UsageError
from tracelens.sweep.folder import (
    DONE,
    FAILED,
    INTERRUPTED,
    TIMED_OUT,
    Outcome,
    begin,
    check_result,
    log_path,
    read_outcome,
    write_state,
)
from tracelens.sweep.plan import Run, shown

GRACE_S = 10.0

Tell = Callable[[str], None]


def sweep(
    runs: Sequence[Run],
    workdir: Path,
    *,
    timeout_s: float,
    force: bool = False,
    tell: Tell = lambda _: None,
    grace_s: float = GRACE_S,
) -> list[Outcome]:
    """Carry out the runs in order; what is done already is kept.

    A run that fails is recorded and the next one starts: a sweep with a hole says where the hole is.

    Args:
        runs: from `plan`.
        workdir: the sweep's folder, made if absent; one sweep at a time may use it.
        timeout_s: longest time of one command.
        force: run again what is done, or what was done by another command.
        tell: called with one line before each run and after a failed one.
        grace_s: time that a stopped program gets to clean up, at each step from asking to killing.

    Returns:
        One outcome per run, in order.

    Raises:
        UsageError: a folder holds a finished run of another command, or another sweep is at work in `workdir`.
        OutputError: a folder cannot be written.
        KeyboardInterrupt: after the running program was stopped and the run marked as interrupted.
    """
    with _locked(workdir), _stops_like_ctrl_c():
        before = [Outcome("pending") if force else read_outcome(run) for run in runs]
        outcomes = []
        for number, (run, known) in enumerate(zip(runs, before, strict=True), 1):
            if known.status == DONE:
                outcomes.append(Outcome(DONE, "", known.exit_code, known.measurement, kept=True))
                continue
            tell(f"[{number}/{len(runs)}] {shown(run.commands[0])}")
            outcome = execute(run, timeout_s=timeout_s, grace_s=grace_s)
            if outcome.status != DONE:
                tell(f"[{number}/{len(runs)}] {run.name}: {outcome.status}: {outcome.reason}")
            outcomes.append(outcome)
        return outcomes


@contextlib.contextmanager
def _locked(workdir: Path) -> Iterator[None]:
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        stream = (workdir / ".sweep.lock").open("w")
    except OSError as error:
        raise OutputError(
            f"cannot write in {workdir}: {error.strerror or error}", "choose another --workdir"
        ) from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(
                f"another sweep is at work in {workdir}", "wait for it, or use another --workdir"
            ) from error
        yield


@contextlib.contextmanager
def _stops_like_ctrl_c() -> Iterator[None]:
    """SIGTERM and a closed terminal end a sweep as ctrl-C does: the engine, in a session of its own, must not outlive it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {one: signal.signal(one, stop) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def execute(run: Run, *, timeout_s: float, grace_s: float = GRACE_S) -> Outcome:
    """Carry out one run and record how it ended.

    Raises:
        OutputError: its folder cannot be written.
        KeyboardInterrupt: after the program was stopped and the run marked as interrupted.
    """
    begin(run)
    try:
        outcome = _commands(run, timeout_s, grace_s)
    except KeyboardInterrupt:
        write_state(run, Outcome(INTERRUPTED, "interrupted by the user"))
        raise
    write_state(run, outcome)
    return outcome


def _commands(run: Run, timeout_s: float, grace_s: float) -> Outcome:
    with log_path(run).open("wb") as log:
        for command in run.commands:
            try:
                # Its own session, so that the engine's workers are stopped with it and a ctrl-C reaches them once.
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
            except OSError as error:
                return Outcome(FAILED, f"{command[0]} cannot be started: {error.strerror or error}")
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                _stop(process, (signal.SIGTERM,), grace_s)
                return Outcome(TIMED_OUT, f"still running after {timeout_s:g} s; see {log_path(run)}", None)
            except KeyboardInterrupt:
                _stop(process, (signal.SIGINT, signal.SIGTERM), grace_s)
                raise
            if code != 0:
                how = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
                return Outcome(FAILED, f"{how}; see {log_path(run)}", code)
    return check_result(run)


def _stop(process: subprocess.Popen[bytes], signals: Sequence[signal.Signals], grace_s: float) -> None:
    """Ask the program's whole session to end, then kill what is left of it.

    A second ctrl-C skips the waiting, never the killing: an engine left behind would hold the GPUs.
    """
    with contextlib.suppress(KeyboardInterrupt):
        for one in signals:
            _signal_session(process, one)
            if _ended(process, grace_s):
                break
    _signal_session(process, signal.SIGKILL)
    process.wait()


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether the program ended within the time, without reaping it: its session's id must stay its own."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        time.sleep(0.02)
    return False


def _signal_session(process: subprocess.Popen[bytes], one: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, one)
