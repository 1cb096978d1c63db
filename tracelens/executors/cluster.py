"""A crew of dask's workers, on any machines that see the same files: `--executor dask://HOST:PORT`.

A portion's events stay with the worker that read it, in a file without a name, as the result of a task. Where that
worker is lost, or dask moves the work, the portion is read anew: the result is a recipe that holds what it made.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pydoc
import re
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from tracelens import __version__
from tracelens.errors import ExecutorError, InputError, TracelensError, UsageError
from tracelens.executors import portion
from tracelens.executors.means import Means
from tracelens.executors.portion import PartRequest, Portion, Told
from tracelens.ingest import raw
from tracelens.ingest.discover import Found
from tracelens.ingest.event_runs import EventRuns, ScratchError
from tracelens.model.event_files import Order

_ADDRESS = re.compile(r"dask://(?P<address>[^/\s:]+:\d{1,5}|\[[0-9a-fA-F:.]+\]:\d{1,5})/?")
_CONNECT_S = 10.0
#: How long a run may be without any worker before it is given up.
_ALONE_S = 30.0
_LOOK_S = 1.0
_SHARED = "Workers must see the captures under the same absolute paths as this machine, as on a shared file system."


def address_of(executor: str) -> str:
    """HOST:PORT of `dask://HOST:PORT`.

    Raises:
        UsageError: it is nothing of the kind.
    """
    match = _ADDRESS.fullmatch(executor)
    if match is None:
        raise UsageError(
            f"--executor {executor!r}: neither local nor dask://HOST:PORT", "E.g. --executor dask://127.0.0.1:8786"
        )
    return match["address"]


class Cluster:
    """Workers of a dask scheduler.

    Args:
        found: the captures that they will read.
        means: the limits of each of them, and where the scheduler is.

    Raises:
        ExecutorError: dask is not installed.
        InputError: a report, which nsys must export first.
        UsageError: the address is none.
    """

    def __init__(self, found: Sequence[Found], means: Means) -> None:
        self._address = address_of(means.executor)
        for one in found:
            if one.kind == "report":
                raise InputError(
                    f"{one.shown}: a report, and workers read exports only",
                    f"nsys export --type=sqlite --include-blobs=true {one.shown}",
                )
        try:
            import distributed
        except ImportError as error:
            raise ExecutorError(
                "--executor dask://... needs dask, which is not installed", "pip install 'nsys-tracelens[dask]'"
            ) from error
        self._dask: Any = distributed
        # Of a worker's own machine: how many threads it has and how much memory its tasks may use are its affair.
        self._means = replace(means, threads=1)
        self._client: Any = None
        self._held: list[Any] = []
        self._portions: list[Portion] = []
        self._told: list[Told] = []
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Connects, and looks whether the workers can do it."""
        self._cleanup.enter_context(_quiet())
        try:
            self._client = self._dask.Client(self._address, timeout=_CONNECT_S, set_as_default=False)
            self._cleanup.callback(self._client.close, timeout=2)
            self._cleanup.enter_context(self._client.as_current())
            self._check_workers()
        except (OSError, TimeoutError) as error:
            self.__exit__()
            raise ExecutorError(
                f"no dask scheduler answers at {self._address} ({_reason(error)})",
                "Is it running, and reachable from here? Start one with: dask scheduler",
            ) from error
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Lets the workers go: what they do for this run is dropped."""
        self._held = []
        self._cleanup.close()

    def _check_workers(self) -> None:
        if not self._workers():
            try:
                self._client.wait_for_workers(1, timeout=_CONNECT_S)
            except TimeoutError:
                raise ExecutorError(
                    f"the dask scheduler at {self._address} has no worker",
                    "Start one where the captures can be seen: dask worker " + self._address,
                ) from None
        # A function of Python's own: it also answers where tracelens is older, or not installed.
        versions = self._client.run(pydoc.locate, "tracelens.__version__", on_error="return")
        for worker, version in sorted(versions.items()):
            if version != __version__:
                seen = version if isinstance(version, str) else "no tracelens"
                raise _differs(f"the worker {worker}", seen, __version__)

    def _workers(self) -> dict[str, Any]:
        workers: dict[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        return workers

    def read(self, portions: Sequence[Portion], progress: raw.Progress | None) -> list[Told]:
        """Has each portion read by a worker, which keeps its events."""
        self._portions = [_absolute(one) for one in portions]
        self._held = [self._client.submit(_Kept, __version__, one, self._means, pure=False) for one in self._portions]
        told = [self._client.submit(_told, one, pure=False) for one in self._held]

        def done(task: int, answer: Told) -> None:
            if progress:
                rows = sum(answer.tables["raw_read"].column("rows_read").to_pylist())
                progress(portions[task].shown, rows, rows)

        self._told = self._gather(told, self._portions, done)
        return self._told

    def write(self, order: Order, folder: Path) -> None:
        """Has the events written where they are kept, and the files sent here."""
        tasks = [
            self._client.submit(_written, kept, order.of(one.numbers), told.seen, pure=False)
            for kept, one, told in zip(self._held, self._portions, self._told, strict=True)
        ]
        self._gather(tasks, self._portions, lambda _, files: _put(files, folder))

    def write_parts(self, requests: Sequence[PartRequest], folder: Path) -> None:
        """Has each part read by a worker, and the files sent here."""
        requests = [replace(one, portion=_absolute(one.portion)) for one in requests]
        tasks = [self._client.submit(_part_written, __version__, one, self._means, pure=False) for one in requests]
        self._gather(tasks, [one.portion for one in requests], lambda _, files: _put(files, folder))

    def _gather(
        self, futures: list[Any], portions: Sequence[Portion], on_done: Callable[[int, Any], None] | None
    ) -> list[Any]:
        """Takes every result when it is there, and lets the workers forget it.

        Of several tasks that fail, the first one's error is raised, as if they ran one by one.
        """
        answers: dict[int, Any] = {}
        failed: dict[int, BaseException] = {}
        alone_since: float | None = None
        left = dict(enumerate(futures))
        while left and not (failed and min(failed) < min(left)):
            ended = [number for number, one in left.items() if one.done()]
            if not ended:
                alone_since = self._wait(list(left.values()), alone_since)
            for number in ended:
                try:
                    answers[number] = left[number].result()
                except Exception as error:
                    failed[number] = self._explained(error, portions[number])
                else:
                    if on_done:
                        on_done(number, answers[number])
                    if isinstance(answers[number], list):  # files, which are here now
                        answers[number] = None
                left.pop(number).release()
                futures[number] = None
        if failed:
            raise failed[min(failed)]
        return [answers[number] for number in range(len(futures))]

    def _wait(self, futures: list[Any], alone_since: float | None) -> float | None:
        """Waits a moment for any of several results; since when there is no worker, None while there are some."""
        try:
            self._dask.wait(futures, timeout=_LOOK_S, return_when="FIRST_COMPLETED")
        except (TimeoutError, self._dask.TimeoutError):
            pass
        except CancelledError as error:
            raise self._gone() from error
        if self._client.status != "running":
            raise self._gone()
        if self._workers():
            return None
        now = time.monotonic()
        if alone_since is not None and now - alone_since > _ALONE_S:
            raise ExecutorError(
                f"the dask scheduler at {self._address} has lost all its workers",
                "Their logs say why; for lack of memory, start them with more: dask worker --memory-limit",
            )
        return alone_since if alone_since is not None else now

    def _gone(self) -> ExecutorError:
        return ExecutorError(
            f"the dask scheduler at {self._address} went away before all was read", "Start it again, and try again."
        )

    def _explained(self, error: BaseException, of: Portion) -> BaseException:
        if isinstance(error, (TracelensError, MemoryError)):
            return error
        if isinstance(error, self._dask.scheduler.KilledWorker):
            return ExecutorError(
                f"each worker that read {of.shown} was lost, perhaps for lack of memory",
                "Give the workers more memory, or less to use with --memory.",
            )
        if isinstance(error, (CancelledError, OSError, self._dask.comm.CommClosedError)):
            return self._gone()
        return error


class _Kept:
    """A portion that was read on a worker; moved to another one, or to its disk, it is read anew there."""

    def __init__(self, version: str, of: Portion, means: Means) -> None:
        _check_here(version, of)
        self._recipe = (version, of, means)
        self._taken = False
        # Nothing of it stays in memory: a worker keeps as many portions as it gets.
        folder = _folder()
        self.runs = EventRuns(int(portion.RUNS_SHARE * means.limit_bytes), folder)
        weakref.finalize(self, self.runs.close)
        with _local_disk():
            self.told = portion.read(of, means, folder, self.runs)
            self.runs.move_out()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Kept, self._recipe

    def __sizeof__(self) -> int:
        return self.runs.spilled_bytes

    def take(self, seen: Mapping[int, raw.Stamp]) -> EventRuns:
        """The events, which can be taken once; read anew where they were, of files that must not have changed."""
        portion.check_seen(self._recipe[1], seen, self.told.seen)
        if self._taken:
            return _Kept(*self._recipe).take(seen)
        self._taken = True
        return self.runs


def _told(kept: _Kept) -> Told:
    return kept.told


def _written(kept: _Kept, order: Order, seen: Mapping[int, raw.Stamp]) -> list[tuple[str, bytes]]:
    """The files of a portion's events: name and content."""
    runs = kept.take(seen)
    with _local_disk(), tempfile.TemporaryDirectory(prefix="tracelens-", dir=_folder()) as folder:
        return [(file.name, file.read_bytes()) for file in portion.write(runs, order, Path(folder), 1)]


def _part_written(version: str, request: PartRequest, means: Means) -> list[tuple[str, bytes]]:
    """The files of a part: name and content."""
    _check_here(version, request.portion)
    with _local_disk(), tempfile.TemporaryDirectory(prefix="tracelens-", dir=_folder()) as folder:
        files = portion.write_part(request, means, Path(folder), Path(folder))
        return [(file.name, file.read_bytes()) for file in files]


def _put(files: Sequence[tuple[str, bytes]], folder: Path) -> None:
    try:
        for name, content in files:
            (folder / Path(name).name).write_bytes(content)
    except OSError as error:
        raise ScratchError(*error.args) from error


def _absolute(one: Portion) -> Portion:
    return replace(one, found=tuple(replace(file, path=file.path.absolute()) for file in one.found))


def _differs(worker: str, seen: str, wanted: str) -> ExecutorError:
    return ExecutorError(
        f"{worker} has {seen}, and this is {wanted}: both must be the same",
        f"On the workers: pip install nsys-tracelens=={wanted}",
    )


def _check_here(version: str, of: Portion) -> None:
    """That this worker can read a portion."""
    if version != __version__:
        raise _differs(f"the worker on {_host()}", __version__, version)
    for one in of.found:
        if not os.access(one.path, os.R_OK):
            raise InputError(f"{one.shown}: cannot be read on the worker {_host()}", _SHARED)


def _host() -> str:
    from distributed import get_worker

    return str(get_worker().address)


def _folder() -> Path:
    """Where this worker may write."""
    from distributed import get_worker

    return Path(get_worker().local_directory)


@contextlib.contextmanager
def _local_disk() -> Iterator[None]:
    """What cannot be written on a worker is its affair, not that of the machine that asks."""
    try:
        yield
    except OSError as error:
        raise ExecutorError(
            f"the worker {_host()} could not write what it read ({error.strerror or type(error).__name__})",
            "Free some space there, or start it with: dask worker --local-directory",
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """dask's own words about lost workers and connections are ours to say."""
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client")]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)


def _reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or type(error).__name__)
