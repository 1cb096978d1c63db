"""Which ranks share a communicator, found from the collectives themselves.

A rank's synchronising collectives are split by payload communicator where NCCL recorded one, else by (stream,
operation, implementation). Each part is matched with the parts of other ranks. Parts that match are one sequence,
ranks whose sequences match are one communicator, and ranks linked by communicators form a set with common time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from tracelens.analyses.clock import Clock, Floats, Ints, constant
from tracelens.analyses.matching import PairMatch, match_at, match_ranks
from tracelens.analyses.matching_groups import Part, group_family
from tracelens.analyses.matching_tracks import INSTANCE_MINIMUM, WINDOW_BOOT_NS, WINDOW_ELSE_NS, WINDOW_EXPORT_NS


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


_TRIED_MEMBERS = 4  # members of a set that a rank is compared with before the set counts as foreign


class Frames:
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


def group_parts(ranks: Sequence[RankClock], parts: Sequence[Part], *, trust: bool, threads: int) -> Grouping:
    """Find the communicators among the parts of all ranks.

    First ranks are tied to each other, each by one clock difference that explains all they share. Then, on known
    clocks, the parts that end together are put together.

    Args:
        ranks: the ranks, in rank order.
        parts: their synchronising collectives.
        trust: tie clocks of one host as recorded where the search for an offset fails. Otherwise that is done only
            for parts of fewer than 30 instances, which no search can place.
        threads: how many threads may work at once.

    Returns:
        Communicators, sets and first clocks. A part that matches none is in no communicator.
    """
    frames = Frames(ranks)
    of_rank: list[list[Part]] = [[] for _ in ranks]
    for part in parts:
        of_rank[part.owner].append(part)
    ambiguous = _tie_by_search(ranks, of_rank, frames, threads)
    _tie_as_recorded(ranks, of_rank, frames, trust)
    groups = [
        group
        for family in sorted({part.family for part in parts}, key=lambda f: (f[1], f[2], f[0] or 0))
        for group in group_family(
            [i for i, p in enumerate(parts) if p.family == family], parts, frames.between, threads
        )
    ]
    communicators = _communicators(parts, groups)
    inside = {i for communicator in communicators for i in communicator.parts}
    reasons = {}
    for index, part in enumerate(parts):
        if index in inside:
            continue
        if part.owner in ambiguous:
            reasons[index] = "ambiguous"
        else:
            reasons[index] = "different" if len(part.track) >= INSTANCE_MINIMUM else "short"
    sets, clocks = _sets(len(ranks), communicators, frames)
    recorded = [frames.recorded[index] and sets.count(sets[index]) > 1 for index in range(len(ranks))]
    return Grouping(communicators, sets, clocks, recorded, reasons)


class _Matches:
    """Matches of pairs of ranks, some of them begun ahead of their turn on other threads."""

    def __init__(self, match: Callable[[int, int], PairMatch], count: int, threads: int) -> None:
        self._match, self._count, self._threads = match, count, threads
        self._begun: dict[tuple[int, int], Future[PairMatch]] = {}

    def __enter__(self) -> _Matches:
        self._pool = ThreadPoolExecutor(self._threads)
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def of(self, other: int, index: int, *, ahead: bool) -> PairMatch:
        """The match of two ranks; `ahead`: those of `other` and the ranks that follow are likely asked for next."""
        if ahead and self._threads > 1:
            for later in range(index, min(index + self._threads, self._count)):
                if (other, later) not in self._begun:
                    self._begun[other, later] = self._pool.submit(self._match, other, later)
        begun = self._begun.pop((other, index), None)
        return self._match(other, index) if begun is None else begun.result()


def _tie_by_search(
    ranks: Sequence[RankClock], of_rank: Sequence[Sequence[Part]], frames: Frames, threads: int
) -> set[int]:
    """Tie each rank to the sets before it by searching the offset; returns ranks for which it was ambiguous."""

    def match(other: int, index: int) -> PairMatch:
        one, two = ranks[other], ranks[index]
        return match_ranks(
            [part.track for part in of_rank[other]],
            [part.track for part in of_rank[index]],
            window_ns=one.window(two),
            around_ns=one.recorded_difference(two) or 0,
        )

    with _Matches(match, len(ranks), threads) as matches:
        return _tie_in_turn(of_rank, frames, matches)


def _tie_in_turn(of_rank: Sequence[Sequence[Part]], frames: Frames, matches: _Matches) -> set[int]:
    """The same, with the matches made."""
    ambiguous: set[int] = set()
    twins: set[int] = set()  # ranks that share all they have with one before: nobody shares more with them
    for index in range(len(of_rank)):
        if not any(len(part.track) >= INSTANCE_MINIMUM for part in of_rank[index]):
            continue
        met: dict[int, list[int]] = {}  # set -> members worth comparing with, the most recent first
        for other in range(index - 1, -1, -1):
            if other not in twins and any(len(part.track) >= INSTANCE_MINIMUM for part in of_rank[other]):
                met.setdefault(frames.root[other], []).append(other)
        # The set that was joined last comes first: neighbours in rank mostly share a communicator.
        recent = frames.root[index - 1] if index else -1
        # Where the rank before shares all it has with one, this rank and the next mostly do, too.
        ahead = index == 1 or index - 1 in twins
        for root, members in sorted(met.items(), key=lambda item: item[0] != recent):
            if root == frames.root[index]:
                continue
            for other in dict.fromkeys([*members[:_TRIED_MEMBERS], members[-1]]):
                match, ahead = matches.of(other, index, ahead=ahead), False
                if match.status == "matched" and match.clock is not None:
                    frames.tie(other, index, match.clock)
                    if _all_partnered(index, other, of_rank, frames):
                        twins.add(index)
                    break
                if match.status == "ambiguous":
                    ambiguous |= {index, other}
            if index in twins:
                break
    return {index for index in ambiguous if frames.root.count(frames.root[index]) == 1}


def _all_partnered(index: int, other: int, of_rank: Sequence[Sequence[Part]], frames: Frames) -> bool:
    """Whether every part of a rank ends together with a part of another rank that it is tied to."""
    clock = frames.between(other, index)
    return clock is not None and all(
        any(
            theirs.family == part.family and match_at(theirs.track, part.track, clock).status == "matched"
            for theirs in of_rank[other]
        )
        for part in of_rank[index]
    )


def _tie_as_recorded(
    ranks: Sequence[RankClock], of_rank: Sequence[Sequence[Part]], frames: Frames, trust: bool
) -> None:
    """Tie ranks of one host by their recorded clocks where they end together by those.

    A rank with few instances does not join ranks whose clocks were searched: it would take those down to trust.
    """
    searched = {root for root in frames.root if frames.root.count(root) > 1}
    for index in range(len(ranks)):
        for other in range(index):
            if not trust and (frames.root[other] in searched or frames.root[index] in searched):
                continue
            difference = ranks[other].recorded_difference(ranks[index])
            if (
                frames.root[other] == frames.root[index]
                or difference is None
                or not ranks[other].same_host(ranks[index])
            ):
                continue
            clock = constant(float(difference))
            if any(
                one.family == two.family
                and (trust or min(len(one.track), len(two.track)) < INSTANCE_MINIMUM)
                and match_at(one.track, two.track, clock).status == "matched"
                for one in of_rank[other]
                for two in of_rank[index]
            ):
                frames.tie(other, index, clock, recorded=True)


def _sets(count: int, communicators: Sequence[Communicator], frames: Frames) -> tuple[list[int], list[Clock]]:
    """Connected sets of ranks by shared communicators, and each rank's clock against its set's lowest rank."""
    sets = list(range(count))
    for communicator in communicators:
        roots = {sets[member] for member in communicator.members}
        sets = [min(roots) if root in roots else root for root in sets]
    # Processes that share a GPU share its clock, but not its set, unless they meet.
    clocks = []
    for index, root in enumerate(sets):
        clock = frames.between(root, index) if root != index else constant()
        clocks.append(clock if clock is not None else constant())
    return sets, clocks


def _communicators(parts: Sequence[Part], groups: Sequence[list[int]]) -> list[Communicator]:
    """Groups of parts with one set of members become one communicator; payload communicators stay apart."""
    named: dict[tuple[tuple[int, ...], int | None], list[int]] = {}
    for group in groups:
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


def own_times(end: Ints, clock: Clock) -> Floats:
    """Ends on the reference's time, float64 ns."""
    own = end.astype(np.float64)
    return np.asarray(own - clock.difference(own), dtype=np.float64)
