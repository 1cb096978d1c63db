"""README's commands do what it says: each is run as it stands, from a fresh environment on.

No network is used: the fresh environment finds the packages of the one that runs the tests. Where hatchling is there,
the distribution is really built and installed; else the checkout is put in its place.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from tests.running import tracelens

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("tracelens", "rules", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml")


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)


def marked(name: str) -> list[list[str]]:
    """The words of the commands in the block under `<!-- name -->`."""
    (block,) = re.findall(rf"<!-- {name} -->\n```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return [shlex.split(part) for part in block.strip().split(" && ")]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the distribution is made of, in which the demo's line has been run."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def _environment(folder: Path) -> dict[str, str]:
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return {
        **os.environ,
        "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("site-packages")),
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def _put_in_place(folder: Path) -> None:
    """What `pip install .` leaves: the package on the path, and its command."""
    (packages,) = (folder / ".venv" / "lib").glob("python*/site-packages")
    (packages / "checkout.pth").write_text(f"{folder}\n")
    command = folder / ".venv" / "bin" / "tracelens"
    python = folder / ".venv" / "bin" / "python"
    command.write_text(f"#!{python}\nfrom tracelens.cli import main\nmain()\n")
    command.chmod(0o755)


def test_demo_runs_from_a_fresh_environment(checkout: Path) -> None:
    make, install, demo = marked("demo")
    assert (make[1:], install[1:], demo[1:]) == (["-m", "venv", ".venv"], ["install", "-q", "."], ["demo"])
    environment = _environment(checkout)

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=checkout, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    run(*make)
    if importlib.util.find_spec("hatchling"):
        run(*install, "--no-index", "--no-deps", "--no-build-isolation", "--force-reinstall")
    else:
        _put_in_place(checkout)
    told = run(str(checkout / demo[0]), *demo[1:])
    assert "Rank 5 is late" in told
    page = (checkout / "tracelens-demo" / "report.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "Rank 5 is late" in page


def test_commands_on_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands after the demo, in a folder that holds `tp8.sqlite`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert tracelens("simulate", "--tp", "8", "--layers", "2", "--steps", "40", "-o", ".", cwd=tmp_path).code == 0
    lines = [line for block in blocks() for line in block.splitlines() if line.startswith(".venv/bin/tracelens ")]
    assert len(lines) >= 3
    for line in lines:
        words = shlex.split(line, comments=True)
        ran = tracelens(*words[1:], cwd=tmp_path)
        assert ran.code == 0, (line, ran.err)
        assert ran.out


def test_every_command_named_in_prose_exists() -> None:
    from tracelens.cli.app import COMMANDS

    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for name in re.findall(r"`tracelens ([a-z]+)[ `]", page.read_text()):
            assert name in COMMANDS, f"{page.name}: tracelens {name}"


def test_line_that_runs_the_tests() -> None:
    """The whole suite cannot run inside itself; what the line names must be there."""
    make, install, check = marked("tests")
    assert make[1:] == ["-m", "venv", ".venv"]
    extras = re.fullmatch(r"\.\[(.+)\]", install[-1])
    assert extras
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras[1].split(",")) <= set(declared)
    assert check[0] == ".venv/bin/python"
    assert (ROOT / check[1]).is_file()
