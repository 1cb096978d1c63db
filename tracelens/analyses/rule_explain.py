"""Why a kernel name lands where it does; and the maps themselves, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import polars as pl

from tracelens.frames import Column, Result, Schema
from tracelens.ruleset import RuleSet, load_collectives, load_ruleset, shipped_maps


class RuleExplainResult(Result):
    """Bucket and collective of kernel names."""

    command: ClassVar[str] = "rules explain"
    schemas: ClassVar = {
        "explain": Schema(
            "one kernel name, as given",
            Column("kernel_name", pl.String, "The name"),
            Column("bucket", pl.String, "Its bucket"),
            Column("pattern", pl.String, "The first pattern found in it; null where none is"),
            Column("position", pl.Int64, "That rule's place in the map, from 0"),
            Column("collective", pl.String, "The operation between ranks that it is (part of); null for other kernels"),
            Column("implementation", pl.String, "How the operation is carried out; null for other kernels"),
            Column("fused", pl.Boolean, "Whether it computes as well; null for other kernels"),
            Column("ranks", pl.Int64, "Ranks in its template arguments; null where they do not say"),
        )
    }


class RuleListResult(Result):
    """The shipped maps."""

    command: ClassVar[str] = "rules list"
    schemas: ClassVar = {
        "maps": Schema(
            "one shipped map",
            Column("map", pl.String, "Name for --rules"),
            Column("engine", pl.String, "Engine key in its file"),
            Column("model", pl.String, "Model key in its file"),
            Column("rule_count", pl.Int64, "Rules", "count"),
            Column("bucket_count", pl.Int64, "Buckets", "count"),
            Column("file", pl.String, "Its file below rules/"),
            Column("sha256", pl.String, "Digest of that file"),
        )
    }


class RuleShowResult(Result):
    """The rules of one map."""

    command: ClassVar[str] = "rules show"
    schemas: ClassVar = {
        "rules": Schema(
            "one rule, in the order in which they are tried",
            Column("map", pl.String, "The map"),
            Column("position", pl.Int64, "Place in the map, from 0"),
            Column("pattern", pl.String, "Regex, searched in the demangled name"),
            Column("bucket", pl.String, "Bucket of the names that it takes first"),
        )
    }


def explain_names(ruleset: RuleSet, names: Sequence[str]) -> RuleExplainResult:
    """One row per name, in the order given.

    Raises:
        RuleError: a pattern takes too long.
    """
    table = load_collectives()
    rows = []
    for name, at in zip(names, ruleset.classify(names), strict=True):
        collective = table.classify(name)
        rows.append(
            {
                "kernel_name": name,
                "bucket": ruleset.bucket(at),
                "pattern": None if at is None else ruleset.rules[at].pattern,
                "position": at,
                "collective": collective and collective.operation,
                "implementation": collective and collective.implementation,
                "fused": collective and collective.fused,
                "ranks": collective and collective.ranks,
            }
        )
    schema = RuleExplainResult.schemas["explain"]
    return RuleExplainResult({"explain": schema.frame(rows)}, (), _provenance(ruleset))


def list_maps() -> RuleListResult:
    """One row per shipped map, the default first."""
    rows = []
    for name, path in shipped_maps().items():
        one = load_ruleset(name)
        rows.append(
            {
                "map": name,
                "engine": one.engine,
                "model": one.model,
                "rule_count": len(one.rules),
                "bucket_count": len(one.buckets),
                "file": f"{path.parent.name}/{path.name}",
                "sha256": one.sha256,
            }
        )
    return RuleListResult({"maps": RuleListResult.schemas["maps"].frame(rows)})


def show_map(ruleset: RuleSet) -> RuleShowResult:
    """One row per rule."""
    rows = [
        {"map": ruleset.name, "position": rule.position, "pattern": rule.pattern, "bucket": rule.bucket}
        for rule in ruleset.rules
    ]
    return RuleShowResult({"rules": RuleShowResult.schemas["rules"].frame(rows)}, (), _provenance(ruleset))


def _provenance(ruleset: RuleSet) -> dict[str, object]:
    return {"rules": ruleset.name, "rules_sha256": ruleset.sha256, "collectives_sha256": load_collectives().sha256}
