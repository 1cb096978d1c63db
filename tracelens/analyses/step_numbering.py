"""One number for one step on all ranks of a set, although captures begin and end at different steps.

Two ranks' steps are the same step if they hold the same collective instances: the k-th step of one need not be the
k-th of the other. Steps without matched collectives are paired by the aligned time of their edges.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.components import components
from tracelens.analyses.timeline import Ints


def number_steps(
    sets: npt.NDArray[np.integer],
    places: npt.NDArray[np.integer],
    edges: Ints,
    shared: pl.DataFrame,
) -> Ints:
    """The number of each step within its set, from 0 in the order of time.

    Args:
        sets: [steps] set of the step's rank.
        places: [steps] the rank.
        edges: int64 ns [steps], on the aligned clock.
        shared: one row per collective operation of a step that was matched: step (row), communicator, instance.

    Returns:
        int64 [steps]; unique per rank.
    """
    count = len(edges)
    if count == 0:
        return np.empty(0, np.int64)
    group = _same_collectives(places, edges, shared)
    group = _same_time(sets, places, edges, group)
    frame = pl.DataFrame({"set": sets, "group": group, "edge": edges})
    order = (
        frame.group_by("set", "group")
        .agg(pl.col("edge").median())
        .sort("set", "edge", "group")
        .with_columns(step=pl.int_range(pl.len()).over("set"))
    )
    numbered = frame.join(order, on=["set", "group"], how="left", maintain_order="left")
    return numbered["step"].to_numpy().astype(np.int64)


def _same_collectives(places: npt.NDArray[np.integer], edges: Ints, shared: pl.DataFrame) -> Ints:
    """A label per step; steps that hold mostly the same instances share it, and a rank has it once."""
    count = len(edges)
    if shared.is_empty():
        return np.arange(count)
    # Neighbours in the order of ranks within each instance vote for each other.
    step = shared["step"].to_numpy().astype(np.int64)
    communicator, instance = shared["communicator"].to_numpy(), shared["instance"].to_numpy()
    order = np.lexsort((step, places[step], instance, communicator))
    step, communicator, instance = step[order], communicator[order], instance[order]
    meet = (communicator[1:] == communicator[:-1]) & (instance[1:] == instance[:-1])
    pairs, times = np.unique(step[:-1][meet] * count + step[1:][meet], return_counts=True)
    votes = pl.DataFrame({"step": pairs // count, "other": pairs % count, "vote_count": times})
    # A step cut by a capture's edge shares few instances, but with one step of each rank only; a slip of the cut
    # shares a minority with a neighbour. So a step's best is chosen per other rank: where that one has lost the rest
    # of a step, the instances vote for the next rank instead, and those votes are more.
    place_of = pl.Series("place", places, dtype=pl.Int64)
    best = (
        votes.with_columns(
            step_place=place_of[votes["step"].to_numpy()], other_place=place_of[votes["other"].to_numpy()]
        )
        .with_columns(
            out=pl.col("vote_count").max().over("step", "other_place"),
            into=pl.col("vote_count").max().over("other", "step_place"),
        )
        .filter((pl.col("vote_count") == pl.col("out")) & (pl.col("vote_count") == pl.col("into")))
    )
    label = components(count, best["step"].to_numpy(), best["other"].to_numpy())
    # Two steps of one rank in one group: the marker split there; they stay apart, in order.
    frame = pl.DataFrame({"row": np.arange(count), "label": label, "place": places, "edge": edges}).sort(
        "label", "place", "edge", "row"
    )
    frame = frame.with_columns(nth=pl.int_range(pl.len()).over("label", "place")).sort("row")
    nth = frame["nth"].to_numpy().astype(np.int64)
    result: Ints = label * (int(nth.max()) + 1) + nth
    return result


def _same_time(sets: npt.NDArray[np.integer], places: npt.NDArray[np.integer], edges: Ints, group: Ints) -> Ints:
    """Groups joined where neighbours in time lie within half a step and have no rank in common."""
    frame = pl.DataFrame({"set": sets, "place": places, "edge": edges, "group": group})
    usual = (
        frame.sort("set", "place", "edge")
        .with_columns(length=pl.col("edge").shift(-1).over("set", "place") - pl.col("edge"))
        .group_by("set")
        .agg(pl.col("length").median())
    )
    half = {int(number): float(length or 0.0) / 2 for number, length in usual.iter_rows()}
    listed = (
        frame.group_by("set", "group")
        .agg(pl.col("edge").median(), pl.col("place").unique())
        .sort("set", "edge", "group")
    )
    everyone = {
        int(number): count for number, count in frame.group_by("set").agg(pl.col("place").n_unique()).iter_rows()
    }
    target: dict[int, int] = {}
    current, current_set, current_edge = -1, -1, 0.0
    members: set[int] = set()
    for number, label, edge, ranks in listed.iter_rows():
        joins = (
            current >= 0
            and number == current_set
            and len(members) < everyone[number]
            and edge - current_edge < half[number]
            and members.isdisjoint(ranks)
        )
        if joins:
            members.update(ranks)
        else:
            current, current_set, current_edge, members = label, number, edge, set(ranks)
        target[label] = current
    return np.array([target[int(label)] for label in group], dtype=np.int64)
