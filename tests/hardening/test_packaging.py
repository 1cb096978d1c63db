"""The wheel holds all it needs and nothing else; installed alone, and installed from a checkout, it answers."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CAPTURE = ROOT / "tests" / "fixtures" / "decode_tp2" / "tp2.sqlite"
needs_hatchling = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("hatchling", "pip")),
    reason="the build backend, hatchling, and pip are needed; both come with the extra `dev`",
)


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def ran(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False, env=clean_environment()
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a clone holds, so that nothing is built inside this one."""
    folder = tmp_path_factory.mktemp("packaging") / "checkout"
    folder.mkdir()
    for name in ("tracelens", "rules"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "cli.py"):
        shutil.copyfile(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    ran(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", checkout.parent / "dist", cwd=checkout)
    (built,) = (checkout.parent / "dist").glob("*.whl")
    return built


def environment(folder: Path) -> Path:
    """A fresh environment that sees the packages of this one, so that nothing is downloaded; returns its python."""
    ran(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    (site,) = folder.glob("lib/python*/site-packages")
    outer = dict.fromkeys([sysconfig.get_paths()["purelib"], *(path for path in sys.path if "site-packages" in path)])
    (site / "outer.pth").write_text("\n".join(outer) + "\n")
    return folder / "bin" / "python"


def installed(python: Path, *what: str | Path) -> Path:
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--force-reinstall")
    ran(sys.executable, "-m", "pip", "--python", python, "install", *options, *what, cwd=python.parent)
    return python.parent / "tracelens"


@pytest.fixture(scope="module")
def alone(wheel: Path) -> Path:
    """The command of the wheel, installed alone."""
    return installed(environment(wheel.parent / "alone"), wheel)


@needs_hatchling
def test_the_wheel_holds_what_it_needs_and_nothing_else(wheel: Path, checkout: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    code = {str(path.relative_to(checkout)) for path in (checkout / "tracelens").rglob("*") if path.is_file()}
    rules = {f"tracelens/{path.relative_to(checkout)}" for path in (checkout / "rules").rglob("*") if path.is_file()}
    assert code <= names
    assert rules <= names
    others = {name.split("/")[0] for name in names - code - rules}
    assert all(name.endswith(".dist-info") for name in others)


@needs_hatchling
def test_the_wheel_installed_alone_answers(alone: Path, tmp_path: Path) -> None:
    code = "import tracelens; print(tracelens.__file__)"
    assert str(alone.parents[1]) in ran(alone.parent / "python", "-c", code, cwd=tmp_path)
    assert "gemm" in ran(alone, "bucket", CAPTURE, cwd=tmp_path)
    assert "default" in ran(alone, "rules", "list", cwd=tmp_path)
    assert ran(alone, "--version", cwd=tmp_path).startswith("tracelens ")


@needs_hatchling
def test_installed_from_a_checkout_to_be_edited(checkout: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("editables") is None:
        pytest.skip("hatchling needs the package `editables` for this")
    command = installed(environment(tmp_path / "edited"), "-e", checkout)
    code = "import tracelens; print(tracelens.__file__)"
    assert str(checkout) in ran(command.parent / "python", "-c", code, cwd=tmp_path)
    assert "gemm" in ran(command, "bucket", CAPTURE, cwd=tmp_path)
    assert "default" in ran(command, "rules", "list", cwd=tmp_path)


def test_from_a_checkout_without_installing(checkout: Path) -> None:
    assert "gemm" in ran(sys.executable, checkout / "cli.py", "bucket", CAPTURE, cwd=checkout)


def test_what_is_declared_is_what_runs() -> None:
    """Every lower bound is met by the versions that these tests run with, and every import is declared."""
    import tomllib
    from importlib.metadata import version

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in project["dependencies"]:
        name, _, bound = line.partition(">=")
        assert bound, line
        have = [int(part) for part in version(name).split(".")[:2] if part.isdigit()]
        assert have >= [int(part) for part in bound.split(".")[:2]], line
    assert project["requires-python"] == ">=3.11"
    assert project["scripts"] == {"tracelens": "tracelens.cli:main"}


def test_import_contracts() -> None:
    if importlib.util.find_spec("importlinter") is None:
        pytest.skip("import-linter comes with the extra `dev`")
    code = "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])"
    assert " 0 broken" in ran(sys.executable, "-c", code, cwd=ROOT)
