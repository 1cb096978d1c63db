"""Reads what the engines' own benchmarks write, and says which statistic each number is.

Three formats are known, recognised by their keys, never by the file's name:

- vLLM's latency harness: one JSON object with `avg_latency` (s), `latencies`, `percentiles`. The mean of whole
  generations, prefill included. Dividing by the output length gives a time per output token, but neither removes the
  prefill nor makes the mean a median.
- SGLang's one-batch harness: one JSON object a line, appended run after run, with `median_decode_latency` (s) and
  `median_decode_throughput`: the median of the decode steps, prefill (`prefill_latency`) and first token excluded.
- A load generator's summary (AIPerf, GenAI-Perf): one JSON object with `output_token_throughput` and
  `inter_token_latency` objects that hold `avg`, `p50`, `unit`: what clients saw, queueing included.

Numbers of different statistics never meet in one ratio; `Measurement.statistic` is what keeps them apart.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens.errors import DamagedError, InputError, MissingDataError

MEAN_GENERATION = "mean_generation"
MEAN_GENERATION_PER_TOKEN = "mean_generation_per_output_token"
MEDIAN_DECODE_STEP = "median_decode_step"
TRACED_DECODE_STEP = "traced_decode_step"
CLIENT_INTER_TOKEN = "client_inter_token_p50"
CLIENT_THROUGHPUT = "client_throughput"

MEANINGS: Mapping[str, str] = {
    MEAN_GENERATION: "mean of whole generations, prefill included (vLLM latency harness)",
    MEAN_GENERATION_PER_TOKEN: "mean of whole generations / output length, prefill included (vLLM latency harness)",
    MEDIAN_DECODE_STEP: "median of decode steps, prefill excluded (SGLang one-batch harness)",
    TRACED_DECODE_STEP: "mean of the complete decode steps of a capture",
    CLIENT_INTER_TOKEN: "median time between tokens as clients saw it, queueing included (load generator)",
    CLIENT_THROUGHPUT: "output tokens per second as clients saw it (load generator)",
}

DECODE_STATISTICS = frozenset({MEDIAN_DECODE_STEP, TRACED_DECODE_STEP})

_LARGEST_BYTES = 64 << 20
_FEWEST_ITERATIONS = 5


@dataclass(frozen=True)
class Measurement:
    """One measured point of a TP sweep.

    Attributes:
        tp: TP size, as the caller said.
        statistic: one of the names of this module; what `step_us` is a statistic of.
        step_us: the measured time; null where the file holds only a throughput.
        tokens_per_s: output tokens per second of the whole batch; null when not known.
        batch: requests in the batch; null when the file does not say.
        input_len: prompt tokens; null when the file does not say.
        output_len: output tokens; null when the file does not say.
        prefill_us: the prefill, where it was measured apart.
        scatter_frac: p90 - p10 of the iterations over their median, where the file tells.
        source: the file, as typed.
    """

    tp: int
    statistic: str
    step_us: float | None
    tokens_per_s: float | None = None
    batch: int | None = None
    input_len: int | None = None
    output_len: int | None = None
    prefill_us: float | None = None
    scatter_frac: float | None = None
    source: str = ""

    @property
    def workload(self) -> tuple[int | None, int | None, int | None]:
        """What must be equal for two points to share a ratio: batch, input length, output length."""
        return self.batch, self.input_len, self.output_len


def read_results(
    path: Path, tp: int, *, batch: int | None = None, output_len: int | None = None, per_token: bool = True
) -> list[Measurement]:
    """Every measurement in one result file.

    Args:
        path: a harness result.
        tp: the TP size that it was run at.
        batch: requests in the batch, for formats that do not record it.
        output_len: output tokens per request, for formats that do not record it.
        per_token: whether a whole generation's time is divided by a known output length.

    Returns:
        One measurement, or for SGLang's appended file one per workload, the last run of each.

    Raises:
        InputError: the file cannot be read or is none of the known formats.
        DamagedError: it is cut off or is not JSON.
        MissingDataError: it is a known format without the number that is needed.
    """
    documents = _documents(path)
    found: dict[tuple[str, tuple[int | None, int | None, int | None]], Measurement] = {}
    for document in documents:
        measurement = _measurement(document, path, tp, batch, output_len, per_token)
        found[measurement.statistic, measurement.workload] = measurement
    return list(found.values())


def looks_like_results(path: Path) -> bool:
    """Whether a path is to be read as a harness result rather than as a capture: by suffix only."""
    return path.suffix.lower() in {".json", ".jsonl"}


def _documents(path: Path) -> list[dict[str, Any]]:
    text = _text(path)
    try:
        whole = json.loads(text)
        documents = whole if isinstance(whole, list) else [whole]
    except ValueError:
        documents = _lines(text, path)
    if not documents:
        raise DamagedError(f"{path} is empty", "the harness wrote no result: see its log")
    for document in documents:
        if not isinstance(document, dict):
            raise InputError(f"{path} holds {type(document).__name__} where a JSON object was expected", _KNOWN)
    return documents


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise InputError(f"{path} is over {_LARGEST_BYTES >> 20} MB: not a harness result", _KNOWN)
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", _KNOWN) from error
    except UnicodeDecodeError as error:
        raise DamagedError(f"{path} is not UTF-8 text (byte {error.start})", _KNOWN) from error


def _lines(text: str, path: Path) -> list[dict[str, Any]]:
    documents = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            documents.append(json.loads(line))
        except ValueError as error:
            raise DamagedError(
                f"{path} is cut off or is not JSON (line {number})", "run the harness again: the file is half-written"
            ) from error
    return documents


_KNOWN = "known results: vllm bench latency --output-json, sglang one_batch --result-filename, an AIPerf summary JSON"


def _measurement(
    document: Mapping[str, Any], path: Path, tp: int, batch: int | None, output_len: int | None, per_token: bool
) -> Measurement:
    if "avg_latency" in document:
        return _vllm_latency(document, path, tp, batch, output_len, per_token)
    if "median_decode_latency" in document or ("prefill_latency" in document and "total_latency" in document):
        return _sglang_one_batch(document, path, tp)
    if "output_token_throughput" in document or "inter_token_latency" in document:
        return _client_summary(document, path, tp, batch)
    keys = ", ".join(sorted(map(str, document))[:6]) or "nothing"
    raise InputError(f"{path} is no known harness result: it holds {keys}", _KNOWN)


def _number(document: Mapping[str, Any], key: str, path: Path) -> float:
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise MissingDataError(
            f"{path}: {key} is {value!r}, where a time above 0 was expected", "run the harness again"
        )
    return float(value)


def _whole(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _vllm_latency(
    document: Mapping[str, Any], path: Path, tp: int, batch: int | None, output_len: int | None, per_token: bool
) -> Measurement:
    generation_us = _number(document, "avg_latency", path) * 1e6
    divisor = output_len if per_token and output_len is not None else None
    return Measurement(
        tp=tp,
        statistic=MEAN_GENERATION if divisor is None else MEAN_GENERATION_PER_TOKEN,
        step_us=generation_us / (divisor or 1),
        tokens_per_s=None if output_len is None or batch is None else batch * output_len / generation_us * 1e6,
        batch=batch,
        output_len=output_len,
        scatter_frac=_scatter(document),
        source=str(path),
    )


def _scatter(document: Mapping[str, Any]) -> float | None:
    """p90 - p10 over the median, from the harness's own percentiles, else from its iterations."""
    told = document.get("percentiles")
    if isinstance(told, dict):
        known = [value for key in ("10", "50", "90") if isinstance(value := told.get(key), int | float) and value > 0]
        if len(known) == 3:
            low, middle, high = known
            return (high - low) / middle
    latencies = document.get("latencies")
    if not isinstance(latencies, list) or not all(isinstance(one, int | float) and one > 0 for one in latencies):
        return None
    ordered = sorted(map(float, latencies))
    if len(ordered) < _FEWEST_ITERATIONS:
        return None
    return (ordered[-1 - len(ordered) // 10] - ordered[len(ordered) // 10]) / ordered[len(ordered) // 2]


def _sglang_one_batch(document: Mapping[str, Any], path: Path, tp: int) -> Measurement:
    if "median_decode_latency" not in document:
        raise MissingDataError(
            f"{path} has no median_decode_latency", "run the harness with --output-len above 1: one token has no decode"
        )
    step_us = _number(document, "median_decode_latency", path) * 1e6
    batch = _whole(document, "batch_size")
    throughput = document.get("median_decode_throughput")
    if not isinstance(throughput, int | float) or isinstance(throughput, bool):
        throughput = None if batch is None else batch / step_us * 1e6
    prefill = document.get("prefill_latency")
    return Measurement(
        tp=tp,
        statistic=MEDIAN_DECODE_STEP,
        step_us=step_us,
        tokens_per_s=None if throughput is None else float(throughput),
        batch=batch,
        input_len=_whole(document, "input_len"),
        output_len=_whole(document, "output_len"),
        prefill_us=float(prefill) * 1e6 if isinstance(prefill, int | float) else None,
        source=str(path),
    )


_UNIT_US = {"us": 1.0, "ms": 1e3, "s": 1e6, "sec": 1e6, "ns": 1e-3}


def _client_summary(document: Mapping[str, Any], path: Path, tp: int, batch: int | None) -> Measurement:
    latency, throughput = document.get("inter_token_latency"), document.get("output_token_throughput")
    step_us = None
    if isinstance(latency, dict):
        unit = str(latency.get("unit", "ms"))
        if unit not in _UNIT_US:
            raise InputError(f"{path}: inter_token_latency has the unit {unit!r}", f"known: {', '.join(_UNIT_US)}")
        step_us = _number(latency, "p50" if "p50" in latency else "avg", path) * _UNIT_US[unit]
    tokens_per_s = _number(throughput, "avg", path) if isinstance(throughput, dict) else None
    if step_us is None and tokens_per_s is None:
        raise MissingDataError(f"{path} has neither inter_token_latency nor output_token_throughput as objects", _KNOWN)
    return Measurement(
        tp=tp,
        statistic=CLIENT_THROUGHPUT if step_us is None else CLIENT_INTER_TOKEN,
        step_us=step_us,
        tokens_per_s=tokens_per_s,
        batch=batch,
        source=str(path),
    )
