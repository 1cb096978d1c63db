"""What is wrong with a bucket map, found by running it on names: a linter.

The map is judged by three things: the names (of a capture, with their time, or the shipped examples), the
collective table, and a judge, which stands for what the names mean: the shipped map for the same engine and model,
else the default one. It is only asked where both maps use the same words for buckets; a map with words of its own
is not told that they are wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl
import regex

from tracelens.analyses.rule_evidence import MapOnNames, cut, is_copy
from tracelens.frames import Column, Notice, Result, Schema
from tracelens.ruleset import UNMATCHED_BUCKET, Rule, RuleSet
from tracelens.ruleset.patterns import alternatives, compiled_or_reason
from tracelens.units import plural

KINDS = {
    "invalid": "the pattern is not a regex",
    "explodes": "the pattern takes too long on some names",
    "no_catch_all": "no rule takes what the others leave",
    "unreachable": "an earlier rule takes every name there is",
    "collective_outside": "an operation between ranks lands outside the collective bucket",
    "false_collective": "a kernel of one rank lands in the collective bucket",
    "shadowed": "earlier rules take every name that this rule or alternative finds",
    "partly_shadowed": "an earlier rule takes a name that belongs here",
    "case": "only the case of a letter keeps it from a name that belongs here",
    "disputed": "the shipped map that judges puts this name into another bucket",
    "catch_all": "no rule but the catch-all takes this name",
    "never_matches": "the rule finds none of the names",
}
"""Kinds of finding, in the order of the answer."""

_TOLD_FRAC = 0.001
"""A name that the judge does not know either is a finding from this share of the time on."""

_LITERAL = regex.compile(r"[A-Za-z0-9_ :]+")
_CONTEXT = regex.compile(r"[$^]|\\[bBAZ]|\(\?[=!<]")
"""What makes a match depend on the text around it."""


class RuleCheckResult(Result):
    """Findings about one or more bucket maps."""

    command: ClassVar[str] = "rules check"
    schemas: ClassVar = {
        "findings": Schema(
            "one finding about one rule of one map",
            Column("map", pl.String, "The map: a shipped name, or its file with engine and model"),
            Column("rule", pl.String, "The pattern of the rule, as it stands in the map; null for the map as a whole"),
            Column("kind", pl.String, "What is wrong: " + "; ".join(f"{key}: {text}" for key, text in KINDS.items())),
            Column("kernel_name", pl.String, "The name that shows it, the one with the largest time"),
            Column("time_frac", pl.Float64, "Share of all kernel and copy time; null without a capture", "frac"),
            Column("suggestion", pl.String, "What to change"),
        )
    }


@dataclass(frozen=True)
class _Finding:
    kind: str
    rule: Rule | None
    names: tuple[int, ...]
    suggestion: str
    example: str | None = None


def check_rules(maps: Sequence[RuleSet], names: pl.DataFrame) -> RuleCheckResult:
    """Lints maps.

    Args:
        maps: their patterns need not be compilable.
        names: `kernel_name` and `kernel_ns` (null where no capture gave the names); one row per name.

    Returns:
        table `findings`, by map, then kind, then share of time; one warning that counts them.
    """
    rows: list[dict[str, Any]] = []
    sentences: list[str] = []
    searched: dict[str, set[int]] = {}
    for one in maps:
        lint = _Lint(one, names, searched)
        found = lint.findings()
        rows += found
        sentences.append(lint.sentence(found))
    schema = RuleCheckResult.schemas["findings"]
    notices: tuple[Notice, ...] = ()
    if rows:
        notices = (
            Notice("rule-findings", "warning", "the map has findings", "each row says what to change", len(rows)),
        )
    return RuleCheckResult({"findings": schema.frame(rows)}, notices, _provenance(maps), tuple(sentences))


def _provenance(maps: Sequence[RuleSet]) -> dict[str, Any]:
    return {"rules": [one.name for one in maps], "rules_sha256": [one.sha256 for one in maps]}


class _Lint(MapOnNames):
    """The findings about one map."""

    def findings(self) -> list[dict[str, Any]]:
        """The rows of this map."""
        found = [_Finding(kind, self.ruleset.rules[at], (), text) for at, (kind, text) in self.broken.items()]
        checks: tuple[Callable[[], list[_Finding]], ...] = (
            self._reach, self._collectives, self._shadows, self._cases, self._disputes, self._leftovers,
        )  # fmt: skip
        for check in checks:
            found += check()
        order = list(KINDS)
        found.sort(
            key=lambda one: (
                order.index(one.kind),
                -self.time_ns(one.names),
                -1 if one.rule is None else one.rule.position,
                [self.names[index] for index in one.names[:1]],
                one.suggestion,
            )
        )
        return [self._row(one) for one in found]

    def _row(self, one: _Finding) -> dict[str, Any]:
        return {
            "map": self.ruleset.name,
            "rule": one.rule.pattern if one.rule else None,
            "kind": one.kind,
            "kernel_name": self.names[one.names[0]] if one.names else one.example,
            "time_frac": self.time_ns(one.names) / self.total_ns
            if self.timed and self.total_ns and one.names
            else None,
            "suggestion": one.suggestion,
        }

    def _reach(self) -> list[_Finding]:
        """Rules that can never answer: behind the catch-all, or without a name; a map without a catch-all."""
        found = []
        last = self.ruleset.catch_all
        if last is None:
            text = f'end the map with ".*": "{UNMATCHED_BUCKET}"; names that no rule takes are counted there now'
            found.append(_Finding("no_catch_all", None, (), text))
        for rule in self.ruleset.rules:
            if rule.position in self.broken:
                continue
            if last is not None and rule.position > last:
                found.append(_Finding("unreachable", rule, (), f"{self.told(last)} takes everything; move it last"))
            elif not self.hits[rule.position]:
                text = f"finds none of {plural(len(self.names), 'name')}, shipped examples included; check its spelling or remove it"
                found.append(_Finding("never_matches", rule, (), text))
        return found

    def _collectives(self) -> list[_Finding]:
        """Operations between ranks outside the collective bucket, and other kernels inside it."""
        found = []
        strays: dict[int, set[int]] = defaultdict(set)
        target = " or ".join(sorted(self.collective_buckets)) or "a bucket of their own"
        for index, collective in enumerate(self.collective[: self.asked]):
            inside, at = self.bucket(index) in self.collective_buckets, self.taker[index]
            if collective is not None and not inside:
                by = "no rule takes it" if at is None else f"{self.told(at)} takes it"
                text = f"is {collective.operation} ({collective.implementation}), but {by}; "
                text += f"find it by a rule for {target} that stands first"
                found.append(_Finding("collective_outside", _rule(self.ruleset, at), (index,), text))
            elif collective is None and inside and at is not None and not is_copy(self.names[index]):
                strays[at].add(index)
        for at, names in strays.items():
            text = f"no operation between ranks ({self.judged[self.largest(names)[0]]}); narrow the pattern"
            found.append(_Finding("false_collective", self.ruleset.rules[at], self.largest(names), text))
        return found

    def _shadows(self) -> list[_Finding]:
        """Rules and alternatives whose names earlier rules take."""
        last = self.ruleset.catch_all
        found = []
        for rule in self.ruleset.rules:
            at = rule.position
            if at not in self.compiled or (last is not None and at >= last):
                continue
            hits = self.hits[at]
            if hits and all(self.taker[index] != at for index in hits):
                found.append(self._shadow(rule, "it", hits))
                continue
            parts = alternatives(rule.pattern)
            for part in parts:
                found += self._shadow_part(rule, part, len(parts) > 1)
        return found

    def _shadow_part(self, rule: Rule, part: str, one_of_several: bool) -> list[_Finding]:
        """What earlier rules take from one alternative of a rule."""
        compiled = compiled_or_reason(part)
        if isinstance(compiled, str):
            return []
        mine = self.search(part, compiled)
        lost = {index for index in mine if self.taker[index] != rule.position and self.bucket(index) != rule.bucket}
        wronged = {index for index in lost if self.belongs(index, rule)}
        if one_of_several and wronged and lost == mine:
            return [self._shadow(rule, f"the alternative {cut(part)!r}", wronged)]
        first = self._certain_taker(rule, part) if one_of_several else None
        if first is not None:
            text = (
                f"{cut(part)!r} cannot win: {self.told(first)} finds it in every name that holds it; move this rule up"
            )
            return [_Finding("shadowed", rule, self.largest(mine), text, example=part)]
        found = []
        wronged = {index for index in wronged if index < self.asked}
        for thief in sorted({at for index in wronged if (at := self.taker[index]) is not None}):
            names = self.largest({index for index in wronged if self.taker[index] == thief})
            text = f"{self.told(thief)} takes it before {cut(part)!r} can; move this rule up"
            found.append(_Finding("partly_shadowed", rule, names, text))
        return found

    def _certain_taker(self, rule: Rule, part: str) -> int | None:
        """An earlier rule for another bucket that finds the literal `part` itself, wherever it stands in a name."""
        if not _LITERAL.fullmatch(part):
            return None
        for at, pattern in self.compiled.items():
            earlier = self.ruleset.rules[at]
            if at >= rule.position:
                return None
            if earlier.bucket != rule.bucket and not _CONTEXT.search(earlier.pattern) and pattern.search(part):
                return at
        return None

    def _shadow(self, rule: Rule, what: str, names: set[int]) -> _Finding:
        largest = self.largest(names)
        first = self.taker[largest[0]]
        text = f"{what} cannot win: {self.told(first or 0)} takes this name first; move this rule up, or remove it"
        return _Finding("shadowed", rule, largest, text)

    def _cases(self) -> list[_Finding]:
        """Alternatives that miss a name of theirs by the case of a letter."""
        found = []
        for rule in self.ruleset.rules:
            if rule.position not in self.compiled:
                continue
            for part in alternatives(rule.pattern):
                exact, folded = compiled_or_reason(part), compiled_or_reason(part, ignore_case=True)
                if isinstance(exact, str) or isinstance(folded, str):
                    continue
                loose = self.search(f"(?i){part}", folded) - self.search(part, exact)
                slipped = {
                    index
                    for index in loose
                    if index < self.asked
                    and self.bucket(index) != rule.bucket
                    and self.collective[index] is None
                    and (self.judged[index] == rule.bucket or (self.leftover(index) and self.belongs(index, rule)))
                }
                if slipped:
                    text = f"{cut(part)!r} misses it by case alone; write (?i:{cut(part)}), or both spellings"
                    found.append(_Finding("case", rule, self.largest(slipped), text))
        return found

    def _disputes(self) -> list[_Finding]:
        """Names that the judge puts into another bucket that this map has too."""
        groups: dict[tuple[int, str], set[int]] = defaultdict(set)
        for index, at in enumerate(self.taker[: self.asked]):
            theirs = self.judged[index]
            known = theirs in self.ruleset.buckets and theirs != UNMATCHED_BUCKET
            if at is None or self.leftover(index) or not known or self.collective[index] is not None:
                continue
            if self.bucket(index) != theirs and self.bucket(index) not in self.collective_buckets:
                groups[at, theirs].add(index)
        found = []
        for (at, theirs), names in groups.items():
            rule = self.ruleset.rules[at]
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            text = f"lands in {rule.bucket}, {self.judge.name} says {theirs}{more}; find it by an earlier rule for {theirs}"
            found.append(_Finding("disputed", rule, self.largest(names), text))
        return found

    def _leftovers(self) -> list[_Finding]:
        """Names that only the catch-all takes: those that the judge knows, and those with time."""
        found = []
        for index in range(self.asked):
            if not self.leftover(index) or self.collective[index] is not None:
                continue
            known = self.judged[index] != UNMATCHED_BUCKET
            if known or (self.total_ns and self.ns[index] >= _TOLD_FRAC * self.total_ns):
                text = f"{self.judge.name} says {self.judged[index]}; add a rule" if known else "add a rule for it"
                found.append(_Finding("catch_all", _rule(self.ruleset, self.taker[index]), (index,), text))
        return found

    def sentence(self, rows: Sequence[dict[str, Any]]) -> str:
        """The answer for this map in words."""
        count = f"{len(rows)} finding{'' if len(rows) == 1 else 's'}" if rows else "nothing to find fault with"
        parts = [f"{self.ruleset.name}: {count} on {plural(self.asked, 'name')}"]
        if not self.timed:
            parts[0] += " (shipped examples; name a capture to weigh them by time)"
        members = [index for index, collective in enumerate(self.collective[: self.asked]) if collective is not None]
        if members:
            inside = sum(self.bucket(index) in self.collective_buckets for index in members)
            parts.append(f"{inside} of {len(members)} collective names in the collective bucket")
        left = [index for index in range(self.asked) if self.leftover(index)]
        if self.timed and self.total_ns:
            parts.append(f"{self.time_ns(left) / self.total_ns:.1%} of the time in the catch-all")
        else:
            parts.append(f"{plural(len(left), 'name')} in the catch-all")
        return ", ".join(parts) + "."


def _rule(ruleset: RuleSet, at: int | None) -> Rule | None:
    return None if at is None else ruleset.rules[at]
