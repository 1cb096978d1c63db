"""Which all-reduce implementation serves which message size, and where the engine switches.

An engine tries its implementations in a fixed order and runs the first that takes the message. Nothing logs the
choice; in a capture it shows as the kernel's name changing with the batch size. The limits lie in `rules/ladder.json`,
by engine, version range, compute capability and world size, each with its source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import polars as pl

from tracelens.analyses.ladder_rungs import (
    Rung,
    Setup,
    graph_rungs,
    ladder_data,
    padded_batch,
    rungs,
    token_range,
    version_entry,
)
from tracelens.errors import UsageError
from tracelens.frames import Column, Notice, Result, Schema
from tracelens.units import format_bytes, plural

LADDER = Schema(
    "one rung: an implementation and the messages it serves, in the order the engine tries them",
    Column("implementation", pl.String, "as in the collective table"),
    Column("min_bytes", pl.Int64, "smallest message served, given what earlier rungs take", "bytes"),
    Column("max_bytes", pl.Int64, "the upper limit; null without one", "bytes"),
    Column("max_inclusive", pl.Boolean, "whether a message of exactly max_bytes is served; null without a limit"),
    Column("min_tokens", pl.Int64, "fewest tokens in the step that this rung serves; null if none", "count"),
    Column("max_tokens", pl.Int64, "most tokens; null without a limit, or if none", "count"),
    Column("condition", pl.String, "what must hold for the rung to be tried; empty when nothing"),
)

OBSERVED = Schema(
    "one implementation at one message size, as it ran in the capture",
    Column("implementation", pl.String, "as in the collective table"),
    Column("message_bytes", pl.Int64, "bytes of one all-reduce, from the payload or tokens x width x bytes", "bytes"),
    Column("tokens", pl.Int64, "tokens in the step; null when only the payload is known", "count"),
    Column("call_count", pl.Int64, "all-reduces of one rank", "count"),
    Column("expected", pl.String, "the implementations that the ladder allows at this size"),
    Column("agrees", pl.Boolean, "whether the one that ran is among them; null where the size is not known"),
)


class LadderResult(Result):
    """The rungs of one engine on one machine, and what ran in a capture."""

    command: ClassVar[str] = "ladder"
    schemas: ClassVar[Mapping[str, Schema]] = {"ladder": LADDER, "observed": OBSERVED}


def ladder(setup: Setup, *, width: int, dtype_bytes: int = 2) -> LadderResult:
    """The ladder as a table, with the token counts at which the engine switches.

    Args:
        setup: engine, version, machine and switches.
        width: model width, elements of one token's residual.
        dtype_bytes: bytes per element.

    Raises:
        UsageError: see `rungs`; or a width or element size below 1.
    """
    if width < 1 or dtype_bytes < 1:
        raise UsageError(f"width {width} and {dtype_bytes} bytes per element must be above 0")
    found = rungs(setup)
    token_bytes = width * dtype_bytes
    return LadderResult(
        tables={"ladder": LADDER.frame([_row(rung, token_bytes) for rung in found])},
        notices=tuple(_notices(setup, found)),
        provenance=_provenance(setup, width, dtype_bytes),
        sentences=tuple(_sentences(setup, found, token_bytes)),
    )


def _row(rung: Rung, token_bytes: int) -> dict[str, Any]:
    low, high = token_range(rung, token_bytes)
    empty = high is not None and high < low
    return {
        "implementation": rung.implementation,
        "min_bytes": rung.min_bytes,
        "max_bytes": rung.max_bytes,
        "max_inclusive": None if rung.max_bytes is None else rung.max_inclusive,
        "min_tokens": None if empty else low,
        "max_tokens": None if empty else high,
        "condition": rung.condition,
    }


def _notices(setup: Setup, found: Sequence[Rung]) -> list[Notice]:
    notices = []
    note = ladder_data()["notes"].get(setup.engine)
    if note and len(found) > 1 and not (setup.engine == "vllm" and (setup.switches or {}).get("symm-mem") is False):
        notices.append(Notice("ladder-variant", "info", note))
    if setup.tp > 2 and not setup.fully_connected:
        notices.append(
            Notice("not-fully-connected", "info", "more than two GPUs without full NVLink: the custom kernel is off")
        )
    return notices


def _provenance(setup: Setup, width: int, dtype_bytes: int) -> dict[str, Any]:
    entry = version_entry(setup)
    until = f" to below {entry['until']}" if entry["until"] else " and later"
    return {
        "engine": setup.engine,
        "versions": f"{entry['from']}{until}",
        "arch": setup.arch,
        "tp": setup.tp,
        "dtype": setup.dtype,
        "width": width,
        "dtype_bytes": dtype_bytes,
        "source": entry["source"],
        "rung_sources": [rung["source"] for rung in entry["rungs"] if "source" in rung],
    }


def _sentences(setup: Setup, found: Sequence[Rung], token_bytes: int) -> list[str]:
    if len(found) == 1:
        return [f"{setup.engine} at {setup.arch}, TP {setup.tp}: {found[0].implementation} serves every size."]
    sentences = []
    certain = [rung for rung in found if rung.certain]
    for rung in certain[:-1]:
        _, high = token_range(rung, token_bytes)
        if rung.end_bytes is None or high is None:
            continue
        following = [other for other in found if other is not rung and other.serves(rung.end_bytes)]
        if not following:
            continue
        names = " or ".join(dict.fromkeys(_named(other) for other in following))
        bound = "up to" if rung.max_inclusive else "below"
        sentences.append(
            f"{setup.engine} at {setup.arch}, TP {setup.tp}: {rung.implementation} {bound} "
            f"{format_bytes(rung.max_bytes)} ({high:,} tokens of {format_bytes(token_bytes)}), then {names}."
        )
        padded = padded_batch(high, graph_rungs(setup.engine))
        if padded is not None and padded > high:
            whole = max((size for size in graph_rungs(setup.engine) if size <= high), default=0)
            sentences.append(
                f"With the default captured graphs decode batches of {whole + 1} to {high} are padded to {padded} tokens "
                "and switch already."
            )
    return sentences


def _named(rung: Rung) -> str:
    return f"{rung.implementation} {rung.doubt}".rstrip()


def check_observed(found: Sequence[Rung], ran: pl.DataFrame) -> tuple[pl.DataFrame, list[str], list[Notice]]:
    """Set what ran beside the ladder.

    Args:
        found: the ladder.
        ran: columns implementation, message_bytes, tokens, call_count, and padded_bytes: the size after padding to
            a captured graph, where that may have been; sizes may be null.

    Returns:
        (frame of `OBSERVED`, sentences on the switches seen, notices on disagreements).
    """
    rows = []
    for row in ran.sort("message_bytes", "implementation", nulls_last=True).iter_rows(named=True):
        size = row["message_bytes"]
        padded = row.get("padded_bytes")
        allowed = [] if size is None else _allowed(found, size)
        if padded is not None and size is not None and padded != size:
            allowed = list(dict.fromkeys([*allowed, *_allowed(found, padded)]))
        expected = " or ".join(allowed) if allowed else None
        rows.append(
            {
                "implementation": row["implementation"],
                "message_bytes": size,
                "tokens": row["tokens"],
                "call_count": row["call_count"],
                "expected": expected,
                "agrees": None if size is None else row["implementation"] in allowed,
            }
        )
    observed = OBSERVED.frame(rows)
    wrong = observed.filter(~pl.col("agrees"))
    notices = []
    if wrong.height:
        first = wrong.row(0, named=True)
        notices.append(
            Notice(
                "ladder-disagrees",
                "warning",
                f"{first['implementation']} ran at {format_bytes(first['message_bytes'])}, where the ladder says "
                f"{first['expected']}",
                "another engine version, a switched-off implementation, or GPUs that are not fully connected",
                count=wrong.height,
            )
        )
    return observed, switch_sentences(observed), notices


def _allowed(found: Sequence[Rung], size: int) -> list[str]:
    """Implementations that may run at a size: every open rung that serves it, and the first certain one."""
    names: list[str] = []
    for rung in found:
        if rung.serves(size):
            names.append(rung.implementation)
            if rung.certain:
                break
    return list(dict.fromkeys(names))


def switch_sentences(observed: pl.DataFrame) -> list[str]:
    """One sentence for each pair of neighbouring message sizes whose main implementations differ."""
    known = observed.drop_nulls("message_bytes")
    main = (
        known.sort("message_bytes", -pl.col("call_count"), "implementation")
        .group_by("message_bytes", maintain_order=True)
        .first()
    )
    sentences = []
    for before, after in zip(main.iter_rows(named=True), main.tail(-1).iter_rows(named=True), strict=False):
        if before["implementation"] != after["implementation"]:
            sentences.append(
                f"The all-reduce switches from {before['implementation']} at {_size(before)} to "
                f"{after['implementation']} at {_size(after)}."
            )
    return sentences


def _size(row: Mapping[str, Any]) -> str:
    tokens = row["tokens"]
    return format_bytes(row["message_bytes"]) + (f" ({plural(tokens, 'token')})" if tokens else "")
