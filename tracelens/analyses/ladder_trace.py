"""The ladder beside a capture: which all-reduces ran, at which sizes, and whether the ladder says the same."""

from __future__ import annotations

from dataclasses import replace

from tracelens.analyses.ladder import LadderResult, check_observed, ladder
from tracelens.analyses.ladder_rungs import Setup, graph_rungs, rungs
from tracelens.analyses.scaling_trace import all_reduces_by_size
from tracelens.errors import MissingDataError
from tracelens.frames import Notice
from tracelens.trace import LoadedTrace


def observed_ladder(
    trace: LoadedTrace,
    setup: Setup,
    *,
    tp: int | None,
    width: int,
    dtype_bytes: int = 2,
    tokens: int | None = None,
) -> LadderResult:
    """The ladder of a setup with what ran.

    Args:
        trace: the capture.
        setup: the machine and engine; its TP size counts only where `tp` is given.
        tp: world size; null takes the capture's number of ranks.
        width: model width.
        dtype_bytes: bytes per element of the residual.
        tokens: tokens in each step, where its markers do not say.

    Raises:
        MissingDataError: the capture shows no all-reduce.
    """
    here = replace(setup, tp=tp or len(trace.ranks))
    answer = ladder(here, width=width, dtype_bytes=dtype_bytes)
    ran = all_reduces_by_size(
        trace, width=width, dtype_bytes=dtype_bytes, tokens=tokens, graph_batches=graph_rungs(setup.engine)
    )
    if ran.is_empty():
        raise MissingDataError(
            "the capture shows no all-reduce", "record with --cuda-graph-trace=node; `tracelens collectives` shows all"
        )
    observed, sentences, notices = check_observed(rungs(here), ran)
    unknown = int(observed.filter(observed["message_bytes"].is_null())["call_count"].sum() or 0)
    if unknown:
        notices.append(
            Notice(
                "size-unknown",
                "info",
                f"{unknown:,} all-reduces have no known size: neither a payload nor the tokens of their step",
                "give --tokens where every step has as many",
                count=unknown,
            )
        )
    return LadderResult(
        tables={"ladder": answer["ladder"], "observed": observed},
        notices=(*answer.notices, *notices),
        provenance={**trace.provenance(), **answer.provenance},
        sentences=(*sentences, *answer.sentences),
    )
