"""`collectives`: calls, durations, waits, exposure and bandwidth per operation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.running import REAL, needs_real, tracelens
from tracelens.analyses.collectives import CollectivesResult, collectives
from tracelens.analyses.collectives_tables import middle
from tracelens.simulate import CaptureSpec, Kernel, Stretch, simulate, write, write_events
from tracelens.trace import Options, open_trace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
ONE_STAGE = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, (int)2>(vllm::RankData *, int)"

# Five all-reduces of one size right after start-up, in ns: start, duration.
FIVE = [(226346811, 388991), (227936277, 190143), (229213039, 67296), (230568105, 23392), (231853796, 23104)]


def answer(path, **options):
    with open_trace([str(path)], Options(**options)) as trace:
        return collectives(trace, all=True)


def simulated(tmp_path, **spec):
    write(simulate(CaptureSpec(**spec)), tmp_path, truth=False)
    return answer(tmp_path)


def test_the_first_calls_are_start_up_skew(tmp_path):
    """Median 67.3 us, mean 138.6 us, and 23.1-23.4 us once the ranks are in step."""
    result = answer(write_events([Kernel(NCCL, s, s + d) for s, d in FIVE], tmp_path / "rank0.sqlite"))
    (row,) = result.tables["operations"].to_dicts()
    assert (row["call_count"], row["rank_count"], row["duration_p50_ns"]) == (5, 1, 67_296)
    assert row["wait_p50_ns"] is None
    assert row["class"] == "inconclusive"
    told = {notice.code: notice.message for notice in result.notices}
    assert "mean 138.6 us, median 67.3 us, steady part 23.1-23.4 us" in told["start-up-skew"]
    assert "include waiting" in told["durations-include-waiting"]


def test_overlap_with_another_stream(tmp_path):
    """A copy and a kernel on the collective's own stream hide nothing; a kernel of another stream does.

    stream 7    [==== all-reduce 0-100 ====]
    stream 7          [copy 10-30]
    stream 9               [gemm 40-90]          hidden 50, exposed 50
    """
    rows = [
        Kernel(ONE_STAGE, 1_000_000, 1_100_000, stream=7),
        Kernel("gemm", 1_040_000, 1_090_000, stream=9),
        Kernel("gemm", 1_100_000, 1_200_000, stream=7),
    ]
    result = answer(write_events(rows, tmp_path / "rank0.sqlite"))
    (row,) = result.tables["rank_operations"].to_dicts()
    assert row["overlap_frac"] == 0.5
    assert row["same_stream"] is True


def test_a_collective_wholly_under_compute(tmp_path):
    """188 ms of communication under a kernel of another stream: 0 exposed."""
    rows = [
        Kernel(NCCL, 10_000_000, 198_000_000, stream=20),
        Kernel("gemm", 5_000_000, 200_000_000, stream=7),
    ]
    (row,) = answer(write_events(rows, tmp_path / "rank0.sqlite")).tables["rank_operations"].to_dicts()
    assert (row["overlap_frac"], row["same_stream"]) == (1.0, False)


def test_calls_per_step(tmp_path):
    result = simulated(tmp_path, tp=4, layers=8, steps=20)
    rows = {row["collective"]: row for row in result.tables["operations"].to_dicts()}
    assert (rows["all_reduce"]["calls_per_step"], rows["all_gather"]["calls_per_step"]) == (16.0, 1.0)
    assert (rows["all_reduce"]["call_count"], rows["all_reduce"]["rank_count"]) == (320, 4)
    assert result.tables["rank_operations"]["calls_per_step"].to_list() == [1.0, 16.0] * 4
    assert len(result.tables["instances"]) == 20 * 17 * 4


def test_bandwidth_only_where_the_size_is_known(tmp_path):
    """Eager NCCL with payloads: S / t x 2 (n-1)/n; without payloads null."""
    spec = {"tp": 4, "layers": 4, "steps": 20, "launch": "eager", "all_reduce": "nccl"}
    known = simulated(tmp_path / "a", **spec, nccl_payload="json")
    rows = [r for r in known.tables["operations"].to_dicts() if r["collective"] == "all_reduce"]
    assert all(row["message_bytes"] for row in rows)
    for row in rows:
        expected = row["message_bytes"] / row["completion_p50_ns"] * 2 * 3 / 4
        assert row["bus_bw_gbps"] == pytest.approx(expected, rel=0.02)
    unknown = simulated(tmp_path / "b", **spec)
    assert unknown.tables["operations"]["bus_bw_gbps"].null_count() == len(unknown.tables["operations"])
    assert unknown.tables["operations"]["message_bytes"].null_count() == len(unknown.tables["operations"])


def test_a_switch_of_the_implementation_is_named(tmp_path):
    """Batches 8 and 64 in turn; from 32 on NCCL serves."""
    result = simulated(tmp_path, tp=4, layers=4, steps=40, rungs=(8, 64), switch_batch=32)
    said = " ".join(result.sentences)
    assert "all_reduce switches its implementation inside the capture" in said
    assert "custom_2stage in decode bs=8" in said
    assert "nccl in decode bs=64" in said


def test_warm_up_and_selection(tmp_path):
    """Only what the selection holds is counted, and what it leaves out is said by skew."""
    schedule = (Stretch("prefill", 1), Stretch("decode", 24))
    write(simulate(CaptureSpec(tp=2, layers=4, schedule=schedule)), tmp_path, truth=False)
    every, decode = answer(tmp_path), answer(tmp_path, phase="decode")
    assert len(every.tables["instances"]) - len(decode.tables["instances"]) == 9 * 2
    assert set(decode.tables["instances"]["step"].drop_nulls()) <= set(range(1, 25))


@given(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=40))
def test_the_middle_of_whole_numbers(values):
    ordered = sorted(values)
    low, high = ordered[(len(values) - 1) // 2], ordered[len(values) // 2]
    assert middle(np.array(values)) == round((low + high) / 2)


@needs_real
def test_a_real_capture_of_send_and_receive():
    result = answer(REAL / "h100x2_before.sqlite")
    (row,) = result.tables["operations"].to_dicts()
    assert (row["collective"], row["implementation"], row["communicator"]) == ("send_recv", "nccl", None)
    assert row["wait_p50_ns"] is None


def test_the_command(tmp_path):
    write(CaptureSpec(tp=2, layers=4, steps=20), tmp_path, truth=False)
    ran = tracelens("collectives", "--all", "--format", "json", cwd=tmp_path)
    assert ran.code == 0
    tables = [name for name in ran.json if name in CollectivesResult.schemas]
    assert tables == ["operations", "rank_operations", "instances"]
    assert list(ran.json["instances"][0]) == CollectivesResult.schemas["instances"].names
    shown = tracelens("collectives", cwd=tmp_path)
    assert shown.out.startswith("all_reduce (custom_2stage): 8 calls a step")
    assert max(len(line) for line in shown.out.splitlines()) <= 100
