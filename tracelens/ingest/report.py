"""Reports that are not exported yet: `.nsys-rep` through `nsys export`, where nsys is installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tracelens.errors import DamagedError, InputError

_PATIENCE_S = 4 * 3600.0


class ExportedReport:
    """A report exported into a folder of its own, away from the user's file; `close` removes it.

    Args:
        path: the report.
        shown: as the user typed it.

    Raises:
        InputError: nsys is not installed.
        DamagedError: nsys could not export it.
    """

    def __init__(self, path: Path, shown: str) -> None:
        nsys = shutil.which("nsys")
        command = f"nsys export --type=sqlite --include-blobs=true --output=FILE.sqlite {shown}"
        if nsys is None:
            raise InputError(
                f"{shown}: a report, and nsys is not on the PATH to export it", f"Where nsys is installed: {command}"
            )
        self._folder = tempfile.TemporaryDirectory(prefix="tracelens-")
        self.path = Path(self._folder.name) / "report.sqlite"
        # Blobs hold NCCL's payloads; exporters before 2025 do not know the option.
        for blobs in (["--include-blobs=true"], []):
            run = [
                nsys,
                "export",
                "--type=sqlite",
                *blobs,
                "--force-overwrite=true",
                f"--output={self.path}",
                str(path.resolve()),
            ]
            try:
                done = subprocess.run(run, capture_output=True, timeout=_PATIENCE_S, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                self.close()
                raise DamagedError(
                    f"{shown}: nsys export did not finish ({type(error).__name__})", f"Try it by hand: {command}"
                ) from error
            if done.returncode == 0 and self.path.is_file():
                return
        self.close()
        raise DamagedError(
            f"{shown}: nsys export failed with exit code {done.returncode}", f"Try it by hand: {command}"
        )

    def close(self) -> None:
        """Removes the exported file."""
        self._folder.cleanup()
