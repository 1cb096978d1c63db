"""Batches read from the ranges of each engine."""

from __future__ import annotations

import re

import pytest

from tracelens.analyses.step_grammar import PATTERN, Batch, read_batch

TEXTS = [
    ("execute_context_0(0)_generation_8(8)", Batch("vllm", "decode", 8, 8), "bs=8"),
    ("execute_context_0(0)_generation_4(16)", Batch("vllm", "decode", 4, 16), "bs=4"),
    ("execute_context_2(310)_generation_0(0)", Batch("vllm", "prefill", 2, 310), "bs=512"),
    ("execute_context_1(512)_generation_0(0)", Batch("vllm", "prefill", 1, 512), "bs=512"),
    ("execute_context_1(1000)_generation_24(24)", Batch("vllm", "mixed", 25, 1024), "bs=1024"),
    ("execute_context_0(0)_generation_0(0)", Batch("vllm", "other", 0, 0), None),
    ("execute_77_context_3(sq128sk256sqsq1sqsk1)_generation_2(sq2sk300)", Batch("vllm", "mixed", 5, 130), "bs=256"),
    ("step[DECODE bs=16]", Batch("sglang", "decode", 16, 16), "bs=16"),
    ("step[TARGET_VERIFY bs=4]", Batch("sglang", "decode", 4, None), "bs=4"),
    ("step[EXTEND bs=2 toks=107]", Batch("sglang", "prefill", 2, 107), "bs=128"),
    ("step[MIXED bs=9 toks=1024]", Batch("sglang", "mixed", 9, 1024), "bs=1024"),
    ("step[MIXED bs=2]", Batch("sglang", "mixed", 2, None), None),
    ("step[IDLE]", Batch("sglang", "other", None, None), None),
    ("[Executor] _forward_step 12: 0 ctx reqs, 0 ctx tokens, 32 gen reqs", Batch("trtllm", "decode", 32, 32), "bs=32"),
    ("[Executor] _forward_step 3: 1 ctx reqs, 7 gen reqs", Batch("trtllm", "mixed", 8, None), None),
    ("[Executor] _forward_step: 2 ctx reqs, 0 gen reqs", Batch("trtllm", "prefill", 2, None), None),
    ("[Executor] _forward_step 5: 1 ctx reqs, 90 ctx tokens, 0 gen reqs", Batch("trtllm", "prefill", 1, 90), "bs=128"),
    ("decode_batch", Batch("stage", "decode"), None),
    ("my own step 7", Batch("custom"), None),
]


@pytest.mark.parametrize(("text", "batch", "rung"), TEXTS)
def test_text_becomes_batch(text: str, batch: Batch, rung: str | None) -> None:
    assert read_batch(text) == batch
    assert batch.rung == rung


def test_the_pattern_finds_every_grammar_and_nothing_else() -> None:
    for text, batch, _ in TEXTS:
        assert bool(re.search(PATTERN, text)) == (batch.grammar != "custom"), text
    for other in ("ncclAllReduce", "aten::mm", "execute_model", "scheduler_step", "steps[DECODE", "decode_batch_size"):
        assert not re.search(PATTERN, other)
