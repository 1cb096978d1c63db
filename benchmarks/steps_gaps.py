"""How long `steps` and `gaps` take beside loading the same capture, and how much memory the process reaches.

    python benchmarks/steps_gaps.py --kernels 10000000 --launch graph

Simulates a TP8 decode, writes it once into a folder, and prints, from one process: the time of loading, the time of
`steps` and of `gaps` after it (each on a freshly loaded trace), their ratios to loading, and the peak resident memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

from tracelens.analyses.gaps import gaps
from tracelens.analyses.steps import steps
from tracelens.simulate import CaptureSpec, simulate, write
from tracelens.trace import Options, open_trace


def capture(folder: Path, kernels: int, launch: str, nvtx: str) -> list[str]:
    """Writes the capture, in 8 ranks of 32 layers, unless it is there."""
    if not list(folder.glob("*.sqlite")):
        spec = CaptureSpec(tp=8, layers=32, steps=20, launch=launch, nvtx=nvtx, gpu_drift_ppm=0.0)
        block = simulate(spec)
        rows = int(block.truth.kernel_rows.sum())
        whole = CaptureSpec(
            tp=8, layers=32, steps=20, launch=launch, nvtx=nvtx, gpu_drift_ppm=0.0, repeat=max(1, kernels // rows)
        )
        write(whole, folder, truth=False)
    return [str(path) for path in sorted(folder.glob("*.sqlite"))]


def measure(what: str, paths: list[str], threads: int, memory: str | None, queue: multiprocessing.Queue) -> None:
    """Loads, answers, and puts (events, seconds to load, seconds to answer, peak MB after loading, peak MB)."""
    start = time.perf_counter()
    trace = open_trace(paths, Options(threads=threads, memory=memory, use_cache=False))
    loaded = time.perf_counter()
    after_load = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answer = steps(trace) if what == "steps" else gaps(trace)
    done = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    (count,) = trace.db.execute("SELECT count(*) FROM event").fetchall()[0]
    queue.put((count, loaded - start, done - loaded, after_load, peak, answer.sentences))


def main() -> int:
    """Prints one line per question."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--launch", default="graph", choices=["graph", "piecewise", "eager"])
    parser.add_argument("--nvtx", default="engine", choices=["engine", "none"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", help="DuckDB's limit, e.g. 1GB")
    parser.add_argument("--folder", type=Path, help="keep the capture here")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.folder or Path(scratch)
        paths = capture(folder, chosen.kernels, chosen.launch, chosen.nvtx)
        for what in ("steps", "gaps"):
            queue: multiprocessing.Queue = multiprocessing.Queue()
            worker = multiprocessing.Process(target=measure, args=(what, paths, chosen.threads, chosen.memory, queue))
            worker.start()
            count, load_s, answer_s, after_load, peak, sentences = queue.get()
            worker.join()
            print(
                f"{what}: {count:,} events, load {load_s:.2f} s, {what} {answer_s:.2f} s = {answer_s / load_s:.2f} x load, "
                f"memory {after_load:,.0f} MB after loading, {peak:,.0f} MB at most"
            )
            print(f"    {sentences[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
