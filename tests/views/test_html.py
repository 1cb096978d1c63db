"""The report's file: one file, nothing fetched, nothing from a capture able to leave its place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.views.report_tp8 import HOSTILE, ReportResult, report_result
from tracelens.errors import OutputError
from tracelens.frames import Column, Notice, Schema
from tracelens.views.html import render, write_report
from tracelens.views.html.encode import LONGEST_TEXT, script_json, table

STANDING = ["budget", "steps", "collectives", "skew", "gaps", "timeline", "clock", "data"]
SECTIONS = ["findings", *STANDING]


def embedded(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1))
    return data


def test_names_no_address_and_holds_every_section() -> None:
    page = render(report_result(steps=50), version="1.2.3")
    text = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL)
    assert re.findall(r"(?:src|href)=\"(?!#|data:,)[^\"]*", text) == []
    assert "//" not in re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE), "not even a namespace's address"
    assert "@import" not in text
    assert "url(h" not in text
    assert [section["id"] for section in embedded(page)["sections"]] == SECTIONS


def test_hostile_names_stay_data() -> None:
    page = render(report_result(steps=50), version="1")
    assert page.count("</script>") == 2, "the data's end and the script's end, and no other"
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    names = embedded(page)["tables"]["kernels"]["columns"]
    column = next(column for column in names if column["name"] == "kernel_name")
    assert HOSTILE in [column["d"][index] if "d" in column else index for index in column["v"]]


def test_title_and_sentences_are_escaped() -> None:
    result = ReportResult({}, sentences=("a <b> & \x1b[0m",), provenance={"k<": "v<"})
    page = render(result, version="<1>", title="<!--DATA--><x>")
    assert "a &lt;b&gt; &amp; \\x1b[0m" in page
    assert "<title>&lt;!--DATA--&gt;&lt;x&gt;" in page
    assert "<dt>k&lt;</dt><dd>v&lt;</dd>" in page


def test_commands_in_hints_are_set_as_code() -> None:
    notice = Notice("a", "warning", "seen", "`tracelens info <b>` says more")
    result = ReportResult({}, notices=(notice,))
    assert "<code>tracelens info &lt;b&gt;</code> says more" in render(result, version="0")


def test_absent_tables_leave_their_sections_with_no_blocks() -> None:
    data = embedded(render(ReportResult({}), version="1"))
    assert [section["id"] for section in data["sections"]] == STANDING
    assert all(section["blocks"] == [] for section in data["sections"])


def test_comparison_and_scaling_appear_only_when_there() -> None:
    frame = pl.DataFrame({"name": ["gemm"], "delta_ns": [5]})
    result = ReportResult({"compare_buckets": frame, "scaling_fit": frame})
    ids = [section["id"] for section in embedded(render(result, version="1"))["sections"]]
    assert ids == ["comparison", *STANDING, "scaling"]


def test_hostname_is_not_in_the_report() -> None:
    assert "secret-host" not in render(report_result(steps=20), version="1")


def test_size_of_eight_ranks_by_ten_thousand_steps() -> None:
    page = render(report_result(steps=10_000, layers=80), version="1")
    assert len(page) < 3_000_000
    steps = embedded(page)["tables"]["step_points"]
    assert (steps["rows"], steps["of"]) == (6_000, 10_000), "what was cut is in the file"


def test_columns_are_compact_and_say_what_they_are() -> None:
    schema = Schema("one gap", Column("gap_ns", pl.Int64, "length", "ns"), Column("cause", pl.String, "why"))
    frame = pl.DataFrame({"gap_ns": [1500, None, 2_000_000], "cause": ["idle", "idle", "idle"]})
    assert table(frame, schema) == {
        "rows": 3,
        "of": 3,
        "row": "one gap",
        "columns": [
            {
                "name": "gap_ns",
                "label": "gap",
                "type": "n",
                "unit": "ms",
                "divisor": 1_000_000,
                "decimals": 3,
                "v": [1500, None, 2_000_000],
                "meaning": "length",
            },
            {"name": "cause", "label": "cause", "type": "s", "d": ["idle"], "v": [0, 0, 0], "meaning": "why"},
        ],
    }


def test_long_names_are_cut_in_the_middle() -> None:
    text = "void " + "x" * 100_000 + "(int)"
    value = table(pl.DataFrame({"kernel_name": [text]}), None)["columns"][0]["v"][0]
    assert len(value) == LONGEST_TEXT
    assert value.startswith("void x")
    assert value.endswith("(int)")


def test_numbers_that_json_cannot_hold_become_null() -> None:
    frame = pl.DataFrame({"ratio": [float("nan"), float("inf"), 1.25]})
    assert json.loads(script_json(table(frame, None)))["columns"][0]["v"] == [None, None, 1.25]


def test_same_result_same_bytes_and_no_overwrite(tmp_path: Path) -> None:
    write_report(report_result(steps=30), tmp_path / "a.html", version="1")
    write_report(report_result(steps=30), tmp_path / "b.html", version="1")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    with pytest.raises(OutputError, match="exists"):
        write_report(report_result(steps=30), tmp_path / "a.html", version="1")
