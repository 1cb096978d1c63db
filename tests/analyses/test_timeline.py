"""The arrays that analyses walk along: codes of pairs, links to launch calls, ids and places."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyses.drawn_steps import GEMM, NORM, kernel, load
from tracelens.analyses import blocks, timeline_columns, timeline_launches
from tracelens.analyses.timeline import Timeline, timeline
from tracelens.analyses.timeline_columns import PairCodes
from tracelens.analyses.timeline_launches import CallIds, link_events
from tracelens.array_room import ArrayRoom

ROOM = ArrayRoom(1 << 30, Path())
PAIRS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-1, 0, 7, 2**40])), max_size=40)


@given(pairs=PAIRS, cuts=st.sets(st.integers(1, 39)))
def test_codes_of_pairs_ascend_with_the_pairs(pairs: list[tuple[int, int]], cuts: set[int]) -> None:
    codes = PairCodes(len(pairs), ROOM)
    edges = [0, *sorted(cut for cut in cuts if cut < len(pairs)), len(pairs)]
    for low, high in itertools.pairwise(edges):
        if high > low:
            left, right = np.array(pairs[low:high], np.int64).T
            codes.add(slice(low, high), left, right)
    code, used = codes.done()
    distinct = sorted(set(pairs))
    assert [tuple(pair) for pair in used.tolist()] == distinct
    assert code.tolist() == [distinct.index(pair) for pair in pairs]


def test_more_codes_than_a_byte_holds() -> None:
    codes = PairCodes(600, ROOM)
    for low in (0, 300):
        numbers = np.arange(low, low + 300)
        codes.add(slice(low, low + 300), np.zeros(300, np.int64), 1000 - numbers)
    code, used = codes.done()
    assert code.dtype == np.uint16
    assert used[:, 1].tolist() == list(range(401, 1001))
    assert code.tolist() == list(range(599, -1, -1))


CALLS = st.lists(st.lists(st.sampled_from([0, 1, 2, 3, 5, 900, 2**35]), max_size=8), min_size=3, max_size=3)
EVENTS = st.lists(st.lists(st.sampled_from([-1, 0, 1, 2, 3, 4, 900, 2**35]), max_size=12), min_size=1, max_size=4)


@pytest.mark.parametrize("small", [1, 1_000_000])
@settings(deadline=None)
@given(calls=CALLS, events=EVENTS, data=st.data())
def test_links_go_to_the_first_call_with_the_id(
    small: int, calls: list[list[int]], events: list[list[int]], data: st.DataObject
) -> None:
    """Processes 10, 11 and 12 call; ranks belong to any of these or to 13, which never does."""
    rows = [(10 + place, one) for place, ids in enumerate(calls) for one in ids]
    process = [data.draw(st.integers(10, 13)) for _ in events]
    expected = [
        next((at for at, row in enumerate(rows) if row == (owner, one)), -1)
        for owner, ids in zip(process, events, strict=True)
        for one in ids
    ]
    first = np.cumsum([0, *map(len, calls)])
    known = CallIds(np.array([10, 11, 12]), first, np.array([one for _, one in rows], np.int64))
    flat = np.array([one for ids in events for one in ids], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline_launches, "_SMALL", small)
        patch.setattr(blocks, "BLOCK", 5)
        trace = SimpleNamespace(room=ROOM, threads=2)
        link = link_events(trace, known, np.array(process), np.cumsum([0, *map(len, events)]), flat)
    assert link.tolist() == expected


def test_ids_of_chosen_ranks(tmp_path: Path) -> None:
    """Three ranks of 3, 2 and 4 events; those of ranks 0 and 2 have the ids 0-2 and 5-8."""
    rows = [
        kernel(GEMM, start, start + 1, pid=1000 + rank, device=rank)
        for rank, count in enumerate((3, 2, 4))
        for start in range(10 * rank, 10 * rank + 2 * count, 2)
    ]
    with load(rows, tmp_path, ranks=(0, 2)) as trace:
        tl = timeline(trace)
        assert tl.first.tolist() == [0, 3, 7]
        assert tl.ids_of(np.arange(7)).tolist() == [0, 1, 2, 5, 6, 7, 8]
        assert tl.places_of(np.array([5, 0, 8])).tolist() == [3, 0, 6]


def test_ids_beyond_32_bits_stay_whole(tmp_path: Path) -> None:
    rows = [kernel(GEMM, 0, 1, correlation=5), kernel(NORM, 2, 3, correlation=2**33)]
    with load(rows, tmp_path) as trace:
        assert timeline(trace).correlation.tolist() == [5, 2**33]


def test_events_out_of_order_are_refused() -> None:
    heads: list[tuple[int, int, int]] = []
    timeline_columns._add_heads(heads, 0, np.array([4, 5, 9]), np.array([0, 0, 2]))
    timeline_columns._add_heads(heads, 3, np.array([10, 11]), np.array([2, 2]))
    assert heads == [(0, 0, 4), (2, 2, 9)]
    for ids, rank in (([13, 14], [2, 2]), ([12, 11], [2, 2]), ([12, 13], [2, 1]), ([12, 14], [2, 2])):
        with pytest.raises(RuntimeError):
            timeline_columns._add_heads(heads, 5, np.array(ids), np.array(rank))


@given(
    events=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-2, -1, 0, 5])), max_size=30),
    block=st.integers(1, 9),
)
def test_what_is_unknown_is_taken_from_the_event_before_on_the_stream(
    events: list[tuple[int, int]], block: int
) -> None:
    """stream  0  1  0  1  1          -2: unknown; -1 stands before all
    value     7 -2 -2  5 -2
    carried   7 -1  7  5  5"""
    known: dict[int, int] = {}
    expected = []
    for stream, value in events:
        known[stream] = known.get(stream, -1) if value == -2 else value
        expected.append(known[stream])
    stream = np.array([one for one, _ in events], np.uint8)
    tl = SimpleNamespace(
        stream=stream, stream_number=np.arange(4), stretches=lambda: blocks.blocks(0, len(events), block)
    )
    values = np.array([one for _, one in events], np.int32)
    assert Timeline.carry_along_streams(tl, values, -2, -1).tolist() == expected  # type: ignore[arg-type]
