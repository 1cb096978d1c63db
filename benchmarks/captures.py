"""Captures to measure on: as many kernels, ranks and files as wanted, simulated, in nsys's own format."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tracelens.simulate import CaptureSpec, simulate, write

_BLOCK_STEPS = 100


def count(text: str) -> int:
    """`2000`, `300k` or `10M` as a number.

    Raises:
        ValueError: it is none.
    """
    units = {"k": 10**3, "M": 10**6}
    return int(float(text[:-1]) * units[text[-1]]) if text[-1:] in units else int(text)


@dataclass(frozen=True)
class Shape:
    """What a capture is like.

    Attributes:
        kernels: about how many.
        ranks: tensor-parallel size.
        launch: graph or eager.
        files: `one` for all ranks, or one `each`.
        ranges: about how many NVTX rows beside those of the engine's steps; they stand around eager launches.
        seed: of the random generator.
    """

    kernels: int = 1_000_000
    ranks: int = 8
    launch: str = "graph"
    files: str = "one"
    ranges: int = 0
    seed: int = 0

    def make(self, folder: Path) -> list[Path]:
        """Writes the capture into a new folder; its files.

        Raises:
            SystemExit: ranges are wanted, and nothing to put them around.
        """
        if self.ranges and self.launch != "eager":
            raise SystemExit("NVTX rows stand around launches, of which a graph has one a step: choose --launch eager")
        # Four layers where there are many ranks: steps enough to find them, without more kernels.
        spec = CaptureSpec(tp=self.ranks, layers=32 if self.ranks <= 64 else 4, launch=self.launch, seed=self.seed)
        of_a_step = int(simulate(replace(spec, steps=2)).truth.kernel_rows.sum()) / 2
        steps = max(2, round(self.kernels / of_a_step))
        repeat = max(1, steps // _BLOCK_STEPS)
        inner = round(self.ranges / (steps * of_a_step))
        whole = replace(spec, steps=round(steps / repeat), repeat=repeat, nvtx_inner=inner)
        return write(whole, folder, one_file=self.files == "one", truth=False)
