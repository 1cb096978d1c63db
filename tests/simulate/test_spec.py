"""Specs refuse what cannot be, and spell schedules out."""

from __future__ import annotations

from typing import Any

import pytest

from tracelens.errors import UsageError
from tracelens.simulate import CaptureSpec, Late, Rotating, Slow, Stretch
from tracelens.simulate.spec import FIELDS


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"engine": "other"}, "engine is 'other'"),
        ({"all_reduce": "carrier_pigeon"}, "all_reduce is"),
        ({"tp": 600}, "600 ranks"),
        ({"tp": 8, "dp": 100}, "800 ranks"),
        ({"layers": 0}, "at least 1"),
        ({"nvtx_type": 34}, "nvtx_type"),
        ({"one_process": True, "visible_devices": True}, "one process"),
        ({"faults": (Slow((4,), 1.1),)}, "names ranks"),
        ({"faults": (Late((1,), 5, how="magic"),)}, "how is 'magic'"),
        ({"faults": (Rotating(5, how="kernel"),)}, "cannot be a kernel"),
        ({"lost_head": (1, 2)}, "lost_head has 2 entries for 4 ranks"),
    ],
)
def test_refusals(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CaptureSpec(**wrong)


def test_schedule_shorthand() -> None:
    spec = CaptureSpec(
        steps=4, rungs=(8, 16), prefill_first=True, mixed_every=2, requests=2, request_idle_ns=9, prefill_tokens=512
    )
    request = [
        Stretch("prefill", 1, 8, 512),
        Stretch("decode", 1, 8),
        Stretch("decode", 1, 16),
        Stretch("mixed", 1, 16, 512),
        Stretch("decode", 1, 8),
        Stretch("decode", 1, 16),
        Stretch("mixed", 1, 16, 512),
    ]
    first = [*request[:-1], Stretch("mixed", 1, 16, 512, idle_after_ns=9)]
    assert spec.stretches() == first + request


def test_explicit_schedule_wins() -> None:
    plan = (Stretch("prefill", 1, tokens=64), Stretch("decode", 3, batch=2))
    assert CaptureSpec(schedule=plan, steps=100).stretches() == list(plan)


def test_every_field_is_explained() -> None:
    text = CaptureSpec.__doc__ or ""
    assert [name for name in FIELDS if name not in text] == []
