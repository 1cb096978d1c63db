"""All ranks on one clock, and every collective operation with its wait: against jobs whose truth is known."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyses.oracle_matching import waits
from tests.analyses.oracle_rows import aligned, decode_job, side_by_side, waits_of, with_clocks
from tracelens import array_room
from tracelens.analyses import (
    alignment_members,
    blocks,
    clock_joint,
    matching_groups,
    matching_instances,
    matching_tracks,
)
from tracelens.analyses.alignment import Alignment, align
from tracelens.errors import NotIdentifiableError
from tracelens.simulate import CaptureSpec, write
from tracelens.trace import open_trace


def reasons(alignment: Alignment) -> dict:
    """reason -> number of instances."""
    return dict(alignment.members.group_by("set_aside_reason").agg(pl.col("instance").n_unique()).iter_rows())


def check_waits(job, alignment, ranks, *, first=0, mean_ns=50, single_ns=100):
    position, found = waits_of(alignment, ranks)
    error = found - job.wait[position + first]
    assert np.abs(error.mean(axis=0)).max() < mean_ns
    assert np.quantile(np.abs(error), 0.95) < single_ns
    assert found.min() >= 0
    assert (found.min(axis=1) == 0).all()
    return position


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_one_file_with_gpu_clocks_apart(ranks):
    rng = np.random.default_rng(ranks)
    job = with_clocks(decode_job(ranks, 40, 8, ranks), rng.uniform(-14e3, 14e3, ranks))
    alignment = aligned(job)
    assert alignment.communicators["ranks"].to_list() == [list(range(ranks))]
    assert [s.method for s in alignment.sets] == ["ends"]
    position = check_waits(job, alignment, ranks)
    assert len(position) == len(job.key)


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_file_per_rank(ranks):
    """Sessions up to 12 ms off, clocks drifting by 30 ppm, heads and tails cut by hundreds of kernels."""
    rng = np.random.default_rng(ranks)
    job = decode_job(ranks, 60, 8, ranks)
    with_clocks(job, rng.uniform(-12e6, 12e6, ranks), rng.uniform(-30e-6, 30e-6, ranks))
    count = len(job.key)
    cuts = [(int(a), count - int(b)) for a, b in rng.integers(0, 260, (ranks, 2))]
    alignment = aligned(job, exports=list(range(ranks)), cuts=cuts)
    position = check_waits(job, alignment, ranks, first=min(a for a, _ in cuts))
    common = min(b for _, b in cuts) - max(a for a, _ in cuts)
    assert len(position) > 0.97 * common
    drifts = alignment.clock["drift_ppm"].to_numpy()
    assert drifts[0] == 0.0
    assert alignment.clock["offset_ns"][0] == 0.0


def test_a_step_of_one_clock():
    """Rank 2's clock gains 9 us at 40 % of the capture: its table has two rows, the waits are as without."""
    job = decode_job(4, 60, 8, 3)
    with_clocks(job, np.array([0.0, 5e3, -8e3, 1e3]), 0.0, (2, float(np.quantile(job.true_end, 0.4)), 9_000.0))
    alignment = aligned(job)
    check_waits(job, alignment, 4)
    assert alignment.clock["rank"].to_list() == [0, 1, 2, 2, 3]
    stepped = alignment.clock.filter(alignment.clock["rank"] == 2)
    assert stepped["offset_ns"].diff()[1] == pytest.approx(9_000, abs=100)


def test_63_replays_of_87_calls_with_one_call_lost():
    """One call of replay 40 is missing on rank 2: that instance is set aside, the next one pairs again."""
    job = with_clocks(decode_job(4, 63, 43, 7), np.array([0.0, 9e3, -12e3, 4e3]))
    alignment = aligned(job, lost=[(2, slice(40 * 87 + 10, 40 * 87 + 11))])
    assert reasons(alignment) == {None: 5_480, "a member's kernel is missing": 1}
    lost = alignment.members.filter(~alignment.members["accepted"])
    assert lost["position"].unique().to_list() == [40 * 87 + 10]
    assert lost["rank"].to_list() == [0, 1, 3]
    assert lost["wait_ns"].null_count() == 3


@pytest.mark.parametrize("loser", [0, 2])
def test_forty_kernels_lost_in_the_middle(loser):
    """All instances before and after the hole match, on the reference and on another rank."""
    job = with_clocks(decode_job(4, 40, 8, 11), np.array([0.0, 9e3, -12e3, 4e3]))
    alignment = aligned(job, lost=[(loser, slice(300, 340))])
    assert reasons(alignment) == {None: len(job.key) - 40, "a member's kernel is missing": 40}
    check_waits(job, alignment, 4)


@pytest.mark.parametrize("all_pairs", [64, 2])
def test_two_replicas_are_two_communicators(all_pairs, monkeypatch):
    """Ranks 0-3 and 4-7 run the same model from the same moment on, and never meet; all pairs compared, or few."""
    monkeypatch.setattr(matching_groups, "_ALL_PAIRS", all_pairs)
    for seed, noise in enumerate((0.002, 0.01)):
        jobs = [decode_job(4, 40, 8, 20 + seed + 10 * k, compute_noise=noise, step_noise_ns=300) for k in range(2)]
        alignment = aligned(with_clocks(side_by_side(*jobs), np.arange(8) * 1_500.0))
        assert alignment.communicators["ranks"].to_list() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert [s.ranks for s in alignment.sets] == [(0, 1, 2, 3), (4, 5, 6, 7)]
        assert alignment.notices == ()


def test_neither_threads_nor_blocks_nor_files_change_anything(monkeypatch):
    """Four ranks, 300 instances, kernels lost by one: as a whole in memory, and in threads, small blocks and files."""
    job = with_clocks(decode_job(4, 30, 8, 3), np.array([0.0, 9e3, -12e3, 4e3]), np.arange(4) * 5e-6)
    lost = [(2, slice(100, 115))]
    whole = aligned(job, lost=lost, threads=1)
    for module, name in ((blocks, "BLOCK"), (matching_instances, "BLOCK"), (matching_tracks, "BLOCK")):
        monkeypatch.setattr(module, name, 37)
    monkeypatch.setattr(alignment_members, "_ROWS", 44)
    monkeypatch.setattr(clock_joint, "_BLOCK_READINGS", 52)
    monkeypatch.setattr(clock_joint, "_BLOCK_LEAST", 5)
    monkeypatch.setattr(array_room, "_SMALL_BYTES", 1)
    cut = aligned(job, lost=lost, threads=3, room_bytes=0)
    assert cut.members.equals(whole.members)
    assert cut.clock.equals(whole.clock)
    assert cut.members["set_aside_reason"].null_count() < cut.members.height
    for name in ("wait_ns", "accepted", "communicator"):
        assert (getattr(cut.operations, name) == getattr(whole.operations, name)).all()


def test_auto_refuses_to_fit_few_instances():
    """8 all-reduces align any clocks: auto keeps the recorded ones and says so, `ends` refuses."""
    job = with_clocks(decode_job(4, 1, 4, 1, gather=False), np.zeros(4))
    alignment = aligned(job)
    assert [(s.method, s.residual_ns, s.chosen) for s in alignment.sets] == [("trust", None, False)]
    assert [n.code for n in alignment.notices] == ["clock-trusted"]
    assert alignment.clock["offset_ns"].to_list() == [0.0] * 4
    with pytest.raises(NotIdentifiableError, match="30 synchronising"):
        aligned(job, wanted="ends")


def test_trusted_clocks_set_aside_what_ends_apart():
    """Recorded clocks 12 us off, trusted on purpose: pairs are still found, and none is believed."""
    job = with_clocks(decode_job(2, 40, 8, 2), np.array([0.0, 12e3]))
    alignment = aligned(job, wanted="trust")
    assert reasons(alignment) == {"ends too far apart": len(job.key)}
    assert alignment.sets[0].chosen


def test_a_rank_that_leaves_late_looks_like_a_clock():
    """Rank 2 leaves every all-reduce 1.5 us late. Alone that is a clock offset; an all-gather gives it away."""
    leave = np.array([[0, 0, 1_500, 0], [0, 0, 0, 0]])
    alone = aligned(with_clocks(decode_job(4, 40, 8, 5, leave_ns=leave, gather=False), np.zeros(4)))
    assert alone.sets[0].asymmetry_ns is None
    assert alone.sets[0].single_operation == "all_reduce custom_2stage"
    both = aligned(with_clocks(decode_job(4, 40, 8, 5, leave_ns=leave), np.zeros(4)))
    assert both.sets[0].asymmetry_ns == pytest.approx(1_500, abs=60)
    assert both.sets[0].single_operation is None


def test_symmetric_operations_show_no_asymmetry():
    for seed in range(5):
        alignment = aligned(with_clocks(decode_job(4, 40, 8, seed), np.array([0.0, 9e3, -12e3, 4e3])))
        assert alignment.sets[0].asymmetry_ns < 30


SMALL = decode_job(3, 12, 4, 33)


@given(
    offset=st.integers(-13_000, 13_000),
    ppm=st.integers(-30, 30),
    rank=st.integers(0, 2),
)
@settings(max_examples=25, deadline=None)
def test_moving_a_clock_moves_no_wait(offset, ppm, rank):
    """A constant or a drift on one rank's clock changes every wait by less than the residual."""
    base = np.array([0.0, 4e3, -3e3])
    before = aligned(with_clocks(SMALL, base))
    _, expected = waits_of(before, 3)
    moved = base.copy()
    moved[rank] += offset
    after = aligned(with_clocks(SMALL, moved, np.where(np.arange(3) == rank, ppm * 1e-6, 0.0)))
    _, found = waits_of(after, 3)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= before.sets[0].residual_ns
    assert found.min() >= 0
    assert (found.min(axis=1) == 0).all()


def test_waits_are_those_of_the_arrivals():
    """Against instances and leads counted by hand on the aligned arrivals."""
    job = with_clocks(decode_job(3, 12, 4, 8), np.array([0.0, 5e3, -9e3]))
    alignment = aligned(job)
    rows = alignment.members.filter("accepted")
    arrivals = rows["arrival_ns"].to_numpy().reshape(-1, 3)
    expected, leads = waits(arrivals.tolist())
    assert rows["wait_ns"].to_numpy().reshape(-1, 3).tolist() == expected
    resolution = alignment.sets[0].resolution_ns
    last = rows["is_last"].to_list()
    for k, (who, lead) in enumerate(leads):
        assert last[3 * k : 3 * k + 3] == ([j == who for j in range(3)] if lead > resolution else [None] * 3)
    # duration = wait + (own end - last arrival), for every rank, to the nanosecond
    after = rows["aligned_end_ns"].to_numpy().reshape(-1, 3) - arrivals.max(axis=1, keepdims=True)
    duration = (rows["end_ns"] - rows["start_ns"]).to_numpy().reshape(-1, 3)
    assert (duration == np.array(expected) + after).all()


def test_aligned_times_and_back():
    job = with_clocks(decode_job(2, 40, 8, 2), np.array([0.0, 3e6]), np.array([0.0, 25e-6]))
    alignment = aligned(job, exports=[0, 1])
    own = job.end[:, 1].astype(np.int64)
    there = alignment.to_aligned(np.ones(len(own), np.int64), own)
    assert np.abs(there - job.end[:, 0]).max() < 1_000
    assert np.abs(alignment.to_local(np.ones(len(own), np.int64), there) - own).max() <= 1
    row = alignment.clock.filter(alignment.clock["rank"] == 1).row(0, named=True)
    by_hand = own - row["offset_ns"] - row["drift_ppm"] * 1e-6 * (own - row["t0_ns"])
    assert np.abs(by_hand - there).max() <= 1


def test_tables_in_the_database(tmp_path):
    """`clock` and `collective_member` are those of the trace that asked last, also where two share a database."""
    write(CaptureSpec(tp=4, layers=4, steps=20), tmp_path, truth=False)
    with open_trace([str(tmp_path)]) as trace:
        part = trace.with_options(ranks=(0, 1))
        ranks = "SELECT list_sort(list(DISTINCT rank)) FROM "
        for asked, expected in ((trace, [0, 1, 2, 3]), (part, [0, 1]), (trace, [0, 1, 2, 3])):
            align(asked)
            for table in ("clock", "collective_member"):
                assert trace.db.execute(ranks + table).fetchall() == [(expected,)]
