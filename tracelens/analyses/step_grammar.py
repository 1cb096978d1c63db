"""What engines write into the ranges that enclose a step, in one place.

| engine | text | meaning |
| --- | --- | --- |
| vLLM | `execute_context_2(310)_generation_8(8)` | 2 requests in prefill with 310 tokens, 8 in decode with 8 tokens |
| vLLM | `execute_77_context_2(sq310sk600)_generation_8(sq8sk900)` | the same; `sq` sums the query tokens |
| SGLang | `step[DECODE bs=8]`, `step[EXTEND bs=2 toks=310]`, `step[MIXED bs=9]` | forward mode, requests, tokens |
| TensorRT-LLM | `[Executor] _forward_step 12: 1 ctx reqs, 107 ctx tokens, 7 gen reqs` | as for vLLM; older ones lack the number, the tokens or both |
| stage names | `prefill_batch`, `decode_batch`, `mixed_batch` | the phase alone |

A batch with requests of both kinds is `mixed`; one without any, or in a mode that is none of these, is `other`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PATTERN = (
    r"execute_(?:\d+_)?context_\d+\([^)]*\)_generation_\d+\([^)]*\)"
    r"|step\[[A-Z_]+"
    r"|\[Executor\] _forward_step"
    r"|^(?:prefill|decode|mixed)_batch$"
)
"""Finds the texts of every grammar; written for RE2 and for Python alike."""

_VLLM = re.compile(r"execute_(?:\d+_)?context_(\d+)\(([^)]*)\)_generation_(\d+)\(([^)]*)\)")
_SGLANG = re.compile(r"step\[([A-Z_]+)(?:[^\]]*?\bbs=(\d+))?(?:[^\]]*?\btoks=(\d+))?")
_TRTLLM = re.compile(
    r"\[Executor\] _forward_step(?: \d+)?:? *(?:(\d+) ctx reqs)?(?:, (\d+) ctx tokens)?(?:,? *(\d+) gen reqs)?"
)
_STAGE = re.compile(r"^(prefill|decode|mixed)_batch$")
_TOKENS = re.compile(r"^(\d+)$|^sq(\d+)")

_SGLANG_PHASES = {
    "DECODE": "decode",
    "TARGET_VERIFY": "decode",
    "EXTEND": "prefill",
    "PREFILL": "prefill",
    "SPLIT_PREFILL": "prefill",
    "MIXED": "mixed",
}


@dataclass(frozen=True)
class Batch:
    """What a step's text says about its batch.

    Attributes:
        grammar: `vllm`, `sglang`, `trtllm`, `stage` or `custom`.
        phase: prefill, decode, mixed or other; null where the text does not say.
        requests: requests in decode for a decode step, else all requests; null where not told.
        tokens: tokens of the step (for decode: those of the requests in decode); null where not told.
    """

    grammar: str
    phase: str | None = None
    requests: int | None = None
    tokens: int | None = None

    @property
    def rung(self) -> str | None:
        """`bs=N`: N is the requests of a decode step, else the tokens to the next power of two; null if not told."""
        if self.phase == "decode":
            return None if self.requests is None else f"bs={self.requests}"
        if self.tokens is None or self.tokens < 1:
            return None
        return f"bs={1 << (self.tokens - 1).bit_length()}"


def read_batch(text: str) -> Batch:
    """The batch that a range's text describes; grammar `custom` and nulls where no engine's grammar fits."""
    if found := _VLLM.search(text):
        return _split(
            "vllm", int(found.group(1)), _tokens(found.group(2)), int(found.group(3)), _tokens(found.group(4))
        )
    if found := _SGLANG.search(text):
        requests = None if found.group(2) is None else int(found.group(2))
        phase = _SGLANG_PHASES.get(found.group(1), "other")
        tokens = requests if found.group(1) == "DECODE" else None
        if found.group(3) is not None:
            tokens = int(found.group(3))
        return Batch("sglang", phase, requests, tokens)
    if (found := _TRTLLM.search(text)) and found.group(3) is not None:
        context = int(found.group(1) or 0)
        tokens = int(found.group(2)) if found.group(2) is not None else (0 if context == 0 else None)
        generation = int(found.group(3))
        return _split("trtllm", context, tokens, generation, generation)
    if _TRTLLM.search(text):
        return Batch("trtllm")
    if found := _STAGE.search(text):
        return Batch("stage", found.group(1))
    return Batch("custom")


def _tokens(text: str) -> int | None:
    found = _TOKENS.match(text)
    return int(found.group(1) or found.group(2)) if found else None


def _split(
    grammar: str, context: int, context_tokens: int | None, generation: int, generation_tokens: int | None
) -> Batch:
    """The batch of an engine that counts requests in prefill and in decode apart."""
    if context == 0 and generation == 0:
        return Batch(grammar, "other", 0, 0)
    if context == 0:
        return Batch(grammar, "decode", generation, generation_tokens)
    tokens = None
    if context_tokens is not None and generation_tokens is not None:
        tokens = context_tokens + generation_tokens
    return Batch(grammar, "mixed" if generation else "prefill", context + generation, tokens)
