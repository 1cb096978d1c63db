"""`tracelens rules`: the bucket maps, what is wrong with one, and why a name lands where it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracelens.cli.options import Asked, Output, over_trace, with_output
from tracelens.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    from tracelens.ruleset import RuleSet

rules = typer.Typer(
    help="The bucket maps: contents, what is wrong with one, why a name lands where it does.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_MAP_HELP = "A shipped name (see: tracelens rules list) or a JSON file."
Map = Annotated[str | None, typer.Option("--rules", metavar="FILE|NAME", help=_MAP_HELP)]
Engine = Annotated[str | None, typer.Option(help="Engine whose map of the file to use, e.g. vllm.")]
Model = Annotated[str | None, typer.Option(help="Model whose map of the file to use, e.g. llama.")]


@rules.command("list")
@with_output
def list_(output_to: Output) -> int:
    """The shipped maps, by the name that --rules takes."""
    from tracelens.analyses.rule_explain import list_maps
    from tracelens.cli.present import present
    from tracelens.views import rules as view

    return present(list_maps(), output_to, view.show_maps)


@rules.command("show")
@with_output
def show(
    output_to: Output,
    name: Annotated[str | None, typer.Argument(metavar="FILE|NAME", help=_MAP_HELP, show_default=False)] = None,
    engine: Engine = None,
    model: Model = None,
) -> int:
    """The rules of one map, in the order in which they are tried."""
    from tracelens.analyses.rule_explain import show_map
    from tracelens.cli.present import present
    from tracelens.ruleset import load_ruleset
    from tracelens.views import rules as view

    return present(show_map(load_ruleset(name, engine, model)), output_to, view.show_rules)


@rules.command("explain")
@with_output
def explain(
    output_to: Output,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Kernel names.", show_default=False)
    ] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the names from stdin, one a line.")] = False,
    map_name: Map = None,
    engine: Engine = None,
    model: Model = None,
) -> int:
    """Why a kernel name lands where it does: its bucket, the pattern that takes it, what it does between ranks."""
    import sys

    from tracelens.analyses.rule_explain import explain_names
    from tracelens.cli.present import present
    from tracelens.ruleset import load_ruleset
    from tracelens.views import rules as view

    given = [name.encode("utf-8", "replace").decode() for name in names or ()]
    if stdin:
        text = sys.stdin.buffer.read().decode("utf-8", errors="replace")
        given += [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
    elif not given:
        raise UsageError("rules explain takes kernel names", "name them, or pipe them in with --stdin, one a line")
    return present(explain_names(load_ruleset(map_name, engine, model), given), output_to, view.show_explanations)


@rules.command("check")
@over_trace
def check(asked: Asked) -> int:
    """What is wrong with a map: tracelens rules check [FILE|NAME] [TRACE...].

    Without a map, the default one; without a capture, the example names that ship with the maps. Finds patterns that
    never match or cannot win, case slips, patterns that explode, collectives outside the collective bucket, and the
    names left to the catch-all by share of time. With --strict any finding makes the exit code 1.
    """
    from tracelens.analyses.rule_check import check_rules
    from tracelens.cli.present import present
    from tracelens.views import rules as view

    chosen, asked = _split(asked, 1)
    given = chosen[0] if chosen else asked.options["rules"]
    maps = _maps(given, asked)
    return present(check_rules(maps, _names(asked)), asked.output, view.show_findings)


@rules.command("diff")
@over_trace
def diff(asked: Asked) -> int:
    """Where two maps disagree: tracelens rules diff A B [TRACE...].

    A and B are shipped names or files. Without a capture the example names that ship with the maps are compared.
    """
    from tracelens.analyses.rule_diff import diff_rules
    from tracelens.cli.present import present
    from tracelens.ruleset import load_ruleset
    from tracelens.views import rules as view

    chosen, asked = _split(asked, 2)
    if len(chosen) != 2:
        if asked.traces and len(asked.traces) + len(chosen) >= 2:
            raise UsageError(
                f"rules diff takes two maps first, and {asked.traces[0]} is neither a shipped map nor a .json file",
                "`tracelens rules list` names the shipped ones.",
            )
        raise UsageError("rules diff takes two maps", "tracelens rules diff default vllm_engine/llama [TRACE...]")
    engine, model = asked.options["engine"], asked.options["model"]
    first, second = (load_ruleset(one, engine, model) for one in chosen)
    return present(diff_rules(first, second, _names(asked)), asked.output, view.show_differences)


def _split(asked: Asked, most: int) -> tuple[list[str], Asked]:
    """The leading arguments that name maps, at most so many, and what is left: captures."""
    from dataclasses import replace

    from tracelens.ruleset import shipped_maps

    shipped = shipped_maps()
    words = list(asked.traces)
    chosen: list[str] = []
    while words and len(chosen) < most and (words[0] in shipped or words[0].lower().endswith(".json")):
        chosen.append(words.pop(0))
    return chosen, replace(asked, traces=tuple(words))


def _maps(given: str | None, asked: Asked) -> list[RuleSet]:
    """Every map of what was given that --engine and --model leave."""
    from tracelens.ruleset import load_maps

    return load_maps(given, asked.options["engine"], asked.options["model"])


def _names(asked: Asked) -> pl.DataFrame:
    """Names and times of the captures; of the shipped examples where none is named."""
    from dataclasses import replace

    from tracelens.analyses.rule_names import names_of_examples, names_of_trace

    if not asked.traces:
        return names_of_examples()
    # The capture is loaded with the default map: the one that is checked may be broken, and is not needed for it.
    with replace(asked, options={**asked.options, "rules": None, "engine": None, "model": None}).load() as trace:
        return names_of_trace(trace)
