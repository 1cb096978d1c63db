"""The table `clock`: how each rank's GPU clock stands against that of its set's lowest rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from tracelens.analyses.alignment_members import Placed
from tracelens.analyses.clock import Clock, Floats, Ints
from tracelens.analyses.matching_communicators import RankClock

Method = Literal["ends", "trust"]

CLOCK_COLUMNS = {
    "set": pl.Int32,
    "rank": pl.Int32,
    "method": pl.String,
    "valid_from_ns": pl.Int64,
    "offset_ns": pl.Float64,
    "drift_ppm": pl.Float64,
    "t0_ns": pl.Int64,
    "residual_ns": pl.Int64,
    "asymmetry_ns": pl.Int64,
    "matched_count": pl.Int64,
}


@dataclass(frozen=True)
class ClockSet:
    """Ranks on one common clock.

    Attributes:
        ranks: ascending; the first is the reference.
        method: `ends` or `trust`.
        residual_ns: 95th percentile of the end deviations; null under trust.
        asymmetry_ns: see `JointFit`; null under trust or with one group of operations.
        single_operation: the only (operation, implementation) that the clock rests on; null if there are several.
        chosen: the caller asked for this method; false where `auto` fell back to it.
    """

    ranks: tuple[int, ...]
    method: Method
    residual_ns: float | None
    asymmetry_ns: float | None
    single_operation: str | None
    chosen: bool

    @property
    def resolution_ns(self) -> float:
        """residual + asymmetry; what is null counts as 0."""
        return (self.residual_ns or 0.0) + (self.asymmetry_ns or 0.0)


def clock_frame(
    ranks: Sequence[RankClock],
    first_ns: Sequence[int],
    epoch: Ints,
    clocks: Sequence[Clock],
    roots: Sequence[int],
    numbers: Mapping[int, int],
    sets: Sequence[ClockSet],
    placed: Sequence[Placed],
    unplaced: Sequence[int],
) -> pl.DataFrame:
    """One row per rank and stretch of its clock, columns `CLOCK_COLUMNS`; a rank that cannot be placed has none.

    Args:
        ranks: the ranks.
        first_ns: start of each rank's first event, own time.
        epoch: own time that `clocks` count as 0, per rank.
        clocks: per rank against the root of its set.
        roots: per rank the index of the lowest rank of its set.
        numbers: root -> number of the set.
        sets: the sets.
        placed: the communicators, for what each clock rests on.
        unplaced: indices of ranks without a clock.
    """
    times: list[list[Floats]] = [[] for _ in ranks]
    for one in placed:
        for column, member in enumerate(one.members):
            times[member].append(one.readings.leave[column, one.accepted])
    rows = []
    for owner, rank in enumerate(ranks):
        if owner in unplaced:
            continue
        number = numbers[roots[owner]]
        of_set = sets[number]
        root = roots[owner]
        accepted = np.concatenate(times[owner]) if times[owner] else np.empty(0)
        middle = round((float(accepted.min()) + float(accepted.max())) / 2) if len(accepted) else 0
        clock = clocks[owner].moved(float(middle))
        segment = np.searchsorted(clock.valid_from[1:], accepted, side="right")
        for k, valid_from in enumerate(clock.valid_from):
            rows.append(
                {
                    "set": number,
                    "rank": rank.rank,
                    "method": of_set.method,
                    "valid_from_ns": first_ns[owner] if k == 0 else round(valid_from) + int(epoch[owner]),
                    "offset_ns": float(clock.offset[k]) + float(epoch[owner] - epoch[root]),
                    "drift_ppm": float(clock.drift[k]) * 1e6,
                    "t0_ns": middle + int(epoch[owner]),
                    "residual_ns": None if of_set.residual_ns is None else round(of_set.residual_ns),
                    "asymmetry_ns": None if of_set.asymmetry_ns is None else round(of_set.asymmetry_ns),
                    "matched_count": int((segment == k).sum()),
                }
            )
    return pl.DataFrame(rows, schema=CLOCK_COLUMNS)
