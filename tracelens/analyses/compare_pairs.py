"""Which kernel of one run is which of the other: by name, else by bucket and place in the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tracelens.analyses.compare_sides import Named, SideFigures

Status = Literal["same", "appeared", "vanished", "implementation_changed"]

#: Two names can be one kernel of two libraries only if they run equally often: calls per step within this factor.
CALLS_FACTOR = 1.05


@dataclass(frozen=True)
class Pair:
    """One row of a comparison.

    Attributes:
        name: what it is called; both names where they differ.
        before, after: columns of the sides' tables; empty on the side that has none.
        status: how the two belong together.
    """

    name: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    status: Status


def pair_names(before: SideFigures, after: SideFigures) -> list[Pair]:
    """Pairs kernel names: equal names first; then, within a bucket and operation, by place in the step.

    A name that vanished and one that appeared are the same work under another name if their bucket (and, of
    collectives, their operation) is the same and they run equally often; of several, those pair that run first.
    """
    ours, theirs = (
        {name.name: place for place, name in enumerate(before.names)},
        {name.name: place for place, name in enumerate(after.names)},
    )
    pairs = [Pair(name, (ours[name],), (theirs[name],), "same") for name in ours if name in theirs]
    gone = [place for name, place in ours.items() if name not in theirs]
    new = [place for name, place in theirs.items() if name not in ours]
    calls_before, calls_after = _mean(before.calls), _mean(after.calls)
    for key in sorted({_kind(before.names[place]) for place in gone} & {_kind(after.names[place]) for place in new}):
        left = sorted(
            (place for place in gone if _kind(before.names[place]) == key),
            key=lambda place: _place(before.names[place]),
        )
        right = sorted(
            (place for place in new if _kind(after.names[place]) == key), key=lambda place: _place(after.names[place])
        )
        for mine in left:
            match = next((other for other in right if _alike(calls_before[mine], calls_after[other])), None)
            if match is not None:
                right.remove(match)
                gone.remove(mine)
                new.remove(match)
                pairs.append(
                    Pair(
                        f"{before.names[mine].name} -> {after.names[match].name}",
                        (mine,),
                        (match,),
                        "implementation_changed",
                    )
                )
    pairs += [Pair(before.names[place].name, (place,), (), "vanished") for place in gone]
    pairs += [Pair(after.names[place].name, (), (place,), "appeared") for place in new]
    return pairs


def pair_groups(ours: Sequence[str | None], theirs: Sequence[str | None]) -> list[Pair]:
    """Pairs groups of names that carry one label on both sides; `ours` and `theirs` label the names of each side."""
    pairs = []
    for label in sorted({one for one in [*ours, *theirs] if one is not None}):
        mine = tuple(place for place, one in enumerate(ours) if one == label)
        other = tuple(place for place, one in enumerate(theirs) if one == label)
        pairs.append(Pair(label, mine, other, "same" if mine and other else "vanished" if mine else "appeared"))
    return pairs


def pair_collectives(before: SideFigures, after: SideFigures) -> list[Pair]:
    """Pairs collectives by operation and implementation; one implementation that took another's place is told as such."""
    label = [
        [f"{name.operation} {name.implementation}" if name.operation else None for name in side.names]
        for side in (before, after)
    ]
    pairs = pair_groups(label[0], label[1])
    changed: list[Pair] = []
    for gone in [pair for pair in pairs if pair.status == "vanished"]:
        operation = gone.name.split(" ")[0]
        new = next(
            (
                pair
                for pair in pairs
                if pair.status == "appeared" and pair.name.split(" ")[0] == operation and pair not in changed
            ),
            None,
        )
        if new is None:
            continue
        calls = float(_mean(before.calls)[list(gone.before)].sum()), float(_mean(after.calls)[list(new.after)].sum())
        if _alike(*calls):
            pairs.remove(gone)
            pairs.remove(new)
            changed.append(
                Pair(f"{gone.name} -> {new.name.split(' ', 1)[1]}", gone.before, new.after, "implementation_changed")
            )
    return pairs + changed


def _kind(name: Named) -> tuple[str, str]:
    return (name.bucket, name.operation or "")


def _place(name: Named) -> tuple[bool, int, str]:
    return (name.offset_ns is None, name.offset_ns or 0, name.name)


def _alike(one: float, other: float) -> bool:
    return bool(max(one, other) <= CALLS_FACTOR * min(one, other) and min(one, other) > 0)


def _mean(table: NDArray[np.float64]) -> NDArray[np.float64]:
    means: NDArray[np.float64] = table.mean(axis=0)
    return means
