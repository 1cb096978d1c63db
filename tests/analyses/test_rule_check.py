"""A linter for bucket maps, on names drawn by hand, and on the maps in circulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tracelens.analyses.rule_check import KINDS, check_rules
from tracelens.analyses.rule_diff import diff_rules
from tracelens.analyses.rule_explain import explain_names, list_maps, show_map
from tracelens.analyses.rule_names import names_of_examples
from tracelens.ruleset import Rule, RuleSet, load_ruleset, shipped_maps

PUBLIC_NAMES = Path(__file__).resolve().parents[3] / "shared" / "kernels" / "names.jsonl"

LAMPORT = (
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport"
    "<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, false, false>(x)"
)
ROTARY = "void vllm::rotary_embedding_kernel<c10::BFloat16, (bool)1>(const long *)"
SPLIT_K = "void cublasLt::splitKreduce_kernel<32, 16, int, float>(x)"
DENSE = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>>>(x)"


def ruleset(*rules: tuple[str, str]) -> RuleSet:
    return RuleSet("test", "e", "m", "", tuple(Rule(at, *rule) for at, rule in enumerate(rules)))


def timed(**names: int) -> pl.DataFrame:
    return timed_names(names)


def timed_names(names: dict[str, int]) -> pl.DataFrame:
    return pl.DataFrame(
        {"kernel_name": list(names), "kernel_ns": list(names.values())},
        schema={"kernel_name": pl.String, "kernel_ns": pl.Int64},
    )


def found(*rules: tuple[str, str], names: pl.DataFrame | None = None) -> list[dict[str, Any]]:
    result = check_rules([ruleset(*rules)], names_of_examples() if names is None else names)
    return result.findings.to_dicts()


def of_kind(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == kind]


def test_a_sound_map_has_no_findings() -> None:
    result = check_rules([load_ruleset(name) for name in shipped_maps() if "_engine/" not in name], names_of_examples())
    assert result.findings.height == 0
    assert result.notices == ()
    assert result.sentences[0].startswith("default: nothing to find fault with on ")


def test_columns_and_order_of_kinds() -> None:
    rows = found(("[", "x"), ("(a|aa)+$", "y"), ("flash", "attn"), ("zzz_nonesuch", "attn"))
    assert list(rows[0]) == ["map", "rule", "kind", "kernel_name", "time_frac", "suggestion"]
    kinds = [row["kind"] for row in rows]
    assert kinds == sorted(kinds, key=list(KINDS).index)
    assert {"invalid", "explodes", "no_catch_all", "collective_outside", "catch_all", "never_matches"} <= set(kinds)


def test_patterns_that_fail_or_explode_do_not_stop_the_others() -> None:
    rows = found(("[", "x"), ("(a|aa)+$", "y"), ("nvjet", "gemm"), (".*", "misc"), names=timed(nvjet_tst_64x8=5))
    assert [(row["rule"], row["kind"]) for row in rows] == [("[", "invalid"), ("(a|aa)+$", "explodes")]
    assert "unterminated character set" in rows[0]["suggestion"]


def test_what_never_matches_and_what_is_out_of_reach() -> None:
    """
    rules   0 nvjet -> gemm   1 zzz -> x   2 .* -> misc   3 gemm -> gemm
                              never        takes all      unreachable
    """
    rows = found(("nvjet", "gemm"), ("zzz_nonesuch", "x"), (".*", "misc"), ("gemm", "gemm"), names=timed(nvjet_a=1))
    assert [(row["rule"], row["kind"]) for row in rows] == [("gemm", "unreachable"), ("zzz_nonesuch", "never_matches")]
    assert "rule 2 '.*' (misc) takes everything" in rows[0]["suggestion"]


def test_a_rule_that_this_capture_does_not_need_is_no_finding() -> None:
    """`flash` finds nothing here, but shipped examples show that it is alive."""
    assert found(("nvjet", "gemm"), ("flash_fwd", "attn"), (".*", "misc"), names=timed(nvjet_a=1)) == []


def test_an_alternative_that_an_earlier_rule_always_takes() -> None:
    """
    rule 0  gemm -> gemm
    rule 1  nvjet|grouped_gemm -> moe_gemm     its second half holds `gemm`, so rule 0 has it in every name
    """
    rows = found(
        ("gemm", "gemm"), ("nvjet|grouped_gemm", "moe_gemm"), (".*", "misc"), names=timed(grouped_gemm_x=7, nvjet=1)
    )
    (row,) = of_kind(rows, "shadowed")
    assert row["rule"] == "nvjet|grouped_gemm"
    assert row["kernel_name"] == "grouped_gemm_x"
    assert row["time_frac"] == pytest.approx(7 / 8)
    assert "rule 0 'gemm' (gemm)" in row["suggestion"]


def test_an_anchored_rule_shadows_nothing_for_certain() -> None:
    rows = found(("^gemm", "x"), ("q|gemm", "y"), (".*", "misc"), names=timed(a_gemm=1, gemm_a=1, q=1))
    assert of_kind(rows, "shadowed") == []


def test_a_whole_rule_in_the_shadow_of_another() -> None:
    rows = found(
        ("flash", "attn"), ("flashinfer::norm", "norm"), (".*", "misc"), names=timed_names({"flashinfer::norm::x": 1})
    )
    (row,) = of_kind(rows, "shadowed")
    assert (row["rule"], row["kernel_name"]) == ("flashinfer::norm", "flashinfer::norm::x")


def test_case_slips() -> None:
    rows = found(
        ("Rotary", "rope"),
        ("SoftMax", "softmax"),
        (".*", "misc"),
        names=timed_names({ROTARY: 3, "softmax_warp_forward": 1}),
    )
    slips = of_kind(rows, "case")
    assert [(row["rule"], row["kernel_name"], row["time_frac"]) for row in slips] == [
        ("Rotary", ROTARY, 0.75),
        ("SoftMax", "softmax_warp_forward", 0.25),
    ]
    assert "(?i:Rotary)" in slips[0]["suggestion"]


def test_collectives_outside_and_others_inside() -> None:
    names = timed_names(
        {LAMPORT: 60, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": 30, "void at::native::reduce_kernel<x>": 10}
    )
    rows = found(("flash", "attn"), ("nccl|reduce_kernel", "comm"), (".*", "misc"), names=names)
    (outside,) = of_kind(rows, "collective_outside")
    assert (outside["rule"], outside["kernel_name"], outside["time_frac"]) == ("flash", LAMPORT, 0.6)
    assert outside["suggestion"].startswith("is all_reduce (fused_one_shot), but rule 0 'flash' (attn) takes it")
    (inside,) = of_kind(rows, "false_collective")
    assert (inside["rule"], inside["kernel_name"]) == ("nccl|reduce_kernel", "void at::native::reduce_kernel<x>")


def test_leftovers_by_share_of_time() -> None:
    """Names that the judge knows, and others from a thousandth of the time on; largest first."""
    names = timed(Fan2=900, nvjet_a=90, tiny_unknown=0, unknown=10)
    rows = of_kind(found((".*", "misc"), names=names), "catch_all")
    assert [(row["kernel_name"], row["time_frac"]) for row in rows] == [
        ("Fan2", 0.9),
        ("nvjet_a", 0.09),
        ("unknown", 0.01),
    ]
    assert rows[1]["suggestion"] == "default says gemm; add a rule"


def test_a_map_with_words_of_its_own_is_not_told_that_they_are_wrong() -> None:
    names = timed_names({"nvjet_a": 1, DENSE: 1, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": 1})
    assert found(("nccl", "communication"), ("nvjet|cutlass", "matrix products"), (".*", "rest"), names=names) == []


def test_findings_are_a_warning_that_counts_them() -> None:
    result = check_rules([ruleset(("nvjet", "gemm"))], timed(nvjet_a=1))
    (notice,) = result.notices
    assert (notice.code, notice.severity, notice.count) == ("rule-findings", "warning", 1)
    assert result.sentences == ("test: 1 finding on 1 name, 0.0% of the time in the catch-all.",)


def test_rows_of_the_names_may_come_in_any_order() -> None:
    names = timed_names({LAMPORT: 60, ROTARY: 3, SPLIT_K: 3, DENSE: 9, "nvjet_a": 1, "Fan2": 5})
    maps = [load_ruleset("vllm_engine/llama")]
    first = check_rules(maps, names).findings
    for seed in range(3):
        assert check_rules(maps, names.sample(fraction=1, shuffle=True, seed=seed)).findings.equals(first)


TRAPS = {
    "vllm_engine/llama": [
        ("collective_outside", "flash|fmha", "allreduce_fusion_kernel_oneshot_lamport"),
        ("collective_outside", "reduce_kernel", "multimem_all_reduce_kernel"),
        ("collective_outside", "reduce_kernel", "two_shot_all_reduce_kernel"),
        ("collective_outside", ".*", "ncclSymDevKernel_"),
        ("collective_outside", ".*", "ncclKernel_"),
        ("collective_outside", "moe|sigmoid", "moereduce_allreduce_fusion_kernel"),
        ("case", "Rotary", "rotary_embedding_kernel"),
        ("case", "SoftMax", "softmax_warp_forward"),
        ("disputed", "fused_moe_kernel|GroupProblemShape|group_gemm_starts|bmm_|GemmUniversal", "GemmUniversal"),
        ("disputed", "reduce_kernel", "splitKreduce"),
        ("catch_all", ".*", "[CUDA Unified Memory memcpy HtoD]"),
    ],
    "sglang_engine/llama": [
        ("collective_outside", "flash|fmha", "allreduce_fusion_kernel_oneshot_lamport"),
        ("shadowed", "fused_moe_kernel|GroupProblemShape|group_gemm_starts|bmm_|GemmUniversal", "GemmUniversal"),
        ("partly_shadowed", "fp8_quant|cvt_|quantize", "quantize"),
        ("case", "Rotary", "rotary_embedding_kernel"),
        ("disputed", "reduce_kernel", "splitKreduce"),
        ("catch_all", ".*", "[CUDA Unified Memory memcpy HtoD]"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", TRAPS)
def test_the_traps_of_the_maps_in_circulation_are_found(name: str) -> None:
    """Without a capture, from the shipped examples alone."""
    rows = check_rules([load_ruleset(name)], names_of_examples()).findings.to_dicts()
    for kind, rule, part in TRAPS[name]:
        hits = [row for row in of_kind(rows, kind) if row["rule"] == rule and part in (row["kernel_name"] or "")]
        assert hits, (kind, rule, part)


@pytest.mark.skipif(not PUBLIC_NAMES.is_file(), reason="no list of public kernel names beside this checkout")
def test_what_the_maps_in_circulation_lose_on_public_names() -> None:
    names = dict.fromkeys((json.loads(line)["name"] for line in PUBLIC_NAMES.read_text().splitlines()), 1)
    for name, reached in (("vllm_engine/llama", 19), ("sglang_engine/llama", 19), ("default", 63)):
        sentence = check_rules([load_ruleset(name)], timed_names(names)).sentences[0]
        assert f"{reached} of 63 collective names in the collective bucket" in sentence, sentence


# Two maps, one name, the list


def test_diff_sums_what_moves() -> None:
    first, second = ruleset(("gemm|reduce", "gemm"), (".*", "misc")), ruleset(("gemm", "gemm"))
    result = diff_rules(first, second, timed(x_gemm=50, splitKreduce=30, my_reduce=10, other=10))
    assert result.differences.to_dicts() == [
        {"kernel_name": "splitKreduce", "bucket_a": "gemm", "pattern_a": "gemm|reduce", "bucket_b": "misc", "pattern_b": None, "kernel_ns": 30, "time_frac": 0.3},
        {"kernel_name": "my_reduce", "bucket_a": "gemm", "pattern_a": "gemm|reduce", "bucket_b": "misc", "pattern_b": None, "kernel_ns": 10, "time_frac": 0.1},
    ]  # fmt: skip
    assert result.moves.to_dicts() == [
        {"bucket_a": "gemm", "bucket_b": "misc", "name_count": 2, "kernel_ns": 40, "time_frac": 0.4}
    ]
    assert result.sentences == ("test and test disagree on 2 of 4 names, 40.0% of the time.",)
    assert diff_rules(first, first, timed(a=1)).differences.height == 0
    untimed = diff_rules(load_ruleset(), load_ruleset("vllm_engine/llama"), names_of_examples())
    assert untimed.moves["kernel_ns"].null_count() == untimed.moves.height > 0


def test_explain_gives_bucket_and_operation() -> None:
    rows = explain_names(
        load_ruleset(), ["void vllm::cross_device_reduce_1stage<__half, (int)2>(x)", "nvjet_a", "Fan2"]
    ).explain.to_dicts()
    assert [list(row.values()) for row in rows] == [
        ["void vllm::cross_device_reduce_1stage<__half, (int)2>(x)", "nccl_and_custom_ar", load_ruleset().rules[1].pattern, 1, "all_reduce", "custom_1stage", False, 2],
        ["nvjet_a", "gemm", rows[1]["pattern"], rows[1]["position"], None, None, None, None],
        ["Fan2", "misc", ".*", len(load_ruleset().rules) - 1, None, None, None, None],
    ]  # fmt: skip
    assert list(rows[0]) == [
        "kernel_name",
        "bucket",
        "pattern",
        "position",
        "collective",
        "implementation",
        "fused",
        "ranks",
    ]
    assert load_ruleset().rules[rows[1]["position"]].pattern == rows[1]["pattern"]


def test_no_map_changes_what_is_a_collective() -> None:
    for one in (load_ruleset("vllm_engine/llama"), ruleset(("x", "y"))):
        (row,) = explain_names(one, [LAMPORT]).explain.to_dicts()
        assert (row["collective"], row["implementation"], row["fused"], row["ranks"]) == (
            "all_reduce",
            "fused_one_shot",
            True,
            8,
        )


def test_list_and_show() -> None:
    maps = list_maps().maps
    assert maps["map"].to_list() == list(shipped_maps())
    assert not any("/work" in file or file.startswith("/") for file in maps["file"])
    shown = show_map(load_ruleset("vllm_engine/llama")).rules
    assert shown.height == 16
    assert shown.row(0) == (
        "vllm_engine/llama",
        0,
        "fused_moe_kernel|GroupProblemShape|group_gemm_starts|bmm_|GemmUniversal",
        "moe_gemm",
    )
