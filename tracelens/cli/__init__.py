"""The command line: one thin command per question, and one place where errors become words and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

DONE, GATE, CANNOT, BUG, INTERRUPTED = 0, 1, 2, 70, 130


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits.

    Exit codes: 0 done; 1 done, and a gate tripped; 2 could not do it; 70 a bug, with its traceback; 130 interrupted.
    """
    import gc

    from tracelens.memory import share_one_heap

    share_one_heap()
    # Modules and what they loaded stay to the end: looking through them for cycles, again and again and once more at
    # exit, finds nothing, and takes a seventh of a short answer's time.
    gc.set_threshold(100_000)
    code = run(sys.argv[1:] if arguments is None else arguments)
    gc.freeze()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    import signal
    import threading

    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        return _run(arguments, lambda: False)
    pressed = []

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        signal.default_int_handler(number, frame)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        return _run(arguments, lambda: False)
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        return _run(arguments, lambda: bool(pressed))
    finally:
        signal.signal(signal.SIGINT, before)


def _run(arguments: list[str], interrupted: Callable[[], bool]) -> int:
    """As `run`; what goes wrong after an interrupt is the interrupt, whatever a library made of it."""
    import os

    from tracelens.errors import TracelensError

    try:
        from tracelens.cli.app import invoke

        code = invoke(arguments)
        sys.stdout.flush()
    except TracelensError as error:
        if interrupted():
            _say("interrupted", "")
            return INTERRUPTED
        _say(error.message, error.hint)
        return CANNOT
    except KeyboardInterrupt:
        _say("interrupted", "")
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # The reader of our output left, as `head` does, and typer may answer that by an exit of its own with 1, which
        # here means a gate. Python must not complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        if interrupted():
            _say("interrupted", "")
            return INTERRUPTED
        from tracelens.memory import ran_out

        if ran_out(error):
            _say("not enough memory", "Look at less with --time or --ranks, or give more with --memory.")
            return CANNOT
        import traceback

        traceback.print_exc()
        _say("this is a bug in tracelens; please report it with the lines above", "")
        return BUG
    return code


def _say(message: str, hint: str) -> None:
    from tracelens.views.text import visible

    sys.stderr.write(f"tracelens: {visible(message)}\n" + (f"  {visible(hint)}\n" if hint else ""))
