"""Kernels that were counted in the wrong place, end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.drawn import GEMM, MS, US, decode, kernel, titles
from tests.running import by_rank, tracelens
from tracelens.simulate import CaptureSpec, write, write_events

AR_FUSION = (
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(int)8, __nv_bfloat16>(T1)"
)
#: name -> operation, implementation; taken one by one for something else by tools that go by a prefix.
COMMUNICATION = {
    "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)": ("all_reduce", "nccl_symmetric"),
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)": ("all_reduce", "nccl"),
    "ncclKernel_AllReduce_RING_LL_Sum_half": ("all_reduce", "nccl"),
    "nccldevkernel_allreduce_sum_bf16_ring_ll": ("all_reduce", "nccl"),
    "void multimem_all_reduce_kernel<c10::BFloat16, (int)16>(T1 *, unsigned long)": ("all_reduce", "multimem"),
    "void two_shot_all_reduce_kernel_inplace<c10::BFloat16, (int)16>(T1 **, unsigned long)": (
        "all_reduce",
        "symm_mem_two_shot",
    ),
    "void one_shot_all_reduce_kernel<c10::BFloat16, (int)16>(T1 **, T1 *)": ("all_reduce", "symm_mem_one_shot"),
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, (int)8>(vllm::RankData *)": ("all_reduce", "custom_1stage"),
    "void vllm::cross_device_reduce_2stage<__nv_bfloat16, (int)8>(vllm::RankData *)": ("all_reduce", "custom_2stage"),
}


def test_every_kind_of_all_reduce_is_communication_with_its_implementation() -> None:
    """Names changed four times, and each time the sum fell to zero (sgl-project/sglang#22354, vllm-project/vllm#22971)."""
    answer = tracelens("rules", "explain", *COMMUNICATION, "--format", "json").json["explain"]
    assert {row["bucket"] for row in answer} == {"nccl_and_custom_ar"}
    assert {row["kernel_name"]: (row["collective"], row["implementation"]) for row in answer} == COMMUNICATION


@pytest.mark.parametrize(
    "name", [AR_FUSION, "void tensorrt_llm::_v1::kernels::ar_fusion::allreduce_fusion_kernel<T1>(T1)"]
)
def test_an_all_reduce_with_a_norm_in_it_is_communication(name: str) -> None:
    """It was taken for attention, because `flashinfer` holds `flash` (NVIDIA/TensorRT-LLM#7020)."""
    (row,) = tracelens("rules", "explain", name, "--format", "json").json["explain"]
    assert (row["bucket"], row["collective"], row["fused"]) == ("nccl_and_custom_ar", "all_reduce", True)


def test_a_reduction_on_one_gpu_is_none() -> None:
    names = ["void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float>>(T3)", GEMM]
    rows = tracelens("rules", "explain", *names, "--format", "json").json["explain"]
    assert [(row["bucket"], row["collective"]) for row in rows] == [("reduce", None), ("gemm", None)]


def test_an_implementation_that_changes_with_the_batch_stays_in_one_bucket(tmp_path: Path) -> None:
    """Thresholds switch kernels silently (vllm-project/vllm#33839): one bucket, two rows with their calls and medians."""
    write(
        CaptureSpec(
            tp=2,
            layers=2,
            steps=40,
            rungs=(8, 64),
            all_reduce="custom_1stage",
            switch_batch=32,
            all_reduce_large="nccl",
        ),
        tmp_path,
        truth=False,
    )
    answer = tracelens("collectives", "--format", "json", cwd=tmp_path).json
    mine = {row["implementation"]: row for row in answer["operations"] if row["collective"] == "all_reduce"}
    assert {name: row["call_count"] for name, row in mine.items()} == {"custom_1stage": 80, "nccl": 80}
    assert all(row["duration_p50_ns"] > 0 for row in mine.values())
    counts = by_rank(tracelens("bucket", "--format", "json", cwd=tmp_path).json, "kernel_count")
    assert counts[0]["nccl_and_custom_ar"] == 80 + 80 + 40


def test_an_eighth_of_the_time_is_no_bandwidth_without_a_size(tmp_path: Path) -> None:
    """A long custom all-reduce was read as a slow link (sgl-project/sglang#6067): without bytes there is no GB/s."""
    write(CaptureSpec(tp=2, layers=2, steps=40), tmp_path, truth=False)
    answer = tracelens("collectives", "--format", "json", cwd=tmp_path).json["operations"]
    assert {(row["message_bytes"], row["bus_bw_gbps"]) for row in answer} == {(None, None)}
    assert "GB/s" not in tracelens("collectives", cwd=tmp_path).out


def test_a_third_of_each_token_in_86_all_reduces(tmp_path: Path) -> None:
    """86 calls of 1.1 ms in 267 ms a token (cloudrift-ai/emmy#858): 36 % by share of elapsed time."""
    rows, at = [*titles(1)], 10 * MS
    name = next(iter(COMMUNICATION))
    for _ in range(3):
        rows.append(decode(0, at - 30 * US))
        for _ in range(86):
            rows.append(kernel(GEMM, 0, at, at + 2_004_651, at - 20 * US))
            rows.append(kernel(name, 0, at + 2_004_651, at + 2_004_651 + 1_100_000, at - 10 * US))
            at += 3_104_651
    answer = tracelens("steps", write_events(rows, tmp_path / "rank0.sqlite"), "--format", "json").json
    (row,) = answer["summary"]
    assert row["mean_ns"] == pytest.approx(267 * MS, rel=0.001)
    assert row["collective_mean_ns"] == 86 * 1_100_000
    shares = by_rank(tracelens("bucket", tmp_path / "rank0.sqlite", "--format", "json").json, "elapsed_frac")[0]
    assert shares["nccl_and_custom_ar"] == pytest.approx(0.354, abs=0.001)


def test_one_more_microsecond_of_lambda_is_the_calls_of_a_step() -> None:
    """15 us assumed for each of 128 all-reduces is 2 ms of error (ai-dynamo/aiconfigurator#1062)."""
    words = [
        "predict",
        "--layers",
        "64",
        "--width",
        "8192",
        "--streamed-gb",
        "140",
        "--tp",
        "8",
        "--lambda-us",
        "5",
        "20",
    ]
    ran = tracelens(*words, "--format", "json")
    low, high = ran.json["prediction"]
    assert high["collective_us"] - low["collective_us"] == pytest.approx(128 * 15)
    assert high["step_us"] - low["step_us"] == pytest.approx(1_920)
    assert "One microsecond more per all-reduce is 128 us a step" in tracelens(*words).out


def test_collectives_on_the_stream_of_compute_lead_the_findings(tmp_path: Path) -> None:
    """0 % overlap, ranked 390 of 401 by another tool (GindaChen/nsys-ai#134): one line here, by what it costs."""
    write(CaptureSpec(tp=2, layers=4, steps=30, all_reduce="nccl", bubble_ns=2_000), tmp_path, truth=False)
    from tracelens import load

    with load(tmp_path) as trace:
        found = trace.report()["findings"]
    named = found["finding"].to_list()
    assert len(named) <= 8
    assert "Compute and collectives share stream 7: 0% overlap" in named[:5]
    assert found["per_step_ns"].is_sorted(descending=True)
