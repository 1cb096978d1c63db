"""Which bucket map a capture is read with: what was asked for, else that of the engine and model it shows."""

import pytest

import tracelens.api as tracelens
from tracelens.errors import RuleError
from tracelens.simulate import Kernel, Row, write_events

ROWS = [
    Kernel("void vllm::rms_norm_kernel<c10::BFloat16>(T1 *)", 0, 1_000),
    Row("META_DATA_CAPTURE", {"name": "PROCESS_0:COMMAND", "value": "vllm serve org/Some-Llama-8B --api-key=hunter2"}),
]


def test_the_map_of_the_engine_and_model_that_the_capture_shows(tmp_path):
    path = write_events(ROWS, tmp_path / "x.sqlite")
    with tracelens.load(path) as trace:
        assert (trace.detection.engine, trace.detection.model) == ("vllm", "llama")
        assert trace.ruleset.name == "vllm/llama"
        assert "hunter2" not in str(trace.provenance())


def test_what_is_asked_for_goes_before_what_is_found(tmp_path):
    path = write_events(ROWS, tmp_path / "x.sqlite")
    for asked, name in (
        ({"rules": "default"}, "default"),
        ({"model": "qwen"}, "vllm/qwen"),
        ({"engine": "sglang"}, "sglang/llama"),
    ):
        with tracelens.load(path, **asked) as trace:
            assert trace.ruleset.name == name
    with pytest.raises(RuleError):
        tracelens.load(path, engine="vllm", model="nosuch")


def test_a_capture_that_shows_no_engine_is_read_with_the_default_map(tmp_path):
    path = write_events([Kernel("some_kernel", 0, 1_000)], tmp_path / "x.sqlite")
    with tracelens.load(path) as trace:
        assert trace.ruleset.name == "default"
