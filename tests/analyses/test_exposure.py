"""The part of collectives that a step pays for, against painting every microsecond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.analyses.drawn_steps import GEMM, US, copy, kernel, load
from tracelens.analyses.exposure import exposure
from tracelens.analyses.timeline import timeline

REDUCE = "void vllm::cross_device_reduce_2stage<float, (int)2>(int)"


def exposed_us(rows: list[Any], folder: Path) -> tuple[float, float]:
    """(collective time, exposed time) of a drawn capture of one rank, us."""
    with load(rows, folder) as trace:
        tl = timeline(trace)
        found = exposure(tl, tl.start[:1], tl.end[:].max(keepdims=True))
        return found.collective_ns[0] / US, found.exposed_ns[0] / US


def test_only_kernels_of_other_streams_hide(tmp_path: Path) -> None:
    """A collective of 100 us on stream 7; what runs beside it:

    a GEMM of 40 us on stream 9        hides 40
    a copy on stream 11                hides nothing
    a GEMM on stream 7 (overlapping)   hides nothing
    a collective on stream 13          hides nothing, and is itself hidden by none
    """
    base = kernel(REDUCE, 0, 100)
    assert exposed_us([base], tmp_path) == (100, 100)
    assert exposed_us([base, kernel(GEMM, 30, 70, stream=9)], tmp_path) == (100, 60)
    assert exposed_us([base, copy("D2D", 30, 70, stream=11)], tmp_path) == (100, 100)
    assert exposed_us([base, kernel(GEMM, 90, 120)], tmp_path) == (100, 100)
    other = kernel(REDUCE, 50, 150, stream=13)
    assert exposed_us([base, other], tmp_path) == (150, 150)
    assert exposed_us([base, other, kernel(GEMM, 90, 200, stream=9)], tmp_path) == (150, 90)
    # What shares a stream with one of the two still hides the other.
    assert exposed_us([base, other, kernel(GEMM, 90, 120)], tmp_path) == (150, 130)


def test_a_collective_under_compute_costs_nothing(tmp_path: Path) -> None:
    assert exposed_us([kernel(REDUCE, 10, 188_010, stream=9), kernel(GEMM, 0, 200_000)], tmp_path) == (188_000, 0)


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
    # So that a rank's own time begins at 0, and none is without events.
    rows += [kernel(GEMM, at, at + 1, pid=1000 + rank, device=rank) for rank in range(2) for at in (0, 90)]
    windows = [(0, 25), (25, 60), (60, 91)]
    with load(rows, tmp_path) as trace:
        tl = timeline(trace)
        start = np.array([low * US for low, _ in windows])
        end = np.array([high * US for _, high in windows])
        # The windows of rank 1 first.
        shift = np.repeat(tl.shift[::-1], len(windows))
        found = exposure(tl, np.tile(start, 2) + shift, np.tile(end, 2) + shift)
    expected = []
    for rank in (1, 0):
        mine = [(set(range(s, s + n)), stream, c) for s, n, stream, c, r in events if r == rank]
        mine.append(({0, 90}, 7, False))
        collective = set().union(*(us for us, _, c in mine if c))
        exposed = set().union(
            *(us.difference(*(o for o, other, c in mine if not c and other != stream)) for us, stream, c in mine if c)
        )
        expected += [
            (len(collective & set(range(*window))) * US, len(exposed & set(range(*window))) * US) for window in windows
        ]
    assert list(zip(found.collective_ns.tolist(), found.exposed_ns.tolist(), strict=True)) == expected
