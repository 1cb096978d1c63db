"""Checks that need no clock: do the durations tell the same story as the arrivals?"""

from __future__ import annotations

import numpy as np

from tracelens.analyses.alignment_clock import ClockSet
from tracelens.analyses.alignment_notices import rank_list
from tracelens.analyses.skew_context import Context, Matched
from tracelens.analyses.straggler import Waiting
from tracelens.frames import Notice

_TRUSTED_NS = 1_000.0


def communicator_notices(known: Context, matched: Matched, waits: Waiting, clock: ClockSet) -> list[Notice]:
    """What is odd about one communicator's waits."""
    notices: list[Notice] = []
    who = f"ranks {rank_list(matched.ranks)}"
    missing = known.missing_members(matched)
    if missing:
        notices.append(
            Notice(
                "members-missing",
                "warning",
                f"the kernels of {who} name {len(matched.ranks) + missing} members, {missing} of which not in the answer: a wait "
                "for one of those shows as transfer",
                "Give the captures of all ranks, or leave out --ranks.",
                missing,
            )
        )
    if waits.count == 0:
        return notices
    apart = np.abs((waits.shorter_ns - waits.wait_ns) / waits.count)
    limit = max(clock.resolution_ns, 1.0) * 2 if clock.method == "ends" else _TRUSTED_NS
    if float(apart.max()) > limit:
        rank = matched.ranks[int(apart.argmax())]
        notices.append(
            Notice(
                "durations-disagree",
                "warning",
                f"mean waits of {who} by durations alone differ from those by arrivals by up to {float(apart.max()) / 1e3:.1f} us "
                f"(rank {rank})" + (": the recorded clocks are off by about that" if clock.method == "trust" else ""),
                "--clock ends aligns the clocks on the ends of collectives." if clock.method == "trust" else "",
            )
        )
    return notices
