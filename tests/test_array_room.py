"""Arrays of all events: in memory as far as the limit allows, the others in files that leave nothing behind."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tracelens.array_room import ArrayRoom

MB = 1 << 20


def in_file(array: np.ndarray) -> bool:
    return not isinstance(array.base, type(None))


def test_what_the_limit_holds_is_in_memory_and_the_rest_in_files(tmp_path: Path) -> None:
    """Limit 10 MB:  |--6 MB--|      in memory
    |--6 MB--|      in a file: 12 MB would be too much
    |-4 MB-|        in memory: 10 MB"""
    room = ArrayRoom(10 * MB, tmp_path)
    made = [room.empty(6 * MB, np.uint8), room.empty(6 * MB // 8, np.int64), room.empty(MB, np.int32)]
    assert [in_file(one) for one in made] == [False, True, False]
    assert [one.dtype for one in made] == [np.uint8, np.int64, np.int32]
    assert [len(one) for one in made] == [6 * MB, 6 * MB // 8, MB]
    assert room.spilled_bytes == 6 * MB
    assert list(tmp_path.iterdir()) == []


def test_an_array_that_ends_makes_room(tmp_path: Path) -> None:
    room = ArrayRoom(10 * MB, tmp_path)
    first = room.empty(8 * MB, np.uint8)
    part = first[:3]
    del first
    gc.collect()
    assert in_file(room.empty(8 * MB, np.uint8))  # a part of it is still in use
    del part
    gc.collect()
    assert not in_file(room.empty(8 * MB, np.uint8))


def test_what_has_left_memory_comes_back(tmp_path: Path) -> None:
    room = ArrayRoom(0, tmp_path)
    array = room.empty(MB, np.int64)
    array[:] = np.arange(MB)
    for _ in range(3):
        room.let_go()
        assert np.array_equal(array, np.arange(MB))
        array += 0


def test_small_arrays_are_no_matter(tmp_path: Path) -> None:
    room = ArrayRoom(0, tmp_path)
    assert not in_file(room.empty(MB - 1, np.uint8))
    assert not in_file(room.empty(0, np.int64))
    assert room.spilled_bytes == 0


def test_where_no_file_can_be_written_memory_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = ArrayRoom(0, tmp_path / "gone")
    assert not in_file(room.empty(2 * MB, np.uint8))
    assert isinstance(room.failure, FileNotFoundError)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    room = ArrayRoom(0, Path(tempfile.gettempdir()))
    monkeypatch.setattr("os.posix_fallocate", full)
    assert not in_file(room.empty(2 * MB, np.uint8))
    assert room.failure is not None
    assert room.failure.errno == 28
