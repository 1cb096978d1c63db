"""How large the report of 8 ranks x 10,000 steps is, and how long it takes from the tables to the file.

    python benchmarks/report_page.py [CAPTURE]

Without a capture one is simulated (2.6 M events, about a minute). Printed beside the page: the floor, which is polars
writing the same tables as JSON, and what plotly's script alone would weigh in every page.
"""

from __future__ import annotations

import base64
import gzip
import io
import sys
import tempfile
import time
from pathlib import Path

import plotly

from tracelens.api import load
from tracelens.views.html import write_report

LIMIT_BYTES = 3_000_000
LIMIT_S = 2.0


def capture(folder: Path) -> Path:
    """A simulated decode of 8 ranks and 10,000 steps."""
    from tracelens.simulate import CaptureSpec, Slow, simulate, write

    spec = CaptureSpec(
        tp=8, steps=1000, layers=2, repeat=10, prefill_every=250, faults=(Slow(ranks=(5,), factor=1.08),)
    )
    return write(simulate(spec), folder, truth=False)[0]


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(sys.argv[1]) if len(sys.argv) > 1 else capture(Path(folder))
        with load(source, use_cache=False) as trace:
            begin = time.perf_counter()
            result = trace.report()
            analyses_s = time.perf_counter() - begin
        page = Path(folder) / "report.html"
        page_s = min(_timed(lambda: write_report(result, page, version="benchmark", force=True)) for _ in range(3))
        floor_s = min(
            _timed(lambda: [frame.write_json(io.StringIO()) for frame in result.tables.values()]) for _ in range(3)
        )
        size = page.stat().st_size
    script = (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").read_bytes()
    packed = len(base64.b64encode(gzip.compress(script, 9)))
    print(f"steps                    {result.provenance['step_count']:>12,}")
    print(f"analyses                 {analyses_s:>12.2f} s")
    print(
        f"tables to file           {page_s:>12.3f} s   limit {LIMIT_S} s, {page_s / floor_s:.1f} x polars' JSON of them"
    )
    print(f"page                     {size:>12,} bytes   limit {LIMIT_BYTES:,}")
    print(f"plotly's script, packed  {packed:>12,} bytes   {packed / size:.1f} x this page")


def _timed(run: object) -> float:
    begin = time.perf_counter()
    run()  # type: ignore[operator]
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
