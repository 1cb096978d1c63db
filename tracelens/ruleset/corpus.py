"""Example names that ship beside the maps: what each rule must hit first, and what it must not."""

from __future__ import annotations

import json
from functools import cache

from tracelens.ruleset.shelf import read_text, rules_folder


@cache
def example_names() -> tuple[str, ...]:
    """Every distinct name of the shipped examples, sorted."""
    names: set[str] = set()
    for path in sorted((rules_folder() / "examples").glob("*.json")):
        for rule in json.loads(read_text(path))["rules"]:
            names.update(rule["hits"])
            names.update(miss["name"] for miss in rule["misses"])
    return tuple(sorted(names))
