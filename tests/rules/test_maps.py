"""The shipped maps keep what their examples promise, in every spelling, and in the engines' own script."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tracelens.ruleset import load_collectives, load_ruleset, shipped_maps
from tracelens.ruleset.corpus import example_names

RULES = Path(__file__).resolve().parents[2] / "rules"
PUBLIC_NAMES = Path(__file__).resolve().parents[3] / "shared" / "kernels" / "names.jsonl"
OURS = [name for name in shipped_maps() if "_engine/" not in name]
COLLECTIVE_BUCKET = "nccl_and_custom_ar"

BUCKET_OF_LABEL = {
    "attention": "attn",
    "memcpy": "non-gpu-H_D_memops",
    "memset": "non-gpu-H_D_memops",
    "moe_routing": "moe",
    "triton_fused": "triton_kernel",
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p", "collective_other"), COLLECTIVE_BUCKET),
}  # fmt: skip
OPERATIONS_OF_LABEL = {
    "all_to_all": {"all_to_all", "barrier"},
    "p2p": {"p2p", "send_recv"},
    "collective_other": {"unknown"},
}


def examples(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RULES / "examples" / file).read_text())
    return found


def own_rules(name: str) -> list[dict[str, Any]]:
    """The examples of one shipped map: those of the default, or of the rules that are its own."""
    if name == "default":
        rules: list[dict[str, Any]] = examples("default.json")["rules"]
        return rules
    engine, model = name.split("/")
    held = examples(f"{engine}.json")
    return [rule for rule in held["rules"] if rule["pattern"] in held["models"][model]]


def torch_spelling(name: str) -> str:
    """A name of nsys as the torch profiler writes it."""
    name = re.sub(r"\((?:int|long)\)(-?\d+)", r"\1", name)
    name = re.sub(r"\(unsigned (?:int|char|short)\)(\d+)", r"\1u", name)
    name = re.sub(r"\(unsigned long\)(\d+)", r"\1ul", name)
    name = name.replace("(bool)0", "false").replace("(bool)1", "true").replace("<unnamed>", "(anonymous namespace)")
    return re.sub(r" (\*+)", r"\1", name).replace(">>", "> >")


def test_every_rule_of_the_default_map_has_examples_in_its_order() -> None:
    shown = [(rule["pattern"], rule["bucket"]) for rule in examples("default.json")["rules"]]
    assert shown == [(rule.pattern, rule.bucket) for rule in load_ruleset().rules]


@pytest.mark.parametrize("name", OURS)
def test_examples_hit_their_rule_first_and_near_misses_do_not(name: str) -> None:
    ruleset = load_ruleset(name)
    at = {rule.pattern: rule.position for rule in ruleset.rules}
    wrong = []
    for rule in own_rules(name):
        assert rule["hits"], rule["pattern"]
        for hit, position in zip(rule["hits"], ruleset.classify(rule["hits"]), strict=True):
            if position != at[rule["pattern"]]:
                wrong.append((hit, rule["pattern"], position))
        for miss in rule["misses"]:
            (position,) = ruleset.classify([miss["name"]])
            if position == at[rule["pattern"]] or ruleset.bucket(position) != miss["bucket"]:
                wrong.append((miss["name"], miss["bucket"], ruleset.bucket(position)))
    assert wrong == []


def test_all_but_the_last_rule_have_a_near_miss() -> None:
    assert [rule["pattern"] for rule in examples("default.json")["rules"] if not rule["misses"]] == [".*"]


@pytest.mark.parametrize("name", list(shipped_maps()))
def test_the_engines_script_gives_the_same_answer(name: str) -> None:
    """That script takes the first key, in file order, whose regex `search`es the name; here with Python's own `re`."""
    ruleset = load_ruleset(name)
    held = json.loads(shipped_maps()[name].read_text())[ruleset.engine][ruleset.model]
    names = example_names()
    expected = [next((bucket for regex, bucket in held.items() if re.search(regex, one)), None) for one in names]
    assert [ruleset.bucket(at) for at in ruleset.classify(names)] == expected


@pytest.mark.parametrize("name", OURS)
def test_collectives_come_first_and_stay_together(name: str) -> None:
    buckets = [rule.bucket for rule in load_ruleset(name).rules]
    assert buckets.index(COLLECTIVE_BUCKET) == 0
    assert COLLECTIVE_BUCKET not in buckets[buckets.count(COLLECTIVE_BUCKET) :]
    assert buckets[-1] == "misc"


@pytest.mark.parametrize("name", OURS)
def test_map_and_table_agree_on_what_a_collective_is(name: str) -> None:
    ruleset, table = load_ruleset(name), load_collectives()
    names = [one for one in example_names() if not one.startswith(("[CUDA", "Memcpy"))]
    inside = {
        one for one, at in zip(names, ruleset.classify(names), strict=True) if ruleset.bucket(at) == COLLECTIVE_BUCKET
    }
    assert inside == {one for one in names if table.classify(one) is not None}


def test_both_profilers_spellings_give_one_bucket_and_one_operation() -> None:
    ruleset, table = load_ruleset(), load_collectives()
    names = list(example_names())
    if PUBLIC_NAMES.is_file():
        names += [json.loads(line)["name"] for line in PUBLIC_NAMES.read_text().splitlines()]
    others = [torch_spelling(name) for name in names]
    assert sum(name != other for name, other in zip(names, others, strict=True)) > 60
    wrong = [
        (name, other)
        for name, other, first, second in zip(
            names, others, ruleset.classify(names), ruleset.classify(others), strict=True
        )
        if first != second or table.classify(name) != table.classify(other)
    ]
    assert wrong == []


def test_names_cut_off_keep_their_collective() -> None:
    """A viewer shortens names; the operation is told by the function, which stands in front of what is cut."""
    table = load_collectives()
    for name in (
        "void vllm::cross_device_reduce_1stage<__half, (int)2>(vllm::RankData *)",
        "void deep_ep::intranode::combine<x, 8>(y)",
    ):
        whole = table.classify(name)
        assert whole is not None
        for length in range(name.index("<"), len(name)):
            short = table.classify(name[:length])
            assert short is not None
            assert (short.operation, short.implementation) == (whole.operation, whole.implementation)
            assert short.ranks in (None, whole.ranks)


def test_engine_maps_are_composed_of_the_default_and_their_own() -> None:
    spec = importlib.util.spec_from_file_location("compose", Path(__file__).with_name("compose.py"))
    assert spec is not None
    assert spec.loader is not None
    compose = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compose)
    for engine in compose.ENGINES:
        stale = f"rules/maps/{engine}.json is stale: python tests/rules/compose.py"
        assert (RULES / "maps" / f"{engine}.json").read_text() == compose.composed(engine), stale


def test_maps_in_circulation_are_untouched() -> None:
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in (RULES / "circulating").iterdir()
    }
    assert digests == {"sglang_engine.json": "23d5010e2fc3", "vllm_engine.json": "091b5dd18ebf"}


def test_the_readme_names_every_bucket_operation_and_implementation() -> None:
    text = (RULES / "README.md").read_text()
    words = {rule.bucket for name in OURS for rule in load_ruleset(name).rules}
    words |= {family["implementation"] for family in json.loads((RULES / "collectives.json").read_text())["families"]}
    assert sorted(word for word in words if f"`{word}`" not in text) == []


@pytest.mark.skipif(not PUBLIC_NAMES.is_file(), reason="no list of public kernel names beside this checkout")
def test_public_names() -> None:
    """Labelled names of public traces: no collective is missed or invented, few names are left over or misplaced."""
    rows = [json.loads(line) for line in PUBLIC_NAMES.read_text().splitlines()]
    ruleset, table = load_ruleset(), load_collectives()
    taken = ruleset.classify([row["name"] for row in rows])
    missed, placed, left = [], 0, 0
    for row, at in zip(rows, taken, strict=True):
        label = row["label"]
        found = table.classify(row["name"])
        operations = OPERATIONS_OF_LABEL.get(label, {label})
        if (found is not None) != row["barrier"] or (
            found and (found.operation not in operations or found.fused != row["fused"])
        ):
            missed.append((row["name"], label, found))
        placed += ruleset.bucket(at) == BUCKET_OF_LABEL.get(label, "misc" if label == "other" else label)
        left += label != "other" and at == ruleset.catch_all
    assert missed == []
    assert sum(row["barrier"] for row in rows) == 64
    assert left < 0.03 * sum(row["label"] != "other" for row in rows)
    assert placed >= 0.95 * len(rows)
