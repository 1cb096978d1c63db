"""What each rule of a map finds among names, who takes them, and what they are by other evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import polars as pl
import regex

from tracelens.ruleset import Collective, Rule, RuleSet, load_collectives, load_ruleset, shipped_for
from tracelens.ruleset.corpus import example_names
from tracelens.ruleset.patterns import compiled_or_reason, exploding_probe, matches
from tracelens.ruleset.prefilter import as_series, candidates

_COLLECTIVE_BUCKET = regex.compile(r"(?i)nccl|custom_ar|all_?reduce|collective|(?:^|[^a-z])comm")


class MapOnNames:
    """One map, run on names.

    Attributes:
        names, ns: the names that are asked about, and behind them the shipped examples; the time of each, 0 where
            unknown.
        asked: how many of the names are asked about.
        timed: whether their times are known.
        compiled: rule -> its pattern; rules that cannot be run are absent.
        broken: rule -> (kind, reason) of those.
    """

    def __init__(self, ruleset: RuleSet, names: pl.DataFrame, found: dict[str, set[int]]) -> None:
        """Nothing is searched yet; `found` keeps what a pattern finds, for other maps on the same names."""
        self._found = found
        self.ruleset = ruleset
        given = names["kernel_name"].to_list()
        known = set(given)
        self.names: list[str] = [*given, *(name for name in example_names() if name not in known)]
        self.asked = len(given)
        self.series = as_series(self.names)
        self.timed = names.height > 0 and names["kernel_ns"].null_count() < names.height
        self.ns = [value or 0 for value in names["kernel_ns"].to_list()] + [0] * (len(self.names) - self.asked)
        self.total_ns = sum(self.ns)
        self.broken: dict[int, tuple[str, str]] = {}
        self.compiled: dict[int, Any] = {}
        self._compile()

    def _compile(self) -> None:
        longest = sorted(self.names, key=lambda name: (-len(name), name))[:10]
        for rule in self.ruleset.rules:
            pattern = compiled_or_reason(rule.pattern)
            if isinstance(pattern, str):
                text = f"not a regex: {pattern}; escape a literal ( [ * + ? . with a backslash"
                self.broken[rule.position] = ("invalid", text)
                continue
            probe = exploding_probe(rule.pattern, longest)
            if probe is not None:
                text = f"searches {probe[:8]!r}... ({len(probe)} letters) for too long; take nested repeats apart"
                self.broken[rule.position] = ("explodes", text)
                continue
            self.compiled[rule.position] = pattern

    def search(self, pattern: str, compiled: Any) -> set[int]:
        """Positions of the names that a pattern finds."""
        if pattern not in self._found:
            everyone = range(len(self.names))
            among = candidates(pattern, self.names, self.series, everyone)
            self._found[pattern] = matches(compiled, self.names, among)
        return self._found[pattern]

    @cached_property
    def hits(self) -> dict[int, set[int]]:
        """Rule -> names that it finds, whoever takes them."""
        return {at: self.search(self.ruleset.rules[at].pattern, pattern) for at, pattern in self.compiled.items()}

    @cached_property
    def taker(self) -> list[int | None]:
        """Name -> the rule that takes it."""
        taken: list[int | None] = [None] * len(self.names)
        for at in sorted(self.hits, reverse=True):
            for index in self.hits[at]:
                taken[index] = at
        return taken

    @cached_property
    def judge(self) -> RuleSet:
        """The shipped map for the same engine and model, else the default one."""
        return load_ruleset(shipped_for(self.ruleset.engine, self.ruleset.model))

    @cached_property
    def judged(self) -> list[str]:
        """Name -> bucket of the map that judges."""
        return [self.judge.bucket(at) for at in self.judge.classify(self.names)]

    @cached_property
    def collective(self) -> list[Collective | None]:
        """Name -> what it does between ranks; copies are left to the maps' own rule for copies."""
        table = load_collectives()
        return [None if is_copy(name) else table.classify(name) for name in self.names]

    @cached_property
    def collective_buckets(self) -> set[str]:
        """The map's buckets for collectives: by their names, else the one that most collectives land in."""
        named = {bucket for bucket in self.ruleset.buckets if _COLLECTIVE_BUCKET.search(bucket)}
        if named:
            return named
        members: dict[str, int] = defaultdict(int)
        others: dict[str, int] = defaultdict(int)
        for index, collective in enumerate(self.collective):
            if not self.leftover(index):
                (others if collective is None else members)[self.bucket(index)] += 1
        likely = [bucket for bucket, count in members.items() if count > others[bucket]]
        return {max(likely, key=lambda bucket: (members[bucket], bucket))} if likely else set()

    def bucket(self, index: int) -> str:
        """Bucket of a name by this map."""
        return self.ruleset.bucket(self.taker[index])

    def leftover(self, index: int) -> bool:
        """Whether only the catch-all, or nothing, takes a name."""
        return self.taker[index] in (None, self.ruleset.catch_all)

    def belongs(self, index: int, rule: Rule) -> bool:
        """Whether a name is this rule's by the judge; by the rule alone where the judge has no such bucket."""
        return self.judged[index] == rule.bucket or rule.bucket not in self.judge.buckets

    def time_ns(self, names: Iterable[int]) -> int:
        """Time of some names together."""
        return sum(self.ns[index] for index in names)

    def largest(self, names: Iterable[int]) -> tuple[int, ...]:
        """The names in order of time, largest first."""
        return tuple(sorted(names, key=lambda index: (-self.ns[index], self.names[index])))

    def told(self, at: int) -> str:
        """A rule, in words."""
        rule = self.ruleset.rules[at]
        return f"rule {at} {cut(rule.pattern)!r} ({rule.bucket})"


def is_copy(name: str) -> bool:
    """Whether a name is nsys's or the torch profiler's for a copy or a memset."""
    return name.startswith(("[CUDA ", "Memcpy ", "Memset "))


def cut(pattern: str, width: int = 40) -> str:
    """A pattern, short enough for a sentence."""
    return pattern if len(pattern) <= width else f"{pattern[: width - 3]}..."
