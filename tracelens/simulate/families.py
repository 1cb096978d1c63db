"""The families of collective kernels, by the names under which they show."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracelens.errors import UsageError

_STORAGE = "(ncclDevKernelArgsStorage<(unsigned long)4096>)"
_CUSTOM = "RankData *, {ns}::RankSignals, {ns}::Signal *, T1 *, int, int)"


@dataclass(frozen=True)
class Family:
    """One implementation of one collective operation.

    Attributes:
        operation: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv.
        implementation: the label that a reader of names should arrive at.
        name: demangled name; `{p}` is the number of ranks, `{ns}` the engine's namespace.
        transfer_ns: last arrival to end for a small message among 8 ranks.
        synchronising: every member waits for every other.
        follow_up: a second kernel of the same operation, run right after; empty for none.
        fused: it also does a residual add and norm, so no norm kernel follows.
        nccl: a host-side NCCL range accompanies an eager call.
    """

    operation: str
    implementation: str
    name: str
    transfer_ns: int
    synchronising: bool = True
    follow_up: str = ""
    fused: bool = False
    nccl: bool = False


_LAMPORT_PARAMS = "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionParams<T2>)"
_FUSED = "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_{kind}<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, (int){p}{rest}>"
_MNNVL = "void flashinfer::trtllm_mnnvl_allreduce::"
_SYMM = "(T1 **, unsigned long, unsigned long, unsigned int **, unsigned long, unsigned long)"

FAMILIES: dict[str, Family] = {
    "custom_1stage": Family(
        "all_reduce",
        "custom_1stage",
        "void {ns}::cross_device_reduce_1stage<__nv_bfloat16, (int){p}>({ns}::" + _CUSTOM,
        7_500,
    ),
    "custom_2stage": Family(
        "all_reduce",
        "custom_2stage",
        "void {ns}::cross_device_reduce_2stage<__nv_bfloat16, (int){p}>({ns}::" + _CUSTOM,
        9_500,
    ),
    "custom_one_shot": Family(
        "all_reduce",
        "custom_one_shot",
        "void <unnamed>::all_reduce_one_shot_push_kernel<__nv_bfloat16, (unsigned int){p}, (bool)1>"
        "(<unnamed>::AllReducePushData, device::distributed::PushController)",
        6_500,
    ),
    "custom_two_shot": Family(
        "all_reduce",
        "custom_two_shot",
        "void <unnamed>::all_reduce_two_shot_kernel<__nv_bfloat16, (unsigned int){p}, (bool)1>"
        "(<unnamed>::AllReducePullData)",
        9_000,
    ),
    "nccl": Family(
        "all_reduce",
        "nccl",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" + _STORAGE,
        15_000,
        nccl=True,
    ),
    "nccl_tree": Family(
        "all_reduce",
        "nccl",
        "ncclDevKernel_AllReduce_Sum_bf16_TREE_LL" + _STORAGE,
        14_000,
        nccl=True,
    ),
    "nccl_legacy": Family(
        "all_reduce",
        "nccl",
        "ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm *, unsigned long, ncclWork *)",
        18_000,
        nccl=True,
    ),
    "nccl_symmetric": Family(
        "all_reduce",
        "nccl_symmetric",
        "ncclSymkDevKernel_AllReduce_AGxLLMC_R_sum_bf16(ncclSymkDevWorkArgs4K)",
        12_000,
        nccl=True,
    ),
    "nccl_symmetric_two_shot": Family(
        "all_reduce",
        "nccl_symmetric",
        "ncclSymDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymDevArgs)",
        14_000,
        nccl=True,
    ),
    "multimem": Family(
        "all_reduce",
        "multimem",
        "void <unnamed>::multimem_all_reduce_kernel<c10::BFloat16, (int)16>"
        "(T1 *, unsigned long, unsigned int **, unsigned long, unsigned long)",
        11_500,
    ),
    "symm_mem_one_shot": Family(
        "all_reduce",
        "symm_mem_one_shot",
        "void <unnamed>::one_shot_all_reduce_kernel<c10::BFloat16, (int)16, (int){p}, (bool)0>" + _SYMM,
        11_000,
    ),
    "symm_mem_two_shot": Family(
        "all_reduce",
        "symm_mem_two_shot",
        "void <unnamed>::two_shot_all_reduce_kernel_inplace<c10::BFloat16, (int)16, (int){p}>" + _SYMM,
        14_500,
    ),
    "fused_one_shot": Family(
        "all_reduce",
        "fused_one_shot",
        _FUSED.replace("{kind}", "oneshot_lamport").replace("{rest}", ", (bool)1, (bool)0") + _LAMPORT_PARAMS,
        8_500,
        fused=True,
    ),
    "fused_two_shot": Family(
        "all_reduce",
        "fused_two_shot",
        _FUSED.replace("{kind}", "twoshot_sync").replace("{rest}", ", (bool)0") + _LAMPORT_PARAMS,
        12_500,
        fused=True,
    ),
    "mnnvl_one_shot": Family(
        "all_reduce",
        "mnnvl_one_shot",
        _MNNVL
        + "oneshotAllreduceFusionKernel<(unsigned char){p}, __nv_bfloat16, (bool)1, (bool)0>(T2 *, const T2 *, const T2 *, const T2 *, T2 **, T2 *, int, int, float, unsigned int *)",
        9_000,
        fused=True,
    ),
    "mnnvl_two_shot": Family(
        "all_reduce",
        "mnnvl_two_shot",
        _MNNVL
        + "twoshotAllreduceKernel<(unsigned char){p}, __nv_bfloat16, (bool)0>(T2 *, const T2 *, T2 **, T2 *, unsigned int, unsigned int, unsigned int *)",
        11_500,
        follow_up=_MNNVL
        + "rmsNormLamport<__nv_bfloat16, float, (int)8>(T1 *, T1 *, T1 *, const T1 *, const T1 *, float, unsigned int, unsigned int, unsigned int, unsigned int *)",
        fused=True,
    ),
    "moe_fused_one_shot": Family(
        "all_reduce",
        "fused_moe_one_shot",
        "void flashinfer::trtllm_moe_allreduce_fusion::moefinalize_allreduce_fusion_kernel_oneshot_lamport"
        "<__nv_bfloat16, (int){p}, (bool)0, (bool)1, (bool)1, (bool)0, __nv_bfloat16>(T2)",
        9_500,
        fused=True,
    ),
    "trtllm_one_shot": Family(
        "all_reduce",
        "fused_one_shot",
        "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport"
        "<(tensorrt_llm::kernels::ar_fusion::AllReduceFusionPattern)1, __nv_bfloat16, (int){p}, (bool)1, (bool)0>"
        "(tensorrt_llm::kernels::ar_fusion::AllReduceFusionParams)",
        8_000,
        fused=True,
    ),
    "userbuffers": Family(
        "all_reduce",
        "userbuffers",
        "userbuffers_fp16_sum_inplace_gpu_mc",
        10_500,
    ),
    "quick_reduce": Family(
        "all_reduce",
        "quick_reduce",
        "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__half, "
        "quickreduce::CodecQ4<__half, (int){p}>, (bool)1>, __half>(const T2 *, T2 *, unsigned int)",
        13_000,
    ),
    "msccl": Family("all_reduce", "msccl", "mscclKernel_Sum_hip_bfloat16_Simple", 16_000, nccl=True),
    "all_gather_nccl": Family("all_gather", "nccl", "ncclDevKernel_AllGather_RING_LL" + _STORAGE, 18_000, nccl=True),
    "all_gather_nccl_symmetric": Family(
        "all_gather", "nccl_symmetric", "ncclSymkDevKernel_AllGather_STMC(ncclSymkDevWorkArgs4K)", 12_000, nccl=True
    ),
    "all_gather_multimem": Family(
        "all_gather",
        "multimem",
        "void <unnamed>::multimem_all_gather_kernel<(int)16>(const T1 *, T1 *, unsigned long, unsigned int **)",
        11_000,
    ),
    "reduce_scatter_nccl": Family(
        "reduce_scatter", "nccl", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL" + _STORAGE, 14_000, nccl=True
    ),
    "dispatch_deep_ep": Family(
        "all_to_all",
        "deep_ep",
        "void deep_ep::intranode::dispatch<(int){p}, (int)768, (int)8192>(int4 *, float *, int *, long *, float *, "
        "int *, int *, const int4 *, const float *, const long *, const float *, const bool *, const int *, int, int)",
        21_000,
    ),
    "combine_deep_ep": Family(
        "all_to_all",
        "deep_ep",
        "void deep_ep::intranode::combine<__nv_bfloat16, (int){p}, (int)768, (int)4096>"
        "(T1 *, float *, const T1 *, const float *, const T1 *, const T1 *, const int *, const int *, int *, int, int)",
        23_000,
    ),
    "dispatch_deep_ep_low_latency": Family(
        "all_to_all",
        "deep_ep",
        "void deep_ep::internode_ll::dispatch<(bool)1, (bool)0, (int)7168>(void *, void *, int *, long *, int *, int)",
        16_000,
        synchronising=False,
    ),
    "combine_deep_ep_low_latency": Family(
        "all_to_all",
        "deep_ep",
        "void deep_ep::internode_ll::combine<(bool)0, (int)7168, (int)9>(void *, void *, int *, void *, const void *)",
        18_000,
        synchronising=False,
    ),
    "dispatch_trtllm": Family(
        "all_to_all",
        "trtllm_a2a",
        "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<(int)8, (bool)0>(T1)",
        14_000,
    ),
    "combine_trtllm": Family(
        "all_to_all",
        "trtllm_a2a",
        "void tensorrt_llm::kernels::moe_comm::moeA2ACombineKernel<__nv_bfloat16, (int)8>(T2)",
        15_000,
    ),
    "broadcast_nccl": Family(
        "broadcast", "nccl", "ncclDevKernel_Broadcast_RING_LL" + _STORAGE, 12_000, synchronising=False, nccl=True
    ),
    "send_recv_nccl": Family(
        "send_recv", "nccl", "ncclDevKernel_SendRecv" + _STORAGE, 10_000, synchronising=False, nccl=True
    ),
}
"""Every family that the simulator can play, by the word that `CaptureSpec` uses for it."""

ALL_REDUCES = tuple(name for name, family in FAMILIES.items() if family.operation == "all_reduce")
ALL_GATHERS = {
    "nccl": "all_gather_nccl",
    "nccl_symmetric": "all_gather_nccl_symmetric",
    "multimem": "all_gather_multimem",
    "send_recv": "send_recv_nccl",
}
ALL_TO_ALLS = ("deep_ep", "deep_ep_low_latency", "trtllm")


def family(name: str, ranks: int, engine: str) -> Family:
    """A family with the number of ranks and the engine's namespace in its name.

    Raises:
        UsageError: no such family.
    """
    known = FAMILIES.get(name)
    if known is None:
        raise UsageError(f"no collective family {name!r}", f"one of {', '.join(FAMILIES)}")
    space = "sglang" if engine == "sglang" else "vllm"
    filled = known.name.replace("{p}", str(ranks)).replace("{ns}", space)
    return replace(known, name=filled)
