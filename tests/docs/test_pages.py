"""The pages that repeat what the program knows are up to date, and no page points nowhere."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest
import typer

from docs import generate
from tests.running import tracelens
from tracelens.cli.app import build

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*DOCS.glob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "rules/README.md"))]
)


def assert_up_to_date(name: str, now: str) -> None:
    page = (DOCS / name).read_text()
    difference = difflib.unified_diff(
        page.splitlines(), now.splitlines(), f"docs/{name}", "as the program has it", n=1, lineterm=""
    )
    assert page == now, "run `python docs/generate.py` and read what it changes\n" + "\n".join(list(difference)[:60])


@pytest.mark.parametrize("name", ["cli.md", "schema.md"])
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert_up_to_date(name, generate.pages()[name])


@pytest.mark.parametrize("name", generate.PAGES_WITH_CONSOLES)
def test_commands_of_a_page_print_what_it_shows(name: str) -> None:
    with generate.plain_surroundings() as folder:
        assert_up_to_date(name, generate.with_outputs((DOCS / name).read_text(), folder))


def _commands(command: object, path: str = "tracelens") -> list[tuple[str, object]]:
    found = []
    for name, one in command.commands.items():  # type: ignore[attr-defined]
        found += _commands(one, f"{path} {name}") if hasattr(one, "commands") else [(f"{path} {name}", one)]
    return found


def test_every_command_and_option_stands_in_the_reference() -> None:
    """Independent of how the page is made: each option of each command in its section, or among the shared ones."""
    page = (DOCS / "cli.md").read_text()
    sections = {part.split("\n", 1)[0]: part for part in page.split("\n## ")}
    shared = sections["Options of every command over a capture"]
    commands = _commands(typer.main.get_command(build()))
    assert len(commands) > 15
    for path, command in commands:
        section = sections[path]
        everywhere = section + (shared if "#options-of-every-command" in section else "")
        assert command.help  # type: ignore[attr-defined]
        for option in command.params:  # type: ignore[attr-defined]
            assert option.help or option.name == "help", f"{path} {option.name} has no help"
            for name in option.opts if option.param_type_name == "option" else ():
                assert name == "--help" or re.search(rf"{re.escape(name)}\b", everywhere), f"{path} {name}"


def test_schema_page_holds_every_table_and_column_of_sql() -> None:
    page = (DOCS / "schema.md").read_text().split("## Tables of each command's answer")[0]
    ran = tracelens("sql", "--schema", "--format", "json")
    for row in ran.json["schema"]:
        section = page.split(f"### {row['table']}\n")[1].split("\n### ")[0]
        assert row["table_meaning"]
        assert row["table_meaning"] in section
        assert row["meaning"], f"{row['table']}.{row['column']} has no meaning"
        assert f"| `{row['column']}` | {row['dtype']} |" in section


def test_every_column_of_an_answer_has_a_meaning() -> None:
    answers = generate._answers()
    assert set(answers) >= {
        "info",
        "bucket",
        "steps",
        "gaps",
        "collectives",
        "skew",
        "compare",
        "predict",
        "scaling",
        "ladder",
    }
    for command, schemas in answers.items():
        for table, schema in schemas.items():
            assert schema.row, (command, table)
            assert all(column.meaning for column in schema.columns), (command, table)


def test_notices_that_the_limits_name_exist() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "tracelens").rglob("*.py"))
    named = re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", (DOCS / "limits.md").read_text())
    assert len(named) > 10
    assert [code for code in named if f'"{code}"' not in sources] == []


def _anchors(page: str) -> set[str]:
    prose = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    return {generate._anchor(title.strip()) for title in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name if path.parent != ROOT / "rules" else "rules")
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        page = path.parent / name if name else path
        assert page.exists(), f"{path.name} points to {target}"
        if anchor:
            assert anchor in _anchors(page.read_text()), f"{path.name} points to {target}"


def test_the_index_names_every_page() -> None:
    index = (DOCS / "README.md").read_text()
    assert [path.name for path in DOCS.glob("*.md") if path.name != "README.md" and f"({path.name})" not in index] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name if path.parent != ROOT / "rules" else "rules")
def test_pages_are_about_the_project_alone(path: Path) -> None:
    assert not re.search(r"/work/|/home/|/root/|/tmp/|shared/", path.read_text())


@pytest.mark.parametrize(
    ("show", "kept"),
    [
        ("", ["a", "b 1", "c", "b 2", "e"]),
        ("none", []),
        ("1-2", ["a", "b 1", "..."]),
        ('"b"+2', ["...", "b 1", "c", "..."]),
        ('1-1, "b 2"+2', ["a", "...", "b 2", "e"]),
    ],
)
def test_selected_lines(show: str, kept: list[str]) -> None:
    assert generate.selected(["a", "b 1", "c", "b 2", "e"], show) == kept


def test_what_a_page_claims_and_the_program_does_not_do() -> None:
    with pytest.raises(RuntimeError, match="no line of the output holds 'z'"):
        generate.selected(["a"], '"z"+1')
    with generate.plain_surroundings() as folder:
        page = "```console\n$ tracelens rules show nonsense\n```\n"
        with pytest.raises(RuntimeError, match="ended with 2, not 0"):
            generate.with_outputs(page, folder)
        told = generate.with_outputs("<!-- show: 1-1; exit 2 -->\n" + page, folder)
        assert told.startswith("<!-- show: 1-1; exit 2 -->\n```console\n$ tracelens rules show nonsense\ntracelens: ")
        with pytest.raises(RuntimeError, match="runs tracelens, not rm"):
            generate.with_outputs("```console\n$ rm -r x\n```\n", folder)
