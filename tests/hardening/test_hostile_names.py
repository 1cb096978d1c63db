"""Names are whatever the traced program chose to call things: they may move no cursor, run nothing, and break no table."""

from __future__ import annotations

import csv
import gzip
import io
import json
import unicodedata
from pathlib import Path

import polars as pl
import pytest

from tests.commands import every_output, run
from tests.running import edit, tracelens
from tracelens.simulate import Kernel, Launch, Process, Range, write_events

NAMES = {
    "html": "<script>alert('x')</script><img src=x onerror=alert(1)>",
    "close": "</script></td></table><!-- ]]> -->",
    "escape": "gemm\x1b[2J\x1b]0;owned\x07\x1b[31m",
    "control": "a\x00b\x08c\x7fd\x9be",
    "lines": "first\nsecond\r\nthird\u2028fourth\ttab",
    "bidi": "gemm\u202egnp.exe\u2066\u200b\ufeff",
    "formula": "=cmd|' /C calc'!A0",
    "plus": "+1+1",
    "minus": "-2+3",
    "at": "@SUM(A1)",
    "tab": "\t=1+1",
    "sql": "'; DROP TABLE event_row; --",
    "quote": "\"';`${x}{{7*7}}%s%n\\",
    "markdown": "| a | [x](javascript:alert(1)) | `b` **c**",
    "long": "k" * 100_000,
    "empty": "",
    "space": "   ",
    "emoji": "gemm 🚀 \U0001f468\u200d\U0001f469 e\u0301 汉字",
    "percent": "%d%(x)s{0}",
    "path": "../../../../tmp/owned",
    "nul": "\x00",
}


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each name on a kernel, a range, an API call, a domain, a process and a thread; one kernel's bytes are no UTF-8."""
    rows: list[object] = []
    for number, name in enumerate(NAMES.values()):
        start = 10_000 * (number + 1)
        for rank in range(2):
            api = f"{name[:60]}cudaLaunchKernel_v7000"
            rows.append(
                Kernel(
                    name,
                    start,
                    start + 4_000,
                    launch=(start - 3_000, start - 2_000),
                    pid=1 + rank,
                    device=rank,
                    short=name,
                    api=api,
                )
            )
            rows.append(
                Range(name, start - 3_500, start + 100, pid=1 + rank, domain=name[:50], registered=number % 2 == 0)
            )
    rows += [Process(NAMES["html"], 1), Process(NAMES["escape"], 2), Launch(NAMES["lines"], 1, 2)]
    rows.append(Kernel("broken bytes", 1_000, 2_000, pid=1))
    path = write_events(rows, tmp_path_factory.mktemp("hostile") / "x.sqlite")  # type: ignore[arg-type]
    edit(path, ("UPDATE StringIds SET value = CAST(? AS TEXT) WHERE value = 'broken bytes'", (b"bro\xffken\xc3\x28",)))
    return path


def bare(text: str) -> list[str]:
    """Characters of an output that could move a cursor or hide text."""
    return [
        character
        for character in text
        if character != "\n" and unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    ]


def test_every_command_survives_and_terminals_stay_clean(capture: Path, tmp_path: Path) -> None:
    for what, ran in every_output(capture, tmp_path, ("table",)):
        assert ran.code in (0, 2), (what, ran.err[-1500:])
        assert "Traceback" not in ran.err, what
        assert not bare(ran.err), (what, bare(ran.err)[:5])
        assert not bare(ran.out), (what, bare(ran.out)[:5])
    ran = run("bucket", capture, tmp_path, "--format", "markdown")
    assert not bare(ran.out)
    assert "<script>" not in ran.out
    assert not (tmp_path.parent / "owned").exists()


def test_json_keeps_names_exactly(capture: Path, tmp_path: Path) -> None:
    ran = run("bucket", capture, tmp_path, "--format", "json")
    assert ran.out.isascii()
    found = {row["kernel_name"] for row in ran.json["kernels"]}
    assert found == {*NAMES.values(), "bro\ufffdken\ufffd("}


def test_csv_runs_nothing_and_keeps_its_rows(capture: Path, tmp_path: Path) -> None:
    assert tracelens("bucket", capture, "--kernels", "-o", tmp_path / "x.csv").code == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "x.kernels.csv").read_text(encoding="utf-8"), newline="")))
    assert len(rows) == 2 * len(NAMES) + 1
    for row in rows:
        for cell in row.values():
            assert not cell.startswith(("=", "+", "@", "\t", "\r", "\n")), cell[:40]
            assert not cell.startswith("-") or cell.lstrip("-").replace(".", "").isdigit(), cell[:40]


def test_parquet_keeps_names_exactly(capture: Path, tmp_path: Path) -> None:
    assert tracelens("bucket", capture, "--kernels", "-o", tmp_path / "x.parquet").code == 0
    found = set(pl.read_parquet(tmp_path / "x.kernels.parquet")["kernel_name"])
    assert found == {*NAMES.values(), "bro\ufffdken\ufffd("}


def test_pages_and_traces_hold_names_as_data(capture: Path, tmp_path: Path) -> None:
    for what, ran in every_output(capture, tmp_path, ()):
        assert ran.code == 0, (what, ran.err[-1500:])
    if (tmp_path / "report.html").exists():
        page = (tmp_path / "report.html").read_text(encoding="utf-8")
        for piece in ("<script>alert", "<img src=x", "</td></table><!--", 'javascript:alert(1)"'):
            assert piece not in page
    if (tmp_path / "trace.json.gz").exists():
        json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    assert {path.name for path in tmp_path.iterdir()} <= {"report.html", "trace.json.gz"}


def test_notices_and_errors_show_escapes_as_text(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31mred\nline\u202e.sqlite"
    path.write_bytes(b"no database")
    ran = tracelens("bucket", path)
    assert ran.code == 2
    assert not bare(ran.err)
    assert ran.lines <= 3
    ran = tracelens("bucket", write_events([Kernel("x", 1, 2)], tmp_path / "b.sqlite"), "--ranks", "\x1b[31m")
    assert ran.code == 2
    assert not bare(ran.err)


def test_names_are_never_taken_for_files(capture: Path, tmp_path: Path) -> None:
    """-o goes where the user said, whatever the capture calls itself."""
    target = tmp_path / "safe"
    target.mkdir()
    ran = tracelens("bucket", capture, "--kernels", "-o", target / "x.csv", cwd=tmp_path)
    assert ran.code == 0
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == {
        "safe",
        "safe/x.csv",
        "safe/x.kernels.csv",
    }


def test_output_that_an_encoding_cannot_hold(tmp_path: Path) -> None:
    import contextlib

    from tracelens.cli import run as run_line

    path = write_events([Kernel(NAMES["emoji"], 1_000, 2_000)], tmp_path / "x.sqlite")
    for form in ("table", "json", "csv", "markdown"):
        raw = io.BytesIO()
        out = io.TextIOWrapper(raw, encoding="ascii")
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(io.TextIOWrapper(io.BytesIO(), encoding="ascii")),
        ):
            code = run_line(["bucket", str(path), "--kernels", "--format", form])
        assert code == 0, form
