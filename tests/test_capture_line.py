"""The nsys line: where nsys stands among the words of a command, and what is exported."""

from __future__ import annotations

import pytest

from tests.running import tracelens
from tracelens.capture_line import CaptureLine, reasons


@pytest.mark.parametrize(
    ("command", "before"),
    [
        ("vllm serve M --tensor-parallel-size 8", ""),
        ("mpirun -n 8 prog -n 3", "mpirun -n 8"),
        ("mpirun -np 8 --allow-run-as-root --bind-to none -x PATH --mca btl self python serve.py", None),
        ("/opt/mpi/bin/mpirun -n 8 prog", "/opt/mpi/bin/mpirun -n 8"),
        ("env A=1 mpirun -n 8 prog", "env A=1 mpirun -n 8"),
        ("env A=1 vllm serve", ""),
        ("mpiexec -n 4 -genv A 1 prog", "mpiexec -n 4 -genv A 1"),
        ("srun -n8 --gpus-per-node=8 -- prog", "srun -n8 --gpus-per-node=8 --"),
        ("srun -N 2 prog", "srun -N 2"),
        # What follows an option that is not known may be its value or the program: nothing is guessed.
        ("mpirun --strange 8 prog", ""),
        ("mpirun -n 4 prog : -n 4 other", ""),
        ("mpirun -n 8", ""),
        ("mpirun", ""),
    ],
)
def test_nsys_stands_before_the_program(command: str, before: str | None) -> None:
    words = command.split()
    line = CaptureLine(tuple(words))
    profile = line.profile()
    place = profile.index("nsys")
    assert profile[:place] == (words[: words.index("python")] if before is None else before.split())
    kept = [word for word in profile if word != "nsys" and word != "profile" and word not in _own(line)]
    assert kept == words
    assert line.per_rank == (place > 0)


def _own(line: CaptureLine) -> set[str]:
    return set(CaptureLine(("x",)).profile()) | {f"--output={line.reports}"}


def test_a_rank_has_a_report_of_its_own() -> None:
    line = CaptureLine(("mpirun", "-n", "8", "prog"), name="my run")
    assert "--output=my run.rank%q{OMPI_COMM_WORLD_RANK}" in line.profile()
    assert line.export_text() == (
        "for report in 'my run'.rank*.nsys-rep; do nsys export --type=sqlite --include-blobs=true "
        '--output="${report%.nsys-rep}.sqlite" "$report"; done'
    )
    assert CaptureLine(("vllm",)).export_text().endswith("--output=capture.sqlite capture.nsys-rep")


def test_advice_never_contradicts_the_line() -> None:
    ran = tracelens("capture", "--engine", "trtllm", "--", "mpirun", "-n", "8", "prog")
    assert ran.out.startswith("mpirun -n 8 nsys profile ")
    assert "before mpirun" not in ran.out
    assert "tracelens info capture.rank*.sqlite" in ran.out
    unknown = [why for _, why in reasons(CaptureLine(("mpirun", "--strange", "8", "prog")), "trtllm")]
    assert any("stands before the launcher" in why for why in unknown)
