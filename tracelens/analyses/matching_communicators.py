"""Which ranks share a communicator, found from the collectives themselves.

A rank's synchronising collectives are split by payload communicator where NCCL recorded one, else by (stream,
operation, implementation). Each part is matched with the parts of other ranks. Parts that match are one sequence,
ranks whose sequences match are one communicator, and ranks linked by communicators form a set with common time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracelens.analyses.clock import Clock, Floats, Ints, constant
from tracelens.analyses.matching import (
    CLIP_NS,
    INSTANCE_MINIMUM,
    MATCH_LIMIT_NS,
    WINDOW_BOOT_NS,
    WINDOW_ELSE_NS,
    WINDOW_EXPORT_NS,
    PairMatch,
    Track,
    match_pair,
    score_at,
)


@dataclass(frozen=True)
class RankClock:
    """What is recorded about the clock of one rank.

    Attributes:
        rank: the rank.
        clock: number of its GPU's clock; two processes on one GPU share it.
        export: number of its export.
        hostname: null when not recorded.
        utc_ns: UTC at the export's time 0; null when not recorded.
        system_ns: the host's system clock at the export's time 0; null when not recorded.
        epoch_ns: own time that the caller counts as 0.
    """

    rank: int
    clock: int
    export: int
    hostname: str | None = None
    utc_ns: int | None = None
    system_ns: int | None = None
    epoch_ns: int = 0

    def same_boot(self, other: RankClock) -> bool:
        """Both exports read one system clock: one host, and one moment of boot to the second."""
        if self.system_ns is None or other.system_ns is None or self.hostname != other.hostname:
            return False
        if self.utc_ns is None or other.utc_ns is None:
            return self.hostname is not None
        return abs((self.utc_ns - self.system_ns) - (other.utc_ns - other.system_ns)) < WINDOW_ELSE_NS

    def same_host(self, other: RankClock) -> bool:
        """Both ranks ran on one host, as far as the exports tell."""
        return self.export == other.export or (self.hostname is not None and self.hostname == other.hostname)

    def recorded_difference(self, other: RankClock) -> int | None:
        """Other's time minus own time of one moment, from session times, in ns; null when they are not recorded."""
        epochs = self.epoch_ns - other.epoch_ns
        if self.export == other.export:
            return epochs
        if self.same_boot(other) and self.system_ns is not None and other.system_ns is not None:
            return self.system_ns - other.system_ns + epochs
        if self.utc_ns is None or other.utc_ns is None:
            return None
        return self.utc_ns - other.utc_ns + epochs

    def window(self, other: RankClock) -> int | None:
        """How far the recorded difference can be wrong, in ns; null without session times."""
        if self.export == other.export:
            return WINDOW_EXPORT_NS
        if self.recorded_difference(other) is None:
            return None
        return WINDOW_BOOT_NS if self.same_boot(other) else WINDOW_ELSE_NS


@dataclass(frozen=True)
class Part:
    """One rank's collectives of one payload communicator, or of one stream, operation and implementation.

    Attributes:
        owner: index of the rank's `RankClock`.
        family: parts of different families are never matched: (payload, operation, implementation).
        track: ends and keys, in the order of the ends.
        rows: the caller's row number of each.
    """

    owner: int
    family: tuple[int | None, str, str]
    track: Track
    rows: Ints


@dataclass
class Communicator:
    """Ranks whose sequences match, and the parts that hold their collectives.

    Attributes:
        members: indices into the `RankClock`s, ascending.
        parts: indices into the parts.
        payload: NCCL's communicator id, where recorded.
    """

    members: tuple[int, ...]
    parts: list[int]
    payload: int | None


@dataclass
class Grouping:
    """The communicators of a job and the first clocks that the matching gave.

    Attributes:
        communicators: largest first, then by members.
        sets: for each rank the index of the lowest member of its connected set.
        clocks: for each rank its clock against that of the lowest member of its set, on its own time.
        recorded: whether the set of a rank hangs on recorded clocks alone.
        reasons: why a part was left alone: part index -> `ambiguous`, `different` or `short`.
    """

    communicators: list[Communicator]
    sets: list[int]
    clocks: list[Clock]
    recorded: list[bool]
    reasons: dict[int, str] = field(default_factory=dict)


_TELLING = ("short", "different", "ambiguous")  # which of several failures says most


class _Frames:
    """Which clocks are tied together, and how each stands against the root of its set."""

    def __init__(self, ranks: Sequence[RankClock]) -> None:
        first_of_clock: dict[int, int] = {}
        self.root = [first_of_clock.setdefault(rank.clock, index) for index, rank in enumerate(ranks)]
        self.clock: list[Clock] = [constant() for _ in ranks]
        self.recorded = [False] * len(ranks)

    def between(self, one: int, other: int) -> Clock | None:
        """Other's clock against one's, on other's time; null when they are not tied."""
        if self.root[one] != self.root[other]:
            return None
        return self.clock[other].over(self.clock[one].inverted())

    def tie(self, one: int, other: int, clock: Clock, *, recorded: bool = False) -> None:
        """Join two sets by the clock of `other` against `one`."""
        keep, lose = self.root[one], self.root[other]
        # Other's old root against one's root: root <- other <- one <- one's root.
        bridge = self.clock[other].inverted().over(clock.over(self.clock[one]))
        for index, root in enumerate(self.root):
            if root == lose:
                self.clock[index] = self.clock[index].over(bridge)
                self.root[index] = keep
        if recorded:
            for index, root in enumerate(self.root):
                if root == keep:
                    self.recorded[index] = True

    def rerooted(self) -> tuple[list[int], list[Clock]]:
        """Sets and clocks with the lowest member of each set as its reference."""
        lowest: dict[int, int] = {}
        for index, root in enumerate(self.root):
            lowest.setdefault(root, index)
        sets = [lowest[root] for root in self.root]
        clocks = [
            self.clock[index]
            if sets[index] == self.root[index]
            else self.clock[index].over(self.clock[sets[index]].inverted())
            for index in range(len(self.root))
        ]
        return sets, clocks


def group_parts(ranks: Sequence[RankClock], parts: Sequence[Part], *, trust: bool = False) -> Grouping:
    """Find the communicators among the parts of all ranks.

    Args:
        ranks: the ranks, in rank order.
        parts: their synchronising collectives.
        trust: tie clocks of one host as recorded where the search for an offset fails. Otherwise that is done only
            for parts of fewer than 30 instances, which no search can place.

    Returns:
        Communicators, sets and first clocks. A part that matches none is in no communicator.
    """
    frames = _Frames(ranks)
    families: dict[tuple[int | None, str, str], list[int]] = {}
    for index, part in enumerate(parts):
        families.setdefault(part.family, []).append(index)
    order = sorted(families, key=lambda f: (-sum(len(parts[i].track) for i in families[f]), f[1], f[2], f[0] or 0))
    groups: dict[int, list[int]] = {index: [index] for index in range(len(parts))}
    head = list(range(len(parts)))
    reasons: dict[int, str] = {}

    def attempt(tie: Callable[[int, int], PairMatch]) -> None:
        for family in order:
            _group_family(
                sorted(families[family], key=lambda i: (parts[i].owner, i)), parts, frames, groups, head, reasons, tie
            )

    def searched(one: int, other: int) -> PairMatch:
        a, b = ranks[parts[one].owner], ranks[parts[other].owner]
        match = match_pair(
            parts[one].track, parts[other].track, window_ns=a.window(b), around_ns=a.recorded_difference(b) or 0
        )
        if match.status == "matched" and match.clock is not None:
            frames.tie(parts[one].owner, parts[other].owner, match.clock)
        return match

    def trusted(one: int, other: int) -> PairMatch:
        a, b = ranks[parts[one].owner], ranks[parts[other].owner]
        difference = a.recorded_difference(b)
        searchable = min(len(parts[one].track), len(parts[other].track)) >= INSTANCE_MINIMUM
        if difference is None or not a.same_host(b) or (searchable and not trust):
            return PairMatch("short")
        match = _at_clock(parts[one].track, parts[other].track, constant(float(difference)))
        if match.status == "matched":
            frames.tie(parts[one].owner, parts[other].owner, constant(float(difference)), recorded=True)
        return match

    def tied_only(_one: int, _other: int) -> PairMatch:
        return PairMatch("short")

    attempt(searched)
    attempt(tied_only)
    attempt(trusted)
    sets, clocks = frames.rerooted()
    return Grouping(_communicators(parts, groups), sets, clocks, frames.recorded, reasons)


def _group_family(
    members: Sequence[int],
    parts: Sequence[Part],
    frames: _Frames,
    groups: dict[int, list[int]],
    head: list[int],
    reasons: dict[int, str],
    tie: Callable[[int, int], PairMatch],
) -> None:
    """Match the parts of one family, each with the groups before it, the most recent first."""
    seen: list[int] = []  # heads of groups with an earlier part, in the order of their last gain
    for index in members:
        owner = parts[index].owner
        joined = len(groups[head[index]]) > 1
        for group in reversed(list(seen)):
            if group not in groups or group == head[index]:
                continue
            others = [i for i in groups[group] if parts[i].owner != owner and parts[i].family == parts[index].family]
            if not others:
                continue
            if joined and not {parts[i].owner for i in groups[group]} & {parts[i].owner for i in groups[head[index]]}:
                continue
            match = _match_with(index, others, parts, frames, tie)
            if match.status == "matched":
                _merge(groups, head, group, index)
                seen = [g for g in seen if g in groups and g != group]
                reasons.pop(index, None)
                joined = True
            elif not joined and _TELLING.index(match.status) > _TELLING.index(reasons.get(index, "short")):
                reasons[index] = match.status
        current = head[index]
        seen = [g for g in seen if g != current] + [current]
        if len(groups[current]) > 1:
            for member in groups[current]:
                reasons.pop(member, None)


def _match_with(
    index: int,
    others: Sequence[int],
    parts: Sequence[Part],
    frames: _Frames,
    tie: Callable[[int, int], PairMatch],
) -> PairMatch:
    """Match a part with a group through its longest parts; a second is tried only where the first covers too little."""
    match = PairMatch("short")
    for other in sorted(others, key=lambda i: (-len(parts[i].track), i))[:3]:
        known = frames.between(parts[other].owner, parts[index].owner)
        if known is None:
            match = tie(other, index)
        else:
            match = _at_clock(parts[other].track, parts[index].track, known)
        if match.status != "short":
            return match
    return match


def _at_clock(one: Track, other: Track, clock: Clock) -> PairMatch:
    """Whether two tracks end together under a known clock, however few their instances."""
    score, covered = score_at(one, other, clock)
    shorter = min(len(one), len(other))
    if covered == 0 or 2 * covered < shorter:
        return PairMatch("short", None, score, None, covered)
    longer = one if len(one) >= len(other) else other
    limit = MATCH_LIMIT_NS
    if len(longer) > 1:
        gaps = np.diff(longer.end).astype(np.float64)
        limit = min(limit, float(np.minimum(gaps / 4, CLIP_NS).mean()) / 2)
    return PairMatch("matched" if score <= limit else "different", clock, score, None, covered)


def _merge(groups: dict[int, list[int]], head: list[int], one: int, index: int) -> None:
    other = head[index]
    if one == other:
        return
    groups[other] = groups[other] + groups.pop(one)
    for member in groups[other]:
        head[member] = other


def _communicators(parts: Sequence[Part], groups: dict[int, list[int]]) -> list[Communicator]:
    """Groups of parts with one set of members become one communicator; payload communicators stay apart."""
    named: dict[tuple[tuple[int, ...], int | None], list[int]] = {}
    for group in groups.values():
        members = tuple(sorted({parts[i].owner for i in group}))
        if len(members) < 2:
            continue
        named.setdefault((members, parts[group[0]].family[0]), []).extend(group)
    for (members, payload), group in sorted(named.items(), key=lambda item: (item[0][0], item[0][1] or 0)):
        if payload is not None:
            continue
        # Graph replays carry no payload: they join the one recorded communicator of the same ranks.
        payloads = sorted(p for m, p in named if m == members and p is not None)
        if payloads:
            named[members, payloads[0]].extend(group)
            del named[members, None]
    found = [Communicator(members, sorted(group), payload) for (members, payload), group in named.items()]
    return sorted(found, key=lambda c: (-len(c.members), c.members, c.payload or 0))


def own_times(track: Track, clock: Clock) -> Floats:
    """A track's ends on the reference's time, float64 ns."""
    own = track.end.astype(np.float64)
    return np.asarray(own - clock.difference(own), dtype=np.float64)
