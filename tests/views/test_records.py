"""Machine records: the envelope, what may never be in it, and the same bytes every time."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import polars as pl
import pyarrow.parquet as pq
import pytest

from tests.views.frames_tp8 import bucket_result
from tracelens.errors import OutputError, UsageError
from tracelens.frames import Column, Notice, Result, Schema
from tracelens.views import records

TEXT = Schema("one thing", Column("name", pl.String, "text"), Column("value", pl.Float64, "number"))
LISTS = Schema("one list", Column("late_ranks", pl.List(pl.Int64), "ranks"), Column("gap_ns", pl.Int64, "time", "ns"))


class OddResult(Result):
    command: ClassVar[str] = "odd"
    schemas: ClassVar[Mapping[str, Schema]] = {"texts": TEXT, "lists": LISTS}


def odd(names: list[str | None], values: list[float | None]) -> OddResult:
    frame = pl.DataFrame({"name": names, "value": values}, schema={"name": pl.String, "value": pl.Float64})
    return OddResult({"texts": frame})


def as_json(result: Result) -> str:
    stream = io.StringIO()
    records.write_json(result, "1.2.3", stream)
    return stream.getvalue()


def as_csv(frame: pl.DataFrame) -> str:
    stream = io.StringIO()
    records.write_csv_table(frame, stream)
    return stream.getvalue()


def test_json_envelope_has_the_documented_keys_in_order() -> None:
    data = json.loads(as_json(bucket_result(2)))
    assert list(data) == ["tracelens", "command", "schema", "provenance", "notices", "buckets"]
    assert (data["tracelens"], data["command"], data["schema"]) == ("1.2.3", "bucket", 1)
    assert data["notices"] == [
        {
            "code": "no-steps",
            "severity": "warning",
            "message": "no step marker fits",
            "hint": "Try --step-marker REGEX",
            "count": 3,
        }
    ]
    assert data["buckets"][0] == {
        "rank": 0,
        "bucket": "gemm",
        "kernel_count": 1280,
        "kernel_ns": 40001280,
        "busy_ns": 40000000,
        "elapsed_ns": 40000000,
        "elapsed_frac": 0.4,
    }


def test_json_absent_table_is_absent_and_an_empty_one_is_a_list() -> None:
    data = json.loads(as_json(OddResult({"lists": LISTS.empty()})))
    assert "texts" not in data
    assert data["lists"] == []


def test_json_has_no_nan_no_infinity_and_no_raw_control_characters() -> None:
    result = odd(["\x1b[31m\x9b\x7f\u202e", None, "日本"], [float("nan"), float("inf"), 1.5])
    text = as_json(
        OddResult(result.tables, (Notice("x", "info", "\x1b"),), {"residual": float("nan"), "ranks": (0, 1)})
    )
    assert text.isascii()
    assert not any((ord(character) < 0x20 and character != "\n") or character == "\x7f" for character in text)
    data = json.loads(text, parse_constant=pytest.fail)
    assert [row["value"] for row in data["texts"]] == [None, None, 1.5]
    assert data["texts"][0]["name"] == "\x1b[31m\x9b\x7f\u202e"
    assert data["provenance"] == {"residual": None, "ranks": [0, 1]}


def test_json_in_slices_is_the_same_json(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = as_json(bucket_result(3, kernels=True))
    monkeypatch.setattr(records, "_ROWS_PER_SLICE", 2)
    assert as_json(bucket_result(3, kernels=True)) == whole


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_csv_text_that_a_spreadsheet_would_run_is_neutralised(start: str) -> None:
    text = as_csv(odd([f"{start}1+1"], [-1.5]).tables["texts"])
    cell = text.split("\n", 1)[1]
    assert cell.lstrip('"').startswith("'" + start)
    assert cell.rstrip("\n").endswith(",-1.5"), "numbers keep their sign"


def test_csv_nulls_lists_and_quotes() -> None:
    """null is nothing, an empty text is "", a list is 0,1 in quotes, NaN is nothing."""
    assert as_csv(odd(['a"b,c', "", None], [float("nan"), 0.1, None]).tables["texts"]) == (
        'name,value\n"a""b,c",\n"",0.1\n,\n'
    )
    lists = LISTS.frame([{"late_ranks": [0, 1], "gap_ns": 5}, {"late_ranks": None, "gap_ns": None}])
    assert as_csv(lists) == 'late_ranks,gap_ns\n"0,1",5\n,\n'
    assert as_csv(LISTS.empty()) == "late_ranks,gap_ns\n"


def test_csv_stream_names_tables_only_when_there_are_several() -> None:
    one, two = io.StringIO(), io.StringIO()
    records.write_csv(bucket_result(1), one)
    records.write_csv(bucket_result(1, kernels=True), two)
    assert one.getvalue().startswith("rank,bucket,")
    assert [line for line in two.getvalue().splitlines() if line.startswith("#")] == ["# buckets", "# kernels"]


def test_files_one_per_table(tmp_path: Path) -> None:
    result = bucket_result(2, kernels=True)
    written = records.write_file(result, tmp_path / "out.csv", "csv", "1")
    assert [path.name for path in written] == ["out.csv", "out.kernels.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.kernels.csv"]
    assert pl.read_csv(written[0]).equals(result.tables["buckets"])
    with pytest.raises(OutputError, match="exists"):
        records.write_file(result, tmp_path / "out.csv", "csv", "1")


def test_parquet_round_trip_with_meanings(tmp_path: Path) -> None:
    result = bucket_result(2, kernels=True)
    records.write_file(result, tmp_path / "out.parquet", "parquet", "1")
    table = pq.read_table(tmp_path / "out.parquet")
    assert pl.DataFrame(table).equals(result.tables["buckets"])
    assert table.schema.field("elapsed_ns").metadata[b"comment"] == b"exclusive time"
    assert json.loads(table.schema.metadata[b"provenance"])["exports"] == ["tp8.sqlite"]


@pytest.mark.parametrize("name", ["x.json", "x.csv", "x.parquet", "x.md"])
def test_bytes_are_the_same_every_time(tmp_path: Path, name: str) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        records.write_file(bucket_result(3, kernels=True), tmp_path / folder / name, records.format_of(name), "1")
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_markdown_escapes_and_shows_units() -> None:
    stream = io.StringIO()
    records.write_markdown(odd(["a|b<i>\x1b[0m\n*x*"], [2.0]), stream)
    assert "| a\\|b\\<i\\>\\\\x1b\\[0m\\\\n\\*x\\* | 2.000 |" in stream.getvalue()


def test_suffix_chooses_the_format() -> None:
    assert records.format_of("a.b.MD") == "markdown"
    with pytest.raises(UsageError, match="xyz"):
        records.format_of("a.xyz")


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("kernel_count", "kernels"),
        ("rule_count", "rules"),
        ("bucket_count", "buckets"),
        ("graph_launch_count", "graph_launches"),
        ("matched_count", "matched"),
        ("idle_between_count", "idle_between"),
        ("gap_ns", "gap_ns"),
    ],
)
def test_counts_are_headed_by_what_they_count(name: str, head: str) -> None:
    assert records.plural(name) == head
