"""The collective table: which kernels are one operation seen by several ranks, told by their names alone.

The table is a file of its own and knows nothing of bucket maps: whatever map is in use, the same kernels are
collectives. Its format stands in `rules/README.md`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import regex

from tracelens.errors import RuleError
from tracelens.ruleset.shelf import read_text, rules_folder
from tracelens.ruleset.spelling import function_name, integer, template_arguments

LONGEST_NAME = 8192
"""Only so much of a name is looked at: what it is stands in front, and the cost of hostile ones stays bounded."""


@dataclass(frozen=True)
class Collective:
    """What a kernel does between ranks.

    Attributes:
        operation: all_reduce, all_gather, reduce_scatter, all_to_all, barrier, broadcast, reduce, send_recv, p2p,
            or unknown where the name hides it.
        implementation: `nccl`, `custom_2stage`, `multimem`, ...; labels stand in the table.
        synchronising: no rank can leave before the last has come, so ends agree and early ranks wait.
        fused: it also does compute (residual, norm, quantisation, GEMM, MoE finalisation).
        barrier_end: its end is the operation's; false for a follow-up kernel of the same operation.
        ranks: the number of ranks in the template arguments; null where the name does not say.
        algorithm: what the name tells beyond the implementation (`tree`, `RSxLD_AGxST`, ...); null where nothing.
    """

    operation: str
    implementation: str
    synchronising: bool
    fused: bool
    barrier_end: bool = True
    ranks: int | None = None
    algorithm: str | None = None


@dataclass(frozen=True)
class _Family:
    """One row of the table, compiled."""

    pattern: Any
    function_only: bool
    operation: str | None
    implementation: str
    synchronising: bool | None
    fused: bool
    plain_argument: int | None
    barrier_end: bool
    ranks: tuple[int, ...]


class CollectiveTable:
    """All families, in order; the first whose pattern is found decides."""

    def __init__(self, document: Mapping[str, Any], sha256: str = "") -> None:
        """From the table as JSON gives it, and the digest of its file."""
        self.sha256 = sha256
        self._tokens: dict[str, str] = dict(document["operations"])
        self._synchronising = frozenset(document["synchronising"])
        self._families = tuple(_family(row) for row in document["families"])
        self._hints: tuple[str, ...] = tuple(document["hints"])
        self._known: dict[str, Collective | None] = {}

    def classify(self, name: str) -> Collective | None:
        """What kernel `name` does between ranks; null if it is no collective.

        Args:
            name: demangled in any spelling (nsys `(int)8`, torch `8`), shortened, or mangled.
        """
        if name not in self._known:
            if len(self._known) > 200_000:
                self._known.clear()
            self._known[name] = self._classify(name)
        return self._known[name]

    def _classify(self, name: str) -> Collective | None:
        name = name[:LONGEST_NAME]
        lowered = name.lower()
        if not any(hint in lowered for hint in self._hints):
            return None
        function = function_name(name)
        for family in self._families:
            match = family.pattern.search(function if family.function_only else name)
            if match is not None:
                return self._collective(family, match, name)
        return None

    def _collective(self, family: _Family, match: Any, name: str) -> Collective | None:
        named = match.groupdict()
        operation = family.operation
        if operation is None:
            operation = self._tokens.get((named.get("operation") or "").lower().replace("_", ""), "unknown")
        if operation == "none":
            return None
        arguments = [] if family.function_only else template_arguments(name, match.end())
        ranks = next((value for at in family.ranks if (value := integer(arguments, at)) is not None), None)
        fused = family.fused
        if family.plain_argument is not None and integer(arguments, family.plain_argument) == 0:
            fused = False
        algorithm = named.get("algorithm")
        synchronising = family.synchronising
        return Collective(
            operation=operation,
            implementation=family.implementation,
            synchronising=operation in self._synchronising if synchronising is None else synchronising,
            fused=fused,
            barrier_end=family.barrier_end,
            ranks=ranks if ranks is None or 2 <= ranks <= 1024 else None,
            algorithm="tree" if algorithm and algorithm.lower() == "tree" else algorithm,
        )


def _family(row: Mapping[str, Any]) -> _Family:
    ranks = row.get("ranks", ())
    return _Family(
        pattern=regex.compile(row["pattern"]),
        function_only=row.get("search") == "function",
        operation=row.get("operation"),
        implementation=row["implementation"],
        synchronising=row.get("synchronising"),
        fused=row.get("fused", False),
        plain_argument=row.get("plain_argument"),
        barrier_end=row.get("barrier_end", True),
        ranks=(ranks,) if isinstance(ranks, int) else tuple(ranks),
    )


@cache
def load_collectives() -> CollectiveTable:
    """The shipped table.

    Raises:
        RuleError: the installation holds none, or a broken one.
    """
    text = read_text(rules_folder() / "collectives.json")
    try:
        return CollectiveTable(json.loads(text), hashlib.sha256(text.encode()).hexdigest())
    except (ValueError, KeyError, TypeError, regex.error) as error:
        raise RuleError(f"the shipped collective table is broken: {error}", "reinstall nsys-tracelens") from error
