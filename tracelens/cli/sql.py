"""`tracelens sql`: a query on the documented model tables."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from tracelens.cli.options import Asked, over_trace
from tracelens.errors import UsageError

#: A query begins with one of these words, after comments and brackets.
_QUERY = re.compile(
    r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(?:select|with|from|values|pivot|unpivot)\b", re.IGNORECASE | re.DOTALL
)


@over_trace
def sql(
    asked: Asked,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print every table and column with its meaning instead.")
    ] = False,
) -> int:
    """A query on the model tables: tracelens sql TRACE... "SELECT ..."."""
    from tracelens.analyses.query import sql_result, table_schema
    from tracelens.cli.present import present
    from tracelens.views import query as view

    if schema:
        from tracelens.trace import empty_trace

        with empty_trace() as trace:
            return present(table_schema(trace), asked.output, view.show_schema)
    if not asked.traces or not _QUERY.match(asked.traces[-1]):
        seen = f", and {asked.traces[-1]!r} begins none" if asked.traces else ""
        raise UsageError(
            f"sql takes its query as the last argument{seen} (SELECT, WITH, FROM, VALUES, PIVOT)",
            'tracelens sql tp8.sqlite "SELECT rank, count(*) FROM event GROUP BY rank"',
        )
    *traces, query = asked.traces
    with asked.load(tuple(traces)) as trace:
        return present(sql_result(trace, query), asked.output, view.show)
