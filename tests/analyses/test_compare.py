"""Two runs compared: the planted change is named, nothing else is, and every nanosecond has its place."""

import io
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracelens.api as tracelens
from tracelens import array_room
from tracelens.analyses import timeline
from tracelens.analyses.compare import FLOOR_FRAC, compare_figures
from tracelens.analyses.compare_pairs import pair_names
from tracelens.analyses.compare_sides import CAUSES, Named, SideFigures, kept_of, load_side, shared_rung
from tracelens.analyses.gate import judge
from tracelens.errors import NotComparableError, UsageError
from tracelens.simulate import CaptureSpec, Costlier, ExtraKernel, Slow, Stall, write
from tracelens.views import compare as view
from tracelens.views.terminal import Screen

BASE = CaptureSpec(tp=4, steps=64, layers=32, seed=1, kernel_noise=0.01)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Loads a simulated capture, each specification once."""
    loaded = {}

    def load(spec):
        if spec not in loaded:
            folder = tmp_path_factory.mktemp("run")
            write(spec, folder, truth=False)
            loaded[spec] = tracelens.load(folder)
        return loaded[spec]

    yield load
    for trace in loaded.values():
        trace.close()


def closes(result):
    """Whether the deltas of buckets and gaps with the closing term sum to the step's, and calls x time to each delta."""
    verdict = result.verdict.row(0, named=True)
    parts = result.buckets["delta_ns"].sum() + result.gaps["delta_ns"].sum() + verdict["unattributed_ns"]
    split = all(
        (table["calls_part_ns"] + table["time_part_ns"] == table["delta_ns"]).all()
        for table in (result.buckets, result.kernels)
    )
    return parts == verdict["delta_ns"] and split


def findings(result, table):
    """Rows that are sure and above the floor."""
    step_ns = result.verdict["before_step_ns"][0]
    rows = result.tables[table]
    return rows.filter(rows["significant"] & (rows["delta_ns"].abs() > FLOOR_FRAC * step_ns))


def test_one_slower_call_among_sixty_four_is_ranked_first(run):
    """+249 us in the one all-gather of a step; 64 all-reduces a step stay as they are, all kernels have 1 % noise."""
    result = tracelens.compare(run(BASE), run(replace(BASE, seed=2, faults=(Costlier("all_gather", 249_000),))))
    first = result.kernels.row(0, named=True)
    assert "AllGather" in first["name"]
    assert first["delta_ns"] == pytest.approx(249_000, abs=5_000)
    assert first["before_calls"] == first["after_calls"] == 1
    assert first["calls_part_ns"] == 0
    assert findings(result, "kernels")["name"].to_list() == [first["name"]]
    assert findings(result, "collective_parts")["name"].to_list() == ["transfer and rest"]
    assert findings(result, "gaps").is_empty()
    assert result.verdict["delta_ns"][0] == pytest.approx(249_000, abs=5_000)
    assert "all_gather" in result.sentences[0]
    assert "longer by 24" in result.sentences[0]
    assert closes(result)


def test_gemms_of_another_library_are_found_as_one_bucket(run):
    result = tracelens.compare(run(BASE), run(replace(BASE, seed=2, gemm_factor=1.25, gemm_names="cutlass")))
    assert findings(result, "buckets")["name"].to_list() == ["gemm"]
    changed = result.kernels.filter(result.kernels["status"] == "implementation_changed")
    assert (
        changed["before_per_step_ns"].sum()
        == result.buckets.filter(result.buckets["name"] == "gemm")["before_per_step_ns"][0]
    )
    assert result.kernels.filter(result.kernels["status"].is_in(["appeared", "vanished"])).is_empty()
    assert closes(result)


def test_another_all_reduce_is_told_with_both_durations_per_call(run):
    result = tracelens.compare(run(BASE), run(replace(BASE, seed=2, all_reduce="nccl")))
    row = result.collectives.row(0, named=True)
    assert row["status"] == "implementation_changed"
    assert row["name"] == "all_reduce custom_2stage -> nccl"
    assert "per call" in result.sentences[0]


def test_more_calls_of_equal_time_are_told_as_calls(run):
    """92 % more calls of a 4 us kernel: 50 -> 96 a step."""
    name = "void extra::poll_kernel<int>(int *, int)"
    few, many = (replace(BASE, extra_kernels=(ExtraKernel(name, count, 4_000),)) for count in (50, 96))
    result = tracelens.compare(run(few), run(replace(many, seed=2)))
    row = result.kernels.row(0, named=True)
    assert (row["name"], row["before_calls"], row["after_calls"]) == (name, 50, 96)
    assert row["calls_part_ns"] == pytest.approx(row["delta_ns"], rel=0.02)
    assert "50 -> 96 calls a step, same time each" in " ".join(result.sentences)


def test_a_constant_per_call_is_told_per_call(run):
    """+2 us on each of 64 all-reduces."""
    result = tracelens.compare(run(BASE), run(replace(BASE, seed=2, faults=(Costlier("all_reduce", 2_000),))))
    row = result.collectives.row(0, named=True)
    assert row["name"] == "all_reduce custom_2stage"
    assert row["time_part_ns"] / row["after_calls"] == pytest.approx(2_000, abs=30)
    assert "longer by 2.00 us each (64 calls)" in result.sentences[0]


def test_host_stalls_on_one_rank_are_gaps_there_and_waiting_elsewhere(run):
    """48 stalls of 176 us a step on rank 0 of 8, and a kernel that became 46 % faster: the other 7 ranks wait."""
    eager = replace(BASE, tp=8, layers=12, launch="eager")
    faults = (
        Stall(ranks=(0,), stall_ns=176_000, per_step=48),
        Slow(ranks=tuple(range(8)), factor=0.54, bucket="activation"),
    )
    result = tracelens.compare(run(eager), run(replace(eager, seed=2, faults=faults)))
    parts = dict(result.collective_parts.select("name", "delta_ns").iter_rows())
    gaps = dict(result.gaps.select("name", "delta_ns").iter_rows())
    step_ns = result.verdict["before_step_ns"][0]
    stalled = 48 * 176_000
    assert parts["wait"] == pytest.approx(stalled * 7 / 8, rel=0.05)
    assert gaps["host_late"] + gaps["launch_latency"] == pytest.approx(stalled / 8, rel=0.05)
    assert abs(parts["transfer and rest"]) < FLOOR_FRAC * step_ns
    assert result.sentences[-1].startswith("The waiting follows rank 0: its gaps of cause host_late")
    assert "waiting in collectives" in result.sentences[0]
    assert closes(result)


def test_too_few_steps_give_no_interval_but_still_name_the_largest_change(run):
    short = replace(BASE, steps=6)
    result = tracelens.compare(run(short), run(replace(short, seed=2, faults=(Costlier("all_gather", 249_000),))))
    assert result.verdict["significant"].to_list() == [None]
    assert "no interval" in result.sentences[0]
    assert "all_gather" in result.sentences[0]
    assert "no-interval" in {notice.code for notice in result.notices}


def test_equal_runs_have_no_finding(run):
    result = tracelens.compare(run(BASE), run(replace(BASE, seed=2)))
    for table in ("buckets", "kernels", "gaps", "collective_parts"):
        assert findings(result, table).is_empty()
    assert "no change" in result.sentences[0] or "below the floor" in result.sentences[0]
    assert closes(result)


def test_other_rank_counts_are_not_compared(run):
    with pytest.raises(NotComparableError, match="4 ranks before, 2 after"):
        tracelens.compare(run(BASE), run(replace(BASE, tp=2)))


def test_other_rank_counts_go_before_other_rungs(run):
    """Batches differ too; what explains the most is told."""
    with pytest.raises(NotComparableError, match="4 ranks before, 2 after"):
        tracelens.compare(run(BASE), run(replace(BASE, tp=2, batch=1)))


def test_parts_and_their_sum_stand_in_one_line(run):
    slower = run(replace(BASE, seed=2, faults=(Costlier("all_gather", 249_000),)))
    result = tracelens.compare(run(BASE), slower)
    stream = io.StringIO()
    view.show(result, Screen(stream))
    (line,) = [line for line in stream.getvalue().splitlines() if line.startswith("Sum of the parts")]
    told = re.fullmatch(
        r"Sum of the parts: buckets ([-\d.]+) \+ gaps ([-\d.]+) \+ unattributed ([-\d.]+) = change ([-\d.]+) us\.", line
    )
    *parts, change = map(float, told.groups())
    assert sum(parts) == pytest.approx(change, abs=0.2)
    assert change == pytest.approx(249, abs=2)


def test_sides_give_back_what_the_comparison_made(run, tmp_path, monkeypatch):
    """Of the events nothing stays but when collectives waited; asked again, nothing is searched again."""
    monkeypatch.setattr(array_room, "_SMALL_BYTES", 0)
    write(BASE, tmp_path, truth=False)
    with tracelens.load(tmp_path) as trace:
        first = tracelens.compare(run(BASE), trace)
        wait_count = len(kept_of(trace).wait_id)
        assert wait_count > 1000
        assert trace.room._held_bytes == 2 * 8 * wait_count
        monkeypatch.setattr(timeline, "_build", pytest.fail)
        again = tracelens.compare(run(BASE), trace)
    assert all(again.tables[name].equals(first.tables[name]) for name in first.tables)


def test_what_is_known_of_a_side_is_not_searched_again(tmp_path, monkeypatch):
    write(BASE, tmp_path, truth=False)
    with tracelens.load(tmp_path) as trace:
        trace.steps()
        monkeypatch.setattr(timeline, "_build", pytest.fail)
        assert tracelens.compare(trace, trace).verdict["delta_ns"].to_list() == [0]


def test_a_baseline_gives_the_same_answer_as_its_capture(run, tmp_path):
    from tracelens.analyses.compare_sides import rungs_of, side_figures

    slower = run(replace(BASE, seed=2, faults=(Costlier("all_gather", 249_000),)))
    phase, rung, _ = rungs_of(run(BASE))[0]
    kept = side_figures(run(BASE), phase, rung)
    (tmp_path / "base").write_bytes(kept.save())
    direct = tracelens.compare(run(BASE), slower)
    again = compare_figures([load_side(tmp_path / "base")], [side_figures(slower, phase, rung)])
    for table in ("buckets", "kernels", "gaps", "ranks"):
        assert again.tables[table].equals(direct.tables[table])
    assert b"/" not in kept.save()[:2]
    (tmp_path / "text").write_text("no baseline")
    with pytest.raises(UsageError, match="not a baseline"):
        load_side(tmp_path / "text")


def side(rng, names, calls, scale, step_count=64, ranks=2):
    """Figures of random steps whose parts sum to the step."""
    elapsed = np.round(rng.gamma(50, scale, (step_count, len(names))))
    gaps = np.round(rng.gamma(20, scale, (step_count, len(CAUSES))))
    step_ns = elapsed.sum(axis=1) + gaps.sum(axis=1)
    return SideFigures(
        "decode",
        "bs=8",
        step_ns,
        int(np.median(step_ns)),
        names,
        elapsed,
        elapsed * 0.25,
        np.tile(calls, (step_count, 1)),
        gaps,
        {rank: {"gemm": 1.0} for rank in range(ranks)},
        {},
    )


@given(
    st.integers(0, 2**32),
    st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True),
    st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True),
)
@settings(max_examples=60, deadline=None)
def test_the_parts_sum_to_the_step_to_the_nanosecond(seed, before, after):
    rng = np.random.default_rng(seed)
    sides = []
    for names in (before, after):
        named = [
            Named(
                name,
                "gemm" if name < "c" else "attn",
                "all_reduce" if name == "f" else None,
                "nccl" if name == "f" else None,
                ord(name),
            )
            for name in names
        ]
        sides.append(side(rng, named, rng.integers(1, 9, len(names)).astype(float), rng.uniform(10, 1000)))
    result = compare_figures([sides[0]], [sides[1]])
    assert closes(result)
    # Rounding of each row's mean is all that may be left over: half a ns for each mean of each row.
    rows = result.buckets.height + result.gaps.height + 1
    assert abs(result.verdict["unattributed_ns"][0]) <= rows


def test_names_pair_within_their_bucket_in_the_order_in_which_they_run():
    """Two GEMMs change names; the third vanishes because nothing runs as often.

    before   a1 (x2)  a2 (x4)  a3 (x7)
    after    b1 (x2)  b2 (x4)
    """

    def named(name, place):
        return Named(name, "gemm", None, None, place)

    rng = np.random.default_rng(0)
    before = side(rng, [named("a1", 0), named("a2", 5), named("a3", 9)], np.array([2.0, 4.0, 7.0]), 10)
    after = side(rng, [named("b2", 6), named("b1", 1)], np.array([4.0, 2.0]), 10)
    assert [(pair.name, pair.status) for pair in pair_names(before, after)] == [
        ("a1 -> b1", "implementation_changed"),
        ("a2 -> b2", "implementation_changed"),
        ("a3", "vanished"),
    ]


def test_rungs_pair_by_name_then_by_frequency_or_not_at_all():
    assert shared_rung([("decode", "bs=8", 90), ("prefill", "bs=1", 99)], [("decode", "bs=8", 5)])[2] == "name"
    assert shared_rung([("decode", "4f1", 90)], [("decode", "99c", 80)]) == (
        ("decode", "4f1"),
        ("decode", "99c"),
        "frequency",
    )
    with pytest.raises(NotComparableError, match="no common phase and rung"):
        shared_rung([("decode", "bs=8", 90)], [("decode", "bs=16", 80)])


def test_the_gate_fails_only_if_the_whole_interval_lies_above_the_limit(run):
    result = tracelens.compare(run(BASE), run(replace(BASE, seed=2, faults=(Costlier("all_gather", 249_000),))))
    outcomes = [
        judge(result, limit, metric).outcome
        for limit, metric in (
            (0.02, "step"),
            (0.50, "step"),
            (0.02, "bucket:gemm"),
            (0.02, "collective"),
            (0.02, "gap"),
        )
    ]
    assert outcomes == ["fail", "pass", "pass", "fail", "pass"]
    exact = result.verdict["delta_frac"][0]
    assert judge(result, exact, "step").outcome == "inconclusive"
    for wrong in ("bucket:nosuch", "speed", "bucket"):
        with pytest.raises(UsageError):
            judge(result, 0.02, wrong)


def test_three_runs_give_signed_and_consistent_changes(run):
    base, bad = run(BASE), run(replace(BASE, seed=2, faults=(Costlier("all_gather", 249_000),)))
    there, back = tracelens.compare(base, bad), tracelens.compare(bad, base)
    for table, column in itertools.product(("verdict", "buckets", "gaps"), ("delta_ns",)):
        assert there.tables[table][column].sum() == -back.tables[table][column].sum()
