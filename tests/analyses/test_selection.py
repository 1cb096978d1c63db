"""`--time` and `--ranks`: events are clipped for every time and counted where they start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.running import by_rank, refused, tracelens
from tracelens.errors import RankError
from tracelens.simulate import Kernel, write_events
from tracelens.trace import Options, open_trace

GEMM, NORM = "void gemm<(int)8>(float *)", "void rms_norm<float>(float *)"
MS = 1_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two ranks, 20 ms each from 5 ms on.

    rank 0  gemm 5..15      norm 20..25
    rank 1  gemm     7..17  norm 20..25
    """
    rows = []
    for rank in range(2):
        place: dict[str, Any] = {"pid": 1 + rank, "device": rank}
        rows += [
            Kernel(GEMM, (5 + 2 * rank) * MS, (15 + 2 * rank) * MS, **place),
            Kernel(NORM, 20 * MS, 25 * MS, **place),
        ]
    return write_events(rows, tmp_path / "tp2.sqlite")


def window(path: Path, time: str, field: str = "elapsed_ns") -> dict[int, dict[str, int]]:
    ran = tracelens("bucket", path, "--time", time, "--clock", "trust", "--format", "json")
    assert ran.code == 0, ran.err
    return by_rank(ran.json, field)


def test_a_window_clips_time_and_conserves_it(path: Path) -> None:
    """5 ms after the first event to 16 ms after: 10..21 ms of the export's own time."""
    assert window(path, "0.005..0.016") == {
        0: {"gemm": 5 * MS, "norm": 1 * MS, "idle": 5 * MS},
        1: {"gemm": 7 * MS, "norm": 1 * MS, "idle": 3 * MS},
    }
    assert window(path, "0.005..0.016", "kernel_ns")[1] == {"gemm": 7 * MS, "norm": 1 * MS, "idle": 0}


def test_an_event_counts_where_it_starts(path: Path) -> None:
    assert window(path, "0.005..0.016", "kernel_count") == {r: {"gemm": 0, "norm": 1, "idle": 0} for r in range(2)}
    assert window(path, "0..0.001", "kernel_count") == {0: {"gemm": 1, "idle": 0}, 1: {"idle": 0}}


def test_open_ends(path: Path) -> None:
    assert window(path, "..0.010")[0] == {"gemm": 10 * MS, "idle": 0}
    assert window(path, "0.015..")[1] == {"norm": 5 * MS, "idle": 0}
    assert window(path, "-1..99") == window(path, "0..99")


def test_two_halves_make_the_whole(path: Path) -> None:
    whole = window(path, "0..1")
    for edge in ("0.0001", "0.0075", "0.012", "0.0199999"):
        first, second = window(path, f"0..{edge}"), window(path, f"{edge}..1")
        for rank, mine in whole.items():
            for bucket, elapsed in mine.items():
                parts = [half.get(rank, {}).get(bucket, 0) for half in (first, second)]
                assert sum(parts) == elapsed, (edge, rank, bucket)


def test_a_window_without_events_is_refused(path: Path) -> None:
    assert "holds no event" in refused(tracelens("bucket", path, "--time", "5..6"))
    for words in ("2..1", "1..1", "x..y", "5", "..", "nan..1", "1..inf", ""):
        refused(tracelens("bucket", path, "--time", words))


def test_some_ranks(path: Path) -> None:
    for words, kept in (("1", [1]), ("0-1", [0, 1]), ("1,0,1", [0, 1])):
        ran = tracelens("bucket", path, "--ranks", words, "--format", "json")
        assert list(by_rank(ran.json)) == kept
        assert ran.json["provenance"]["ranks"] == kept
        assert [
            row["rank"] for row in tracelens("info", path, "--ranks", words, "--format", "json").json["ranks"]
        ] == kept
    for words in ("", "a", "1-0", "0--1", "-1", "0-99999999999999999999", "٣"):
        refused(tracelens("bucket", path, "--ranks", words))


def test_a_rank_that_is_not_there(path: Path) -> None:
    with open_trace([str(path)], Options(ranks=(5,))) as trace, pytest.raises(RankError, match="rank 5"):
        _ = trace.ranks


def test_a_trace_can_be_asked_again_otherwise(path: Path) -> None:
    with open_trace([str(path)]) as trace:
        other = trace.with_options(ranks=(1,))
        assert (trace.ranks, other.ranks) == ([0, 1], [1])
        with pytest.raises(ValueError, match="when a capture is loaded"):
            trace.with_options(rank_map={})
