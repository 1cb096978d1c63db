"""Bucket maps: the engines' JSON format, read strictly, and the classification of kernel names.

The format is `{engine: {model: {regex: bucket}}}`. The order of the rules is kept; a name belongs to the first rule
whose regex `search`es it, in the syntax of the `regex` package, which contains that of Python's `re`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import regex

from tracelens.errors import RuleError
from tracelens.ruleset.prefilter import as_series, candidates
from tracelens.ruleset.shelf import read_text, rules_folder

UNMATCHED_BUCKET = "misc"
"""The bucket of a name that no rule takes, in a map without a catch-all."""

SEARCH_LIMIT_S = 1.0
"""The longest that one pattern may search one name, in processor time."""

PATTERN_LIMIT_S = 10.0
"""The longest that one pattern may search all names of a call, in processor time."""

DEFAULT_MAP = "default"


@dataclass(frozen=True)
class Rule:
    """One line of a map.

    Attributes:
        position: 0 for the first rule of its map.
        pattern: a regex, `search`ed in the demangled name.
        bucket: where names that it takes are counted.
        line: its line in the file, from 1.
    """

    position: int
    pattern: str
    bucket: str
    line: int = 0


@dataclass(frozen=True)
class RuleSet:
    """One map: ordered rules, first match wins.

    Attributes:
        name: a shipped name (`default`, `vllm/llama`) or the file as typed, with `engine/model` after a colon.
        engine, model: the keys that the rules stand under in the file.
        sha256: of the file's bytes.
        rules: in file order.
    """

    name: str
    engine: str
    model: str
    sha256: str
    rules: tuple[Rule, ...]

    @property
    def catch_all(self) -> int | None:
        """Position of the rule that takes everything, if the map has one."""
        for rule in self.rules:
            if rule.pattern in (".*", "", ".", ".+", "^", "^.*", "^.*$", ".*$"):
                return rule.position
        return None

    @property
    def buckets(self) -> list[str]:
        """Every bucket once, in the order of the rules."""
        return list(dict.fromkeys(rule.bucket for rule in self.rules))

    @cached_property
    def _compiled(self) -> dict[int, Any]:
        return {}

    def pattern(self, rule: Rule) -> Any:
        """The pattern of one of the rules, compiled when it is first asked for: all of them take longer than a short answer.

        Raises:
            RuleError: it is not a regex; names it and its line.
        """
        if rule.position not in self._compiled:
            self._compiled[rule.position] = compile_pattern(rule, self.name)
        return self._compiled[rule.position]

    def classify(self, names: Sequence[str]) -> list[int | None]:
        """Position of the first rule that takes each name; null where none does.

        Raises:
            RuleError: a pattern is not a regex, or takes longer than its limit on some name.
        """
        taken: list[int | None] = [None] * len(names)
        left: Sequence[int] = range(len(names))
        series = as_series(names)
        for rule in self.rules:
            among = candidates(rule.pattern, names, series, left)
            found = self._found(rule, self.pattern(rule), names, among) if among else []
            if not found:
                continue
            for index in found:
                taken[index] = rule.position
            left = [index for index in left if taken[index] is None]
            if not left:
                break
            series = as_series([names[index] for index in left])
        return taken

    def _found(self, rule: Rule, pattern: Any, names: Sequence[str], among: Sequence[int]) -> list[int]:
        """Which of the names at the positions `among` the rule's pattern is found in."""
        search = pattern.search
        deadline = time.thread_time() + PATTERN_LIMIT_S
        found = []
        for index in among:
            try:
                if search(names[index], timeout=SEARCH_LIMIT_S):
                    found.append(index)
            except TimeoutError as error:
                raise self._too_slow(rule, names[index]) from error
            if time.thread_time() > deadline:
                raise self._too_slow(rule, names[index])
        return found

    def bucket(self, position: int | None) -> str:
        """The bucket of a rule by position, as `classify` gives it."""
        return UNMATCHED_BUCKET if position is None else self.rules[position].bucket

    def _too_slow(self, rule: Rule, name: str) -> RuleError:
        return RuleError(
            f"pattern {shorten(rule.pattern)!r} (rule {rule.position} of map {self.name}) "
            f"takes too long on kernel {shorten(name)!r}",
            "nested repeats such as `(a+)+` explode; simplify the pattern, `tracelens rules check` finds the others",
        )


def compile_pattern(rule: Rule, map_name: str) -> Any:
    """The compiled pattern of a rule.

    Raises:
        RuleError: it is not a regex.
    """
    try:
        return regex.compile(rule.pattern)
    except (regex.error, OverflowError, RecursionError, ValueError) as error:
        where = f"rule {rule.position} of map {map_name}" + (f", line {rule.line}" if rule.line else "")
        raise RuleError(
            f"pattern {shorten(rule.pattern)!r} ({where}) is not a regex: {error}",
            "escape a literal ( [ * + ? . with a backslash (two in JSON)",
        ) from error


def shorten(text: str, width: int = 80) -> str:
    """`text` cut in the middle to `width` characters, for messages."""
    return text if len(text) <= width else f"{text[: width - 33]}...{text[-30:]}"


def parse_map(text: str, shown: str) -> dict[tuple[str, str], tuple[Rule, ...]]:
    """The maps of a file, keyed by (engine, model), in file order.

    Args:
        text: JSON, `{engine: {model: {regex: bucket}}}`.
        shown: how errors name the file.

    Raises:
        RuleError: not JSON, a key twice, a value of the wrong kind, nothing in it; names the line.
    """
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise RuleError(f"{shown}, line {error.lineno}: not JSON: {error.msg}", _FORMAT_HINT) from error
    except RecursionError as error:
        raise RuleError(f"{shown}: nested too deeply for a bucket map", _FORMAT_HINT) from error
    reader = _Reader(text, shown)
    maps: dict[tuple[str, str], tuple[Rule, ...]] = {}
    for engine, _ in reader.members("the file", "an engine", opens=True):
        for model, _ in reader.members(f"engine {engine!r}", "a model", opens=True):
            rules: list[Rule] = []
            for pattern, line in reader.members(f"{engine}/{model}", "a regex", opens=False):
                bucket = reader.string(f"the bucket of regex {shorten(pattern)!r}")
                rules.append(Rule(len(rules), pattern, bucket, line))
            if not rules:
                raise RuleError(f"{shown}: map {engine}/{model} has no rules", _FORMAT_HINT)
            maps[engine, model] = tuple(rules)
    if not maps:
        raise RuleError(f"{shown} holds no map", _FORMAT_HINT)
    return maps


_FORMAT_HINT = 'a bucket map reads {"engine": {"model": {"regex": "bucket", ...}}}'


_DECODER = json.JSONDecoder()


class _Reader:
    """Walks JSON that is known to be well formed, and knows the line that it is at."""

    def __init__(self, text: str, shown: str) -> None:
        self.text = text
        self.shown = shown
        self.at = 0
        self._counted = (0, 1)

    def members(self, holder: str, kind: str, *, opens: bool) -> Iterator[tuple[str, int]]:
        """Keys of the object that starts here, each with its line; the caller reads the value in between."""
        if self._peek() != "{":
            raise self._wrong(f"{holder} must be an object")
        self.at += 1
        seen: dict[str, int] = {}
        while self._peek() != "}":
            line = self._line()
            key, self.at = _DECODER.raw_decode(self.text, self.at)
            if key in seen:
                raise RuleError(
                    f"{self.shown}, line {line}: {kind} twice in {holder}: {shorten(key)!r}, first in line {seen[key]}",
                    "JSON would silently keep one of them; join them or remove one",
                )
            seen[key] = line
            self._peek()
            self.at += 1  # the colon
            if opens and self._peek() != "{":
                raise self._wrong(
                    f"the value of {kind.removeprefix('a ').removeprefix('an ')} {key!r} must be an object"
                )
            yield key, line
            if self._peek() == ",":
                self.at += 1
        self.at += 1

    def string(self, what: str) -> str:
        """The string that starts here; empty ones are refused."""
        if self._peek() != '"':
            raise self._wrong(f"{what} must be a string")
        line = self._line()
        value: str
        value, self.at = _DECODER.raw_decode(self.text, self.at)
        if not value:
            raise RuleError(f"{self.shown}, line {line}: {what} is empty", _FORMAT_HINT)
        return value

    def _peek(self) -> str:
        while self.text[self.at] in " \t\n\r":
            self.at += 1
        return self.text[self.at]

    def _line(self) -> int:
        self._peek()
        start, line = self._counted
        self._counted = (self.at, line + self.text.count("\n", start, self.at))
        return self._counted[1]

    def _wrong(self, what: str) -> RuleError:
        return RuleError(
            f"{self.shown}, line {self._line()}: {what}, found {self.text[self.at : self.at + 12]!r}", _FORMAT_HINT
        )


@cache
def shipped_maps() -> Mapping[str, Path]:
    """Name -> file of every shipped map: `default`, `vllm/llama`, ..., those in circulation too."""
    folder = rules_folder()
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("maps/*.json")) + sorted(folder.glob("circulating/*.json")):
        for _, model in parse_map(read_text(path), path.name):
            found[DEFAULT_MAP if path.stem == DEFAULT_MAP else f"{path.stem}/{model}"] = path
    return {DEFAULT_MAP: found.pop(DEFAULT_MAP), **found} if DEFAULT_MAP in found else found


def shipped_for(engine: str | None, model: str | None) -> str:
    """Name of the shipped map for what a capture was found to be of; the default where there is none."""
    name = f"{engine}/{model}"
    return name if name in shipped_maps() else DEFAULT_MAP


def check_asked(engine: str | None, model: str | None, *, found_engine: str | None) -> None:
    """Refuse an engine or a model that no shipped map is for, rather than read the capture with the default one.

    Args:
        engine: as asked for; null: not.
        model: as asked for; null: not.
        found_engine: what the capture shows.

    Raises:
        RuleError: there is none; those that there are stand in the hint.
    """
    places = [name.split("/") for name in shipped_maps() if "/" in name]
    engines = sorted({place[0] for place in places})
    if engine is not None and engine not in engines:
        raise RuleError(f"no shipped map is for the engine {engine}", f"Engines: {', '.join(engines)}")
    if model is None:
        return
    serving = engine or found_engine
    if serving is None:
        raise RuleError(
            f"the capture does not show which engine runs {model}", f"Add --engine, one of {', '.join(engines)}"
        )
    if f"{serving}/{model}" not in shipped_maps():
        models = ", ".join(sorted(place[1] for place in places if place[0] == serving)) or "none"
        raise RuleError(f"no shipped map is for {serving}/{model}", f"Models of {serving}: {models}")


def load_ruleset(rules: str | None = None, engine: str | None = None, model: str | None = None) -> RuleSet:
    """The map to use.

    Args:
        rules: a shipped name, or a file in the engines' format; null: the shipped map of `engine` and `model`
            where both are given, else the default map.
        engine: which engine's maps of a file; needed only where it holds several.
        model: which model's; likewise.

    Raises:
        RuleError: no such map or file, a broken file or pattern, or a choice that is left open (they are listed).
    """
    path, name, model = _place(rules, engine, model)
    engine = None if name else engine
    chosen = _read(path, name, engine, model)
    if len(chosen) != 1:
        listed = ", ".join(f"{one.engine}/{one.model}" for one in _read(path, name, None, None))
        asked = "/".join(part or "any" for part in (engine, model))
        what = f"has no map for {asked}" if not chosen else "holds several maps"
        raise RuleError(f"{path} {what}: {listed}", "choose one with --engine and --model")
    if not name:  # a pattern of the user's that is no regex is refused here, before any trace is read
        for rule in chosen[0].rules:
            chosen[0].pattern(rule)
    return chosen[0]


def load_maps(rules: str | None = None, engine: str | None = None, model: str | None = None) -> list[RuleSet]:
    """Every map of a file that `engine` and `model` leave, without a look at the patterns: for the linter.

    Raises:
        RuleError: no such map or file, or a broken file.
    """
    path, name, model = _place(rules, engine, model)
    engine = None if name else engine
    chosen = _read(path, name, engine, model)
    if not chosen:
        listed = ", ".join(f"{one.engine}/{one.model}" for one in _read(path, name, None, None))
        raise RuleError(f"{path} has no map for {engine or 'any'}/{model or 'any'}: {listed}")
    return chosen


def _place(rules: str | None, engine: str | None, model: str | None) -> tuple[Path, str | None, str | None]:
    """The file, the shipped name if it is one, and the model to take from it."""
    shipped = shipped_maps()
    if rules is None:
        rules = f"{engine}/{model}" if engine and model else DEFAULT_MAP
        if rules not in shipped:
            raise RuleError(f"no shipped map for {rules}", f"shipped are: {', '.join(shipped)}")
        return shipped[rules], rules, rules.partition("/")[2] or None
    if rules in shipped and not Path(rules).is_file():
        return shipped[rules], rules, rules.partition("/")[2] or None
    if not Path(rules).is_file() and "." not in Path(rules).name:
        raise RuleError(f"{rules} is neither a shipped map nor a file", f"shipped are: {', '.join(shipped)}")
    return Path(rules), None, model


def _read(path: Path, name: str | None, engine: str | None, model: str | None) -> list[RuleSet]:
    text = read_text(path, name or str(path))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return [
        RuleSet(name or f"{path}:{key[0]}/{key[1]}", key[0], key[1], digest, rules)
        for key, rules in parse_map(text, name or str(path)).items()
        if engine in (None, key[0]) and model in (None, key[1])
    ]
