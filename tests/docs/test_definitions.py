"""The drawings of docs/definitions.md, given to the program: it counts what the page says.

A drawing is read as it stands: one character is 1 us, `|` are starts and ends, and what is between them is a name.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.running import by_rank, tracelens
from tracelens.simulate import Copy, Kernel, Launch, Range, write_events

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "definitions.md").read_text()
START_NS = 1_000_000


class Drawn(NamedTuple):
    start: int
    end: int
    name: str


def drawn(line_holds: str, after: str) -> list[Drawn]:
    """The intervals of the first line behind `after` that holds the text; empty stretches and dots are none."""
    line = next(line for line in PAGE[PAGE.index(after) :].splitlines() if line_holds in line and "|" in line)
    bars = [bar.start() for bar in re.finditer(r"\|", line)]
    parts = [Drawn(one, two, line[one + 1 : two].strip()) for one, two in itertools.pairwise(bars)]
    return [part for part in parts if part.name.strip(".-")]


def kernel(one: Drawn, name: str, stream: int = 7, **more: Any) -> Kernel:
    return Kernel(name, START_NS + one.start * 1000, START_NS + one.end * 1000, stream=stream, **more)


def answer(command: str, path: Path, *options: str) -> dict[str, Any]:
    ran = tracelens(command, path, "--format", "json", "--no-cache", *options)
    assert ran.code == 0, ran.err
    return ran.json


def test_span_busy_and_idle(tmp_path: Path) -> None:
    section = "## Events, span, busy, idle"
    kernels = [kernel(one, one.name) for one in drawn("stream 7", section)]
    kernels += [kernel(one, one.name, 11) for one in drawn("stream 11", section)]
    assert [one.name[0] for one in kernels] == ["A", "B", "C", "D"]
    (rank,) = answer("info", write_events(kernels, tmp_path / "x.sqlite"))["ranks"]
    assert "span 35, busy 21 + 5 = 26, idle 9" in PAGE
    assert (rank["span_ns"], rank["busy_ns"]) == (35_000, 26_000)


def test_selection_clips_times_and_counts_starts(tmp_path: Path) -> None:
    section = "**Selection**"
    first, second = drawn("events", section)
    (window,) = drawn("selected", section)
    path = write_events([kernel(first, "gemm_a"), kernel(second, "rms_norm_b")], tmp_path / "x.sqlite")
    seconds = [f"{(edge - first.start) / 1e6:.6f}" for edge in window[:2]]
    rows = {row["bucket"]: row for row in answer("bucket", path, "--time", "..".join(seconds))["buckets"]}
    assert "A counts 4 us and no call, B counts 6 us and one call" in PAGE
    assert (rows["gemm"]["kernel_ns"], rows["gemm"]["kernel_count"]) == (4_000, 0)
    assert (rows["norm"]["kernel_ns"], rows["norm"]["kernel_count"]) == (6_000, 1)


def test_bucket_times(tmp_path: Path) -> None:
    section = "## Buckets"
    (gemm,), (reduce,) = drawn("stream 7", section), drawn("stream 11", section)
    path = write_events([kernel(gemm, "gemm"), kernel(reduce, "cross_device_reduce_1stage", 11)], tmp_path / "x.sqlite")
    rows = {row["bucket"]: row for row in answer("bucket", path)["buckets"]}
    for figure in ("kernel_ns", "busy_ns", "elapsed_ns"):
        told = re.search(rf"\| `{figure}` \| (\d+) \| (\d+) \|", PAGE)
        assert told
        found = [rows[bucket][figure] // 1000 for bucket in ("gemm", "nccl_and_custom_ar")]
        assert found == [int(told[1]), int(told[2])], figure
    assert rows["idle"]["elapsed_ns"] == 0
    first = answer("bucket", path, "--attribution", "compute-first")["buckets"]
    assert {row["bucket"]: row["elapsed_ns"] for row in first}["nccl_and_custom_ar"] == 9_000


def test_arithmetic_of_the_engines_script(tmp_path: Path) -> None:
    section = "**`--compat gputrc2graph`**"
    events = []
    for device in (0, 1):
        for one in drawn(f"GPU {device}", section):
            name = "gemm" if one.name.startswith("gemm") else "cross_device_reduce_1stage"
            events.append(kernel(one, name, device=device, pid=1000 + device))
    path = write_events(events, tmp_path / "x.sqlite")
    script = {row["bucket"]: row["elapsed_ns"] for row in answer("bucket", path, "--compat", "gputrc2graph")["buckets"]}
    assert "the script:  gemm 12, all-reduce 9" in PAGE
    assert script == {"gemm": 12_000, "nccl_and_custom_ar": 9_000}
    ours = by_rank(answer("bucket", path))
    assert "each GPU:    gemm 10, all-reduce 11 / gemm 11, all-reduce 8" in PAGE
    assert [(ours[rank]["gemm"], ours[rank]["nccl_and_custom_ar"]) for rank in (0, 1)] == [(10_000, 11_000), (11_000, 8_000)]  # fmt: skip


def launched(one: Drawn, name: str, call: tuple[float, float], stream: int = 7) -> Kernel:
    """The kernel of a drawing with its API call, given in the drawing's own columns."""
    return kernel(one, name, stream, launch=(round(START_NS + call[0] * 1000), round(START_NS + call[1] * 1000)))


def marker(start: float, end: float) -> Range:
    return Range("my step", round(START_NS + start * 1000), round(START_NS + end * 1000))


def steps_of(events: list[Any], path: Path) -> list[dict[str, Any]]:
    rows = answer("steps", write_events(events, path), "--step-marker", "my step")["steps"]
    assert [row["step"] for row in rows] == list(range(len(rows)))
    return list(rows)


def test_windows_reach_from_edge_to_edge(tmp_path: Path) -> None:
    """A copy that runs ahead on another stream moves no edge."""
    section = "## Steps"
    main = drawn("main stream", section)[:6]
    (ahead,) = drawn("copy stream", section)
    times = [START_NS + column * 1000 for column in (ahead.start, ahead.end, ahead.start - 2, ahead.start - 1)]
    events: list[Any] = [Copy("H2D", times[0], times[1], launch=(times[2], times[3]), stream=13)]
    for one in main:
        step = main[0].start if one.start < ahead.start + 6 else main[3].start
        events.append(launched(one, one.name.replace(" ", "_"), (step - 5.5, step - 5)))
    events += [marker(main[0].start - 6, main[0].start - 4), marker(main[3].start - 6, main[3].start - 4)]
    first, second = steps_of(events, tmp_path / "x.sqlite")
    assert PAGE.count("step_ns = 28") == 2
    assert (first["start_ns"], second["start_ns"]) == tuple(START_NS + one.start * 1000 for one in (main[0], main[3]))
    assert first["step_ns"] == 28_000
    assert first["busy_ns"] + first["gap_ns"] == first["step_ns"]


def test_membership_follows_the_launch(tmp_path: Path) -> None:
    """b runs when the next range has begun, and belongs to the step in which it was launched."""
    section = "**Membership**"
    calls = {one.name.split()[-1]: one for one in drawn("host ", section) if one.name.startswith("launch")}
    ranges = [one for one in drawn("host ", section) if one.name.startswith("range")]
    gpu = {one.name: one for one in drawn("GPU", section)}
    events: list[Any] = [launched(gpu[name], name, (calls[name].start, calls[name].end)) for name in "abc"]
    events += [marker(ranges[0].start, calls["b"].end), marker(ranges[1].start, calls["c"].end)]
    assert gpu["b"].start > ranges[1].start
    assert [row["kernel_count"] for row in steps_of(events, tmp_path / "x.sqlite")] == [2, 1]


def test_exposed_and_hidden(tmp_path: Path) -> None:
    """The drawing three times over, each a step."""
    section = "**Exposed and hidden.**"
    events: list[Any] = []
    for shift in (0, 100, 200):
        for line, stream in (("stream 7", 7), ("stream 11", 11)):
            for one in drawn(line, section):
                name = "cross_device_reduce_1stage" if one.name.startswith("all") else one.name.replace(" ", "_")
                moved = Drawn(one.start + shift, one.end + shift, name)
                events.append(launched(moved, name, (shift - 9, shift - 8), stream))
        events.append(marker(shift - 10, shift - 7))
    first = steps_of(events, tmp_path / "x.sqlite")[0]
    assert "hidden 5, exposed 15" in PAGE
    assert (first["collective_ns"], first["exposed_ns"]) == (20_000, 15_000)


@pytest.mark.parametrize(
    ("cause", "host_part_ns", "launch_part_ns"),
    [("host_late", 8_000, 4_000), ("launch_latency", 0, 4_000), ("dependency", None, None)],
)
def test_causes_of_gaps(cause: str, host_part_ns: int | None, launch_part_ns: int | None, tmp_path: Path) -> None:
    section = f"    {cause}  "
    launches, (before, after) = drawn("host ", section), drawn("GPU", section)
    call = launches[-1]
    events = [
        kernel(before, "kernel_a", correlation=1),
        kernel(after, "kernel_b", correlation=2),
        Launch("cudaLaunchKernel_v7000", START_NS - 20_000, START_NS - 15_000, 1),
        Launch("cudaLaunchKernel_v7000", START_NS + call.start * 1000, START_NS + call.end * 1000, 2),
    ]
    (gap,) = answer("gaps", write_events(events, tmp_path / "x.sqlite"), "--all")["gaps"]
    assert gap["cause"] == cause
    assert (gap["gap_ns"], gap["start_ns"]) == ((after.start - before.end) * 1000, START_NS + before.end * 1000)
    assert (gap["host_part_ns"], gap["launch_part_ns"]) == (host_part_ns, launch_part_ns)


def test_the_clock_of_the_host(tmp_path: Path) -> None:
    """The drawing 30 times over, every 100 us."""
    section = "**The host's clock.**"
    call, wait = drawn("host    ", section)
    (one,) = drawn("GPU     ", section)
    events: list[Any] = []
    for shift in range(0, 3000, 100):
        at = [START_NS + (shift + time) * 1000 for time in (call.start, call.end, wait.start, wait.end)]
        events.append(
            launched(Drawn(one.start + shift, one.end + shift, "K"), "kernel_k", (shift + call.start, shift + call.end))
        )
        events.append(Launch("cudaStreamSynchronize_v3020", at[2], at[3], 5_000 + shift))
    (clock,) = answer("gaps", write_events(events, tmp_path / "x.sqlite"))["provenance"]["host_clock"]
    assert "call's begin = 9" in PAGE
    assert "end = -4" in PAGE
    assert (one.start - call.start, wait.end - one.end) == (9, -4)
    assert (clock["least_ns"], clock["ahead_ns"], clock["most_ns"]) == (4_500, 5_750, 7_000)


def test_arrival_wait_skew_and_transfer(tmp_path: Path) -> None:
    section = "## Collectives"
    events = []
    for rank in range(3):
        (one,) = drawn(f"rank {rank}", section)
        events.append(kernel(one, "cross_device_reduce_1stage", device=rank, pid=1000 + rank))
    found = answer("collectives", write_events(events, tmp_path / "x.sqlite"), "--all", "--clock", "trust")
    zero = START_NS + 13_000
    for row in found["instances"]:
        told = re.search(rf"rank {row['rank']} .* arrival +(\d+) +wait +(\d+) +duration (\d+)", PAGE)
        assert told
        figures = (row["arrival_ns"] - zero, row["wait_ns"], row["end_ns"] - row["start_ns"])
        assert [figure // 1000 for figure in figures] == [int(text) for text in told.groups()]
        assert row["transfer_ns"] == 10_000
        assert row["is_last"] is (row["rank"] == 2)
    (operation,) = found["operations"]
    assert (operation["skew_p50_ns"], operation["completion_p50_ns"], operation["transfer_min_p50_ns"]) == (12_000, 10_000, 10_000)  # fmt: skip


def test_scaling_model() -> None:
    ran = tracelens("predict", "--model-preset", "llama-3-8b", "--tp", "1", "8", "--lambda-us", "5", "--format", "json")
    one, eight = ran.json["prediction"]
    assert "t(1) = 4,481 us; at\nTP 8 a floor of 560 us, 64 all-reduces of 8 KiB, and 1.02 us of bandwidth term" in PAGE
    assert one["step_us"] == pytest.approx(4481, abs=0.5)
    assert eight["floor_us"] == pytest.approx(560, abs=0.5)
    assert eight["collective_us"] == pytest.approx(64 * 5)
    assert eight["bandwidth_us"] == pytest.approx(1.02, abs=0.005)
