"""Where steps begin: ranges of the engine, graph replays, an anchor kernel, or the period of the kernel sequence.

Every marker answers in the same form, a `Marking`: which step each event belongs to, numbered over all ranks, and how
much of the evidence the marker explains. Numbers here are local to a rank; `step_numbering` makes them one per set.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.blocks import blocks, each, run_starts
from tracelens.analyses.step_grammar import PATTERN, Batch, read_batch
from tracelens.analyses.timeline import GRAPH, KERNEL, Codes, Ints, Launches, Timeline
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
    member: Codes = tl.trace.room.empty(len(tl), np.int32)
    member.fill(OUTSIDE)
    return Marking(marker, member, pl.DataFrame(schema=STEP_SCHEMA), 0.0, detail)


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
    # A process's marks in the order of time, whatever thread they stand on.
    marks = marks.sort("process", "start_ns", "code", maintain_order=True)
    start = marks["start_ns"].to_numpy().astype(np.int64)
    of_call = _marks_of_calls(tl, start, _followed(calls, marks["process"].to_numpy(), marks["code"].to_numpy()))
    member, of_place, mark = _used_marks(tl, marks["process"].to_numpy(), of_call)
    del of_call
    member = tl.carry_along_streams(member, UNKNOWN, OUTSIDE)
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
    return member, steps, batches[steps["text"][0]].grammar if len(mark) else "nobody"


def _followed(calls: Launches, process: npt.NDArray[np.integer], code: npt.NDArray[np.integer]) -> list[Ints]:
    """Places of the marks that the calls of each thread follow: those on it, or those of its process.

    Some servers mark on the scheduler's thread and launch on another of the same process. Where less than half of a
    process's calls come from threads with marks, its other threads follow the marks of the process.

    Args:
        calls: the calls.
        process: of each mark, ascending.
        code: of each mark's thread: its place in `calls.threads`, or beyond.
    """
    of_thread = calls.threads["process"].to_numpy()
    count = np.zeros(len(of_thread), np.int64)
    for part in blocks(0, len(calls.thread)):
        count += np.bincount(calls.thread[part], minlength=len(count))
    by_code = np.argsort(code, kind="stable")
    bounds = np.searchsorted(code[by_code], np.arange(len(count) + 1))
    marked = bounds[1:] > bounds[:-1]
    result = []
    for thread, own in enumerate(of_thread.tolist()):
        mine = by_code[bounds[thread] : bounds[thread + 1]]
        together = of_thread == own
        if not marked[thread] and count[together & marked].sum() < 0.5 * count[together].sum():
            mine = np.arange(*np.searchsorted(process, [own, own + 1]))
        result.append(mine)
    return result


def _marks_of_calls(tl: Timeline, start: Ints, followed: list[Ints]) -> Codes:
    """Last mark before each call among those that its thread follows, -1 for none; one more stands for no call: -2.

    Args:
        tl: the timeline.
        start: ns, host time of each mark.
        followed: places of the marks that each thread follows, in the order of time.
    """
    calls = tl.launches
    times = [start[marks] for marks in followed]
    result: Codes = tl.trace.room.empty(len(calls.begin) + 1, np.int32)
    result[-1] = UNKNOWN

    def fill(part: slice) -> None:
        begin, thread = calls.begin[part], calls.thread[part]
        if bool((thread == thread[0]).all()):
            result[part] = last(int(thread[0]), begin)
            return
        for one in np.flatnonzero(np.bincount(thread)).tolist():
            at = np.flatnonzero(thread == one)
            result[part.start + at] = last(one, begin[at])

    def last(thread: int, begin: Ints) -> Ints:
        # The calls of a thread ascend: look for the few marks among them.
        low, high = np.searchsorted(times[thread], [begin[0], begin[-1]], side="right")
        calls_before = np.searchsorted(begin, times[thread][low:high])
        marks = np.append(OUTSIDE, followed[thread])[low : high + 1]
        return np.repeat(marks, np.diff(calls_before, prepend=0, append=len(begin)))

    deque(each(fill, blocks(0, len(calls.begin)), tl.trace.threads), 0)
    return result


def _used_marks(tl: Timeline, process: npt.NDArray[np.integer], of_call: Codes) -> tuple[Codes, Ints, Ints]:
    """The marks under which ranks launched anything: each such mark of each rank is a step.

    A rank's marks are those of its process, in the order of time, whatever thread they stand on.

    Args:
        tl: the timeline.
        process: of each mark, ascending.
        of_call: last mark of each call, -1 for none; its last element is that of events without a call, -2.

    Returns:
        per event its step, -1 or -2; per step, ascending by rank and time, its rank's place and its mark.
    """
    owners = tl.rank_table["process"].to_numpy()
    low, high = np.searchsorted(process, owners), np.searchsorted(process, owners, side="right")
    room = np.cumsum(np.append(0, high - low))
    member: Codes = tl.trace.room.empty(len(tl), np.int32)

    def fill(part: slice) -> Codes:
        place = tl.place_of(part)
        launch = tl.launch[part]
        # All nodes of a replay share their call: look at each run of events with one call once.
        runs = run_starts(launch)
        mark = of_call[launch[runs]]
        key = np.where(mark >= 0, mark + np.int32(room[place] - low[place]), mark)
        member[part] = np.repeat(key, np.diff(runs, append=len(launch)))
        return key[run_starts(key)]

    used = np.zeros(int(room[-1]), bool)
    for keys in tl.each(fill):
        used[keys[keys >= 0]] = True
    # Two more, which -1 and -2 lead to.
    step = np.concatenate([np.cumsum(used) - 1, [UNKNOWN, OUTSIDE]]).astype(np.int32)
    for part in tl.stretches():
        member[part] = step[member[part]]
    held = np.flatnonzero(used)
    place = np.searchsorted(room, held, side="right") - 1
    return member, place, held - room[place] + low[place]


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
