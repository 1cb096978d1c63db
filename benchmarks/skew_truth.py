"""How well `skew` recovers what a simulated job did, over many seeds: `python benchmarks/skew_truth.py [--seeds N]`.

Prints one line per question: how many seeds were answered rightly, and the largest errors. With `--seeds N` every
question runs at most N seeds (the full numbers take some minutes).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl

from tracelens.analyses.skew import SkewResult, skew
from tracelens.simulate import Capture, CaptureSpec, Late, Leave, Rotating, Slow, Stall, simulate, write
from tracelens.trace import Options, open_trace

SMALL: dict[str, Any] = {"layers": 8, "steps": 40}
ONE_FILE: dict[str, Any] = {"gpu_offset_max_ns": 14_000}
FILES: dict[str, Any] = {
    "gpu_offset_max_ns": 14_000,
    "gpu_drift_max_ppm": 30.0,
    "utc_error_max_ns": 12_000_000,
    "session_spread_ns": 300_000_000,
}


def judged(spec: CaptureSpec, *, one_file: bool = True, **options: Any) -> tuple[SkewResult, pl.DataFrame, Capture]:
    """The answer, the matched operations behind it, and the capture with its truth."""
    from tracelens.analyses.alignment import align

    capture = simulate(spec)
    with tempfile.TemporaryDirectory() as folder:
        write(capture, folder, one_file=one_file, truth=False)
        with open_trace([folder], Options(**options)) as trace:
            return skew(trace), align(trace).members, capture


def wait_errors(members: pl.DataFrame, capture: Capture) -> tuple[float, float, float]:
    """(largest error of a rank's mean wait, 95th percentile of single errors, matched share) against the truth."""
    truth = capture.truth.collectives
    means, singles = [], []
    for rank in range(capture.spec.tp * capture.spec.dp):
        mine = members.filter(pl.col("rank") == rank).sort("event_id")
        kept = np.flatnonzero(truth.kept[:, rank])
        order = kept[np.argsort(truth.arrival_ns[kept, rank], kind="stable")]
        accepted = mine["accepted"].to_numpy()
        if not accepted.any():
            return np.inf, np.inf, 0.0
        error = mine["wait_ns"].to_numpy()[accepted].astype(float) - truth.wait_ns[order, rank][accepted]
        means.append(abs(float(error.mean())))
        singles.append(np.abs(error))
    could = int((truth.complete & np.array(truth.synchronising)[:, None]).sum())
    return max(means), float(np.quantile(np.concatenate(singles), 0.95)), members["accepted"].sum() / could


def verdicts(result: SkewResult) -> list[dict[str, Any]]:
    """The rows of `verdict`."""
    return result.tables["verdict"].to_dicts() if "verdict" in result.tables else []


def nobody(result: SkewResult) -> bool:
    """Whether nobody is named."""
    return all(row["straggler_rank"] is None and row["late_ranks"] is None for row in verdicts(result))


Question = Callable[[int], tuple[bool, tuple[float, ...]]]


def truth_of(ranks: int, one_file: bool) -> Question:
    """Waits against the truth; with a file per rank, heads and tails are cut by hundreds of rows."""

    def ask(seed: int) -> tuple[bool, tuple[float, ...]]:
        rng = np.random.default_rng(seed)
        cut: dict[str, Any] = {}
        if not one_file:
            cut = {name: tuple(int(x) for x in rng.integers(0, 600, ranks)) for name in ("lost_head", "lost_tail")}
        spec = CaptureSpec(seed=seed, tp=ranks, **SMALL, **(ONE_FILE if one_file else FILES), **cut)
        result, members, capture = judged(spec, one_file=one_file)
        mean, single, share = wait_errors(members, capture)
        return mean < 50 and single < 100 and share > 0.97 and nobody(result), (mean, single, share)

    return ask


def nobody_late(faults: Callable[[int], tuple[Any, ...]]) -> Question:
    """No straggler and no group is named."""

    def ask(seed: int) -> tuple[bool, tuple[float, ...]]:
        return nobody(judged(CaptureSpec(seed=seed, tp=8, **SMALL, **ONE_FILE, faults=faults(seed)))[0]), ()

    return ask


def group(late_ns: int) -> Question:
    """Ranks 4-7, late together, are named as a group and nobody else."""

    def ask(seed: int) -> tuple[bool, tuple[float, ...]]:
        spec = CaptureSpec(seed=seed, tp=8, **SMALL, **ONE_FILE, faults=(Late((4, 5, 6, 7), late_ns),))
        (row,) = verdicts(judged(spec)[0])
        return row["late_ranks"] == "4-7" and row["straggler_rank"] is None, ()

    return ask


def straggler(cause: str, fault: Callable[[int], Any], words: str = "", **changes: Any) -> Question:
    """The right rank for the right reason."""

    def ask(seed: int) -> tuple[bool, tuple[float, ...]]:
        who = seed % 8
        spec = CaptureSpec(seed=seed, tp=8, **{**SMALL, **ONE_FILE, **changes}, faults=(fault(who),))
        (row,) = verdicts(judged(spec)[0])
        right = row["straggler_rank"] == who and row["cause"] == cause and words in (row["cause_detail"] or "")
        return right, (row["last_frac"] or 0.0,)

    return ask


def delay(late_ns: int) -> Question:
    """A delay on one rank comes back on every other rank within 1 us; the transfer stays as it is."""

    def ask(seed: int) -> tuple[bool, tuple[float, ...]]:
        spec = {"seed": seed, "tp": 4, **SMALL, **ONE_FILE}
        found = []
        for faults in ((), (Late((2,), late_ns),) if late_ns else ()):
            members = judged(CaptureSpec(**spec, faults=faults))[1].filter("accepted")
            found.append(
                members.group_by("rank").agg(pl.col("wait_ns").mean(), pl.col("transfer_ns").median()).sort("rank")
            )
        without, delayed = found
        waits = (delayed["wait_ns"] - without["wait_ns"]).to_numpy()
        error = float(np.abs(np.delete(waits, 2) - late_ns).max())
        moved = abs(float((delayed["transfer_ns"] - without["transfer_ns"]).abs().max()))  # type: ignore[arg-type]
        return error < 1_000 and moved < 200, (error, moved)

    return ask


def leaves(late_ns: int, alone: bool) -> Question:
    """A rank that leaves all-reduces late: assumed away alone, found as asymmetry beside an all-gather."""

    def ask(seed: int) -> tuple[bool, tuple[float, ...]]:
        operation = "all_reduce"
        spec = CaptureSpec(seed=seed, tp=4, **SMALL, **ONE_FILE, faults=(Leave((2,), late_ns, operation),))
        result, _, _ = judged(spec)
        (row,) = verdicts(result)
        asymmetry = result.tables["clock"]["asymmetry_ns"][0]
        if alone:
            return "ends together on all ranks" in row["sentence"], ()
        right = abs(asymmetry - abs(late_ns)) < 150 and nobody(result) and "no claim" in row["sentence"]
        return right, (float(asymmetry),)

    return ask


QUESTIONS: dict[str, tuple[int, Question]] = {
    "TP2 in one file": (20, truth_of(2, True)),
    "TP4 in one file": (20, truth_of(4, True)),
    "TP8 in one file": (20, truth_of(8, True)),
    "TP2, a file per rank": (20, truth_of(2, False)),
    "TP4, a file per rank": (20, truth_of(4, False)),
    "TP8, a file per rank": (20, truth_of(8, False)),
    "nobody late": (100, nobody_late(lambda _: ())),
    "one random late rank a step, 20 us": (100, nobody_late(lambda _: (Rotating(20_000),))),
    "one random late rank a step, 1.5 us": (100, nobody_late(lambda _: (Rotating(1_500),))),
    "ranks 4-7 late by 50 us": (30, group(50_000)),
    "ranks 4-7 late by 1.5 us": (30, group(1_500)),
    "slow device, 8 % on every kernel": (16, straggler("device", lambda who: Slow((who,), 1.08), "uniform")),
    "slow in one bucket": (16, straggler("device", lambda who: Slow((who,), 1.4, bucket="gemm"), "gemm")),
    "host stalls, eager": (
        16,
        straggler("host", lambda who: Stall((who,), 176_000, 48), "launches", launch="eager", steps=25, layers=16),
    ),
    "late by 3 us": (16, straggler("device", lambda who: Late((who,), 3_000))),
    "delay of 0 us": (4, delay(0)),
    "delay of 50 us": (4, delay(50_000)),
    "delay of 250 us": (4, delay(250_000)),
    "delay of 1000 us": (4, delay(1_000_000)),
    "leaves all-reduces 1.5 us late": (8, leaves(1_500, False)),
    "leaves all-reduces 1.5 us early": (8, leaves(-1_500, False)),
}


def answers(name: str, seeds: int) -> Iterator[tuple[bool, tuple[float, ...]]]:
    """The answers to one question."""
    count, ask = QUESTIONS[name]
    for seed in range(min(count, seeds)):
        yield ask(seed)


def main() -> int:
    """Ask everything; the exit code is 1 if a question has more than one wrong seed in a hundred."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000, help="at most so many per question")
    parser.add_argument("--only", default="", help="questions that contain this")
    asked = parser.parse_args()
    failed = 0
    for name in QUESTIONS:
        if asked.only not in name:
            continue
        began = time.perf_counter()
        right, figures = zip(*answers(name, asked.seeds), strict=True)
        worst = [f"{min(c):.4g}..{max(c):.4g}" for c in zip(*figures, strict=True)]
        wrong = [seed for seed, ok in enumerate(right) if not ok]
        failed += len(wrong) > len(right) // 100
        print(
            f"{name:38s} {sum(right):3d} of {len(right):3d} right  {' '.join(worst):40s} {time.perf_counter() - began:6.1f} s"
            + (f"  wrong: {wrong[:10]}" if wrong else ""),
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
