"""The rows of one rank that a capture holds, as an analysis would see them, in true time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.simulate.events import Events
from tracelens.simulate.spec import CaptureSpec

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(eq=False)
class ObservedRows:
    """The rows of one rank that the capture holds, in time order; true times."""

    start: Ints
    end: Ints
    step: Ints
    stream: Ints
    launch: Ints
    graph: Ints
    op: Ints


def observed_rows(spec: CaptureSpec, events: Events, rank: int) -> ObservedRows:
    """One rank's rows; with graph-level capture a replay is one row (op -1)."""
    rows = np.flatnonzero(events.kept[rank])
    start, end = events.start[rank, rows], events.end[rank, rows]
    step, stream, launch = events.step[rows], events.stream[rows], events.launch[rows]
    graph, op = events.graph[rows], events.op[rows]
    if spec.graph_capture == "graph" and (graph >= 0).any():
        inside = graph >= 0
        _, first, inverse = np.unique(launch[inside], return_index=True, return_inverse=True)
        begin = np.full(len(first), np.iinfo(np.int64).max)
        finish = np.zeros(len(first), np.int64)
        np.minimum.at(begin, inverse, start[inside])
        np.maximum.at(finish, inverse, end[inside])
        outside = ~inside
        start = np.concatenate([start[outside], begin])
        end = np.concatenate([end[outside], finish])
        step, stream, launch, graph = (
            np.concatenate([part[outside], part[inside][first]]) for part in (step, stream, launch, graph)
        )
        op = np.concatenate([op[outside], np.full(len(first), -1)])
    order = np.lexsort((launch, stream, -end, start))
    return ObservedRows(*(part[order] for part in (start, end, step, stream, launch, graph, op)))
