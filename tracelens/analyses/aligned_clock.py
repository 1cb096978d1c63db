"""The aligned clock of a trace as steps and gaps need it: which ranks form a set, and their times on one clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.alignment import Alignment, find_alignment
from tracelens.analyses.alignment_members import MatchedOperations
from tracelens.trace import LoadedTrace

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class AlignedClock:
    """Sets of ranks and their common clocks.

    Attributes:
        rank_set: rank -> number of its set, for every rank asked for.
        fitted: ranks whose clock rests on the ends of collectives.
        chosen: ranks on recorded clocks because the caller wanted those.
        alignment: moves times.
    """

    rank_set: Mapping[int, int]
    fitted: frozenset[int]
    chosen: frozenset[int]
    alignment: Alignment

    def aligned(self, ranks: Ints, own: Ints) -> Ints:
        """Own times of `ranks` on the clock of their set."""
        return self.alignment.to_aligned(ranks, own)

    @property
    def members(self) -> pl.DataFrame:
        """One row per collective operation of a rank."""
        return self.alignment.members

    @property
    def operations(self) -> MatchedOperations:
        """The collective operations of all ranks, in the order of rank and start."""
        return self.alignment.operations


def aligned_clock(trace: LoadedTrace) -> AlignedClock:
    """The clock of `align`, with every rank in a set."""
    result: AlignedClock = trace.memo("aligned clock", lambda: _build(trace))
    return result


def _build(trace: LoadedTrace) -> AlignedClock:
    alignment = find_alignment(trace)
    rank_set = {rank: number for number, one in enumerate(alignment.sets) for rank in one.ranks}
    free = len(alignment.sets)
    for rank in trace.ranks:
        if rank not in rank_set:
            rank_set[rank] = free
            free += 1
    return AlignedClock(
        rank_set=rank_set,
        fitted=frozenset(rank for one in alignment.sets if one.method == "ends" for rank in one.ranks),
        chosen=frozenset(rank for one in alignment.sets if one.method == "trust" and one.chosen for rank in one.ranks),
        alignment=alignment,
    )
