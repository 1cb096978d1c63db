"""The scaling model alone: the published numbers of Llama-3-8B, ceilings, presets, refusals."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analyses.scaling_model import ScalingModel, floor_us, predict
from tracelens.analyses.scaling_presets import (
    Gpu,
    ModelShape,
    gpu,
    gpu_names,
    model_names,
    model_shape,
    streamed_parameters,
)
from tracelens.errors import UsageError
from tracelens.ruleset.shelf import rules_folder


def llama_8b() -> tuple[ScalingModel, Gpu]:
    shape, machine = model_shape("llama-3-8b"), gpu("h100-sxm")
    return ScalingModel(shape, machine.link_bytes_per_s, 1, floor_us(shape, machine)), machine


def test_llama_3_8b_on_h100() -> None:
    """t(1) = 15.01 GB / 3.35 TB/s; at TP 8 an eighth of it, 64 all-reduces, 1.75 x 8 KiB each over 900 GB/s."""
    model, machine = llama_8b()
    result = predict(model, machine, [1, 2, 4, 8], [2, 5, 10])
    rows = {(row["tp"], row["lambda_us"]): row for row in result.prediction.iter_rows(named=True)}
    assert rows[1, 5.0]["step_us"] == pytest.approx(4481, abs=0.6)
    assert rows[1, 5.0]["collective_us"] == rows[1, 5.0]["bandwidth_us"] == 0
    eight = rows[8, 5.0]
    assert eight["floor_us"] == pytest.approx(560, abs=0.1)
    assert eight["budget_per_collective_us"] == pytest.approx(8.75, abs=0.005)
    assert eight["bandwidth_us"] == pytest.approx(1.02, abs=0.005)
    assert eight["bandwidth_us"] / eight["floor_us"] == pytest.approx(0.0018, abs=0.00005)
    assert eight["collective_us"] == 320
    assert eight["step_us"] == pytest.approx(881, abs=0.2)
    assert eight["efficiency"] == pytest.approx(0.636, abs=0.0005)
    assert result.prediction.height == 12
    assert "64 us a step at 32 layers" in " ".join(result.sentences)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-3-8b", 7.505), ("llama-3.1-405b", 403.752), ("llama-3.3-70b", 69.503), ("qwen2.5-72b", 71.46)],
)
def test_streamed_parameters_leave_the_input_embedding_out(name: str, billions: float) -> None:
    assert model_shape(name).streamed_bytes == pytest.approx(billions * 2e9, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("llama-3-8b", 8.030e9),
        ("llama-3.1-70b", 70.554e9),
        ("llama-3.1-405b", 405.85e9),
        ("qwen2.5-7b", 7.616e9),
        ("qwen3-32b", 32.76e9),
        # Active parameters, which is what one token touches:
        ("mixtral-8x7b", 12.88e9),
        ("qwen3-235b-a22b", 22.2e9),
        ("deepseek-v3", 37.55e9),
    ],
)
def test_shapes_give_the_published_sizes(name: str, total: float) -> None:
    """Streamed parameters and the input embedding together are the model's published (active) size."""
    entry = json.loads((rules_folder() / "models.json").read_text())["models"][name]
    assert sum(streamed_parameters(entry)) + entry["vocab"] * entry["width"] == pytest.approx(total, rel=1e-3)


def test_every_preset_has_a_source_and_a_positive_stream() -> None:
    for name in model_names():
        shape = model_shape(name)
        assert shape.source.startswith("https://")
        assert shape.streamed_bytes is not None
        assert shape.streamed_bytes > 1e9
        assert shape.all_reduces == 2 * shape.layers
    for name in gpu_names():
        assert gpu(name).source
        assert gpu(name).hbm_bytes_per_s > 0


def test_fp8_halves_the_layers_but_not_the_head() -> None:
    full, half = model_shape("llama-3-8b"), model_shape("llama-3-8b-fp8")
    head = 128256 * 4096
    assert full.streamed_bytes is not None
    assert half.streamed_bytes is not None
    assert half.streamed_bytes > full.streamed_bytes / 2
    assert half.streamed_bytes == pytest.approx(full.streamed_bytes / 2 + head, rel=1e-3)
    assert half.dtype_bytes == 2  # the residual that is all-reduced stays 16-bit


def test_native_fp8_models_are_fp8_without_asking() -> None:
    native, bf16 = model_shape("deepseek-v3"), model_shape("deepseek-v3-bf16")
    assert native.streamed_bytes is not None
    assert bf16.streamed_bytes is not None
    assert native.streamed_bytes < 0.6 * bf16.streamed_bytes


@pytest.mark.parametrize(("layers", "ceilings"), [(32, (426, 803)), (80, (171, 321)), (126, (108, 204))])
def test_ceilings_of_communication_alone(layers: int, ceilings: tuple[int, int]) -> None:
    """With all compute free a step is 2 L T: the published tokens/s at T = 36.6 and 19.5 us within 0.4 %."""
    shape = ModelShape("custom", layers, 4096)
    for lambda_us, published in zip((36.6, 19.5), ceilings, strict=True):
        model = ScalingModel(shape, 1e30, 1, 1e-9)
        assert 1e6 / model.step_us(4, lambda_us) == pytest.approx(published, rel=0.004)
        assert 1e6 / (2 * layers * lambda_us) == pytest.approx(published, rel=0.004)


def test_beyond_the_key_value_heads_they_replicate() -> None:
    model, machine = llama_8b()
    codes = {notice.code for notice in predict(model, machine, [8, 16], [5]).notices}
    assert codes == {"kv-heads-replicate"}
    assert not predict(model, machine, [8], [5]).notices


def test_heads_that_do_not_divide_are_told() -> None:
    shape, machine = model_shape("qwen2.5-7b"), gpu("h100-sxm")
    model = ScalingModel(shape, machine.link_bytes_per_s, 1, floor_us(shape, machine))
    codes = {notice.code for notice in predict(model, machine, [8], [5]).notices}
    assert "heads-do-not-divide" in codes  # 28 heads over 8 GPUs


def test_experts_at_a_larger_batch_are_told() -> None:
    shape, machine = model_shape("mixtral-8x7b"), gpu("h100-sxm")
    one = ScalingModel(shape, machine.link_bytes_per_s, 1, floor_us(shape, machine))
    many = ScalingModel(shape, machine.link_bytes_per_s, 64, floor_us(shape, machine))
    assert not predict(one, machine, [2], [5]).notices
    assert {notice.code for notice in predict(many, machine, [2], [5]).notices} == {"experts-at-batch-1"}


def test_one_gpu_is_best_where_the_all_reduces_outweigh_the_weights() -> None:
    model = ScalingModel(ModelShape("custom", 32, 4096), 900e9, 1, 500.0)
    result = predict(model, gpu("h100-sxm"), [1, 2, 4, 8], [10])
    assert "The fastest of these sizes is TP 1" in " ".join(result.sentences)
    assert "use one GPU" in result.sentences[-1]


@pytest.mark.parametrize(
    ("tps", "lambdas"), [([0], [5]), ([], [5]), ([-1, 2], [5]), ([8], [-1]), ([8], []), ([8], [float("nan")])]
)
def test_nonsense_is_refused(tps: list[int], lambdas: list[float]) -> None:
    model, machine = llama_8b()
    with pytest.raises(UsageError):
        predict(model, machine, tps, lambdas)


@pytest.mark.parametrize(
    ("typed", "preset"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("Llama_3.3_70B_Instruct", "llama-3.3-70b"),
        ("mistralai/Mixtral-8x7B-v0.1", None),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b-fp8"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-r1"),
        ("llama-3-8b-bf16", "llama-3-8b"),
    ],
)
def test_names_as_the_hub_writes_them(typed: str, preset: str | None) -> None:
    if preset is None:
        with pytest.raises(UsageError, match="mixtral-8x7b"):
            model_shape(typed)
        return
    assert model_shape(typed).streamed_bytes == model_shape(preset).streamed_bytes


def test_unknown_names_suggest_close_ones() -> None:
    with pytest.raises(UsageError, match="Did you mean") as error:
        model_shape("llama-3-8")
    assert "llama-3-8b" in error.value.hint
    with pytest.raises(UsageError, match="h100-sxm"):
        gpu("h100-sx")
    assert gpu("H100_SXM").name == "h100-sxm"


def test_streamed_bytes_must_be_known() -> None:
    with pytest.raises(UsageError, match="--streamed-gb"):
        floor_us(ModelShape("custom", 32, 4096), gpu("h100-sxm"))


@given(
    tp=st.integers(2, 64),
    lambda_us=st.floats(0, 100),
    t1_us=st.floats(1, 1e6),
    layers=st.integers(1, 200),
    tokens=st.integers(1, 4096),
)
def test_terms_sum_to_the_step_and_one_lambda_more_is_2l(
    tp: int, lambda_us: float, t1_us: float, layers: int, tokens: int
) -> None:
    model = ScalingModel(ModelShape("custom", layers, 4096), 900e9, tokens, t1_us)
    row = predict(model, gpu("h100-sxm"), [tp], [lambda_us]).prediction.row(0, named=True)
    assert row["floor_us"] + row["collective_us"] + row["bandwidth_us"] == pytest.approx(row["step_us"])
    assert row["speedup"] == pytest.approx(row["efficiency"] * tp)
    assert model.step_us(tp, lambda_us + 1) - model.step_us(tp, lambda_us) == pytest.approx(2 * layers)
    assert model.step_us(1, lambda_us) == t1_us
