"""Two workers of a real dask scheduler, on this machine's own address alone."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.executors.drawn import lift, rank_files, tables
from tests.hardening.test_secrets import TOKEN, planted
from tests.running import edit, refused, tracelens
from tracelens.errors import UsageError
from tracelens.executors import cluster
from tracelens.trace import Options, open_trace

ROOT = Path(__file__).parents[2]
_PATIENCE_S = 120.0


class Workers:
    """A scheduler and its workers, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._start("scheduler", "--host", "127.0.0.1", "--port", self.address.rpartition(":")[2])

    def _start(self, what: str, *arguments: str, name: str = "", environment: dict[str, str] | None = None) -> None:
        with (self.folder / f"{name or what}.log").open("w") as log:
            self.processes[name or what] = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "dask", what, *arguments, "--no-dashboard"], cwd=self.folder,
                stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
            )  # fmt: skip

    def add(self, name: str, **environment: str) -> None:
        self._start(
            "worker", f"tcp://{self.address}", "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny",
            "--local-directory", str(self.folder / name), name=name, environment=environment,
        )  # fmt: skip

    def await_workers(self, count: int) -> None:
        import distributed

        with distributed.Client(self.address, timeout=_PATIENCE_S, set_as_default=False) as client:
            if count:
                client.wait_for_workers(count, timeout=_PATIENCE_S)

    def end(self) -> None:
        for one in self.processes.values():
            one.kill()
            one.wait()

    @property
    def option(self) -> str:
        return f"dask://{self.address}"


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    made = Workers(tmp_path_factory.mktemp("dask"))
    try:
        made.add("one")
        made.add("two")
        made.await_workers(2)
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return rank_files(tmp_path_factory.mktemp("made"))


@pytest.fixture(autouse=True)
def lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    lift(monkeypatch)


def test_the_same_rows(made: list[str], workers: Workers) -> None:
    assert tables(made, executor=workers.option) == tables(made, threads=1)


@pytest.mark.parametrize("command", ["info", "bucket", "steps", "gaps", "collectives", "skew"])
def test_every_command_gives_the_same_bytes(made: list[str], workers: Workers, command: str) -> None:
    local = tracelens(command, *made, "--no-cache", "--threads", "1", "--format", "json")
    remote = tracelens(command, *made, "--no-cache", "--executor", workers.option, "--format", "json")
    assert remote == local
    assert local.code == 0


def test_a_small_capture_and_relative_names(made: list[str], workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run in other folders than the command does."""
    monkeypatch.undo()
    folder = Path(made[0]).parent
    local, remote = (
        tracelens("bucket", "--format", "json", *more, cwd=folder) for more in ([], ["--executor", workers.option])
    )
    assert remote == local


def test_a_stored_load_needs_no_scheduler(made: list[str], workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = tracelens("skew", *made, "--executor", workers.option, "--format", "json")
    again = tracelens("skew", *made, "--executor", "dask://127.0.0.1:1", "--format", "json")
    assert first.code == 0
    assert again == first


def test_nothing_stays_behind(made: list[str], workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert tracelens("skew", *made, "--no-cache", "--executor", workers.option).code == 0
    assert list(tmp_path.iterdir()) == []
    assert [str(one) for one in workers.folder.rglob("*") if "events-" in one.name or "launch-" in one.name] == []


def test_secrets_stay_where_they_are(tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments, command lines, users, thread names: none of it is in what a worker sends; the host's name, which `info` shows, is."""
    paths = rank_files(tmp_path)
    assert sum(planted(Path(one)) for one in paths) > 50
    sent: list[bytes] = []
    gathering = cluster.Cluster._gather

    def gather(self: Any, futures: Any, portions: Any, on_done: Any) -> Any:
        import pickle

        def seen(number: int, answer: Any) -> None:
            sent.append(pickle.dumps(answer).replace(f"{TOKEN}-TARGET_INFO_SYSTEM_ENV-value".encode(), b""))
            if on_done:
                on_done(number, answer)

        return gathering(self, futures, portions, seen)

    monkeypatch.setattr(cluster.Cluster, "_gather", gather)
    for command in ("skew", "gaps"):
        assert tracelens(command, *paths, "--no-cache", "--executor", workers.option).code == 0
    assert len(sent) >= 2 * len(paths)
    assert all(TOKEN.encode() not in one for one in sent)


def test_a_file_that_the_workers_do_not_see(made: list[str], workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cluster._absolute
    monkeypatch.setattr(
        cluster, "_absolute",
        lambda one: found(one) if one.first != 1 else cluster.replace(
            one, found=tuple(cluster.replace(file, path=Path("/elsewhere") / file.path.name) for file in one.found)
        ),
    )  # fmt: skip
    told = refused(tracelens("info", *made, "--no-cache", "--executor", workers.option))
    assert "rank1.sqlite: cannot be read on the worker tcp://127.0.0.1:" in told
    assert "shared file system" in told


def test_of_several_bad_files_the_first_is_told(tmp_path: Path, workers: Workers) -> None:
    paths = rank_files(tmp_path)
    edit(Path(paths[1]), "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
    Path(paths[2]).write_bytes(b"no database")
    local = refused(tracelens("info", *paths, "--no-cache", "--threads", "1"))
    assert refused(tracelens("info", *paths, "--no-cache", "--executor", workers.option)) == local


def test_another_version_is_refused(made: list[str], workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "__version__", "9.9")
    told = refused(tracelens("info", *made, "--no-cache", "--executor", workers.option))
    assert "and this is 9.9: both must be the same" in told
    assert "pip install nsys-tracelens==9.9" in told


def test_no_scheduler(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_CONNECT_S", 0.5)
    told = refused(tracelens("info", *made, "--no-cache", "--executor", "dask://127.0.0.1:1"))
    assert "no dask scheduler answers at 127.0.0.1:1" in told
    assert "dask scheduler" in told


def test_dask_is_not_installed(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    told = refused(tracelens("info", *made, "--no-cache", "--executor", "dask://127.0.0.1:1"))
    assert "pip install 'nsys-tracelens[dask]'" in told


def test_a_report_must_be_exported_first(tmp_path: Path) -> None:
    (tmp_path / "a.nsys-rep").write_bytes(b"x")
    told = refused(tracelens("info", tmp_path / "a.nsys-rep", "--executor", "dask://127.0.0.1:1"))
    assert "nsys export --type=sqlite" in told


@pytest.mark.parametrize("text", ["dask://", "dask://host", "tcp://127.0.0.1:1", "dask://a b:1", "slurm", ""])
def test_an_address_that_is_none(made: list[str], text: str) -> None:
    assert "neither local nor dask://HOST:PORT" in refused(tracelens("info", *made, "--executor", text))


def test_addresses() -> None:
    assert cluster.address_of("dask://scheduler.example:8786") == "scheduler.example:8786"
    assert cluster.address_of("dask://[::1]:8786/") == "[::1]:8786"
    with pytest.raises(UsageError):
        cluster.address_of("local")
    with pytest.raises(UsageError):
        open_trace(["x.sqlite"], Options(executor="dask"))


class TestLosses:
    """Workers and schedulers that go away; each test has its own."""

    @pytest.fixture
    def own(self, tmp_path: Path) -> Iterator[Workers]:
        folder = tmp_path / "dask"
        folder.mkdir()
        made = Workers(folder)
        yield made
        made.end()

    @pytest.mark.parametrize("when", ["read", "write", "write_parts"])
    def test_a_worker_is_killed(
        self, made: list[str], own: Workers, when: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While it reads, or when it holds what it read: dask gives its share to the other, and the answer is the same."""
        expected = tracelens("skew", *made, "--no-cache", "--threads", "1", "--format", "json")
        for name in ("one", "two"):
            own.add(name)
        own.await_workers(2)
        waiting = cluster.Cluster._wait
        doing: list[str] = []
        for name in ("read", "write", "write_parts"):
            method = getattr(cluster.Cluster, name)

            def noted(self: Any, *arguments: Any, _name: str = name, _method: Any = method) -> Any:
                doing.append(_name)
                return _method(self, *arguments)

            monkeypatch.setattr(cluster.Cluster, name, noted)

        def wait(self: Any, *arguments: Any) -> Any:
            if doing[-1] == when and "one" in own.processes:
                killed = own.processes.pop("one")
                killed.send_signal(signal.SIGKILL)
                killed.wait()
            return waiting(self, *arguments)

        monkeypatch.setattr(cluster.Cluster, "_wait", wait)
        assert tracelens("skew", *made, "--no-cache", "--executor", own.option, "--format", "json") == expected
        assert "one" not in own.processes

    def test_all_workers_are_lost(self, made: list[str], own: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
        own.add("one")
        own.await_workers(1)
        monkeypatch.setattr(cluster, "_ALONE_S", 1.0)
        waiting = cluster.Cluster._wait

        def wait(self: Any, *arguments: Any) -> Any:
            own.processes["one"].kill()
            return waiting(self, *arguments)

        monkeypatch.setattr(cluster.Cluster, "_wait", wait)
        assert "has lost all its workers" in refused(tracelens("info", *made, "--no-cache", "--executor", own.option))

    def test_a_scheduler_without_workers(self, made: list[str], own: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
        own.await_workers(0)
        monkeypatch.setattr(cluster, "_CONNECT_S", 2.0)
        assert "has no worker" in refused(tracelens("info", *made, "--no-cache", "--executor", own.option))

    def test_the_scheduler_is_lost(self, made: list[str], own: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
        own.add("one")
        own.await_workers(1)
        waiting = cluster.Cluster._wait

        def wait(self: Any, *arguments: Any) -> Any:
            own.processes["scheduler"].kill()
            time.sleep(0.5)
            return waiting(self, *arguments)

        monkeypatch.setattr(cluster.Cluster, "_wait", wait)
        told = refused(tracelens("info", *made, "--no-cache", "--executor", own.option))
        assert "went away before all was read" in told

    def test_a_worker_without_tracelens(self, made: list[str], own: Workers, tmp_path: Path) -> None:
        """A package of that name comes first, and has no version."""
        (tmp_path / "empty" / "tracelens").mkdir(parents=True)
        (tmp_path / "empty" / "tracelens" / "__init__.py").write_text("")
        own.add("one", PYTHONPATH=str(tmp_path / "empty"))
        own.await_workers(1)
        told = refused(tracelens("info", *made, "--no-cache", "--executor", own.option))
        assert "has no tracelens" in told
