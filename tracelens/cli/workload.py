"""The options that describe a model and a machine to the scaling model, typed once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tracelens.analyses.scaling_presets import Gpu, ModelShape

_PANEL = "The model and the machine"

Preset = Annotated[
    str | None,
    typer.Option("--model-preset", metavar="NAME", help="A published shape, e.g. llama-3-8b.", rich_help_panel=_PANEL),
]
GpuName = Annotated[
    str | None,
    typer.Option("--gpu", metavar="NAME", help="GPU by name, e.g. h100-sxm (the default).", rich_help_panel=_PANEL),
]
StreamedGb = Annotated[
    float | None,
    typer.Option(help="GB (10^9 bytes) that a decode step streams at TP 1.", rich_help_panel=_PANEL),
]
HbmTbS = Annotated[float | None, typer.Option(help="Memory bandwidth, TB/s (10^12).", rich_help_panel=_PANEL)]
NvlinkGbS = Annotated[
    float | None,
    typer.Option(help="GPU-to-GPU bandwidth, GB/s (10^9), both directions together.", rich_help_panel=_PANEL),
]
Layers = Annotated[int | None, typer.Option(help="Layers; each holds two all-reduces.", rich_help_panel=_PANEL)]
Width = Annotated[int | None, typer.Option(help="Model width (hidden size).", rich_help_panel=_PANEL)]
DtypeBytes = Annotated[
    int | None, typer.Option(help="Bytes per element of the residual that is all-reduced.", rich_help_panel=_PANEL)
]
KvHeads = Annotated[
    int | None, typer.Option(help="Key/value heads; beyond them they replicate.", rich_help_panel=_PANEL)
]
Tokens = Annotated[
    int | None, typer.Option(help="Tokens in the step: the batch size of a decode step.", rich_help_panel=_PANEL)
]

DEFAULT_GPU = "h100-sxm"


@dataclass(frozen=True)
class Workload:
    """Options as given, before presets fill the holes."""

    model_preset: str | None
    gpu: str | None
    streamed_gb: float | None
    hbm_tb_s: float | None
    nvlink_gb_s: float | None
    layers: int | None
    width: int | None
    dtype_bytes: int | None
    kv_heads: int | None

    def shape(self) -> ModelShape | None:
        """The preset with every given figure in its place; null where neither preset nor layers were given.

        Raises:
            UsageError: unknown preset, or a shape without width.
        """
        from dataclasses import replace

        from tracelens.analyses.scaling_presets import ModelShape, model_shape

        if self.model_preset is None and self.layers is None:
            return None
        base = model_shape(self.model_preset) if self.model_preset else ModelShape("custom", 1, 0)
        given: dict[str, Any] = {
            "layers": self.layers,
            "width": self.width,
            "dtype_bytes": self.dtype_bytes,
            "kv_heads": self.kv_heads,
            "streamed_bytes": None if self.streamed_gb is None else self.streamed_gb * 1e9,
        }
        return replace(base, **{name: value for name, value in given.items() if value is not None})

    def machine(self) -> Gpu:
        """The named GPU, H100 SXM by default, with every given figure in its place.

        Raises:
            UsageError: unknown GPU.
        """
        from dataclasses import replace

        from tracelens.analyses.scaling_presets import gpu

        base = gpu(self.gpu or DEFAULT_GPU)
        given: dict[str, Any] = {
            "hbm_bytes_per_s": None if self.hbm_tb_s is None else self.hbm_tb_s * 1e12,
            "link_bytes_per_s": None if self.nvlink_gb_s is None else self.nvlink_gb_s * 1e9,
        }
        return replace(base, **{name: value for name, value in given.items() if value is not None})
