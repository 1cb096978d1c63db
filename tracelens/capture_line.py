"""The nsys command line that takes a capture which can answer every question, and why each flag stands in it.

A capture of a server needs three things that nsys does not do by default: kernels inside CUDA graphs
(`--cuda-graph-trace=node`), forked worker processes (`--trace-fork-before-exec=true`), and little else, because every
further table slows the host and so makes gaps that the server does not have.

Under a launcher of ranks (`mpirun -n 8 server`) nsys belongs between the launcher's own options and the server, once for
each rank; before the launcher it sees the ranks of one machine at most. Where the options end is told from the
launcher's option list; an option that is not in it leaves the place open.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

#: What helps one engine: (flag or setting for the user to add, why).
ENGINE_ADVICE = {
    "vllm": (
        "Workers are forked or spawned by the engine: --trace-fork-before-exec=true follows both.",
        "VLLM_NVTX_SCOPES_FOR_PROFILING=1 in the environment names each step; without it graph replays mark the steps.",
        "Start the load before the window opens; a delay covers loading the model and capturing graphs.",
    ),
    "sglang": (
        "Each scheduler is a process of its own: --trace-fork-before-exec=true follows them.",
        "Start the load before the window opens; a delay covers loading the model and capturing graphs.",
    ),
    "trtllm": ("Start the load before the window opens; a delay covers loading the engine.",),
}


@dataclass(frozen=True)
class Launcher:
    """A program that starts one process a rank.

    Attributes:
        rank_variable: set to the rank's number in each process.
        alone: options without a value.
        valued: options with the number of words that follow as their value.
    """

    rank_variable: str
    alone: frozenset[str]
    valued: dict[str, int]


def _launcher(rank_variable: str, alone: str, valued: str, pairs: str = "") -> Launcher:
    return Launcher(
        rank_variable,
        frozenset(alone.split()),
        dict.fromkeys(valued.split(), 1) | dict.fromkeys(pairs.split(), 2),
    )


_OPEN_MPI = _launcher(
    "OMPI_COMM_WORLD_RANK",
    "--allow-run-as-root --oversubscribe --nooversubscribe --report-bindings --display-map --tag-output --timestamp-output "
    "--use-hwthread-cpus --bynode --byslot --nolocal -nolocal --verbose -v --quiet -q",
    "-n -np --np -c -N --npernode -npernode --map-by -map-by --bind-to -bind-to --rank-by -rank-by -x -H --host -host "
    "--hostfile -hostfile --machinefile -machinefile --wdir -wdir --prefix --output-filename --timeout",
    "--mca -mca --gmca -gmca",
)
_HYDRA = _launcher(
    "PMI_RANK",
    "-genvall -genvnone -envall -envnone -verbose -v -prepend-rank -l",
    "-n -np -ppn -perhost -f -hosts -host -machinefile -wdir -bind-to -map-by -launcher -genvlist -envlist -rmk -iface",
    "-genv -env",
)
_SLURM = _launcher(
    "SLURM_PROCID",
    "--exclusive --overlap --unbuffered -u --label -l --pty --kill-on-bad-exit --quiet -Q --verbose -v",
    "-n --ntasks -N --nodes -c --cpus-per-task --ntasks-per-node -G --gpus --gpus-per-node --gpus-per-task --gres -p "
    "--partition -A --account -t --time -J --job-name -w --nodelist -x --exclude -o --output -e --error -D --chdir --mpi "
    "--mem --cpu-bind --gpu-bind --export --container-image --container-mounts --container-name --container-workdir -q --qos",
)
LAUNCHERS = {
    "mpirun": _OPEN_MPI,
    "orterun": _OPEN_MPI,
    "mpiexec": _HYDRA,
    "mpiexec.hydra": _HYDRA,
    "mpirun.hydra": _HYDRA,
    "mpirun_rsh": _HYDRA,
    "srun": _SLURM,
}


def launcher_of(command: Sequence[str]) -> tuple[Launcher | None, int | None]:
    """The launcher that a command begins with, and where its own options end.

    Returns:
        (launcher, place of the program's first word); the place is null where an option is not known, or several
        programs are launched; (null, 0) without a launcher.
    """
    at = 0
    if command and command[0] == "env":
        at = next((place for place, word in enumerate(command) if place and "=" not in word), len(command))
    found = LAUNCHERS.get(PurePath(command[at]).name) if at < len(command) else None
    if found is None:
        return None, 0
    if ":" in command:
        return found, None
    at += 1
    while at < len(command) and command[at].startswith("-"):
        word = command[at]
        if word == "--":
            at += 1
            break
        name, joined, _ = word.partition("=")
        attached = word[:2] in found.valued and word[2:].isdigit()
        if word in found.alone or attached or (joined and name in found.valued):
            at += 1
        elif word in found.valued:
            at += 1 + found.valued[word]
        else:
            return found, None
    return found, at if at < len(command) else None


@dataclass(frozen=True)
class CaptureLine:
    """A capture to take.

    Attributes:
        command: the server's own command line, as words.
        name: name of the report, without suffix.
        delay_s: seconds before the window opens.
        duration_s: length of the window, seconds.
    """

    command: tuple[str, ...]
    name: str = "capture"
    delay_s: int = 60
    duration_s: int = 30

    @property
    def reports(self) -> str:
        """Name of the reports without suffix, as nsys takes it: one for each rank where nsys runs in each."""
        launcher, place = launcher_of(self.command)
        return f"{self.name}.rank%q{{{launcher.rank_variable}}}" if launcher is not None and place else self.name

    @property
    def per_rank(self) -> bool:
        """Whether nsys runs once for each rank, behind the launcher."""
        return self.reports != self.name

    def profile(self) -> list[str]:
        """The words of the `nsys profile` call, behind the launcher and its options where there is one."""
        place = launcher_of(self.command)[1] or 0
        return [
            *self.command[:place],
            "nsys",
            "profile",
            "--trace=cuda,nvtx",
            "--cuda-graph-trace=node",
            "--trace-fork-before-exec=true",
            "--sample=none",
            "--cpuctxsw=none",
            f"--delay={self.delay_s}",
            f"--duration={self.duration_s}",
            f"--output={self.reports}",
            *self.command[place:],
        ]

    def export(self, report: str | None = None) -> list[str]:
        """The words of the matching `nsys export` call: blobs hold the sizes and communicators of NCCL's operations.

        Args:
            report: name of the report without suffix; by default the only one.
        """
        name = self.name if report is None else report
        return [
            "nsys",
            "export",
            "--type=sqlite",
            "--include-blobs=true",
            f"--output={name}.sqlite",
            f"{name}.nsys-rep",
        ]

    def export_text(self) -> str:
        """The export as a line of shell: a loop where there is a report for each rank."""
        if not self.per_rank:
            return shlex.join(self.export())
        words = " ".join(self.export()[:4])
        return (
            f"for report in {shlex.quote(self.name)}.rank*.nsys-rep; do {words} "
            '--output="${report%.nsys-rep}.sqlite" "$report"; done'
        )


def reasons(line: CaptureLine, engine: str | None) -> Sequence[tuple[str, str]]:
    """(flag, why) for the flags that matter, then advice for the engine."""
    told = [
        ("--trace=cuda,nvtx", "kernels, copies, API calls, and the ranges that mark steps and NCCL operations"),
        ("--cuda-graph-trace=node", "each kernel inside a CUDA graph; the default shows a replay as one opaque row"),
        ("--trace-fork-before-exec=true", "workers that are forked; without it only the first process is traced"),
        ("--sample=none --cpuctxsw=none", "nothing that slows the host, whose delays would look like the server's"),
        (
            f"--delay={line.delay_s} --duration={line.duration_s}",
            "a window after warm-up, long enough for some hundred steps",
        ),
        ("--include-blobs=true", "NCCL's message sizes and communicator ids, for bandwidths and exact matching"),
    ]
    launcher, place = launcher_of(line.command)
    if launcher is not None and place:
        told.append(
            (
                f"--output={line.reports}",
                f"one report a rank, named by the rank's number in {launcher.rank_variable}; another launcher has another "
                "variable",
            )
        )
    elif launcher is not None:
        told.append(
            (
                "",
                "nsys stands before the launcher, because where its options end could not be told: the report holds the "
                "ranks of this machine only. To record several machines write nsys profile directly before the program.",
            )
        )
    return told + [("", advice) for advice in ENGINE_ADVICE.get(engine or "", ())]
