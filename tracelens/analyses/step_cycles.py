"""The period of a sequence whose inner parts repeat too: a step of many equal layers, a cycle of many equal graphs.

    E M M M M N S  E M M M M N S  E M M M M N S        E embedding, M layer, N norm, S sampling

The shortest shift that maps the sequence onto itself is nearly the layer's, and the longer a model the nearer. What
tells a step is what comes once in it. Tokens are therefore tried from the rarest on: a token splits the sequence at
its places; the split is a cycle if its stretches repeat each other and none is a shorter stretch repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.analyses.blocks import blocks, run_starts
from tracelens.analyses.timeline import Flags, Ints
from tracelens.array_room import ArrayRoom

_LEAST_CYCLES = 3
_CANDIDATES = 200
_CODES = 65_536
_ALIKE = 0.02
"""Two stretches whose lengths differ by this share count as equal: attention splits vary with the context."""

_IDLE_NS = 5_000
"""Idle time before a token that is more than the ordinary distance of queued kernels."""

_MOST_PARTS = 512

_REPEATED = 0.99
"""Share of tokens equal to those one shorter period on, from which a stretch is that period repeated."""


@dataclass(frozen=True)
class Cycles:
    """Where cycles begin.

    Attributes:
        places: int64 [cycles], places in the sequence, ascending.
        token: the token that begins each.
        length: usual number of tokens in a cycle.
        regularity: share of the sequence in cycles like others of their rank.
    """

    places: Ints
    token: int
    length: int
    regularity: float


def cycle_starts(
    room: ArrayRoom,
    tokens: npt.NDArray[np.integer | np.unsignedinteger],
    groups: npt.NDArray[np.integer],
    idle_before: Callable[[Ints], Ints] | None = None,
    only: Flags | None = None,
) -> Cycles | None:
    """The cycles of a sequence, or None where nothing repeats.

    Args:
        room: for what has an element for each token.
        tokens: [n] what ran, in order within each group.
        groups: [n] rank of each, ascending.
        idle_before: ns that the device idled before the tokens at some places; a cycle begins where that is largest.
        only: bool [values of a token], tokens that may begin a cycle.
    """
    if len(tokens) < _LEAST_CYCLES:
        return None
    kinds, first, code, count = _coded(room, tokens)
    group_count = 1 + sum(len(run_starts(groups[part.start - 1 : part.stop])) - 1 for part in blocks(1, len(groups)))
    allowed = count >= _LEAST_CYCLES * group_count
    if only is not None:
        allowed &= only[kinds]
    candidates = np.flatnonzero(allowed)
    candidates = candidates[np.lexsort((first[candidates], count[candidates]))][:_CANDIDATES]
    running = _running(room, code)
    for token in candidates.tolist():
        places = _places_of(code, token)
        regularity, length = _regularity(places, groups, running)
        if regularity < 0.8 or _inner_period(code, places, groups, running):
            continue
        chosen = token
        if idle_before is not None:
            chosen = _beginning(count, code, token, groups, group_count, running, idle_before)
        if chosen != token:
            places = _places_of(code, chosen)
            regularity, length = _regularity(places, groups, running)
        return Cycles(places, int(kinds[chosen]), length, regularity)
    return None


def _places_of(code: npt.NDArray[np.integer], token: int) -> Ints:
    found = [part.start + np.flatnonzero(code[part] == token) for part in blocks(0, len(code))]
    return np.concatenate([np.empty(0, np.int64), *found])


def _running(room: ArrayRoom, code: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
    """Hash of the tokens before each place, uint64 [n + 1]; those of two places differ by what lies between."""
    result = room.empty(len(code) + 1, np.uint64)
    result[0] = 0
    for part in blocks(0, len(code)):
        after = slice(part.start + 1, part.stop + 1)
        np.add(np.cumsum(scrambled(code[part]), dtype=np.uint64), result[part.start], out=result[after])
    return result


def regularity_at(
    room: ArrayRoom, tokens: npt.NDArray[np.integer], groups: npt.NDArray[np.integer], places: Ints
) -> float:
    """Share of a sequence in stretches, cut at `places`, that are like others of their rank."""
    if len(places) == 0:
        return 0.0
    return _regularity(places, groups, _running(room, tokens))[0]


def regularity_of(
    lengths: Ints, contents: npt.NDArray[np.uint64], groups: npt.NDArray[np.integer]
) -> tuple[float, int]:
    """(share of the tokens in stretches like others of their rank, usual length).

    Args:
        lengths: [stretches] number of tokens.
        contents: [stretches] a hash of the tokens.
        groups: [stretches] rank of each, ascending.
    """
    count = len(groups)
    # The capture cuts the first and the last stretch of a rank: those need not be like others.
    change = groups[1:] != groups[:-1]
    edge = np.concatenate([np.ones(min(count, 1), bool), change]) | np.concatenate(
        [change, np.ones(min(count, 1), bool)]
    )
    usual = int(np.median(lengths[~edge] if bool((~edge).any()) else lengths))
    fits = _alike(lengths, contents, groups, usual)
    counted = fits | ~edge
    total = int(lengths[counted].sum())
    return (float(lengths[fits].sum()) / total if total else 0.0), usual


def _alike(lengths: Ints, contents: npt.NDArray[np.uint64], groups: npt.NDArray[np.integer], usual: int) -> Flags:
    """Whether each stretch has the content of another of its rank, or nearly the usual length."""
    pairs = np.stack([groups.astype(np.uint64), contents])
    _, inverse, times = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
    result: Flags = (times[inverse.reshape(-1)] > 1) | (np.abs(lengths - usual) <= _ALIKE * usual)
    return result


def _coded(
    room: ArrayRoom, tokens: npt.NDArray[np.integer | np.unsignedinteger]
) -> tuple[npt.NDArray[Any], Ints, npt.NDArray[np.integer], Ints]:
    """(distinct tokens ascending, first place of each, code of each place, count of each)."""
    small = np.can_cast(tokens.dtype, np.int64) and int(tokens.min()) >= 0 and int(tokens.max()) < _CODES
    if not small:
        kinds, first, code, count = np.unique(tokens, return_index=True, return_inverse=True, return_counts=True)
        return kinds, first, code, count
    every = np.zeros(int(tokens.max()) + 1, np.int64)
    for part in blocks(0, len(tokens)):
        every += np.bincount(tokens[part], minlength=len(every))
    kinds = np.flatnonzero(every)
    number = np.zeros(len(every), np.min_scalar_type(len(kinds)))
    number[kinds] = np.arange(len(kinds))
    code = room.empty(len(tokens), number.dtype)
    first = np.zeros(len(kinds), np.int64)
    # The last write stands: going backwards leaves the first place.
    for part in reversed(list(blocks(0, len(tokens)))):
        code[part] = number[tokens[part]]
        first[code[part][::-1]] = np.arange(part.stop - 1, part.start - 1, -1)
    return kinds, first, code, every[kinds]


def scrambled(code: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
    """A number per token whose sums over different stretches do not agree by chance."""
    value = (code.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    value ^= value >> np.uint64(32)
    value *= np.uint64(0xD6E8FEB86659FD93)
    result: npt.NDArray[np.uint64] = value ^ (value >> np.uint64(29))
    return result


def _stretches(
    places: Ints, groups: npt.NDArray[np.integer], running: npt.NDArray[np.uint64]
) -> tuple[Ints, npt.NDArray[np.uint64], npt.NDArray[np.integer]]:
    """(length, content, rank) of the stretches between neighbouring places of one rank."""
    inner = groups[places[1:]] == groups[places[:-1]]
    begins, ends = places[:-1][inner], places[1:][inner]
    return ends - begins, running[ends] - running[begins], groups[begins]


def _regularity(places: Ints, groups: npt.NDArray[np.integer], running: npt.NDArray[np.uint64]) -> tuple[float, int]:
    """(share of the sequence in stretches that repeat on their rank, usual length)."""
    lengths, contents, ranks = _stretches(places, groups, running)
    if len(lengths) == 0:
        return 0.0, 0
    usual = int(np.median(lengths))
    fits = _alike(lengths, contents, ranks, usual)
    # What lies before the first and after the last place is cut by the capture: at most one stretch each.
    covered = int(lengths.sum())
    rank_count = len(np.unique(ranks))
    loose = len(running) - 1 - covered
    excess = max(loose - 2 * usual * rank_count, 0)
    return float(lengths[fits].sum()) / (covered + excess), usual


def _inner_period(
    code: npt.NDArray[np.integer], places: Ints, groups: npt.NDArray[np.integer], running: npt.NDArray[np.uint64]
) -> bool:
    """Whether the usual stretch is a shorter one repeated: then the token comes once in several cycles."""
    lengths, contents, _ = _stretches(places, groups, running)
    values, index, times = np.unique(contents, return_index=True, return_counts=True)
    usual = index[int(np.argmax(times))] if len(values) else 0
    begins = places[:-1][groups[places[1:]] == groups[places[:-1]]]
    word = code[begins[usual] : begins[usual] + lengths[usual]]
    size = len(word)
    for parts in range(2, min(size, _MOST_PARTS) + 1):
        period = size // parts
        if size % parts == 0 and float(np.mean(word[period:] == word[:-period])) >= _REPEATED:
            return True
    # Cycles that differ by a token or two do not divide it evenly: then some token comes once in each. A layer's token
    # does not pass, because what lies around the layers makes one of its distances longer.
    order = np.argsort(word, kind="stable")
    bounds = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(np.diff(word[order])) + 1, np.array([size])])
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if 2 <= high - low <= _MOST_PARTS:
            places = order[low:high]
            distances = np.diff(np.append(places, places[0] + size))
            if int(distances.max()) - int(distances.min()) <= _ALIKE * float(np.median(distances)):
                return True
    return False


def _beginning(
    count: Ints,
    code: npt.NDArray[np.integer],
    token: int,
    groups: npt.NDArray[np.integer],
    group_count: int,
    running: npt.NDArray[np.uint64],
    idle_before: Callable[[Ints], Ints],
) -> int:
    """Of the tokens that come once per cycle as `token` does, the one before which the device idles most.

    Where it idles before none of them, the smallest token: a choice that does not hang on where the capture began.
    """
    slack = 2 * group_count
    best, best_ns = -1, -1
    for other in np.flatnonzero(np.abs(count - count[token]) <= slack).tolist():
        places = _places_of(code, other)
        if _regularity(places, groups, running)[0] < 0.8:
            continue
        idle_ns = int(np.median(idle_before(places)))
        if idle_ns < _IDLE_NS:
            idle_ns = 0
        if idle_ns > best_ns:
            best, best_ns = other, idle_ns
    return best if best >= 0 else token
