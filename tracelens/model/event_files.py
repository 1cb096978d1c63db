"""Events of every rank in their order, as files or as a table in memory.

Slices of each place come in ascending time and are put into order one by one (`event_order`). Many events go to Parquet
files of about a million rows, each with the number of every event, so that no question needs all of them in memory; few
go into a table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tracelens.model.event_order import Ordered, Place, Runs, ordered

_SCHEMA = pa.schema(
    [
        ("rank", pa.int32()),
        ("kind", pa.uint8()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("stream", pa.int64()),
        ("correlation", pa.int64()),
        ("graph_node", pa.int64()),
        ("graph", pa.int64()),
        ("name_id", pa.int32()),
        ("shape", pa.int64()),
        ("bytes", pa.int64()),
        ("copy_kind", pa.int32()),
    ]
)
_ASCENDING = ("event_id", "start_ns", "end_ns", "correlation")
#: Columns by which a query may leave out whole parts of a file.
_BOUNDED = ["event_id", "rank", "kind", "start_ns", "end_ns", "name_id"]
FILE_ROWS = 1 << 20
_GROUP_ROWS = 1 << 18


@dataclass(frozen=True)
class Order:
    """Where the events of each place belong: found from all exports, followed by whoever holds the events.

    Attributes:
        ranked: (rank, place, number of its first event, its events), ranks ascending.
        others: (process, place) of what is no rank, in the order of the answer.
        name_ids: per export, the name_id for each number of a name.
    """

    ranked: Sequence[tuple[int, Place, int, int]]
    others: Sequence[tuple[int | None, Place]]
    name_ids: Mapping[int, NDArray[np.int32]]

    def of(self, exports: Collection[int]) -> Order:
        """What concerns some exports."""
        return Order(
            [one for one in self.ranked if one[1][0] in exports],
            [one for one in self.others if one[1][0] in exports],
            {export: ids for export, ids in self.name_ids.items() if export in exports},
        )

    def stretches(self) -> Iterator[tuple[int, list[tuple[int, Place]]]]:
        """Ranks whose events are numbered without a break: (number of the first event, (rank, place) of each)."""
        places: list[tuple[int, Place]] = []
        begin = end = 0
        for rank, place, first, rows in self.ranked:
            if places and first != end:
                yield begin, places
                places = []
            if not places:
                begin = first
            places.append((rank, place))
            end = first + rows
        if places:
            yield begin, places


@dataclass(frozen=True)
class _Part:
    """Some events in their order, and what is the same for all of them."""

    events: Ordered
    constants: Mapping[str, int | None]
    schema: pa.Schema = _SCHEMA

    @property
    def rows(self) -> int:
        return len(self.events.codes)

    def table(self) -> pa.Table:
        return self.events.table(self.schema, self.constants)


def _rank_parts(
    runs: Runs, places: Sequence[tuple[int, Place]], name_ids: Mapping[int, NDArray[np.int32]]
) -> Iterator[_Part]:
    for rank, place in places:
        for part in runs.slices(place):
            yield _Part(ordered(part, name_ids[place[0]]), {"rank": rank})


def rank_tables(
    runs: Runs, places: Sequence[tuple[int, Place]], name_ids: Mapping[int, NDArray[np.int32]]
) -> Iterator[pa.Table]:
    """Events of every rank, in their order.

    Args:
        runs: the events.
        places: (rank, place), ranks ascending.
        name_ids: per export, the name_id for each number of a name.
    """
    return (part.table() for part in _rank_parts(runs, places, name_ids))


def other_tables(
    runs: Runs, places: Sequence[tuple[int | None, Place]], name_ids: Mapping[int, NDArray[np.int32]]
) -> Iterator[pa.Table]:
    """Events of what is no rank: (process, place) in the order of the answer."""
    fields = [("export", pa.int32()), ("process", pa.int32()), ("device", pa.int64())]
    schema = pa.schema([*fields, *(field for field in _SCHEMA if field.name != "rank")])
    for process, place in places:
        for part in runs.slices(place):
            constants = {"export": place[0], "process": process, "device": place[2]}
            yield ordered(part, name_ids[place[0]]).table(schema, constants)


def write_ranks(runs: Runs, order: Order, folder: Path, threads: int) -> list[Path]:
    """Writes the events of ranks to files, whose names sort as the numbers of the events inside.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    files = []
    for first, places in order.stretches():
        files += _write_files(_rank_parts(runs, places, order.name_ids), folder, threads, first)
    return files


def _write_files(parts: Iterator[_Part], folder: Path, threads: int, first: int) -> list[Path]:
    """Writes events, numbered from `first`, to files of about a million rows; which rows a file holds does not depend
    on `threads`.
    """
    files: list[Path] = []
    running: list[Future[None]] = []
    written = first
    with ThreadPoolExecutor(max(1, min(threads, 2)), "event files") as pool:
        for several in _of_size(parts, FILE_ROWS):
            files.append(folder / f"events-{written:012}.parquet")
            running = [one for one in running if not _is_done(one)]
            while len(running) > 1:  # what waits to be written is held in memory
                running.pop(0).result()
            running.append(pool.submit(_write, files[-1], several, written))
            written += sum(part.rows for part in several)
            del several
        for one in running:
            one.result()
    return files


def _is_done(one: Future[None]) -> bool:
    """Whether a file is written; raises what kept it from being."""
    if one.done():
        one.result()
        return True
    return False


def _of_size(parts: Iterable[_Part], rows: int) -> Iterator[list[_Part]]:
    held: list[_Part] = []
    count = 0
    for one in parts:
        held.append(one)
        count += one.rows
        if count >= rows:
            yield held
            held, count = [], 0
    if held:
        yield held


def _write(path: Path, parts: Sequence[_Part], first: int) -> None:
    """One file; the columns of one group of rows at a time are in memory."""
    schema = pa.schema([("event_id", pa.int64()), *_SCHEMA])
    packed = [name for name in schema.names if name in _ASCENDING]
    others = [name for name in schema.names if name not in _ASCENDING]
    with pq.ParquetWriter(
        path,
        schema,
        # Differences are packed into few bits already, and gain next to nothing.
        compression=dict.fromkeys(packed, "none") | dict.fromkeys(others, "zstd"),
        compression_level=dict.fromkeys(others, 1),
        write_statistics=_BOUNDED,
        data_page_version="2.0",
        use_dictionary=others,
        column_encoding=dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
    ) as writer:
        for several in _of_size(parts, _GROUP_ROWS):
            rows = pa.concat_tables([part.table() for part in several])
            ids = pa.array(np.arange(first, first + rows.num_rows, dtype=np.int64))
            first += rows.num_rows
            writer.write_table(rows.add_column(0, "event_id", ids), row_group_size=rows.num_rows)
