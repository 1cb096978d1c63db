"""How far a device's clock is ahead of its host's: the truth lies within the bounds, wherever the clocks are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.analyses.host_offset import (
    FEW,
    LEAST_LAUNCH_NS,
    LIMIT_NS,
    Lowest,
    Observed,
    Offset,
    offsets,
)

US = 1_000


def rounds(
    offset: float,
    latency: list[float],
    back: list[float],
    call: float = 2,
    first: int = 0,
    graph: bool = False,
    idle: bool = True,
) -> Observed:
    """One launch into the idle device every 100 us, and the return of the wait for it; in us."""
    count = len(latency)
    begin = 100 * US * (first + np.arange(count, dtype=np.int64))
    delay = np.array([round((one + offset) * US) for one in latency], np.int64)
    start = begin + delay
    lag = np.array([round((one - offset) * US) for one in back], np.int64)
    calls = np.full(count, round(call * US), np.int64)
    return Observed(start, delay, calls, np.full(count, graph), np.full(count, idle), start[: len(lag)] + 50 * US, lag)


def joined(*parts: Observed) -> Observed:
    """One after the other."""
    return Observed(*(np.concatenate([getattr(one, name) for one in parts]) for name in vars(parts[0])))


@pytest.mark.parametrize("offset", [-80, -12, -5, 0, 5, 12, 80])
@pytest.mark.parametrize(
    ("latency", "back", "taken"),
    [
        # From the 2 us of the call to all but 0.5 us of both, the middle of that, but no launch above 5 us.
        (4, 1, 3.25),
        (3, 3, 3.75),
        (6, 6, 5),
        (2, 9, 5),
    ],
)
def test_the_middle_of_what_is_possible(offset: int, latency: float, back: float, taken: float) -> None:
    (found,) = offsets(rounds(offset, [latency] * 30, [back] * 30))
    assert found.ahead_ns == (offset + latency - taken) * US
    assert found.least_ns <= offset * US <= found.most_ns


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        # Nothing was observed.
        (rounds(0, [], []), Offset(0, 0, -25_000, 25_000, 0, 0)),
        # Launches alone: 5 us, give or take 3.5.
        (rounds(9, [5] * 30, []), Offset(0, 9_000, 5_500, 12_500, 30, 0)),
        # Launches of graphs alone, or into a queue: the recorded clock stands, as far as it can.
        (rounds(9, [5] * 30, [], graph=True), Offset(0, 0, -25_000, 12_500, 30, 0)),
        (rounds(-30, [12] * 30, [], graph=True), Offset(0, -19_500, -25_000, -19_500, 30, 0)),
        (rounds(0, [40] * 30, [], idle=False), Offset(0, 0, -25_000, 25_000, 30, 0)),
        # Too slow for a launch into an idle device, whatever the clock.
        (rounds(0, [40] * 30, []), Offset(0, 0, -25_000, 25_000, 30, 0)),
        # Waits alone: a return takes 5 us, if it could.
        (rounds(9, [200] * 30, [6] * 30, idle=False), Offset(0, 8_000, 3_500, 100_000, 30, 30)),
        # The waits came back long after what they waited for.
        (rounds(0, [200] * 30, [90] * 30, idle=False), Offset(0, 0, -89_500, 100_000, 30, 30)),
        # The calls take longer than their launches: what their length says is not believed.
        (rounds(0, [3] * 30, [1] * 30, call=8), Offset(0, -500, -500, -500, 30, 30)),
        # No device is so far away.
        (rounds(-300, [5] * 30, []), Offset(0, -100_000, -100_000, -100_000, 30, 0)),
    ],
)
def test_what_there_is_decides(seen: Observed, expected: Offset) -> None:
    (found,) = offsets(seen)
    assert found == Offset(found.start_ns, *list(vars(expected).values())[1:])


LATENCIES = st.lists(st.floats(2, 30), min_size=FEW, max_size=80)


@settings(max_examples=200, deadline=None)
@given(
    offset=st.floats(-60, 60),
    latency=LATENCIES,
    back=st.lists(st.floats(0.5, 30), max_size=FEW),
    call=st.floats(0.5, 2),
    bad=st.booleans(),
)
def test_the_truth_lies_within_the_bounds(
    offset: float, latency: list[float], back: list[float], call: float, bad: bool
) -> None:
    """Launches of 2 us and more, returns of 0.5 us and more; where told, one launch starts 300 us too early."""
    seen = rounds(offset, latency, back, call)
    if bad:
        seen.delay_ns[len(latency) // 2] -= 300 * US
    (found,) = offsets(seen)
    assert found.least_ns <= found.ahead_ns <= found.most_ns
    if back:
        assert found.least_ns - 1 <= offset * US <= found.most_ns + 1
    # The second lowest: of twenty launches one may be wrong.
    quickest = round((sorted(latency)[1] + offset) * US)
    assert found.ahead_ns <= quickest - LEAST_LAUNCH_NS + 1


@settings(max_examples=100, deadline=None)
@given(
    move=st.integers(-30_000, 30_000), latency=LATENCIES, back=st.lists(st.floats(0.5, 20), min_size=FEW, max_size=FEW)
)
def test_a_clock_that_is_moved_is_found_moved(move: int, latency: list[float], back: list[float]) -> None:
    (still,) = offsets(rounds(0, latency, back))
    (moved,) = offsets(rounds(move / US, latency, back))
    assert abs(moved.ahead_ns - still.ahead_ns - move) <= 2
    assert abs(moved.ahead_ns) <= LIMIT_NS


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.sampled_from([-20, -14, 14, 20, 35]), min_size=1, max_size=2),
    counts=st.lists(st.integers(3 * FEW, 200), min_size=3, max_size=3),
    jitter=st.integers(0, 2**32 - 1),
)
def test_every_correction_of_the_clock_is_found(steps: list[int], counts: list[int], jitter: int) -> None:
    """Launches take 4 to 6 us, returns 2 to 4: a correction by 14 us or more contradicts them."""
    rng = np.random.default_rng(jitter)
    truth = [0]
    for one in steps:
        truth.append(truth[-1] + one if abs(truth[-1] + one) < 50 else truth[-1] - one)
    parts, first = [], 0
    for offset, count in zip(truth, counts, strict=False):
        parts.append(rounds(offset, rng.uniform(4, 6, count).tolist(), rng.uniform(2, 4, count).tolist(), first=first))
        first += count
    found = offsets(joined(*parts))
    assert len(found) == len(truth)
    for one, offset in zip(found, truth, strict=True):
        assert one.least_ns <= offset * US <= one.most_ns
        assert abs(one.ahead_ns - offset * US) <= 2 * US
    edges = np.cumsum(counts[: len(truth)])[:-1] * 100 * US
    assert all(abs(one.start_ns - edge) <= 300 * US for one, edge in zip(found[1:], edges, strict=True))


@settings(deadline=None)
@given(
    parts=st.lists(st.lists(st.integers(-5, 50), max_size=60), max_size=60),
    more=st.integers(0, 2000),
)
def test_the_lowest_of_parts_is_that_of_all(parts: list[list[int]], more: int) -> None:
    """One in a thousand is left out, of twenty or more at least one; there could have been `more` values."""
    values = sorted(one for part in parts for one in part)
    lowest = Lowest(len(values) + more)
    for part in parts:
        lowest.add(np.array(part, np.int64))
    assert lowest.count == len(values)
    if values:
        assert lowest.value == values[max(len(values) // 1000, int(len(values) >= FEW))]
