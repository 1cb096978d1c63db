"""Verdicts as an engineer would forward them."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.analyses.alignment_clock import ClockSet
from tracelens.analyses.alignment_notices import rank_list
from tracelens.analyses.skew_causes import HostFinding
from tracelens.analyses.straggler import STEP_SHARE, TRIALS_MINIMUM, Straggler
from tracelens.ruleset.spelling import short_name
from tracelens.units import plural


@dataclass(frozen=True)
class Facts:
    """What a verdict on one communicator says.

    Attributes:
        ranks: its members.
        straggler: who is late.
        wait_share: share of the time in collectives that is waiting; null without instances.
        kind: class of the communicator.
        instances: matched.
        steps: number of steps behind the per-step figures; 0 without.
        recoverable_ns, skew_ns: per step; null without steps.
        recoverable_frac: of the step.
        cause, cause_detail: of the lateness.
        clock: the clocks they rest on.
        above_resolution: whether the mean skew exceeds what the clocks resolve.
        mean_skew_ns: mean of last minus first arrival.
        waiting_ns: mean over the other ranks of the wait per step; null without steps.
        missing: members of the communicator that are not in the answer.
    """

    ranks: tuple[int, ...]
    straggler: Straggler
    wait_share: float | None
    kind: str
    instances: int
    steps: int
    recoverable_ns: int | None
    skew_ns: int | None
    recoverable_frac: float | None
    cause: str
    cause_detail: str | None
    clock: ClockSet
    above_resolution: bool
    mean_skew_ns: float
    waiting_ns: float | None
    missing: int | None


def verdict_sentence(facts: Facts) -> str:
    """The verdict on one communicator."""
    who = f"ranks {rank_list(facts.ranks)}"
    if facts.instances == 0:
        return f"No collective of {who} could be used, so nothing is said about who waits for whom."
    parts = [_main(facts, who)]
    if facts.straggler.rank is not None or facts.straggler.late_ranks:
        parts.append(_cause(facts))
    parts.append(_share(facts))
    parts.append(_caveat(facts))
    return " ".join(part for part in parts if part)


def _main(facts: Facts, who: str) -> str:
    found = facts.straggler
    if found.rank is not None:
        often = f"last in {found.last_frac:.0%} of the steps" if facts.steps else "last in most stretches"
        others = len(facts.ranks) - 1
        cost = (
            ""
            if facts.waiting_ns is None
            else f", and the other {'rank waits' if others == 1 else f'{others} ranks wait'} for it about {_time(facts.waiting_ns)} a step"
        )
        saved = "" if not facts.recoverable_ns else f"; evening it out would save up to {_worth(facts)}"
        return f"Rank {found.rank} is late: it arrives {often} of {who}{cost}{saved}."
    if found.late_ranks:
        lead = _time(found.group_lead_ns or 0.0)
        saved = "" if not facts.recoverable_ns else f"; evening them out would save up to {_worth(facts)}"
        return (
            f"Ranks {rank_list(found.late_ranks)} are late together, {lead} behind the other members of {who} per collective "
            f"(one NUMA node or PCIe switch?){saved}."
        )
    if facts.clock.method == "trust":
        return f"Nobody is named among {who}: the clocks are only those recorded."
    if facts.kind == "inconclusive" and facts.instances < 30:
        return f"Too few collectives of {who} match ({facts.instances}) to say who is late."
    cost = "" if not facts.skew_ns else f"; in all the skew costs at most {_worth_skew(facts)}"
    if facts.above_resolution and (found.likely_rank is not None or facts.kind != "transfer"):
        return f"No persistent straggler among {who}: {_why_nobody(facts)}{cost}."
    return f"No rank of {who} is persistently late: on average the last arrives {_time(facts.mean_skew_ns)} after the first."


def _why_nobody(facts: Facts) -> str:
    """Why nobody is named although the ranks arrive apart."""
    found = facts.straggler
    unit = "step" if facts.steps else "stretch"
    units = "steps" if facts.steps else "stretches"
    often = "" if found.last_frac is None else f"rank {found.likely_rank} is last in {found.last_frac:.0%} of "
    if 0 < found.trial_count < TRIALS_MINIMUM:
        count = f"{found.trial_count} {unit if found.trial_count == 1 else units}"
        few = f"{'is' if found.trial_count == 1 else 'are'} too few to name one ({TRIALS_MINIMUM} are needed)"
        return f"{count} {few}" if found.likely_rank is None else f"{often}{count}, which {few}"
    if found.likely_rank is not None:
        return (
            f"{often}the {units}, but by too little: less than {STEP_SHARE:.1%} of a step, or than the clocks resolve"
        )
    return f"the late rank changes from {unit} to {unit}"


def _worth(facts: Facts) -> str:
    share = "" if facts.recoverable_frac is None else f" ({facts.recoverable_frac:.1%} of it)"
    return f"{_time(facts.recoverable_ns or 0)} a step{share}"


def _worth_skew(facts: Facts) -> str:
    share = ""
    if facts.recoverable_ns and facts.recoverable_frac and facts.skew_ns:
        share = f" ({facts.recoverable_frac * facts.skew_ns / facts.recoverable_ns:.1%} of it)"
    return f"{_time(facts.skew_ns or 0)} a step{share}"


def _cause(facts: Facts) -> str:
    detail = f": {facts.cause_detail}" if facts.cause_detail else ""
    words = {
        "device": f"The cause is on the device{detail}.",
        "host": f"The cause is on the host{detail}.",
        "upstream": "The cause is upstream: it leaves the communicator before this one late.",
        "other": "The time goes neither into kernels nor into launches, but between queued kernels.",
        "mixed": "No single cause: device, host and other parts share it.",
    }
    if not facts.straggler.rank and facts.cause == "upstream":
        return "The cause is upstream: they leave the communicator before this one late."
    return words.get(facts.cause, "")


def _share(facts: Facts) -> str:
    if facts.wait_share is None or facts.kind == "inconclusive":
        return ""
    if facts.kind == "transfer":
        return f"{1 - facts.wait_share:.0%} of the time in these collectives is transfer."
    rest = "" if facts.kind == "arrival_skew" else ", the rest transfer"
    return f"{facts.wait_share:.0%} of the time in these collectives is waiting{rest}."


def _caveat(facts: Facts) -> str:
    said = []
    if facts.clock.method == "ends" and facts.clock.asymmetry_ns is None and facts.clock.single_operation:
        said.append(
            f"This assumes that {facts.clock.single_operation} ends together on all ranks: a rank that always leaves it a "
            "constant time later looks like a clock offset."
        )
    elif facts.clock.asymmetry_ns is not None and facts.clock.asymmetry_ns >= 100.0:
        said.append(
            f"Operations disagree by {_time(facts.clock.asymmetry_ns)} about when ranks leave, so no claim is made below that."
        )
    if facts.clock.method == "trust":
        said.append("The recorded clocks' error is not covered by these figures.")
    if facts.missing:
        said.append(
            f"Not in the answer: {plural(facts.missing, 'member')} of this communicator, one of which may be the last to arrive."
        )
    return " ".join(said)


def host_detail(found: HostFinding | None) -> str | None:
    """Which launches come late, in words."""
    if found is None:
        return None
    api = f", {found.api_name}" if found.api_name else ""
    return (
        f"launches come late, {_time(max(found.total_excess_ns, found.excess_ns))} a step in all, {_time(found.excess_ns)} of it "
        f"before {short_name(found.kernel)}{api}"
    )


def device_words(kind: str, bucket: str | None, factor: float) -> str:
    """What is slower on the device, in words."""
    if kind == "uniform":
        return f"uniform - every bucket is slower, {factor:.2f} times the usual compute time (clock, power or heat)"
    if bucket is None:
        return f"compute takes {factor:.2f} times the usual time"
    return f"imbalance - the excess is in bucket {bucket}"


def _time(ns: float) -> str:
    if abs(ns) < 1_000:
        return f"{ns:.0f} ns"
    if abs(ns) < 1_000_000:
        return f"{ns / 1e3:.1f} us"
    return f"{ns / 1e6:.2f} ms"
