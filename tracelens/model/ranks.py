"""Which GPU is which rank, by evidence.

A rank is one (export, process, device). One kind of evidence numbers all of them: the first, in the order below, that
gives every one a number of its own. A device ordinal is not a rank number: a launcher that shows each process one
GPU makes every ordinal 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from tracelens.errors import RankError
from tracelens.units import plural

_FILE_RANK = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)

#: A device with less than this share of its process's kernel time, while another has over 0.9, is a side context:
#: frameworks touch GPU 0 from every worker.
_SIDE_SHARE, _MAIN_SHARE = 0.01, 0.90


#: No job has more; a number beyond it is no rank.
_MOST_RANKS = 1 << 20


@dataclass(frozen=True)
class Communicator:
    """What a process said when it joined an NCCL communicator.

    Attributes:
        identifier: the same on all its ranks; None before NCCL 2.25.
        rank, size: the process's rank in it, and its number of ranks.
        start_ns: when it began to join, on its own export's clock.
    """

    identifier: int | None
    rank: int
    size: int | None
    start_ns: int | None = None


@dataclass(frozen=True)
class Candidate:
    """One (export, process, device) with events.

    Attributes:
        parts: parallel coordinates from the worker's title.
        nccl: communicators that the process joined.
        environment: variable -> number, of this export.
        gpu: identity of the physical GPU where known: its UUID, or its machine and bus address.
    """

    export: int
    global_pid: int
    device: int
    kernel_count: int
    kernel_ns: int
    first_ns: int
    stem: str = ""
    shown: str = ""
    host: str | None = None
    start_utc_ns: int | None = None
    parts: Mapping[str, int] | None = None
    nccl: tuple[Communicator, ...] = ()
    environment: Mapping[str, int] | None = None
    gpu: str | None = None

    @property
    def place(self) -> tuple[int, int, int]:
        """(export, process, device)."""
        return (self.export, self.global_pid, self.device)


@dataclass(frozen=True)
class Numbering:
    """Ranks and what is none.

    Attributes:
        ranks: candidate -> rank number.
        source: the kind of evidence that numbered them.
        rejected: candidate -> why it is no rank.
        unusable: kinds of evidence that gave one number twice, with an example.
    """

    ranks: dict[tuple[int, int, int], int]
    source: str
    rejected: dict[tuple[int, int, int], str]
    unusable: list[tuple[str, str]]


def number_ranks(
    candidates: Sequence[Candidate],
    rank_map: Mapping[int, tuple[str, int | None]] | None = None,
    expected: int | None = None,
) -> Numbering:
    """Numbers the GPUs of a job.

    Args:
        candidates: every (export, process, device) with events.
        rank_map: rank -> (path as typed or file name, device or None for the file's only one).
        expected: number of ranks that the user expects; sizes the tensor-parallel part of titles.

    Raises:
        RankError: the map names one GPU twice, a file that is not there, or leaves a GPU out.
    """
    rejected = _rejected(candidates)
    ranked = [one for one in candidates if one.place not in rejected]
    if rank_map:
        return Numbering(_by_map(ranked, rank_map), "rank-map", rejected, [])
    unusable: list[tuple[str, str]] = []
    kinds: list[tuple[str, Callable[[list[Candidate], int | None], list[int | None]]]] = [
        ("nccl", _by_nccl),
        ("title", _by_title),
        ("environment", _by_environment),
        ("file-name", _by_file_name),
        ("device", lambda members, _: [one.device for one in members]),
    ]
    for kind, evidence in kinds:
        numbers = evidence(ranked, expected)
        given = [number for number in numbers if number is not None and 0 <= number < _MOST_RANKS]
        if len(given) == len(ranked) == len(set(given)):
            return Numbering(
                {one.place: number for one, number in zip(ranked, given, strict=True)}, kind, rejected, unusable
            )
        twice = sorted(number for number, count in Counter(given).items() if count > 1)
        if twice and len(given) == len(ranked):
            holders = [
                f"process {one.global_pid >> 24 & 0xFFFFFF} device {one.device} of {one.shown}"
                for one, number in zip(ranked, numbers, strict=True)
                if number == twice[0]
            ]
            more = f" and {len(holders) - 2} more" if len(holders) > 2 else ""
            unusable.append((_WORDS[kind], f"{' and '.join(holders[:2])}{more} would all be rank {twice[0]}"))
    one_time = all(one.start_utc_ns is not None for one in ranked)
    ordered = sorted(
        ranked,
        key=lambda one: (
            (one.start_utc_ns or 0) + one.first_ns if one_time else 0,
            one.export,
            one.first_ns,
            one.global_pid,
            one.device,
        ),
    )
    return Numbering({one.place: number for number, one in enumerate(ordered)}, "first-kernel", rejected, unusable)


_WORDS = {
    "nccl": "NCCL communicator",
    "title": "workers' titles",
    "environment": "environment",
    "file-name": "file names",
    "device": "device ordinals",
}


def _rejected(candidates: Sequence[Candidate]) -> dict[tuple[int, int, int], str]:
    """Side contexts, devices without kernels, and processes foreign to the job."""
    rejected: dict[tuple[int, int, int], str] = {}
    devices: dict[tuple[int, int], list[Candidate]] = {}
    for one in candidates:
        devices.setdefault((one.export, one.global_pid), []).append(one)
    for mine in devices.values():
        total = sum(one.kernel_ns for one in mine)
        largest = max(one.kernel_ns for one in mine)
        for one in mine:
            if one.kernel_count == 0:
                rejected[one.place] = "no kernels"
            elif one.kernel_ns < _SIDE_SHARE * total and largest > _MAIN_SHARE * total:
                rejected[one.place] = "side context"
    known: dict[tuple[int, str | int], set[int]] = {}
    for one in candidates:
        if one.place not in rejected and (one.parts or one.nccl):
            for gpu in (one.gpu, one.device):
                if gpu is not None:
                    known.setdefault((one.export, gpu), set()).add(one.global_pid)
    for one in candidates:
        if one.place in rejected or one.parts or one.nccl:
            continue
        owners = known.get((one.export, one.gpu if one.gpu is not None else one.device), set())
        if owners - {one.global_pid}:
            rejected[one.place] = "foreign process"
    return rejected


def _by_nccl(members: list[Candidate], _: int | None) -> list[int | None]:
    """The rank in one NCCL communicator that covers all ranks: of several, the one that was made first.

    It may have more ranks than the capture shows, where some are missing. Before NCCL 2.25 communicators have no id; then a process that joined several of that size under different ranks
    tells nothing. A process with several devices cannot be told by its communicators either.
    """
    covering = [[joined for joined in one.nccl if (joined.size or 0) >= len(members)] for one in members]
    shared = set.intersection(*({joined.identifier for joined in mine} for mine in covering)) if covering else set()
    choices: list[tuple[int, int, list[int | None]]] = []
    for identifier in shared:
        numbers: list[int | None] = []
        begun = []
        for mine in covering:
            ranks = {joined.rank for joined in mine if joined.identifier == identifier}
            begun += [joined.start_ns or 0 for joined in mine if joined.identifier == identifier]
            numbers.append(ranks.pop() if len(ranks) == 1 else None)
        if None not in numbers:
            choices.append((begun[0], -1 if identifier is None else identifier, numbers))
    distinct = [choice for choice in choices if len(set(choice[2])) == len(members)]
    best = min(distinct or choices, key=lambda choice: choice[:2], default=None)
    return [None] * len(members) if best is None else best[2]


def _by_title(members: list[Candidate], expected: int | None) -> list[int | None]:
    parts = [one.parts or {} for one in members]
    if not all("tp" in one or "pp" in one or "dp" in one for one in parts):
        return [None] * len(members)
    sizes = {kind: max(one.get(kind, 0) for one in parts) + 1 for kind in ("dp", "pp", "tp")}
    if expected and expected % (sizes["dp"] * sizes["pp"]) == 0:
        sizes["tp"] = max(sizes["tp"], expected // (sizes["dp"] * sizes["pp"]))
    return [(one.get("dp", 0) * sizes["pp"] + one.get("pp", 0)) * sizes["tp"] + one.get("tp", 0) for one in parts]


def _by_environment(members: list[Candidate], _: int | None) -> list[int | None]:
    """RANK and its like, an export's own; LOCAL_RANK only where all ranks are on one host."""
    variables = ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"]
    if len({one.host for one in members}) == 1 and members and members[0].host is not None:
        variables.append("LOCAL_RANK")
    best: list[int | None] = [None] * len(members)
    for variable in variables:
        numbers = [(one.environment or {}).get(variable) for one in members]
        if None not in numbers and (len(set(numbers)) == len(numbers) or best.count(None) == len(best)):
            best = numbers
            if len(set(numbers)) == len(numbers):
                return numbers
    return best


def _by_file_name(members: list[Candidate], _: int | None) -> list[int | None]:
    """`rank<N>` in the name, only where each file holds one GPU (`tp8.sqlite` is not rank 8)."""
    if len({one.export for one in members}) != len(members):
        return [None] * len(members)
    matches = [_FILE_RANK.search(one.stem) for one in members]
    return [int(match.group(1)) if match else None for match in matches]


def _by_map(
    members: list[Candidate], rank_map: Mapping[int, tuple[str, int | None]]
) -> dict[tuple[int, int, int], int]:
    ranks: dict[tuple[int, int, int], int] = {}
    for rank, (path, device) in sorted(rank_map.items()):
        where = f"{path}:{device}" if device is not None else path
        matching = [one for one in members if _same_file(one.shown, path) and device in (None, one.device)]
        if not matching:
            seen = ", ".join(f"{one.shown}:{one.device}" for one in members[:8])
            raise RankError(
                f"the rank map gives rank {rank} to {where}, which is not in the capture (there are {seen})",
                "Name the files as on the command line.",
            )
        if len(matching) > 1:
            raise RankError(
                f"the rank map gives rank {rank} to {where}, which holds {plural(len(matching), 'GPU')}",
                "Add the device: rank=path:device",
            )
        if matching[0].place in ranks:
            raise RankError(
                f"the rank map names {where} twice, as rank {ranks[matching[0].place]} and rank {rank}",
                "Give each GPU one rank.",
            )
        ranks[matching[0].place] = rank
    left = [one for one in members if one.place not in ranks]
    if left:
        raise RankError(
            f"the rank map leaves out {', '.join(f'{one.shown}:{one.device}' for one in left[:8])}",
            "Give every GPU of the capture a rank.",
        )
    return ranks


def _same_file(shown: str, path: str) -> bool:
    """Whether a map's path names the file: as it was typed, or by its last parts."""
    typed, named = (PurePath(one).parts for one in (shown, path))
    return shown == path or typed[-len(named) :] == named
