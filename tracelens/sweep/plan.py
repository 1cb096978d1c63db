"""The commands of a sweep: one run per TP size, batch size and arm, in the order in which they are carried out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracelens.errors import UsageError

Engine = Literal["vllm", "sglang"]

DEFAULT_ARM = "default"
NCCL_ARM = "custom all-reduce off"
TRACE_ARM = "captured"

_TRACE_ITERATIONS = 3


@dataclass(frozen=True)
class Harness:
    """What to sweep.

    Attributes:
        engine: whose benchmark is run.
        model: model name or path, handed on as it is.
        tps: TP sizes.
        batches: batch sizes for latency, usually 1.
        throughput_batches: batch sizes for output-token throughput; may be empty.
        input_len: prompt tokens.
        output_len: output tokens; above 1, or there is no decode.
        warmup: warm-up iterations (vLLM; SGLang's harness warms up by itself).
        iterations: timed iterations (vLLM).
        disable_custom: also run every size with the custom all-reduce switched off.
        capture: also record one run per TP size under nsys, at the first latency batch.
        program: words that start the benchmark; empty: `vllm bench latency`, `python3 -m sglang.benchmark.one_batch`.
        nsys: the nsys program.
        extra: further arguments, handed on as they are.
    """

    engine: Engine
    model: str
    tps: Sequence[int]
    batches: Sequence[int] = (1,)
    throughput_batches: Sequence[int] = ()
    input_len: int = 128
    output_len: int = 128
    warmup: int = 10
    iterations: int = 30
    disable_custom: bool = False
    capture: bool = False
    program: Sequence[str] = ()
    nsys: str = "nsys"
    extra: Sequence[str] = ()


@dataclass(frozen=True)
class Run:
    """One run of a benchmark.

    Attributes:
        tp: TP size.
        batch: requests in the batch.
        arm: `default`, `custom all-reduce off` or `captured`.
        folder: where its command, log, result and state are kept.
        result: the file that the benchmark writes.
        commands: argument lists, carried out in order; all but the first only after the one before succeeded.
        output_len: output tokens, which vLLM's result does not record.
        produces: files that must exist in the end, beside a readable result.
    """

    tp: int
    batch: int
    arm: str
    folder: Path
    result: Path
    commands: tuple[tuple[str, ...], ...]
    output_len: int
    produces: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        """The folder's name: `tp8-bs1`, `tp8-bs1-nccl`, `tp8-bs1-trace`."""
        return self.folder.name


def plan(harness: Harness, workdir: Path) -> list[Run]:
    """Every run of a sweep, by TP size, batch and arm.

    Raises:
        UsageError: a size, batch or length out of range.
    """
    _check(harness)
    runs = []
    batches = sorted({*harness.batches, *harness.throughput_batches})
    for tp in sorted(set(harness.tps)):
        for batch in batches:
            runs.append(_run(harness, workdir, tp, batch, DEFAULT_ARM))
            if harness.disable_custom and tp > 1:
                runs.append(_run(harness, workdir, tp, batch, NCCL_ARM))
        if harness.capture:
            runs.append(_run(harness, workdir, tp, min(harness.batches), TRACE_ARM))
    return runs


def _check(harness: Harness) -> None:
    if not harness.model:
        raise UsageError("no model was named", "give --model NAME_OR_PATH")
    if not harness.batches:
        raise UsageError("no batch size was given", "give --batch-size 1")
    for option, values in {
        "--tp": harness.tps,
        "--batch-size": harness.batches,
        "--throughput-batch": harness.throughput_batches,
        "--input-len": [harness.input_len],
        "--num-iters": [harness.iterations],
    }.items():
        if any(value < 1 for value in values) or (option == "--tp" and not values):
            raise UsageError(f"{option} takes whole numbers from 1, not {', '.join(map(str, values)) or 'nothing'}")
    if harness.output_len < 2:
        raise UsageError(f"--output-len {harness.output_len}: one output token has no decode step", "use 2 or more")
    if harness.warmup < 0:
        raise UsageError(f"--num-iters-warmup must be 0 or more, not {harness.warmup}")


def _run(harness: Harness, workdir: Path, tp: int, batch: int, arm: str) -> Run:
    suffix = {DEFAULT_ARM: "", NCCL_ARM: "-nccl", TRACE_ARM: "-trace"}[arm]
    folder = workdir / harness.engine / f"tp{tp}-bs{batch}{suffix}"
    result = folder / ("result.json" if harness.engine == "vllm" else "result.jsonl")
    command = (
        _vllm(harness, tp, batch, arm, result) if harness.engine == "vllm" else _sglang(harness, tp, batch, result)
    )
    if arm == NCCL_ARM:
        command += ["--disable-custom-all-reduce"]
    command += list(harness.extra)
    if arm != TRACE_ARM:
        return Run(tp, batch, arm, folder, result, (tuple(command),), harness.output_len)
    report, export = folder / "trace.nsys-rep", folder / "trace.sqlite"
    return Run(
        tp,
        batch,
        arm,
        folder,
        result,
        (tuple(_under_nsys(harness, command, folder)), tuple(_exported(harness, report, export))),
        harness.output_len,
        (export,),
    )


def _vllm(harness: Harness, tp: int, batch: int, arm: str, result: Path) -> list[str]:
    iterations = harness.iterations if arm != TRACE_ARM else min(harness.iterations, _TRACE_ITERATIONS)
    return [
        *(harness.program or ("vllm", "bench", "latency")),
        "--model", harness.model,
        "--tensor-parallel-size", str(tp),
        "--batch-size", str(batch),
        "--input-len", str(harness.input_len),
        "--output-len", str(harness.output_len),
        "--num-iters-warmup", str(harness.warmup),
        "--num-iters", str(iterations),
        "--output-json", str(result),
    ]  # fmt: skip


def _sglang(harness: Harness, tp: int, batch: int, result: Path) -> list[str]:
    return [
        *(harness.program or ("python3", "-m", "sglang.benchmark.one_batch")),
        "--model-path", harness.model,
        "--tp-size", str(tp),
        "--batch-size", str(batch),
        "--input-len", str(harness.input_len),
        "--output-len", str(harness.output_len),
        "--result-filename", str(result),
    ]  # fmt: skip


def _under_nsys(harness: Harness, command: Sequence[str], folder: Path) -> list[str]:
    """Node-level graphs and forked workers, or there would be no kernels to see."""
    return [
        harness.nsys, "profile", "--trace", "cuda,nvtx", "--cuda-graph-trace=node", "--trace-fork-before-exec=true",
        "--sample=none", "--cpuctxsw=none", "--force-overwrite=true", "--output", str(folder / "trace"),
        *command,
    ]  # fmt: skip


def _exported(harness: Harness, report: Path, export: Path) -> list[str]:
    return [
        harness.nsys, "export", "--type=sqlite", "--include-blobs=true", "--force-overwrite=true",
        f"--output={export}", str(report),
    ]  # fmt: skip


def shown(command: Sequence[str]) -> str:
    """A command as a shell would take it."""
    return shlex.join(command)
