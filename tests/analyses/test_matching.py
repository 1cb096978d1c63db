"""Pairs of ranks: the lag is found whatever was cut off or lost, or the answer is that it cannot be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyses.oracle_matching import best_offsets
from tests.analyses.oracle_rows import decode_job, with_clocks
from tracelens.analyses.clock import Clock
from tracelens.analyses.matching import match_pair, match_ranks
from tracelens.analyses.matching_tracks import Track

EXPORT = 100_000


def track(job, rank, keep=slice(None), operation=None, family=None):
    rows = np.arange(len(job.key))[keep]
    if operation is not None:
        rows = rows[job.operation[rows] == operation]
    end = job.end[rows, rank].astype(np.int64)
    return Track(end, job.key[rows], end - job.start[rows, rank].astype(np.int64), family or 0)


def difference(match, at):
    return match.clock.at(float(at))


def test_one_file_twelve_microseconds_apart():
    """Ends on two GPU clocks of one file; a lag of one layer would be 100 us, of one collective 50 us."""
    job = with_clocks(decode_job(2, 60, 8, 1), np.array([0.0, 12_000.0]))
    match = match_pair(track(job, 0), track(job, 1), window_ns=EXPORT)
    assert match.status == "matched"
    assert difference(match, job.end[:, 1].mean()) == pytest.approx(12_000, abs=20)
    assert match.score_ns < 150
    assert match.next_score_ns > 2 * match.score_ns


@pytest.mark.parametrize(("head", "tail"), [(300, 0), (0, 310), (137, 211)])
def test_cut_heads_and_tails(head, tail):
    """|-------x0000000|  rank 0 starts hundreds of kernels late,
    |0000000x-------|  rank 1 ends hundreds early: all of what both hold still pairs.
    """
    job = with_clocks(decode_job(2, 60, 8, 2), np.array([0.0, -9_000.0]))
    match = match_pair(
        track(job, 0, slice(head, None)), track(job, 1, slice(None, len(job.key) - tail)), window_ns=EXPORT
    )
    assert match.status == "matched"
    assert match.covered == len(job.key) - head - tail
    assert difference(match, job.end[:, 1].mean()) == pytest.approx(-9_000, abs=20)


@pytest.mark.parametrize("window", [1_000_000_000, None])
def test_files_milliseconds_apart_that_drift(window):
    """Two files, 12 ms apart, 30 ppm: thousands of possible lags, with a session time good to 1 s and without one."""
    job = with_clocks(decode_job(2, 100, 16, 3), np.array([0.0, 12e6]), np.array([0.0, 30e-6]))
    match = match_pair(track(job, 0, slice(200, None)), track(job, 1), window_ns=window)
    assert match.status == "matched"
    assert match.clock.drift[0] * 1e6 == pytest.approx(30, abs=0.2)
    apart = job.end[1500:1600, 1] - job.end[1500:1600, 0]
    assert difference(match, job.end[1500:1600, 1].mean()) == pytest.approx(apart.mean(), abs=50)


@pytest.mark.parametrize("loser", [0, 1])
def test_forty_lost_in_the_middle(loser):
    """|000000    000000|  on one side; pairs by index would be off by 40 for the whole second half."""
    job = with_clocks(decode_job(2, 60, 8, 4), np.array([0.0, 7_000.0]))
    keep = np.r_[0:500, 540 : len(job.key)]
    tracks = [track(job, 0), track(job, 1)]
    tracks[loser] = track(job, loser, keep)
    match = match_pair(*tracks, window_ns=EXPORT)
    assert match.status == "matched"
    assert match.score_ns < 150


@pytest.mark.parametrize("size", [-12_400.0, 6_000.0, 18_000.0])
def test_a_clock_step_inside_the_capture(size):
    job = decode_job(2, 100, 8, 5)
    when = float(np.quantile(job.true_end, 0.35))
    with_clocks(job, np.array([0.0, 4_000.0]), 0.0, (1, when, size))
    match = match_pair(track(job, 0), track(job, 1), window_ns=EXPORT)
    assert match.status == "matched"
    assert difference(match, job.end[0, 1]) == pytest.approx(4_000, abs=200)
    assert difference(match, job.end[-1, 1]) == pytest.approx(4_000 + size, abs=200)


def test_identical_kernels_at_equal_distances_are_ambiguous():
    """1,000 kernels exactly 30 us apart, ends scattered by 100 ns: three lags fit alike inside 100 us."""
    rng = np.random.default_rng(0)
    ends = np.arange(1000) * 30_000
    sides = [(ends + rng.normal(0, 100, 1000)).astype(np.int64) for _ in range(2)]
    tracks = [Track(end, np.zeros(1000, np.int64), np.full(1000, 9_000)) for end in sides]
    assert match_pair(*tracks, window_ns=EXPORT).status == "ambiguous"


@pytest.mark.parametrize("noise", [0.002, 0.01])
def test_replicas_that_never_meet_do_not_match(noise):
    """Two jobs of one kind, started together: their all-gathers alone offer a single lag, and it fits to 5 us."""
    first = decode_job(2, 60, 8, 6, compute_noise=noise, step_noise_ns=300)
    second = decode_job(2, 60, 8, 7, compute_noise=noise, step_noise_ns=300)
    for operation in (0, 1):
        match = match_pair(
            track(first, 0, operation=operation), track(second, 0, operation=operation), window_ns=EXPORT
        )
        assert match.status != "matched"
        assert match.clock is None


def test_streams_are_matched_together():
    """Each layer has one all-reduce on stream A and one on stream B; A fits B half a layer away as well.

    rank 0   A..B..A..B..        at +0:     A-A, B-B
    rank 1   A..B..A..B..        at +47 us: A-B, and nothing for the other
    """
    job = with_clocks(
        decode_job(2, 60, 8, 8, gather=False, compute_noise=0.0, arrival_noise_ns=20), np.array([0.0, 3e3])
    )
    even, odd = np.arange(0, len(job.key), 2), np.arange(1, len(job.key), 2)
    tracks = [[track(job, rank, rows) for rows in (even, odd)] for rank in (0, 1)]
    match = match_ranks(*tracks, window_ns=EXPORT)
    assert match.status == "matched"
    assert difference(match, job.end[:, 1].mean()) == pytest.approx(3_000, abs=20)


def test_too_few_to_place():
    job = with_clocks(decode_job(2, 2, 4, 9), np.zeros(2))
    assert match_pair(track(job, 0), track(job, 1), window_ns=EXPORT).status == "short"


@pytest.mark.parametrize("seed", range(4))
def test_as_the_quadratic_matcher_says(seed):
    """40 to 60 instances, a few lost on both sides, every pair of ends tried as a lag."""
    rng = np.random.default_rng(seed)
    job = with_clocks(decode_job(2, 7, 4, seed), rng.uniform(-14e3, 14e3, 2))
    keeps = [np.sort(rng.choice(len(job.key), len(job.key) - 5, replace=False)) for _ in range(2)]
    first, second = (track(job, rank, keep) for rank, keep in enumerate(keeps))
    match = match_pair(first, second, window_ns=EXPORT)
    expected = best_offsets(first.end, first.key, second.end, second.key, EXPORT)
    assert match.status == "matched"
    assert difference(match, second.end.mean()) == pytest.approx(expected[0][1], abs=60)
    assert match.score_ns == pytest.approx(expected[0][0], abs=25)
    assert 2 * expected[0][0] <= expected[1][0]


@given(
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 2)), min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 2)), min_size=1, max_size=60),
    st.integers(-500, 500),
    st.sampled_from([0.0, 1e-3, -1e-3]),
)
@settings(max_examples=300, deadline=None)
def test_distances_to_nearest_ends_are_those_of_all_pairs(own, other, offset, drift):
    """Ends every 100 ns to 60 us, look-alikes and equal times among them: no guess may miss a nearer end of one key."""
    source, target = (
        Track(np.array([100 * t for t, _ in rows]), np.array([k for _, k in rows]), np.zeros(len(rows), np.int64))
        for rows in (sorted(own), sorted(other))
    )
    clock = Clock(0.0, np.array([-np.inf]), np.array([100.0 * offset]), np.array([drift]))
    expected = []
    for end, key in zip(source.end - source.end[0], source.key, strict=True):
        there = float(end) + 100.0 * offset + drift * float(end)
        if -20_000 <= there <= float(target.end[-1] - target.end[0]) + 20_000:
            apart = [abs(round(there) - int(e - target.end[0])) for e in target.end[target.key == key]]
            expected.append(min([20_000, *apart]))
    assert target.axis.clipped_deviations(source.axis, clock).tolist() == expected
