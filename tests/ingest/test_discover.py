"""From what was typed to the files to read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.running import refused, tracelens, working_in
from tracelens.errors import InputError, NoCaptureError
from tracelens.ingest.discover import find_captures, natural_key
from tracelens.simulate import Kernel, write_events


def draw(path: Path) -> Path:
    return write_events([Kernel("gemm", 1_000, 2_000)], path)


def names(*typed: str | Path) -> list[str]:
    return [one.shown for one in find_captures([str(one) for one in typed])]


def test_rank10_comes_after_rank9(tmp_path: Path) -> None:
    for number in (10, 9, 2, 0, 1, 3, 4, 5, 6, 7, 8):
        (tmp_path / f"rank{number}.sqlite").touch()
    assert [Path(name).name for name in names(tmp_path)] == [f"rank{number}.sqlite" for number in range(11)]
    assert [Path(name).name for name in names(f"{tmp_path}/*.sqlite")][-2:] == ["rank9.sqlite", "rank10.sqlite"]


@pytest.mark.parametrize("name", ["a1²", "٣x", "x" + "9" * 200, "1.2.3", ""])
def test_any_name_sorts(name: str) -> None:
    """`²` is a digit to Python but no number."""
    assert sorted(["a1", "b", name], key=natural_key)


def test_one_file_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").touch()
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "a.sqlite")
    assert names(tmp_path / "a.sqlite", f"{tmp_path}/./a.sqlite", tmp_path / "link.sqlite") == [f"{tmp_path}/a.sqlite"]


def test_a_folder_is_shown_as_it_was_typed(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.sqlite").touch()
    with working_in(tmp_path):
        assert names("sub/") == ["sub/a.sqlite"]
        assert names("./sub") == ["./sub/a.sqlite"]
        assert names("sub/*.sqlite") == ["sub/a.sqlite"]
    with working_in(tmp_path / "sub"):
        assert names() == ["a.sqlite"]


def test_unrelated_runs_in_a_folder_are_refused_with_their_names(tmp_path: Path) -> None:
    for name in ("baseline.sqlite", "candidate.sqlite"):
        (tmp_path / name).touch()
    with pytest.raises(NoCaptureError, match=r"baseline\.sqlite, candidate\.sqlite"):
        names(tmp_path)


@pytest.mark.parametrize(
    ("files", "one_run"),
    [
        (["rank0", "rank1"], True),
        (["report_0", "report_1", "report_2"], True),
        (["node0_rank0", "node0_rank1", "node1_rank2"], False),
        (["report_1", "report_3"], False),
        (["tp8", "tp4"], False),
        (["tp2", "tp4", "tp8"], False),
    ],
)
def test_what_counts_as_one_run(tmp_path: Path, files: list[str], one_run: bool) -> None:
    for name in files:
        (tmp_path / f"{name}.sqlite").touch()
    if one_run:
        assert len(names(tmp_path)) == len(files)
    else:
        with pytest.raises(NoCaptureError, match="do not look like ranks of one run"):
            names(tmp_path)


def test_a_report_beside_its_export_is_not_read_twice(tmp_path: Path) -> None:
    for name in ("rank0.sqlite", "rank0.nsys-rep", "rank1.sqlite", "rank1.nsys-rep", ".hidden.sqlite", "notes.txt"):
        (tmp_path / name).touch()
    assert [Path(name).name for name in names(tmp_path)] == ["rank0.sqlite", "rank1.sqlite"]


def test_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    said = refused(tracelens("bucket", cwd=tmp_path))
    assert "the current directory holds no nsys export" in said
    assert "tracelens demo" in said


def test_a_missing_path_and_a_glob_without_matches(tmp_path: Path) -> None:
    assert "no such file" in refused(tracelens("bucket", tmp_path / "nope.sqlite"))
    assert "no file matches" in refused(tracelens("bucket", f"{tmp_path}/*.sqlite"))
    (tmp_path / "notes.txt").touch()
    assert "no nsys export" in refused(tracelens("bucket", f"{tmp_path}/*.txt"))


def test_a_folder_that_bears_an_exports_name(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").mkdir()
    assert "holds no nsys export" in refused(tracelens("bucket", tmp_path / "x.sqlite"))


@pytest.mark.parametrize("name", ["with space", "ünïcödé", "quo'te\"s", "new\nline", "per%20cent?#[1]", "-dash", "a;b"])
def test_any_file_name_can_be_read(tmp_path: Path, name: str) -> None:
    draw(tmp_path / f"{name}.sqlite")
    ran = tracelens("bucket", "--format", "json", f"./{name}.sqlite", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert ran.json["provenance"]["exports"] == [f"./{name}.sqlite"]


def test_a_name_that_is_not_unicode(tmp_path: Path) -> None:
    os.rename(draw(tmp_path / "a.sqlite"), os.fsencode(tmp_path) + b"/\xff.sqlite")  # noqa: PTH104
    ran = tracelens("bucket", "--format", "json", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert tracelens("bucket", cwd=tmp_path).code == 0
    assert tracelens("info", "--format", "csv", cwd=tmp_path).code == 0


def test_links_that_lead_in_a_circle_or_nowhere(tmp_path: Path) -> None:
    (tmp_path / "circle.sqlite").symlink_to(tmp_path / "circle.sqlite")
    (tmp_path / "gone.sqlite").symlink_to(tmp_path / "nowhere.sqlite")
    refused(tracelens("bucket", tmp_path / "circle.sqlite"))
    refused(tracelens("bucket", tmp_path / "gone.sqlite"))


def test_paths_that_the_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError):
        names("x" * 300 + ".sqlite")
    (tmp_path / "closed").mkdir()

    def denied(self: Path) -> object:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(InputError, match="closed"):
        names(tmp_path / "closed")
