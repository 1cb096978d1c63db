"""What nsys itself warned of while it captured."""

from __future__ import annotations

from tracelens.ingest import nsys
from tracelens.ingest.sources import Source
from tracelens.ingest.values import whole
from tracelens.units import format_ns, plural

#: A row of raw_notice: code, severity, message, hint, count.
Told = tuple[str, str, str, str, int | None]

_MISSING_EVENTS = ("incomplete", "not all", "dropped", "lost", "missing", "overflow", "discard", "truncat")


def read_diagnostics(source: Source) -> list[Told]:
    """What nsys left about itself: warnings and errors, and the time that it took."""
    return _messages(source) + _activity(source)


def _activity(source: Source) -> list[Told]:
    """How long the profiler itself was at work; its stretches may overlap, so they are summed, not taken off anything."""
    if not {"start", "end"} <= set(source.columns("PROFILER_OVERHEAD")):
        return []
    times = [(whole(start), whole(end)) for start, end in source.select("PROFILER_OVERHEAD", ("start", "end"))]
    lengths = [end - start for start, end in times if start is not None and end is not None and end > start]
    if not lengths:
        return []
    return [
        (
            "profiler-activity",
            "info",
            f"{source.shown}: the profiler itself was at work {plural(len(lengths), 'time')}, {format_ns(sum(lengths))} in all: "
            "that can show as gaps, and slows down no kernel",
            "",
            len(lengths),
        )
    ]


def _messages(source: Source) -> list[Told]:
    """Counts of warnings and errors that nsys left; their texts hold paths and users, so they are told in our words."""
    if not {"severity", "text"} <= set(source.columns("DIAGNOSTIC_EVENT")):
        return []
    severe = f"severity IN ({nsys.DIAGNOSTIC_WARNING}, {nsys.DIAGNOSTIC_ERROR})"
    counts = {
        level: source.count("DIAGNOSTIC_EVENT", f"severity = {level}")
        for level in (nsys.DIAGNOSTIC_WARNING, nsys.DIAGNOSTIC_ERROR)
    }
    total = sum(counts.values())
    if not total:
        return []
    lost = " OR ".join(f"lower(text) LIKE '%{word}%'" for word in _MISSING_EVENTS)
    incomplete = source.count("DIAGNOSTIC_EVENT", f"{severe} AND ({lost})")
    nvtx = source.count("DIAGNOSTIC_EVENT", f"{severe} AND lower(text) LIKE '%nvtx%' AND ({lost})")
    words = ((counts[nsys.DIAGNOSTIC_ERROR], "error"), (counts[nsys.DIAGNOSTIC_WARNING], "warning"))
    told = " and ".join(f"{count} {word}{'s' if count > 1 else ''}" for count, word in words if count)
    found: list[Told] = [
        (
            "diagnostics",
            "warning",
            f"{source.shown}: nsys left {told} in this capture",
            "Read them in Nsight Systems, under Diagnostics.",
            total,
        )
    ]
    if incomplete:
        what = "NVTX ranges" if nvtx == incomplete else "events"
        found.append(
            (
                "events-missing",
                "warning",
                f"{source.shown}: nsys says that not all {what} were recorded, so totals may be too small",
                "Record a shorter window, or stop the capture before the processes end.",
                incomplete,
            )
        )
    return found
