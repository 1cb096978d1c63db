"""Steps from graph replays: each stretch of replays that ends in one read-back, or one sampling group, is a cycle.

    eager   H2D            sample D2H  H2D            sample D2H  H2D  prefill ... sample D2H
    graph       [replay A]                 [replay A]
    step    `--------- 0 ----------´   `--------- 1 ----------´   `------ 2: eager ---------´

Events are taken in the order in which the host issued them, so that a copy on its own stream falls to the step that
asked for it. One full graph, several launches a step, pieces per layer, draft and verify: all end in one read-back.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.step_markers import OUTSIDE, STEP_SCHEMA, Marking, nothing
from tracelens.analyses.timeline import GRAPH, KERNEL, Codes, Flags, Ints, Timeline

SAMPLING = (
    r"(?i)argmax|sampl|multinomial|gumbel|top_?k_?top_?p|top_?p_?(renorm|mask)|min_?p_|exponential|"
    r"logits_?(process|gather|soft|max)|softmax_?logits"
)
"""Kernels that pick tokens from logits."""

NOT_SAMPLING = r"(?i)moe|expert|gating|router|resampl|upsampl|downsampl|interpol"
"""Names that the pattern above would take although they route experts or scale images."""

_SUBSTANTIAL = 0.25
"""An eager stretch with this share of the kernels or kernel time of a usual cycle is a forward pass of its own."""


@dataclass(frozen=True)
class Replays:
    """The graph replays of a trace, in the order of (rank, issue).

    Attributes:
        of_event: int32 [events], replay of each event or -1.
        first: int64 [replays], first event of each.
        place: int32 [replays], place of its rank.
        signature: uint64 [replays], hash of its kernel names and launch shapes in node order.
        to_host: bool [replays], whether a device-to-host copy is among its nodes.
        samples: bool [replays], whether a sampling kernel is.
    """

    of_event: Codes
    first: Ints
    place: Codes
    signature: npt.NDArray[np.uint64]
    to_host: Flags
    samples: Flags


def sampling_names(tl: Timeline) -> Flags:
    """Whether each kernel name picks tokens from logits."""
    names = tl.names["name"]
    collective = tl.names["operation"].is_not_null()
    result: Flags = (names.str.contains(SAMPLING) & ~names.str.contains(NOT_SAMPLING) & ~collective).to_numpy()
    return result


def issue_order(tl: Timeline) -> Ints:
    """Places of all events in the order (rank, issue): by launch call, else where their stream puts them.

    An event without a launch call counts as issued with the last call before it on its stream; before any, first.
    On a rank without calls the order of starts stands for it.
    """
    order: Ints = tl.trace.memo("issue order", lambda: _issue_order(tl))
    return order


def _issue_order(tl: Timeline) -> Ints:
    launched = tl.launch >= 0
    if not bool(launched.any()):
        return np.arange(len(tl))
    calls = tl.launches
    rank_has = np.bincount(tl.rank_place[launched], minlength=len(tl.ranks)) > 0
    source = np.where(launched, tl.launch, UNISSUED)
    source = tl.carry_along_streams(source.astype(np.int32), UNISSUED, BEFORE)
    low, high = int(calls.begin.min()), int(calls.begin.max())
    issued = np.where(source >= 0, calls.begin[np.maximum(source, 0)] - low + 1, 0)
    stride = high - low + 2
    key = tl.rank_place.astype(np.int64) * stride + np.where(rank_has[tl.rank_place], issued, 0)
    return np.argsort(key, kind="stable")


UNISSUED, BEFORE = -2, -1


def find_replays(tl: Timeline, order: Ints) -> Replays:
    """All replays: events of one correlation id that ran as graph nodes, or one row of a graph-level capture."""
    in_replay = tl.in_graph | (tl.kind == GRAPH)
    in_replay &= tl.correlation >= 0
    places = order[in_replay[order]]
    if len(places) == 0:
        none = np.empty(0, np.int64)
        return Replays(
            np.full(len(tl), -1, np.int32),
            none,
            none.astype(np.int32),
            none.astype(np.uint64),
            none.astype(bool),
            none.astype(bool),
        )
    span = int(tl.correlation[places].max()) + 1
    key = tl.rank_place[places].astype(np.int64) * span + tl.correlation[places]
    opens = np.concatenate([np.ones(1, bool), key[1:] != key[:-1]])
    run_key = key[opens]
    _, first_run, run_replay = np.unique(run_key, return_index=True, return_inverse=True)
    # Replays in the order in which they were issued, not of their ids.
    by_issue = np.argsort(first_run, kind="stable")
    number = np.empty(len(by_issue), np.int64)
    number[by_issue] = np.arange(len(by_issue))
    run_replay = number[run_replay]
    replay = run_replay[np.cumsum(opens) - 1].astype(np.int32)
    of_event = np.full(len(tl), -1, np.int32)
    of_event[places] = replay
    first = places[np.flatnonzero(opens)[first_run[by_issue]]]
    count = len(first)
    copies, kinds = tl.copies
    to_host = np.zeros(count, bool)
    inside = of_event[copies[kinds == 2]]
    to_host[inside[inside >= 0]] = True
    samples = np.zeros(count, bool)
    picked = of_event[sampling_names(tl)[tl.name] & (tl.kind == KERNEL)]
    samples[picked[picked >= 0]] = True
    signature = _signatures(tl, places, replay, count)
    return Replays(of_event, first, tl.rank_place[first].astype(np.int32), signature, to_host, samples)


def _signatures(tl: Timeline, places: Ints, replay: Codes, count: int) -> npt.NDArray[np.uint64]:
    """Hash of (name, shape) in node order per replay, worked out once per set of nodes."""
    nodes = np.where(tl.in_graph[places], tl.graph_node[places], -1 - tl.name[places].astype(np.int64))
    low = np.full(count, np.iinfo(np.int64).max)
    high = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(low, replay, nodes)
    np.maximum.at(high, replay, nodes)
    size = np.bincount(replay, minlength=count)
    rank = np.zeros(count, np.int64)
    rank[replay] = tl.rank_place[places]
    kinds = np.stack([rank, low, high, size], axis=1)
    _, representative, kind = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    shown = np.isin(replay, representative)
    shapes = tl.shape
    rows = places[shown]
    table = pl.DataFrame(
        {"kind": kind[replay[shown]], "node": nodes[shown], "name": tl.name[rows], "shape": shapes[rows], "at": rows}
    ).sort("kind", "node", "at")
    hashes = np.zeros(len(representative), np.uint64)
    for (number,), part in table.group_by("kind", maintain_order=True):
        content = part.select(pl.col("name").cast(pl.Int64), "shape").to_numpy().tobytes()
        hashes[number] = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
    return hashes[kind]


def by_replay(tl: Timeline) -> Marking:
    """Steps from the cycles of graph replays."""
    if not bool((tl.in_graph | (tl.kind == GRAPH)).any()):
        return nothing("graph", tl, "no graph replays")
    order = issue_order(tl)
    replays = find_replays(tl, order)
    if len(replays.first) < 2:
        return nothing("graph", tl, "fewer than two graph replays")
    landmarks = _Landmarks.of(tl, order, replays)
    by_copy = _cut(tl, order, replays, landmarks, landmarks.read_back, "read-back")
    by_sample = _cut(tl, order, replays, landmarks, landmarks.sampling, "sampling group")
    best = _better(by_copy, by_sample)
    if best.regularity < 0.8:
        cycle = _by_first_replay(tl, order, replays)
        if cycle.regularity > best.regularity:
            return cycle
    return best.marking


@dataclass(frozen=True)
class _Landmarks:
    """What may end a step, in issue order. All arrays are [events] in that order."""

    replay_begins: Flags
    eager_kernel: Flags
    kernel_ns: Ints
    to_device: Flags
    read_back: Flags
    sampling: Flags

    @classmethod
    def of(cls, tl: Timeline, order: Ints, replays: Replays) -> _Landmarks:
        of_event = replays.of_event[order]
        begins = np.zeros(len(tl), bool)
        begins[_positions(order)[replays.first]] = True
        copies, kinds = tl.copies
        to_device = np.zeros(len(tl), bool)
        to_device[copies[kinds == 1]] = True
        to_host = np.zeros(len(tl), bool)
        to_host[copies[kinds == 2]] = True
        kernel = (tl.kind == KERNEL)[order]
        eager = of_event < 0
        # A replay that reads back itself ends its step at its last node.
        last = np.zeros(len(tl), bool)
        inside = np.flatnonzero(of_event >= 0)
        final = np.full(len(replays.first), -1)
        final[of_event[inside]] = inside
        last[final[final >= 0]] = True
        picks = sampling_names(tl)[tl.name[order]] & kernel
        closes_copy = last & replays.to_host[np.maximum(of_event, 0)]
        closes_sample = last & replays.samples[np.maximum(of_event, 0)]
        return cls(
            replay_begins=begins,
            eager_kernel=kernel & eager,
            kernel_ns=np.where(kernel, (tl.end - tl.start)[order], 0),
            to_device=to_device[order] & eager,
            read_back=(to_host[order] & eager) | closes_copy,
            sampling=(picks & eager) | closes_sample,
        )


def _positions(order: Ints) -> Ints:
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order))
    return positions


@dataclass(frozen=True)
class _Cut:
    """A marking with what decides between two of them."""

    marking: Marking
    regularity: float
    steps: int
    repeated_inside: bool


def _cut(tl: Timeline, order: Ints, replays: Replays, marks: _Landmarks, closes: Flags, what: str) -> _Cut:
    """Steps that end with the last of each group of `closes` (read-backs, or sampling kernels)."""
    place = tl.rank_place[order]
    closing = _last_of_groups(tl, marks, place, closes)
    if what != "read-back":
        closing = _through_read_back(marks, place, closing)
    # A segment is what lies between two closings of a rank.
    edges = np.zeros(len(order), bool)
    edges[1:] = closing[:-1] | (place[1:] != place[:-1])
    segment = np.cumsum(edges)
    count = int(segment[-1]) + 1
    replay_of = replays.of_event[order]
    at = segment[_positions(order)[replays.first]]
    replay_count = np.bincount(at, minlength=count)
    eager_count = np.bincount(segment[marks.eager_kernel], minlength=count)
    eager_ns = np.bincount(segment[marks.eager_kernel], marks.kernel_ns[marks.eager_kernel], minlength=count)
    all_count = np.bincount(segment[(marks.kernel_ns > 0) | (replay_of >= 0)], minlength=count)
    all_ns = np.bincount(segment, marks.kernel_ns, minlength=count)
    with_replay = replay_count > 0
    usual_count = float(np.median(all_count[with_replay])) if with_replay.any() else 0.0
    usual_ns = float(np.median(all_ns[with_replay])) if with_replay.any() else 0.0
    own = ~with_replay & (
        ((eager_count >= _SUBSTANTIAL * usual_count) & (eager_count > 0))
        | ((eager_ns >= _SUBSTANTIAL * usual_ns) & (eager_ns > 0))
    )
    closed = np.zeros(count, bool)
    closed[segment[closing]] = True
    is_step = with_replay | (own & closed)
    step_of_segment: Ints = np.cumsum(is_step) - is_step
    segment_place = np.zeros(count, np.int64)
    segment_place[segment] = place
    # What no step holds falls to the next step of its rank; before a rank's first step and after its last, to none.
    step_place = segment_place[is_step]
    in_rank = (step_of_segment < len(step_place)) & (
        step_place[np.minimum(step_of_segment, max(len(step_place) - 1, 0))] == segment_place
        if len(step_place)
        else False
    )
    opening = np.concatenate([np.ones(1, bool), segment_place[1:] != segment_place[:-1]])
    stub = opening & ~is_step & closed
    member = np.full(len(tl), OUTSIDE, np.int32)
    member[order] = np.where((in_rank & ~stub)[segment], step_of_segment[segment], OUTSIDE)
    words = _words(at, replays.signature, count)[is_step]
    regularity, powers = _repetition(step_place, words, replay_count[is_step], at, replays, is_step)
    steps = pl.DataFrame({"place": step_place.astype(np.int32)}).with_columns(
        [pl.lit(None, dtype=dtype).alias(name) for name, dtype in STEP_SCHEMA.items() if name != "place"]
    )
    launches = replay_count[is_step & with_replay]
    usual = int(np.median(launches)) if len(launches) else 0
    detail = f"cycles of {usual} graph launch{'' if usual == 1 else 'es'}, each with one {what}"
    return _Cut(Marking("graph", member, steps, regularity, detail), regularity, steps.height, powers)


def _last_of_groups(tl: Timeline, marks: _Landmarks, place: npt.NDArray[np.int16], closes: Flags) -> Flags:
    """The last of each run of `closes` that no replay, no copy to the device and no forward pass interrupts."""
    at = np.flatnonzero(closes)
    result = np.zeros(len(closes), bool)
    if len(at) == 0:
        return result
    breaks = np.cumsum(marks.replay_begins | marks.to_device)
    kernels = np.cumsum(marks.eager_kernel)
    total = max(int(np.count_nonzero(marks.kernel_ns)), 1)
    groups = max(len(at) // max(len(tl.ranks), 1), 1)
    substantial = max(_SUBSTANTIAL * total / max(len(tl.ranks), 1) / groups, 8)
    follows = np.concatenate(
        [
            (place[at[1:]] == place[at[:-1]])
            & (breaks[at[1:]] == breaks[at[:-1]])
            & (kernels[at[1:]] - kernels[at[:-1]] < substantial),
            np.zeros(1, bool),
        ]
    )
    result[at[~follows]] = True
    return result


def _through_read_back(marks: _Landmarks, place: npt.NDArray[np.int16], closing: Flags) -> Flags:
    """Closings moved on to the read-back that follows before anything of the next step does."""
    at = np.flatnonzero(closing)
    copies = np.flatnonzero(marks.read_back)
    result = np.zeros(len(closing), bool)
    if len(at) == 0:
        return result
    breaks = np.cumsum(marks.replay_begins | marks.to_device)
    following = np.searchsorted(copies, at)
    has = following < len(copies)
    target = copies[np.minimum(following, max(len(copies) - 1, 0))] if len(copies) else at
    moved = has & (place[target] == place[at]) & (breaks[target] == breaks[at])
    result[np.where(moved, target, at)] = True
    return result


def _words(at: Ints, signature: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.uint64]:
    """Hash of the sequence of signatures in each segment."""
    starts = np.searchsorted(at, np.arange(count))
    position = np.arange(len(at)) - starts[at]
    words = np.zeros(count, np.uint64)
    weight = (position.astype(np.uint64) * np.uint64(2) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (signature ^ (signature >> np.uint64(29))) * weight
    np.add.at(words, at, mixed ^ (mixed >> np.uint64(31)))
    return words


def _repetition(
    step_place: Ints, words: npt.NDArray[np.uint64], launches: Ints, at: Ints, replays: Replays, is_step: Flags
) -> tuple[float, bool]:
    """(share of replays in cycles that repeat on their rank, whether the usual cycle repeats itself inside)."""
    if len(words) == 0:
        return 0.0, False
    frame = pl.DataFrame({"place": step_place, "word": words, "launches": launches, "row": np.flatnonzero(is_step)})
    frame = frame.filter(pl.col("launches") > 0)
    if frame.is_empty():
        return 0.0, False
    # The capture cuts the first and the last cycle of a rank: those need not repeat.
    edge = (pl.int_range(pl.len()).over("place") == 0) | (
        pl.int_range(pl.len()).over("place") == pl.len().over("place").cast(pl.Int64) - 1
    )
    frame = frame.with_columns(times=pl.len().over("place", "word"), edge=edge)
    inner = frame.filter(~(pl.col("edge") & (pl.col("times") == 1)))
    total = float(inner["launches"].sum())
    share = float(inner.filter(pl.col("times") > 1)["launches"].sum()) / total if total else 0.0
    usual = frame.sort("times", "word", descending=True)["row"][0]
    sequence = replays.signature[at == usual]
    return share, _is_power(sequence)


def _is_power(sequence: npt.NDArray[np.uint64]) -> bool:
    """Whether a sequence is a shorter one repeated."""
    size = len(sequence)
    return any(
        size % period == 0 and bool(np.array_equal(sequence[period:], sequence[:-period]))
        for period in range(1, size // 2 + 1)
    )


def _better(by_copy: _Cut, by_sample: _Cut) -> _Cut:
    """Read-backs decide, unless sampling groups fit where they do not.

    Fewer read-backs than sampling groups, and a cycle that is a shorter one repeated: the engine reads back only
    every few steps. More read-backs than sampling groups: some are taken in the middle of a step.
    """
    if by_sample.steps == 0 or by_sample.regularity < 0.8:
        return by_copy
    if by_copy.steps == 0 or by_copy.regularity < 0.8:
        return by_sample
    if by_copy.repeated_inside and by_sample.steps >= 1.5 * by_copy.steps:
        return by_sample
    if by_copy.steps >= 1.5 * by_sample.steps:
        return by_sample
    return by_copy


def _by_first_replay(tl: Timeline, order: Ints, replays: Replays) -> Marking:
    """Steps that begin with the graph that comes once per cycle, where nothing marks their end."""
    from tracelens.analyses.step_cycles import cycle_starts

    begins = cycle_starts(replays.signature, replays.place)
    if begins is None:
        return nothing("graph", tl, "no repeating cycle of replays")
    positions = _positions(order)
    starts = positions[replays.first[begins.places]]
    place = tl.rank_place[order]
    opened = np.zeros(len(order), np.int64)
    opened[starts] = 1
    number = np.cumsum(opened) - 1
    step_place = place[np.sort(starts)]
    held = (number >= 0) & (step_place[np.maximum(number, 0)] == place)
    member = np.full(len(tl), OUTSIDE, np.int32)
    member[order] = np.where(held, number, OUTSIDE)
    steps = pl.DataFrame({"place": step_place.astype(np.int32)}).with_columns(
        [pl.lit(None, dtype=dtype).alias(name) for name, dtype in STEP_SCHEMA.items() if name != "place"]
    )
    detail = f"cycles of {begins.length} graph launch{'' if begins.length == 1 else 'es'}, from their first replay on"
    return Marking("graph", member, steps, begins.regularity, detail)
