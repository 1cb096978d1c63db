"""The collective operations of each rank: kernels of one operation put together, with NCCL's payload where recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.clock import Ints
from tracelens.analyses.matching_instances import Bools
from tracelens.trace import LoadedTrace

SQL = Path(__file__).with_name("alignment.sql")

NO_PAYLOAD = 0


@dataclass(frozen=True)
class Operations:
    """One row per collective operation of one rank, in the order of rank and start; own times in ns.

    Attributes:
        owner: int64, index of the rank among the ranks asked for.
        event_id, last_event_id: its first and last kernel.
        start, end: of the first and the last kernel.
        leave: end of the kernel at which all ranks leave together.
        name_id, stream, shape: of the first kernel.
        family: int64, index into `families`.
        families: (operation, implementation, synchronising).
        payload: uint64, NCCL's communicator id; 0 where none is recorded.
        message_bytes: int64, -1 where unknown.
    """

    owner: Ints
    event_id: Ints
    last_event_id: Ints
    start: Ints
    end: Ints
    leave: Ints
    name_id: Ints
    stream: Ints
    shape: Ints
    family: Ints
    families: tuple[tuple[str, str, bool], ...]
    payload: npt.NDArray[np.uint64]
    message_bytes: Ints

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def synchronising(self) -> Bools:
        """Whether each operation makes early ranks wait."""
        return np.array([f[2] for f in self.families] or [False], dtype=bool)[self.family]


def load_operations(trace: LoadedTrace, ranks: list[int]) -> Operations:
    """The collective operations of `ranks`, from the model."""
    names = trace.rows(SQL, "families")
    kernels = trace.rows(SQL, "kernels", ranks=ranks)
    described = [
        (str(o), str(i or "unknown"), bool(s) and o != "unknown")
        for o, i, s in names.select("operation", "implementation", "synchronising").iter_rows()
    ]
    families = tuple(sorted(set(described)))
    place = {family: index for index, family in enumerate(families)}
    by_name = np.zeros((max(names["name_id"].to_list(), default=0) + 1,), dtype=np.int64)
    by_name[names["name_id"].to_numpy()] = [place[family] for family in described]

    def column(name: str) -> Ints:
        return kernels[name].to_numpy().astype(np.int64, copy=False)

    event_id, start, end, name_id = column("event_id"), column("start_ns"), column("end_ns"), column("name_id")
    head, leads = _heads(trace, names, event_id)
    operations = Operations(
        owner=np.searchsorted(np.array(ranks, dtype=np.int64), column("rank"))[head],
        event_id=event_id[head],
        last_event_id=event_id[leads],
        start=start[head],
        end=end[leads],
        leave=end[head],
        name_id=name_id[head],
        stream=column("stream")[head],
        shape=column("shape")[head],
        family=by_name[name_id[head]] if len(head) else np.empty(0, dtype=np.int64),
        families=families,
        payload=np.full(len(head), NO_PAYLOAD, dtype=np.uint64),
        message_bytes=np.full(len(head), -1, dtype=np.int64),
    )
    nccl = np.array([f[1].startswith("nccl") for f in families] or [False], dtype=bool)
    eager = ~kernels["in_graph"].to_numpy()[head] if len(head) else np.empty(0, dtype=bool)
    if len(head) and (nccl[operations.family] & eager).any():
        _add_payloads(trace, operations)
    return operations


def _heads(trace: LoadedTrace, names: pl.DataFrame, event_id: Ints) -> tuple[Ints, Ints]:
    """Rows of the kernels that begin an operation, and the row of each one's last kernel."""
    rows = np.arange(len(event_id))
    if len(event_id) == 0 or bool(names["barrier_end"].all()):
        return rows, rows
    followers = trace.rows(SQL, "followers")
    follows = np.full(len(event_id), -1, dtype=np.int64)
    later = np.searchsorted(event_id, followers["event_id"].to_numpy())
    inside = (later < len(event_id)) & (
        event_id[np.minimum(later, len(event_id) - 1)] == followers["event_id"].to_numpy()
    )
    previous = followers["previous_id"].fill_null(-1).to_numpy()
    earlier = np.minimum(np.searchsorted(event_id, previous), len(event_id) - 1)
    begun = inside & (event_id[earlier] == previous)
    follows[later[begun]] = earlier[begun]
    # A follower whose beginning lies before the capture is an operation of which nothing can be said.
    orphan = np.zeros(len(event_id), dtype=bool)
    orphan[later[inside & ~begun]] = True
    head = np.arange(len(event_id))
    chained = follows >= 0
    while chained.any():
        head[chained] = follows[head[chained]]
        chained = follows[head] >= 0
    last = np.arange(len(event_id))
    np.maximum.at(last, head, rows)
    begins = (head == rows) & ~orphan
    return rows[begins], last[begins]


def _add_payloads(trace: LoadedTrace, operations: Operations) -> None:
    """Fill in NCCL's communicator ids and message sizes where ranges carry them."""
    trace.ensure("nvtx")
    if int(trace.rows(SQL, "payload_count")["row_count"][0]) == 0:
        return
    trace.ensure("launch")
    found = trace.rows(SQL, "payloads")
    at = np.searchsorted(operations.event_id, found["event_id"].to_numpy())
    known = (at < len(operations)) & (
        operations.event_id[np.minimum(at, len(operations) - 1)] == found["event_id"].to_numpy()
    )
    operations.payload[at[known]] = found["comm_id"].to_numpy()[known]
    operations.message_bytes[at[known]] = found["message_bytes"].fill_null(-1).to_numpy()[known]
