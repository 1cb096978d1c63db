"""Launch calls on the clocks of the devices, and how long a launch takes.

Host and devices are on different clocks, 5 to 25 us apart. The devices of one export are first put on one clock: by
the ends of their collectives, else by equal 1st percentiles of the delay between call and start where the device was
waiting. Then the calls move earlier by the smallest shift that leaves at most one launch in a thousand before its
call: nothing runs before it is launched, and one bad stamp must not decide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.aligned_clock import AlignedClock
from tracelens.analyses.occupancy import Occupancy
from tracelens.analyses.timeline import Flags, Ints, Timeline

SHIFT_LIMIT_NS = 100_000
EARLY_SHARE = 0.001
TYPICAL_NS = 10_000
"""Launch latency of a rank that shows too few launches into an idle device."""

TYPICAL_LEAST = 20


@dataclass(frozen=True)
class LaunchClock:
    """Launch calls as the device of their events sees them.

    Attributes:
        first: int64 [calls], the first event of each call, or the number of events where it has none.
        begin: int64 ns [calls], the call's begin on the timeline's axis.
        end: int64 ns [calls], its end there.
        usable: bool [calls], false where the event still starts before its call.
        shift_ns: export -> shift of its host clock.
        early_count: launches that start before their call after the shift.
    """

    first: Ints
    begin: Ints
    end: Ints
    usable: Flags
    shift_ns: dict[int, int]
    early_count: int


def launch_clock(tl: Timeline, occ: Occupancy, clock: AlignedClock) -> LaunchClock:
    """Put the launch calls of a trace on the clocks of their devices."""
    calls = tl.launches
    count = len(calls.begin)
    first = np.full(count, len(tl), np.int64)
    launched = np.flatnonzero(tl.launch >= 0)
    # The last write stands: going backwards leaves the first event.
    first[tl.launch[launched[::-1]]] = launched[::-1]
    used = np.flatnonzero(first < len(tl))
    event = first[used]
    place = tl.rank_place[event].astype(np.int64)
    own = tl.own_time(place, tl.start[event])
    correction = _device_corrections(tl, occ, clock, used, event, place, own)
    export = tl.rank_table["export"].to_numpy().astype(np.int64)[place]
    delay = own + correction - calls.begin[used]
    shift = {int(one): _host_shift(delay[export == one]) for one in np.unique(export)}
    moved = np.zeros(len(used), np.int64)
    for one, amount in shift.items():
        moved[export == one] = amount
    to_axis = tl.shift[place] - correction - moved
    begin = np.zeros(count, np.int64)
    end = np.zeros(count, np.int64)
    begin[used] = calls.begin[used] + to_axis
    end[used] = calls.end[used] + to_axis
    usable = np.zeros(count, bool)
    usable[used] = delay + moved >= 0
    return LaunchClock(first, begin, end, usable, shift, int(np.count_nonzero(~usable[used])))


def _host_shift(delay: Ints) -> int:
    """The smallest shift that leaves at most `EARLY_SHARE` of the delays negative, up to the limit."""
    if len(delay) == 0:
        return 0
    allowed = int(len(delay) * EARLY_SHARE)
    least = int(np.partition(delay, allowed)[allowed])
    return min(max(-least, 0), SHIFT_LIMIT_NS)


def _device_corrections(
    tl: Timeline, occ: Occupancy, clock: AlignedClock, used: Ints, event: Ints, place: Ints, own: Ints
) -> Ints:
    """What is added to own times so that all devices of an export show one clock: its lowest rank's."""
    correction = np.zeros(len(used), np.int64)
    group, leader = _clock_groups(tl, clock)
    # Inside a group the aligned clock tells; its reference is the group's lowest rank.
    ranks, leaders = tl.ranks[place], tl.ranks[leader[place]]
    follows = ranks != leaders
    if bool(follows.any()):
        at = np.flatnonzero(follows)
        correction[at] = clock.aligned(ranks[at], own[at]) - clock.aligned(leaders[at], own[at])
    if len(np.unique(group)) == len(np.unique(tl.rank_table["export"].to_numpy())):
        return correction
    # Between groups of one export: equal 1st percentiles of the delay where the device was waiting.
    waited = _found_idle(tl, occ, used, event, place)
    delays = pl.DataFrame(
        {"group": group[place[waited]], "delay": (own + correction - tl.launches.begin[used])[waited]}
    )
    low = {
        int(one): value
        for one, value, size in delays.group_by("group")
        .agg(pl.col("delay").quantile(0.01, "linear"), pl.len())
        .iter_rows()
        if size >= TYPICAL_LEAST
    }
    exports = tl.rank_table["export"].to_numpy()
    moves = np.zeros(int(group.max()) + 1, np.int64)
    for one in np.unique(exports).tolist():
        members = list(dict.fromkeys(group[exports == one].tolist()))
        if members[0] not in low:
            continue
        for other in members[1:]:
            if other in low:
                moves[other] = round(low[members[0]] - low[other])
    return correction + moves[group[place]]


def _clock_groups(tl: Timeline, clock: AlignedClock) -> tuple[Ints, Ints]:
    """(group, lowest rank's place) per rank: ranks of one export whose clocks are known to each other."""
    groups: dict[tuple[int, int, int], int] = {}
    leaders: list[int] = []
    group = np.zeros(len(tl.ranks), np.int64)
    for place, (rank, export) in enumerate(tl.rank_table.select("rank", "export").iter_rows()):
        if rank in clock.fitted:
            key = (export, 0, clock.rank_set[rank])
        elif rank in clock.chosen:
            key = (export, 1, 0)
        else:
            key = (export, 2, place)
        if key not in groups:
            groups[key] = len(leaders)
            leaders.append(place)
        group[place] = groups[key]
    return group, np.array(leaders, np.int64)[group]


def _found_idle(tl: Timeline, occ: Occupancy, used: Ints, event: Ints, place: Ints) -> Flags:
    """Whether each call's first event found the device waiting since before the call."""
    gap_of = np.full(len(tl), -1, np.int32)
    gap_of[occ.after] = np.arange(len(occ.after), dtype=np.int32)
    gap = gap_of[event]
    dry = np.where(gap >= 0, tl.end[occ.before[np.maximum(gap, 0)]] if len(occ) else 0, 0) - tl.shift[place]
    result: Flags = (gap >= 0) & (tl.launches.begin[used] >= dry)
    return result


def typical_latency(tl: Timeline, occ: Occupancy, launches: LaunchClock) -> tuple[npt.NDArray[np.int64], pl.DataFrame]:
    """Median delay from call to start over calls that began when the device had run dry, per rank.

    Returns:
        (int64 ns [ranks, 2]: other calls, graph launches; the same as a frame: rank, graph_launch, launch_count,
        typical_ns, with 10 us where fewer than 20 launches tell).
    """
    call = tl.launch[occ.after]
    # Only the first node of a replay tells how long its launch took.
    at = (
        np.flatnonzero((call >= 0) & (launches.first[np.maximum(call, 0)] == occ.after))
        if len(launches.first)
        else call[:0]
    )
    call = call[at]
    told = launches.usable[call] & (launches.begin[call] >= tl.end[occ.before[at]])
    at, call = at[told], call[told]
    frame = pl.DataFrame(
        {
            "place": tl.rank_place[occ.after[at]].astype(np.int64),
            "graph": tl.launches.graph[call].astype(np.int64),
            "delay": tl.start[occ.after[at]] - launches.begin[call],
        }
    )
    medians = frame.group_by("place", "graph").agg(pl.col("delay").median(), pl.len()).sort("place", "graph")
    table = np.full((len(tl.ranks), 2), TYPICAL_NS, np.int64)
    counts = np.zeros((len(tl.ranks), 2), np.int64)
    for place, graph, delay, size in medians.iter_rows():
        counts[place, graph] = size
        if size >= TYPICAL_LEAST:
            table[place, graph] = round(delay)
    shown = pl.DataFrame(
        {
            "rank": np.repeat(tl.ranks, 2),
            "graph_launch": [False, True] * len(tl.ranks),
            "launch_count": counts.reshape(-1),
            "typical_ns": table.reshape(-1),
        }
    )
    return table, shown
