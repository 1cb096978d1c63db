"""What the engines' benchmarks write, and files that are none of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracelens.analyses.harness_results import (
    CLIENT_INTER_TOKEN,
    CLIENT_THROUGHPUT,
    MEAN_GENERATION,
    MEAN_GENERATION_PER_TOKEN,
    MEDIAN_DECODE_STEP,
    read_results,
)
from tracelens.errors import DamagedError, InputError, MissingDataError

VLLM = {"avg_latency": 0.128, "latencies": [0.127, 0.129], "percentiles": {"50": 0.128, "99": 0.129}}
SGLANG = {
    "run_name": "default",
    "batch_size": 4,
    "input_len": 128,
    "output_len": 16,
    "prefill_latency": 0.02,
    "prefill_throughput": 25600.0,
    "median_decode_latency": 0.001,
    "median_decode_throughput": 4000.0,
    "total_latency": 0.036,
    "overall_throughput": 16000.0,
}


def written(folder: Path, text: str, name: str = "result.json") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_vllm_gives_the_mean_of_whole_generations(tmp_path: Path) -> None:
    """Without the output length the time is a generation's; with it a share of one, and still not a decode step."""
    path = written(tmp_path, json.dumps(VLLM, indent=4))
    (whole,) = read_results(path, 8)
    assert (whole.tp, whole.statistic, whole.step_us) == (8, MEAN_GENERATION, 128_000)
    assert whole.tokens_per_s is None
    (per_token,) = read_results(path, 8, batch=2, output_len=128)
    assert (per_token.statistic, per_token.step_us) == (MEAN_GENERATION_PER_TOKEN, 1000)
    assert per_token.tokens_per_s == pytest.approx(2 * 128 / 0.128)


@pytest.mark.parametrize(
    ("more", "scatter"),
    [
        ({"percentiles": {"10": 0.1, "50": 0.128, "90": 0.164}}, 0.5),
        ({"percentiles": {}, "latencies": [0.1, 0.12, 0.125, 0.13, 0.15]}, 0.4),
        ({"percentiles": {}, "latencies": [0.1, 0.2]}, None),
        ({"percentiles": {"10": "x"}, "latencies": "none"}, None),
    ],
)
def test_vllm_tells_how_its_iterations_scatter(tmp_path: Path, more: dict[str, object], scatter: float | None) -> None:
    (found,) = read_results(written(tmp_path, json.dumps(VLLM | more)), 8)
    assert found.scatter_frac == (None if scatter is None else pytest.approx(scatter))


def test_sglang_gives_the_median_decode_step_and_prefill_apart(tmp_path: Path) -> None:
    """The harness appends: the last run of each workload counts."""
    lines = [
        SGLANG | {"median_decode_latency": 0.5},
        SGLANG,
        SGLANG | {"batch_size": 1, "median_decode_latency": 0.0008},
    ]
    path = written(tmp_path, "".join(json.dumps(line) + "\n" for line in lines), "result.jsonl")
    four, one = read_results(path, 8)
    assert (four.statistic, four.step_us, four.workload) == (MEDIAN_DECODE_STEP, 1000, (4, 128, 16))
    assert four.tokens_per_s == 4000
    assert four.prefill_us == 20_000
    assert (one.batch, one.step_us) == (1, 800)


def test_a_client_summary(tmp_path: Path) -> None:
    document = {
        "inter_token_latency": {"unit": "ms", "avg": 8.1, "p50": 7.9, "p99": 12.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 121.5},
    }
    (found,) = read_results(written(tmp_path, json.dumps(document)), 4)
    assert (found.statistic, found.step_us, found.tokens_per_s) == (CLIENT_INTER_TOKEN, 7900, 121.5)
    del document["inter_token_latency"]
    (found,) = read_results(written(tmp_path, json.dumps(document)), 4)
    assert (found.statistic, found.step_us, found.tokens_per_s) == (CLIENT_THROUGHPUT, None, 121.5)


@pytest.mark.parametrize("name", ["result.json", "result.jsonl", "tp8.txt"])
def test_the_format_is_told_by_its_keys_not_by_its_name(tmp_path: Path, name: str) -> None:
    assert read_results(written(tmp_path, json.dumps(VLLM), name), 8)[0].statistic == MEAN_GENERATION
    assert read_results(written(tmp_path, json.dumps(SGLANG), name), 8)[0].statistic == MEDIAN_DECODE_STEP


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_half_a_file(tmp_path: Path, cut: int) -> None:
    for document in (json.dumps(VLLM, indent=4), json.dumps(SGLANG)):
        with pytest.raises(DamagedError, match="cut off or is not JSON"):
            read_results(written(tmp_path, document[:cut]), 8)


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(DamagedError, match="is empty"):
        read_results(written(tmp_path, text), 8)


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("[1, 2]", InputError, "JSON object was expected"),
        ('{"throughput": 3}', InputError, "no known harness result"),
        ('{"avg_latency": "fast"}', MissingDataError, "avg_latency"),
        ('{"avg_latency": NaN}', MissingDataError, "avg_latency"),
        ('{"avg_latency": 0}', MissingDataError, "above 0"),
        ('{"avg_latency": true}', MissingDataError, "avg_latency"),
        ('{"prefill_latency": 0.1, "total_latency": 0.1}', MissingDataError, "median_decode_latency"),
        ('{"inter_token_latency": {"unit": "parsec", "avg": 1}}', InputError, "parsec"),
        ('{"inter_token_latency": 7}', MissingDataError, "neither"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, error: type[InputError], reason: str) -> None:
    with pytest.raises(error, match=reason):
        read_results(written(tmp_path, text), 8)


def test_files_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_results(tmp_path / "none.json", 8)
    with pytest.raises(InputError, match="cannot be read"):
        read_results(tmp_path, 8)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DamagedError, match="UTF-8"):
        read_results(tmp_path / "bytes.json", 8)
