"""Events of one kind and place as they were read, in narrow columns; what memory cannot hold lies in a spill file."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.ingest.event_columns import Flags, Ints

#: A column's values, and which are null; None where none is.
Column = tuple[NDArray[Any], Flags | None]


class ScratchError(OSError):
    """What does not fit into memory could not be written; the captures are not to blame."""


@dataclass(frozen=True)
class OnDisk:
    """An array that was moved to the spill file."""

    offset: int
    dtype: np.dtype[Any]
    rows: int


Stored = NDArray[Any] | OnDisk
StoredColumn = tuple[Stored, Stored | None]


@dataclass(frozen=True)
class Chunk:
    """Events of one kind and place, in the order of the file.

    Attributes:
        kind: 0 kernel, 1 copy, 2 memset, 3 graph launch as a whole.
        rows: how many.
        first_ns, latest_start_ns: the first and the last start.
        last_ns: the last end.
        values: start (since the first), length, correlation, and the number of its form, per event.
        forms: what else is known, per form.
    """

    kind: int
    rows: int
    first_ns: int
    latest_start_ns: int
    last_ns: int
    values: dict[str, StoredColumn]
    forms: dict[str, StoredColumn]

    @property
    def size_bytes(self) -> int:
        """What it takes of memory."""
        held = [one for part in (self.values, self.forms) for column in part.values() for one in column]
        return sum(one.nbytes for one in held if isinstance(one, np.ndarray))


class Spill:
    """A file without a name, which is gone with the process, however that ends.

    Args:
        folder: where it lies; None: in the system's folder for such files.

    Attributes:
        size_bytes: how much was written.
    """

    def __init__(self, folder: Path | None) -> None:
        self.size_bytes = 0
        self._folder = folder
        self._file = -1

    def read(self, stored: Stored) -> NDArray[Any]:
        """An array, wherever it lies.

        Raises:
            ScratchError: the file ends early.
        """
        if not isinstance(stored, OnDisk):
            return stored
        data = bytearray(stored.rows * stored.dtype.itemsize)
        view, offset = memoryview(data), stored.offset
        while len(view):
            got = os.preadv(self._file, [view], offset)
            if got <= 0:
                raise ScratchError("the file of spilled events ends early")
            view, offset = view[got:], offset + got
        return np.frombuffer(data, stored.dtype)

    def column(self, stored: StoredColumn) -> Column:
        """A column, wherever it lies."""
        values, null = stored
        return self.read(values), None if null is None else self.read(null)

    def starts(self, chunk: Chunk) -> Ints:
        """When each event of a chunk starts."""
        return self.read(chunk.values["start_ns"][0]).astype(np.int64) + chunk.first_ns

    def moved(self, chunk: Chunk) -> Chunk:
        """The chunk with every array on disk.

        Raises:
            ScratchError: the file cannot be written.
        """
        try:
            return replace(chunk, values=self._columns(chunk.values), forms=self._columns(chunk.forms))
        except OSError as error:
            raise ScratchError(*error.args) from error

    def _columns(self, columns: dict[str, StoredColumn]) -> dict[str, StoredColumn]:
        return {
            name: (self._written(values), None if null is None else self._written(null))
            for name, (values, null) in columns.items()
        }

    def _written(self, values: Stored) -> OnDisk:
        if isinstance(values, OnDisk):
            return values
        if self._file < 0:
            self._file, path = tempfile.mkstemp(prefix="tracelens-", dir=self._folder)
            Path(path).unlink()
        place = OnDisk(self.size_bytes, values.dtype, len(values))
        view = memoryview(np.ascontiguousarray(values).view(np.uint8))  # type: ignore[arg-type]
        while len(view):
            done = os.pwrite(self._file, view, self.size_bytes)
            view = view[done:]
            self.size_bytes += done
        return place

    def close(self) -> None:
        """Gives the disk back."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
