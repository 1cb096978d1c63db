"""Matching and waits the slow way: every pair as a proposal, every instance by hand."""

from __future__ import annotations

import numpy as np

CLIP_NS = 20_000


def best_offsets(first_end, first_key, second_end, second_key, window_ns):
    """All lags tried: [(score, offset)] of second minus first, best first, one per 5 us.

    Every equal-key pair of ends inside the window proposes an offset; it is moved by the median deviation of nearest
    ends and scored by the mean of min(|deviation|, 20 us) over the shorter track's instances in the common range.
    """
    found = []
    for a, ka in zip(first_end, first_key, strict=True):
        for b, kb in zip(second_end, second_key, strict=True):
            if ka != kb or abs(b - a) > window_ns:
                continue
            offset = float(b - a)
            for _ in range(2):
                deviations = _nearest(first_end, first_key, second_end - offset, second_key)
                close = [d for d in deviations if abs(d) < CLIP_NS]
                if close:
                    offset += float(np.median(close))
            if len(first_end) > len(second_end):
                deviations = _nearest(second_end - offset, second_key, first_end, first_key)
            else:
                deviations = _nearest(first_end, first_key, second_end - offset, second_key)
            found.append((float(np.mean([min(abs(d), CLIP_NS) for d in deviations])), offset))
    found.sort()
    kept = []
    for score, offset in found:
        if all(abs(offset - other) > 5_000 for _, other in kept):
            kept.append((score, offset))
    return kept


def _nearest(query_end, query_key, end, key):
    low, high = end.min() - CLIP_NS, end.max() + CLIP_NS
    deviations = []
    for q, kq in zip(query_end, query_key, strict=True):
        if low <= q <= high:
            deviations.append(min((e - q for e, k in zip(end, key, strict=True) if k == kq), key=abs, default=CLIP_NS))
    return deviations


def waits(arrivals):
    """[instances][ranks] -> each rank's wait for the last, and who was last with which lead."""
    rows, leads = [], []
    for came in arrivals:
        last = max(came)
        rows.append([last - own for own in came])
        others = sorted(came)
        leads.append((list(came).index(last), others[-1] - others[-2]))
    return rows, leads
