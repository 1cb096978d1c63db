"""The other end of `pool`: a process that reads what it is told to, and ends with the one that started it."""

from __future__ import annotations

import os
import pickle
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from tracelens.executors import portion
from tracelens.executors.means import Means
from tracelens.executors.portion import RUNS_SHARE, PartRequest, Portion, Told
from tracelens.ingest.event_runs import EventRuns, ScratchError
from tracelens.memory import ran_out
from tracelens.model.event_files import Order


class _Worker:
    """What one process does, and the events that it keeps."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._runs: EventRuns | None = None

    def read(self, asked: Portion, means: Means, base: Path) -> Told:
        """See `portion.read`."""
        if self._runs is None:
            self._runs = EventRuns(int(RUNS_SHARE * means.limit_bytes), base)
        return portion.read(asked, means, base, self._runs, self._tell)

    def _tell(self, *said: Any) -> None:
        self._connection.send(("progress", said))

    def write(self, order: Order, folder: Path) -> None:
        """See `portion.write`."""
        assert self._runs is not None  # it read these exports
        try:
            portion.write(self._runs, order, folder, 1)
        except OSError as error:
            raise ScratchError(*error.args) from error

    def write_part(self, request: PartRequest, means: Means, base: Path, folder: Path) -> None:
        """See `portion.write_part`."""
        try:
            portion.write_part(request, means, base, folder)
        except OSError as error:
            raise ScratchError(*error.args) from error


def serve(descriptor: int) -> None:
    """Does what is asked through a socket, until it closes."""
    connection = Connection(descriptor)
    asked: SimpleQueue[tuple[str, tuple[Any, ...]]] = SimpleQueue()
    Thread(target=_listen, args=(connection, asked), daemon=True).start()
    worker = _Worker(connection)
    while True:
        what, arguments = asked.get()
        try:
            answer = getattr(worker, what)(*arguments)
        except Exception as error:
            answer = _sendable(error)
        connection.send(("done", answer))


def _listen(connection: Connection, asked: SimpleQueue[tuple[str, tuple[Any, ...]]]) -> None:
    """Notices at once when the process that asks is gone, whatever this one is doing."""
    try:
        while True:
            asked.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)


def _sendable(error: Exception) -> BaseException:
    """The error with its traceback in words: the other process sees no other."""
    if ran_out(error):
        return MemoryError(str(error))
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    return error
