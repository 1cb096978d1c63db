"""Maps read strictly, names classified by the first rule that finds them, collectives told by their names."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.errors import RuleError
from tracelens.ruleset import (
    Collective,
    Rule,
    RuleSet,
    detect_engine,
    load_collectives,
    load_maps,
    load_ruleset,
    parse_map,
    shipped_for,
    shipped_maps,
)
from tracelens.ruleset.corpus import example_names
from tracelens.ruleset.patterns import alternatives, compiled_or_reason, exploding_probe
from tracelens.ruleset.prefilter import as_series, candidates, relaxed
from tracelens.ruleset.spelling import function_name, integer, short_name, template_arguments

TWO_MAPS = """{
  "vllm": {
    "llama": {
      "nccl": "comm",
      ".*": "misc"
    },
    "ds": {
      "gemm": "gemm"
    }
  }
}
"""


def written(folder: Path, text: str) -> str:
    path = folder / "map.json"
    path.write_text(text, encoding="utf-8")
    return str(path)


def ruleset(*rules: tuple[str, str]) -> RuleSet:
    return RuleSet("test", "e", "m", "", tuple(Rule(at, *rule) for at, rule in enumerate(rules)))


# Reading


def test_order_lines_and_buckets_are_kept() -> None:
    assert parse_map(TWO_MAPS, "map.json") == {
        ("vllm", "llama"): (Rule(0, "nccl", "comm", 4), Rule(1, ".*", "misc", 5)),
        ("vllm", "ds"): (Rule(0, "gemm", "gemm", 8),),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: not JSON"),
        ('{"a": {"b": {"x": "y",}}}', "line 1: not JSON"),
        ('{"a": {\n "b": {\n  "x": "y"\n  "z": "y"}}}', "line 4: not JSON"),
        ("[]", "line 1: the file must be an object, found '[]'"),
        ('{"a": 3}', "line 1: the value of engine 'a' must be an object, found '3}'"),
        ('{"a": {\n"b": "c"}}', "line 2: the value of model 'b' must be an object"),
        ('{"a": {"b": {\n"x": "y",\n"z": 5}}}', "line 3: the bucket of regex 'z' must be a string, found '5}}}'"),
        ('{"a": {"b": {\n"x": null}}}', "line 2: the bucket of regex 'x' must be a string"),
        ('{"a": {"b": {"x": ""}}}', "line 1: the bucket of regex 'x' is empty"),
        ('{"a": {"b": {\n"x": "y",\n"x": "z"}}}', "line 3: a regex twice in a/b: 'x', first in line 2"),
        ('{"a": {"b": {"x": "y"}},\n"a": {}}', "line 2: an engine twice in the file: 'a', first in line 1"),
        ('{"a": {"b": {"x": "y"},\n"b": {}}}', "line 2: a model twice in engine 'a': 'b', first in line 1"),
        ("{}", "holds no map"),
        ('{"a": {"b": {}}}', "map a/b has no rules"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_map_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RuleError) as error:
        load_ruleset(written(tmp_path, text))
    assert said in error.value.message
    assert "map.json" in error.value.message
    assert error.value.hint
    assert "\n" not in error.value.message


def test_a_duplicate_written_with_escapes_is_one(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="twice"):
        load_ruleset(written(tmp_path, '{"a": {"b": {"gemm": "x", "ge\\u006dm": "y"}}}'))


def test_a_pattern_that_is_no_regex_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(RuleError) as error:
        load_ruleset(written(tmp_path, '{"a": {"b": {\n"ok": "x",\n"(open": "y"}}}'))
    assert "'(open' (rule 1 of map" in error.value.message
    assert "line 3" in error.value.message


def test_several_maps_ask_for_a_choice(tmp_path: Path) -> None:
    path = written(tmp_path, TWO_MAPS)
    with pytest.raises(RuleError, match="holds several maps: vllm/llama, vllm/ds") as error:
        load_ruleset(path)
    assert error.value.hint == "Choose one with --engine and --model"
    assert load_ruleset(path, model="ds").rules[0].bucket == "gemm"
    assert load_ruleset(path, "vllm", "llama").name == f"{path}:vllm/llama"
    with pytest.raises(RuleError, match="has no map for sglang/any"):
        load_ruleset(path, "sglang")
    assert [one.model for one in load_maps(path)] == ["llama", "ds"]


def test_not_a_map_at_all(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="no rule file"):
        load_ruleset(str(tmp_path / "none.json"))
    with pytest.raises(RuleError, match="neither a shipped map nor a file"):
        load_ruleset("vllm/nonesuch")
    with pytest.raises(RuleError, match="no shipped map for vllm/nonesuch"):
        load_ruleset(None, "vllm", "nonesuch")
    (tmp_path / "x.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(RuleError, match="not UTF-8"):
        load_ruleset(str(tmp_path / "x.json"))
    with pytest.raises(RuleError):
        load_ruleset(str(tmp_path))


def test_shipped_maps_are_found_by_name() -> None:
    names = list(shipped_maps())
    assert names[0] == "default"
    assert {"vllm/llama", "sglang/ds", "trtllm/gpt-oss", "vllm_engine/llama", "sglang_engine/llama"} <= set(names)
    assert load_ruleset().name == "default"
    assert load_ruleset(None, "vllm", "llama").name == "vllm/llama"
    assert load_ruleset(None, "vllm", None).name == "default"
    assert load_ruleset("vllm_engine/llama").engine == "vllm"
    assert shipped_for("vllm", "qwen") == "vllm/qwen"
    assert shipped_for("vllm", None) == "default"


@pytest.mark.parametrize("name", shipped_maps())
def test_every_shipped_pattern_is_a_regex(name: str) -> None:
    """Nobody looks when a map is loaded: a pattern is compiled when a name may match it."""
    ruleset = load_ruleset(name)
    assert all(ruleset.pattern(rule).pattern == rule.pattern for rule in ruleset.rules)


# Classifying


def test_first_search_wins_and_nothing_is_null() -> None:
    """
    rules    0 gemm -> a    1 ^nccl -> b    2 nccl -> c
    """
    one = ruleset(("gemm", "a"), ("^nccl", "b"), ("nccl", "c"))
    assert one.classify(["nccl_gemm", "ncclX", "xnccl", "other", "ncclX"]) == [0, 1, 2, None, 1]
    assert [one.bucket(at) for at in (0, 2, None)] == ["a", "c", "misc"]
    assert one.catch_all is None
    assert ruleset(("x", "a"), (".*", "rest")).catch_all == 1
    assert one.classify([]) == []


def test_an_exploding_pattern_names_itself_its_map_and_the_kernel() -> None:
    one = ruleset(("ok", "x"), ("(a|aa)+$", "y"))
    start = time.perf_counter()
    with pytest.raises(RuleError) as error:
        one.classify(["fine", "a" * 60 + "!"])
    assert time.perf_counter() - start < 5
    assert "'(a|aa)+$' (rule 1 of map test)" in error.value.message
    assert "aaaa" in error.value.message


def test_hostile_names_are_only_text() -> None:
    names = [
        "<script>alert(1)</script>",
        "\x1b[31mred",
        "=HYPERLINK(1)",
        "x" * 100_000,
        "kernel\nnccl",
        "",
        "\ud800",
        "名前_gemm",
    ]
    buckets = [load_ruleset().bucket(at) for at in load_ruleset().classify(names)]
    assert buckets == ["misc"] * 7 + ["gemm"]
    table = load_collectives()
    assert [table.classify(name) for name in names] == [None] * 8
    assert table.classify("all_reduce" * 10_000) is not None


def test_ten_thousand_names_take_a_fraction_of_a_second() -> None:
    """The limit is generous: the figure is a tenth of it on an idle machine."""
    names = [f"{name}{number}" for number in range(40) for name in example_names()][:10_000]
    one = load_ruleset()
    start = time.process_time()
    one.classify(names)
    assert time.process_time() - start < 2


@given(
    st.lists(
        st.sampled_from(
            [
                "a",
                "b",
                "ab",
                "[ab]",
                "(?<!a)",
                "(?!b)",
                "(?=a)",
                "$",
                "^",
                ".",
                "a?",
                "b*",
                "(?:a|b)",
                "|",
                "\\w",
                "x$|a",
            ]
        ),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.text("abx_ é", max_size=6), min_size=1, max_size=8),
)
@settings(max_examples=300, deadline=None)
def test_the_first_look_loses_no_name(parts: list[str], names: list[str]) -> None:
    """Whatever the relaxed pattern drops, a name that the pattern itself finds stays a candidate."""
    pattern = "".join(parts)
    compiled = compiled_or_reason(pattern)
    if isinstance(compiled, str):
        return
    found = {at for at, name in enumerate(names) if compiled.search(name)}
    kept = candidates(pattern, names, as_series(names), range(len(names)))
    assert found <= set(kept)


@pytest.mark.parametrize("pattern", ["a{2}", r"\bx", "[[a]", "(?x) a", "a(?i)b", r"(a)\1", "a++", "[a[b]]", "é"])
def test_what_two_engines_may_read_differently_is_not_relaxed(pattern: str) -> None:
    assert relaxed(pattern) is None


def test_relaxing_drops_context_only() -> None:
    assert relaxed(r"(?<![a-z])rope$|x(?!y\))+z") == "rope|x+z" or relaxed(r"(?<![a-z])rope$|x(?!y)z") == "rope|xz"
    assert relaxed(r"\$[)$]") == r"\$[)$]"


# Patterns


def test_alternatives_split_at_the_top_only() -> None:
    assert alternatives("a|b(?:c|d)|[|]|\\||e") == ["a", "b(?:c|d)", "[|]", "\\|", "e"]
    assert alternatives("(?i)a|b") == ["(?i)a", "(?i)b"]
    assert alternatives("[]|]x|y") == ["[]|]x", "y"]
    assert alternatives("abc") == ["abc"]


@pytest.mark.parametrize(
    ("pattern", "explodes"),
    [
        ("(a+)+$", True),
        (r"(\w+\s?)+$", True),
        ("(a|aa)+$", True),
        ("a.*b", False),
        (r"triton_\w*mm", False),
        ("gemm|nvjet", False),
    ],
)
def test_explosions_are_found_without_a_capture(pattern: str, explodes: bool) -> None:
    assert (exploding_probe(pattern) is not None) is explodes


# Spellings


def test_template_arguments_in_every_spelling() -> None:
    nsys = "void vllm::f<__half, (int)8, (bool)0, (ns::Enum)1>(T1 *)"
    torch = "void vllm::f<__half, 8u, false, (ns::(anonymous namespace)::Enum)1>(__half*)"
    mangled = "_ZN4vllm1fI6__halfLi8ELb0ELN2ns4EnumE1EEEvPT_"
    for name in (nsys, torch, mangled):
        arguments = template_arguments(name, re.search("f", name).end())  # type: ignore[union-attr]
        assert [integer(arguments, at) for at in (1, 2, 4, 5)] == [None, 8, 1, None], name
    cut_off = "void vllm::f<__half, (int)8"
    assert integer(template_arguments(cut_off, cut_off.index("f<") + 1), 2) is None
    nested = "f<std::array<a, 3>, (lambda)(g<1, 2>), 4>(x)"
    assert template_arguments(nested, 1) == ["std::array<a, 3>", "(lambda)(g<1, 2>)", "4"]


def test_the_function_itself() -> None:
    assert function_name("void (anonymous namespace)::f<g<h>>(k<l>)").split() == ["void", "::f"]
    assert function_name("std::enable_if<(8>(0))&&a<b>::c, void>::type vllm::f<T>(x)").endswith("vllm::f")
    assert function_name("plain_kernel") == "plain_kernel"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::unrolled_elementwise_kernel<f(at::T &)::[lambda() (instance 3)]>(int, T1)",
            "at::native::unrolled_elementwise_kernel",
        ),
        (
            "std::enable_if<(((int)8>(0)))&&(vllm::_typeConvert<T1>::exists), void>::type vllm::fused_add_rms_norm_kernel"
            "<c10::BFloat16, (int)8>(T1 *)",
            "vllm::fused_add_rms_norm_kernel",
        ),
        ("void at::native::<unnamed>::CatArrayBatchedCopy<int>(T1 *)", "at::native::CatArrayBatchedCopy"),
        ("void (anonymous namespace)::one_shot<int>(T1 *) const", "one_shot"),
        ("[CUDA memcpy Host-to-Device]", "[CUDA memcpy Host-to-Device]"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("nvjet_tst_96x64", "nvjet_tst_96x64"),
        ("a" * 40 + "b" * 40, "a" * 35 + "..." + "b" * 22),
        ("<>()", "<>()"),
    ],
)
def test_names_in_sentences(name: str, short: str) -> None:
    assert short_name(name) == short


# Collectives

FLASHINFER = "flashinfer::trtllm_allreduce_fusion"


@pytest.mark.parametrize(
    ("name", "operation", "implementation", "fused", "ranks"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)", "all_reduce", "nccl", False, None),
        ("ncclDevKernel_AllGatherV_RING_LL", "all_gather", "nccl", False, None),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv", "nccl", False, None),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce", "nccl", False, None),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast", "nccl", False, None),
        ("ncclDevKernel_Generic(ncclDevComm*, unsigned long, ncclWork*)", "unknown", "nccl", False, None),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_half", "reduce_scatter", "nccl", False, None),
        ("nccldevkernel_allreduce_sum_bf16_ring_ll", "all_reduce", "nccl", False, None),
        ("ncclSymDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymDevArgs)", "all_reduce", "nccl_symmetric", False, None),
        ("ncclSymkDevKernel_AllGather_STMC(x)", "all_gather", "nccl_symmetric", False, None),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, (int)8>(vllm::RankData *)", "all_reduce", "custom_1stage", False, 8),
        ("aiter::cross_device_reduce_2stage<bf16,4,false>", "all_reduce", "custom_2stage", False, 4),
        ("_ZN4vllm26cross_device_reduce_2stageI13__nv_bfloat16Li8EEEvPNS_8RankDataE", "all_reduce", "custom_2stage", False, 8),
        ("void (anonymous namespace)::all_reduce_one_shot_push_kernel<__nv_bfloat16, 8u, true>(x)", "all_reduce", "custom_one_shot", False, 8),
        ("void <unnamed>::multimem_all_reduce_kernel<c10::BFloat16, (int)16>(...)", "all_reduce", "multimem", False, None),
        ("multimem_one_shot_all_reduce_kernel", "all_reduce", "multimem", False, None),
        ("void (anonymous namespace)::multimem_all_gather_kernel<16>(char*)", "all_gather", "multimem", False, None),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(x)", "all_reduce", "symm_mem_two_shot", False, 2),
        ("void <unnamed>::one_shot_all_reduce_kernel<float, (int)16, (int)8, (bool)0>(x)", "all_reduce", "symm_mem_one_shot", False, 8),
        ("void c10d::intra_node_comm::oneShotAllReduceKernel<8u, true>(x)", "all_reduce", "symm_mem_one_shot", False, 8),
        (f"void {FLASHINFER}::allreduce_fusion_kernel_oneshot_lamport<({FLASHINFER}::AllReduceFusionPattern)1, __half, (int)4, (bool)0>(x)", "all_reduce", "fused_one_shot", True, 4),
        (f"void {FLASHINFER}::allreduce_fusion_kernel_twoshot_sync<({FLASHINFER}::AllReduceFusionPattern)0, __half, 2, true>(x)", "all_reduce", "fused_two_shot", False, 2),
        ("tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport", "all_reduce", "fused_one_shot", True, None),
        ("void ar_fusion::moe::moereduce_allreduce_fusion_kernel_oneshot_lamport<__half, 8, true>(x)", "all_reduce", "fused_moe_one_shot", True, 8),
        ("void mnnvl::oneshotAllreduceFusionKernel<(unsigned char)8, __half>(x)", "all_reduce", "mnnvl_one_shot", True, 8),
        ("void mnnvl::twoshotAllreduceKernel<(unsigned char)4, __half>(x)", "all_reduce", "mnnvl_two_shot", True, 4),
        ("quickreduce::allreduce_prototype_twoshot<x>", "all_reduce", "quick_reduce", False, None),
        ("mscclKernel_Sum_half_Simple", "all_reduce", "msccl", False, None),
        ("rcclGenericKernel<1, false>(x)", "unknown", "rccl", False, None),
        ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8", "reduce_scatter", "userbuffers", False, None),
        ("userbuffers_fp16_sum_inplace_gpu_mc_ag", "all_gather", "userbuffers", False, None),
        ("userbuffers_fp16_sum_inplace_gpu_rr", "all_reduce", "userbuffers", False, None),
        ("kuserbuffers_pullsend", "p2p", "userbuffers", False, None),
        ("void deep_ep::intranode::dispatch<(int)4, (int)768, (int)8192>(x)", "all_to_all", "deep_ep", False, 4),
        ("void deep_ep::intranode::combine<__nv_bfloat16, (int)8, (int)768>(x)", "all_to_all", "deep_ep", False, 8),
        ("void deep_ep::intranode::notify_dispatch<8>(x)", "barrier", "deep_ep", False, 8),
        ("void deep_ep::internode_ll::dispatch<true, true, 7168>(x)", "all_to_all", "deep_ep", False, None),
        ("moeA2ACombineKernel", "all_to_all", "trtllm_a2a", False, None),
        ("nvshmemi_transfer_rma_p", "p2p", "nvshmem", False, None),
        ("nvshmemi_barrier_all_kernel", "barrier", "nvshmem", False, None),
        ("my_all_gather_kernel<8>(x)", "all_gather", "other", False, None),
    ],
)  # fmt: skip
def test_every_family_is_known(name: str, operation: str, implementation: str, fused: bool, ranks: int | None) -> None:
    found = load_collectives().classify(name)
    assert found is not None
    assert (found.operation, found.implementation, found.fused, found.ranks) == (
        operation,
        implementation,
        fused,
        ranks,
    )


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float>>(T3)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>(x)",
        "void deep_ep::intranode::get_dispatch_layout<(int)256, (int)32, (int)8>(const long *)",
        "void flashinfer::trtllm_allreduce_fusion::lamport_initialize_kernel<__half>(__half*, unsigned long)",
        "userbuffers_rmsnorm",
        "_dcp_lse_combine_kernel",
        "moe_sum_reduce_kernel",
        "void block_all_reduce_sum_f32_f32_kernel<256>(float*, float*, int)",
        "combine",
        "dispatch",
        "void at::native::vectorized_gather_kernel<(int)16, long>(char *)",
        "tensorrt_llm::kernels::moe_comm::moeA2APrepareDispatchKernel(int*)",
        "[CUDA memcpy Peer-to-Peer]",
        "mbarrier_init_kernel",
    ],
)
def test_near_misses_are_no_collectives(name: str) -> None:
    assert load_collectives().classify(name) is None


def test_who_synchronises() -> None:
    table = load_collectives()
    synchronising = {
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": True,
        "ncclDevKernel_AllGather_RING_LL": True,
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL": True,
        "deep_ep::intranode::combine<x, 8>": True,
        "deep_ep::intranode::notify_dispatch<8>": True,
        "deep_ep::internode_ll::dispatch<true>": False,
        "ncclDevKernel_Broadcast_RING_LL": False,
        "ncclDevKernel_Reduce_Sum_f32_RING_LL": False,
        "ncclDevKernel_SendRecv": False,
        "ncclDevKernel_Generic_4": False,
        "kuserbuffers_pushsend": False,
    }
    assert {name: table.classify(name).synchronising for name in synchronising} == synchronising  # type: ignore[union-attr]


def test_the_second_half_of_an_operation_ends_no_barrier() -> None:
    halves = [
        load_collectives().classify(f"void flashinfer::trtllm_mnnvl_allreduce::{name}<(unsigned char)8>(x)")
        for name in ("twoshotAllreduceKernel", "rmsNormLamport")
    ]
    first, second = (half for half in halves if half is not None)
    assert first == Collective("all_reduce", "mnnvl_two_shot", True, True, True, 8)
    assert (second.operation, second.implementation, second.barrier_end) == ("all_reduce", "mnnvl_two_shot", False)


def test_the_algorithm_is_told_as_far_as_the_name_does() -> None:
    table = load_collectives()
    told = {
        "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)": "RSxLD_AGxST",
        "ncclSymkDevKernel_AllReduce_AGxLLMC_R_sum_f16(x)": "AGxLLMC_R",
        "ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(x)": "tree",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)": None,
    }
    assert {name: table.classify(name).algorithm for name in told} == told  # type: ignore[union-attr]


# Engines


def test_engine_and_model_by_evidence() -> None:
    found = detect_engine(["VLLM::Worker_TP0"], ["ncclDevKernel_AllReduce"], ["vllm", "meta-llama/Llama-3.1-8B"])
    assert (found.engine, found.model) == ("vllm", "llama")
    assert "'vllm'" in found.evidence
    assert "Llama-3.1-8B" in found.evidence
    assert detect_engine(["sglang::scheduler_TP3"], [], []).engine == "sglang"
    assert detect_engine([], ["void tensorrt_llm::kernels::mmha::f<x>()"] * 3, []).engine == "trtllm"
    assert detect_engine([], ["void sglang::act_and_mul_kernel<x>()"], ["deepseek-ai/DeepSeek-V3"]).model == "ds"
    assert detect_engine([], [], ["openai/gpt-oss-120b"]).model == "gpt-oss"
    nothing = detect_engine([], ["nvjet_tst_64x8"], [])
    assert (nothing.engine, nothing.model, nothing.evidence) == (None, None, "nothing in the capture names one engine")


def test_borrowed_kernels_do_not_decide() -> None:
    """vLLM runs FlashInfer's TensorRT-LLM kernels, and SGLang some of vLLM's."""
    names = [
        "void vllm::rms_norm_kernel<x>()",
        "void tensorrt_llm::kernels::quantize_with_block_size<(tensorrt_llm::BlockScaleQuantizationType)2>()",
    ]
    assert detect_engine([], names, []).engine == "vllm"
    assert detect_engine([], ["void vllm::f<x>()", "void sglang::f<x>()"], []).engine is None
    assert detect_engine(["sglang::scheduler"], ["void vllm::f<x>()"] * 9, []).engine == "sglang"


def test_the_table_is_one_file_apart_from_the_maps(tmp_path: Path) -> None:
    """No map, whatever it holds, is asked for what a collective is."""
    path = written(tmp_path, json.dumps({"e": {"m": {"nccl": "not_communication", "gemm": "nccl_and_custom_ar"}}}))
    load_ruleset(path)
    assert load_collectives().classify("ncclDevKernel_AllReduce_Sum_bf16_RING_LL") is not None
    assert load_collectives().classify("nvjet_tst_64x8") is None
