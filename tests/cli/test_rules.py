"""`tracelens rules`, as typed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tracelens.cli import run

NAME = "void vllm::cross_device_reduce_2stage<__nv_bfloat16, (int)4>(vllm::RankData *)"


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run(["rules", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_explain_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "explain", NAME, "--format", "json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["command"] == "rules explain"
    assert answer["provenance"]["rules"] == "default"
    (row,) = answer["explain"]
    assert row == {
        "kernel_name": NAME,
        "bucket": "nccl_and_custom_ar",
        "pattern": row["pattern"],
        "position": 1,
        "collective": "all_reduce",
        "implementation": "custom_2stage",
        "fused": False,
        "ranks": 4,
    }


def test_explain_names_from_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One a line; a blank line is none, and the spaces inside a name are its own."""
    text = f"{NAME}\r\n\n  nvjet_tst_64x8\nFan2(float *, int)\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code, out, _ = told(capsys, "explain", "--stdin", "--format", "csv")
    assert code == 0
    assert [line.split(",")[0] for line in out.splitlines()[2:3]] == ["  nvjet_tst_64x8"]
    assert len(out.splitlines()) == 4


def test_explain_needs_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "explain")
    assert (code, out) == (2, "")
    assert "takes kernel names" in err


def test_list_show_and_diff(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "list")
    assert code == 0
    assert "vllm_engine/llama" in out
    code, out, _ = told(capsys, "show", "vllm_engine/llama")
    assert code == 0
    assert out.splitlines()[0].split() == [
        "0",
        "moe_gemm",
        "fused_moe_kernel|GroupProblemShape|group_gemm_starts|bmm_|GemmUniversal",
    ]
    code, out, _ = told(capsys, "diff", "vllm_engine/llama", "sglang_engine/llama")
    assert code == 0
    assert out.startswith("vllm_engine/llama and sglang_engine/llama disagree on ")
    code, out, err = told(capsys, "diff", "default")
    assert (code, out) == (2, "")
    assert "takes two maps" in err


def test_check_gates_only_with_strict(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "check")[0] == 0
    assert told(capsys, "check", "--strict")[0] == 0
    code, out, err = told(capsys, "check", "vllm_engine/llama")
    assert code == 0
    assert "collective outside: " in out
    assert err.startswith("warning: the map has findings (")
    assert told(capsys, "check", "vllm_engine/llama", "--strict")[0] == 1
    assert all(len(line) <= 100 for line in out.splitlines())


def test_check_every_map_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"vllm": {"a": {"[": "x", ".*": "misc"}, "b": {"nvjet": "gemm", ".*": "misc"}}}')
    code, out, _ = told(capsys, "check", str(path), "--format", "json")
    assert code == 0
    findings = json.loads(out)["findings"]
    assert {row["map"] for row in findings} == {f"{path}:vllm/a", f"{path}:vllm/b"}
    assert [row["rule"] for row in findings if row["kind"] == "invalid"] == ["["]
    code, out, _ = told(capsys, "check", str(path), "--model", "b", "--format", "json")
    assert {row["map"] for row in json.loads(out)["findings"]} == {f"{path}:vllm/b"}


def test_a_broken_file_is_one_clear_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"vllm": {"a": {\n"x": "y",\n"x": "z"}}}')
    code, out, err = told(capsys, "check", str(path))
    assert (code, out) == (2, "")
    assert "line 3: a regex twice in vllm/a: 'x', first in line 2" in err
    assert len(err.splitlines()) == 2


def test_hostile_names_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "explain", "evil\x1b[2Jkernel")
    assert code == 0
    assert "\x1b" not in out
