"""Everything the report shows, as one result: the answers of the other analyses, and what only a page needs.

A part that cannot be computed is absent, and a notice says why: a capture without steps still has a budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import polars as pl

from tracelens.analyses import report_parts as parts
from tracelens.analyses.buckets import BucketResult, buckets
from tracelens.analyses.collectives import CollectivesResult, collectives
from tracelens.analyses.compare import CompareResult
from tracelens.analyses.findings import FINDINGS, findings
from tracelens.analyses.gaps import GapsResult, gaps
from tracelens.analyses.info import InfoResult, info
from tracelens.analyses.report_arrivals import QUANTILES, arrival_tables, arrivals
from tracelens.analyses.scaling import ScalingResult
from tracelens.analyses.selection import Selection
from tracelens.analyses.skew import SkewResult, skew
from tracelens.analyses.slices import aligned_windows, event_slices, parted, wait_slices
from tracelens.analyses.steps import StepsResult, figures_per_step, steps
from tracelens.errors import TracelensError
from tracelens.frames import Column, Notice, Result, Schema
from tracelens.trace import LoadedTrace

T = TypeVar("T")

KERNELS_SHOWN = 15
EDGES_SHOWN = 200
SLICES_PER_RANK = 1_000
SLICES_SHOWN = 16_000

STEP_POINTS = Schema(
    "one step that is drawn",
    Column("set", pl.Int64, "Connected set of ranks"),
    Column("step", pl.Int64, "Number of the step"),
    Column("phase", pl.String, "prefill, decode, mixed or other"),
    Column("rung", pl.String, "Batch size, or a hash of launch shapes"),
    Column("start_ns", pl.Int64, "Edge of the earliest rank, in its export's own time", "ns"),
    Column("step_ns", pl.Int64, "Latency: median over ranks", "ns"),
    Column("spread_ns", pl.Int64, "Largest less smallest over ranks", "ns"),
    Column("complete", pl.Boolean, "Whether every rank shows the whole step"),
    Column("warm_up", pl.Boolean, "Whether it belongs to the slow beginning"),
)
SPLIT = Schema(
    "one rank; means per step of the main kind, which sum to its collective time",
    Column("rank", pl.Int64, "Rank"),
    Column("wait_ns", pl.Int64, "Exposed: until the last rank arrived", "ns"),
    Column("transfer_ns", pl.Int64, "Exposed: after that", "ns"),
    Column("unsplit_ns", pl.Int64, "Exposed, where waits are unknown", "ns"),
    Column("hidden_ns", pl.Int64, "Under compute of another stream", "ns"),
)
WAITS = Schema(
    "one rank and stretch of steps",
    Column("rank", pl.Int64, "Rank"),
    Column("first_step", pl.Int64, "First step of the stretch"),
    Column("last_step", pl.Int64, "Last step of it"),
    Column("wait_ns", pl.Int64, "Waiting per step, mean over the stretch", "ns"),
)
POSITION_WAITS = Schema(
    "one rank and place in the step's sequence of collectives",
    Column("communicator", pl.Int64, "The communicator that waits most"),
    Column("rank", pl.Int64, "Rank"),
    Column("position", pl.Int64, "Place in the step, from 0"),
    Column("collective", pl.String, "Operation at that place"),
    Column("wait_ns", pl.Int64, "Wait, mean over steps of the main kind", "ns"),
    Column("instance_count", pl.Int64, "Instances that the mean is over", "count"),
)
ARRIVALS = Schema(
    "one rank of a communicator",
    Column("communicator", pl.Int64, "Communicator"),
    Column("rank", pl.Int64, "Rank"),
    Column("instance_count", pl.Int64, "Matched collectives outside warm-up", "count"),
    *(
        Column(name, pl.Int64, f"Quantile {share:g} of the delay after the first member's arrival", "ns")
        for name, share in QUANTILES.items()
    ),
)
SLICES = Schema(
    "one event, or one part of a collective, of a step that is drawn",
    Column("view", pl.String, "worst or typical"),
    Column("step", pl.Int64, "Number of the step"),
    Column("rank", pl.Int64, "Rank"),
    Column("stream", pl.Int64, "Stream; -1 where none is recorded"),
    Column("kind", pl.String, "kernel, memcpy, memset, graph; of a matched collective: wait, transfer"),
    Column("bucket", pl.String, "Bucket by the map"),
    Column("name", pl.String, "Kernel or copy"),
    Column("start_ns", pl.Int64, "Since the step began on the earliest rank of its set, aligned clock", "ns"),
    Column("duration_ns", pl.Int64, "Length", "ns"),
)


def _prefixed(prefix: str, schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    return {f"{prefix}_{name}": schema for name, schema in schemas.items()}


class ReportResult(Result):
    """The tables of a report: those of other analyses, with a prefix where two would bear one name, and its own."""

    command: ClassVar[str] = "report"
    schemas: ClassVar[Mapping[str, Schema]] = {
        **_prefixed("compare", CompareResult.schemas),
        "findings": FINDINGS,
        "step_buckets": BucketResult.schemas["buckets"],
        "buckets": BucketResult.schemas["buckets"],
        "kernels": BucketResult.schemas["kernels"],
        "summary": StepsResult.schemas["summary"],
        "step_points": STEP_POINTS,
        "collective_split": SPLIT,
        "operations": CollectivesResult.schemas["operations"],
        "rank_operations": CollectivesResult.schemas["rank_operations"],
        "verdict": SkewResult.schemas["verdict"],
        "skew_ranks": SkewResult.schemas["ranks"],
        "clock": SkewResult.schemas["clock"],
        "set_aside": SkewResult.schemas["set_aside"],
        "waits": WAITS,
        "position_waits": POSITION_WAITS,
        "arrivals": ARRIVALS,
        "causes": GapsResult.schemas["causes"],
        "edges": GapsResult.schemas["edges"],
        "slices": SLICES,
        "exports": InfoResult.schemas["exports"],
        "ranks": InfoResult.schemas["ranks"],
        "ledger": InfoResult.schemas["ledger"],
        **_prefixed("scaling", ScalingResult.schemas),
    }

    def __post_init__(self) -> None:
        """Check the tables; the residual's parts that follow the columns of `scaling_points` are checked where made."""
        for name, frame in self.tables.items():
            self.schemas[name].check(frame.select(self.schemas[name].names) if name == "scaling_points" else frame)


def report(trace: LoadedTrace, *, compared: Result | None = None, scaled: Result | None = None) -> ReportResult:
    """Collect what the page shows.

    Args:
        trace: the capture.
        compared: the answer of `compare`, to open the page with.
        scaled: the answer of `scaling`, to close it with.

    Returns:
        Tables as the report's view documents them; sentences of all parts, the verdicts first.
    """
    page = _Page(trace)
    if compared is not None:
        page.take(compared, {name: f"compare_{name}" for name in compared.tables})
    page.steps()
    page.skew()
    page.collectives()
    page.gaps()
    page.findings()
    page.budget()
    page.info()
    if scaled is not None:
        page.take(scaled, {name: f"scaling_{name}" for name in scaled.tables})
    return page.result()


class _Page:
    """The report while it is collected."""

    def __init__(self, trace: LoadedTrace) -> None:
        self.trace = trace
        self.tables: dict[str, pl.DataFrame] = {}
        self.sentences: dict[str, tuple[str, ...]] = {}
        self.notices: list[Notice] = []
        self.provenance: dict[str, Any] = {}
        self.figures: pl.DataFrame | None = None
        self.chosen: parts.ChosenSteps | None = None

    def result(self) -> ReportResult:
        ordered = ("compare", "skew", "steps", "collectives", "gaps", "bucket", "scaling")
        sentences = [text for part in ordered for text in self.sentences.get(part, ())]
        notices = sorted(set(self.notices), key=lambda one: (one.severity != "warning", one.code, one.message))
        tables = {name: self.tables[name] for name in ReportResult.schemas if name in self.tables}
        return ReportResult(tables, tuple(notices), self.provenance, tuple(dict.fromkeys(sentences)))

    def take(self, result: Result, names: Mapping[str, str]) -> None:
        """The tables of another answer under the names given, its sentences, notices and provenance."""
        for name, new in names.items():
            if name in result.tables:
                self.tables[new] = result.tables[name]
        self.sentences[result.command] = result.sentences
        self.notices.extend(result.notices)
        if result.command not in ("compare", "scaling"):
            for key, value in result.provenance.items():
                self.provenance.setdefault(key, value)

    def put(self, name: str, frame: pl.DataFrame) -> None:
        self.tables[name] = ReportResult.schemas[name].frame(frame)

    def attempt(self, what: str, make: Callable[[], T]) -> T | None:
        """`make()`, or null and a notice where the capture cannot answer."""
        try:
            return make()
        except TracelensError as error:
            self.notices.append(Notice("not-in-report", "warning", f"{what}: {error.message}", error.hint))
            return None

    def steps(self) -> None:
        answer = self.attempt("steps", lambda: steps(self.trace))
        if answer is None:
            return
        self.take(answer, {"summary": "summary"})
        if "steps" not in answer.tables:
            return
        shown = answer.tables["steps"].select("rank", "step")
        figures = figures_per_step(self.trace).join(shown, on=["rank", "step"], how="semi", maintain_order="left")
        latencies = parts.step_latencies(figures)
        points = parts.shown_steps(latencies)
        self.put("step_points", points)
        self.provenance["step_count"] = latencies.height
        if points.height < latencies.height:
            self._cut("steps", points.height, latencies.height, "the slowest, and every n-th of the others")
        self.figures, self.chosen = figures, parts.choose_steps(latencies)
        if self.chosen is None:
            return
        self.put("collective_split", parts.collective_split(figures, self.chosen))
        waits = parts.waits_by_step(figures, self.chosen)
        if waits.height:
            self.put("waits", waits)
        self.attempt("timeline", self._slices)
        self.attempt("budget of a typical step", self._step_budget)

    def _slices(self) -> None:
        figures, chosen = self.figures, self.chosen
        if figures is None or chosen is None:
            return
        views, cut = [], 0
        for view, step_of in (("worst", chosen.worst), ("typical", chosen.typical)):
            window = parts.step_windows(figures, step_of)
            rows = parted(event_slices(self.trace, window), wait_slices(self.trace, window))
            limit = min(SLICES_SHOWN, SLICES_PER_RANK * max(window.height, 4))
            if rows.height > limit:
                cut += rows.height - limit
                kept = rows.with_row_index("_at").sort(-pl.col("duration_ns"), "_at").head(limit).sort("_at")
                rows = kept.drop("_at")
            begun = aligned_windows(self.trace, window).select(
                "rank", "step", pl.col("start_ns").min().over("set").alias("origin")
            )
            views.append(
                rows.join(begun, on="rank", how="left", maintain_order="left").with_columns(
                    pl.lit(view).alias("view"), pl.col("start_ns") - pl.col("origin")
                )
            )
        self.put("slices", pl.concat(views))
        if cut:
            self.notices.append(
                Notice("timeline-cut", "info", "the shortest slices of the two steps drawn are left out", "", cut)
            )

    def _step_budget(self) -> None:
        figures, chosen = self.figures, self.chosen
        if figures is None or chosen is None:
            return
        window = parts.step_windows(figures, chosen.typical)
        one_step = self.trace.with_options(ranks=tuple(window["rank"]), steps=None, phase=None, time_s=None)
        words = ", ".join(f"step {step} of set {number}" for number, step in chosen.typical.items())
        if len(chosen.typical) == 1:
            words = f"step {chosen.typical[chosen.set]}"
        spans = window.select("rank", "start_ns", "end_ns")
        one_step.memo("selection", lambda: Selection(lambda: spans, False, words))
        self.put("step_buckets", buckets(one_step)["buckets"])
        self.provenance["typical_step"] = chosen.typical[chosen.set]
        self.provenance["worst_step"] = chosen.worst[chosen.set]

    def skew(self) -> None:
        answer = self.attempt("skew", lambda: skew(self.trace))
        if answer is None:
            return
        self.take(answer, {"verdict": "verdict", "ranks": "skew_ranks", "clock": "clock", "set_aside": "set_aside"})
        if self.figures is None:
            return
        delays, waits = arrival_tables(arrivals(self.trace, self.figures, self.chosen))
        if delays.height:
            self.put("arrivals", delays)
            if self.chosen is not None:
                self.put("position_waits", waits)

    def collectives(self) -> None:
        answer = self.attempt("collectives", lambda: collectives(self.trace))
        if answer is not None:
            self.take(answer, {"operations": "operations", "rank_operations": "rank_operations"})

    def gaps(self) -> None:
        answer = self.attempt("gaps", lambda: gaps(self.trace))
        if answer is None:
            return
        self.take(answer, {"causes": "causes", "edges": "edges"})
        edges = self.tables.get("edges")
        if edges is not None and edges.height > EDGES_SHOWN:
            self._cut("edges of gaps", EDGES_SHOWN, edges.height, "the costliest")
            self.tables["edges"] = edges.head(EDGES_SHOWN)

    def findings(self) -> None:
        if self.figures is None or self.chosen is None:
            return
        step_ns = parts.mean_step_ns(parts.step_latencies(self.figures), self.chosen)
        self.put("findings", findings(self.trace, self.tables, step_ns))

    def budget(self) -> None:
        answer = self.attempt("budget", lambda: buckets(self.trace, kernels=True))
        if answer is None:
            return
        self.take(answer, {"buckets": "buckets", "kernels": "kernels"})
        kernels = self.tables.get("kernels")
        if kernels is None:
            return
        place = pl.int_range(pl.len()).over("rank", "bucket")
        ordered = kernels.sort("rank", "bucket", -pl.col("elapsed_ns"), "kernel_name", nulls_last=True)
        shown = ordered.filter(place < KERNELS_SHOWN)
        if shown.height < kernels.height:
            self._cut("kernel names", shown.height, kernels.height, f"the {KERNELS_SHOWN} largest of each bucket")
        self.tables["kernels"] = shown

    def info(self) -> None:
        answer = self.attempt("capture", lambda: info(self.trace))
        if answer is not None:
            self.take(answer, {"exports": "exports", "ranks": "ranks", "ledger": "ledger"})
            self.sentences.pop(InfoResult.command, None)

    def _cut(self, what: str, shown: int, total: int, which: str) -> None:
        self.notices.append(
            Notice("report-cut", "info", f"{shown:,} of {total:,} {what} are in the page: {which}", "", total - shown)
        )
