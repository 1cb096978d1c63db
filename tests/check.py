"""Every check of the project, in the order in which they fail fastest: `python tests/check.py [pytest arguments]`.

Formatting and lint (ruff), types (mypy, strict), import contracts (import-linter), then the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

CHECKS = (
    ("ruff format", [str(BIN / "ruff"), "format", "--check", "--quiet", "."]),
    ("ruff check", [str(BIN / "ruff"), "check", "--quiet", "."]),
    ("mypy", [sys.executable, "-m", "mypy"]),
    ("import contracts", [str(BIN / "lint-imports"), "--no-cache"]),
    ("tests", [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal"]),
)


def main(arguments: list[str]) -> int:
    """Runs the checks; stops at the first that fails and returns its exit code."""
    for name, command in CHECKS:
        print(f"== {name}", flush=True)
        done = subprocess.run(
            command + (arguments if name == "tests" else []), cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        if done.returncode:
            print(f"== {name} failed", flush=True)
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
