"""Captures with known truth, in nsys's own format. Shares no code with the analyses.

Whole captures::

    capture = simulate(CaptureSpec(tp=8, launch="eager", faults=(Slow(ranks=(5,), factor=1.08),)))
    write(capture, "out")                      # out/tp8.sqlite, out/truth.json
    write(capture, "out2", one_file=False)     # out2/rank0.sqlite ... rank7.sqlite, truth.json

- `CaptureSpec`: what is simulated; every field has a default and a line in its docstring. `Stretch` spells a
  schedule out; `Late`, `Rotating`, `Slow`, `Stall`, `Leave`, `Costlier` are faults; `ClockJump`, `LostRun`,
  `LostCall`, `ExtraKernel` are what their names say.
- `simulate(spec) -> Capture`: `.timeline` (true times of every step), `.events` (the same, flat: ranks x events),
  `.truth` (a `Truth`, computed on first use), `.clocks(one_file=...)` (true time to each GPU's exported time:
  `clock.to_local(true_ns)` for GPU rows, `clock.to_session(true_ns)` for host rows).
- `write(capture_or_spec, directory, *, one_file=True, nsys_version="2026.2.1", name=None, shuffle=None, shift_ns=0,
  normalize=False, truth=True) -> list[Path]`: the exports in order of rank, plus `truth.json`.
- `Truth`: `.steps` (phase, rung, complete, edge_ns, step_ns, busy_ns, gap_ns by cause, collective_ns, exposed_ns,
  wait_ns ... as steps x ranks arrays), `.collectives` (arrival_ns, end_ns, wait_ns, transfer_ns, kept, complete ...
  as calls x ranks), `.gap_total_ns`, `.typical_latency_ns`, `.lambda_ns`, `.mean_wait_ns()`, `.caused_wait_ns()`,
  `.decode_step_ns(rung)`.

- `scenario(name) -> {label: CaptureSpec}`: captures that play out a reported problem (`SCENARIOS` lists them with what
  an analysis should find): balanced, slow-gpu, slow-kernel, late-host, late-group, rotating, apart, phases, requests,
  speculative, switch, graph-level, replicas; regression and host-cost (before, after); scaling (tp1 ... tp8).

Exports drawn by hand, for tests: `write_events` with `Kernel`, `Copy`, `Memset`, `GraphTrace`, `Launch`, `Range`,
`Thread`, `Process`, `Gpu`, `Diagnostic`, `Env` and `Row` (see `export_file`).
"""

from tracelens.simulate.capture import Capture, simulate, write
from tracelens.simulate.clocks import RankClock
from tracelens.simulate.drawn import (
    Copy,
    Diagnostic,
    Env,
    Gpu,
    GraphTrace,
    Kernel,
    Launch,
    Memset,
    Process,
    Range,
    Row,
    Thread,
)
from tracelens.simulate.export_file import write_events
from tracelens.simulate.families import FAMILIES
from tracelens.simulate.faults import (
    ClockJump,
    Costlier,
    ExtraKernel,
    Late,
    Leave,
    LostCall,
    LostRun,
    Rotating,
    Slow,
    Stall,
)
from tracelens.simulate.scenarios import SCENARIOS, Scenario, scenario
from tracelens.simulate.schema import VERSIONS
from tracelens.simulate.spec import CaptureSpec, Stretch
from tracelens.simulate.truth import CollectiveTruth, StepTruth, Truth

__all__ = [
    "FAMILIES",
    "SCENARIOS",
    "VERSIONS",
    "Capture",
    "CaptureSpec",
    "ClockJump",
    "CollectiveTruth",
    "Copy",
    "Costlier",
    "Diagnostic",
    "Env",
    "ExtraKernel",
    "Gpu",
    "GraphTrace",
    "Kernel",
    "Late",
    "Launch",
    "Leave",
    "LostCall",
    "LostRun",
    "Memset",
    "Process",
    "Range",
    "RankClock",
    "Rotating",
    "Row",
    "Scenario",
    "Slow",
    "Stall",
    "StepTruth",
    "Stretch",
    "Thread",
    "Truth",
    "scenario",
    "simulate",
    "write",
    "write_events",
]
