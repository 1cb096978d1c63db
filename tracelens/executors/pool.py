"""A crew of processes of this machine.

Each is a fresh interpreter, not a fork: this process has threads. They are joined to this one by a socket each; when
it closes, however that comes, they end.
"""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from socket import socketpair
from typing import Any, Self

from tracelens.errors import ExecutorError
from tracelens.executors.crew import FILE_BYTES
from tracelens.executors.means import Means
from tracelens.executors.portion import PartRequest, Portion, Told
from tracelens.ingest import raw
from tracelens.model.event_files import Order

#: Captures of fewer bytes are read before other processes have begun.
POOL_BYTES = 100_000_000
#: One process already reads and decodes in two threads, and each more begins with half a second of its own: fewer
#: processes would gain nothing.
_FEWEST = 4
#: A process with less memory would be slow.
_WORKER_BYTES = 400_000_000
_BEGIN = "import sys; sys.path[:] = sys.argv[2:]; from tracelens.executors.worker import serve; serve(int(sys.argv[1]))"


def worker_count(means: Means, portions: Sequence[Portion], size_bytes: int) -> int:
    """How many processes should read a run of so many bytes; 1: none but this one."""
    files = sum(len(one.found) for one in portions)
    if size_bytes + files * FILE_BYTES < POOL_BYTES or not sys.executable:
        return 1
    if any(one.kind == "report" for portion in portions for one in portion.found):
        return 1  # a report is exported once, by the process that reads all of it
    count = min(means.thread_count, len(portions), means.limit_bytes // _WORKER_BYTES)
    return count if count >= _FEWEST else 1


@dataclass
class _Worker:
    """One process; what it was told to do, oldest first."""

    process: subprocess.Popen[bytes]
    connection: Connection
    asked: deque[int] = field(default_factory=deque)


class Pool:
    """Processes of this machine that read portions.

    Args:
        count: how many.
        means: the limits of all together.
        base: where what does not fit into memory goes.
    """

    def __init__(self, count: int, means: Means, base: Path) -> None:
        self._means = replace(means, threads=1, memory_bytes=means.limit_bytes // count)
        self._count, self._base = count, base
        self._workers: list[_Worker] = []
        #: Which exports each process keeps the events of.
        self._kept: dict[int, set[int]] = {}

    def __enter__(self) -> Self:
        """Starts the processes."""
        try:
            for _ in range(self._count):
                self._start()
        except BaseException as error:
            self._end()
            if isinstance(error, OSError):
                raise ExecutorError(
                    f"no process could be started to read with ({error.strerror})", "Try --threads 1."
                ) from error
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the processes, whatever they are doing."""
        self._end()

    def _start(self) -> None:
        ours, theirs = socketpair()
        connection = Connection(ours.detach())
        with theirs:
            command = [sys.executable, "-c", _BEGIN, str(theirs.fileno()), *sys.path]
            try:
                # Of a group of their own: ctrl-C reaches this process alone, which then ends them.
                process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, process_group=0
                )  # fmt: skip
            except BaseException:
                connection.close()
                raise
        self._workers.append(_Worker(process, connection))

    def _end(self) -> None:
        for one in self._workers:
            one.process.kill()
        for one in self._workers:
            one.process.wait()
            one.connection.close()
        self._workers = []

    def read(self, portions: Sequence[Portion], progress: raw.Progress | None) -> list[Told]:
        """Reads portions, each by the process that is free next."""
        tasks = [("read", (one, self._means, self._base)) for one in portions]

        def kept(worker: int, task: int) -> None:
            self._kept.setdefault(worker, set()).update(portions[task].numbers)

        told: list[Told] = self._spread(tasks, [one.shown for one in portions], kept, progress)
        return told

    def write(self, order: Order, folder: Path) -> None:
        """Lets each process write the events that it keeps."""
        answers: dict[int, Any] = {}
        for worker, exports in self._kept.items():
            self._ask(worker, worker, "write", (order.of(exports), folder))
        while any(one.asked for one in self._workers):
            self._hear(answers, ["the events"] * self._count, None, None)
        _raise_first(answers)

    def write_parts(self, requests: Sequence[PartRequest], folder: Path) -> None:
        """Lets each part be written by the process that is free next."""
        tasks = [("write_part", (one, self._means, self._base, folder)) for one in requests]
        self._spread(tasks, [one.portion.shown for one in requests], None, None)

    def _spread(
        self,
        tasks: Sequence[tuple[str, tuple[Any, ...]]],
        shown: Sequence[str],
        on_given: Callable[[int, int], None] | None,
        progress: raw.Progress | None,
    ) -> list[Any]:
        """Has every task done; of several that fail, the first one's error is raised, as if they ran one by one."""
        answers: dict[int, Any] = {}
        waiting = deque(range(len(tasks)))
        while waiting or any(one.asked for one in self._workers):
            for number, worker in enumerate(self._workers):
                if waiting and not worker.asked:
                    task = waiting.popleft()
                    self._ask(number, task, *tasks[task])
                    if on_given:
                        on_given(number, task)
            self._hear(answers, shown, progress, waiting)
        _raise_first(answers)
        return [answers[task] for task in range(len(tasks))]

    def _ask(self, worker: int, task: int, what: str, arguments: tuple[Any, ...]) -> None:
        self._workers[worker].asked.append(task)
        try:
            self._workers[worker].connection.send((what, arguments))
        except OSError:  # its end is heard next
            return

    def _hear(
        self,
        answers: dict[int, Any],
        shown: Sequence[str],
        progress: raw.Progress | None,
        waiting: deque[int] | None,
    ) -> None:
        """Takes what the processes say next."""
        by_connection = {one.connection: one for one in self._workers}
        for connection in wait(list(by_connection)):
            worker = by_connection[connection]  # type: ignore[index]
            try:
                kind, said = worker.connection.recv()
            except (EOFError, OSError):
                raise self._lost(worker, shown) from None
            if kind == "progress":
                if progress:
                    progress(*said)
                continue
            answers[worker.asked.popleft()] = said
            if isinstance(said, BaseException) and waiting is not None:
                waiting.clear()  # they come later, and nobody will ask

    def _lost(self, worker: _Worker, shown: Sequence[str]) -> ExecutorError:
        try:
            code: int | None = worker.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with {code}"
        what = shown[worker.asked[0]] if worker.asked else "exports"
        return ExecutorError(
            f"the process that read {what} {how}, perhaps for lack of memory",
            "Let fewer processes read at once with --threads, or give them less with --memory.",
        )


def _raise_first(answers: dict[int, Any]) -> None:
    for task in sorted(answers):
        if isinstance(answers[task], BaseException):
            raise answers[task]
