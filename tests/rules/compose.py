"""Writes the maps of the engines: the default map, with each model's own rules behind the collectives and the copies.

    python tests/rules/compose.py

The engines' script reads whole maps only, so the shared rules stand in each of them; a test holds them equal to what
this writes.
"""

from __future__ import annotations

import json
from pathlib import Path

RULES = Path(__file__).resolve().parent.parent.parent / "rules"
ENGINES = ("vllm", "sglang", "trtllm")
FIRST_BUCKETS = ("nccl_and_custom_ar", "non-gpu-H_D_memops")


def composed(engine: str) -> str:
    """The text of an engine's map file."""
    default = list(json.loads((RULES / "maps" / "default.json").read_text())["any"]["any"].items())
    own = json.loads((RULES / "examples" / f"{engine}.json").read_text())
    buckets = {rule["pattern"]: rule["bucket"] for rule in own["rules"]}
    split = next(at for at, (_, bucket) in enumerate(default) if bucket not in FIRST_BUCKETS)
    maps = {}
    for model, patterns in own["models"].items():
        mine = [(pattern, buckets[pattern]) for pattern in patterns]
        maps[model] = dict(default[:split] + mine + default[split:])
    return json.dumps({engine: maps}, indent=2) + "\n"


if __name__ == "__main__":
    for name in ENGINES:
        (RULES / "maps" / f"{name}.json").write_text(composed(name))
