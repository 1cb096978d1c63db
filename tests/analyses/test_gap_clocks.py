"""The clocks of hosts and devices, drawn: launches and waits bound how far they are apart."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import polars as pl

from tests.analyses.drawn_steps import GEMM, NORM, US, copy, kernel, load, replay
from tests.analyses.gap_rows import device_ahead, drawn, totals
from tracelens.analyses.gap_search import find_gaps
from tracelens.analyses.gaps import gaps
from tracelens.simulate import (
    Copy,
    Launch,
)


def wait(start: float, end: float, api: str = "cudaStreamSynchronize_v3020") -> Launch:
    """A synchronising call in us."""
    return Launch(api, round(start * US), round(end * US), correlation=next(_ids))


_ids = itertools.count(900_000)


def test_without_a_wait_the_quickest_launch_takes_what_it_takes_elsewhere(tmp_path: Path) -> None:
    """1,999 launches start 8 us before their call: the device is 13 us early; one more is wrong by 300 us."""
    rows = [kernel(GEMM, 50 * place - 8, 50 * place + 12, 50 * place) for place in range(1, 2000)]
    rows.append(kernel("bad", 120_000, 120_010, 120_300))
    with load(rows, tmp_path) as trace:
        assert device_ahead(trace) == [((0,), -13, 0)]
        found = find_gaps(trace)
        assert [notice.count for notice in found.notices if notice.code == "starts-before-launch"] == [1]
        # 25 us from dry to the call, 5 from the call to the start: all gaps are the host's, but the bad one's.
        assert set(totals(trace)) == {"host_late", "unknown"}
        assert drawn(trace)[0] == (62, 30, "host_late", 25, 5)


def test_a_late_device_is_pulled_back_likewise(tmp_path: Path) -> None:
    """The device is 12 us late: launches into the dry device seem to take 17 us, and to be called before it ran dry."""
    rows = [kernel(GEMM, 35 * place + 17, 35 * place + 45, 35 * place) for place in range(1, 50)]
    with load(rows, tmp_path) as trace:
        assert device_ahead(trace) == [((0,), 12, 0)]
        # The device runs dry at 80, the call begins at 70 of the host: 82 of the device.
        assert drawn(trace)[0] == (80, 7, "host_late", 2, 5)


def test_queued_launches_say_nothing_of_the_clock(tmp_path: Path) -> None:
    """Every launch waits in the queue for 40 us or longer: no device is so late, the recorded clock stands."""
    rows = [kernel(GEMM, 20 * place + 40, 20 * place + 59, 20 * place) for place in range(1, 50)]
    with load(rows, tmp_path) as trace:
        assert device_ahead(trace) == [((0,), 0, 0)]
        assert set(totals(trace)) == {"back_to_back"}


def test_no_offset_is_larger_than_100_us(tmp_path: Path) -> None:
    rows = [kernel(GEMM, 500 * place - 150, 500 * place - 100, 500 * place) for place in range(1, 50)]
    with load(rows, tmp_path) as trace:
        assert device_ahead(trace) == [((0,), -100, 0)]
        assert set(totals(trace)) == {"unknown"}


def rounds(offset: float, latency: float, back: float, count: int = 30, begin: float = 0, **more: Any) -> list[Any]:
    """Rounds of 100 us: a launch of 2 us, `latency` to the start of a kernel of 50 us, the wait for it ends `back` later.

    host     |launch|  |wait ...........................|
    device          |KKKKKKKKKKKKKKKKKKKKKKKKKKKKKKK|        its clock is `offset` ahead
    """
    rows: list[Any] = []
    for place in range(1, count + 1):
        at = begin + 100 * place
        rows.append(kernel(GEMM, at + latency + offset, at + latency + offset + 50, at, **more))
        rows.append(wait(at + 3, at + latency + 50 + back))
    return rows


def test_launches_and_waits_bound_the_clock_from_both_sides(tmp_path: Path) -> None:
    """A launch into the idle device takes 4 us and the return of a wait 1 us, on a clock that is 12 us late."""
    with load(rounds(12, 4, 1), tmp_path) as trace:
        # A launch takes 2 us at least, as long as its call, and 4.5 at most, as a return takes 0.5: 3.25 is the middle.
        assert device_ahead(trace) == [((0,), 12.75, 30)]
        (clock,) = gaps(trace).provenance["host_clock"]
        assert clock == {
            "ranks": [0],
            "start_ns": 0,
            "ahead_ns": 12_750,
            "least_ns": 11_500,
            "most_ns": 14_000,
            "launch_count": 30,
            "wait_count": 30,
        }
        assert set(totals(trace)) == {"host_late"}


def test_one_bad_wait_and_one_bad_launch_do_not_decide(tmp_path: Path) -> None:
    """A wait that ends 40 us before its kernel, and a kernel 90 us before its call."""
    rows = rounds(7, 4, 1)
    rows += [kernel(GEMM, 4017, 4067, 4000), wait(4003, 4020), kernel(GEMM, 4110, 4160, 4200)]
    with load(rows, tmp_path) as trace:
        assert device_ahead(trace) == [((0,), 7.75, 31)]


def test_a_wait_for_something_else_is_no_bound(tmp_path: Path) -> None:
    """The thread waits for the device of another thread: each wait ends 45 us before the kernel launched last."""
    rows = rounds(0, 6, -45)
    with load(rows, tmp_path) as trace:
        assert device_ahead(trace) == [((0,), 1, 0)]


def test_a_host_that_runs_ahead_waits_for_the_copy_before(tmp_path: Path) -> None:
    """Steps of 400 us; the host launches one, then waits for the read-back of the one before. The device is 12 us late.

    host     |launch 2, copy 2|  |wait for copy 1 ..|     |launch 3, copy 3|  |wait for copy 2
    device   KKKKKKKKKKKKKKKKKKKKKKKKKKKKKKK|copy 1|KKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKK|copy 2|
    """
    rows: list[Any] = []
    for step in range(1, 40):
        end = 400 * step
        rows += [
            kernel(GEMM, end - 399 + 12, end - 10 + 12, end - 780),
            copy("D2H", end - 9 + 12, end + 12, end - 775),
            wait(end - 380, end + 4),
        ]
    rows = [row for row in rows if not isinstance(row, Launch)] + [
        wait(400 * step - 370, 400 * step + 4) for step in range(1, 40)
    ]
    with load(rows, tmp_path) as trace:
        # No launch found the device idle: the wait alone tells, and a return takes 5 us elsewhere.
        assert device_ahead(trace) == [((0,), 13, 38)]


def test_a_copy_that_blocks_is_a_wait(tmp_path: Path) -> None:
    """cudaMemcpy to the host returns 6 us before the copy has ended on its clock, to the device long before that."""
    rows: list[Any] = [kernel(GEMM, 0, 1)]
    for place in range(1, 40):
        at = 100 * place
        call = {"api": "cudaMemcpy_v3020"}
        rows.append(Copy("H2D", (at + 11) * US, (at + 30) * US, launch=(at * US, (at + 4) * US), **call))
        rows.append(Copy("D2H", (at + 51) * US, (at + 60) * US, launch=((at + 40) * US, (at + 54) * US), **call))
    with load(rows, tmp_path) as trace:
        # Delay 11, lag -6: between 6.5 and 9; the shortest call takes 4.
        assert device_ahead(trace) == [((0,), 6.75, 39)]


def test_a_corrected_clock_is_cut_where_it_was(tmp_path: Path) -> None:
    """The device is 14 us late for 40 rounds, then its clock is set right."""
    rows = rounds(14, 4, 2, count=40) + rounds(0, 4, 2, count=40, begin=4000)
    with load(rows, tmp_path) as trace:
        found = find_gaps(trace).host_clocks
        assert [one.offset.ahead_ns / US for one in found] == [14.25, 0.25]
        assert 4068 * US < found[1].offset.start_ns <= 4104 * US
        assert set(totals(trace)) == {"host_late"}


def test_what_the_bounds_leave_open_is_told(tmp_path: Path) -> None:
    """Calls begin 1 us after the device ran dry, on a clock known to 3.5 us: late hosts, or launches on their way."""
    rows = [kernel(GEMM, 100 * place + 5, 100 * place + 99, 100 * place) for place in range(1, 40)]
    with load(rows, tmp_path) as trace:
        assert totals(trace) == {"host_late": 38 * 6 * US}
        answer = gaps(trace)
        assert answer.provenance["undecided_ns"] == 38 * 6 * US
        (notice,) = (notice for notice in answer.notices if notice.code == "host-clock")
        assert "to within 3.5 us" in notice.message
        assert notice.count is None  # a time is no count
    with load(rounds(0, 4, 1), tmp_path) as trace:
        assert gaps(trace).provenance["undecided_ns"] == 0
        assert "host-clock" not in {notice.code for notice in gaps(trace).notices}


def test_typical_latency_is_that_into_an_idle_device(tmp_path: Path) -> None:
    """30 launches into an idle device take 5 us; 60 queued ones wait 200 us; graph launches are counted apart."""
    rows: list[Any] = [kernel(GEMM, 1000 * place + 5, 1000 * place + 400, 1000 * place) for place in range(30)]
    rows += [
        kernel(NORM, 1000 * place + 401 + 30 * k, 1000 * place + 430 + 30 * k, 1000 * place + 201 + 30 * k)
        for place in range(30)
        for k in range(2)
    ]
    for place in range(30):
        rows += replay(500 + place, 1000 * place + 615, [NORM, NORM], launch=1000 * place + 600)
    with load(rows, tmp_path) as trace:
        assert find_gaps(trace).typical.rows() == [(0, False, 29, 5 * US), (0, True, 30, 15 * US)]


def test_devices_without_collectives_each_have_a_clock(tmp_path: Path) -> None:
    """GPU 1's clock is 9 us late; its launches into an idle device take 5 us as on GPU 0."""
    rows: list[Any] = []
    for rank, late in ((0, 0), (1, 9)):
        rows += [
            kernel(GEMM, 100 * place + 5 + late, 100 * place + 50 + late, 100 * place, pid=1000 + rank, device=rank)
            for place in range(1, 60)
        ]
    with load(rows, tmp_path, clock="auto") as trace:
        assert device_ahead(trace) == [((0,), 0, 0), ((1,), 9, 0)]
        typical = find_gaps(trace).typical.filter(pl.col("launch_count") > 0)
        assert typical.select("rank", "typical_ns").rows() == [(0, 5 * US), (1, 5 * US)]
    with load(rows, tmp_path, clock="trust") as trace:
        assert device_ahead(trace) == [((0, 1), 0, 0)]
        typical = find_gaps(trace).typical.filter(pl.col("launch_count") > 0)
        assert typical.select("rank", "typical_ns").rows() == [(0, 5 * US), (1, 14 * US)]
