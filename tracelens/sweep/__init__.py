"""Runs the engines' own benchmarks once per TP size, one at a time, and keeps what each wrote.

`plan` turns a question into commands, `folder` keeps command, log, result and state of each run, `run` carries one
out. No command goes through a shell, and nothing of the environment is written anywhere.
"""

from __future__ import annotations

from tracelens.sweep.folder import Outcome, read_outcome
from tracelens.sweep.plan import Harness, Run, plan, shown
from tracelens.sweep.run import execute, sweep

__all__ = ["Harness", "Outcome", "Run", "execute", "plan", "read_outcome", "shown", "sweep"]
