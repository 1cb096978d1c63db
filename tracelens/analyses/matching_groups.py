"""Which parts of one family are one communicator's, once clocks are known.

Ranks that share one communicator often keep others in step too: replicas that meet in an all-to-all start their own
all-reduces within a fraction of a microsecond of each other. Two such groups end as far apart as their last members
arrive apart; one group ends together whoever came last. That decides, where the scatter of ends shows two clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tracelens.analyses.blocks import each
from tracelens.analyses.clock import Clock, Floats, median
from tracelens.analyses.components import components
from tracelens.analyses.matching import match_at
from tracelens.analyses.matching_instances import Bools, Rows
from tracelens.analyses.matching_tracks import CLIP_NS, Track, apart

_SAMPLE = 600
_ALL_PAIRS = 64  # parts of one family of which every pair is compared
_CLUSTER_FACTOR = 3.0
_CLUSTER_NS = 50.0

Between = Callable[[int, int], Clock | None]
"""(one rank, other rank) -> the other's clock against the first's; None where they are not tied."""


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
    rows: Rows


@dataclass(frozen=True)
class Left:
    """What remains of a part that is in no communicator.

    Attributes:
        owner, family, rows: as in the part.
        reason: `ambiguous`, `different` or `short`.
    """

    owner: int
    family: tuple[int | None, str, str]
    rows: Rows
    reason: str


def group_family(indices: Sequence[int], parts: Sequence[Part], between: Between, threads: int) -> list[list[int]]:
    """Split the parts of one family into groups that end together.

    Args:
        indices: the parts, of one family.
        parts: all parts.
        between: clock differences of tied ranks.
        threads: how many threads may work at once.

    Returns:
        Groups of indices, each ascending; a part without partners is a group of its own.
    """
    if len(indices) > _ALL_PAIRS:
        return _group_many(indices, parts, between)
    pairs = [
        (other, index, clock)
        for place, index in enumerate(indices)
        for other in indices[:place]
        if parts[other].owner != parts[index].owner
        and (clock := between(parts[other].owner, parts[index].owner)) is not None
    ]
    found = each(lambda pair: _scatter_together(parts[pair[0]].track, parts[pair[1]].track, pair[2]), pairs, threads)
    scatters = {pair[:2]: scatter for pair, scatter in zip(pairs, found, strict=True) if scatter is not None}
    for index in indices:
        parts[index].track.forget()
    linked = np.searchsorted(indices, np.array(list(scatters), dtype=np.int64).reshape(-1, 2))
    label = components(len(indices), linked[:, 0], linked[:, 1])
    groups = [np.array(indices)[label == number].tolist() for number in range(int(label.max()) + 1)]
    return [piece for group in groups for piece in _split(group, parts, between, scatters)]


def _group_many(indices: Sequence[int], parts: Sequence[Part], between: Between) -> list[list[int]]:
    """The same for so many parts that each is compared with the last one of each group alone."""
    usual: dict[int, float] = {}  # head -> least scatter inside the group
    joined = {index: index for index in indices}

    def head(index: int) -> int:
        while joined[index] != index:
            joined[index] = joined[joined[index]]
            index = joined[index]
        return index

    for place, index in enumerate(indices):
        seen: set[int] = set()
        for other in reversed(indices[:place]):
            group = head(other)
            if parts[other].owner == parts[index].owner or group in seen or group == head(index):
                continue
            clock = between(parts[other].owner, parts[index].owner)
            if clock is None:
                continue
            seen.add(group)
            scatter = _scatter_together(parts[other].track, parts[index].track, clock)
            if scatter is None:
                continue
            limit = _CLUSTER_FACTOR * usual.get(group, np.inf) + _CLUSTER_NS
            if scatter > limit and _separate([other], [index], parts, between):
                continue
            least = min(scatter, usual.pop(group, scatter), usual.pop(head(index), scatter))
            usual[head(index)] = least
            joined[group] = head(index)
            # What comes next is compared with this one instead.
            parts[other].track.forget()
    groups: dict[int, list[int]] = {}
    for index in indices:
        parts[index].track.forget()
        groups.setdefault(head(index), []).append(index)
    return list(groups.values())


def _scatter_together(one: Track, other: Track, clock: Clock) -> float | None:
    """`scatter_of` two tracks if they end together, else null."""
    return scatter_of(one, other, clock) if match_at(one, other, clock).status == "matched" else None


def scatter_of(one: Track, other: Track, clock: Clock) -> float:
    """Mean distance of end deviations from their median, ns, on a sample."""
    base, against, known = (one, other, clock) if len(one) <= len(other) else (other, one, clock.inverted())
    pairs = apart(base, against, known, _SAMPLE)
    ends = pairs.end[pairs.near]
    return float(np.abs(ends - median(ends)).mean()) if len(ends) else CLIP_NS


def _split(
    group: list[int], parts: Sequence[Part], between: Between, scatters: dict[tuple[int, int], float]
) -> list[list[int]]:
    """Part a group whose ends form clusters that follow their own last arrivals."""
    if len({parts[i].owner for i in group}) < 3:
        return [group]
    place = {index: k for k, index in enumerate(group)}
    near = np.full((len(group), len(group)), np.inf)
    for (one, other), value in scatters.items():
        if one in place and other in place:
            near[place[one], place[other]] = near[place[other], place[one]] = value
    closest = near.min(axis=1)
    limit = _CLUSTER_FACTOR * np.maximum(closest[:, None], closest[None, :]) + _CLUSTER_NS
    label = components(len(group), *np.nonzero(near <= limit))
    count = int(label.max()) + 1
    if count < 2:
        return [group]
    clusters = [[i for i in group if label[place[i]] == k] for k in range(count)]
    final: list[list[int]] = []
    for cluster in clusters:
        home = next((other for other in final if not _separate(other, cluster, parts, between)), None)
        if home is None:
            final.append(list(cluster))
        else:
            home.extend(cluster)
    return [sorted(cluster) for cluster in final]


def _separate(one: Sequence[int], other: Sequence[int], parts: Sequence[Part], between: Between) -> bool:
    """Whether two clusters end apart just as their last members arrive apart."""
    base = one[0]
    track = parts[base].track
    last: list[Floats] = []
    end: list[Floats] = []
    usable: Bools = np.ones(len(track), dtype=bool)
    for cluster in (one, other):
        arrivals, ends = [], []
        for index in cluster:
            clock = between(parts[base].owner, parts[index].owner)
            if clock is None:
                return True
            pairs = apart(track, parts[index].track, clock, len(track))
            arrivals.append(np.where(pairs.near, pairs.begun, np.nan))
            ends.append(pairs.end)
        last.append(np.max(arrivals, axis=0))
        end.append(np.median(ends, axis=0))
        usable &= np.isfinite(last[-1]) & np.isfinite(end[-1])
    if int(usable.sum()) < 8:
        return False
    came = (last[1] - last[0])[usable]
    left = (end[1] - end[0])[usable]
    came, left = came - came.mean(), left - left.mean()
    own, their, both = float((came**2).sum()), float((left**2).sum()), float((came * left).sum())
    return own > 0 and their > 0 and both / own > 0.4 and both / float(np.sqrt(own * their)) > 0.5
