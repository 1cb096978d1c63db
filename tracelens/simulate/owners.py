"""Who a rank is in an export: process, device, names, launcher variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.simulate.clocks import RankClock
from tracelens.simulate.spec import CaptureSpec
from tracelens.simulate.writer import global_pid

Ints = npt.NDArray[np.int64]

FIRST_PID = 2_000


@dataclass(frozen=True)
class Owner:
    """Who a rank is in its export: process, device as the process sees it, GPU of the machine."""

    rank: int
    pid: int
    device: int
    gpu: int
    context: int
    correlation_step: int
    correlation_base: int

    @property
    def nccl_domain(self) -> int:
        """The process's number of the NCCL domain: odd ranks made another domain before."""
        return 1 + self.rank % 2

    @property
    def tid(self) -> int:
        """The launching thread: the process's main one, or one per GPU when a process drives several."""
        return self.pid if self.correlation_step == 1 else self.pid + self.rank


def owners(spec: CaptureSpec, ranks: list[int]) -> list[Owner]:
    """The owner of each rank of one export."""
    found = []
    for rank in ranks:
        # one export is one machine, however many GPUs it then has
        gpu = rank if len(ranks) > 1 else rank % spec.ranks_per_host
        pid = FIRST_PID if spec.one_process else FIRST_PID + 7 * rank
        device = 0 if spec.visible_devices else gpu
        shared = spec.one_process and len(ranks) > 1
        found.append(
            Owner(
                rank=rank,
                pid=pid,
                device=device,
                gpu=gpu,
                context=1 + (gpu if shared else int(spec.side_contexts and device > 0)),
                correlation_step=len(ranks) if shared else 1,
                # processes count for themselves: the same ids turn up in several of them
                correlation_base=10_000 + (ranks.index(rank) if shared else 13 * rank),
            )
        )
    return found


def title(spec: CaptureSpec, rank: int) -> str:
    """What the engine calls the process of a rank."""
    replica, member = divmod(rank, spec.tp)
    parts = (f"DP{replica}_" if spec.dp > 1 else "") + f"TP{member}"
    if spec.engine == "sglang":
        return f"sglang::scheduler_{parts}"
    return f"VLLM::Worker_{parts}" if spec.engine == "vllm" else f"trtllm-worker_{parts}"


def rank_environment(spec: CaptureSpec, rank: int) -> list[str]:
    """The launcher's variables of a rank."""
    local = rank % spec.ranks_per_host
    if spec.engine == "trtllm":
        return [f"OMPI_COMM_WORLD_RANK={rank}", f"OMPI_COMM_WORLD_SIZE={spec.ranks}"]
    return [f"RANK={rank}", f"LOCAL_RANK={local}", f"WORLD_SIZE={spec.ranks}"]


def device_columns(owner: Owner, clock: RankClock, start: Ints, end: Ints) -> dict[str, Any]:
    """Columns that every GPU row of a rank has; `start` and `end` are true times."""
    return {
        "start": clock.to_local(start),
        "end": clock.to_local(end),
        "deviceId": owner.device,
        "contextId": owner.context,
        "greenContextId": 0,
        "globalPid": global_pid(owner.pid),
    }
