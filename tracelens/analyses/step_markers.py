"""Where steps begin: ranges of the engine, graph replays, an anchor kernel, or the period of the kernel sequence.

Every marker answers in the same form, a `Marking`: which step each event belongs to, numbered over all ranks, and how
much of the evidence the marker explains. Numbers here are local to a rank; `step_numbering` makes them one per set.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import polars as pl

from tracelens.analyses.blocks import run_starts
from tracelens.analyses.step_grammar import PATTERN, Batch, read_batch
from tracelens.analyses.timeline import GRAPH, KERNEL, Codes, Ints, Timeline
from tracelens.errors import SelectionError, UsageError

if TYPE_CHECKING:
    from tracelens.trace import LoadedTrace

SQL = Path(__file__).with_suffix(".sql")

OUTSIDE = -1
"""Member value of an event that belongs to no step."""

UNKNOWN = -2
"""Member value of an event without a launch call, until its stream tells."""

STEP_SCHEMA = {
    "place": pl.Int32,
    "text": pl.String,
    "phase": pl.String,
    "rung": pl.String,
    "requests": pl.Int64,
    "tokens": pl.Int64,
    "word": pl.UInt64,
    "word_size": pl.Float64,
}


@dataclass(frozen=True)
class Marking:
    """What one marker makes of a trace.

    Attributes:
        marker: `nvtx`, `graph`, `anchor` or `period`.
        member: int32 [events], row in `steps` of the step that the event belongs to; -1 outside every step.
        steps: one row per rank and step in order: place of the rank; what the marker's text tells (else null); for
            cycles of graph replays, a hash of their signatures and the sum of their launch shapes (else null).
        regularity: share of the evidence that the marker fits, 0 to 1.
        detail: what was used, for the reader: a grammar, a kernel name, a cycle.
    """

    marker: str
    member: Codes
    steps: pl.DataFrame
    regularity: float
    detail: str

    def __len__(self) -> int:
        return self.steps.height


def nothing(marker: str, tl: Timeline, detail: str) -> Marking:
    """A marking without steps."""
    return Marking(marker, np.full(len(tl), OUTSIDE, np.int32), pl.DataFrame(schema=STEP_SCHEMA), 0.0, detail)


def blank_steps(places: Ints) -> pl.DataFrame:
    """Steps of which nothing is known but the ranks at `places`."""
    return pl.DataFrame({"place": places.astype(np.int32)}).with_columns(
        pl.lit(None, dtype=dtype).alias(name) for name, dtype in STEP_SCHEMA.items() if name != "place"
    )


def by_range(trace: LoadedTrace, tl: Timeline, pattern: str | None) -> Marking:
    """Steps from NVTX ranges: an event belongs to the last range that began before its launch call on its thread.

    Args:
        trace: holds `nvtx`.
        tl: its timeline.
        pattern: a user's regular expression, or None for the grammars of the engines.

    Raises:
        UsageError: the pattern is no regular expression.
        SelectionError: a user's pattern matches no range.
    """
    trace.ensure("nvtx")
    try:
        ranges = trace.rows(SQL, "ranges", pattern=pattern or PATTERN)
    except duckdb.Error as error:
        raise UsageError(
            f"--step-marker {pattern!r} is not a regular expression: {error}", "RE2 syntax: no look-around"
        ) from error
    if ranges.is_empty():
        if pattern is None:
            return nothing("nvtx", tl, "no range of a known engine")
        seen = ", ".join(repr(text) for text in trace.rows(SQL, "sample_texts")["text"].to_list())
        raise SelectionError(
            f"--step-marker {pattern!r} matches no NVTX range of this capture",
            f"the most frequent texts are {seen}" if seen else "the capture holds no NVTX range",
        )
    ranges, batches = _one_grammar(ranges, prefer=pattern is None)
    member, steps, grammar = _members_of_ranges(tl, ranges, batches)
    detail = f"ranges of {grammar}" if pattern is None else f"ranges that match {pattern!r}"
    return Marking("nvtx", member, steps, _evenness(tl, member, steps), detail)


def _one_grammar(ranges: pl.DataFrame, prefer: bool) -> tuple[pl.DataFrame, dict[str, Batch]]:
    """The ranges of the most frequent grammar: two grammars in one process enclose each other."""
    batches = {text: read_batch(text) for text in ranges["text"].unique().sort().to_list()}
    if not prefer:
        return ranges, batches
    grammar = ranges["text"].replace_strict(
        {text: batch.grammar for text, batch in batches.items()}, return_dtype=pl.String
    )
    counts = grammar.value_counts().sort(-pl.col("count").cast(pl.Int64), grammar.name)
    return ranges.filter(grammar == counts[grammar.name][0]), batches


def _members_of_ranges(
    tl: Timeline, ranges: pl.DataFrame, batches: dict[str, Batch]
) -> tuple[Codes, pl.DataFrame, str]:
    calls = tl.launches
    # A thread may mark without launching anything itself: it gets a code behind those that launch.
    threads = pl.concat([calls.threads, ranges.select(calls.threads.columns)]).unique(maintain_order=True)
    marks = ranges.join(threads.with_row_index("code"), on=["process", "thread"], how="left", maintain_order="left")
    marks = marks.sort("code", "start_ns", maintain_order=True)
    code, start = marks["code"].to_numpy().astype(np.int64), marks["start_ns"].to_numpy().astype(np.int64)
    low = min(int(calls.begin.min(initial=int(start[0]))), int(start.min()))
    stride = max(int(calls.begin.max(initial=int(start[0]))), int(start.max())) - low + 1
    call_key = calls.thread.astype(np.int64) * stride + (calls.begin - low)
    last = np.searchsorted(code * stride + (start - low), call_key, side="right") - 1
    same = (last >= 0) & (code[np.maximum(last, 0)] == calls.thread)
    of_call = _other_threads(tl, threads["process"].to_numpy(), code, start, np.where(same, last, OUTSIDE))
    # All nodes of a replay share their call: look at each run of events with one call once.
    runs = tl.runs(tl.launch)
    call = tl.launch[runs]
    place = np.full(len(of_call), -1, np.int64)
    place[call[call >= 0]] = tl.rank_place[runs[call >= 0]]
    used, local, of_place, mark = _used_marks(marks, start, of_call, place)
    of_run = np.where(call >= 0, local[np.maximum(call, 0)] if len(local) else OUTSIDE, UNKNOWN).astype(np.int32)
    member = tl.carry_along_streams(tl.along(runs, of_run), UNKNOWN, OUTSIDE)
    told = pl.DataFrame(
        [(text, batch.phase, batch.rung, batch.requests, batch.tokens) for text, batch in batches.items()],
        schema={name: STEP_SCHEMA[name] for name in ("text", "phase", "rung", "requests", "tokens")},
        orient="row",
    )
    steps = (
        blank_steps(of_place)
        .select("place", "word", "word_size")
        .with_columns(marks["text"].gather(mark))
        .join(told, on="text", how="left", maintain_order="left")
        .select(list(STEP_SCHEMA))
    )
    return member, steps, batches[steps["text"][0]].grammar if len(used) else "nobody"


def _used_marks(marks: pl.DataFrame, start: Ints, of_call: Ints, place: Ints) -> tuple[Ints, Codes, Ints, Ints]:
    """The marks under which ranks launched anything: each such mark of each rank is a step.

    A rank's marks are those of its process, in the order of time, whatever thread they stand on.

    Args:
        marks: one row per mark, with its process.
        start: ns, their times.
        of_call: last mark of each call, -1 for none.
        place: place of the rank that each call launched on, -1 for none.

    Returns:
        the steps' keys, ascending by rank and time; per call its step or -1; per step its rank's place and its mark.
    """
    processes, process = np.unique(marks["process"].to_numpy(), return_inverse=True)
    order = np.lexsort((start, process))
    count = np.bincount(process)
    first = np.cumsum(count) - count
    nth = np.empty(len(order), np.int64)
    nth[order] = np.arange(len(order)) - first[process[order]]
    # A rank and a process: only those that occur together take room for the process's marks.
    known, at = (of_call >= 0) & (place >= 0), np.maximum(of_call, 0)
    pair = np.where(known, place * len(processes) + process[at], OUTSIDE)
    pairs, of_pair = _dense(pair, (int(place.max(initial=0)) + 1) * len(processes))
    room = np.cumsum(np.append(0, count[pairs % len(processes)]))
    used, local = _dense(np.where(known, room[of_pair] + nth[at], OUTSIDE), max(1, int(room[-1])))
    of_used = np.searchsorted(room, used, side="right") - 1
    mark = order[first[pairs[of_used] % len(processes)] + used - room[of_used]]
    return used, local, pairs[of_used] // len(processes), mark


def _dense(key: Ints, bound: int) -> tuple[Ints, Codes]:
    """(used keys ascending, place of each key among them or -1); keys are below `bound`, -1 for none."""
    present = np.zeros(bound, bool)
    present[key[key >= 0]] = True
    place = np.cumsum(present, dtype=np.int32) - 1
    return np.flatnonzero(present), np.where(key >= 0, place[np.maximum(key, 0)], OUTSIDE).astype(np.int32)


def _other_threads(tl: Timeline, process_of_thread: Ints, code: Ints, start: Ints, of_call: Ints) -> Ints:
    """Launch calls of processes whose marking thread launches little: there the host time decides alone.

    Some servers mark on the scheduler's thread and launch on another of the same process. Where less than half of a
    process's calls come from threads with marks, its other threads follow the marks of the process.

    Args:
        tl: the timeline.
        process_of_thread: process by thread code.
        code: thread code of each mark, ascending.
        start: ns, host time of each mark, ascending within a thread.
        of_call: last mark of each call on its own thread, -1 for none.
    """
    calls = tl.launches
    marked = np.zeros(len(process_of_thread), bool)
    marked[code] = True
    process_of_call = process_of_thread[calls.thread]
    on_marked = marked[calls.thread]
    processes, inverse = np.unique(process_of_call, return_inverse=True)
    share = np.bincount(inverse, on_marked, minlength=len(processes)) / np.maximum(np.bincount(inverse), 1)
    has_marks = np.isin(processes, process_of_thread[marked])
    loose = (has_marks & (share < 0.5))[inverse] & ~on_marked
    if not bool(loose.any()):
        return of_call
    mark_process = process_of_thread[code]
    mine = np.flatnonzero(np.isin(mark_process, processes))
    order = mine[np.lexsort((start[mine], mark_process[mine]))]
    low = min(int(start.min()), int(calls.begin.min()))
    stride = max(int(start.max()), int(calls.begin.max())) - low + 1
    mark_key = np.searchsorted(processes, mark_process[order]) * stride + (start[order] - low)
    last = np.searchsorted(mark_key, (inverse * stride + (calls.begin - low))[loose], side="right") - 1
    known = (last >= 0) & (mark_process[order][np.maximum(last, 0)] == process_of_call[loose])
    result = of_call.copy()
    result[loose] = np.where(known, order[np.maximum(last, 0)], OUTSIDE)
    return result


def _evenness(tl: Timeline, member: Codes, steps: pl.DataFrame) -> float:
    """Share of kernels, from the first step on, in steps with half to twice the kernels of a step of their kind.

    A marker that stands on some steps only makes steps of many times the usual size, and its share is small.
    """
    if steps.is_empty():
        return 0.0
    counts, total = _kernels_of_steps(tl, member, steps.height)
    if total == 0:
        return 0.0
    frame = steps.select("place", kind=pl.col("phase").fill_null("")).with_columns(kernel_count=pl.Series(counts))
    usual = frame.with_columns(
        usual=pl.col("kernel_count").median().over("place", "kind"),
        alike=pl.len().over("place", "kind"),
        all=pl.col("kernel_count").median().over("place"),
    ).with_columns(usual=pl.when(pl.col("alike") > 2).then("usual").otherwise("all"))
    # The capture may cut the first and the last step of a rank: those may be small.
    at_edge = (pl.int_range(pl.len()).over("place") == 0) | (
        pl.int_range(pl.len()).over("place") == pl.len().over("place").cast(pl.Int64) - 1
    )
    fits = usual.with_columns(
        fits=(pl.col("kernel_count") <= 2 * pl.col("usual"))
        & ((pl.col("kernel_count") >= 0.5 * pl.col("usual")) | at_edge)
    )
    return float(fits.filter("fits")["kernel_count"].sum()) / total


def _kernels_of_steps(tl: Timeline, member: Codes, count: int) -> tuple[Ints, int]:
    """(kernels of each step, kernels of all ranks, each from its first step on)."""
    counts = np.zeros(count, np.int64)
    total = 0
    begun = -1
    for part in tl.stretches():
        kernel, step = (tl.kind[part] == KERNEL) | (tl.kind[part] == GRAPH), member[part]
        begins = run_starts(step)
        held, sums = step[begins], np.add.reduceat(kernel, begins, dtype=np.int64)
        np.add.at(counts, held[held >= 0], sums[held >= 0])
        place = tl.place_of(part)
        if begun != place:
            inside = np.flatnonzero(held >= 0)
            if len(inside) == 0:
                continue
            begun = place
            sums = sums[inside[0] :]
        total += int(sums.sum())
    return counts, total
