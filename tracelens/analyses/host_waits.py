"""Waits of the host for its devices, and the clocks on which the events that they waited for have ended."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tracelens.analyses.aligned_clock import AlignedClock
from tracelens.analyses.blocks import blocks, each, run_starts
from tracelens.analyses.host_offset import LIMIT_NS
from tracelens.analyses.timeline import Codes, Ints, Timeline

_BLOCKING = re.compile(r"cudaMemcpy(2D|3D)?(_|$)|cuMemcpyDtoH_")
"""Copies that return once the data is there, where they lead to the host."""

_TO_HOST = 2
_NEVER = np.iinfo(np.int64).min
_COPIES_BACK = 3


@dataclass(frozen=True)
class DeviceClocks:
    """Clocks of devices that are known to each other, export by export.

    Attributes:
        group: int64 [ranks], number of the clock that the rank's device shows.
        leader: int64 [ranks], place of the lowest rank that shows it: times are given as its device tells them.
        tl: the timeline.
        clock: the clock of `align`.
    """

    group: Ints
    leader: Ints
    tl: Timeline
    clock: AlignedClock

    @classmethod
    def of(cls, tl: Timeline, clock: AlignedClock) -> DeviceClocks:
        """The clocks of a trace: one for the ranks of an export whose collectives end together, else one each."""
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
        return cls(group, np.array(leaders, np.int64)[group], tl, clock)

    def time(self, events: Codes | Ints, axis: Ints) -> Ints:
        """Times of events on the axis as the clock of their device tells them."""
        parts = blocks(0, len(events))
        return np.concatenate([np.empty(0, np.int64), *(self._time(events[part], axis[part]) for part in parts)])

    def _time(self, events: Codes | Ints, axis: Ints) -> Ints:
        place = self.tl.rank_place[events]
        if bool((place == place[0]).all()):
            return self._of_rank(int(place[0]), axis)
        result = np.empty(len(axis), np.int64)
        for one in np.unique(place).tolist():
            at = np.flatnonzero(place == one)
            result[at] = self._of_rank(one, axis[at])
        return result

    def _of_rank(self, place: int, axis: Ints) -> Ints:
        own: Ints = axis - self.tl.shift[place]
        rank, leader = self.tl.ranks[[place, self.leader[place]]]
        return own if rank == leader else own + self.clock.aligned(rank, own) - self.clock.aligned(leader, own)


@dataclass(frozen=True)
class Waits:
    """Calls that returned because an event had ended.

    Attributes:
        group: int64, number of the clock of the event's device.
        ended: int64 ns, the event's end on that clock.
        lag: int64 ns, end of the wait on the host's clock - that.
    """

    group: Ints
    ended: Ints
    lag: Ints


def waits_of(tl: Timeline, devices: DeviceClocks) -> Waits:
    """Every wait of a thread for what it launched last or, where that ended too late for it, for a copy to the host
    that it launched before: an engine that runs ahead waits for the step before."""
    back = _copies_to_host(tl)
    waiting, until = _waiting_calls(tl, back)
    if len(waiting) == 0:
        none = np.empty(0, np.int64)
        return Waits(none, none, none)
    event, wait = _last_events(tl, waiting)
    late = devices.time(event, tl.end[event]) > until[wait] + LIMIT_NS
    others, own = _copies_before(tl, devices, back, waiting[wait[late]], until[wait[late]])
    event = np.concatenate([event[~late], others])
    ended = devices.time(event, tl.end[event])
    lag = until[np.concatenate([wait[~late], np.searchsorted(waiting, own)])] - ended
    near = np.abs(lag) <= LIMIT_NS
    return Waits(devices.group[tl.rank_place[event[near]]], ended[near], lag[near])


def _waiting_calls(tl: Timeline, back: Ints) -> tuple[Ints, Ints]:
    """(places of the calls that somebody waited for, ascending; int64 ns, when the wait ended).

    Args:
        tl: the timeline.
        back: launched copies to the host, which a thread may wait for in the call that launches them.
    """
    calls = tl.launches
    blocking = np.array([bool(_BLOCKING.match(name)) for name in calls.api_names] + [False])
    call = tl.launch[back]
    call = call[blocking[calls.api[call]]]
    place, ended = np.concatenate([calls.waited, call]), np.concatenate([calls.wait_end, calls.end[call]])
    # Of several ends of one call the last stands.
    waiting, last = np.unique(place[::-1], return_index=True)
    return waiting, ended[::-1][last]


def _last_events(tl: Timeline, waiting: Ints) -> tuple[Ints, Ints]:
    """(the events of each of these calls that end last, ascending; the call's place in `waiting`)."""
    # A replay has ended with its last node. The last flag stands for events without a call.
    wanted = tl.trace.room.empty(len(tl.launches.begin) + 1, bool)
    wanted.fill(False)
    wanted[waiting] = True
    last = np.full(len(waiting), _NEVER)

    def held(part: slice) -> tuple[Ints, Ints, Ints] | None:
        """The wanted events, where those of another call begin among them, and the places of their calls."""
        launch = tl.launch[part]
        at = np.flatnonzero(wanted[launch])
        if len(at) == 0:
            return None
        begins = run_starts(launch[at])
        return part.start + at, begins, np.searchsorted(waiting, launch[at[begins]])

    def ends(part: slice) -> tuple[slice, Ints, Ints] | None:
        if (found := held(part)) is None:
            return None
        event, begins, wait = found
        return part, wait, np.maximum.reduceat(tl.end[event], begins)

    parts = []
    for found in tl.each(ends):
        if found is not None:
            part, wait, ended = found
            np.maximum.at(last, wait, ended)
            parts.append(part)

    def chosen(part: slice) -> tuple[Ints, Ints]:
        found = held(part)
        assert found is not None  # it was before
        event, begins, wait = found
        of_event = np.repeat(wait, np.diff(begins, append=len(event)))
        is_last = tl.end[event] == last[of_event]
        return event[is_last], of_event[is_last]

    none = np.empty(0, np.int64)
    events, waits = zip((none, none), *each(chosen, parts, tl.trace.threads), strict=True)
    return np.concatenate(events), np.concatenate(waits)


def _copies_to_host(tl: Timeline) -> Ints:
    """Launched copies to the host, by thread and begin of the call."""
    places, kinds = tl.copies
    places = places[(kinds == _TO_HOST) & (tl.launch[places] >= 0)]
    call = tl.launch[places]
    order = np.lexsort((tl.launches.begin[call], tl.launches.thread[call]))
    result: Ints = places[order]
    return result


def _copies_before(tl: Timeline, devices: DeviceClocks, back: Ints, call: Ints, until: Ints) -> tuple[Ints, Ints]:
    """(the last copy that had ended of the few that its thread launched before, the call), for calls that have one."""
    calls = tl.launches
    launched = tl.launch[back]
    ended = devices.time(back, tl.end[back])
    found: list[Ints] = [back[:0]]
    own: list[Ints] = [call[:0]]
    for thread in np.unique(calls.thread[call]).tolist():
        low, high = np.searchsorted(calls.thread[launched], [thread, thread + 1])
        mine = np.flatnonzero(calls.thread[call] == thread)
        place = low - 1 + np.searchsorted(calls.begin[launched[low:high]], calls.begin[call[mine]])
        for _ in range(_COPIES_BACK):
            mine, place = mine[place >= low], place[place >= low]
            over = ended[place] <= until[mine] + LIMIT_NS
            found.append(back[place[over]])
            own.append(call[mine[over]])
            mine, place = mine[~over], place[~over] - 1
    return np.concatenate(found), np.concatenate(own)
