"""What an analysis of a capture should find, computed from true times rather than from the export.

Steps, gaps and their causes follow the same definitions that the analyses implement, written independently and read
off one perfect clock. Waits come from the true arrivals.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.simulate.spec import CaptureSpec

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

CAUSES = (
    "idle",
    "step_boundary",
    "in_graph",
    "unknown",
    "host_late",
    "launch_latency",
    "back_to_back",
    "dependency",
)
JSON_MEMBERS = 300_000
"""Collective members up to which truth.json lists every call."""


@dataclass(eq=False)
class StepTruth:
    """Every step on every rank.

    Attributes:
        phase, rung, graph_id: per step; graph_id -1 for eager steps.
        warm_up: per step, planted as slow.
        late_rank: per step, the rank that a rotating delay chose; -1 for none.
        tokens: per step, tokens that it yields.
        edge_ns, window_end_ns: steps x ranks, true time; the end of the last step's window is its last event's.
        complete: per step: it has a next edge, no idle between requests follows, and nothing of it is cut off,
            on every rank.
        cut: steps x ranks: rows of it are missing at the capture's head or tail.
        step_ns, busy_ns, collective_ns, exposed_ns, wait_ns: steps x ranks.
        gap_ns: cause -> steps x ranks.
        kernel_count, collective_count: steps x ranks, of rows and operations that the capture holds.
    """

    phase: list[str]
    rung: list[str]
    graph_id: list[int]
    warm_up: Bools
    late_rank: Ints
    tokens: Ints
    edge_ns: Ints
    window_end_ns: Ints
    complete: Bools
    cut: Bools
    step_ns: Ints
    busy_ns: Ints
    collective_ns: Ints
    exposed_ns: Ints
    wait_ns: Ints
    gap_ns: dict[str, Ints]
    kernel_count: Ints
    collective_count: Ints


@dataclass(eq=False)
class CollectiveTruth:
    """Every collective call; with several communicators a call is one instance in each of them.

    Attributes:
        step, position: per call: its step, and its place among the step's calls.
        operation, implementation, name: per call.
        synchronising: per call.
        message_bytes: per call.
        communicator: calls x ranks: 0 .. dp-1 the TP groups, dp the group of all ranks.
        arrival_ns: calls x ranks: when the rank's first kernel of the call starts, true time.
        end_ns: calls x ranks: when its last kernel of the call ends.
        barrier_end_ns: calls x ranks: when the kernel that synchronises ends.
        wait_ns: calls x ranks: last arrival of the communicator minus own; 0 where not synchronising.
        transfer_ns: calls x ranks: median over the communicator of end minus last arrival.
        kept: calls x ranks: the capture holds it.
        complete: calls x ranks: it holds it on every member.
    """

    step: Ints
    position: Ints
    operation: list[str]
    implementation: list[str]
    name: list[str]
    synchronising: Bools
    message_bytes: Ints
    communicator: Ints
    arrival_ns: Ints
    end_ns: Ints
    barrier_end_ns: Ints
    wait_ns: Ints
    transfer_ns: Ints
    kept: Bools
    complete: Bools


@dataclass(eq=False)
class Truth:
    """Everything that is known about a capture.

    Attributes:
        spec: what was asked for.
        members: communicator -> its ranks.
        steps: see `StepTruth`.
        collectives: see `CollectiveTruth`.
        gap_total_ns: cause -> per rank, over the whole span, idle between requests included.
        host_part_ns, launch_part_ns: cause -> per rank.
        typical_latency_ns: per rank: of graph launches, of other calls.
        span_ns, busy_ns: per rank, of the rows that the capture holds.
        idle_between_ns: per step and rank: the idle between requests that follows.
        kernel_rows, copy_rows: per rank, rows that the capture holds.
        period_ns: with `repeat`, the distance of the blocks; truth covers the first one.
    """

    spec: CaptureSpec
    members: dict[int, tuple[int, ...]]
    steps: StepTruth
    collectives: CollectiveTruth
    gap_total_ns: dict[str, Ints]
    host_part_ns: dict[str, Ints]
    launch_part_ns: dict[str, Ints]
    typical_latency_ns: Ints
    span_ns: Ints
    busy_ns: Ints
    idle_between_ns: Ints
    kernel_rows: Ints
    copy_rows: Ints
    period_ns: int

    def mean_wait_ns(self, communicator: int | None = None) -> npt.NDArray[np.float64]:
        """Per rank, the mean wait over synchronising calls that the capture holds on every member; NaN for none.

        Args:
            communicator: a key of `members`; None takes the calls of all.
        """
        calls = self.collectives
        use = calls.complete & calls.synchronising[:, None]
        if communicator is not None:
            use = use & (calls.communicator == communicator)
        count = use.sum(axis=0)
        total = np.where(use, calls.wait_ns, 0).sum(axis=0)
        mean: npt.NDArray[np.float64] = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
        return mean

    @property
    def lambda_ns(self) -> float | None:
        """Median transfer of an all-reduce: the fixed cost that tensor parallelism does not divide; None without one."""
        calls = self.collectives
        use = np.array(calls.operation) == "all_reduce"
        return float(np.median(calls.transfer_ns[use])) if use.any() else None

    def caused_wait_ns(self) -> Ints:
        """Per rank, the others' waits in the calls where it came last."""
        calls = self.collectives
        caused = np.zeros(self.spec.ranks, np.int64)
        for ranks in self.members.values():
            rows = calls.synchronising & (calls.communicator[:, ranks[0]] == calls.communicator[:, ranks[-1]])
            rows &= calls.complete[:, ranks[0]]
            arrivals = calls.arrival_ns[np.ix_(np.flatnonzero(rows), np.array(ranks))]
            if arrivals.size and len(ranks) > 1:
                waits = arrivals.max(axis=1, keepdims=True) - arrivals
                np.add.at(caused, np.array(ranks)[arrivals.argmax(axis=1)], waits.sum(axis=1))
        return caused

    def decode_step_ns(self, rung: str | None = None) -> Ints:
        """step_ns (median over ranks) of the complete decode steps outside warm-up, of one rung or all."""
        steps = self.steps
        use = steps.complete & ~steps.warm_up & (np.array(steps.phase) == "decode")
        if rung is not None:
            use &= np.array(steps.rung) == rung
        return np.median(steps.step_ns[use], axis=1).round().astype(np.int64) if use.any() else np.zeros(0, np.int64)

    def to_json(self) -> dict[str, Any]:
        """A plain structure of the whole; calls are left out above `JSON_MEMBERS` members."""
        calls = self.collectives
        listed = calls.arrival_ns.size <= JSON_MEMBERS
        return {
            "schema": 1,
            "spec": _plain(asdict(self.spec)) | {"faults": [_fault(fault) for fault in self.spec.faults]},
            "ranks": self.spec.ranks,
            "members": {str(key): list(ranks) for key, ranks in self.members.items()},
            "period_ns": self.period_ns,
            "span_ns": self.span_ns.tolist(),
            "busy_ns": self.busy_ns.tolist(),
            "kernel_rows": self.kernel_rows.tolist(),
            "copy_rows": self.copy_rows.tolist(),
            "mean_wait_ns": [None if np.isnan(value) else float(value) for value in self.mean_wait_ns()],
            "lambda_ns": self.lambda_ns,
            "caused_wait_ns": self.caused_wait_ns().tolist(),
            "typical_latency_ns": self.typical_latency_ns.tolist(),
            "gap_total_ns": _plain(self.gap_total_ns),
            "host_part_ns": _plain(self.host_part_ns),
            "launch_part_ns": _plain(self.launch_part_ns),
            "idle_between_ns": self.idle_between_ns.tolist(),
            "steps": _plain(vars(self.steps)),
            "collective_calls": len(calls.step),
            "collectives": _plain(vars(calls)) if listed else None,
        }


def _fault(fault: Any) -> dict[str, Any]:
    return {"kind": type(fault).__name__} | {key: _plain(value) for key, value in vars(fault).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
