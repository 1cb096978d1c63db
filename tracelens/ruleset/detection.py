"""Which engine and model a capture is of, told from process titles, kernel namespaces and words of the command."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tracelens.ruleset.spelling import function_name, short_name


@dataclass(frozen=True)
class Detection:
    """Engine and model as far as the evidence goes.

    Attributes:
        engine: vllm, sglang, trtllm; null where nothing, or several things alike, point to one.
        model: llama, ds, gpt-oss, qwen, mixtral, ...; null where no word names one.
        evidence: one sentence, for people.
    """

    engine: str | None
    model: str | None
    evidence: str


_TITLES = {
    "sglang": re.compile(r"(?i)sglang"),
    "trtllm": re.compile(r"(?i)trtllm|tensorrt_llm"),
    "vllm": re.compile(r"(?i)vllm|\bEngineCore|\bWorker_(?:TP|DP|PP)"),
}
_KERNELS = {
    "sglang": re.compile(r"\bsglang::|\bsgl_\w*::|sgl_kernel"),
    "trtllm": re.compile(r"\btensorrt_llm::(?!kernels::(?:quantize|cutlass_kernels))|\btrtllm::"),
    "vllm": re.compile(r"\bvllm::|reshape_and_cache"),
}
_MODELS = (
    ("gpt-oss", re.compile(r"(?i)gpt[-_]?oss")),
    ("ds", re.compile(r"(?i)deepseek|kimi[-_]?k2")),
    ("mixtral", re.compile(r"(?i)mixtral")),
    ("qwen", re.compile(r"(?i)qwen|qwq")),
    ("nemotron", re.compile(r"(?i)nemotron|mamba|jamba")),
    ("llama", re.compile(r"(?i)llama")),
)


def detect_engine(
    process_titles: Iterable[str], kernel_names: Iterable[str], command_words: Iterable[str]
) -> Detection:
    """The engine and the model that the evidence names.

    The command's own words decide before process titles, and those before kernel namespaces, since engines
    borrow each other's kernels; a kind of evidence that names two engines alike is passed over.

    Args:
        process_titles: titles of processes and threads.
        kernel_names: demangled names; each counts once.
        command_words: words of the captured command line that may be shown (model and engine names).
    """
    titles = list(dict.fromkeys(process_titles))
    words = list(dict.fromkeys(command_words))
    names = {function_name(name) for name in kernel_names}  # types in the arguments are borrowed more often still
    model, model_word = _model(words)
    tail = f"; the command names {model_word}" if model else ""
    for what, texts, patterns in (
        ("the command names", words, _TITLES),
        ("a process is titled", titles, _TITLES),
        ("kernels are named like", sorted(names), _KERNELS),
    ):
        hits = {engine: [text for text in texts if pattern.search(text)] for engine, pattern in patterns.items()}
        ranked = sorted(((len(found), engine) for engine, found in hits.items() if found), reverse=True)
        if ranked and (len(ranked) == 1 or ranked[0][0] > 2 * ranked[1][0]):
            engine = ranked[0][1]
            example = hits[engine][0]
            if patterns is _KERNELS:
                example = min(map(short_name, hits[engine]))
            example = example if len(example) <= 60 else f"{example[:57]}..."
            return Detection(engine, model, f"{what} {example!r} ({ranked[0][0]:,} such){tail}")
    return Detection(None, model, f"nothing in the capture names one engine{tail}")


def _model(words: Iterable[str]) -> tuple[str | None, str]:
    for model, pattern in _MODELS:
        for word in words:
            if pattern.search(word):
                return model, repr(word if len(word) <= 60 else f"{word[:57]}...")
    return None, ""
