"""Which all-reduce serves which size: the published limits, the bounds, and what ran."""

from __future__ import annotations

import json
from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analyses.ladder import check_observed, ladder
from tracelens.analyses.ladder_rungs import (
    Rung,
    Setup,
    engine_names,
    graph_rungs,
    known_switches,
    padded_batch,
    rungs,
    token_range,
)
from tracelens.errors import UsageError
from tracelens.ruleset.shelf import rules_folder

KIB, MIB = 1 << 10, 1 << 20


def limits(setup: Setup, implementation: str = "custom") -> list[tuple[int | None, bool]]:
    return [
        (rung.max_bytes, rung.max_inclusive) for rung in rungs(setup) if rung.implementation.startswith(implementation)
    ]


def test_vllm_on_hopper_at_tp8() -> None:
    """Custom below 256 KiB (31 tokens of 8 KiB), then multimem to 64 MiB where symmetric memory is on, else NCCL."""
    result = ladder(Setup("vllm", "9.0", 8), width=4096)
    assert result.ladder.drop("condition").rows() == [
        ("custom_1stage", 0, 256 * KIB, False, 1, 31),
        ("multimem", 256 * KIB, 64 * MIB, True, 32, 8192),
        ("nccl", 256 * KIB, None, None, 32, None),
    ]
    assert "symmetric memory is enabled" in result.ladder["condition"][1]
    assert "multiple of 16 bytes" in result.ladder["condition"][0]
    assert "custom_1stage below 256.0 KiB (31 tokens of 8.0 KiB)" in result.sentences[0]


def test_sglang_has_one_flat_limit() -> None:
    """8 MiB at every world size, 1,024 tokens of 8 KiB, where vLLM has long since switched."""
    for tp in (2, 4, 6, 8):
        for arch in ("8.0", "9.0", "10.0"):
            result = ladder(Setup("sglang", arch, tp), width=4096)
            last = result.ladder.filter(pl.col("implementation").str.starts_with("custom")).row(-1, named=True)
            assert (last["max_bytes"], last["max_inclusive"], last["max_tokens"]) == (8 * MIB, True, 1024)
            assert result.ladder["implementation"][-1] == "nccl"


def test_older_sglang_excludes_its_limit() -> None:
    assert limits(Setup("sglang", "9.0", 8, version="0.5.3"))[-1] == (8 * MIB, False)


@pytest.mark.parametrize(
    ("arch", "tp", "largest"),
    [
        ("9.0", 2, 64 * MIB),
        ("9.0", 4, 32 * MIB),
        ("9.0", 6, MIB // 2),
        ("9.0", 8, MIB // 4),
        ("10.0", 2, 2 * MIB),
        ("10.0", 4, 2 * MIB),
        ("10.0", 6, MIB),
        ("10.0", 8, MIB),
    ],
)
def test_vllm_custom_limits(arch: str, tp: int, largest: int) -> None:
    """The size table; what it allows above the engine's 8 MiB buffer carries that condition."""
    setup = Setup("vllm", arch, tp)
    assert limits(setup)[-1] == (largest, False)
    certain = [rung for rung in rungs(setup) if rung.implementation.startswith("custom") and rung.certain]
    assert certain[-1].max_bytes == min(largest, 8 * MIB)
    beyond = [rung for rung in rungs(setup) if rung.implementation.startswith("custom") and not rung.certain]
    assert [rung.min_bytes for rung in beyond] == ([8 * MIB] if largest > 8 * MIB else [])
    assert all("buffer is raised" in rung.condition for rung in beyond)


@pytest.mark.parametrize(
    ("arch", "tp", "implementation", "largest"),
    [
        ("9.0", 2, "symm_mem_two_shot", 64 * MIB),
        ("9.0", 4, "multimem", 32 * MIB),
        ("9.0", 6, "multimem", 64 * MIB),
        ("9.0", 8, "multimem", 64 * MIB),
        ("10.0", 2, "symm_mem_two_shot", 8 * MIB),
        ("10.0", 4, "symm_mem_two_shot", 32 * MIB),
        ("10.0", 6, "multimem", 128 * MIB),
        ("10.0", 8, "multimem", 128 * MIB),
    ],
)
def test_symmetric_memory_stands_between_custom_and_nccl(arch: str, tp: int, implementation: str, largest: int) -> None:
    setup = Setup("vllm", arch, tp, switches={"symm-mem": True})
    found = [rung for rung in rungs(setup) if rung.certain]
    assert [rung.implementation for rung in found[-2:]] == [implementation, "nccl"]
    assert (found[-2].max_bytes, found[-2].max_inclusive) == (largest, True)
    assert found[-1].min_bytes == largest + 1
    # Before the fix of May 2026 a message of exactly the limit fell through.
    old = [rung for rung in rungs(Setup("vllm", arch, tp, "0.20.0", {"symm-mem": True})) if rung.certain]
    assert (old[-2].max_bytes, old[-2].max_inclusive, old[-1].min_bytes) == (largest, False, largest)


def test_without_symmetric_memory_vllm_ignores_its_table() -> None:
    found = rungs(Setup("vllm", "9.0", 8, switches={"symm-mem": False}))
    assert [(rung.implementation, rung.max_bytes) for rung in found] == [
        ("custom_1stage", 256 * KIB),
        ("custom_2stage", 8 * MIB),
        ("nccl", None),
    ]


def test_a_16_bit_float_residual_is_bounded_but_not_taken() -> None:
    """Symmetric memory takes bfloat16 only, and still bounds the custom kernel."""
    found = rungs(Setup("vllm", "9.0", 8, dtype="fp16"))
    assert [(rung.implementation, rung.min_bytes) for rung in found] == [("custom_1stage", 0), ("nccl", 256 * KIB)]


@pytest.mark.parametrize(
    ("setup", "implementations"),
    [
        (Setup("vllm", "9.0", 3), ["nccl"]),
        (Setup("vllm", "9.0", 16), ["nccl"]),
        (Setup("vllm", "9.0", 4, fully_connected=False, switches={"symm-mem": False}), ["nccl"]),
        (Setup("vllm", "8.9", 2, fully_connected=False), ["custom_1stage", "nccl"]),
        (Setup("vllm", "9.0", 8, switches={"custom": False, "symm-mem": False}), ["nccl"]),
        (Setup("vllm", "9.0", 8, "0.9.2"), ["custom_1stage", "custom_2stage", "nccl"]),
        (Setup("vllm", "9.0", 8, switches={"nccl-symm": True}), ["nccl_symmetric", "nccl_symmetric", "custom_1stage"]),
        (Setup("sglang-v2", "9.0", 8), ["custom_one_shot", "custom_two_shot", "nccl"]),
    ],
)
def test_what_is_tried(setup: Setup, implementations: list[str]) -> None:
    assert [rung.implementation for rung in rungs(setup)] == implementations


def test_two_versions_of_vllm_differ() -> None:
    assert "multimem" not in [rung.implementation for rung in rungs(Setup("vllm", "9.0", 8, "0.10.2"))]
    assert "multimem" in [rung.implementation for rung in rungs(Setup("vllm", "9.0", 8, "v0.11.0rc1"))]


@pytest.mark.parametrize(
    ("setup", "reason"),
    [
        (Setup("orca", "9.0", 8), "no ladder is known for engine"),
        (Setup("vllm", "9.0", 1), "has no all-reduce"),
        (Setup("vllm", "9.0", 8, "0.1.0"), "no ladder is known for vllm 0.1.0"),
        (Setup("vllm", "9.0", 8, "newest"), "is not a version"),
        (Setup("vllm", "99", 8), "'99' is no compute capability"),
        (Setup("vllm", "sm_90", 8), "'sm_90' is no compute capability"),
    ],
)
def test_what_is_not_known_is_refused(setup: Setup, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        rungs(setup)


def test_one_rung_is_said_too() -> None:
    """A world size that only NCCL serves has no switch to tell of, and its answer is that."""
    assert ladder(Setup("vllm", "9.0", 7), width=4096).sentences == ("vllm at 9.0, TP 7: nccl serves every size.",)


setups = st.builds(
    Setup,
    st.sampled_from(engine_names()),
    st.sampled_from(["8.0", "9.0", "10.0", "10.3"]),
    st.integers(2, 9),
    st.none() | st.sampled_from(["0.13.0", "0.33.0"]),
    st.none() | st.dictionaries(st.sampled_from(sorted(known_switches())), st.booleans()),
    st.booleans(),
    st.sampled_from(["bf16", "fp16"]),
)


@given(setups, st.integers(1, 1 << 28))
def test_every_size_is_served_by_exactly_one_certain_rung(setup: Setup, size: int) -> None:
    found = rungs(setup)
    assert sum(rung.serves(size) for rung in found if rung.certain) == 1


@given(st.integers(0, 1 << 20), st.integers(1, 1 << 20), st.booleans(), st.integers(1, 5000))
def test_token_ranges_are_those_of_the_bytes(low: int, length: int, inclusive: bool, token_bytes: int) -> None:
    rung = Rung("x", low, low + length, inclusive)
    first, last = token_range(rung, token_bytes)
    assert last is not None
    for tokens in {1, first - 1, first, last, last + 1} - {0, -1}:
        if tokens > 0:
            assert (first <= tokens <= last) == rung.serves(tokens * token_bytes)


def test_every_rung_and_range_has_a_source() -> None:
    data = json.loads((rules_folder() / "ladder.json").read_text())
    for entries in data["engines"].values():
        for before, after in pairwise(entries):
            assert after["until"] == before["from"]  # version ranges touch
        for entry in entries:
            assert entry["source"]
            assert all("source" in rung for rung in entry["rungs"] if rung["name"] != "nccl")
            assert entry["rungs"][-1]["name"] == "nccl"


def test_graph_rungs() -> None:
    """Batches 9 to 16 replay one graph of vLLM; SGLang also captures 12."""
    assert [padded_batch(batch, graph_rungs("vllm")) for batch in (1, 3, 8, 9, 16, 17, 257, 513)] == [
        1, 4, 8, 16, 16, 24, 272, None
    ]  # fmt: skip
    assert padded_batch(9, graph_rungs("sglang")) == 12
    assert padded_batch(5, []) is None


def test_padded_batches_switch_earlier() -> None:
    """31 tokens fit below 256 KiB, but vLLM pads 25 to 31 requests to a graph of 32; SGLang's limit is on a graph."""
    said = ladder(Setup("vllm", "9.0", 8), width=4096).sentences
    assert said[1] == (
        "With the default captured graphs decode batches of 25 to 31 are padded to 32 tokens and switch already."
    )
    assert not any("1024" in sentence for sentence in ladder(Setup("sglang-v2", "9.0", 2), width=4096).sentences)


def test_a_padded_step_may_run_either() -> None:
    frame = ran(("nccl", 30 * 8192, 30, 64), ("custom_1stage", 30 * 8192, 30, 64))
    frame = frame.with_columns(pl.lit(32 * 8192).alias("padded_bytes"))
    observed, _, notices = check_observed(rungs(Setup("vllm", "9.0", 8)), frame)
    assert observed["agrees"].to_list() == [True, True]
    assert not notices


def ran(*rows: tuple[str, int | None, int | None, int]) -> pl.DataFrame:
    schema = {"implementation": pl.String, "message_bytes": pl.Int64, "tokens": pl.Int64, "call_count": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def test_what_ran_agrees_and_the_switch_is_named() -> None:
    """Decode batches 1 to 64: custom to 16 tokens, multimem from 32 on."""
    found = rungs(Setup("vllm", "9.0", 8))
    observed, sentences, notices = check_observed(
        found,
        ran(
            ("multimem", 64 * 8192, 64, 6400),
            ("custom_1stage", 8192, 1, 6400),
            ("custom_1stage", 16 * 8192, 16, 6400),
            ("multimem", 32 * 8192, 32, 6400),
        ),
    )
    assert observed["implementation"].to_list() == ["custom_1stage", "custom_1stage", "multimem", "multimem"]
    assert observed["agrees"].to_list() == [True] * 4
    assert observed["expected"].to_list() == ["custom_1stage"] * 2 + ["multimem or nccl"] * 2
    assert sentences == [
        "The all-reduce switches from custom_1stage at 128.0 KiB (16 tokens) to multimem at 256.0 KiB (32 tokens)."
    ]
    assert not notices


def test_what_ran_against_the_ladder() -> None:
    found = rungs(Setup("vllm", "9.0", 8))
    observed, _, notices = check_observed(found, ran(("nccl", 8192, 1, 64), ("custom_1stage", None, None, 64)))
    assert observed["agrees"].to_list() == [False, None]
    assert [notice.code for notice in notices] == ["ladder-disagrees"]
    assert "nccl ran at 8.0 KiB, where the ladder says custom_1stage" in notices[0].message
