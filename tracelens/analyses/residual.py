"""Why a step takes longer than the scaling model says: the residual, cut into parts that sum to it.

    residual = measured - predicted
             = wait + transfers above the reference + extra collectives + gaps + compute + rest

All figures are per step, means over ranks and steps of a capture, in whole ns. With a capture at p = 1, gaps and compute are what is left above 1/p of that
capture's, by cause and by bucket; without one, gaps count in full and compute is one part, `compute_and_kv`, above
t(1)/p. `rest` closes the sum: profiler overhead, another statistic than the mean, what no part explains.

Only exposed collective time is attributed, since hidden time does not lengthen the step; where a collective is partly
hidden, its wait and its transfer are scaled alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tracelens.units import format_bytes, plural

ALL_REDUCE = "all_reduce"


@dataclass(frozen=True)
class TracedCollective:
    """One operation and implementation at one message size, per step of one rank (mean over ranks and steps).

    Attributes:
        operation: `all_reduce`, `all_gather`, ...
        implementation: as in the collective table.
        message_bytes: bytes of one call; null when not known.
        call_count: calls per step.
        wait_ns: exposed time until the last rank arrived.
        transfer_ns: exposed time after it; of calls that matched no other rank, their whole duration.
        transfer_p50_ns: median transfer of one instance; null when none matched.
    """

    operation: str
    implementation: str
    message_bytes: int | None
    call_count: float
    wait_ns: float
    transfer_ns: float
    transfer_p50_ns: float | None = None

    @property
    def label(self) -> str:
        """Implementation and message size, as in a column's name."""
        return f"{self.implementation}_{size_label(self.message_bytes)}"


@dataclass(frozen=True)
class TracedStep:
    """The mean decode step of one capture.

    Attributes:
        tp: ranks of the capture that share the step.
        step_ns: mean over ranks of the mean over steps.
        step_count: complete decode steps of the rung, warm-up excluded.
        tokens: tokens in the step; null when the marker does not say.
        compute_ns: bucket -> time of non-collective work, each instant in one bucket.
        gaps_ns: cause -> time.
        skew_ns: sum over the step's exposed instances of last minus first arrival, what the step would gain at best if
            all ranks arrived with the first; null where no instance was matched.
        late_host_ns: host parts of gaps on the way to each instance of the rank that arrived last there: what the step
            would gain at best without them, since the host of a rank that waits anyway holds nobody up; null where the
            last rank is not known.
        collectives: by operation, implementation and message size.
    """

    tp: int
    step_ns: float
    step_count: int
    tokens: int | None = None
    compute_ns: Mapping[str, float] = field(default_factory=dict)
    gaps_ns: Mapping[str, float] = field(default_factory=dict)
    skew_ns: float | None = None
    late_host_ns: float | None = None
    collectives: Sequence[TracedCollective] = ()

    @property
    def all_reduces(self) -> list[TracedCollective]:
        """The all-reduces, most calls first."""
        found = [one for one in self.collectives if one.operation == ALL_REDUCE]
        return sorted(found, key=lambda one: (-one.call_count, one.label))

    @property
    def wait_ns(self) -> float:
        """Exposed wait in all collectives."""
        return sum(one.wait_ns for one in self.collectives)

    @property
    def all_reduce_ns(self) -> float:
        """Exposed time in all-reduces, waits included."""
        return sum(one.wait_ns + one.transfer_ns for one in self.all_reduces)

    @property
    def all_reduce_calls(self) -> float:
        """All-reduces per step."""
        return sum(one.call_count for one in self.all_reduces)

    @property
    def transfer_p50_ns(self) -> float | None:
        """Median transfer of the all-reduce that runs most often; the traced lambda."""
        return next((one.transfer_p50_ns for one in self.all_reduces if one.transfer_p50_ns is not None), None)


@dataclass(frozen=True)
class Prediction:
    """What the model says of one point, with the terms that the parts are measured against.

    Attributes:
        t1_ns: t(1).
        lambda_ns: reference lambda.
        bandwidth_ns: bandwidth term of all 2L all-reduces.
        all_reduces: 2L.
        step_ns: t(p).
    """

    t1_ns: float
    lambda_ns: float
    bandwidth_ns: float
    all_reduces: int
    step_ns: float


def size_label(message_bytes: int | None) -> str:
    """A message size as a word: `8KiB`, `1MiB`, `100B`, `unknown_size`."""
    if message_bytes is None:
        return "unknown_size"
    for unit, divisor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if message_bytes >= divisor and message_bytes % divisor == 0:
            return f"{message_bytes // divisor}{unit}"
    return f"{message_bytes}B"


def attribute(step_ns: float, predicted: Prediction, traced: TracedStep, one: TracedStep | None) -> dict[str, int]:
    """The residual's parts.

    Args:
        step_ns: the measured step, of whichever statistic.
        predicted: the model at this point.
        traced: the capture at this TP size.
        one: the capture at TP 1; null when there is none.

    Returns:
        part -> whole ns, `rest` last; they sum to round(step_ns) - round(predicted.step_ns).
    """
    parts: dict[str, float] = {"wait": traced.wait_ns}
    parts |= _collective_parts(predicted, traced)
    parts |= _gap_parts(traced, one)
    parts |= _compute_parts(predicted, traced, one)
    whole = {name: round(value) for name, value in parts.items()}
    whole["rest"] = round(step_ns) - round(predicted.step_ns) - sum(whole.values())
    return whole


def _collective_parts(predicted: Prediction, traced: TracedStep) -> dict[str, float]:
    calls = traced.all_reduce_calls
    if traced.tp <= 1 or not traced.collectives:
        return {}
    expected_ns = predicted.lambda_ns + predicted.bandwidth_ns / predicted.all_reduces
    extra = sum(other.transfer_ns for other in traced.collectives if other.operation != ALL_REDUCE)
    parts: dict[str, float] = {}
    if not calls:
        # No all-reduce seen where the model has 2L: their cost is missing from the step, not saved by it.
        return {"extra_collectives": extra - predicted.all_reduces * expected_ns}
    for group in traced.all_reduces:
        share = group.call_count / calls
        layer_ns = group.transfer_ns * predicted.all_reduces / calls
        name = f"transfer_{group.label}"
        parts[name] = parts.get(name, 0.0) + layer_ns - predicted.all_reduces * share * expected_ns
        extra += group.transfer_ns * (calls - predicted.all_reduces) / calls
    parts["extra_collectives"] = extra
    return parts


def _gap_parts(traced: TracedStep, one: TracedStep | None) -> dict[str, float]:
    before = one.gaps_ns if one is not None else {}
    causes = sorted({*traced.gaps_ns, *before})
    return {f"gap_{cause}": traced.gaps_ns.get(cause, 0.0) - before.get(cause, 0.0) / traced.tp for cause in causes}


def _compute_parts(predicted: Prediction, traced: TracedStep, one: TracedStep | None) -> dict[str, float]:
    if one is None:
        return {"compute_and_kv": sum(traced.compute_ns.values()) - predicted.t1_ns / traced.tp}
    buckets = sorted({*traced.compute_ns, *one.compute_ns})
    return {
        f"compute_{bucket}": traced.compute_ns.get(bucket, 0.0) - one.compute_ns.get(bucket, 0.0) / traced.tp
        for bucket in buckets
    }


def part_sentence(tp: int, residual_ns: int, parts: Mapping[str, int]) -> str:
    """The residual and its largest parts in words."""
    ranked = sorted(parts.items(), key=lambda part: (-abs(part[1]), part[0]))
    named = [f"{part_name(name, value)} {value / 1e3:+,.1f} us" for name, value in ranked[:3] if abs(value) >= 500]
    text = f"TP {tp} takes {abs(residual_ns) / 1e3:,.0f} us {'more' if residual_ns >= 0 else 'less'} than predicted"
    return f"{text}: {', '.join(named)}." if named else f"{text}."


def part_name(part: str, value: float = 0) -> str:
    """A part in words: `transfer_nccl_256KiB` is `transfer of nccl at 256KiB above the reference`.

    A negative value turns the word: `compute_gemm` of -135 us is `gemm faster than 1/p`.
    """
    less = value < 0
    above = "below" if less else "above"
    if part == "wait":
        return "waiting for late ranks"
    if part.startswith("transfer_"):
        implementation, _, size = part.removeprefix("transfer_").rpartition("_")
        if size == "size":
            return f"transfer of {implementation.removesuffix('_unknown')} {above} the reference"
        return f"transfer of {implementation} at {size} {above} the reference"
    if part.startswith("gap_"):
        return f"gaps ({part.removeprefix('gap_')})"
    if part == "compute_and_kv":
        return f"compute and cache reads {'short of' if less else 'beyond'} t(1)/p"
    if part.startswith("compute_"):
        return f"{part.removeprefix('compute_')} {'faster' if less else 'slower'} than 1/p"
    if part == "extra_collectives":
        return f"collectives {'missing from' if less else 'beyond'} two a layer"
    return {"rest": "unexplained"}.get(part, part)


def implementation_switches(traced: Sequence[TracedStep]) -> list[str]:
    """One sentence for each change of the main all-reduce implementation from one TP size to the next."""
    sentences = []
    mains = [
        (step, step.all_reduces[0]) for step in sorted(traced, key=lambda s: (s.tp, s.tokens or 0)) if step.all_reduces
    ]
    for (before, old), (after, new) in pairwise(mains):
        if old.implementation == new.implementation:
            continue
        sizes = "" if new.message_bytes is None else f" at {format_bytes(new.message_bytes)} a message"
        tokens = "" if after.tokens is None else f" ({plural(after.tokens, 'token')})"
        sentences.append(
            f"The all-reduce is {old.implementation} at TP {before.tp} and {new.implementation} at TP {after.tp}"
            f"{sizes}{tokens}: the implementation changes under the sweep."
        )
    return sentences
