"""How well `gaps` recovers why simulated devices idled, whatever their clocks: `python benchmarks/gap_truth.py [--seeds N]`.

Device clocks are -12, -5, 0, 5 and 12 us ahead of the host's, or each by its own amount up to 12 us. One line per capture: how many clocks and seeds were answered rightly, and the worst error of each cause. A cause is right
within 1 % of its true total, or within 0.1 % of all gap time where it is tiny. What moves between host_late and
launch_latency is forgiven where the answer itself calls it undecided, and counted apart: `(n undecided)`.

The second table varies what a capture cannot tell, the quickest launch and the quickest return: how far the clock is then
from the truth, and what that does to both causes.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracelens.analyses.gaps import CAUSES, gaps
from tracelens.simulate import SCENARIOS, CaptureSpec, ClockJump, Stall, scenario, simulate, write
from tracelens.trace import Options, open_trace

OFFSETS_US = (-12, -5, 0, 5, 12)
EITHER = ("host_late", "launch_latency")
SMALL: dict[str, Any] = {"tp": 4, "layers": 4, "steps": 40}
STALLED = {"launch": "eager", "faults": (Stall((0,), 176_000, 8),)}


@dataclass(frozen=True)
class Kind:
    """A kind of capture beside the scenarios.

    Attributes:
        changes: of the spec.
        one_file: all ranks in one export.
        without: API calls whose names hold this are deleted; "*" deletes all.
    """

    changes: dict[str, Any] = field(default_factory=dict)
    one_file: bool = True
    without: str = ""


KINDS: dict[str, Kind] = {
    "eager": Kind({"launch": "eager"}),
    "eager, stalls": Kind(STALLED),
    "eager, host ahead": Kind({"launch": "eager", "host_ahead": True}),
    "eager, slow host": Kind({"launch": "eager", "host_cost_ns": 4_000, "api_ns": 4_000}),
    "graphs, one per layer": Kind({"launch": "piecewise"}),
    "graphs, host ahead": Kind({"host_ahead": True}),
    "one GPU": Kind({"tp": 1}),
    "one process for all GPUs": Kind(STALLED | {"one_process": True}),
    "a file per rank": Kind(STALLED | {"gpu_drift_max_ppm": 10.0, "session_spread_ns": 300_000_000}, one_file=False),
    "clock corrected by 14 us": Kind(STALLED | {"gpu_jumps": tuple(ClockJump(rank, 0.6, 14_000) for rank in range(4))}),
    "dependencies": Kind({"launch": "eager", "dependency_gap_ns": 8_000}),
    "second stream": Kind({"launch": "eager", "side_stream": "compute"}),
    "dependent launch": Kind({"pdl_ns": 1_500}),
    "no waits recorded": Kind(STALLED, without="Synchronize"),
    "no waits recorded, graphs": Kind({}, without="Synchronize"),
    "no calls recorded": Kind(STALLED, without="*"),
}


@dataclass(frozen=True)
class Answer:
    """Gap time by cause, ns, as told and in truth, and how the clock was taken.

    Attributes:
        told, truth: cause -> ns.
        undecided_ns: as the answer says.
        ahead_ns: the first rank's clock, as told less the truth.
        half_ns: half of the distance of its bounds.
    """

    told: dict[str, int]
    truth: dict[str, int]
    undecided_ns: int
    ahead_ns: int
    half_ns: int

    def wrong(self) -> list[str]:
        """Causes that are not right, `undecided` for one that the answer does not claim to know."""
        spare = 0.001 * sum(self.truth.values())
        found = []
        for cause in CAUSES:
            error = abs(self.told[cause] - self.truth[cause])
            if error > max(0.01 * self.truth[cause], spare):
                found.append("undecided" if cause in EITHER and error <= self.undecided_ns else cause)
        return found


def ask(spec: CaptureSpec, kind: Kind) -> Answer:
    """The answer for one capture beside its truth."""
    capture = simulate(spec)
    truth = {cause: int(capture.truth.gap_total_ns.get(cause, np.zeros(1)).sum()) for cause in CAUSES}
    if kind.without == "*":
        known = ("idle", "step_boundary", "in_graph")
        truth = {cause: truth[cause] if cause in known else 0 for cause in CAUSES} | {
            "unknown": sum(total for cause, total in truth.items() if cause not in known)
        }
    with tempfile.TemporaryDirectory() as folder:
        for path in write(capture, folder, one_file=kind.one_file, truth=False):
            if kind.without:
                forget(path, kind.without)
        with open_trace([folder], Options(use_cache=False)) as trace:
            answer = gaps(trace)
    told = dict(answer.causes.group_by("cause").agg(pl.col("gap_ns").sum()).rows())
    clock = answer.provenance["host_clock"][0]
    true_ns = capture.clocks(one_file=kind.one_file)[0].offset_ns
    return Answer(
        {cause: told.get(cause, 0) for cause in CAUSES},
        truth,
        answer.provenance["undecided_ns"],
        clock["ahead_ns"] - true_ns,
        (clock["most_ns"] - clock["least_ns"]) // 2,
    )


def forget(path: Path, words: str) -> None:
    """Delete API calls by name from an export."""
    with sqlite3.connect(path) as db:
        named = "" if words == "*" else "WHERE nameId IN (SELECT id FROM StringIds WHERE instr(value, ?))"
        db.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME {named}", [] if words == "*" else [words])
    db.close()


def captures() -> Iterator[tuple[str, CaptureSpec, Kind]]:
    """(name, spec, kind) of everything that is asked with every clock."""
    for name in SCENARIOS:
        for label, spec in scenario(name).items():
            yield name if label == "run" else f"{name}, {label}", spec, Kind(one_file=name != "apart")
    for name, kind in KINDS.items():
        yield name, CaptureSpec(**SMALL | kind.changes), kind


def with_every_clock(asked: argparse.Namespace) -> int:
    """Print the first table; how many captures have a wrong answer."""
    failed = 0
    worst: dict[str, tuple[float, str]] = {}
    for name, spec, kind in captures():
        if asked.only not in name:
            continue
        began = time.perf_counter()
        right, wrong, errors = 0, Counter[str](), dict.fromkeys(CAUSES, 0)
        total = 0
        clocks: list[Any] = [*(1_000 * one for one in OFFSETS_US), None]
        for seed in range(asked.seeds):
            for offset in clocks:
                # None: each GPU by itself, up to 12 us.
                changes = {"gpu_offset_ns": offset, "gpu_offset_max_ns": 12_000, "seed": spec.seed + seed}
                answer = ask(replace(spec, **changes, steps=min(spec.steps, asked.steps)), kind)
                total += 1
                right += not answer.wrong()
                wrong.update(set(answer.wrong()))
                for cause in CAUSES:
                    error = answer.told[cause] - answer.truth[cause]
                    errors[cause] = max(errors[cause], error, key=abs)
                    if abs(error) > 0.001 * sum(answer.truth.values()):
                        worst[cause] = max(
                            worst.get(cause, (0.0, "")), (abs(error) / max(answer.truth[cause], 1), name)
                        )
        undecided = wrong.pop("undecided", 0)
        failed += bool(wrong)
        shown = " ".join(f"{cause} {error / 1e3:+.1f}" for cause, error in errors.items() if error) or "exact"
        print(
            f"{name:28s} {right:3d} of {total:3d} right"
            + (f" ({undecided} undecided)" if undecided else "")
            + (f"  WRONG: {dict(wrong)}" if wrong else "")
            + f"  largest errors, us: {shown}  {time.perf_counter() - began:.0f} s",
            flush=True,
        )
    for cause in CAUSES:
        share, name = worst.get(cause, (0.0, ""))
        print(f"worst error of {cause}: " + (f"{share:.1%} in {name}" if name else "within 0.1 % of all gap time"))
    return failed


def with_other_latencies(asked: argparse.Namespace) -> None:
    """Print the second table."""
    print(
        "\nquickest launch and return: by so much is the clock wrong (half its bounds), and the two causes, % of truth"
    )
    returns = (1_000, 3_000, 5_000, 8_000)
    print(
        f"{'':24s} {'call':>5s} {'launch':>6s}  " + "".join(f"{f'return {one / 1e3:.0f} us':>32s}" for one in returns)
    )
    for name in ("eager", "eager, stalls", "eager, slow host", "graphs, one per layer", "no waits recorded"):
        if asked.only not in name:
            continue
        kind = KINDS[name]
        for call, launch in ((1_000, 1_800), (2_000, 3_000), (2_500, 4_500), (3_500, 5_000), (4_000, 7_000)):
            cells = []
            for back in returns:
                changes = kind.changes | {"api_ns": call, "launch_latency_ns": launch, "sync_ns": back}
                answer = ask(CaptureSpec(**SMALL | changes | {"gpu_offset_ns": 7_000}), kind)
                shares = [
                    f"{(answer.told[cause] - answer.truth[cause]) / answer.truth[cause]:+.1%}"
                    if answer.truth[cause] > 0.001 * sum(answer.truth.values())
                    else "-"
                    for cause in EITHER
                ]
                open_share = answer.undecided_ns / max(sum(answer.truth[cause] for cause in EITHER), 1)
                cells.append(
                    f"{answer.ahead_ns / 1e3:+5.1f} ({answer.half_ns / 1e3:.1f}) {' '.join(shares)} open {open_share:.0%}"
                )
            print(
                f"{name:24s} {call / 1e3:5.1f} {launch / 1e3:6.1f}  " + "".join(f"{one:>32s}" for one in cells),
                flush=True,
            )


def main() -> int:
    """Ask everything; the exit code is 1 if a cause is wrong that the answer claims to know."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2, help="seeds per capture and clock")
    parser.add_argument("--steps", type=int, default=40, help="at most so many steps per capture")
    parser.add_argument("--only", default="", help="captures that contain this")
    asked = parser.parse_args()
    failed = with_every_clock(asked)
    with_other_latencies(asked)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
