"""How often a comparison finds what is not there, and what it makes of planted changes: `python benchmarks/compare_truth.py [PAIRS]`.

Equal runs of other seeds are compared; a finding is a row of any table that is sure and above the floor.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import tracelens.api as tracelens
from tracelens.analyses.compare import FLOOR_FRAC, CompareResult
from tracelens.simulate import CaptureSpec, Costlier, write

BASE = CaptureSpec(tp=4, steps=120, layers=8, kernel_noise=0.01)
ALIKE = replace(BASE, step_noise=0.02, step_rho=0.6)


def compared(before: CaptureSpec, after: CaptureSpec) -> CompareResult:
    with tempfile.TemporaryDirectory() as folder:
        loaded = []
        for name, spec in (("before", before), ("after", after)):
            place = Path(folder) / name
            place.mkdir()
            write(spec, place, truth=False)
            loaded.append(tracelens.load(place))
        result = tracelens.compare(*loaded)
        for trace in loaded:
            trace.close()
        return result


def finds(result: CompareResult) -> tuple[bool, bool]:
    """(whether the step is called different, whether any row of any table is)."""
    step_ns = result.verdict["before_step_ns"][0]
    rows = []
    for table in ("buckets", "collective_parts", "kernels", "collectives", "gaps"):
        frame = result.tables[table]
        rows.append(
            bool((frame["significant"].fill_null(False) & (frame["delta_ns"].abs() > FLOOR_FRAC * step_ns)).any())
        )
    step = bool(result.verdict["significant"][0]) and abs(result.verdict["delta_ns"][0]) > FLOOR_FRAC * step_ns
    return step, any(rows) or step


def main(pairs: int) -> None:
    for name, spec in (("equal runs, 1 % noise on every kernel", BASE), ("equal runs, steps alike (rho 0.6)", ALIKE)):
        found = [
            finds(compared(replace(spec, seed=2 * pair), replace(spec, seed=2 * pair + 1))) for pair in range(pairs)
        ]
        print(
            f"{name}: the step called different in {sum(step for step, _ in found)}, any finding in {sum(each for _, each in found)} of {pairs} pairs",
            flush=True,
        )
    first = right = 0
    for pair in range(max(pairs // 10, 1)):
        spec = replace(BASE, layers=32, seed=2 * pair)
        result = compared(spec, replace(spec, seed=spec.seed + 1, faults=(Costlier("all_gather", 249_000),)))
        row = result.kernels.row(0, named=True)
        first += "AllGather" in row["name"]
        right += abs(row["delta_ns"] - 249_000) <= 5_000
    count = max(pairs // 10, 1)
    print(
        f"+249 us in one all-gather among 64 all-reduces, 1 % noise: ranked first in {first}, within 5 us in {right} of {count} pairs"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
