"""Room for arrays with an element for each event of a capture: in memory as far as the limit allows, else in files.

An array in a file is used as any other is. Its pages belong to the system's cache of files: they leave memory when it is
short, which the pages of an ordinary array cannot do, and come back when they are read.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_SMALL_BYTES = 1 << 20
"""Arrays below this cost a file more than they take."""


class ArrayRoom:
    """What arrays may take.

    Args:
        limit_bytes: for all arrays in memory together; those below 1 MB do not count.
        folder: where the others' files go. They have no names there, and end with the arrays, or with the process.
    """

    def __init__(self, limit_bytes: int, folder: Path) -> None:
        self._limit_bytes = limit_bytes
        self._folder = folder
        self._held_bytes = 0
        self._files: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        # Reentrant: an array may end while another is being made.
        self._lock = threading.RLock()
        self.spilled_bytes = 0
        self.failure: OSError | None = None

    def empty(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of `count` elements, whatever they are; in memory too where no file can be written."""
        size = count * np.dtype(dtype).itemsize
        if size < _SMALL_BYTES:
            return np.empty(count, dtype)
        with self._lock:
            if self._held_bytes + size > self._limit_bytes:
                try:
                    return self._in_file(size).view(dtype)
                except OSError as error:
                    self.failure = error
            result = np.empty(count, dtype)
            self._held_bytes += size
        weakref.finalize(result, self._give_back, size).atexit = False
        return result

    def _in_file(self, size: int) -> npt.NDArray[np.uint8]:
        with tempfile.TemporaryFile(dir=self._folder) as file:
            # A write to a mapped page for which the disk has no room would end the process.
            os.posix_fallocate(file.fileno(), 0, size)
            pages = mmap.mmap(file.fileno(), size)
        self._files.add(pages)
        self.spilled_bytes += size
        return np.frombuffer(pages, np.uint8)

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._held_bytes -= size

    def let_go(self) -> None:
        """Takes the pages of files out of the process; they stay in the system's cache as long as that has room."""
        if not self.spilled_bytes:
            return
        with self._lock:
            for pages in list(self._files):
                pages.madvise(mmap.MADV_DONTNEED)
