"""Sweeps over stand-ins for the engines' benchmarks, which write the same files and fail in every way."""

from __future__ import annotations

import fcntl
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.running import tracelens
from tracelens.errors import UsageError
from tracelens.sweep import Harness, Run, execute, plan, read_outcome, sweep
from tracelens.sweep.folder import begin
from tracelens.sweep.plan import DEFAULT_ARM, NCCL_ARM, TRACE_ARM

STAND_IN = """
import json, os, pathlib, sys, time

def given(*names):
    return next(sys.argv[sys.argv.index(name) + 1] for name in names if name in sys.argv)

tp = int(given("--tensor-parallel-size", "--tp-size"))
batch = int(given("--batch-size"))
here = pathlib.Path(__file__).parent
with open(here / "calls.txt", "a") as calls:
    calls.write(f"tp{tp}-bs{batch}{'-nccl' if '--disable-custom-all-reduce' in sys.argv else ''}\\n")
print("stand-in", *sys.argv[1:], flush=True)
faults = json.loads((here / "faults.json").read_text())
fault = faults.get(f"tp{tp}")
graph = min(size for size in [1, 2, 4, *range(8, 257, 8)] if size >= batch)
lambda_us = 0 if tp == 1 else 12 if "--disable-custom-all-reduce" in sys.argv else 5
step_us = 4480.6 / tp + 64 * lambda_us + 3 * graph
if fault == "exit":
    sys.exit(3)
if fault == "kill":
    os.kill(os.getpid(), 9)
if fault == "hang":
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.fork() == 0:
        (here / "worker.pid").write_text(str(os.getpid()))
        (here / "ready").write_text("")
        time.sleep(60)
    time.sleep(60)
if fault == "no file":
    sys.exit(0)
if "--output-json" in sys.argv:
    path = given("--output-json")
    seconds = step_us * int(given("--output-len")) / 1e6
    text = json.dumps({"avg_latency": seconds, "latencies": [seconds], "percentiles": {"50": seconds}}, indent=4)
else:
    path = given("--result-filename")
    text = json.dumps({"batch_size": batch, "input_len": 128, "output_len": 128, "prefill_latency": 0.02,
                       "median_decode_latency": step_us / 1e6, "median_decode_throughput": batch / step_us * 1e6,
                       "total_latency": 1.0}) + "\\n"
with open(path, "a") as stream:
    stream.write(text[: len(text) // 2] if fault == "half a file" else text)
"""

NSYS = """
import json, pathlib, subprocess, sys
here = pathlib.Path(__file__).parent
if sys.argv[1] == "export":
    target = next(word.partition("=")[2] for word in sys.argv if word.startswith("--output="))
    pathlib.Path(target).write_text(pathlib.Path(sys.argv[-1]).read_text())
    sys.exit(0)
output = sys.argv[sys.argv.index("--output") + 1]
command = sys.argv[sys.argv.index("--output") + 2:]
code = subprocess.call(command)
pathlib.Path(output + ".nsys-rep").write_text("report")
sys.exit(code)
"""


class Bench:
    """A folder with a stand-in, its faults, and the calls that it got."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "stand in.py"
        self.script.write_text(STAND_IN)
        self.break_at({})
        self.program = (sys.executable, "-I", "-S", str(self.script))

    def break_at(self, faults: dict[str, str]) -> None:
        (self.folder / "faults.json").write_text(json.dumps(faults))

    def calls(self) -> list[str]:
        path = self.folder / "calls.txt"
        return path.read_text().split() if path.exists() else []

    def harness(self, engine: str = "sglang", **how: object) -> Harness:
        return Harness(engine, "m", (1, 2, 8), program=self.program, **how)  # type: ignore[arg-type]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (tmp_path / "bench").mkdir()
    return Bench(tmp_path / "bench")


def statuses(runs: list[Run], workdir: Path, **how: object) -> list[str]:
    return [one.status for one in sweep(runs, workdir, timeout_s=20, grace_s=0.1, **how)]  # type: ignore[arg-type]


def test_the_engines_own_commands(tmp_path: Path) -> None:
    (run,) = plan(Harness("vllm", "meta-llama/Meta-Llama-3-8B-Instruct", (8,)), tmp_path)
    assert shlex.join(run.commands[0]) == (
        "vllm bench latency --model meta-llama/Meta-Llama-3-8B-Instruct --tensor-parallel-size 8 --batch-size 1 "
        f"--input-len 128 --output-len 128 --num-iters-warmup 10 --num-iters 30 "
        f"--output-json {tmp_path}/vllm/tp8-bs1/result.json"
    )
    (run,) = plan(Harness("sglang", "a model", (8,), extra=("--attention-backend", "fa3")), tmp_path)
    assert shlex.join(run.commands[0]) == (
        "python3 -m sglang.benchmark.one_batch --model-path 'a model' --tp-size 8 --batch-size 1 --input-len 128 "
        f"--output-len 128 --result-filename {tmp_path}/sglang/tp8-bs1/result.jsonl --attention-backend fa3"
    )


def test_one_run_per_size_batch_and_arm(tmp_path: Path) -> None:
    harness = Harness("vllm", "m", (4, 1), (1,), (32,), disable_custom=True, capture=True)
    runs = plan(harness, tmp_path)
    assert [run.name for run in runs] == [
        "tp1-bs1", "tp1-bs32", "tp1-bs1-trace",
        "tp4-bs1", "tp4-bs1-nccl", "tp4-bs32", "tp4-bs32-nccl", "tp4-bs1-trace",
    ]  # fmt: skip
    assert {run.arm for run in runs} == {DEFAULT_ARM, NCCL_ARM, TRACE_ARM}
    assert "--disable-custom-all-reduce" in runs[4].commands[0]
    trace = runs[-1].commands
    assert trace[0][:6] == (
        "nsys", "profile", "--trace", "cuda,nvtx", "--cuda-graph-trace=node", "--trace-fork-before-exec=true"
    )  # fmt: skip
    assert trace[1][:2] == ("nsys", "export")


@pytest.mark.parametrize(
    "wrong",
    [
        {"tps": ()},
        {"tps": (0,)},
        {"batches": ()},
        {"batches": (-1,)},
        {"output_len": 1},
        {"input_len": 0},
        {"warmup": -1},
    ],
)
def test_sizes_out_of_range(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        plan(Harness(**{"engine": "vllm", "model": "m", "tps": (1,), **wrong}), tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(("engine", "result"), [("vllm", "result.json"), ("sglang", "result.jsonl")])
def test_command_log_and_raw_result_are_kept(bench: Bench, tmp_path: Path, engine: str, result: str) -> None:
    runs = plan(bench.harness(engine), tmp_path / "out")
    told: list[str] = []
    outcomes = sweep(runs, tmp_path / "out", timeout_s=20, tell=told.append)
    assert [one.status for one in outcomes] == ["done"] * 3
    folder = tmp_path / "out" / engine / "tp8-bs1"
    assert sorted(path.name for path in folder.iterdir()) == ["command.txt", "log.txt", result, "state.json"]
    assert (folder / "command.txt").read_text() == shlex.join(runs[-1].commands[0]) + "\n"
    assert (folder / "log.txt").read_text().startswith("stand-in ")
    assert json.loads((folder / result).read_text())
    assert bench.calls() == ["tp1-bs1", "tp2-bs1", "tp8-bs1"]  # one at a time, in order
    assert told[-1] == f"[3/3] {shlex.join(runs[-1].commands[0])}"
    step_us = outcomes[-1].measurement.step_us if outcomes[-1].measurement else None
    assert step_us == pytest.approx(4480.6 / 8 + 320 + 3)


def test_what_is_done_is_not_run_again(bench: Bench, tmp_path: Path) -> None:
    runs = plan(bench.harness(), tmp_path)
    assert statuses(runs, tmp_path) == ["done"] * 3
    again = sweep(runs, tmp_path, timeout_s=20)
    assert [one.kept for one in again] == [True] * 3
    assert len(bench.calls()) == 3
    assert statuses(runs, tmp_path, force=True) == ["done"] * 3
    assert len(bench.calls()) == 6
    # SGLang's benchmark appends; a second run must not leave two lines.
    assert len(runs[0].result.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("exit", "failed", "exit code 3"),
        ("kill", "failed", "killed by signal 9"),
        ("no file", "no result", "wrote no result"),
        ("half a file", "bad result", "cut off or is not JSON"),
    ],
)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_failed_size_is_a_hole_and_the_next_call_fills_it(
    bench: Bench, tmp_path: Path, engine: str, fault: str, status: str, reason: str
) -> None:
    runs = plan(bench.harness(engine), tmp_path)
    bench.break_at({"tp2": fault})
    outcomes = sweep(runs, tmp_path, timeout_s=20)
    assert [one.status for one in outcomes] == ["done", status, "done"]
    assert reason in outcomes[1].reason
    assert (read_outcome(runs[1]).status, read_outcome(runs[1]).measurement) == (status, None)
    bench.break_at({})
    assert statuses(runs, tmp_path) == ["done"] * 3
    assert bench.calls() == ["tp1-bs1", "tp2-bs1", "tp8-bs1", "tp2-bs1"]


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    runs = plan(Harness("vllm", "m", (1,), program=(str(tmp_path / "none"),)), tmp_path)
    (outcome,) = sweep(runs, tmp_path, timeout_s=20)
    assert outcome.status == "failed"
    assert "cannot be started" in outcome.reason


def is_running(pid: int) -> bool:
    """Whether a process is there and not a zombie whose parent left it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_running(pid)


def test_a_time_out_stops_the_program_and_its_workers(bench: Bench, tmp_path: Path) -> None:
    """The stand-in and its worker ignore SIGTERM: both are killed, and the sweep goes on."""
    runs = plan(bench.harness(), tmp_path)
    bench.break_at({"tp2": "hang"})
    outcomes = sweep(runs, tmp_path, timeout_s=3.0, grace_s=0.1)
    assert [one.status for one in outcomes] == ["done", "timed out", "done"]
    assert "still running after 3 s" in outcomes[1].reason
    assert wait_until_gone(int((bench.folder / "worker.pid").read_text()))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_stops_the_program_and_the_sweep_resumes(bench: Bench, tmp_path: Path, how: signal.Signals) -> None:
    """A signal to a sweep while TP 2 runs: exit 130, nothing left running, TP 1 kept, TP 2 run again."""
    bench.break_at({"tp2": "hang"})
    words = ["sweep", "--engine", "sglang", "--model", "m", "--workdir", str(tmp_path / "out")]
    words += ["--program", shlex.join(bench.program), "--tp", "1", "2", "8"]
    code = "import sys; import tracelens.sweep.run as run; run.sweep.__kwdefaults__['grace_s'] = 0.1; "
    code += "from tracelens.cli import main; main(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    deadline = time.monotonic() + 20
    while not (bench.folder / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(how)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert wait_until_gone(int((bench.folder / "worker.pid").read_text()))
    state = json.loads((tmp_path / "out" / "sglang" / "tp2-bs1" / "state.json").read_text())
    assert state["status"] == "interrupted"
    bench.break_at({})
    ran = tracelens(*words)
    assert ran.code == 0, ran.err
    assert bench.calls() == ["tp1-bs1", "tp2-bs1", "tp2-bs1", "tp8-bs1"]


def test_a_sweep_that_was_cut_off_without_a_word(bench: Bench, tmp_path: Path) -> None:
    """A power cut leaves `running` and half a file: the run starts afresh."""
    (run,) = plan(Harness("sglang", "m", (8,), program=bench.program), tmp_path)
    begin(run)
    run.result.write_text('{"median_dec')
    assert read_outcome(run).status == "running"
    assert execute(run, timeout_s=20).status == "done"


def test_a_finished_run_of_another_command_is_not_overwritten(bench: Bench, tmp_path: Path) -> None:
    assert statuses(plan(bench.harness(), tmp_path), tmp_path) == ["done"] * 3
    other = plan(bench.harness(output_len=64), tmp_path)
    with pytest.raises(UsageError, match="finished run of another command"):
        sweep(other, tmp_path, timeout_s=20)
    assert len(bench.calls()) == 3


def test_two_sweeps_in_one_folder(bench: Bench, tmp_path: Path) -> None:
    with (tmp_path / ".sweep.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another sweep is at work"):
            sweep(plan(bench.harness(), tmp_path), tmp_path, timeout_s=20)
    assert not bench.calls()


def test_nothing_of_the_environment_is_written(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_the_user")
    assert statuses(plan(bench.harness(), tmp_path / "out"), tmp_path / "out") == ["done"] * 3
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            assert "hf_secret_of_the_user" not in path.read_text()


def test_words_of_a_shell_stay_words(bench: Bench, tmp_path: Path) -> None:
    """A model name full of shell syntax reaches the program as it is, and starts nothing."""
    model = "a b; touch owned $(touch owned2) `touch owned3` | tee"
    runs = plan(Harness("sglang", model, (1,), program=bench.program), tmp_path)
    assert statuses(runs, tmp_path) == ["done"]
    assert shlex.split((runs[0].folder / "command.txt").read_text())[5] == model
    assert not list(Path.cwd().glob("owned*"))


def test_one_capture_per_size(bench: Bench, tmp_path: Path) -> None:
    nsys = bench.folder / "nsys"
    nsys.write_text(f"#!{sys.executable}\n{NSYS}")
    nsys.chmod(0o755)
    runs = plan(bench.harness(capture=True, nsys=str(nsys)), tmp_path)
    outcomes = sweep(runs, tmp_path, timeout_s=20)
    assert [one.status for one in outcomes] == ["done"] * 6
    captured = [run for run in runs if run.arm == TRACE_ARM]
    assert all((run.folder / "trace.sqlite").is_file() for run in captured)
    (captured[0].folder / "trace.sqlite").unlink()
    assert read_outcome(captured[0]).status == "no result"


# The command line


def swept(bench: Bench, workdir: Path, *more: str) -> list[str]:
    words = ["sweep", "--engine", "sglang", "--model", "m", "--workdir", str(workdir)]
    return [*words, "--program", shlex.join(bench.program), *more]


def test_the_table_with_both_arms_and_throughput(bench: Bench, tmp_path: Path) -> None:
    """Latency at batch 1, throughput at 64, and 64 x 7 us that the custom kernel is worth."""
    more = ["--tp", "1", "2", "8", "--throughput-batch", "64", "--disable-custom-all-reduce", "--format", "json"]
    ran = tracelens(*swept(bench, tmp_path, *more))
    assert ran.code == 0, ran.err
    answer = ran.json
    eight = {row["batch"]: row for row in answer["runs"] if row["tp"] == 8 and row["arm"] == "default"}
    assert eight[1]["step_us"] == pytest.approx(883.075)
    assert eight[1]["speedup"] == pytest.approx(4483.6 / 883.075)
    assert eight[64]["speedup"] == pytest.approx((4480.6 + 192) / (880.075 + 192))
    assert eight[64]["tokens_per_s"] == pytest.approx(64 / 1072.075e-6)
    assert eight[64]["graph_batch"] == 64
    assert [row["custom_part_us"] for row in answer["arms"]] == pytest.approx([448] * 4)


def test_a_plateau_in_one_graph_is_bucketing(bench: Bench, tmp_path: Path) -> None:
    more = ["--engine", "vllm", "--tp", "8", "--batch-size", "8", "9", "16", "17", "--format", "json"]
    answer = tracelens(*swept(bench, tmp_path, *more)).json
    found = {row["batch"]: (row["graph_batch"], row["plateau"]) for row in answer["runs"]}
    assert found == {8: (8, None), 9: (16, "bucketing"), 16: (16, "bucketing"), 17: (24, None)}
    ran = tracelens(*swept(bench, tmp_path, *more[:-2]))
    assert "batches 9 and 16 replay the graph of batch 16: the plateau is bucketing, not scaling" in " ".join(
        ran.out.split()
    )


def test_holes_are_in_the_table_and_in_the_exit_code(bench: Bench, tmp_path: Path) -> None:
    bench.break_at({"tp2": "half a file"})
    ran = tracelens(*swept(bench, tmp_path, "--tp", "1", "2", "8"))
    assert ran.code == 2
    assert "1 of 3 runs failed; tp2-bs1: bad result" in ran.err
    assert "bad result" in ran.out
    assert "5.0" in ran.out  # the sizes that ran are shown


def test_a_dry_run_prints_and_touches_nothing(bench: Bench, tmp_path: Path) -> None:
    ran = tracelens(*swept(bench, tmp_path / "out", "--tp", "1,2,8", "--dry-run", "--", "--mem-fraction-static", "0.8"))
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert [shlex.split(line)[-2:] for line in lines] == [["--mem-fraction-static", "0.8"]] * 3
    assert not (tmp_path / "out").exists()
    assert not bench.calls()


def test_its_results_are_what_scaling_reads(bench: Bench, tmp_path: Path) -> None:
    assert tracelens(*swept(bench, tmp_path, "--tp", "1", "2", "4", "8")).code == 0
    points = [f"--tp={tp}={tmp_path}/sglang/tp{tp}-bs1/result.jsonl" for tp in (1, 2, 4, 8)]
    answer = tracelens("scaling", *points, "--model-preset", "llama-3-8b", "--format", "json").json
    fitted = {row["parameter"]: row["value"] for row in answer["fit"]}
    assert fitted["lambda_us"] == pytest.approx(5, abs=0.05)
