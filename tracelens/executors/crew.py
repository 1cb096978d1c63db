"""A run put together from portions that a crew of other processes reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

import duckdb
import pyarrow as pa

from tracelens.executors import portion
from tracelens.executors.portion import Part, PartRequest, Portion, Told
from tracelens.ingest import raw
from tracelens.ingest.discover import Found
from tracelens.model import build
from tracelens.model.event_files import Order

#: Files are read together until they have so many bytes, since a portion costs a little by itself ...
PORTION_BYTES = 32_000_000
#: ... and more where each worker gets several portions all the same, so that all are done at about the same time.
_SHARES_EACH = 4
#: Opening a file and taking its small tables takes as long as so many bytes of events.
FILE_BYTES = 5_000_000


class Crew(Protocol):
    """Processes that read portions of one run; what they answer does not depend on their number."""

    def read(self, portions: Sequence[Portion], progress: raw.Progress | None) -> list[Told]:
        """Reads portions; their events stay with the crew.

        Raises:
            InputError: of the first export, in their order, that cannot be used.
            ExecutorError: the crew cannot do it.
        """
        ...

    def write(self, order: Order, folder: Path) -> None:
        """Brings the files of all events that were read into a folder."""
        ...

    def write_parts(self, requests: Sequence[PartRequest], folder: Path) -> None:
        """Brings the raw tables of a part into a folder."""
        ...

    def __enter__(self) -> Self:
        """The crew, at work."""
        ...

    def __exit__(self, *_: object) -> None:
        """Ends the crew, whatever it is doing."""
        ...


def portions_of(found: Sequence[Found], sizes: Sequence[int], workers: int) -> list[Portion]:
    """The exports of a run in portions of neighbours, several for each worker where there are files enough."""
    whole = sum(sizes) + len(found) * FILE_BYTES
    enough = max(PORTION_BYTES, whole // (_SHARES_EACH * workers))
    portions: list[Portion] = []
    held: list[Found] = []
    size = 0
    for number, (one, its) in enumerate(zip(found, sizes, strict=True)):
        held.append(one)
        size += its + FILE_BYTES
        if size >= enough or number == len(found) - 1:
            portions.append(Portion(number + 1 - len(held), tuple(held)))
            held, size = [], 0
    return portions


def load_events(
    crew: Crew, portions: Sequence[Portion], db: duckdb.DuckDBPyConnection, progress: raw.Progress | None
) -> dict[int, raw.Stamp]:
    """As `raw.load_events`; returns what was seen of each file."""
    raw.create(db)
    seen: dict[int, raw.Stamp] = {}
    told = crew.read(portions, progress)
    for name in told[0].tables:
        portion.insert(db, {name: pa.concat_tables([one.tables[name] for one in told])})
    for one in told:
        seen |= one.seen
    return seen


def build_events(crew: Crew, db: duckdb.DuckDBPyConnection, folder: Path) -> int:
    """As `build.build_events`, into files; returns how many events of ranks there are."""
    order = build.order_events(db)
    crew.write(order, folder)
    build.finish_events(db, portion.read_others(folder))
    return sum(rows for _, _, _, rows in order.ranked)


def read_part(
    crew: Crew,
    part: Part,
    portions: Sequence[Portion],
    seen: Mapping[int, raw.Stamp],
    db: duckdb.DuckDBPyConnection,
    folder: Path,
) -> None:
    """Brings the raw tables of a part, as files for `portion.insert_part`, into a folder.

    Args:
        crew: reads.
        part: what.
        portions: of the run.
        seen: what was seen of the files before; empty: nothing.
        db: holds the run's raw tables.
        folder: receives the files.
    """
    requests = []
    for one in portions:
        known = {
            name: db.sql(
                f"SELECT * FROM {name} WHERE export BETWEEN {one.numbers[0]} AND {one.numbers[-1]}"  # noqa: S608 - our own
            ).to_arrow_table()
            for name in ("raw_export", "session_window")
        }
        requests.append(PartRequest(part, one, known, {number: seen[number] for number in one.numbers if seen}))
    crew.write_parts(requests, folder)
