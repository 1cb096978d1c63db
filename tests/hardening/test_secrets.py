"""Captures hold environments, command lines, users and paths. None of it may reach an output, a file or an error."""

from __future__ import annotations

import contextlib
import gzip
import os
import sqlite3
from pathlib import Path

import pytest

from tests.commands import every_output, run
from tests.running import edit, tables, tracelens
from tracelens.simulate import CaptureSpec, write

TOKEN = "s3cr3t"
#: Texts that answers are made of, or that only whitelisted keys may hold. Everything else is planted.
ANSWERS = {
    ("NVTX_EVENTS", "text"),
    ("StringIds", "value"),
    ("TARGET_INFO_GPU", "name"),
    ("TARGET_INFO_GPU", "uuid"),
    ("TARGET_INFO_CUDA_DEVICE", "uuid"),
    ("NVTX_PAYLOAD_SCHEMA_ENTRIES", "name"),
}


def planted(path: Path) -> int:
    """Plants tokens in every text column of every table, and in the places where captures hold secrets.

    Rows that answers need keep their text; each table gets further rows of tokens.
    """
    count = 0
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as con:
        for table, columns in tables(path).items():
            types = {row[1]: row[2] for row in con.execute(f'PRAGMA table_info("{table}")')}
            for column in columns:
                if "TEXT" not in types[column].upper() or (table, column) in ANSWERS:
                    continue
                keep = {
                    "value": "name NOT LIKE 'EXPORT_%VERSION%' AND name NOT LIKE '%SHIFT' AND name NOT LIKE '%NORMALIZE'",
                    "name": "1" if table in ("PROCESSES", "TARGET_INFO_CUDA_GPU") else "0",
                }.get(column, "1")
                if column == "value" and "name" not in columns:
                    keep = "1"
                with contextlib.suppress(sqlite3.Error):
                    con.execute(f"""UPDATE "{table}" SET "{column}" = '{TOKEN}-{table}-{column}' WHERE {keep}""")
                    count += con.execute("SELECT changes()").fetchone()[0]
        secrets = [
            ("META_DATA_CAPTURE", "PROCESS_0:COMMAND", f"/home/{TOKEN}-user/vllm"),
            ("META_DATA_CAPTURE", "PROCESS_0:ARGUMENT_1", f"--api-key={TOKEN}-argument"),
            ("META_DATA_CAPTURE", "PROCESS_0:ENVIRONMENT_VARIABLE", f"HF_TOKEN={TOKEN}-environment"),
            ("META_DATA_CAPTURE", "PROCESS_0:ENVIRONMENT_VARIABLE", f"RANK={TOKEN}-rank"),
            ("META_DATA_EXPORT", "EXPORT_PARAM_INPUT_PATH_ABS", f"/home/{TOKEN}-user/report.nsys-rep"),
            ("META_DATA_EXPORT", "EXPORT_HOST", f"{TOKEN}-exporter"),
            ("TARGET_INFO_SYSTEM_ENV", "DeviceEnvironment", f"OPENAI_API_KEY={TOKEN}-device"),
            ("TARGET_INFO_SYSTEM_ENV", "UserName", f"{TOKEN}-user"),
        ]
        for table, name, value in secrets:
            con.execute(f'INSERT INTO "{table}" (name, value) VALUES (?, ?)' if table.startswith("META") else
                        f'INSERT INTO "{table}" (globalVid, devStateName, name, nameEnum, value) VALUES (1, \'x\', ?, 7, ?)', (name, value))  # fmt: skip
            count += 1
        names = con.execute("SELECT max(id) FROM StringIds").fetchone()[0]
        con.execute("INSERT INTO StringIds VALUES (?, ?)", (names + 1, f"{TOKEN}-thread-name"))
        con.execute("INSERT INTO StringIds VALUES (?, ?)", (names + 2, f"{TOKEN}-unused-string"))
        con.execute(
            "INSERT INTO ThreadNames (nameId, priority, globalTid) VALUES (?, 1, 281474976710657)", (names + 1,)
        )
        con.execute(
            "INSERT INTO DIAGNOSTIC_EVENT (timestamp, timestampType, source, severity, text) VALUES (0, 1, 1, 3, ?)",
            (f"Events lost while {TOKEN}-user ran /home/{TOKEN}-user/vllm --key",),
        )
        con.execute(
            "INSERT INTO PROCESSES (globalPid, pid, name) VALUES (281474993487872, 1, ?)",
            (f"Worker_TP0 {TOKEN}-title",),
        )
        count += 5
    return count


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    spec = CaptureSpec(
        tp=2,
        layers=1,
        steps=24,
        secrets=(f"{TOKEN}-spec",),
        rank_env=True,
        launch="eager",
        all_reduce="nccl",
        nccl_payload="both",
        foreign_process=True,
        side_contexts=True,
    )
    (path,) = write(spec, folder, truth=False)
    assert planted(path) > 30
    return path


def test_no_secret_reaches_any_output(capture: Path, tmp_path: Path) -> None:
    """Every command, for people and for machines, every file that it writes; the host's name only where it is told."""
    before = set(tmp_path.iterdir())
    people = [(f"{name} table", run(name, capture, tmp_path)) for name in ("info", "bucket", "skew")]
    for what, ran in [*people, *every_output(capture, tmp_path, ("json",))]:
        assert ran.code in (0, 2), (what, ran.err[-1500:])
        found = [line for line in (ran.out + ran.err).splitlines() if TOKEN in line]
        if what.startswith("info"):
            found = [line for line in found if line.replace(f"{TOKEN}-TARGET_INFO_SYSTEM_ENV-value", "").count(TOKEN)]
        assert not found, (what, found[:3])
    written = set(tmp_path.iterdir()) - before
    assert written
    for file in written:
        content = file.read_bytes()
        content = gzip.decompress(content) if file.suffix == ".gz" else content
        assert TOKEN.encode() not in content, file.name


def test_no_secret_is_kept_in_stored_loads(capture: Path) -> None:
    """Stored loads mirror the model's tables; here their bytes are searched as they lie."""
    assert tracelens("info", capture).code == 0
    for file in Path(os.environ["XDG_CACHE_HOME"]).rglob("*"):
        if file.is_file():
            found = file.read_bytes().replace(f"{TOKEN}-TARGET_INFO_SYSTEM_ENV-value".encode(), b"")
            assert TOKEN.encode() not in found, file.name


def test_no_secret_is_kept_in_the_models_tables(capture: Path) -> None:
    from tracelens.trace import open_trace

    with open_trace([str(capture)]) as trace:
        trace.ensure("launch")
        trace.ensure("nvtx")
        for (table,) in trace.db.execute("SELECT table_name FROM duckdb_tables() WHERE NOT internal").fetchall():
            rows = trace.db.execute(f'SELECT * FROM "{table}"').fetchall()
            leaked = [
                row for row in rows if TOKEN in str(row) and f"{TOKEN}-TARGET_INFO_SYSTEM_ENV-value" not in str(row)
            ]
            assert not leaked, (table, leaked[:3])


def test_errors_show_the_path_as_it_was_typed(tmp_path: Path) -> None:
    """Never the folder where it really lies."""
    real = tmp_path / f"{TOKEN}-home"
    real.mkdir()
    (real / "broken.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 500)
    (tmp_path / "link.sqlite").symlink_to(real / "broken.sqlite")
    for words in (["bucket", "link.sqlite"], ["info", "link.sqlite"]):
        ran = tracelens(*words, cwd=tmp_path)
        assert ran.code == 2
        assert TOKEN not in ran.err
        assert str(tmp_path) not in ran.err
        assert "link.sqlite" in ran.err


def test_a_damaged_capture_tells_no_secret(capture: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.sqlite"
    content = capture.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    ran = tracelens("info", path)
    assert ran.code == 2
    assert TOKEN not in ran.err
    path.write_bytes(content)
    edit(path, "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN start TO begun")
    ran = tracelens("info", path)
    assert ran.code == 2
    assert TOKEN not in ran.err
