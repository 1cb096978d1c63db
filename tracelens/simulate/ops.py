"""What a step consists of: operations, the calls that launch them, and both together as a program."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tracelens.simulate.families import Family

MAIN_STREAM, COPY_STREAM, SIDE_STREAM = 7, 13, 20
KERNEL, MEMCPY, MEMSET = 0, 1, 2
TP_GROUP, ALL_GROUP = 0, 1

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Op:
    """One operation of a program.

    Attributes:
        name: demangled kernel name, or the copy's direction.
        bucket: the simulator's own word for what it does.
        duration_ns: on an undisturbed GPU; of a collective, its transfer.
        kind: KERNEL, MEMCPY or MEMSET.
        stream: stream id.
        gap_ns: distance from the operation before it on its stream.
        after: index of an operation of another stream that must have ended; -1 for none.
        segment: which launch unit it belongs to: `eager`, or the name of a graph.
        group: TP_GROUP or ALL_GROUP for a collective, else -1.
        family: the collective's family; None otherwise.
        follow_up: second kernel of the collective before it.
        owner: index of the fault that put it there (present on that fault's ranks only); -1 for none.
        bytes: of a copy; of a collective, its message size.
        copy_kind: of a copy.
        grid: launch grid.
        block: launch block.
        layer: layer index; -1 outside the layers.
    """

    name: str
    bucket: str
    duration_ns: float
    kind: int = KERNEL
    stream: int = MAIN_STREAM
    gap_ns: float = 0.0
    after: int = -1
    segment: str = "eager"
    group: int = -1
    family: Family | None = None
    follow_up: bool = False
    owner: int = -1
    bytes: int = 0
    copy_kind: int = 0
    grid: tuple[int, int, int] = (132, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    layer: int = -1


@dataclass(frozen=True)
class LaunchPlan:
    """One API call of a program: the operations [first, last) that it starts, and its nominal host costs."""

    api: str
    first: int
    last: int
    graph: int
    cost_ns: float
    call_ns: float
    latency_ns: float


@dataclass(frozen=True, eq=False)
class Program:
    """One kind of step, ready to be timed.

    Attributes:
        key: kind, batch and tokens.
        phase: prefill, decode or mixed.
        rung: the batch as a label, `bs=8`; tokens to the next power of two for prefill and mixed.
        ops: operations in launch order.
        launches: API calls in order.
        blocks: [first, last) index ranges that can be timed at once: main-stream runs without a collective, a
            wait for another stream or a possible host stall except at their first operation.
        read_back: index of the device-to-host copy that the host waits for.
        model_launch: index of the last launch of the model itself; sampling and read-back come after.
        stall_points: per fault index, the operations that its stalls delay.
        range_text: the engine's range of this step; `{i}` is the iteration.
        tokens_out: tokens that the step yields.
        root: operations that their launch call itself makes wait: the first of each stream in it.
    """

    key: tuple[str, int, int]
    phase: str
    rung: str
    ops: tuple[Op, ...]
    launches: tuple[LaunchPlan, ...]
    blocks: tuple[tuple[int, int], ...]
    read_back: int
    model_launch: int
    stall_points: dict[int, tuple[int, ...]]
    range_text: str
    tokens_out: int
    duration: Floats
    gap: Floats
    kind: Ints
    stream: Ints
    group: Ints
    after: Ints
    owner: Ints
    launch: Ints
    root: Bools
    compute: Bools
    collective: Ints
    graph: Ints
    graphs: tuple[int, ...] = field(default=())

    @property
    def collective_ops(self) -> list[int]:
        """Indices of the collectives' first kernels, in order."""
        return [i for i, op in enumerate(self.ops) if op.group >= 0]
