"""Bucket maps and the collective table: what a kernel's name says about it.

A map is an ordered list of rules, regex -> bucket, and decides only how time is grouped. The collective table is
apart from it and decides what counts as an operation between ranks, so that no choice of map changes a wait.
"""

from tracelens.ruleset.collectives import Collective, CollectiveTable, load_collectives
from tracelens.ruleset.detection import Detection, detect_engine
from tracelens.ruleset.maps import (
    UNMATCHED_BUCKET,
    Rule,
    RuleSet,
    check_asked,
    load_maps,
    load_ruleset,
    parse_map,
    shipped_for,
    shipped_maps,
)

__all__ = [
    "UNMATCHED_BUCKET",
    "Collective",
    "CollectiveTable",
    "Detection",
    "Rule",
    "RuleSet",
    "check_asked",
    "detect_engine",
    "load_collectives",
    "load_maps",
    "load_ruleset",
    "parse_map",
    "shipped_for",
    "shipped_maps",
]
