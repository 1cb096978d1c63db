"""Containers of an export: an SQLite file, a folder of Parquet or Arrow files, a report."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.running import edit, refused, snapshot, tables, tracelens
from tracelens.simulate import Copy, Kernel, Process, Range, write_events

ROWS = [
    Kernel("gemm", 1_000, 3_000, launch=(100, 200)),
    Kernel("norm", 4_000, 5_000, launch=(300, 400)),
    Copy("D2H", 6_000, 6_500, launch=(500, 600)),
    Range("step", 50, 700),
    Range(
        "ncclAllReduce",
        60,
        70,
        domain="NCCL",
        registered=True,
        payload={"NCCL communicator ID": 2**63 + 5},
        payload_as="both",
    ),
    Process("Worker_TP0", 1000),
]


def as_folder(source: Path, target: Path, kind: str) -> Path:
    """What `nsys export --type=parquetdir` (or arrowdir) writes."""
    target.mkdir()
    with contextlib.closing(sqlite3.connect(source)) as con:
        for name, columns in tables(source).items():
            rows = con.execute(f'SELECT * FROM "{name}"').fetchall()
            types = {row[1]: row[2] for row in con.execute(f'PRAGMA table_info("{name}")')}
            arrays = []
            for place, column in enumerate(columns):
                values = [row[place] for row in rows]
                blob = any(isinstance(value, bytes) for value in values)
                dtype = pa.binary() if blob else pa.string() if "TEXT" in types[column] else pa.int64()
                arrays.append(pa.array(values, dtype))
            table = pa.table(dict(zip(columns, arrays, strict=True)))
            if kind == "parquet":
                pyarrow.parquet.write_table(table, target / f"{name}.parquet")
            else:
                with pa.OSFile(str(target / f"{name}.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
                    out.write_table(table)
    return target


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("name", ["rep", "run[1]*?"])
def test_a_folder_gives_what_the_file_gives(tmp_path: Path, kind: str, name: str) -> None:
    path = write_events(ROWS, tmp_path / "x.sqlite")
    folder = as_folder(path, tmp_path / name, kind)
    before = snapshot(folder)
    for command in (["bucket", "--kernels"], ["info"], ["sql"]):
        query = ["SELECT * EXCLUDE (process) FROM nvtx ORDER BY ALL"] if command == ["sql"] else []
        answers = [tracelens(*command, one, "--format", "json", *query) for one in (path, folder)]
        assert [answer.code for answer in answers] == [0, 0], answers[1].err
        found = [answer.json for answer in answers]
        for answer in found:
            answer.pop("provenance")
            for row in answer.get("exports", []) + answer.get("ranks", []):
                row.pop("path"), row.pop("size_bytes", None)
        assert found[0] == found[1]
    assert snapshot(folder) == before


def test_a_folder_with_a_broken_file(tmp_path: Path) -> None:
    folder = as_folder(write_events(ROWS, tmp_path / "x.sqlite"), tmp_path / "rep", "parquet")
    (folder / "NVTX_EVENTS.parquet").write_bytes(b"PAR1 nonsense PAR1")
    assert "NVTX_EVENTS.parquet cannot be read" in refused(tracelens("bucket", folder))


def test_a_folder_of_columns_with_other_types(tmp_path: Path) -> None:
    """Kernel ends as text, streams as unsigned numbers beyond 2^63: missing and counted, no crash."""
    folder = as_folder(write_events(ROWS, tmp_path / "x.sqlite"), tmp_path / "rep", "parquet")
    file = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    table = pyarrow.parquet.read_table(file)
    place = table.schema.get_field_index("streamId")
    table = table.set_column(place, "streamId", pa.array([2**64 - 1, 7], pa.uint64()))
    pyarrow.parquet.write_table(table, file)
    ran = tracelens("bucket", folder, "--format", "json")
    assert ran.code == 0, ran.err
    assert "wrong-type" in {row["code"] for row in ran.json["notices"]}
    place = table.schema.get_field_index("end")
    table = table.set_column(place, "end", pa.array(["3000", "5000"]))
    pyarrow.parquet.write_table(table, file)
    refused(tracelens("bucket", folder))


def nsys_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    tool = tmp_path / "bin" / "nsys"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n" + script)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")


def test_a_report_goes_through_nsys_and_nothing_is_written_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in for nsys knows no --include-blobs, as exporters before 2025 do not."""
    export = write_events(ROWS, tmp_path / "made.sqlite")
    script = "for word; do case $word in --include-blobs*) exit 1;; --output=*) out=${word#--output=};; esac; done\n"
    nsys_that(tmp_path, monkeypatch, script + f'cp {export} "$out"\n')
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "a b.nsys-rep").write_bytes(b"nsys-rep")
    before = snapshot(folder)
    ran = tracelens("bucket", folder / "a b.nsys-rep", "--format", "json")
    assert ran.code == 0, ran.err
    assert ran.json["provenance"]["exports"] == [f"{folder}/a b.nsys-rep"]
    assert snapshot(folder) == before
    assert list(temporary.iterdir()) == []


def test_a_report_without_nsys_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.nsys-rep").write_bytes(b"x")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "nsys export --type=sqlite" in refused(tracelens("bucket", tmp_path / "a.nsys-rep"))


def test_a_report_that_nsys_cannot_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.nsys-rep").write_bytes(b"x")
    nsys_that(tmp_path, monkeypatch, "echo secret-of-nsys; exit 3\n")
    said = refused(tracelens("bucket", tmp_path / "a.nsys-rep"))
    assert "exit code 3" in said
    assert "secret-of-nsys" not in said


def test_a_file_that_changes_between_two_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tracelens.errors import DamagedError
    from tracelens.ingest import raw
    from tracelens.trace import open_trace

    monkeypatch.setattr(raw, "_OPEN_AT_MOST", 0)
    path = write_events(ROWS, tmp_path / "x.sqlite")
    with open_trace([str(path)]) as trace:
        edit(path, "INSERT INTO StringIds VALUES (99999, 'more')")
        with pytest.raises(DamagedError, match="changed"):
            trace.ensure("launch")


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    """44 exports under a limit of 56 open files."""
    first = write_events(ROWS, tmp_path / "rank0.sqlite")
    for rank in range(1, 44):
        (tmp_path / f"rank{rank}.sqlite").write_bytes(first.read_bytes())
    code = "import sys; from tracelens.cli import main; main(['info', sys.argv[1], '--format', 'json'])"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (56, 56)),
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert len(json.loads(ran.stdout)["ranks"]) == 44


def test_a_foreign_database(tmp_path: Path) -> None:
    path: Any = tmp_path / "x.sqlite"
    edit(path, "CREATE TABLE users (name TEXT)", "INSERT INTO users VALUES ('alice')")
    assert "not an nsys export" in refused(tracelens("bucket", path))
