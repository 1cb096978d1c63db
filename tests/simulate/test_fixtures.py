"""The committed exports are what their script makes."""

from __future__ import annotations

import importlib.util
import sqlite3
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures"


def content(path: Path) -> list[str]:
    con = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return list(con.iterdump())
    finally:
        con.close()


def test_the_script_makes_the_committed_files(tmp_path: Path) -> None:
    found = importlib.util.spec_from_file_location("make_fixtures", FIXTURES / "make.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    made = module.make(tmp_path)
    for path in made:
        committed = FIXTURES / path.relative_to(tmp_path)
        assert content(path) == content(committed), f"{committed}: run tests/fixtures/make.py again"
        assert (path.parent / "truth.json").read_text() == (committed.parent / "truth.json").read_text()
    assert {path.relative_to(tmp_path) for path in made} == {
        path.relative_to(FIXTURES) for path in FIXTURES.rglob("*.sqlite")
    }
    assert sum(path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file()) < 2_000_000
