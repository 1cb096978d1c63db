"""What can be wrong with a simulated job, its clocks and its capture."""

from __future__ import annotations

from dataclasses import dataclass

Steps = tuple[int, int] | None


@dataclass(frozen=True)
class Late:
    """Ranks that reach collectives later: `late_ns` is added before every `every`-th collective of each step.

    Attributes:
        how: `gap` the GPU idles, `stretch` the kernel before takes longer, `kernel` a spin kernel runs.
        operation: only before this operation (all_reduce, all_gather, ...).
        steps: first step and one past the last; None is all.
    """

    ranks: tuple[int, ...]
    late_ns: int
    every: int = 1
    operation: str | None = None
    how: str = "stretch"
    steps: Steps = None


@dataclass(frozen=True)
class Rotating:
    """One random rank a step is late, by `late_ns` before each of its collectives; drawn anew each time."""

    late_ns: int
    ranks: tuple[int, ...] | None = None
    how: str = "stretch"


@dataclass(frozen=True)
class Slow:
    """Ranks whose compute kernels take `factor` times as long: all of them, one bucket, or names that contain `kernel`."""

    ranks: tuple[int, ...]
    factor: float
    bucket: str | None = None
    kernel: str | None = None
    steps: Steps = None


@dataclass(frozen=True)
class Stall:
    """Host stalls: `per_step` launches, spread evenly over a step, come `stall_ns` late on these ranks.

    With `sync` the host first waits for the GPU to run dry, so that each stall makes the GPU idle for exactly
    `stall_ns` more than without; else the time is spent on the host and may be hidden by launches already queued.
    Graph replays offer one place per replay; `before` picks launches of kernels whose names contain it.
    """

    ranks: tuple[int, ...]
    stall_ns: int
    per_step: int = 48
    sync: bool = True
    before: str | None = None
    steps: Steps = None


@dataclass(frozen=True)
class Leave:
    """Ranks that leave collectives `late_ns` after the others (negative: before), each time."""

    ranks: tuple[int, ...]
    late_ns: int
    operation: str | None = None


@dataclass(frozen=True)
class Costlier:
    """One operation takes `extra_ns` more in every call, on every rank."""

    operation: str
    extra_ns: int
    steps: Steps = None


Fault = Late | Rotating | Slow | Stall | Leave | Costlier


@dataclass(frozen=True)
class ExtraKernel:
    """A compute kernel that runs `per_step` times in each step, spread over the layers."""

    name: str
    per_step: int
    duration_ns: int
    bucket: str = "elementwise"


@dataclass(frozen=True)
class ClockJump:
    """A GPU's clock jumps by `jump_ns` at this fraction of the capture."""

    rank: int
    at_frac: float
    jump_ns: int


@dataclass(frozen=True)
class LostRun:
    """`count` consecutive GPU rows of one rank are missing, from this fraction of its rows on."""

    rank: int
    at_frac: float
    count: int


@dataclass(frozen=True)
class LostCall:
    """One collective call is missing on one rank: the `position`-th (from 0) of that step."""

    rank: int
    step: int
    position: int
