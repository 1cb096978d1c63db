"""The nsys command line that takes a capture which can answer every question, and why each flag stands in it.

A capture of a server needs three things that nsys does not do by default: kernels inside CUDA graphs
(`--cuda-graph-trace=node`), forked worker processes (`--trace-fork-before-exec=true`), and little else, because every
further table slows the host and so makes gaps that the server does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    "trtllm": (
        "Under mpirun put nsys before the program, not before mpirun, and let %q{OMPI_COMM_WORLD_RANK} name the files.",
        "Start the load before the window opens; a delay covers loading the engine.",
    ),
}


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

    def profile(self) -> list[str]:
        """The words of the `nsys profile` call."""
        return [
            "nsys",
            "profile",
            "--trace=cuda,nvtx",
            "--cuda-graph-trace=node",
            "--trace-fork-before-exec=true",
            "--sample=none",
            "--cpuctxsw=none",
            f"--delay={self.delay_s}",
            f"--duration={self.duration_s}",
            f"--output={self.name}",
            *self.command,
        ]

    def export(self) -> list[str]:
        """The words of the matching `nsys export` call: blobs hold the sizes and communicators of NCCL's operations."""
        return [
            "nsys",
            "export",
            "--type=sqlite",
            "--include-blobs=true",
            f"--output={self.name}.sqlite",
            f"{self.name}.nsys-rep",
        ]


def reasons(line: CaptureLine, engine: str | None) -> Sequence[tuple[str, str]]:
    """(flag, why) for the flags that matter, then advice for the engine."""
    told = [
        ("--trace=cuda,nvtx", "kernels, copies, API calls, and the ranges that mark steps and NCCL operations"),
        ("--cuda-graph-trace=node", "each kernel inside a CUDA graph; the default shows a replay as one opaque row"),
        ("--trace-fork-before-exec=true", "workers that are forked; without it only the launcher is traced"),
        ("--sample=none --cpuctxsw=none", "nothing that slows the host, whose delays would look like the server's"),
        (
            f"--delay={line.delay_s} --duration={line.duration_s}",
            "a window after warm-up, long enough for some hundred steps",
        ),
        ("--include-blobs=true", "NCCL's message sizes and communicator ids, for bandwidths and exact matching"),
    ]
    return told + [("", advice) for advice in ENGINE_ADVICE.get(engine or "", ())]
