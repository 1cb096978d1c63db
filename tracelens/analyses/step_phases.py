"""The phase and the rung of each step: from the marker's text, else from what ran.

Without a text: a step with graph replays is a decode step, unless it lasts several times as long as those usually do
(mixed); an eager step beside steps with replays is a prefill. Without graphs at all, the rung with most steps is the
decode and longer ones are prefills - but only where tokens are sampled; else the phase is `other`.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.replays import sampling_events
from tracelens.analyses.timeline import GRAPH, KERNEL, Codes, Ints, Timeline

GEMM = r"(?i)gemm|gemv|nvjet|matmul|cublas|splitk|marlin|machete|cutlass.*(mma|device_kernel)|_mm_|dot_kernel"
NOT_GEMM = r"(?i)flash|fmha|attention|attn|mha_|mla_"

_LONG = 3.0
"""A rung whose steps last this many times the usual replay step is a duration class of its own: mixed batches."""

_PREFILL = 2.0
"""Without graphs, a rung whose steps last this many times the most frequent rung's is a prefill."""


def rung_kernels(tl: Timeline) -> npt.NDArray[np.bool_]:
    """Whether each kernel name is a collective or a matrix product: their shapes tell the batch, not the context."""
    names = tl.names["name"]
    gemm = names.str.contains(GEMM) & ~names.str.contains(NOT_GEMM)
    result: npt.NDArray[np.bool_] = (gemm | tl.names["operation"].is_not_null()).to_numpy()
    return result


def rung_hashes(tl: Timeline, member: Codes, like: Ints) -> list[str | None]:
    """Per step a hash of the names and launch shapes of its collectives and matrix products; null where it has none.

    Each (name, shape) counts once, so that a step of which the capture lost a part keeps its rung.

    Args:
        tl: the timeline.
        member: step of each event or -1.
        like: [steps], a step that ran the same graphs on the same rank, or the step itself.
    """
    count = len(like)
    shown = np.zeros(count + 1, bool)
    shown[like] = True
    wanted, shape = rung_kernels(tl), tl.shape

    def of_part(part: slice) -> pl.DataFrame:
        at = np.flatnonzero(wanted[tl.name[part]] & (tl.kind[part] == KERNEL) & shown[member[part]])
        columns = {"step": member, "name": tl.name, "shape": shape}
        return pl.DataFrame({name: values[part][at] for name, values in columns.items()}).unique()

    parts = [pairs for pairs in tl.each(of_part) if pairs.height]
    if not parts:
        return [None] * count
    pairs = pl.concat(parts).unique().sort("name", "shape", "step")
    kinds = pairs.select("name", "shape").unique(maintain_order=True)
    words = tl.names["name"].to_list()
    codes = [
        int.from_bytes(hashlib.blake2b(f"{words[name]}\0{shape}".encode(), digest_size=8).digest(), "little")
        for name, shape in kinds.iter_rows()
    ]
    coded = pairs.join(
        kinds.with_columns(code=pl.Series(codes, dtype=pl.UInt64)),
        on=["name", "shape"],
        how="left",
        maintain_order="left",
    )
    value = np.zeros(count, np.uint64)
    np.bitwise_xor.at(value, coded["step"].to_numpy(), coded["code"].to_numpy())
    has = np.zeros(count, bool)
    has[pairs["step"].to_numpy()] = True
    texts = [f"{int(one):016x}"[:8] if some else None for one, some in zip(value, has, strict=True)]
    return [texts[one] for one in like.tolist()]


def split_by_graph(steps: pl.DataFrame) -> pl.Series:
    """The rungs of steps, those apart that have one hash but replay different graphs.

    Batches that differ little share the tiles of their matrix products; their graphs differ in smaller kernels, whose
    grids are fixed once captured. Such rungs get `-1`, `-2` ... behind the hash in the order of their grids' size.

    Args:
        steps: set, step, rank, rung (hash or null), word and word_size of the marker's cycles; one row per rank and
            step.

    Returns:
        a rung per row, equal on all ranks of a step.
    """
    each = (
        steps.sort("set", "step", "rank")
        .group_by("set", "step", maintain_order=True)
        .agg(pl.col("rung", "word", "word_size").first())
        .with_columns(times=pl.len().over("rung", "word"))
    )
    usual = (
        each.filter(pl.col("word").is_not_null() & (pl.col("times") > 1))
        .group_by("rung", "word")
        .agg(pl.col("word_size").median())
        .sort("rung", "word_size", "word", nulls_last=True)
        .with_columns(nth=pl.int_range(1, pl.len() + 1).over("rung"), kinds=pl.len().over("rung"))
        .filter(pl.col("kinds") > 1)
    )
    if usual.is_empty():
        return steps["rung"]
    # A cycle that the capture cut has a word of its own: it goes with the nearest in size.
    each = each.with_columns(size=pl.col("word_size").fill_null(-1.0)).sort("size")
    marked = each.join_asof(
        usual.select("rung", "nth", "word_size").sort("word_size"),
        left_on="size",
        right_on="word_size",
        by="rung",
        strategy="nearest",
        check_sortedness=False,
    ).with_columns(
        named=pl.when(pl.col("word").is_not_null() & pl.col("nth").is_not_null())
        .then(pl.format("{}-{}", pl.col("rung"), pl.col("nth")))
        .otherwise(pl.col("rung"))
    )
    return steps.join(marked.select("set", "step", "named"), on=["set", "step"], how="left", maintain_order="left")[
        "named"
    ]


def replay_share(tl: Timeline, member: Codes, count: int) -> npt.NDArray[np.bool_]:
    """Whether each step holds graph replays."""
    result = np.zeros(count, bool)
    for part in tl.stretches():
        held = member[part][(tl.in_graph[part] | (tl.kind[part] == GRAPH)) & (member[part] >= 0)]
        result[held] = True
    return result


def picks_tokens(tl: Timeline, member: Codes, count: int) -> npt.NDArray[np.bool_]:
    """Whether each step samples tokens; that something is read back alone says nothing about tokens."""
    result = np.zeros(count, bool)
    step = member[sampling_events(tl)]
    result[step[step >= 0]] = True
    return result


def guess_phases(steps: pl.DataFrame) -> pl.Series:
    """Phases of steps whose text tells none.

    Args:
        steps: set, step, rung, step_ns (null where the step has no next), has_replay, picks_tokens; one row per rank
            and step.

    Returns:
        a phase per row, equal on all ranks of a step.
    """
    whole = steps.group_by("set", "step").agg(
        pl.col("rung").drop_nulls().mode().sort().first(),
        pl.col("step_ns").median(),
        pl.col("has_replay").any(),
        pl.col("picks_tokens").any(),
    )
    replays = whole.filter("has_replay")
    if replays.height:
        usual = replays["step_ns"].median()
        by_rung = replays.group_by("rung").agg(
            pl.col("step_ns").median().alias("rung_ns"), pl.len().cast(pl.Int64).alias("rung_count")
        )
        whole = whole.join(by_rung, on="rung", how="left", nulls_equal=True)
        limit = _LONG * float(usual or 0.0)  # type: ignore[arg-type]
        long = ((pl.col("rung_ns") > limit) & (pl.col("rung_count") * 2 < replays.height)).fill_null(False)
        rare_and_long = (pl.col("step_ns") > limit).fill_null(False) & (
            pl.col("step_ns") > _LONG * pl.col("rung_ns")
        ).fill_null(False)
        phase = (
            pl.when(~pl.col("has_replay"))
            .then(pl.lit("prefill"))
            .when(long | rare_and_long)
            .then(pl.lit("mixed"))
            .otherwise(pl.lit("decode"))
        )
    else:
        tokens = whole["picks_tokens"].mean()
        by_rung = whole.group_by("rung").agg(
            pl.col("step_ns").median().alias("rung_ns"), pl.len().cast(pl.Int64).alias("rung_count")
        )
        by_rung = by_rung.sort(-pl.col("rung_count"), "rung_ns", "rung", nulls_last=True)
        usual = by_rung["rung_ns"][0]
        whole = whole.join(by_rung, on="rung", how="left", nulls_equal=True)
        if tokens is None or float(tokens) < 0.5 or usual is None:  # type: ignore[arg-type]
            phase = pl.lit("other")
        else:
            longer = (pl.col("rung_ns") > _PREFILL * float(usual)).fill_null(False)
            phase = pl.when(longer).then(pl.lit("prefill")).otherwise(pl.lit("decode"))
    told = whole.with_columns(guess=phase).select("set", "step", "guess")
    return steps.join(told, on=["set", "step"], how="left", maintain_order="left")["guess"]
