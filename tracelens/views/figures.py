"""Results as plotly figures, for notebooks and slides: the report's charts, from the same tables.

    figure = figures.of(result)          # the main figure of any result
    figures.budget(result["buckets"])    # or one by name

Each function takes frames in the documented columns and returns a `plotly.graph_objects.Figure`. Colours are safe for
colour-blind readers, and the collective and idle buckets keep theirs everywhere. plotly is imported when a figure is
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from tracelens.frames import Result
from tracelens.units import NS_PER_US, Scale, time_scale
from tracelens.views.text import shorten_middle, visible

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_COLOURS = (
    "#0072b2",
    "#56b4e9",
    "#e69f00",
    "#cc79a7",
    "#009e73",
    "#7a5cc4",
    "#44aa99",
    "#9a8f00",
    "#8c564b",
    "#882255",
)
_COLLECTIVE, _IDLE, _OTHER = "#d55e00", "#c9ced6", "#6b7785"
_PHASES = {"decode": "#0072b2", "prefill": "#e69f00", "mixed": "#7a5cc4", "other": "#009e73"}
_CAUSES = {
    "host_late": "#e69f00",
    "launch_latency": "#cc79a7",
    "in_graph": "#009e73",
    "back_to_back": "#56b4e9",
    "dependency": "#7a5cc4",
    "step_boundary": "#0072b2",
    "unknown": _OTHER,
    "idle": _IDLE,
}
_NAME_WIDTH = 60
_POINTS = 10_000


def of(result: Result) -> Figure:
    """The figure that shows a result best, by the tables it has.

    Raises:
        LookupError: the result has no table that a figure is made for.
    """
    for tables, make in _MAIN.items():
        if all(name in result.tables for name in tables):
            return make(*(result.tables[name] for name in tables))
    raise LookupError(f"there is no figure for {result.command or type(result).__name__}; its tables are frames")


def budget(buckets: pl.DataFrame) -> Figure:
    """Stacked bars: one bar a rank, one colour a bucket, idle last; the bar's length is the rank's span."""
    order = (
        buckets.group_by("bucket")
        .agg(pl.col("elapsed_ns").sum())
        .sort(pl.col("bucket") == "idle", -pl.col("elapsed_ns"), "bucket")["bucket"]
        .to_list()
    )
    colours = _bucket_colours(order)
    figure = _stacked(buckets, order, "bucket", "elapsed_ns", colours)
    return _titled(figure, "Time by bucket and rank")


def gap_causes(causes: pl.DataFrame) -> Figure:
    """Stacked bars: gap time of each rank by cause; idle between requests left out."""
    rows = causes.filter(pl.col("cause") != "idle")
    value = "per_step_ns" if rows["per_step_ns"].null_count() < rows.height else "gap_ns"
    figure = _stacked(rows, rows["cause"].unique(maintain_order=True).to_list(), "cause", value, _CAUSES)
    return _titled(figure, "Gaps per step by cause" if value == "per_step_ns" else "Gaps by cause")


def collective_split(split: pl.DataFrame) -> Figure:
    """Stacked bars: collective time of a step as wait, transfer (unsplit where waits are unknown), hidden, by rank."""
    colours = {"wait": "#e69f00", "transfer": _COLLECTIVE, "unsplit": _COLLECTIVE, "hidden": _OTHER}
    known = [part for part in colours if split[f"{part}_ns"].null_count() < split.height]
    long = split.unpivot([f"{part}_ns" for part in known], index="rank", variable_name="part", value_name="time_ns")
    long = long.with_columns(pl.col("part").str.strip_suffix("_ns"))
    return _titled(_stacked(long, known, "part", "time_ns", colours), "Collective time per step")


def step_latency(steps: pl.DataFrame) -> Figure:
    """One point a step (of the lowest rank that has it, where there is a row per rank), a colour a phase."""
    from plotly import graph_objects

    rows = steps.unique("step", keep="first", maintain_order=True)
    cut = max(0, rows.height - _POINTS)
    rows = rows.head(_POINTS)
    scale = time_scale(rows["step_ns"])
    figure = graph_objects.Figure()
    for phase in rows["phase"].unique(maintain_order=True):
        mine = rows.filter(pl.col("phase").eq_missing(phase))
        figure.add_trace(
            graph_objects.Scattergl(
                x=mine["step"].to_list(),
                y=(mine["step_ns"] / scale.divisor).to_list(),
                mode="markers",
                name=str(phase),
                marker={"size": 5, "color": _PHASES.get(str(phase), _OTHER)},
            )
        )
    figure.update_xaxes(title="step")
    figure.update_yaxes(title=f"latency, {scale.symbol}")
    note = f" (the first {_POINTS:,}; {cut:,} more are in the table)" if cut else ""
    return _titled(figure, f"Step latency{note}")


def waiting(waits: pl.DataFrame, column: str) -> Figure:
    """Heat-map of waiting: a row a rank, a column a step (`first_step`, `step`) or a position (`position`)."""
    from plotly import graph_objects

    scale = time_scale(waits["wait_ns"])
    grid = waits.pivot(on=column, index="rank", values="wait_ns", aggregate_function="first").sort("rank")
    names = [name for name in grid.columns if name != "rank"]
    figure = graph_objects.Figure(
        graph_objects.Heatmap(
            z=[
                [None if value is None else value / scale.divisor for value in row] for row in grid.select(names).rows()
            ],
            x=[int(name) for name in names],
            y=[f"rank {rank}" for rank in grid["rank"]],
            colorscale="Cividis",
            colorbar={"title": f"wait, {scale.symbol}"},
        )
    )
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title=column.replace("first_", "").replace("_", " "))
    return _titled(figure, "Waiting for the last rank")


def lateness(ranks: pl.DataFrame) -> Figure:
    """Stacked bars: mean lateness of each rank by cause: device, host, upstream, other."""
    parts = {"device": "#0072b2", "host": "#e69f00", "upstream": "#cc79a7", "other": _OTHER}
    long = ranks.unpivot(
        [f"{part}_lateness_ns" for part in parts], index="rank", variable_name="part", value_name="time_ns"
    )
    long = long.with_columns(pl.col("part").str.strip_suffix("_lateness_ns"))
    return _titled(_stacked(long, list(parts), "part", "time_ns", parts), "Mean lateness by cause")


def operations(table: pl.DataFrame) -> Figure:
    """Bars: median wait and transfer of each collective operation, most costly first."""
    from plotly import graph_objects

    scale = time_scale([*table["wait_p50_ns"], *table["transfer_p50_ns"]])
    names = [_short(f"{row[0]} {row[1]}") for row in table.select("collective", "implementation").iter_rows()]
    figure = graph_objects.Figure()
    for column, name, colour in (("wait_p50_ns", "wait", "#e69f00"), ("transfer_p50_ns", "transfer", _COLLECTIVE)):
        values = [None if value is None else value / scale.divisor for value in table[column]]
        figure.add_trace(graph_objects.Bar(y=names, x=values, name=name, orientation="h", marker={"color": colour}))
    figure.update_layout(barmode="stack")
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title=f"median per call, {scale.symbol}")
    return _titled(figure, "Collectives: waiting and transfer")


def changes(table: pl.DataFrame) -> Figure:
    """Bars from zero: change per step of each row of a comparison, with its interval where there is one."""
    from plotly import graph_objects

    rows = table.drop_nulls("delta_ns").sort(pl.col("delta_ns").abs(), descending=True, maintain_order=True).head(25)
    scale = time_scale(rows["delta_ns"])
    deltas = [value / scale.divisor for value in rows["delta_ns"]]
    above = [_over(high, low, scale) for high, low in zip(rows["ci_high_ns"], rows["delta_ns"], strict=True)]
    below = [_over(high, low, scale) for high, low in zip(rows["delta_ns"], rows["ci_low_ns"], strict=True)]
    colours = [
        _IDLE if known is False else _COLLECTIVE if delta > 0 else "#0072b2"
        for delta, known in zip(deltas, rows["significant"], strict=True)
    ]
    figure = graph_objects.Figure(
        graph_objects.Bar(
            y=[_short(name) for name in rows["name"]],
            x=deltas,
            orientation="h",
            marker={"color": colours},
            error_x={"type": "data", "array": above, "arrayminus": below, "symmetric": False},
        )
    )
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title=f"change per step, {scale.symbol}")
    return _titled(figure, "What changed")


def scaling(points: pl.DataFrame) -> Figure:
    """Lines over the number of ranks: step time measured and predicted."""
    from plotly import graph_objects

    figure = graph_objects.Figure()
    scale = time_scale([None if value is None else value * NS_PER_US for value in points["step_us"]])
    for column, name, colour, dash in (
        ("step_us", "measured", "#0072b2", "solid"),
        ("predicted_us", "predicted", _COLLECTIVE, "dash"),
    ):
        if column not in points.columns:
            continue
        values = [None if value is None else value * NS_PER_US / scale.divisor for value in points[column]]
        figure.add_trace(
            graph_objects.Scatter(
                x=[f"TP {tp}" for tp in points["tp"]],
                y=values,
                name=name,
                mode="lines+markers",
                line={"color": colour, "dash": dash},
            )
        )
    figure.update_yaxes(title=f"step, {scale.symbol}", rangemode="tozero")
    return _titled(figure, "Step time over tensor-parallel size")


def predicted(prediction: pl.DataFrame) -> Figure:
    """Lines over the number of ranks: predicted step time, one line a lambda."""
    from plotly import graph_objects

    figure = graph_objects.Figure()
    for index, lambda_us in enumerate(prediction["lambda_us"].unique(maintain_order=True)):
        mine = prediction.filter(pl.col("lambda_us").eq_missing(lambda_us))
        figure.add_trace(
            graph_objects.Scatter(
                x=[f"TP {tp}" for tp in mine["tp"]],
                y=mine["step_us"].to_list(),
                name=f"lambda {lambda_us} us",
                mode="lines+markers",
                line={"color": _COLOURS[index % len(_COLOURS)]},
            )
        )
    figure.update_yaxes(title="step, us", rangemode="tozero")
    return _titled(figure, "Predicted step time")


_MAIN: Mapping[tuple[str, ...], Callable[..., Any]] = {
    ("verdict", "buckets", "gaps"): lambda _verdict, buckets, gaps: changes(pl.concat([buckets, gaps])),
    ("step_points",): step_latency,
    ("buckets",): budget,
    ("steps",): step_latency,
    ("causes",): gap_causes,
    ("waits",): lambda waits: waiting(waits, "first_step"),
    ("verdict", "ranks"): lambda _verdict, ranks: lateness(ranks),
    ("operations",): operations,
    ("points",): scaling,
    ("prediction",): predicted,
}


def _over(high: float | None, low: float | None, scale: Scale) -> float | None:
    return None if high is None or low is None else (high - low) / scale.divisor


def _stacked(rows: pl.DataFrame, order: Sequence[str], series: str, value: str, colours: Mapping[str, str]) -> Figure:
    from plotly import graph_objects

    scale = time_scale(rows[value])
    figure = graph_objects.Figure()
    ranks = rows["rank"].unique(maintain_order=True).to_list()
    labels = ["all" if rank is None else f"rank {rank}" for rank in ranks]
    for name in order:
        mine = dict(rows.filter(pl.col(series) == name).select("rank", value).iter_rows())
        figure.add_trace(
            graph_objects.Bar(
                y=labels,
                x=[None if mine.get(rank) is None else mine[rank] / scale.divisor for rank in ranks],
                name=visible(name).replace("_", " "),
                orientation="h",
                marker={"color": colours.get(name, _OTHER), "pattern": {"shape": "/" if name == "idle" else ""}},
                hovertemplate=f"%{{y}}: %{{x:.{max(scale.decimals, 0)}f}} {scale.symbol}",
            )
        )
    figure.update_layout(barmode="relative")
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title=scale.symbol)
    return figure


def _bucket_colours(order: Sequence[str]) -> dict[str, str]:
    colours = {"idle": _IDLE}
    free = iter(_COLOURS * (len(order) // len(_COLOURS) + 1))
    for name in order:
        if any(word in name.lower() for word in ("collective", "nccl", "comm", "all_reduce", "allreduce")):
            colours[name] = _COLLECTIVE
        elif name not in colours:
            colours[name] = next(free)
    return colours


def _short(name: str) -> str:
    return shorten_middle(visible(name), _NAME_WIDTH, "…").replace("<", "&lt;")


def _titled(figure: Figure, title: str) -> Figure:
    figure.update_layout(
        title=title,
        template="plotly_white",
        legend={"orientation": "h", "y": -0.2},
        margin={"t": 60, "l": 80, "r": 30},
        font={"family": "system-ui, sans-serif"},
    )
    return figure
