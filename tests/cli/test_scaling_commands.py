"""`predict`, `scaling` and `ladder` as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.running import tracelens


def test_the_labs_own_words() -> None:
    """--tp 1 2 4 8 --lambda-us 2 5 10: 4.481 ms at TP 1, 881 us and 63.6 % at TP 8 and 5 us."""
    ran = tracelens("predict", "--model-preset", "llama-3-8b", "--tp", 1, 2, 4, 8, "--lambda-us", 2, 5, 10)  # type: ignore[arg-type]
    assert ran.code == 0, ran.err
    for figure in ("4,481 us", "881 us", "63.6%", "881.09", "64 us a step at 32 layers"):
        assert figure in ran.out
    assert "####" in ran.out  # the chart


@pytest.mark.parametrize("words", [["--tp", "1,2,4,8", "--lambda-us", "2,5,10"], ["--tp", "1", "2", "4", "8"], []])
def test_commas_and_defaults_say_the_same(words: list[str]) -> None:
    answer = tracelens("predict", "--model-preset", "llama-3-8b", *words, "--format", "json").json
    assert [(row["tp"], row["lambda_us"]) for row in answer["prediction"]] == [
        (tp, lambda_us) for lambda_us in (2, 5, 10) for tp in (1, 2, 4, 8)
    ]
    assert answer["provenance"]["model_source"].startswith("https://")


def test_every_knob() -> None:
    """Half the layers, twice the bandwidths, 8 tokens of 4 bytes: each shows in its term."""
    words = ["--streamed-gb", "10", "--hbm-tb-s", "5", "--nvlink-gb-s", "100", "--layers", "16", "--width", "1000"]
    words += ["--dtype-bytes", "4", "--tokens", "8", "--kv-heads", "4", "--tp", "8", "--lambda-us", "3"]
    answer = tracelens("predict", *words, "--format", "json").json
    (row,) = answer["prediction"]
    assert row["floor_us"] == pytest.approx(2000 / 8)
    assert row["collective_us"] == pytest.approx(32 * 3)
    assert row["bandwidth_us"] == pytest.approx(32 * 1.75 * 8 * 4000 / 100e9 * 1e6)
    assert [notice["code"] for notice in answer["notices"]] == ["kv-heads-replicate"]
    measured = tracelens("predict", *words, "--t1-us", "4000", "--format", "json").json
    assert measured["prediction"][0]["floor_us"] == 500


def test_a_gpu_by_name() -> None:
    h100 = tracelens("predict", "--model-preset", "llama-3-8b", "--tp", "1", "--gpu", "h100-sxm", "--format", "json")
    a100 = tracelens(
        "predict", "--model-preset", "llama-3-8b", "--tp", "1", "--gpu", "a100-sxm-80gb", "--format", "json"
    )
    assert a100.json["prediction"][0]["step_us"] / h100.json["prediction"][0]["step_us"] == pytest.approx(3.35 / 2.039)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict"], "no model was described"),
        (["predict", "--model-preset", "llama-9"], "no model preset named"),
        (["predict", "--model-preset", "llama-3-8b", "--gpu", "h1"], "no GPU named"),
        (["predict", "--model-preset", "llama-3-8b", "--tp", "0"], "whole numbers from 1"),
        (["predict", "--model-preset", "llama-3-8b", "--tokens", "0"], "--tokens must be above 0"),
        (["predict", "--layers", "2", "--width", "8"], "--streamed-gb"),
        (["scaling"], "--tp"),
        (["scaling", "--tp", "8"], "not N=FILE"),
        (["scaling", "--tp", "8=none.json"], "cannot be read"),
        (["scaling", "--tp", "0=5us"], "from 1"),
        (["scaling", "--tp", "8=900us", "--model-preset", "llama-3-8b"], "1 distinct TP size"),
        (
            ["scaling", "--tp", "1=142.5ms", "--tp", "2=100.4ms", "--tp", "4=207.8ms", "--fit", "affine"],
            "no prediction",
        ),
        (["scaling", "--tp", "8=900us", "--what-if", "faster"], "no change that can be answered"),
        (["scaling", "--tp", "8=900us", "--tp", "2=none.sqlite"], "none.sqlite"),
        (["ladder", "--tp", "8"], "--engine, --arch, --width are needed"),
        (["ladder", "--engine", "orca", "--arch", "9.0", "--tp", "8", "--width", "4096"], "no ladder is known"),
        (["ladder", "--engine", "vllm", "--arch", "9.0", "--tp", "1", "--width", "4096"], "no all-reduce"),
    ],
)
def test_refusals(words: list[str], said: str, tmp_path: Path) -> None:
    ran = tracelens(*words, cwd=tmp_path)
    assert ran.code == 2
    assert said in ran.err
    assert ran.lines <= 2
    assert not ran.out


def test_the_ladder_of_the_lab() -> None:
    answer = tracelens(
        "ladder", "--engine", "vllm", "--arch", "9.0", "--tp", "8", "--width", "4096", "--format", "json"
    ).json
    first = answer["ladder"][0]
    assert list(first) == [
        "implementation", "min_bytes", "max_bytes", "max_inclusive", "min_tokens", "max_tokens", "condition"
    ]  # fmt: skip
    assert (first["implementation"], first["max_bytes"], first["max_inclusive"], first["max_tokens"]) == (
        "custom_1stage", 262144, False, 31
    )  # fmt: skip
    text = tracelens("ladder", "--engine", "vllm", "--gpu", "h100-sxm", "--tp", "8", "--model-preset", "llama-3-8b").out
    assert "256.0 KiB (excluded)" in text


def results(folder: Path, engine: str) -> list[str]:
    words = []
    for tp in (1, 2, 4, 8):
        step_us = 4480.552 / tp + (320 if tp > 1 else 0)
        path = folder / f"{engine}{tp}.json"
        if engine == "vllm":
            path.write_text(json.dumps({"avg_latency": step_us * 130e-6, "latencies": [], "percentiles": {}}, indent=4))
        else:
            record = {"batch_size": 1, "input_len": 128, "output_len": 128, "median_decode_latency": step_us / 1e6}
            path.write_text(json.dumps(record) + "\n")
        words += ["--tp", f"{tp}={path}"]
    return words


def test_scaling_over_sglang_results(tmp_path: Path) -> None:
    ran = tracelens("scaling", *results(tmp_path, "sglang"), "--model-preset", "llama-3-8b")
    assert ran.code == 0, ran.err
    assert "5.09x as fast as TP 1, efficiency 63.6%" in ran.out
    assert "lambda_us" in ran.out


def test_vllm_and_sglang_together_stand_apart(tmp_path: Path) -> None:
    words = [*results(tmp_path, "vllm"), *results(tmp_path, "sglang"), "--output-len", "128"]
    answer = tracelens("scaling", *words, "--model-preset", "llama-3-8b", "--format", "json").json
    assert [row["statistic"] for row in answer["points"]] == ["mean_generation_per_output_token"] * 4 + [
        "median_decode_step"
    ] * 4
    assert "statistics-apart" in [notice["code"] for notice in answer["notices"]]
    mixed = tracelens("scaling", *words[:2], *words[14:16], "--model-preset", "llama-3-8b")
    assert mixed.code == 2
    assert "no ratio may cross them" in mixed.err


def test_an_affine_fit_of_vllms_whole_generations(tmp_path: Path) -> None:
    """The published 7B table as vLLM would write it: a 63.8 ms, c 91.9 ms, 71.8 us over 64 all-reduces x 20 tokens."""
    words = []
    for tp, milliseconds in zip((1, 2, 4, 8), (153.8, 128.6, 107.4, 97.6), strict=True):
        path = tmp_path / f"tp{tp}.json"
        path.write_text(json.dumps({"avg_latency": milliseconds / 1e3, "latencies": [], "percentiles": {}}))
        words += ["--tp", f"{tp}={path}"]
    words += ["--fit", "affine", "--layers", "32", "--output-len", "20"]
    answer = tracelens("scaling", *words, "--format", "json").json
    fitted = {row["parameter"]: row["value"] for row in answer["fit"]}
    assert fitted["a_us"] == pytest.approx(63_847, abs=1)
    assert fitted["c_us"] == pytest.approx(91_922, abs=1)
    assert fitted["lambda_equivalent_us"] == pytest.approx(71.8, abs=0.05)
    assert {row["statistic"] for row in answer["points"]} == {"mean_generation"}


def test_a_batch_that_is_not_in_the_file(tmp_path: Path) -> None:
    ran = tracelens("scaling", *results(tmp_path, "sglang"), "--tokens", "32")
    assert ran.code == 2
    assert "holds no batch of 32" in ran.err


def test_layers_alone_are_enough_for_lambda(tmp_path: Path) -> None:
    answer = tracelens("scaling", *results(tmp_path, "sglang"), "--layers", "32", "--format", "json").json
    fitted = {row["parameter"]: row["value"] for row in answer["fit"]}
    assert fitted["lambda_us"] == pytest.approx(5)


def test_scaling_writes_what_it_shows(tmp_path: Path) -> None:
    words = results(tmp_path, "sglang")
    assert tracelens("scaling", *words, "--model-preset", "llama-3-8b", "-o", tmp_path / "out.json").code == 0
    answer = json.loads((tmp_path / "out.json").read_text())
    assert list(answer["points"][0])[:3] == ["tp", "statistic", "step_us"]
