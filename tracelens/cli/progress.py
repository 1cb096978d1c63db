"""How far a long load is, on one line of a terminal; silent elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PATIENCE_S = 0.5
_EVERY_S = 0.1


@contextmanager
def on_terminal() -> Iterator[Callable[[str, int, int], None] | None]:
    """A progress callback (file, rows read, rows in all) while the block runs; None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    begun = time.monotonic()
    drawn = [begun]
    rows: dict[str, tuple[int, int]] = {}

    def show(file: str, done: int, total: int) -> None:
        rows[file] = done, total
        now = time.monotonic()
        if now - begun < _PATIENCE_S or now - drawn[0] < _EVERY_S:
            return
        drawn[0] = now
        if sum(read < whole for read, whole in rows.values()) > 1:  # by several processes
            file = f"{len(rows)} exports"
            done, total = (sum(one) for one in zip(*rows.values(), strict=True))
        share = f" of {total / 1e6:.1f} M ({done / total:.0%})" if total else ""
        name = file if len(file) <= 40 else "..." + file[-37:]
        sys.stderr.write(f"\r\x1b[Kreading {ascii(name)[1:-1]}: {done / 1e6:.1f} M{share} rows")
        sys.stderr.flush()

    try:
        yield show
    finally:
        if drawn[0] != begun:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
