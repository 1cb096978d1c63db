"""Files appear whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

import pytest

from tracelens.errors import OutputError
from tracelens.views.output import write_atomically, write_files


def put(data: bytes):  # type: ignore[no-untyped-def]
    return lambda stream: stream.write(data)


def interrupt(stream: BinaryIO) -> None:
    stream.write(b"half")
    raise KeyboardInterrupt


def fill_disk(stream: BinaryIO) -> None:
    stream.write(b"half")
    raise OSError(28, "No space left on device")


def test_writes_and_leaves_nothing_beside(tmp_path: Path) -> None:
    write_atomically(tmp_path / "x.json", put(b"new"))
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert (tmp_path / "x.json").read_bytes() == b"new"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "x.json").stat().st_mode) == 0o666 & ~mask


def test_refuses_to_overwrite_without_force(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    target.write_bytes(b"old")
    with pytest.raises(OutputError, match="exists"):
        write_atomically(target, put(b"new"))
    assert target.read_bytes() == b"old"
    write_atomically(target, put(b"new"), force=True)
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize(("writer", "error"), [(interrupt, KeyboardInterrupt), (fill_disk, OutputError)])
@pytest.mark.parametrize("there", [False, True])
def test_failure_keeps_the_old_file_and_leaves_nothing(tmp_path: Path, writer, error, there: bool) -> None:  # type: ignore[no-untyped-def]
    target = tmp_path / "x.json"
    if there:
        target.write_bytes(b"old")
    with pytest.raises(error):
        write_atomically(target, writer, force=True)
    assert [path.name for path in tmp_path.iterdir()] == (["x.json"] if there else [])
    if there:
        assert target.read_bytes() == b"old"


def test_several_files_or_none(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_files({tmp_path / "a": put(b"a"), tmp_path / "b": interrupt})
    assert list(tmp_path.iterdir()) == []


def test_symbolic_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    with pytest.raises(OutputError):
        write_atomically(tmp_path / "link", put(b"new"))
    write_atomically(tmp_path / "link", put(b"new"), force=True)
    assert (tmp_path / "precious").read_bytes() == b"old"
    assert not (tmp_path / "link").is_symlink()


def test_dangling_link_counts_as_there(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputError):
        write_atomically(tmp_path / "link", put(b"new"))
    assert not (tmp_path / "nowhere").exists()


def test_name_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "x.json"

    def writer(stream: BinaryIO) -> None:
        target.write_bytes(b"someone else's")
        stream.write(b"new")

    with pytest.raises(OutputError, match="exists"):
        write_atomically(target, writer)
    assert target.read_bytes() == b"someone else's"
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_missing_folder_and_folder_target(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no folder"):
        write_atomically(tmp_path / "no" / "x", put(b""))
    with pytest.raises(OutputError, match="is a folder"):
        write_atomically(tmp_path, put(b""), force=True)


def test_device_is_written_to(tmp_path: Path) -> None:
    write_atomically("/dev/null", put(b"x"))
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
