"""What late hosts cost a step: host parts of gaps on the way of the rank that the others then wait for.

    rank 0   |AA|hhhhhhh|B|#####|hh|C|...####|        h host part of a gap, # collective, . waits in it
    rank 1   |AAAA|hh|B|...#####|hhhhh|C|####|
                         instance 0        1           rank 0 comes last in 0 (7), rank 1 in 1 (5): both wait 12 in all

The way to a collective begins where the rank's last one did; what is left after the last one holds nobody else up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tracelens.analyses.gap_causes import IDLE
from tracelens.analyses.skew_context import Context
from tracelens.analyses.timeline import Codes, Flags, Ints


@dataclass(frozen=True)
class Way:
    """One rank's late hosts, and the matched collectives that they may delay. Times are ns on one axis.

    Attributes:
        end: int64 [gaps], when each gap of a late host ends.
        host_ns: int64 [gaps], the host's part in each, above 0.
        arrival: int64 [collectives], when the rank begins each, ascending.
        instance: int32 [collectives], their numbers.
        last: bool [collectives], whether nobody comes later.
    """

    end: Ints
    host_ns: Ints
    arrival: Ints
    instance: Codes
    last: Flags


def lost_ns(ways: Iterable[Way], member_counts: Codes) -> int:
    """Host parts, once for each member of the instance that they delay, else once: summed over ranks, ns.

    Args:
        ways: of all ranks.
        member_counts: int32 [instances]; all members of an instance wait for the last one.
    """
    held_ns = np.zeros(len(member_counts), np.int64)  # by instance
    alone_ns = 0
    for way in ways:
        next_one = np.searchsorted(way.arrival, way.end)
        host_ns = np.bincount(next_one, way.host_ns, len(way.arrival) + 1).astype(np.int64)
        alone_ns += int(host_ns[-1])
        delaying = np.flatnonzero(way.last & (host_ns[:-1] > 0))
        # Several may come last at once: one of them holds the others up.
        np.maximum.at(held_ns, way.instance[delaying], host_ns[delaying])
    return int((held_ns * member_counts).sum()) + alone_ns


def late_hosts_ns(known: Context, chosen: Flags) -> int:
    """What late hosts cost in the chosen steps, summed over ranks and steps, ns.

    Args:
        known: the capture.
        chosen: bool [rows of `Steps.table` + 1], the last of no step.
    """
    return lost_ns(_ways(known, chosen), known.operations.instances.size)


def _ways(known: Context, chosen: Flags) -> Iterator[Way]:
    """Rank by rank."""
    tl, gaps, found = known.timeline, known.gaps, known.operations
    # Found among numbers of their own type, long arrays are not copied.
    gap_edges = np.searchsorted(gaps.occupancy.after, tl.first.astype(np.int32)).astype(np.int32)
    led_edges = np.searchsorted(gaps.led, gap_edges)
    owners = np.searchsorted(found.ranks, tl.ranks)
    for place, owner in enumerate(owners.tolist()):
        led = slice(led_edges[place], led_edges[place + 1])
        host_ns = gaps.host_part[led]
        late = np.flatnonzero(host_ns > 0)
        gap = gaps.led[led][late]
        kept = chosen[gaps.rows_of(gap)] & (gaps.cause[gap] != IDLE)
        calls = found.recorded.of_rank(owner)
        accepted = calls.start + np.flatnonzero(known.accepted[calls])
        yield Way(
            end=tl.start[gaps.occupancy.after[gap[kept]]],
            host_ns=host_ns[late[kept]],
            arrival=found.recorded.start[accepted] + tl.shift[place],
            instance=found.instance[accepted],
            last=known.waits(accepted) == 0,
        )
