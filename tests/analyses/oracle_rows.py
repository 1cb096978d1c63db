"""Collectives of a job whose clocks and arrivals are known: the truth that matching and clocks are judged by."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir

import numpy as np


@dataclass
class Job:
    """What ran, on the true clock and on each rank's own.

    start, end, arrival, true_end: float64 ns [instances, ranks]; key, position_in_step, step: [instances].
    """

    start: np.ndarray
    end: np.ndarray
    arrival: np.ndarray
    true_end: np.ndarray
    key: np.ndarray
    step: np.ndarray
    operation: np.ndarray
    keep: np.ndarray = field(default=None)  # type: ignore[assignment]

    @property
    def wait(self) -> np.ndarray:
        """True wait, ns [instances, ranks]."""
        return self.arrival.max(axis=1, keepdims=True) - self.arrival


def decode_job(
    ranks: int = 4,
    steps: int = 20,
    layers: int = 8,
    seed: int = 0,
    *,
    compute_ns: float = 40_000.0,
    compute_noise: float = 0.01,
    step_gap_ns: float = 120_000.0,
    step_noise_ns: float = 2_000.0,
    arrival_noise_ns: float = 300.0,
    transfer_ns: float = 9_000.0,
    end_noise_ns: float = 120.0,
    late_ns: np.ndarray | None = None,
    leave_ns: np.ndarray | None = None,
    gather: bool = True,
    start_ns: float = 1e9,
) -> Job:
    """A decode loop: per step 2 x layers all-reduces and, with `gather`, one all-gather.

    late_ns: [instances, ranks] extra compute before each collective; leave_ns: [operations 0|1, ranks] a constant by
    which a rank leaves late.
    """
    rng = np.random.default_rng(seed)
    per_step = 2 * layers + (1 if gather else 0)
    count = steps * per_step
    position = np.tile(np.arange(per_step), steps)
    step = np.repeat(np.arange(steps), per_step)
    operation = np.where((position == per_step - 1) & gather, 1, 0)
    base = compute_ns * np.where(position % 2 == 0, 0.8, 1.2)
    base = base + np.where(position == 0, step_gap_ns + rng.normal(0, step_noise_ns, count), 0.0)
    work = base[:, None] * (1 + compute_noise * rng.normal(size=(count, 1)))
    work = np.maximum(work + arrival_noise_ns * rng.normal(size=(count, ranks)), 1_000.0)
    if late_ns is not None:
        work = work + late_ns
    leave = np.zeros((2, ranks)) if leave_ns is None else leave_ns
    arrival = np.empty((count, ranks))
    true_end = np.empty((count, ranks))
    noise = np.abs(end_noise_ns * rng.normal(size=(count, ranks)))
    free = np.full(ranks, start_ns)
    for k in range(count):
        arrival[k] = free + work[k]
        free = arrival[k].max() + transfer_ns + noise[k] + leave[operation[k]]
        true_end[k] = free
    return Job(arrival.copy(), true_end.copy(), arrival, true_end, operation.copy(), step, operation)


def with_clocks(
    job: Job, offset_ns: np.ndarray, drift: np.ndarray | float = 0.0, jump: tuple[int, float, float] | None = None
) -> Job:
    """The job as each rank's clock shows it, rounded to ns; `jump` is (rank, true time, ns added after it)."""

    def shown(time: np.ndarray) -> np.ndarray:
        own = time + offset_ns[None, :] + np.asarray(drift) * (time - time.min())
        if jump is not None:
            rank, when, size = jump
            own[:, rank] += np.where(time[:, rank] >= when, size, 0.0)
        return np.rint(own)

    job.start, job.end = shown(job.arrival), shown(job.true_end)
    return job


FAMILIES = (("all_reduce", "custom_2stage", True), ("all_gather", "nccl", True))


def operations(job: Job, *, cuts=None, lost=()):
    """The job as the rows that `align_operations` takes.

    cuts: per rank (first, one past the last) instance; lost: (rank, slice) pairs.
    """
    from tracelens.analyses.alignment_operations import Operations

    count, ranks = job.end.shape
    owner, start, end, family = [], [], [], []
    for rank in range(ranks):
        keep = np.zeros(count, dtype=bool)
        keep[slice(*(cuts[rank] if cuts else (0, count)))] = True
        for loser, where in lost:
            if loser == rank:
                keep[where] = False
        owner.append(np.full(int(keep.sum()), rank))
        start.append(job.start[keep, rank])
        end.append(job.end[keep, rank])
        family.append(job.operation[keep])
    owner, start, end, family = (np.concatenate(c).astype(np.int64) for c in (owner, start, end, family))
    place = np.arange(len(owner), dtype=np.int32)
    duration = end - start
    return Operations(
        first=np.searchsorted(owner, np.arange(ranks + 1)),
        id_shift=np.zeros(ranks, np.int64),
        owner=owner,
        place=place,
        last_place=place,
        start=start,
        duration=duration,
        leave_after=duration,
        name_id=family,
        stream=np.full(len(owner), 7),
        shape_code=np.zeros(len(owner), np.uint8),
        shapes=np.array([1]),
        family=family,
        families=FAMILIES,
        payload_code=None,
        payloads=np.zeros(1, np.uint64),
        message_bytes=np.full(len(owner), -1),
    )


def aligned(job: Job, *, exports=None, utc=None, wanted="auto", room_bytes=1 << 40, threads=2, **how):
    """`align_operations` on the job: one file, or one per rank with session starts at `utc`."""
    from tracelens.analyses.alignment import align_operations
    from tracelens.analyses.matching_communicators import RankClock
    from tracelens.array_room import ArrayRoom

    ranks = job.end.shape[1]
    rows = operations(job, **how)
    clocks = [
        RankClock(rank, rank, 0 if exports is None else exports[rank], "node0", 0 if utc is None else utc[rank])
        for rank in range(ranks)
    ]
    first = [int(rows.start[rows.owner == rank].min()) - 1_000 for rank in range(ranks)]
    room = ArrayRoom(room_bytes, Path(gettempdir()))
    return align_operations(clocks, rows, first, wanted=wanted, room=room, threads=threads)


def waits_of(alignment, ranks: int):
    """(positions, waits [instances, ranks]) of the accepted instances of communicator 0."""
    rows = alignment.members.filter(alignment.members["accepted"] & (alignment.members["communicator"] == 0))
    return (
        rows["position"].to_numpy().reshape(-1, ranks)[:, 0],
        rows["wait_ns"].to_numpy().reshape(-1, ranks),
    )


def side_by_side(one: Job, other: Job) -> Job:
    """Two jobs that never meet, on the ranks of one capture."""
    count = min(len(one.key), len(other.key))
    both = [
        np.concatenate([getattr(job, name)[:count] for job in (one, other)], axis=1)
        for name in ("start", "end", "arrival", "true_end")
    ]
    return Job(*both, one.key[:count], one.step[:count], one.operation[:count])
