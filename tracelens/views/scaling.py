"""A measured TP sweep on a terminal: points, residual parts, fit, what-if."""

from __future__ import annotations

import polars as pl

from tracelens.frames import Result
from tracelens.views.terminal import Screen

_LABELS = {
    "tp": "TP",
    "step_us": "step",
    "tokens_per_s": "output tokens/s",
    "all_reduce_us": "all-reduce",
    "all_reduce_frac": "share",
    "predicted_us": "predicted",
    "reference_lambda_us": "reference lambda",
    "residual_us": "residual",
}


def show(result: Result, screen: Screen) -> None:
    """Draw a scaling result."""
    screen.sentences(result.sentences)
    points, schema = result.tables["points"], result.schemas["points"]
    several = points["statistic"].n_unique() > 1
    columns = [name for name in schema.names if name not in {"reference_source", "statistic"}]
    shown = [name for name in columns if points[name].null_count() < points.height]
    screen.table(
        points,
        schema,
        title="Points" if several else f"Points ({points['statistic'].to_list()[0]})",
        columns=["statistic", *shown] if several else shown,
        labels=_LABELS,
        group="statistic" if several else None,
        optional=["reference_lambda_us", "tokens_per_s", "all_reduce_frac"],
    )
    sources = points["reference_source"].drop_nulls().unique(maintain_order=True).to_list()
    for source in sources:
        sizes = points.filter(points["reference_source"] == source)["tp"].unique(maintain_order=True)
        screen.line(f"Reference lambda at TP {', '.join(map(str, sizes.to_list()))}: {source}.")
    parts = [name for name in points.columns if name not in schema.names]
    if sources:
        screen.line()
    if parts:
        screen.table(_parts(points, parts), title="The residual's parts, us (they sum to it)")
    if "fit" in result.tables:
        _show_fit(result.tables["fit"], screen)
    if "what_if" in result.tables:
        screen.table(
            result.tables["what_if"],
            result.schemas["what_if"],
            title="What if (at best: what is saved is an upper bound)",
            labels={"tp": "TP", "step_us": "step", "step_after_us": "step after", "saved_us": "saved"},
        )


def _show_fit(fit: pl.DataFrame, screen: Screen) -> None:
    """Each number with digits of its own: microseconds of lambda stand beside milliseconds of t(1)."""
    screen.table(
        fit.select("parameter").with_columns(
            *(
                pl.Series(name, [_number(value) for value in fit[name]], dtype=pl.String)
                for name in ("value", "ci_low", "ci_high", "r2")
            ),
            fit["accepted"],
        ),
        title="Fit (95 % intervals)",
        labels={"ci_low": "low", "ci_high": "high"},
    )
    reasons = [(parameter, reason) for parameter, reason in fit.select("parameter", "reason").iter_rows() if reason]
    for parameter, reason in reasons:
        screen.line(f"{parameter}: {reason}")
    if reasons:
        screen.line()


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    size = abs(value)
    return f"{value:,.{1 if size >= 1000 else 2 if size >= 10 else 3}f}"


def _parts(points: pl.DataFrame, parts: list[str]) -> pl.DataFrame:
    """One row a part, one column a TP size: parts are many, sizes few."""
    attributed = points.filter(pl.col("rest_us").is_not_null())
    columns: dict[str, list[object]] = {"part": [name.removesuffix("_us") for name in [*parts, "residual_us"]]}
    for row in attributed.iter_rows(named=True):
        columns[f"tp_{row['tp']}_us"] = [row[name] for name in [*parts, "residual_us"]]
    return pl.DataFrame(columns)
