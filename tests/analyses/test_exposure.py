"""The part of collectives that a step pays for, against painting every microsecond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.analyses.drawn_steps import GEMM, US, copy, kernel, load
from tracelens.analyses.exposure import exposure
from tracelens.analyses.timeline import timeline

REDUCE = "void vllm::cross_device_reduce_2stage<float, (int)2>(int)"


def exposed_us(rows: list[Any], folder: Path) -> list[float]:
    """Exposed time of each collective of a drawn capture, us, in the order of (rank, start)."""
    with load(rows, folder) as trace:
        return [length / US for length in exposure(trace).exposed_ns]


def test_only_kernels_of_other_streams_hide(tmp_path: Path) -> None:
    """A collective of 100 us on stream 7; what runs beside it:

    a GEMM of 40 us on stream 9        hides 40
    a copy on stream 11                hides nothing
    a GEMM on stream 7 (overlapping)   hides nothing
    a collective on stream 13          hides nothing, and is itself hidden by none
    """
    base = kernel(REDUCE, 0, 100)
    assert exposed_us([base], tmp_path) == [100]
    assert exposed_us([base, kernel(GEMM, 30, 70, stream=9)], tmp_path) == [60]
    assert exposed_us([base, copy("D2D", 30, 70, stream=11)], tmp_path) == [100]
    assert exposed_us([base, kernel(GEMM, 90, 120)], tmp_path) == [100]
    assert exposed_us([base, kernel(REDUCE, 50, 150, stream=13)], tmp_path) == [100, 100]
    assert exposed_us([base, kernel(REDUCE, 50, 150, stream=13), kernel(GEMM, 90, 200, stream=9)], tmp_path) == [90, 40]


def test_a_collective_under_compute_costs_nothing(tmp_path: Path) -> None:
    assert exposed_us([kernel(REDUCE, 10, 188_010, stream=9), kernel(GEMM, 0, 200_000)], tmp_path) == [0]


EVENTS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 20), st.sampled_from([7, 9, 11]), st.booleans(), st.integers(0, 1)),
    min_size=1,
    max_size=20,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=EVENTS)
def test_exposed_and_hidden_are_the_collective(tmp_path: Path, events: list[tuple[int, int, int, bool, int]]) -> None:
    rows = [
        kernel(REDUCE if collective else GEMM, start, start + length, stream=stream, pid=1000 + rank, device=rank)
        for start, length, stream, collective, rank in events
    ]
    rows += [kernel(GEMM, 90, 91, pid=1000 + rank, device=rank) for rank in range(2)]
    with load(rows, tmp_path) as trace:
        found, tl = exposure(trace), timeline(trace)
        unions: dict[int, set[int]] = {0: set(), 1: set()}
        for place, length in zip(found.event, found.exposed_ns, strict=True):
            rank = int(tl.rank_place[place])
            own = tl.own_time(tl.rank_place[[place, place]], tl.start[[place, place]])[0]
            covered = range(int(own) // US, (int(own) + int(tl.end[place] - tl.start[place])) // US)
            stream = int(tl.stream_number[tl.stream[place]])
            hiding = set().union(
                *(range(s, s + n) for s, n, other, c, r in events if not c and r == rank and other != stream),
                range(90, 91) if stream != 7 else (),
            )
            assert length == len(set(covered) - hiding) * US
            unions[rank] |= set(covered) - hiding
        assert found.exposed.total_ns == sum(len(one) for one in unions.values()) * US
        assert (
            found.collective.total_ns
            == sum(
                len(set().union(*(range(s, s + n) for s, n, _, c, r in events if c and r == rank))) for rank in range(2)
            )
            * US
        )
