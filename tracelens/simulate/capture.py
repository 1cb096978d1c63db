"""A simulated capture in memory, and its way into files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from tracelens.errors import OutputError, UsageError
from tracelens.simulate.clocks import RankClock, rank_clocks
from tracelens.simulate.events import Events, flatten
from tracelens.simulate.measure import measure
from tracelens.simulate.rows import write_export
from tracelens.simulate.spec import CaptureSpec
from tracelens.simulate.timeline import Timeline, run
from tracelens.simulate.truth import Truth
from tracelens.simulate.writer import refuse_existing


@dataclass(eq=False)
class Capture:
    """A simulated capture.

    Attributes:
        spec: what was asked for.
        timeline: programs and timed steps, true nanoseconds.
        events: the same laid side by side, with what the capture lost.
        period_ns: distance of repeated blocks.
    """

    spec: CaptureSpec
    timeline: Timeline
    events: Events
    period_ns: int

    @cached_property
    def truth(self) -> Truth:
        """What an analysis should find (computed on first use)."""
        return measure(self.spec, self.timeline, self.events, self.period_ns)

    @property
    def event_rows(self) -> int:
        """GPU rows over all ranks, before graph-level capture hides any."""
        return int(self.events.kept.sum()) * self.spec.repeat

    def clocks(self, *, one_file: bool = True) -> tuple[RankClock, ...]:
        """Every rank's clock; sessions differ only between separate files."""
        first = int(self.events.start.min())
        last = int(self.events.end.max()) + (self.spec.repeat - 1) * self.period_ns
        return rank_clocks(self.spec, first, last, one_file=one_file)


def simulate(spec: CaptureSpec) -> Capture:
    """Time the whole capture, in memory.

    Args:
        spec: what to simulate; one spec always gives one capture.

    Raises:
        UsageError: the spec contradicts itself.
    """
    if spec.repeat > 1 and (
        spec.lost_runs
        or spec.lost_calls
        or any(any(spec.per_rank(f"lost_{part}")) for part in ("head", "tail", "head_steps", "tail_steps", "launches"))
    ):
        raise UsageError("a repeated block cannot lose rows", "simulate it whole, with repeat=1")
    timeline = run(spec)
    last = max(int(step.range_end.max()) for step in timeline.steps[-2:])
    last = max(last, int(timeline.steps[-1].end.max()) + spec.sync_ns)
    return Capture(spec, timeline, flatten(spec, timeline), last + spec.bubble_ns - spec.start_ns)


def write(
    capture: Capture | CaptureSpec,
    directory: str | Path,
    *,
    one_file: bool = True,
    nsys_version: str = "2026.2.1",
    name: str | None = None,
    shuffle: int | None = None,
    shift_ns: int = 0,
    normalize: bool = False,
    truth: bool = True,
) -> list[Path]:
    """Write a capture as nsys would export it, and its truth beside it.

    Args:
        capture: a capture, or the spec of one.
        directory: made if absent.
        one_file: all ranks in `tp8.sqlite`; else `rank0.sqlite`, `rank1.sqlite`, ...
        nsys_version: one of 2022.2.1, 2023.3.1, 2024.6.2, 2025.3.2, 2026.2.1, old_unknown.
        name: file name without suffix in place of `tp8`; of the rank files, in place of `rank` (the number follows).
        shuffle: a seed; rows of every table are then in a random order.
        shift_ns: as `nsys export --ts-shift`.
        normalize: as `nsys export --ts-normalize=true`.
        truth: also write `truth.json`.

    Returns:
        The exports, in order of rank.

    Raises:
        OutputError: a file exists; nothing has been written then.
    """
    if isinstance(capture, CaptureSpec):
        capture = simulate(capture)
    spec = capture.spec
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise OutputError(f"{directory} is not a folder")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{directory} cannot be made: {error.strerror}", "choose another folder") from error
    clocks = capture.clocks(one_file=one_file)
    if one_file:
        parts = [(directory / f"{name or f'tp{spec.ranks}'}.sqlite", list(range(spec.ranks)))]
    else:
        parts = [(directory / f"{name or 'rank'}{rank}.sqlite", [rank]) for rank in range(spec.ranks)]
    truth_path = directory / "truth.json"
    refuse_existing([path for path, _ in parts] + ([truth_path] if truth else []))
    done: list[Path] = []
    try:
        for path, ranks in parts:
            write_export(
                capture.spec,
                capture.timeline,
                capture.events,
                capture.period_ns,
                [clocks[rank] for rank in ranks],
                path,
                nsys_version=nsys_version,
                shuffle=None if shuffle is None else shuffle + ranks[0],
                shift_ns=shift_ns,
                normalize=normalize,
            )
            done.append(path)
        if truth:
            body = capture.truth.to_json()
            body["files"] = [path.name for path in done]
            body["clocks"] = [vars(clock) for clock in clocks]
            text = json.dumps(body, default=_number) + "\n"
            done.append(truth_path)
            truth_path.write_text(text)
    except BaseException:
        # some ranks of a job are not a capture of it
        for path in done:
            path.unlink(missing_ok=True)
        raise
    return [path for path, _ in parts]


def _number(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} in the truth")
