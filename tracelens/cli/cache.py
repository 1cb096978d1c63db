"""`tracelens cache`: the stored loads."""

from __future__ import annotations

import typer

from tracelens.cli.options import Output, with_output

cache = typer.Typer(
    help="The stored loads: what a capture became, kept for the next question about it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@cache.command("list")
@with_output
def list_(output_to: Output) -> int:
    """Every stored load: its size, its events, when it was last used."""
    from tracelens.analyses.stored_loads import list_loads
    from tracelens.cli.present import present
    from tracelens.views import cache as view

    return present(list_loads(), output_to, view.show)


@cache.command("clear")
@with_output
def clear(output_to: Output) -> int:
    """Remove every stored load that no process uses; only the time to read the captures again is lost."""
    from tracelens.analyses.stored_loads import clear_loads
    from tracelens.cli.present import present
    from tracelens.views import cache as view

    return present(clear_loads(), output_to, view.show)
