"""Which collective of one rank is which of another: the lag is searched, never assumed.

Two captures of one job start and end at different operations, lose kernels in the middle, and hold thousands of
kernels that look alike. A lag (my k-th is your k+n-th) only proposes a clock offset. For each proposal the clock is
fitted to the ends of the shorter sequence paired with the nearest ends of the other, and the proposal is judged by
the mean of min(|end deviation|, 20 us) over everything both captures cover. A lag wrong by one layer or one step
fits most instances perfectly and betrays itself only at step edges, so a mean decides, not a median; and the best
proposal must be twice as good as the next, else the answer is "ambiguous".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from tracelens.analyses.clock import Clock, median
from tracelens.analyses.matching_search import clipped_mean, search
from tracelens.analyses.matching_tracks import (
    APART_NS,
    CLIP_NS,
    DISTINCT_NS,
    INSTANCE_MINIMUM,
    MARGIN_FACTOR,
    MATCH_LIMIT_NS,
    Apart,
    Axis,
    Track,
    apart,
    onto,
)

_OFFERS_JUDGED = 6


@dataclass(frozen=True)
class PairMatch:
    """How two tracks fit together.

    Attributes:
        status: `matched`; `ambiguous` (two offsets explain the ends alike); `different` (no offset does: they do not
            synchronise); `short` (fewer than 30 common instances, or less than half of the shorter track).
        clock: the second track's clock as seen from the first, on the second's time; null unless matched.
        score_ns: mean clipped end deviation at the best offset; null when none could be tried.
        next_score_ns: the same at the best offset more than 5 us away; null when there is none.
        covered: instances of the shorter track inside the common time range.
    """

    status: Literal["matched", "ambiguous", "different", "short"]
    clock: Clock | None = None
    score_ns: float | None = None
    next_score_ns: float | None = None
    covered: int = 0


def match_pair(first: Track, second: Track, *, window_ns: int | None, around_ns: int = 0) -> PairMatch:
    """Match two ranks' tracks by searching the offset between their clocks.

    Args:
        first, second: tracks of two different clocks.
        window_ns: how far the clocks can be apart beyond `around_ns`; null when nothing is known of them.
        around_ns: the expected second-minus-first clock difference (from session times).

    Returns:
        The match. Scores are in ns; the clock is that of `second` against `first`.
    """
    return match_ranks([first], [second], window_ns=window_ns, around_ns=around_ns)


def match_ranks(
    firsts: Sequence[Track], seconds: Sequence[Track], *, window_ns: int | None, around_ns: int = 0
) -> PairMatch:
    """Match two ranks by all their tracks at once: one clock difference must explain every track that any explains.

    One stream's all-reduces fit another stream's at an offset of half a layer; only all streams together tell.

    Args:
        firsts, seconds: the ranks' tracks; only tracks with a common family are compared.
        window_ns, around_ns: see `match_pair`.
    """
    pairs = [
        (one, other)
        for one in firsts
        for other in seconds
        if one.family == other.family and min(len(one), len(other)) >= INSTANCE_MINIMUM
    ]
    pairs.sort(key=lambda pair: -min(len(pair[0]), len(pair[1])))
    offers: list[_Offer] = []
    result = PairMatch("short")
    # Sparse families are searched only where the frequent ones tell nothing.
    for family in dict.fromkeys(one.family for one, _ in pairs):
        for one, other in pairs:
            if one.family == family:
                offers += _offers(one, other, window_ns, around_ns)
        if offers:
            result = _weigh(pairs, offers)
        if result.status in ("matched", "ambiguous"):
            break
    return result


@dataclass(frozen=True)
class _Offer:
    clock: Clock  # second's time minus first's, on the second's time axis
    covered: int
    source: Axis
    target: Axis
    own: Clock  # the same, as the search found it: the target's time minus the source's, on the source's

    @cached_property
    def score(self) -> float:
        """Mean clipped end deviation of the tracks that it was found for."""
        return clipped_mean(self.source, self.target, self.own)[0]


def _offers(first: Track, second: Track, window_ns: int | None, around_ns: int) -> list[_Offer]:
    """The few clock differences under which two tracks fit best."""
    flipped = len(second) > len(first)
    short, long = (first, second) if flipped else (second, first)
    # Differences are long minus short: second minus first when flipped, else its negative.
    expected = around_ns if flipped else -around_ns
    source, target = short.axis, long.axis
    apart_ns = target.origin - source.origin
    around = float(expected - apart_ns) if window_ns is not None else 0.0
    window = float(window_ns) if window_ns is not None else np.inf
    offers = []
    for own, covered in search(source, target, around, window):
        # Back from long minus short, both counted from their first ends, to second minus first on the second's time.
        total = Clock(own.t0 + source.origin, own.valid_from + source.origin, own.offset + apart_ns, own.drift)
        # "short + difference = long": the inverse, "long - difference = short", has the same differences on long's axis.
        ahead = Clock(total.t0, total.valid_from, -total.offset, -total.drift)
        offers.append(_Offer(ahead if not flipped else ahead.inverted(), covered, source, target, own))
    return offers


def _weigh(pairs: Sequence[tuple[Track, Track]], offers: Sequence[_Offer]) -> PairMatch:
    """Judge distinct offers by all tracks that fit under any of them and do not merely run in step."""
    middle = median(np.concatenate([other.end for _, other in pairs]).astype(np.float64))
    kept = _distinct(offers, middle)
    if len(kept) < len(offers) or len(kept) > _OFFERS_JUDGED:
        # Which stand for the others, their own scores tell; few and distinct ones are all judged below.
        kept = _distinct(sorted(offers, key=lambda o: o.score), middle)[:_OFFERS_JUDGED]
    firsts = list({id(one): one for one, _ in pairs}.values())
    scores = np.full((len(kept), len(firsts)), CLIP_NS)
    covered = np.zeros((len(kept), len(firsts)), dtype=np.int64)
    explained = np.zeros(len(firsts), dtype=bool)
    for column, one in enumerate(firsts):
        partners = [other for mine, other in pairs if mine is one]
        best: tuple[float, Track, _Offer] | None = None
        for row, offer in enumerate(kept):
            for other in partners:
                found, count = _score_at(one, other, offer.clock)
                if 2 * count < min(len(one), len(other)) or found >= scores[row, column]:
                    continue
                scores[row, column], covered[row, column] = found, count
                if best is None or found < best[0]:
                    best = (found, other, offer)
        if best is not None and best[0] <= max((one if len(one) >= len(p) else p).limit_ns for p in partners):
            explained[column] = not _ends_follow_starts(apart(one, best[1], best[2].clock, 4000))
    if not explained.any():
        best_offer = min(kept, key=lambda o: o.score)
        return PairMatch("different", None, best_offer.score, None, best_offer.covered)
    weights = np.array([len(one) for one in firsts], dtype=np.float64)[explained]
    joint = scores[:, explained] @ weights / weights.sum()
    order = np.argsort(joint, kind="stable")
    winner, found = int(order[0]), float(joint[order[0]])
    following = float(joint[order[1]]) if len(order) > 1 else None
    count = int(covered[winner][explained].sum())
    # Lags that the search gave up are not offered; they fit no better than 5 us.
    if found * MARGIN_FACTOR > (MATCH_LIMIT_NS if following is None else following):
        status: Literal["ambiguous", "different"] = "ambiguous" if found <= MATCH_LIMIT_NS else "different"
        return PairMatch(status, None, found, following, count)
    return PairMatch("matched", kept[winner].clock, found, following, count)


def _distinct(offers: Sequence[_Offer], time: float) -> list[_Offer]:
    """Those that differ from all before them."""
    kept: list[_Offer] = []
    for offer in offers:
        if all(abs(offer.clock.at(time) - o.clock.at(time)) > DISTINCT_NS for o in kept):
            kept.append(offer)
    return kept


def _score_at(first: Track, second: Track, clock: Clock) -> tuple[float, int]:
    """Mean clipped end deviation under a known clock of the second, over the shorter one's instances in common."""
    if len(first) <= len(second):
        return clipped_mean(first.axis, second.axis, onto(first.axis, second.axis, clock))
    return clipped_mean(second.axis, first.axis, onto(second.axis, first.axis, clock.inverted()))


def match_at(first: Track, second: Track, clock: Clock) -> PairMatch:
    """Whether two tracks end together under a known clock of the second, however few their instances."""
    found, covered = _score_at(first, second, clock)
    if covered == 0 or 2 * covered < min(len(first), len(second)):
        return PairMatch("short", None, found, None, covered)
    longer = second if len(first) <= len(second) else first
    if found > longer.limit_ns or _ends_follow_starts(apart(first, second, clock, 4000)):
        return PairMatch("different", None, found, None, covered)
    return PairMatch("matched", clock, found, None, covered)


def _ends_follow_starts(pairs: Apart) -> bool:
    """Whether ends differ just as starts do: two jobs in step by chance, not ranks that wait for each other.

    Ranks of one barrier start apart and end together. Replicas that run alike end as far apart as they start.
    """
    near = pairs.near & (np.abs(pairs.start) < CLIP_NS)
    if int(near.sum()) < 8:
        return False
    # A wrong partner, at the rim of a loss, is off by as much at both ends: only the bulk can tell.
    off = np.abs(pairs.end - median(pairs.end[near]))
    near &= off <= max(4.0 * median(off[near]), 2.0 * APART_NS)
    ends, starts = pairs.end[near] - pairs.end[near].mean(), pairs.start[near] - pairs.start[near].mean()
    own, other, both = float((starts**2).sum()), float((ends**2).sum()), float((starts * ends).sum())
    if own <= 0.0 or float(np.abs(ends).mean()) < APART_NS:
        return False
    slope, correlation = both / own, both / float(np.sqrt(own * other))
    return correlation > 0.8 and 0.7 < slope < 1.4
