"""`skew` end to end on simulated captures: the right rank, the right cause, and nobody where nobody is late."""

from pathlib import Path

import polars as pl
import pytest

from tests.analyses.test_straggler import EIGHT_LENGTH, EIGHT_START
from tests.running import REAL, needs_real, tracelens
from tracelens import array_room, loading
from tracelens.analyses import blocks, skew_context
from tracelens.analyses.alignment import align
from tracelens.analyses.collectives import collectives
from tracelens.analyses.skew import SkewResult, skew
from tracelens.api import load
from tracelens.errors import NotIdentifiableError
from tracelens.simulate import (
    CaptureSpec,
    Kernel,
    Late,
    Leave,
    Rotating,
    Slow,
    Stall,
    simulate,
    write,
    write_events,
)
from tracelens.trace import Options, open_trace

FIXTURES = Path(__file__).parents[1] / "fixtures"
TWO_STAGE = "void vllm::cross_device_reduce_2stage<__nv_bfloat16, (int)8>(vllm::RankData *, vllm::RankSignals, vllm::Signal *, T1 *, int, int)"


@pytest.fixture
def ask(tmp_path):
    """Answers for a simulated job: ask(CaptureSpec fields, options) -> (result, members)."""

    def answer(*, one_file=True, options=None, **spec):
        capture = simulate(CaptureSpec(**{"tp": 8, "layers": 8, "steps": 30, "gpu_offset_max_ns": 14_000} | spec))
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        write(capture, folder, one_file=one_file, truth=False)
        with open_trace([str(folder)], Options(**(options or {}))) as trace:
            result = skew(trace)
            consistent(result)
            return result, align(trace).members

    return answer


def consistent(result: SkewResult) -> None:
    """What holds for every answer, late ranks or none."""
    if "ranks" not in result.tables:
        return
    ranks = result.tables["ranks"]
    parts = ["device_lateness_ns", "host_lateness_ns", "upstream_lateness_ns", "other_lateness_ns"]
    assert (ranks["lateness_mean_ns"] == ranks.select(pl.sum_horizontal(parts)).to_series()).all()
    assert ranks["wait_ns"].min() >= 0
    assert (ranks.group_by("communicator").agg(pl.col("matched_count").n_unique())["matched_count"] == 1).all()
    waits = ranks.group_by("communicator").agg(pl.col("wait_ns").sum(), pl.col("caused_wait_ns").sum())
    assert (waits["caused_wait_ns"] <= waits["wait_ns"]).all()
    assert result.tables["verdict"]["communicator"].is_sorted()


def only(result: SkewResult) -> dict:
    (row,) = result.tables["verdict"].to_dicts()
    return row


def eight(path: Path) -> Path:
    """One all-reduce on eight ranks, as starts and durations were published."""
    rows = [
        Kernel(TWO_STAGE, start, start + length, pid=100 + rank, device=rank)
        for rank, (start, length) in enumerate(zip(EIGHT_START, EIGHT_LENGTH, strict=True))
    ]
    return write_events(rows, path / "tp8.sqlite")


def test_one_instance_by_the_recorded_clocks(tmp_path):
    """Spread 64.167 us; last 7, first 3; transfer 10.04 us (7.99 to the first end, 12.12 to the last)."""
    with open_trace([str(eight(tmp_path))], Options(clock="trust")) as trace:
        result = skew(trace)
    ranks = result.tables["ranks"]
    assert ranks["wait_ns"].to_list() == [528, 2025, 19091, 64167, 1279, 13095, 11188, 0]
    assert ranks["last_count"].to_list() == [0] * 7 + [1]
    assert ranks["first_count"].to_list() == [0, 0, 0, 1, 0, 0, 0, 0]
    (row,) = result.tables["operations"].to_dicts()
    assert (row["transfer_p50_ns"], row["transfer_min_p50_ns"], row["completion_p50_ns"]) == (10036, 7993, 12119)
    assert (row["skew_p50_ns"], row["class"], row["wait_frac"]) == (64167, "inconclusive", 111_373 / 192_754)
    assert row["bus_bw_gbps"] is None
    assert set(result.tables["clock"]["method"]) == {"trust"}
    assert result.tables["clock"]["residual_ns"].null_count() == 8


def test_one_instance_aligns_nothing(tmp_path):
    """`auto` keeps the recorded clocks, says so and names nobody; `ends` refuses."""
    path = str(eight(tmp_path))
    with open_trace([path]) as trace:
        result = skew(trace)
    assert only(result)["straggler_rank"] is None
    assert "clock-trusted" in [notice.code for notice in result.notices]
    assert "only those recorded" in result.sentences[0]
    with open_trace([path], Options(clock="ends")) as trace, pytest.raises(NotIdentifiableError):
        skew(trace)


@pytest.mark.parametrize("launch", ["graph", "eager"])
def test_neither_blocks_nor_threads_nor_files_change_an_answer(tmp_path, monkeypatch, launch):
    """A late rank on eager launches and a second communicator, a few operations at a time."""
    spec = {"tp": 4, "dp": 2, "moe": True, "ep": "deep_ep", "layers": 4, "steps": 25, "launch": launch}
    write(simulate(CaptureSpec(**spec, faults=(Stall((2,), 176_000, 8),))), tmp_path, truth=False)

    def answers(**options):
        with open_trace([str(tmp_path)], Options(**options)) as trace:
            found = skew(trace), collectives(trace, all=True)
            return [({name: table.rows() for name, table in one.tables.items()}, one.sentences) for one in found]

    whole = answers(threads=1)
    monkeypatch.setattr(blocks, "BLOCK", 97)
    monkeypatch.setattr(skew_context, "_ROWS", 50)
    monkeypatch.setattr(array_room, "_SMALL_BYTES", 1)
    monkeypatch.setattr(loading, "_ARRAYS_SHARE", 0)
    assert answers(threads=3) == whole


def test_a_balanced_job_is_transfer(ask):
    result, _ = ask(seed=1)
    row = only(result)
    assert (row["class"], row["straggler_rank"], row["late_ranks"], row["cause"]) == ("transfer", None, None, "none")
    assert row["matched_count"] == 30 * 17
    assert result.tables["set_aside"].is_empty()
    assert result.sentences[0].startswith("No rank of ranks 0-7 is persistently late")


def test_host_stalls_on_rank_0(ask):
    """48 stalls of 176 us a step on one host; the other GPUs are 100 % busy, waiting."""
    result, _ = ask(launch="eager", layers=16, steps=25, faults=(Stall((0,), 176_000, 48),))
    row = only(result)
    assert (row["straggler_rank"], row["cause"], row["class"]) == (0, "host", "arrival_skew")
    assert "cudaLaunchKernel" in row["cause_detail"]
    ranks = result.tables["ranks"]
    assert ranks["wait_per_step_ns"][1] == pytest.approx(48 * 176_000, rel=0.02)
    assert ranks["compute_ratio"][0] == pytest.approx(1.0, abs=0.01)
    assert "Rank 0 is late" in result.sentences[0]
    assert "on the host" in result.sentences[0]


def test_a_device_that_is_slower_everywhere(ask):
    result, _ = ask(faults=(Slow((5,), 1.08),))
    row = only(result)
    assert (row["straggler_rank"], row["cause"]) == (5, "device")
    assert row["cause_detail"].startswith("uniform")
    assert result.tables["ranks"]["compute_ratio"][5] == pytest.approx(1.08, abs=0.005)
    assert result.tables["ranks"]["last_frac"][5] > 0.9


def test_a_device_that_is_slower_in_one_bucket(ask):
    result, _ = ask(faults=(Slow((2,), 1.3, bucket="gemm"),))
    row = only(result)
    assert (row["straggler_rank"], row["cause"]) == (2, "device")
    assert row["cause_detail"] == "imbalance - the excess is in bucket gemm"


@pytest.mark.parametrize("late_ns", [1_500, 50_000])
def test_ranks_late_together(ask, late_ns):
    row = only(ask(faults=(Late((4, 5, 6, 7), late_ns),))[0])
    assert (row["straggler_rank"], row["late_ranks"]) == (None, "4-7")
    assert "late together" in row["sentence"]


def test_a_late_rank_that_changes_is_not_named(ask):
    row = only(ask(faults=(Rotating(20_000),))[0])
    assert (row["straggler_rank"], row["late_ranks"], row["class"]) == (None, None, "arrival_skew")
    assert "changes from step to step" in row["sentence"]
    assert row["skew_per_step_ns"] == pytest.approx(17 * 20_000, rel=0.05)


@pytest.mark.parametrize("late_ns", [50_000, 250_000, 1_000_000])
def test_injected_delays_come_back(ask, late_ns):
    """Rank 2 of 4 comes later before every collective; the others wait that much more, the transfer stays."""
    spec = {"tp": 4, "steps": 20, "layers": 4}
    waits = []
    for faults in ((), (Late((2,), late_ns),)):
        _, members = ask(**spec, faults=faults)
        mean = members.filter("accepted").group_by("rank").agg(pl.col("wait_ns").mean(), pl.col("transfer_ns").median())
        waits.append(mean.sort("rank"))
    more = (waits[1]["wait_ns"] - waits[0]["wait_ns"]).to_list()
    assert [more[rank] for rank in (0, 1, 3)] == pytest.approx([late_ns] * 3, abs=1_000)
    assert (waits[1]["transfer_ns"] - waits[0]["transfer_ns"]).abs().max() < 100


@pytest.mark.parametrize("late_ns", [1_500, -1_500])
def test_a_rank_that_leaves_at_another_time(ask, late_ns):
    """Beside an all-gather the asymmetry is found, and nothing is claimed below it."""
    result, _ = ask(tp=4, faults=(Leave((2,), late_ns, "all_reduce"),))
    row = only(result)
    assert result.tables["clock"]["asymmetry_ns"].to_list() == pytest.approx([1_500] * 4, abs=80)
    assert (row["straggler_rank"], row["late_ranks"]) == (None, None)
    assert "no claim is made below that" in row["sentence"]


def test_one_operation_alone_rests_on_an_assumption(tmp_path):
    """40 steps of one all-reduce on two GPUs: whoever leaves late looks like a clock."""
    rows = []
    for k in range(60):
        begin = 1_000_000 + 100_000 * k + 700 * (k * k % 13)
        for rank, shift in enumerate((0, 1_500)):
            rows += [
                Kernel("gemm", begin + shift, begin + 30_000 + shift, pid=100 + rank, device=rank),
                Kernel(TWO_STAGE, begin + 31_000 + shift, begin + 41_000 + shift, pid=100 + rank, device=rank),
            ]
    path = write_events(rows, tmp_path / "tp2.sqlite")
    with open_trace([str(path)]) as trace:
        row = only(skew(trace))
    assert "assumes that all_reduce custom_2stage ends together on all ranks" in row["sentence"]


def test_two_replicas_two_verdicts(ask):
    result, _ = ask(tp=4, dp=2, faults=(Slow((6,), 1.1),))
    rows = result.tables["verdict"].to_dicts()
    assert [(r["members"], r["straggler_rank"]) for r in rows] == [("0-3", None), ("4-7", 6)]
    assert len(result.sentences) == 2


def test_replicas_that_meet_in_all_to_alls(ask):
    """TP groups of four under an all-to-all of all eight: three communicators on one clock."""
    result, _ = ask(tp=4, dp=2, moe=True, ep="deep_ep")
    assert result.tables["verdict"]["members"].to_list() == ["0-7", "0-3", "4-7"]
    assert result.tables["verdict"]["set"].to_list() == [0, 0, 0]


def test_a_subset_of_the_ranks(ask):
    """--ranks 0-3 of eight: analysed as such, said, and not classed."""
    result, _ = ask(faults=(Slow((5,), 1.08),), options={"ranks": (0, 1, 2, 3)})
    row = only(result)
    assert (row["members"], row["straggler_rank"], row["class"]) == ("0-3", None, "inconclusive")
    codes = [notice.code for notice in result.notices]
    assert {"ranks-left-out", "members-missing"} <= set(codes)
    assert "Not in the answer: 4 members of this communicator" in row["sentence"]


def test_one_rank_alone(ask):
    result, _ = ask(options={"ranks": (3,)}, steps=10)
    assert "verdict" not in result.tables
    assert "no-verdict" in [notice.code for notice in result.notices]
    assert result.sentences[0].startswith("Only rank 3 is here")


@needs_real
def test_send_and_receive_align_nothing():
    with open_trace([str(REAL / "h100x2_before.sqlite")]) as trace:
        result = skew(trace)
    assert "verdict" not in result.tables
    assert "ranks" not in result.tables
    assert result.tables["set_aside"].to_dicts() == [{"reason": "not synchronising", "count": 66}]
    assert "send_recv" in result.sentences[0]
    assert "cannot be aligned" in result.sentences[0]


def test_the_order_of_files_and_rows_changes_nothing(tmp_path):
    """A file per rank, loaded forwards and backwards, with the rows of every table shuffled."""
    capture = simulate(
        CaptureSpec(
            tp=4, layers=4, steps=24, gpu_offset_max_ns=14_000, gpu_drift_max_ppm=30, utc_error_max_ns=5_000_000
        )
    )
    plain = write(capture, tmp_path / "a", one_file=False, truth=False)
    mixed = write(capture, tmp_path / "b", one_file=False, truth=False, shuffle=7)
    answers = []
    for paths in (plain, plain[::-1], mixed):
        with open_trace([str(path) for path in paths]) as trace:
            answers.append(skew(trace))
    for name in answers[0].tables:
        assert answers[0].tables[name].equals(answers[1].tables[name])
        assert answers[0].tables[name].equals(answers[2].tables[name])
    assert answers[0].sentences == answers[2].sentences


@pytest.mark.parametrize("one_file", [True, False])
def test_the_command_in_a_folder(tmp_path, one_file):
    """`tracelens skew --ranks 0-7` beside tp8.sqlite, and beside rank0.sqlite ... rank7.sqlite."""
    spec = CaptureSpec(tp=8, layers=4, steps=25, gpu_offset_max_ns=14_000, faults=(Slow((5,), 1.1),))
    write(spec, tmp_path, one_file=one_file, truth=False)
    ran = tracelens("skew", "--ranks", "0-7", cwd=tmp_path)
    assert ran.code == 0
    assert ran.out.startswith("Rank 5 is late: it arrives last in 100% of the steps of ranks 0-7")
    heads = [line for line in ran.out.splitlines() if line.startswith(("Ranks", "Operations", "Clock"))]
    assert [head.split()[0].rstrip(",") for head in heads] == ["Ranks", "Operations", "Clock"]
    assert max(len(line) for line in ran.out.splitlines()) <= 100


def test_machine_output(tmp_path):
    """Tables and columns in the documented order, and the figures of provenance."""
    write(CaptureSpec(tp=4, layers=4, steps=25), tmp_path, truth=False)
    answer = tracelens("skew", "--format", "json", cwd=tmp_path).json
    assert [k for k in answer if k in SkewResult.schemas] == ["verdict", "ranks", "operations", "clock", "set_aside"]
    assert list(answer["verdict"][0]) == SkewResult.schemas["verdict"].names
    assert answer["provenance"]["clock"] == "ends"
    near = answer["provenance"]["duration_only_wait_per_step_ns"]["0"]
    assert near == pytest.approx(answer["provenance"]["wait_per_step_ns"]["0"], rel=0.1)


def test_graphs_traced_as_a_whole_are_to_blame() -> None:
    """Collectives are not missing from the job, but from the capture: the flag that records them is named."""
    with load(next((FIXTURES / "graph_level_tp2").glob("*.sqlite")), use_cache=False) as trace:
        result = trace.skew()
        told = {notice.code: notice for notice in result.notices}
        assert "CUDA graphs were traced as a whole" in result.sentences[0]
        assert "--cuda-graph-trace=node" in result.sentences[0]
        for code in ("no-alignment", "no-verdict"):
            assert told[code].hint.endswith("--cuda-graph-trace=node")
        assert "no collective kernels" not in " ".join(notice.message for notice in result.notices)
        assert "traced as a whole" in trace.collectives().sentences[0]
