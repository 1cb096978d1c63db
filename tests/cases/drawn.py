"""Rows that several of the reported problems are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracelens.simulate import Kernel, Range, Thread, write_events

US = 1_000
MS = 1_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
GEMM = "nvjet_tst_128x8_64x12_4x1_v_bz_TNT"


def two_stage(ranks: int) -> str:
    """vLLM's two-stage all-reduce; its name tells how many ranks it is built for."""
    return (
        f"void vllm::cross_device_reduce_2stage<__nv_bfloat16, (int){ranks}>"
        "(vllm::RankData *, vllm::RankSignals, vllm::Signal *, T1 *, int, int)"
    )


def kernel(name: str, rank: int, start: int, end: int, launch: int | None = None, **more: Any) -> Kernel:
    """A kernel of a rank; `launch` is the begin of its 2 us launch call."""
    call = None if launch is None else (launch, launch + 2 * US)
    return Kernel(name, start, end, call, pid=100 + rank, device=rank, **more)


def mark(text: str, rank: int, start: int, end: int | None, **more: Any) -> Range:
    """A range on a rank's host."""
    return Range(text, start, end, pid=100 + rank, **more)


def decode(rank: int, start: int, batch: int = 1) -> Range:
    """The range that opens a decode step of vLLM."""
    return mark(f"execute_context_0(0)_generation_{batch}({batch})", rank, start, start + 1)


def titles(count: int) -> list[Thread]:
    """The workers' titles of a tensor-parallel job."""
    return [Thread(f"VLLM::Worker_TP{rank}", pid=100 + rank) for rank in range(count)]


def arriving(
    path: Path, skews: Sequence[Sequence[int]], late: Sequence[int], *, transfer: int = 10 * US, ranks: int = 2
) -> Path:
    """Steps of all-reduces that one rank each reaches late, because its host launches the kernel before late.

    skews[step][call] is how late; late[step * calls + call] or late[0] is who. All leave together.

        rank late   |gemm|   ............ |gemm|[==]
        others      |gemm|[==============wait=====]
    """
    rows: list[Any] = titles(ranks)
    at, number = 10 * MS, 0
    for calls in skews:
        at += 50 * US
        rows += [decode(rank, at - 5 * US) for rank in range(ranks)]
        for skew in calls:
            who = late[number % len(late)]
            number += 1
            for rank in range(ranks):
                begin = at + (skew if rank == who else 0)
                rows.append(kernel(GEMM, rank, begin, begin + 20 * US, begin - 4 * US))
                arrival, end = begin + 21 * US, at + 21 * US + skew + transfer
                rows.append(kernel(two_stage(ranks), rank, arrival, end, begin - 2 * US))
            at += 21 * US + skew + transfer + 5 * US
    return write_events(rows, path)
