"""Stored loads on a terminal."""

from __future__ import annotations

from tracelens.frames import Result
from tracelens.views.terminal import Screen


def show(result: Result, screen: Screen) -> None:
    """Draw what is stored, or what was removed."""
    screen.sentences(result.sentences)
    for name, frame in result.tables.items():
        if frame.height:
            screen.table(frame, result.schemas[name], optional=["in_use", "rank_count"])
