"""Model shapes and GPUs by name, and what a decode step streams from memory, computed from the shape.

The data lies in `rules/models.json` and `rules/gpus.json`, each entry with its source. A decode step reads every
weight that takes part in it once: all layers, the final norm and the LM head. The input embedding is gathered (one row
a token), so it is not streamed. Of a mixture of experts only the experts that one token activates are counted, which
holds at batch 1; a larger batch touches more of them, so its floor is higher than this one.

`-fp8` after a name means 8-bit weights in the layers' matrices, 16-bit LM head, norms, biases and expert routers, which
is how the published 8-bit checkpoints are stored. The residual that an all-reduce carries stays 16-bit.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tracelens.errors import UsageError
from tracelens.ruleset.shelf import read_text, rules_folder

_BF16_BYTES = 2
_FP8_BYTES = 1


@dataclass(frozen=True)
class ModelShape:
    """What the scaling model needs to know of a model.

    Attributes:
        name: preset name, or `custom`.
        layers: transformer layers; a layer holds two all-reduces.
        width: model width d, elements of the residual of one token; 0 when not known: messages then have no size, and
            no bandwidth term.
        dtype_bytes: bytes per element of the residual that an all-reduce carries.
        streamed_bytes: bytes that one decode step reads from memory at TP 1; null when not known.
        kv_heads: key/value heads, null when not known; beyond them a larger TP size replicates.
        heads: query heads, null when not known; engines refuse a TP size that does not divide them.
        experts: experts of a layer; 0 for a dense model.
        source: where the shape is published.
    """

    name: str
    layers: int
    width: int
    dtype_bytes: int = _BF16_BYTES
    streamed_bytes: float | None = None
    kv_heads: int | None = None
    heads: int | None = None
    experts: int = 0
    source: str = ""

    @property
    def all_reduces(self) -> int:
        """All-reduces in one forward pass: two a layer."""
        return 2 * self.layers


@dataclass(frozen=True)
class Gpu:
    """Peak figures of one GPU.

    Attributes:
        name: as in `rules/gpus.json`, or `custom`.
        hbm_bytes_per_s: memory bandwidth.
        link_bytes_per_s: GPU-to-GPU bandwidth, both directions together, as marketed.
        arch: CUDA compute capability, `9.0`; empty when not known.
        source: where the figures are published.
    """

    name: str
    hbm_bytes_per_s: float
    link_bytes_per_s: float
    arch: str = ""
    source: str = ""


@cache
def _read(file: str, key: str) -> Mapping[str, Mapping[str, Any]]:
    data: dict[str, Any] = json.loads(read_text(rules_folder() / file))
    entries: dict[str, dict[str, Any]] = data[key]
    return entries


def model_names() -> list[str]:
    """Every name that `model_shape` knows, the `-fp8` ones included, sorted."""
    entries = _read("models.json", "models")
    return sorted(set(entries) | {f"{name}-fp8" for name, shape in entries.items() if "native_weights" not in shape})


def gpu_names() -> list[str]:
    """Every name that `gpu` knows, sorted."""
    return sorted(_read("gpus.json", "gpus"))


def _unknown(kind: str, name: str, known: list[str]) -> UsageError:
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else f"known: {', '.join(known)}"
    return UsageError(f"no {kind} named {name!r}", hint)


def gpu(name: str) -> Gpu:
    """The GPU of that name.

    Raises:
        UsageError: there is none; the hint names the closest ones.
    """
    entries = _read("gpus.json", "gpus")
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    if key not in entries:
        raise _unknown("GPU", name, gpu_names())
    entry = entries[key]
    return Gpu(key, entry["hbm_tb_s"] * 1e12, entry["link_gb_s"] * 1e9, entry["arch"], entry["source"])


def model_shape(name: str) -> ModelShape:
    """The model of that name; `-fp8` and `-bf16` choose the weights' format (default: the published one).

    Raises:
        UsageError: there is none; the hint names the closest ones.
    """
    entries = _read("models.json", "models")
    key = _plain(name)
    base, weights = key, None
    for suffix in ("fp8", "bf16"):
        if key not in entries and key.endswith(f"-{suffix}"):
            base, weights = key.removesuffix(f"-{suffix}"), suffix
    if base not in entries:
        raise _unknown("model preset", name, model_names())
    entry = entries[base]
    weights = weights or entry.get("native_weights", "bf16")
    matrix, rest = streamed_parameters(entry)
    layer_bytes = _FP8_BYTES if weights == "fp8" else _BF16_BYTES
    return ModelShape(
        name=key,
        layers=entry["layers"],
        width=entry["width"],
        streamed_bytes=float(matrix * layer_bytes + rest * _BF16_BYTES),
        kv_heads=entry["kv_heads"],
        heads=entry["heads"],
        experts=entry.get("experts", 0),
        source=entry["source"],
    )


def _plain(name: str) -> str:
    """A model's name as the presets write it: `meta-llama/Meta-Llama-3-8B-Instruct` is `llama-3-8b`."""
    key = name.strip().rpartition("/")[2].lower().replace("_", "-").removeprefix("meta-")
    for word in ("-instruct", "-chat", "-base"):
        key = key.replace(word, "")
    return key


def streamed_parameters(entry: Mapping[str, Any]) -> tuple[int, int]:
    """Parameters that one decode step reads: (those in the layers' matrices, all others).

    The others are norms, biases, expert routers and the LM head, which stay 16-bit in 8-bit checkpoints.
    """
    width, layers = entry["width"], entry["layers"]
    attention, small = _attention(entry)
    experts = entry.get("experts", 0)
    dense_layers = entry.get("dense_layers", 0) if experts else layers
    matrix = layers * attention + dense_layers * 3 * width * entry.get("ffn_width", 0)
    if experts:
        active = entry["experts_per_token"] + entry.get("shared_experts", 0)
        matrix += (layers - dense_layers) * active * 3 * width * entry["expert_width"]
    routers = (layers - dense_layers) * experts * width
    norms = layers * (2 * width + small) + width
    return matrix, norms + routers + entry["vocab"] * width


def _attention(entry: Mapping[str, Any]) -> tuple[int, int]:
    """Parameters of one layer's attention: (matrices, biases and inner norms)."""
    width, heads = entry["width"], entry["heads"]
    latent = entry.get("latent_attention")
    if latent:
        query_dim = heads * (latent["nope_dim"] + latent["rope_dim"])
        query = latent["q_rank"] * (width + query_dim) if latent["q_rank"] else width * query_dim
        down = width * (latent["kv_rank"] + latent["rope_dim"])
        up = latent["kv_rank"] * heads * (latent["nope_dim"] + latent["value_dim"])
        out = heads * latent["value_dim"] * width
        return query + down + up + out, latent["q_rank"] + latent["kv_rank"]
    head_dim, kv_heads = entry["head_dim"], entry["kv_heads"]
    matrices = width * head_dim * (2 * heads + 2 * kv_heads)
    biases = head_dim * (heads + 2 * kv_heads) if entry.get("qkv_bias") else 0
    return matrices, biases + (2 * head_dim if entry.get("qk_norm") else 0)
