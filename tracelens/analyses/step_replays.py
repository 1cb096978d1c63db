"""Steps from graph replays: the smallest cycle of replays that holds exactly one read-back, or one sampling group.

One full graph, several launches a step, pieces per layer, draft and verify: whatever the cycle, it ends in one
read-back. An eager stretch between two replays with a read-back of its own is a step of its own (a prefill).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.replays import Replays, Units, find_replays
from tracelens.analyses.step_closings import Landmarks, Segments, cut_segments, landmarks
from tracelens.analyses.step_cycles import cycle_starts
from tracelens.analyses.step_markers import OUTSIDE, Marking, blank_steps, nothing
from tracelens.analyses.timeline import GRAPH, Codes, Ints, Timeline

_FITS = 0.8


def by_replay(tl: Timeline) -> Marking:
    """Steps from the cycles of graph replays."""
    if not any(bool((tl.in_graph[part] | (tl.kind[part] == GRAPH)).any()) for part in tl.stretches()):
        return nothing("graph", tl, "no graph replays")
    replays = find_replays(tl)
    if len(replays) < 2:
        return nothing("graph", tl, "fewer than two graph replays")
    marks = landmarks(tl)
    by_copy = _cut(replays, marks, marks.read_back, "read-back")
    by_sample = _cut(replays, marks, marks.sampling, "sampling group")
    best = _better(by_copy, by_sample)
    silent = _silent_ranks(best, replays)
    if best.regularity >= _FITS and len(silent):
        own = marks.read_back if best is by_copy else marks.sampling
        closes = np.union1d(own, _borrowed(best, replays, silent))
        best = _cut(replays, marks, closes, "read-back of one rank")
    if best.regularity < _FITS:
        cycle = _by_first_replay(tl, replays)
        if cycle.regularity > best.regularity:
            return cycle
    return best.marking()


@dataclass(frozen=True)
class _Cut:
    """A cut into steps, with what decides between two of them."""

    segments: Segments
    words: pl.DataFrame
    detail: str
    regularity: float
    repeated_inside: bool

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.segments)

    def marking(self) -> Marking:
        """The cut as a marking."""
        return Marking("graph", self.segments.member(), self.words, self.regularity, self.detail)


def _cut(replays: Replays, marks: Landmarks, closes: Ints, what: str) -> _Cut:
    """Steps that end with the last of each group of `closes` (read-backs, or sampling kernels)."""
    segments = cut_segments(marks, closes, through=what != "read-back")
    words, size = _words(segments, replays)
    regularity, powers = _repetition(segments, words, replays)
    steps = blank_steps(segments.place).with_columns(
        word=pl.when(pl.Series(segments.replay_count > 0)).then(pl.Series(words)),
        word_size=pl.Series(size),
    )
    launches = segments.replay_count[segments.replay_count > 0]
    usual = int(np.median(launches)) if len(launches) else 0
    detail = f"cycles of {usual} graph launch{'' if usual == 1 else 'es'}, each with one {what}"
    return _Cut(segments, steps, detail, regularity, powers)


def _words(segments: Segments, replays: Replays) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]:
    """(hash of the sequence of signatures, sum of sizes) per step."""
    words = np.zeros(len(segments), np.uint64)
    size = np.zeros(len(segments))
    held = np.flatnonzero(segments.replay_step >= 0)
    at = segments.replay_step[held]
    first = np.concatenate([np.ones(min(len(at), 1), bool), at[1:] != at[:-1]])
    starts = np.flatnonzero(first)
    place_in_step = np.arange(len(at)) - np.repeat(starts, np.diff(np.concatenate([starts, [len(at)]])))
    weight = (place_in_step.astype(np.uint64) * np.uint64(2) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    signature = replays.signature[held]
    mixed = (signature ^ (signature >> np.uint64(29))) * weight
    np.add.at(words, at, mixed ^ (mixed >> np.uint64(31)))
    np.add.at(size, at, replays.weight[held])
    return words, size


def _repetition(segments: Segments, words: npt.NDArray[np.uint64], replays: Replays) -> tuple[float, bool]:
    """(share of replays in cycles that repeat on their rank, whether the usual cycle repeats itself inside)."""
    frame = pl.DataFrame(
        {"place": segments.place, "word": words, "launches": segments.replay_count, "row": np.arange(len(segments))}
    ).filter(pl.col("launches") > 0)
    if frame.is_empty():
        return 0.0, False
    # The capture cuts the first and the last cycle of a rank: those need not repeat.
    nth, size = pl.int_range(pl.len()).over("place"), pl.len().over("place").cast(pl.Int64)
    frame = frame.with_columns(times=pl.len().over("place", "word"), edge=(nth == 0) | (nth == size - 1))
    inner = frame.filter(~(pl.col("edge") & (pl.col("times") == 1)))
    total = float(inner["launches"].sum())
    share = float(inner.filter(pl.col("times") > 1)["launches"].sum()) / total if total else 0.0
    usual = frame.sort("times", "word", descending=True)["row"][0]
    return share, _is_power(replays.signature[segments.replay_step == usual])


def _is_power(sequence: npt.NDArray[np.uint64]) -> bool:
    """Whether a sequence is a shorter one repeated."""
    size = len(sequence)
    return any(
        size % period == 0 and bool(np.array_equal(sequence[period:], sequence[:-period]))
        for period in range(1, size // 2 + 1)
    )


def _better(by_copy: _Cut, by_sample: _Cut) -> _Cut:
    """Read-backs decide, unless sampling groups fit where they do not.

    Fewer read-backs than sampling groups, and a cycle that is a shorter one repeated: the engine reads back only
    every few steps. More read-backs than sampling groups: some are taken in the middle of a step.
    """
    if by_sample.steps == 0 or by_sample.regularity < _FITS:
        return by_copy
    if by_copy.steps == 0 or by_copy.regularity < _FITS:
        return by_sample
    if by_copy.repeated_inside and by_sample.steps >= 1.5 * by_copy.steps:
        return by_sample
    if by_copy.steps >= 1.5 * by_sample.steps:
        return by_sample
    return by_copy


def _silent_ranks(cut: _Cut, replays: Replays) -> Ints:
    """Places of ranks that replay as the others do and close next to nothing: only some ranks read tokens back."""
    ranks = int(replays.place.max()) + 1
    launches = np.bincount(replays.place, minlength=ranks)
    steps = np.bincount(cut.segments.place, minlength=ranks)
    share = steps / np.maximum(launches, 1)
    result: Ints = np.flatnonzero((launches > 1) & (share < 0.5 * share.max(initial=0.0)))
    return result


def _borrowed(cut: _Cut, replays: Replays, silent: Ints) -> Ints:
    """Closings for ranks without any: before each graph that begins a cycle, and nothing but that, on the others."""
    step = cut.segments.replay_step
    told = np.flatnonzero((step >= 0) & ~np.isin(replays.place, silent))
    first = told[np.concatenate([np.ones(min(len(told), 1), bool), step[told][1:] != step[told][:-1]])]
    # The first cycle of a capture may begin anywhere.
    first = first[1:]
    kinds, begins = np.unique(replays.signature[first], return_counts=True)
    every, count = np.unique(replays.signature[told], return_counts=True)
    total = count[np.searchsorted(every, kinds)]
    opening = kinds[begins >= 0.9 * total]
    at = np.flatnonzero(np.isin(replays.place, silent) & np.isin(replays.signature, opening))
    at = at[at > 0]
    at = at[replays.place[at] == replays.place[at - 1]]
    result: Ints = replays.last[at - 1]
    return result


def _by_first_replay(tl: Timeline, replays: Replays) -> Marking:
    """Steps that begin with the graph that comes once per cycle, where nothing marks their end."""
    cycles = cycle_starts(tl.trace.room, replays.signature, replays.place)
    if cycles is None:
        return nothing("graph", tl, "no repeating cycle of replays")
    steps, member = steps_from(replays.units, replays.first[cycles.places])
    detail = f"cycles of {cycles.length} graph launch{'' if cycles.length == 1 else 'es'}, from their first replay on"
    return Marking("graph", member, steps, cycles.regularity, detail)


def steps_from(units: Units, begins: Ints) -> tuple[pl.DataFrame, Codes]:
    """(steps, member) where each step begins at a unit, by its place in issue order, and lasts until the next."""
    opens = np.union1d(begins, units.first[:-1])
    begun = np.isin(opens, begins)
    number = np.where(begun, np.cumsum(begun) - 1, OUTSIDE).astype(np.int32)
    return blank_steps(units.places(begins)), units.to_events(opens, number)
