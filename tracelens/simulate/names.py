"""Kernel names as nsys shows them, per engine and data type, and the families of collective kernels.

Names are public: they are the symbols that vLLM, SGLang, TensorRT-LLM, FlashInfer, PyTorch and NCCL compile. Template
arguments that carry shapes are plausible for one rank of a mid-sized model; nothing depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracelens.errors import UsageError

ENGINES = ("vllm", "sglang", "trtllm")
GEMM_NAMES = ("nvjet", "cutlass", "xmma", "deep_gemm")


@dataclass(frozen=True)
class Vocabulary:
    """The compute kernels of one engine and data type; `gemms` holds qkv, o, gate_up, down, logits."""

    embedding: str
    norm: str
    fused_norm: str
    gemms: dict[str, str]
    prefill_gemms: dict[str, str]
    rope: str
    kv_write: str
    attention: str
    prefill_attention: str
    activation: str
    quantize: str
    routing: str
    moe_gemm: str
    sampling: tuple[str, ...]
    elementwise: str
    spin: str = "void at::cuda::spin_kernel(long)"


_FA3 = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<(int)2, cute::tuple<cute::C<(int)1>, cute::C<(int)1>, cute::C<(int)1>>, cute::tuple<cute::C<(int){m}>, cute::C<(int)128>, cute::C<(int)128>>, (int)128, cutlass::bfloat16_t, float, cutlass::arch::Sm90>>>>(T1::Params)"

_ARGMAX = "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, (int)4, (int)4>>(T3)"
_COPY = "void at::native::vectorized_elementwise_kernel<(int)8, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)"
_GATHER = (
    "void at::native::vectorized_gather_kernel<(int)16, long>(char *, char *, T2 *, int, long, long, long, long, bool)"
)

_BASE: dict[str, Vocabulary] = {
    "vllm": Vocabulary(
        embedding=_GATHER,
        norm="void vllm::rms_norm_kernel<c10::BFloat16>(T1 *, const T1 *, long, const T1 *, float, int, int)",
        fused_norm="std::enable_if<T2>(int)0&&vllm::_typeConvert<T1>::exists, void>::type vllm::fused_add_rms_norm_kernel<c10::BFloat16, (int)8>(T1 *, long, T1 *, const T1 *, float, int, int)",
        gemms={},
        prefill_gemms={},
        rope="void vllm::rotary_embedding_kernel<c10::BFloat16, (bool)1>(const long *, T1 *, T1 *, const T1 *, int, long, long, long, int, int, int)",
        kv_write="void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(const T1 *, const T1 *, T2 *, T2 *, const long *, long, long, long, long, long, int, int, int, const float *, const float *)",
        attention=_FA3.replace("{m}", "64"),
        prefill_attention=_FA3.replace("{m}", "128"),
        activation="void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, (bool)1>(T1 *, const T1 *, int)",
        quantize="void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(T2 *, const T1 *, const float *, int, long, long)",
        routing="void vllm::moe::topkGating<(int)8, (int)128, (int)4, (int)16, (int)32, int, float, (vllm::moe::ScoringFunc)0>(const T6 *, const bool *, float *, int, T5 *, int *, int, int, int, bool)",
        moe_gemm="fused_moe_kernel",
        sampling=(_ARGMAX,),
        elementwise=_COPY,
    ),
    "sglang": Vocabulary(
        embedding=_GATHER,
        norm="void flashinfer::norm::RMSNormKernel<(unsigned int)8, __nv_bfloat16>(T2 *, T2 *, T2 *, unsigned int, unsigned int, unsigned int, float, float)",
        fused_norm="void flashinfer::norm::FusedAddRMSNormKernel<(unsigned int)8, __nv_bfloat16>(T2 *, T2 *, T2 *, unsigned int, unsigned int, unsigned int, float, float)",
        gemms={},
        prefill_gemms={},
        rope="void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheHeadParallelismKernel<(bool)0, (unsigned int)128, (unsigned int)8, (unsigned int)16, __nv_bfloat16, long>(T5 *, T5 *, T5 *, T5 *, float *, T6 *, unsigned int, unsigned int, unsigned int)",
        kv_write="void <unnamed>::store_kvcache<(long)2048, (int)4, (bool)1, long>(<unnamed>::StoreKVCacheParams)",
        attention="void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, (unsigned int)2, (unsigned int)4, (unsigned int)8, (unsigned int)16, (unsigned int)8, flashinfer::DefaultAttention<(bool)0, (bool)0, (bool)0, (bool)0>, BatchDecodeParams>(T8)",
        prefill_attention="void flashinfer::BatchPrefillWithRaggedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)1, (unsigned int)128, (unsigned int)2>, RaggedParams>(T2)",
        activation="void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu<float>>(T1 *, const T1 *, int)",
        quantize="void per_token_group_quant_8bit_kernel<c10::BFloat16, c10::Float8_e4m3fn, (bool)1, (bool)1, float>(const T1 *, void *, T5 *, int, int, int, float, float, float, int, int)",
        routing="void topkGatingSoftmax<float, (int)8, (int)128, (int)4, (int)16>(const T1 *, const bool *, float *, int, int *, int, int, int, bool)",
        moe_gemm="fused_moe_kernel",
        sampling=(
            "void flashinfer::sampling::OnlineSoftmaxFusedKernel<(unsigned int)1024, (unsigned int)4, float, (bool)1>(T3 *, T3 *, T3 *, T3, unsigned int)",
            "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<(unsigned int)1024, (cub::BlockScanAlgorithm)2, (cub::BlockReduceAlgorithm)2, (unsigned int)4, (bool)1, float, int>(T6 *, T6 *, float *, T7 *, T7 *, int, float, unsigned int, unsigned long, unsigned long)",
        ),
        elementwise=_COPY,
    ),
    "trtllm": Vocabulary(
        embedding=_GATHER,
        norm="void tensorrt_llm::kernels::generalRmsNorm<__nv_bfloat16, (bool)0>(const T1 *, const T1 *, T1 *, float, int, int, const float *, float *)",
        fused_norm="void tensorrt_llm::kernels::generalRmsNorm<__nv_bfloat16, (bool)1>(const T1 *, const T1 *, T1 *, float, int, int, const float *, float *)",
        gemms={},
        prefill_gemms={},
        rope="void tensorrt_llm::kernels::applyBiasRopeUpdateKVCacheV2<__nv_bfloat16, __nv_bfloat16, (int)128, (bool)0, tensorrt_llm::kernels::KVBlockArray, (bool)1>(tensorrt_llm::kernels::QKVPreprocessingParams<T1, T5>)",
        kv_write="void tensorrt_llm::kernels::updateKVCacheForCrossAttention<__nv_bfloat16, __nv_bfloat16, tensorrt_llm::kernels::KVBlockArray>(tensorrt_llm::kernels::QKVPreprocessingParams<T1, T3>)",
        attention="kernel_mha_dt_bf16_head_dim_128_kvt_bf16_nqpkv_4_m_16_sm_90_paged",
        prefill_attention="fmha_v2_flash_attention_bf16_64_256_S_qkv_128_causal_sm90_kernel",
        activation="void tensorrt_llm::kernels::doActivationKernel<__nv_bfloat16, (tensorrt_llm::ActivationType)3>(T1 *, const T1 *, const T1 *, int, int)",
        quantize="void tensorrt_llm::kernels::scale_1x128_kernel<__nv_bfloat16, __nv_fp8_e4m3>(T2 *, float *, const T1 *, int, int)",
        routing="void tensorrt_llm::kernels::customMoeRoutingKernel<__nv_bfloat16, float, int, (int)128, (int)8>(T1 *, T2 *, T3 *, int, int)",
        moe_gemm="void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<cute::tuple<long, long, long>>, tensorrt_llm::MoeGroupedGemm>>(T1::Params)",
        sampling=(_ARGMAX,),
        elementwise=_COPY,
    ),
}

_GEMM_SHAPES = {
    "nvjet": {
        "qkv": "nvjet_tst_64x8_64x16_4x1_v_bz_TNT",
        "o": "nvjet_tst_64x8_64x16_2x1_v_bz_splitK_TNT",
        "gate_up": "nvjet_tst_128x8_64x12_4x1_v_bz_TNT",
        "down": "nvjet_tst_64x8_64x16_1x4_h_bz_splitK_TNT",
        "logits": "nvjet_tst_256x8_64x6_2x1_v_bz_TNT",
        "prefill": "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT",
    },
    "cutlass": {
        "qkv": "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(T1::Params)",
        "o": "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_64x64_64x6_tn_align8>(T1::Params)",
        "gate_up": "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x4_tn_align8>(T1::Params)",
        "down": "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_128x64_64x4_tn_align8>(T1::Params)",
        "logits": "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x64_32x4_tn_align8>(T1::Params)",
        "prefill": "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(T1::Params)",
    },
    "xmma": {
        "qkv": "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "o": "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x32x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "gate_up": "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "down": "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x32x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "logits": "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize256x64x64_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_cublas",
        "prefill": "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    },
}
_DEEP = "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(unsigned int)0, (unsigned int){n}, (unsigned int){k}, (unsigned int)1, (unsigned int)64, (unsigned int)128, (unsigned int)128, (deep_gemm::GemmType)0>(float *, int *, unsigned int, unsigned int, unsigned int, CUtensorMap_st)"
_GEMM_SHAPES["deep_gemm"] = {
    "qkv": _DEEP.replace("{n}", "1536").replace("{k}", "4096"),
    "o": _DEEP.replace("{n}", "4096").replace("{k}", "1024"),
    "gate_up": _DEEP.replace("{n}", "7168").replace("{k}", "4096"),
    "down": _DEEP.replace("{n}", "4096").replace("{k}", "3584"),
    "logits": _GEMM_SHAPES["nvjet"]["logits"],
    "prefill": _DEEP.replace("{n}", "7168").replace("{k}", "7168"),
}


def vocabulary(engine: str, dtype: str, gemm_names: str | None) -> Vocabulary:
    """The compute kernels of an engine.

    Args:
        engine: vllm, sglang or trtllm.
        dtype: bf16 or fp8; fp8 quantises before each GEMM and uses deep_gemm unless told otherwise.
        gemm_names: nvjet, cutlass, xmma or deep_gemm; None is the data type's own.

    Raises:
        UsageError: unknown engine, data type or GEMM library.
    """
    if engine not in _BASE:
        raise UsageError(f"no engine {engine!r} in the simulator", f"one of {', '.join(_BASE)}")
    if dtype not in ("bf16", "fp8"):
        raise UsageError(f"no data type {dtype!r} in the simulator", "bf16 or fp8")
    chosen = gemm_names or ("deep_gemm" if dtype == "fp8" else "nvjet")
    if chosen not in _GEMM_SHAPES:
        raise UsageError(f"no GEMM library {chosen!r} in the simulator", f"one of {', '.join(GEMM_NAMES)}")
    shapes = _GEMM_SHAPES[chosen]
    return replace(
        _BASE[engine],
        gemms={key: shapes[key] for key in ("qkv", "o", "gate_up", "down", "logits")},
        prefill_gemms=dict.fromkeys(("qkv", "o", "gate_up", "down"), shapes["prefill"]) | {"logits": shapes["logits"]},
    )
