"""A sweep's table on a terminal."""

from __future__ import annotations

from tracelens.frames import Result
from tracelens.views.terminal import Screen


def show(result: Result, screen: Screen) -> None:
    """Draw a sweep result: the runs, then what the custom all-reduce is worth."""
    screen.sentences(result.sentences)
    runs = result.tables["runs"]
    several = runs["arm"].n_unique() > 1
    failed = runs.filter(runs["status"] != "done").height > 0
    columns = ["tp", "batch", "graph_batch", *(["arm"] if several else []), "step_us", "tokens_per_s", "speedup"]
    columns += ["efficiency", *(["plateau"] if runs["plateau"].null_count() < runs.height else [])]
    columns += ["statistic", *(["status", "reason"] if failed else [])]
    screen.table(
        runs,
        result.schemas["runs"],
        title="Runs",
        columns=columns,
        labels={"tp": "TP", "graph_batch": "graph", "step_us": "step", "tokens_per_s": "output tokens/s"},
        group="batch",
        optional=["statistic"],
    )
    arms = result.tables.get("arms")
    if arms is not None:
        screen.line()
        screen.table(arms, result.schemas["arms"], title="What the custom all-reduce is worth")
