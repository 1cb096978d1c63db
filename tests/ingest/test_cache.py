"""Stored loads: the same answer from them, and the right one whatever happens to them.

    capture --first question--> folder <key>/ of events and tables --second question--> the same bytes

Loads of these small captures are stored because the bounds below which it does not pay are lifted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.commands import WRITE_FILES, registered, words
from tests.running import edit, tracelens
from tracelens import loading
from tracelens.api import load
from tracelens.ingest import cache, raw
from tracelens.model import event_files
from tracelens.simulate import CaptureSpec, Late, write
from tracelens.trace import Options, open_trace

ROOT = Path(__file__).parents[2]
SPEC = CaptureSpec(
    tp=2, layers=1, steps=24, all_reduce="nccl", nccl_payload="both", foreign_process=True, side_contexts=True,
    prefill_every=8, faults=(Late((1,), 20_000),),
)  # fmt: skip
#: Runs a command in a process of its own, with the bounds lifted.
LIFTED = (
    "import sys; from tracelens import loading; loading._SMALL_BYTES = loading._FEW_EVENTS = 0;"
    "from tracelens.cli import run; sys.exit(run(sys.argv[1:]))"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = write(SPEC, tmp_path_factory.mktemp("made"), truth=False)
    return path


@pytest.fixture
def capture(made: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "secret-folder"
    folder.mkdir()
    return Path(shutil.copy2(made, folder / "tp2.sqlite"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in which everything is stored."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TRACELENS_CACHE_GB", raising=False)
    monkeypatch.setattr(loading, "_SMALL_BYTES", 0)
    monkeypatch.setattr(loading, "_FEW_EVENTS", 0)
    return tmp_path / "cache" / "tracelens"


def entries(home: Path) -> list[Path]:
    return sorted(one for one in home.iterdir() if not one.name.startswith(".")) if home.is_dir() else []


def leftovers(home: Path) -> list[str]:
    return sorted(one.name for one in home.iterdir() if one.name.startswith(".")) if home.is_dir() else []


def answer(path: Path, *options: str, command: str = "bucket") -> tuple[int, str]:
    ran = tracelens(command, path.name, "--format", "json", *options, cwd=path.parent)
    return ran.code, ran.out


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A call after which no capture can be read for its events."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the capture was read again")

    return lambda: monkeypatch.setattr(raw, "load_events", refuse)


@pytest.mark.parametrize("command", registered())
def test_the_stored_load_gives_the_same_bytes(command: str, capture: Path, tmp_path: Path, unread: Any) -> None:
    """Without the cache, the first time, and from the stored load; the last without reading an event."""
    out = tmp_path / "out"
    out.mkdir()

    def ask(*options: str) -> tuple[int, str, str, dict[str, bytes]]:
        form = () if command in WRITE_FILES else ("--format", "json")
        ran = tracelens(*words(command, capture.name, out), *form, *options, cwd=capture.parent)
        return ran.code, ran.out, ran.err, {one.name: one.read_bytes() for one in sorted(out.iterdir())}

    plain = ask("--no-cache")
    first = ask()
    unread()
    assert first == plain
    assert ask() == plain
    for threads in ("1", "4"):
        assert ask("--threads", threads) == plain


def test_small_captures_are_not_worth_storing(capture: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(home.parent))
    answer(capture)
    assert not home.exists()


def test_events_in_memory_and_in_files_are_the_same(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "SELECT * FROM event ORDER BY event_id"
    with open_trace([str(capture)], Options(use_cache=False)) as trace:
        in_files = trace.db.sql(query).fetchall()
    monkeypatch.setattr(loading, "_FEW_EVENTS", 1 << 40)
    with open_trace([str(capture)], Options(use_cache=False)) as trace:
        assert trace.db.sql(query).fetchall() == in_files


def test_no_cache_stores_nothing_and_leaves_nothing(capture: Path, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # fmt: skip
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert answer(capture, "--no-cache")[0] == 0
    assert not home.exists()
    assert list(temporary.iterdir()) == []


def test_a_changed_capture_is_read_anew(capture: Path, home: Path) -> None:
    answer(capture)
    edit(capture, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = end + 7 WHERE start = (SELECT min(start) FROM CUPTI_ACTIVITY_KIND_KERNEL)")  # fmt: skip
    assert answer(capture) == answer(capture, "--no-cache")
    assert len(entries(home)) == 2


def test_what_decides_a_load_is_part_of_its_key(capture: Path, home: Path) -> None:
    answer(capture)
    answer(capture, "--rank-map", "5=tp2.sqlite:0,7=tp2.sqlite:1")
    answer(capture, "--expect-ranks", "3")
    answer(capture, "--loader", "sqlite")
    assert len(entries(home)) == 4
    for options in (("--rules", "llama"), ("--ranks", "1"), ("--attribution", "compute-first")):
        answer(capture, *options)  # these are asked of one and the same load
    assert len(entries(home)) == 4


def test_another_map_is_applied_to_the_stored_load(capture: Path, unread: Any) -> None:
    answer(capture)
    plain = answer(capture, "--no-cache", "--engine", "vllm", "--model", "llama")
    unread()
    assert answer(capture, "--engine", "vllm", "--model", "llama") == plain


@pytest.mark.parametrize("first", [0, 2])
def test_a_damaged_load_is_found_and_made_anew(first: int, capture: Path, home: Path) -> None:
    """Each of its files in turn, damaged in two of four ways."""
    ways = ("flip", "cut", "empty", "remove")
    right = answer(capture, command="skew")
    (entry,) = entries(home)
    names = sorted(one.name for one in entry.iterdir() if one.name != "used")
    chance = random.Random(3)
    for number, name in enumerate(names):
        file, damage = entry / name, ways[(first + number) % 4]
        if not file.exists():  # a part that the question before did not need
            continue
        data = bytearray(file.read_bytes())
        if damage == "flip":
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        if damage == "remove":
            file.unlink()
        else:
            file.write_bytes({"flip": data, "cut": data[: len(data) // 2], "empty": b""}[damage])
        assert answer(capture, command="skew") == right, name


def test_a_capture_is_not_found_under_another_ones_load(capture: Path, home: Path, tmp_path: Path) -> None:
    """A load is bound to its content: a file that takes another's name is read."""
    right = answer(capture)
    (other,) = write(CaptureSpec(tp=2, layers=1, steps=25), tmp_path / "other", truth=False)
    other.replace(capture)
    assert answer(capture) != right
    assert len(entries(home)) == 2


def test_nothing_of_the_machine_is_stored(capture: Path, home: Path) -> None:
    """Names as typed and host names come back, but from the capture and the command line, not from the store."""
    path = str(capture)
    info = tracelens("info", path, "--format", "json").json
    hosts = {one["hostname"] for one in info["exports"]} - {None}
    assert hosts
    for command in ("info", "skew", "steps"):
        tracelens(command, path, "--format", "json")
    stored = [one for entry in entries(home) for one in entry.iterdir()]
    texts = {str(value) for file in stored if file.suffix == ".parquet" for column in pq.read_table(file).columns for value in column.unique().to_pylist()}  # fmt: skip
    texts |= {file.read_text() for file in stored if file.suffix == ".json"}
    for secret in (*hosts, "secret-folder", capture.stem, str(Path.home()), "/tmp"):
        assert not [text for text in texts if secret in text], secret
    assert tracelens("info", path, "--format", "json").json == info


def test_the_disk_is_full(capture: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Event files fail in the cache, then in the system's folder too: the answer stands, and the reason is told once each."""
    right = answer(capture, "--no-cache")

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(event_files, "_write", fail)
    ran = tracelens("bucket", capture.name, "--format", "json", cwd=capture.parent)
    assert (ran.code, ran.out) == right
    assert ran.err.count("No space left on device") == 2
    assert entries(home) == []
    assert leftovers(home) == []


def test_only_the_tables_do_not_fit(capture: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = answer(capture, "--no-cache")

    def fail(*_: Any, **__: Any) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tracelens.ingest.cache_tables.save_tables", fail)
    ran = tracelens("bucket", capture.name, "--format", "json", cwd=capture.parent)
    assert (ran.code, ran.out) == right
    assert "could not be stored" in ran.err
    assert entries(home) == leftovers(home) == []


def test_a_home_that_cannot_be_written(capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = answer(capture, "--no-cache")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    ran = tracelens("bucket", capture.name, "--format", "json", cwd=capture.parent)
    assert (ran.code, ran.out) == right
    assert "could not be stored (Not a directory)" in ran.err
    assert tracelens("cache", "list").code == 0


def test_two_processes_at_once(capture: Path, home: Path) -> None:
    right = answer(capture, "--no-cache")
    command = [sys.executable, "-c", LIFTED, "bucket", capture.name, "--format", "json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    several = [subprocess.Popen(command, cwd=capture.parent, stdout=subprocess.PIPE, env=environment) for _ in range(3)]
    outputs = [one.communicate(timeout=120)[0].decode() for one in several]
    assert [one.returncode for one in several] == [0, 0, 0]
    assert outputs == [right[1]] * 3
    assert len(entries(home)) == 1
    assert leftovers(home) == []


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_killed_at_any_moment(kill: signal.Signals, capture: Path, home: Path) -> None:
    """Killed 8 times, each a little later; the next question is answered, and what was left behind is removed."""
    right = answer(capture, "--no-cache")
    command = [sys.executable, "-c", LIFTED, "steps", capture.name]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for turn in range(8):
        shutil.rmtree(home, ignore_errors=True)
        begun = subprocess.Popen(command, cwd=capture.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)  # fmt: skip
        waited = time.monotonic()
        while not home.is_dir() and time.monotonic() - waited < 60 and begun.poll() is None:
            time.sleep(0.001)
        time.sleep(0.02 * turn)
        begun.send_signal(kill)
        code = begun.wait(timeout=60)
        if kill == signal.SIGINT:
            assert code in (0, 130)
            assert leftovers(home) == []
        assert answer(capture) == right
        assert leftovers(home) == []
        assert len(entries(home)) == 1


def test_an_interrupt_that_a_library_turns_into_its_own_error_is_an_interrupt(
    capture: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB answers ctrl-C by errors of its own; a folder of a load that was begun is removed all the same."""

    def pressed(*_: Any) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise RuntimeError("Query interrupted")

    monkeypatch.setattr("tracelens.ingest.cache_tables.save_tables", pressed)
    ran = tracelens("bucket", capture)
    assert (ran.code, ran.err) == (130, "tracelens: interrupted\n")
    assert leftovers(home) == []
    monkeypatch.undo()


def test_the_longest_unused_goes_first_and_what_is_in_use_never(
    made: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []
    for number in range(4):
        path = tmp_path / f"rank{number}.sqlite"
        shutil.copy2(made, path)
        paths.append(path)
    for second, path in enumerate(paths[:3]):
        answer(path)
        for entry in entries(home):
            if time.time() - (entry / "used").stat().st_mtime < 3600:
                os.utime(entry / "used", (1_000_000 + second, 1_000_000 + second))
    oldest, middle, youngest = (home / one.key for one in cache.stored())
    size = cache.stored()[0].size_bytes
    monkeypatch.setenv("TRACELENS_CACHE_GB", str(2.5 * size / 1e9))
    held = cache.open_load(oldest.name)
    assert held is not None
    os.utime(oldest / "used", (1, 1))
    answer(paths[3])
    assert oldest.exists()
    assert not middle.exists()
    assert not youngest.exists()
    held[0].close()
    assert len(entries(home)) == 2


def test_a_limit_of_nothing_stores_nothing(capture: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_CACHE_GB", "0")
    assert answer(capture) == answer(capture, "--no-cache")
    assert not home.exists()


@pytest.mark.parametrize("part", ["launch", "nvtx"])
def test_parts_come_from_the_store_the_second_time(part: Any, capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> tuple[Any, ...]:
        with open_trace([str(capture)]) as trace:
            trace.ensure(part)
            rows = trace.db.sql(f"SELECT * FROM {part}").fetchall()
            return rows, trace.notices, trace.db.sql("SELECT * FROM ledger").fetchall()

    first = asked()
    assert first[0]

    def refuse(*_: Any) -> None:
        raise AssertionError("the capture was read again")

    monkeypatch.setattr(raw, "load_launches", refuse)
    monkeypatch.setattr(raw, "load_ranges", refuse)
    assert asked() == first


def test_after_a_query_of_the_users_own_everything_else_still_works(capture: Path) -> None:
    """The query shuts DuckDB off from files; events and parts of the stored load stay within reach."""
    with open_trace([str(capture)]) as trace:
        for part in ("launch", "nvtx"):
            trace.ensure(part)  # type: ignore[arg-type]
    with load(str(capture)) as again:
        assert again.sql("SELECT count(*) AS n FROM event")["n"].item() > 0
        for part in ("launch", "nvtx"):
            again.ensure(part)  # type: ignore[arg-type]
        assert again.sql("SELECT count(*) AS n FROM launch")["n"].item() > 0
        assert again.buckets().tables["buckets"].height > 0


def test_list_and_clear(capture: Path, home: Path) -> None:
    assert tracelens("cache", "list").out.startswith("0 stored loads, 0.00 of at most 20 GB")
    answer(capture)
    (row,) = tracelens("cache", "list", "--format", "json").json["loads"]
    assert (row["rank_count"], row["in_use"], row["load"]) == (2, False, entries(home)[0].name)
    with open_trace([str(capture)]):
        cleared = tracelens("cache", "clear")
        assert "could not be removed: in use" in cleared.err
        assert len(entries(home)) == 1
    assert tracelens("cache", "clear").out.startswith("1 stored load removed")
    assert entries(home) == []


def test_sql_reads_stored_events_and_no_other_file(capture: Path, tmp_path: Path) -> None:
    answer(capture)
    ran = tracelens("sql", capture, "SELECT count(*) AS n FROM event", "--format", "json")
    assert ran.json["rows"][0]["n"] > 0
    (tmp_path / "other.csv").write_text("a\n1\n")
    assert tracelens("sql", capture, f"SELECT * FROM '{tmp_path / 'other.csv'}'").code == 2


def test_many_ranges_are_stored_even_with_few_events(capture: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    with open_trace([str(capture)]) as trace:
        ((event_count,),) = trace.db.execute("SELECT count(*) FROM event").fetchall()
    tracelens("cache", "clear")
    monkeypatch.setattr(loading, "_FEW_EVENTS", event_count + 10)
    answer(capture)
    assert len(entries(home)) == 1


@pytest.mark.parametrize("stage", ["scratch", "rows"])
def test_where_ranges_cannot_be_written_they_are_read_into_memory(stage: str, capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """The disk fills up before the rows are staged, or while the table is written."""

    def asked() -> tuple[Any, ...]:
        with open_trace([str(capture)]) as trace:
            trace.ensure("nvtx")
            assert trace.db.execute("SELECT count(*) FROM duckdb_databases() WHERE NOT internal").fetchall() == [(1,)]
            told = [one for one in trace.notices if one.code != "temporary-unwritable"]
            return trace.db.sql("SELECT * FROM nvtx").fetchall(), trace.db.sql("SELECT * FROM ledger").fetchall(), told

    right = asked()
    tracelens("cache", "clear")
    draft, writer = cache.draft, pq.ParquetWriter

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with open_trace([str(capture)]):  # stores the events
        pass
    monkeypatch.setattr(*((cache, "draft", refuse) if stage == "scratch" else (pq, "ParquetWriter", refuse)))
    assert asked() == right
    monkeypatch.setattr(cache, "draft", draft)
    monkeypatch.setattr(pq, "ParquetWriter", writer)
    assert asked() == right
