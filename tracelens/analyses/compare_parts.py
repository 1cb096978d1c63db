"""Rows of a comparison: means of two sides, their difference, and how sure it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelens.analyses.compare_pairs import Pair
from tracelens.analyses.compare_sides import CAUSES, SideFigures
from tracelens.analyses.evidence import Blocks, block_means, welch_interval

Floats = NDArray[np.float64]


def _cut(captures: list[SideFigures], table: Floats) -> list[Floats]:
    """A merged side's table, one array per capture again."""
    return np.split(table, np.cumsum([one.step_count for one in captures])[:-1])


class Parts:
    """Rows of the tables: means of two sides, their difference and its interval."""

    def __init__(
        self,
        sides: tuple[SideFigures, SideFigures],
        captures: tuple[list[SideFigures], list[SideFigures]],
        blocks: Blocks,
    ) -> None:
        self._sides, self._captures, self._blocks = sides, captures, blocks

    def _means(self, side: int, table: Floats) -> Floats:
        return block_means(_cut(self._captures[side], table), self._blocks.length)

    def _mean(self, side: int, table: Floats) -> Floats:
        """The mean over steps; over captures first, where captures are the blocks, so that each counts once."""
        if self._blocks.length == 0:
            mean: Floats = self._means(side, table).mean(axis=0)
            return mean
        whole: Floats = table.mean(axis=0)
        return whole

    def _interval(self, tables: tuple[Floats, Floats], rows: int) -> tuple[Floats, Floats] | None:
        if self._blocks.reason:
            return None
        return welch_interval(self._means(0, tables[0]), self._means(1, tables[1]), rows)

    def rows(
        self, names: list[str], tables: tuple[Floats, Floats], calls: tuple[Floats, Floats], status: list[str]
    ) -> list[dict[str, Any]]:
        """One row per column of `tables` (steps, rows) of the two sides."""
        means = [self._mean(side, tables[side]) for side in (0, 1)]
        counts = [self._mean(side, calls[side]) for side in (0, 1)]
        interval = self._interval(tables, len(names))
        rows = []
        for place, name in enumerate(names):
            before, after = round(float(means[0][place])), round(float(means[1][place]))
            called = float(counts[0][place]), float(counts[1][place])
            delta = after - before
            from_calls = _calls_part(means[0][place], means[1][place], *called, delta)
            low, high = (
                (None, None)
                if interval is None
                else (round(float(interval[0][place])), round(float(interval[1][place])))
            )
            rows.append(
                {
                    "name": name,
                    "before_per_step_ns": before,
                    "after_per_step_ns": after,
                    "delta_ns": delta,
                    "ci_low_ns": low,
                    "ci_high_ns": high,
                    "significant": None if low is None or high is None else low > 0 or high < 0,
                    "before_calls": called[0],
                    "after_calls": called[1],
                    "calls_part_ns": from_calls,
                    "time_part_ns": delta - from_calls,
                    "status": status[place],
                }
            )
        return rows

    def kernels(self, pairs: list[Pair]) -> list[dict[str, Any]]:
        """Rows of groups of kernel names."""
        tables, calls = [], []
        for side, columns in ((0, [pair.before for pair in pairs]), (1, [pair.after for pair in pairs])):
            chooser = np.zeros((len(self._sides[side].names), len(pairs)))
            for place, members in enumerate(columns):
                chooser[list(members), place] = 1
            tables.append(self._sides[side].elapsed_ns @ chooser)
            calls.append(self._sides[side].calls @ chooser)
        return self.rows(
            [pair.name for pair in pairs], (tables[0], tables[1]), (calls[0], calls[1]), [pair.status for pair in pairs]
        )

    def collective_parts(self) -> list[dict[str, Any]]:
        """Waiting, and transfer with all else, of the collectives' exclusive time; none where waits are unknown."""
        if not all(side.wait_known for side in self._sides):
            return []
        tables, calls = [], []
        for side in self._sides:
            collective = np.array([name.operation is not None for name in side.names], bool)
            wait = side.wait_ns[:, collective].sum(axis=1)
            tables.append(np.column_stack([wait, side.elapsed_ns[:, collective].sum(axis=1) - wait]))
            calls.append(np.repeat(side.calls[:, collective].sum(axis=1)[:, None], 2, axis=1))
        return self.rows(["wait", "transfer and rest"], (tables[0], tables[1]), (calls[0], calls[1]), ["same", "same"])

    def gaps(self) -> list[dict[str, Any]]:
        """Rows of the gap causes; how many gaps there are is not known per step, so all of a delta is time."""
        tables = (self._sides[0].gap_ns, self._sides[1].gap_ns)
        nothing = (np.ones_like(tables[0]), np.ones_like(tables[1]))
        rows = self.rows(list(CAUSES), tables, nothing, ["same"] * len(CAUSES))
        for row in rows:
            row |= {"before_calls": None, "after_calls": None, "calls_part_ns": None, "time_part_ns": None}
        return rows

    def verdict(self, frames: dict[str, pl.DataFrame]) -> dict[str, Any]:
        """The step itself, and what the parts leave over."""
        tables = (self._sides[0].step_ns[:, None], self._sides[1].step_ns[:, None])
        before, after = (round(float(self._mean(side, tables[side])[0])) for side in (0, 1))
        interval = self._interval(tables, 1)
        low, high = (None, None) if interval is None else (round(float(interval[0][0])), round(float(interval[1][0])))
        parts = int(frames["buckets"]["delta_ns"].sum()) + int(frames["gaps"]["delta_ns"].sum())
        return {
            "comparable": True,
            "phase": self._sides[0].phase,
            "rung": self._sides[0].rung,
            "before_step_ns": before,
            "after_step_ns": after,
            "before_p50_ns": self._sides[0].p50_ns,
            "after_p50_ns": self._sides[1].p50_ns,
            "delta_ns": after - before,
            "delta_frac": (after - before) / before if before else None,
            "ci_low_ns": low,
            "ci_high_ns": high,
            "significant": None if low is None or high is None else low > 0 or high < 0,
            "unattributed_ns": after - before - parts,
            "headline": "",
        }


def _calls_part(time_before: float, time_after: float, calls_before: float, calls_after: float, delta: int) -> int:
    """The part of a delta that the change of calls explains: calls changed times the mean duration of both sides."""
    if calls_before <= 0 or calls_after <= 0:
        return delta
    if calls_before == calls_after:
        return 0
    return round((calls_after - calls_before) * (time_before / calls_before + time_after / calls_after) / 2)
