"""Which steps stand for a capture, and waiting by step, place and rank."""

from __future__ import annotations

import polars as pl
import pytest

from tracelens.analyses import report_parts as parts


def figures(rows: list[tuple[int, int, str, str, int, int, bool, bool]]) -> pl.DataFrame:
    """rank, step, phase, rung, step_ns, wait_ns, complete, warm_up; one set, steps of 1000 ns begin at step x 1000."""
    frame = pl.DataFrame(
        rows,
        schema=["rank", "step", "phase", "rung", "step_ns", "wait_ns", "complete_on_all", "warm_up"],
        orient="row",
    )
    return frame.with_columns(
        pl.lit(0).alias("set"),
        (pl.col("step") * 1000).alias("edge_ns"),
        (pl.col("step") * 1000 + pl.col("step_ns")).alias("window_end_ns"),
        pl.lit(500).alias("collective_ns"),
        pl.lit(400).alias("exposed_ns"),
    )


SMALL = figures(
    [
        (0, 0, "prefill", "bs=512", 9000, 0, True, False),
        (1, 0, "prefill", "bs=512", 9000, 0, True, False),
        (0, 1, "decode", "bs=1", 1500, 10, True, True),
        (1, 1, "decode", "bs=1", 1500, 20, True, True),
        (0, 2, "decode", "bs=1", 1000, 30, True, False),
        (1, 2, "decode", "bs=1", 1003, 40, True, False),
        (0, 3, "decode", "bs=1", 1200, 50, True, False),
        (1, 3, "decode", "bs=1", 1200, 600, True, False),
        (0, 4, "decode", "bs=1", 1100, 70, True, False),
        (1, 4, "decode", "bs=1", 1100, 80, True, False),
        (0, 5, "decode", "bs=1", 5000, 90, False, False),
        (1, 5, "decode", "bs=1", 5000, 100, False, False),
    ]
)


def test_latency_is_the_median_over_ranks_half_to_even() -> None:
    rows = parts.step_latencies(SMALL)
    assert rows["step_ns"].to_list() == [9000, 1500, 1002, 1200, 1100, 5000]
    assert rows["spread_ns"].to_list() == [0, 0, 3, 0, 0, 0]
    assert rows["complete"].to_list() == [True] * 5 + [False]


def test_typical_and_worst_are_complete_decode_steps_outside_warm_up() -> None:
    assert parts.choose_steps(parts.step_latencies(SMALL)) == parts.ChosenSteps(0, "decode", "bs=1", {0: 4}, {0: 3}, 3)


def test_every_set_that_has_the_kind_shows_its_own_typical_step() -> None:
    """Two replicas: set 1 runs the same steps 50 ns longer, and its step 2 is a prefill.

    set 0   step 2: 1002   3: 1200   4: 1100     typical 4, worst 3
    set 1                  3: 1250   4: 1150     typical 3 (nearest the median of 1200, the earlier), worst 3
    """
    replica = SMALL.with_columns(
        (pl.col("rank") + 2).alias("rank"),
        pl.lit(1).alias("set"),
        pl.col("step_ns") + 50,
        pl.when(pl.col("step") == 2).then(pl.lit("prefill")).otherwise("phase").alias("phase"),
    )
    both = pl.concat([SMALL, replica])
    chosen = parts.choose_steps(parts.step_latencies(both))
    assert chosen == parts.ChosenSteps(0, "decode", "bs=1", {0: 4, 1: 3}, {0: 3, 1: 3}, 3)
    assert parts.step_windows(both, chosen.typical).rows() == [
        (0, 0, 4, 4000, 5100),
        (1, 0, 4, 4000, 5100),
        (2, 1, 3, 3000, 4200),
        (3, 1, 3, 3000, 4200),
    ]
    assert parts.collective_split(both, chosen)["rank"].to_list() == [0, 1, 2, 3]


def test_without_complete_steps_there_is_nothing_to_choose() -> None:
    assert parts.choose_steps(parts.step_latencies(SMALL.filter(pl.col("step") == 5))) is None


def test_split_sums_to_collective_time() -> None:
    """Steps 2, 3, 4; collective 500 of which 400 exposed; rank 1's wait of 600 counts up to 400."""
    chosen = parts.ChosenSteps(0, "decode", "bs=1", {0: 4}, {0: 3}, 3)
    assert parts.collective_split(SMALL, chosen).rows() == [(0, 50, 350, None, 100), (1, 173, 227, None, 100)]
    unknown = SMALL.with_columns(pl.lit(None, pl.Int64).alias("wait_ns"))
    assert parts.collective_split(unknown, chosen).rows() == [(0, None, None, 400, 100), (1, None, None, 400, 100)]


@pytest.mark.parametrize("unknown", [True, False])
def test_waits_are_binned(unknown: bool) -> None:
    chosen = parts.ChosenSteps(0, "decode", "bs=1", {0: 4}, {0: 3}, 3)
    if unknown:
        rows = SMALL.with_columns(pl.lit(None, pl.Int64).alias("wait_ns"))
        assert parts.waits_by_step(rows, chosen).is_empty()
        return
    assert parts.waits_by_step(SMALL, chosen, bins=3).rows() == [
        (0, 0, 1, 5),
        (0, 2, 3, 40),
        (0, 4, 5, 80),
        (1, 0, 1, 10),
        (1, 2, 3, 320),
        (1, 4, 5, 90),
    ]
    assert parts.waits_by_step(SMALL, chosen).height == 12


def test_shown_steps_keep_the_slowest() -> None:
    latencies = parts.step_latencies(SMALL)
    kept = parts.shown_steps(latencies, limit=5)
    assert kept.height <= 5
    assert 9000 in kept["step_ns"].to_list()
    assert kept["step"].is_sorted()
    assert parts.shown_steps(latencies, limit=6).equals(latencies)
