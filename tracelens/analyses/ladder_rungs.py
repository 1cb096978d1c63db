"""The rungs of an engine's all-reduce ladder: which implementation it tries for which message size, in its order.

The limits lie in `rules/ladder.json`, by engine, version range, compute capability and world size, each with its source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tracelens.errors import UsageError
from tracelens.ruleset.shelf import read_text, rules_folder
from tracelens.units import format_bytes

_ARCH = re.compile(r"\d{1,2}\.\d")


@dataclass(frozen=True)
class Rung:
    """One implementation over one range of message sizes.

    Attributes:
        implementation: as in the collective table.
        min_bytes: smallest message served.
        max_bytes: upper limit; null without one.
        max_inclusive: whether max_bytes itself is served.
        condition: what must hold; empty when nothing.
        doubt: on what that the caller left open the rung depends; empty where it is certain.
    """

    implementation: str
    min_bytes: int
    max_bytes: int | None
    max_inclusive: bool
    condition: str = ""
    doubt: str = ""

    @property
    def certain(self) -> bool:
        """Whether the rung is tried for sure."""
        return not self.doubt

    def serves(self, message_bytes: int) -> bool:
        """Whether a message of this size lies in the rung's range."""
        if message_bytes < self.min_bytes or self.max_bytes is None:
            return message_bytes >= self.min_bytes
        return message_bytes < self.max_bytes or (self.max_inclusive and message_bytes == self.max_bytes)

    @property
    def end_bytes(self) -> int | None:
        """The smallest message beyond the rung."""
        if self.max_bytes is None:
            return None
        return self.max_bytes + 1 if self.max_inclusive else self.max_bytes


@dataclass(frozen=True)
class Setup:
    """What decides the ladder.

    Attributes:
        engine: a key of the data file: `vllm`, `sglang`, `sglang-v2`.
        arch: compute capability, `9.0`.
        tp: world size.
        version: engine version; null for the newest known.
        switches: what is known to be on or off, by name: `custom`, `symm-mem`, `nccl-symm`, `flashinfer`; others are
            as the engine's default, and what is on by default but may fail to start then carries its condition.
        fully_connected: whether every pair of GPUs has a direct NVLink path.
        dtype: of the residual, `bf16`, `fp16` or `fp32`.
    """

    engine: str
    arch: str
    tp: int
    version: str | None = None
    switches: Mapping[str, bool] | None = None
    fully_connected: bool = True
    dtype: str = "bf16"


@cache
def ladder_data() -> Mapping[str, Any]:
    """The data file as it is."""
    data: dict[str, Any] = json.loads(read_text(rules_folder() / "ladder.json"))
    return data


def engine_names() -> list[str]:
    """Engines with a ladder, sorted."""
    return sorted(ladder_data()["engines"])


def graph_rungs(engine: str) -> list[int]:
    """Batch sizes that the engine captures a graph for by default, ascending; empty for an unknown engine."""
    entry = ladder_data()["graph_rungs"].get(engine.removesuffix("-v2"), {"ranges": []})
    return sorted({size for start, stop, step in entry["ranges"] for size in range(start, stop, step)})


def padded_batch(batch: int, rungs: Sequence[int]) -> int | None:
    """The captured batch size that a decode step of `batch` requests is padded to; null above the largest."""
    return min((rung for rung in rungs if rung >= batch), default=None)


def rungs(setup: Setup) -> list[Rung]:
    """The ladder of a setup, in the order in which the engine tries it.

    Raises:
        UsageError: unknown engine or version, or a world size without all-reduces.
    """
    entry = version_entry(setup)
    found: list[Rung] = []
    for rung in entry["rungs"]:
        found.extend(_ranges(rung, setup, entry))
    return _stack(found)


def version_entry(setup: Setup) -> Mapping[str, Any]:
    """The part of the data file that holds for an engine and version.

    Raises:
        UsageError: none does, the world size has no all-reduce, or the compute capability is none.
    """
    engines = ladder_data()["engines"]
    if setup.engine not in engines:
        raise UsageError(f"no ladder is known for engine {setup.engine!r}", f"known: {', '.join(engine_names())}")
    if setup.tp < 2:
        raise UsageError(f"TP {setup.tp} has no all-reduce", "give --tp 2 or more")
    if not _ARCH.fullmatch(setup.arch):
        raise UsageError(
            f"{setup.arch!r} is no compute capability", "for example --arch 9.0 (Hopper), or --gpu h100-sxm"
        )
    entries: list[dict[str, Any]] = engines[setup.engine]
    if setup.version is None:
        return entries[0]
    version = _parts(setup.version)
    for entry in entries:
        if version >= _parts(entry["from"]) and (entry["until"] is None or version < _parts(entry["until"])):
            return entry
    raise UsageError(
        f"no ladder is known for {setup.engine} {setup.version}", f"the oldest known is {entries[-1]['from']}"
    )


def _parts(version: str) -> tuple[int, ...]:
    numbers = []
    for part in version.lstrip("v").split("."):
        digits = part[: next((i for i, c in enumerate(part) if not c.isdigit()), len(part))]
        if not digits:
            break
        numbers.append(int(digits))
    if not numbers:
        raise UsageError(f"{version!r} is not a version", "for example 0.22.0")
    return tuple(numbers + [0] * (3 - len(numbers)))


def _switched_on(rung: Mapping[str, Any], setup: Setup) -> tuple[bool, bool]:
    """(whether the rung is tried, whether that is certain)."""
    switch = rung.get("switch")
    if switch is None:
        return True, True
    chosen = (setup.switches or {}).get(switch)
    return (bool(rung["on_by_default"]), not rung["on_by_default"]) if chosen is None else (chosen, True)


def _ranges(rung: Mapping[str, Any], setup: Setup, entry: Mapping[str, Any]) -> list[Rung]:
    on, certain = _switched_on(rung, setup)
    if not on or setup.tp not in rung.get("world_sizes", [setup.tp]):
        return []
    if setup.dtype not in rung.get("dtypes", [setup.dtype]):
        return []
    if rung["name"] == "custom":
        return _custom(rung, setup, entry)
    condition = _condition(rung)
    doubt = "" if certain else f"where {rung['condition'].split(' (')[0]}"
    if "ranges" in rung:
        return [
            Rung(rung["implementation"], low, high, False, condition, doubt)
            for low, high in rung["ranges"].get(str(setup.tp), [])
        ]
    if "limits" not in rung:
        return [Rung(rung["implementation"], 0, None, False)]
    limit = rung["limits"].get(setup.arch, {}).get(str(setup.tp))
    if limit is None:
        return []
    multimem = setup.tp in rung.get("multimem_world_sizes", {}).get(setup.arch, [])
    implementation = "multimem" if multimem else rung["implementation"]
    return [Rung(implementation, 0, limit, rung["max_inclusive"], condition, doubt)]


def _condition(rung: Mapping[str, Any]) -> str:
    parts = [rung["condition"]] if "condition" in rung else []
    if "dtypes" in rung:
        parts.append(f"{' or '.join(rung['dtypes'])} only")
    if "multiple_of" in rung:
        parts.append(f"size a multiple of {rung['multiple_of']} bytes")
    return "; ".join(parts)


def _custom(rung: Mapping[str, Any], setup: Setup, entry: Mapping[str, Any]) -> list[Rung]:
    """The custom kernel: its table where symmetric memory bounds it, never above its buffer, split by stage."""
    if (setup.tp > 2 and not setup.fully_connected) or not (setup.switches or {}).get("custom", True):
        return []
    buffer: int = rung["buffer_bytes"]
    condition = f"size a multiple of {rung['multiple_of']} bytes, contiguous"
    condition += ", GPUs fully connected" if setup.tp > 2 else ", GPUs with peer access"
    limit = None
    if _symm_mem_bounds(setup, entry):
        limit = rung.get("limits_with_symm_mem", {}).get(setup.arch, {}).get(str(setup.tp))
    whole = Rung("", 0, min(limit or buffer, buffer), rung["max_inclusive"], condition)
    parts = _by_stage(whole, rung["split"], setup.tp)
    if limit is not None and limit > buffer:
        raised = (
            f"{condition}; only where the engine's custom buffer is raised above its default of {format_bytes(buffer)}"
            f": the size table alone allows {format_bytes(limit)}"
        )
        beyond = Rung("", buffer, limit, rung["max_inclusive"], raised, doubt="where its buffer is raised")
        parts += _by_stage(beyond, rung["split"], setup.tp)
    return parts


def _symm_mem_bounds(setup: Setup, entry: Mapping[str, Any]) -> bool:
    """Whether symmetric memory is on, which is when vLLM applies the size table to its custom kernel.

    It is so for any dtype: a 16-bit float residual is bounded by the table although symmetric memory itself takes
    bfloat16 only.
    """
    for rung in entry["rungs"]:
        if rung["name"] == "symm_mem":
            has_limit = str(setup.tp) in rung["limits"].get(setup.arch, {})
            return _switched_on(rung, setup)[0] and has_limit
    return False


def _by_stage(whole: Rung, split: Sequence[Mapping[str, Any]], tp: int) -> list[Rung]:
    parts: list[Rung] = []
    low = whole.min_bytes
    for stage in split:
        if tp not in stage.get("world_sizes", [tp]):
            continue
        below: int | None = stage.get("below_bytes")
        last = below is None or (whole.max_bytes is not None and below >= whole.max_bytes)
        if below is not None and not last and below <= low:
            continue
        if last or below is None:
            parts.append(replace(whole, implementation=stage["implementation"], min_bytes=low))
            break
        part = replace(whole, implementation=stage["implementation"], min_bytes=low)
        parts.append(replace(part, max_bytes=below, max_inclusive=False))
        low = below
    return parts


def _stack(found: Sequence[Rung]) -> list[Rung]:
    """Cut each rung to what the certain ones before it leave.

    A rung in doubt takes nothing away from those after it, so that both answers show.
    """
    stacked: list[Rung] = []
    taken: list[tuple[int, int | None]] = []
    for rung in found:
        stacked.extend(_left_over(rung, taken))
        if rung.certain:
            taken.append((rung.min_bytes, rung.end_bytes))
    return stacked


def _left_over(rung: Rung, used: Sequence[tuple[int, int | None]]) -> list[Rung]:
    pieces = [(rung.min_bytes, rung.end_bytes)]
    for low, high in used:
        pieces = [piece for start, end in pieces for piece in _minus(start, end, low, high)]
    result = []
    for start, end in pieces:
        whole_end = end == rung.end_bytes
        result.append(
            replace(
                rung,
                min_bytes=start,
                max_bytes=rung.max_bytes if whole_end else end,
                max_inclusive=rung.max_inclusive and whole_end,
            )
        )
    return result


def _minus(start: int, end: int | None, low: int, high: int | None) -> list[tuple[int, int | None]]:
    pieces: list[tuple[int, int | None]] = []
    if low > start:
        pieces.append((start, low if end is None else min(end, low)))
    if high is not None and (end is None or high < end):
        pieces.append((max(start, high), end))
    return [(a, b) for a, b in pieces if b is None or a < b]


def token_range(rung: Rung, token_bytes: int) -> tuple[int, int | None]:
    """(fewest, most) tokens that a rung serves; most is null without a limit, and below fewest where none fits."""
    low = max(1, -(-rung.min_bytes // token_bytes))
    end = rung.end_bytes
    return low, None if end is None else (end - 1) // token_bytes


def known_switches() -> Collection[str]:
    """Names of the switches that any rung has."""
    return sorted(
        {"custom"}
        | {
            rung["switch"]
            for entries in ladder_data()["engines"].values()
            for entry in entries
            for rung in entry["rungs"]
            if "switch" in rung
        }
    )
