"""Captures with known truth, in nsys's own format. Shares no code with the analyses.

Exports drawn by hand, for tests: `write_events` with `Kernel`, `Copy`, `Memset`, `GraphTrace`, `Launch`, `Range`,
`Thread`, `Process`, `Gpu`, `Diagnostic`, `Env` and `Row` (see `export_file`).
"""

from tracelens.simulate.export_file import (
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
    write_events,
)

__all__ = [
    "Copy",
    "Diagnostic",
    "Env",
    "Gpu",
    "GraphTrace",
    "Kernel",
    "Launch",
    "Memset",
    "Process",
    "Range",
    "Row",
    "Thread",
    "write_events",
]
