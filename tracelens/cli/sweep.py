"""`tracelens sweep`: the engines' own benchmarks, once per TP size."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tracelens.cli.number_lists import ints, takes_number_lists
from tracelens.cli.options import Output, with_output


@takes_number_lists("--tp", "--batch-size", "--throughput-batch", "--graph-batches")
@with_output
def sweep(
    output_to: Output,
    engine: Annotated[Literal["vllm", "sglang"], typer.Option(help="Whose benchmark to run.")],
    model: Annotated[str, typer.Option(help="Model name or path, handed on to the engine.")],
    workdir: Annotated[str, typer.Option(metavar="DIR", help="Where commands, logs and results are kept.")],
    extra: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="Further arguments for the benchmark.")
    ] = None,
    tp: Annotated[str, typer.Option("--tp", metavar="N...", help="TP sizes: 1 2 4 8 or 1,2,4,8.")] = "1,2,4,8",
    batch_size: Annotated[str, typer.Option(metavar="N...", help="Batch sizes for latency.")] = "1",
    throughput_batch: Annotated[
        str | None, typer.Option(metavar="N...", help="Batch sizes for output-token throughput.")
    ] = None,
    input_len: Annotated[int, typer.Option(help="Prompt tokens.")] = 128,
    output_len: Annotated[int, typer.Option(help="Output tokens.")] = 128,
    num_iters_warmup: Annotated[int, typer.Option(help="Warm-up iterations (vLLM).")] = 10,
    num_iters: Annotated[int, typer.Option(help="Timed iterations (vLLM).")] = 30,
    disable_custom_all_reduce: Annotated[
        bool,
        typer.Option(
            "--disable-custom-all-reduce",
            help="Run a second arm without the custom all-reduce, to see what it is worth.",
        ),
    ] = False,
    capture: Annotated[bool, typer.Option("--capture", help="Also record one run per TP size under nsys.")] = False,
    graph_batches: Annotated[
        str | None,
        typer.Option(metavar="N...", help="Batch sizes with a captured graph; the engine's default without it."),
    ] = None,
    timeout_s: Annotated[float, typer.Option(min=0.001, help="Longest time of one run, s.")] = 7200.0,
    program: Annotated[
        str | None,
        typer.Option(metavar="WORDS", help="What starts the benchmark, instead of the engine's own command."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and run nothing.")] = False,
    rerun: Annotated[bool, typer.Option("--rerun", help="Run again what is done already.")] = False,
) -> int:
    """Run the engine's own benchmark once per TP size, one at a time, and keep every raw result; resumes."""
    import shlex
    import sys
    from pathlib import Path

    from tracelens import sweep as runner
    from tracelens.analyses.ladder_rungs import graph_rungs
    from tracelens.analyses.sweep_table import SweptRun, sweep_table
    from tracelens.cli.present import present
    from tracelens.errors import HarnessError, UsageError
    from tracelens.sweep.plan import DEFAULT_ARM, NCCL_ARM
    from tracelens.views import sweep as view

    try:
        words = shlex.split(program or "")
    except ValueError as error:
        raise UsageError(f"--program {program!r}: {error}", "Quote it as for a shell.") from error
    runs = runner.plan(
        runner.Harness(
            engine,
            model,
            ints("--tp", tp),
            ints("--batch-size", batch_size),
            ints("--throughput-batch", throughput_batch) if throughput_batch else (),
            input_len,
            output_len,
            num_iters_warmup,
            num_iters,
            disable_custom_all_reduce,
            capture,
            words,
            extra=tuple(extra or ()),
        ),
        Path(workdir),
    )
    if dry_run:
        for run in runs:
            for command in run.commands:
                typer.echo(runner.shown(command))
        return 0

    def tell(line: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    outcomes = runner.sweep(runs, Path(workdir), timeout_s=timeout_s, force=rerun, tell=tell)
    eager = "--enforce-eager" in (extra or ()) or "--disable-cuda-graph" in (extra or ())
    graphs = ints("--graph-batches", graph_batches) if graph_batches else [] if eager else graph_rungs(engine)
    table = sweep_table(
        [
            SweptRun(run.tp, run.batch, run.arm, one.status, one.reason, str(run.result), one.measurement)
            for run, one in zip(runs, outcomes, strict=True)
        ],
        sorted(graphs),
        default_arm=DEFAULT_ARM,
        disabled_arm=NCCL_ARM,
    )
    code = present(table, output_to, view.show)
    failed = [(run, one) for run, one in zip(runs, outcomes, strict=True) if one.status != "done"]
    if failed:
        run, one = failed[0]
        raise HarnessError(
            f"{len(failed)} of {len(runs)} runs failed; {run.name}: {one.status}: {one.reason}",
            "Run the same command again: what is done is kept.",
        )
    return code
