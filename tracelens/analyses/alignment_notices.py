"""What limits an alignment, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracelens.analyses.alignment_operations import Operations
from tracelens.analyses.blocks import blocks
from tracelens.analyses.clock import Clock
from tracelens.analyses.clock_joint import JointFit, Readings
from tracelens.analyses.matching_communicators import Grouping, RankClock
from tracelens.analyses.matching_groups import Left
from tracelens.analyses.matching_tracks import INSTANCE_MINIMUM, WINDOW_BOOT_NS
from tracelens.frames import Notice
from tracelens.units import plural


def rank_list(ranks: Sequence[int]) -> str:
    """`0-3, 7` for [0, 1, 2, 3, 7]."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    return ", ".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)


def fallback_notice(
    ranks: Sequence[RankClock],
    owners: Sequence[int],
    readings: Sequence[Readings],
    fit: JointFit | None,
    wanted: str,
) -> Notice:
    """Why a set keeps its recorded clocks (auto), or has none (ends)."""
    names = rank_list([ranks[o].rank for o in owners])
    complete = sum(r.count for r in readings)
    carried = 0 if fit is None else int(min(fit.counts[m] for r in readings for m in r.members))
    seen = f"ranks {names} share {plural(complete, 'synchronising collective')}, {carried:,} of them usable"
    if wanted == "ends":
        return Notice(
            "clock-not-aligned",
            "warning",
            f"{seen}: fewer than the {INSTANCE_MINIMUM} that an offset between GPU clocks needs; no waits are told for them",
            "--clock trust judges by the recorded clocks.",
            carried,
        )
    return Notice(
        "clock-trusted",
        "warning",
        f"{seen}: fewer than the {INSTANCE_MINIMUM} that an offset between GPU clocks needs, so the recorded clocks are kept; "
        "their error (5 to 25 us between GPUs of one host, milliseconds between hosts) is not covered by any figure",
        "Capture more steps.",
        carried,
    )


def doubt_notice(ranks: Sequence[int], fit: JointFit) -> Notice:
    """The ends of a set's collectives deviate as no scatter does."""
    return Notice(
        "clock-doubtful",
        "warning",
        f"the ends of the collectives of ranks {rank_list(ranks)} mostly agree within {(fit.typical_ns or 0.0) / 1e3:.1f} us, but "
        f"one in twenty is off by over {(fit.residual_ns or 0.0) / 1e3:.1f} us: some may be paired wrongly, as when a clock was "
        "stepped by the distance of two collectives",
        "Look at another stretch of the capture (--time).",
    )


def general_notices(
    ranks: Sequence[RankClock],
    operations: Operations,
    left: Sequence[Left],
    grouping: Grouping,
    clocks: Sequence[Clock],
    wanted: str,
    complete_ranks: bool,
) -> tuple[Notice, ...]:
    """What is to be said about matching and clocks beside the fallbacks."""
    notices: list[Notice] = []
    if wanted == "trust" and grouping.communicators:
        notices.append(
            Notice(
                "clock-trusted",
                "warning",
                "the recorded clocks are used as they are: their error (5 to 25 us between GPUs of one host, milliseconds "
                "between hosts) is not covered by any figure",
                "--clock auto aligns the clocks on the ends of collectives.",
            )
        )
    if len(ranks) > 1 and not left and not grouping.communicators:
        notices.append(_nothing_to_align(ranks, operations))
    placed = {m for c in grouping.communicators for m in c.members}
    for reason, code, text, hint in _LEFT_ALONE:
        some = [one for one in left if one.reason == reason]
        if not some or len(ranks) < 2 or (reason == "different" and all(one.owner in placed for one in some)):
            continue
        families = sorted({" ".join(one.family[1:]) for one in some})
        count = sum(len(one.rows) for one in some)
        names = rank_list(sorted({ranks[one.owner].rank for one in some}))
        notices.append(Notice(code, "warning", f"{', '.join(families[:3])} on rank {names}: {text}", hint, count))
    if not complete_ranks:
        notices.append(
            Notice(
                "ranks-left-out",
                "info",
                f"only ranks {rank_list([r.rank for r in ranks])} are analysed; waits are against the last of these, so a "
                "late rank outside them shows as transfer",
                "Leave out --ranks to judge all of them.",
            )
        )
    jumps = sum(len(clock.offset) - 1 for clock in clocks)
    if jumps:
        notices.append(
            Notice("clock-step", "info", "a GPU clock was stepped inside the capture; the steps are undone", "", jumps)
        )
    return tuple(notices)


_LEFT_ALONE = (
    (
        "ambiguous",
        "matching-ambiguous",
        "matching ambiguous - more than one offset between the clocks explains the ends of these collectives alike, so "
        "they get no waits",
        "Capture a stretch that is less regular (a prefill, several batch sizes), or export with NCCL payloads.",
    ),
    (
        "different",
        "collectives-unmatched",
        "no other rank's collectives end together with these, so they get no waits",
        f"Is the capture of another member missing, or are clocks of one machine over {WINDOW_BOOT_NS / 1e6:g} ms apart?",
    ),
    (
        "short",
        "collectives-too-few",
        f"fewer than {INSTANCE_MINIMUM} common collectives, and the recorded clocks do not show them together, so they get "
        "no waits",
        "Capture more steps.",
    ),
)


def hides_collectives(notices: Sequence[Notice]) -> bool:
    """Whether CUDA graphs were traced as a whole, so that collectives inside them left no rows."""
    return any(notice.code in ("graph-level", "graph-invisible") for notice in notices)


def blame_graph_tracing(notice: Notice) -> Notice:
    """`no-alignment` of a capture that hides what ran inside its graphs: the flag is what is missing."""
    if notice.code != "no-alignment":
        return notice
    return replace(
        notice,
        message="CUDA graphs were traced as a whole, so the collectives inside replays are invisible; the clocks of the GPUs "
        "cannot be aligned, and waiting cannot be measured",
        hint="Record again with: nsys profile --cuda-graph-trace=node",
    )


def _nothing_to_align(ranks: Sequence[RankClock], operations: Operations) -> Notice:
    """No synchronising collective anywhere: what that leaves unsaid."""
    families = {int(f) for part in blocks(0, len(operations)) for f in np.unique(operations.family[part])}
    used = sorted({operations.families[f][0] for f in families})
    if used:
        seen = f"the only collectives here are {', '.join(used)}, which do not hold ranks together"
    else:
        seen = "no collective kernels were found"
    return Notice(
        "no-alignment",
        "warning",
        f"{seen}, so the clocks of the {len(ranks)} GPUs cannot be aligned (they may be 5 to 25 us apart even inside one "
        "file), and waiting cannot be measured",
        "Waits need all-reduce, all-gather, reduce-scatter or all-to-all kernels on every rank.",
        len(operations) or None,
    )
