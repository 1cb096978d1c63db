"""What leaves for other tools holds what the model holds: counts and times equal to the tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracelens.analyses.alignment import find_alignment
from tracelens.analyses.export import ModelTable, model_tables, picture, table_rows, write_duckdb
from tracelens.analyses.slices import event_slices, parted, wait_slices
from tracelens.api import Trace, load
from tracelens.cli import run
from tracelens.views.perfetto import TraceFrames, lines

FIXTURES = Path(__file__).parents[1] / "fixtures"


@dataclass
class Moved:
    """An alignment with clocks of the test's choice."""

    to_aligned: Callable[[Any, Any], Any]


@pytest.fixture(scope="module")
def trace() -> Iterator[Trace]:
    with load(next((FIXTURES / "slow_rank_tp4").glob("*.sqlite")), use_cache=False) as loaded:
        yield loaded


def spans(trace: Trace) -> pl.DataFrame:
    return trace.sql(
        "SELECT rank, min(start_ns) AS start_ns, max(end_ns) + 1 AS end_ns FROM event GROUP BY rank ORDER BY rank"
    )


def test_every_event_is_drawn_once_with_its_length(trace: Trace) -> None:
    drawn = pl.concat(list(picture(trace).events))
    counted = trace.sql(
        "SELECT rank, count(*) AS n, sum(end_ns - start_ns)::BIGINT AS length FROM event GROUP BY rank ORDER BY rank"
    )
    assert (
        drawn.group_by("rank").agg(pl.len().alias("n"), pl.col("duration_ns").sum()).sort("rank").rows()
        == counted.rows()
    )


def test_a_trace_too_large_for_a_viewer_is_noticed(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "large-trace" not in {notice.code for notice in picture(trace).notices}
    monkeypatch.setattr("tracelens.analyses.export.EVENTS_A_VIEWER_OPENS", 10)
    assert "large-trace" in {notice.code for notice in picture(trace).notices}


def test_runs_of_buckets_sum_to_the_budget(trace: Trace) -> None:
    runs = pl.concat(list(picture(trace).buckets)).group_by("rank", "bucket").agg(pl.col("duration_ns").sum())
    budget = trace.buckets()["buckets"].filter((pl.col("bucket") != "idle") & (pl.col("elapsed_ns") > 0))
    assert set(runs.rows()) == set(budget.select("rank", "bucket", "elapsed_ns").rows())


def test_waits_and_transfers_sum_to_the_collectives(trace: Trace) -> None:
    events, waits = event_slices(trace, spans(trace)), wait_slices(trace, spans(trace))
    cut = parted(events, waits)
    assert cut["duration_ns"].sum() == events["duration_ns"].sum()
    assert waits.height > 0
    matched = events.join(waits, on="event_id", how="semi")["duration_ns"].sum()
    assert cut.filter(pl.col("kind").is_in(["wait", "transfer"]))["duration_ns"].sum() == matched


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-0.1, 1.1), st.floats(0, 0.6)), max_size=5))
def test_waits_are_those_of_the_collectives_that_start_in_a_window(
    trace: Trace, shares: list[tuple[int, float, float]]
) -> None:
    """Windows as shares of a rank's span: they may overlap, reach beyond it, or be of a rank that is not there."""
    span = {rank: (start, end - start) for rank, start, end in spans(trace).iter_rows()}
    rows = []
    for rank, first, length in shares:
        begin, whole = span.get(rank, (0, 10**9))
        rows.append((rank, begin + int(first * whole), begin + int((first + length) * whole)))
    windows = pl.DataFrame(rows, schema={"rank": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row")
    members = find_alignment(trace).members.filter(pl.col("wait_ns").is_not_null())
    inside = members.join_where(
        windows.rename({"rank": "of", "start_ns": "low", "end_ns": "high"}),
        pl.col("rank") == pl.col("of"),
        pl.col("start_ns") >= pl.col("low"),
        pl.col("start_ns") < pl.col("high"),
    )
    expected = (
        inside.unique("event_id")
        .with_columns(last_arrival_ns=pl.col("arrival_ns") + pl.col("wait_ns"), end_ns="aligned_end_ns")
        .sort("event_id")
    )
    found = wait_slices(trace, windows)
    assert found.equals(expected.select(found.columns))
    assert found.schema == expected.select(found.columns).schema


def test_the_trace_file_counts_as_the_tables_do(trace: Trace) -> None:
    drawn = picture(trace)
    frames = TraceFrames(
        drawn.ranks,
        drawn.events,
        drawn.origin_ns,
        steps=drawn.steps,
        waits=drawn.waits,
        arrows=drawn.arrows,
        buckets=drawn.buckets,
        gaps=drawn.gaps,
    )
    events = [json.loads(line) for line in lines(frames)]
    slices = [event for event in events if event["ph"] == "X"]
    assert min(event["ts"] for event in slices) >= 0
    waits = pl.concat(list(drawn.waits))
    gaps = trace.sql("SELECT rank, cause::VARCHAR AS cause, gap_ns FROM gap ORDER BY rank, start_ns")
    assert pl.concat(list(drawn.gaps)).select("rank", "cause", "duration_ns").rows() == gaps.rows()
    assert drawn.steps is not None
    assert sum(event["cat"] == "step" for event in slices) == drawn.steps.height
    assert sum(event["cat"] == "transfer" for event in slices) == waits.height
    waiting = waits.filter(pl.col("last_arrival_ns") > pl.col("arrival_ns"))
    assert sum(event["cat"] == "wait" for event in slices) == waiting.height
    arrows = waiting.join(waits.filter("is_last"), on="instance").filter(pl.col("rank") != pl.col("rank_right"))
    assert arrows.select("rank_right", "rank", "last_arrival_ns").sort("last_arrival_ns", "rank").rows() == [
        *pl.concat(list(drawn.arrows)).sort("at_ns", "to_rank").rows()
    ]
    assert sum(event["ph"] == "s" for event in events) == sum(event["ph"] == "f" for event in events) == arrows.height
    assert arrows.height > 0


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=3),
    st.integers(40, 2000),
    st.sets(st.integers(0, 3)),
)
def test_events_of_windows_are_those_of_the_table_however_they_are_parted(
    trace: Trace, shares: list[tuple[int, float, float]], block: int, put_back: set[int]
) -> None:
    """Windows as shares of a rank's span, one a rank; on some ranks the clock is put back by 1 ms in the middle."""
    span = {rank: (start, end - start) for rank, start, end in spans(trace).iter_rows()}
    rows = [(rank, *(span[rank][0] + int(share * span[rank][1]) for share in sorted(ends))) for rank, *ends in shares]
    windows = pl.DataFrame(rows, schema={"rank": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row")
    windows = windows.unique("rank", keep="first", maintain_order=True)

    def moved(rank: Any, own: Any) -> Any:
        at = int(rank) if np.ndim(rank) == 0 else int(rank[0])
        return own - 1_000_000 * (own > span[at][0] + span[at][1] // 2) if at in put_back else own

    table = trace.sql("SELECT e.*, n.name, n.bucket FROM event e JOIN kernel_name n USING (name_id) ORDER BY event_id")
    expected = []
    for rank, low, high in windows.sort("rank").iter_rows():
        mine = table.filter((pl.col("rank") == rank) & (pl.col("start_ns") >= low) & (pl.col("start_ns") < high))
        length = mine["end_ns"] - mine["start_ns"]
        mine = mine.with_columns(
            pl.col("stream").fill_null(-1),
            pl.Series("start_ns", moved(rank, mine["start_ns"].to_numpy())),
            length.alias("duration_ns"),
        )
        expected.append(mine.sort("stream", "start_ns", "event_id"))
    same = [
        "event_id",
        "rank",
        "stream",
        "bucket",
        "name",
        "start_ns",
        "duration_ns",
        "correlation",
        "graph_node",
        "bytes",
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tracelens.analyses.blocks.BLOCK", block)
        patched.setattr("tracelens.analyses.slices.find_alignment", lambda _: Moved(moved))
        found = event_slices(trace, windows)
    assert found.select(same).rows() == pl.concat(expected).select(same).rows()


def test_duckdb_holds_tables_and_comments_but_no_host(trace: Trace, tmp_path: Path) -> None:
    tables = write_duckdb(trace, tmp_path / "x.duckdb")
    assert {table.name for table in tables} >= {"event", "kernel_name", "rank", "export", "launch", "nvtx"}
    with duckdb.connect(str(tmp_path / "x.duckdb"), read_only=True) as copy:
        for table in tables:
            count = f'SELECT count(*) FROM "{table.name}"'
            assert copy.execute(count).fetchall() == trace.db.execute(count).fetchall()
        bare = copy.execute(
            "SELECT table_name, column_name FROM duckdb_columns() WHERE comment IS NULL AND NOT internal"
        )
        assert bare.fetchall() == []
        assert copy.execute("SELECT * FROM duckdb_columns() WHERE column_name = 'hostname'").fetchall() == []


def test_a_duckdb_file_is_written_within_the_memory_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of it is the new file's, not what DuckDB would take by itself."""
    connect, opened, limits = duckdb.connect, [], set()

    def spy(*given: str) -> duckdb.DuckDBPyConnection:
        opened.append(connect(*given))
        return opened[-1]

    def rows(trace: Trace, table: ModelTable) -> pyarrow.RecordBatchReader:
        limits.add(opened[-1].execute("SELECT current_setting('memory_limit')").fetchall()[0])
        return table_rows(trace, table)

    source = next((FIXTURES / "decode_tp2").glob("*.sqlite"))
    with load(source, use_cache=False, memory="800MiB") as loaded:
        monkeypatch.setattr(duckdb, "connect", spy)
        monkeypatch.setattr("tracelens.analyses.export.table_rows", rows)
        write_duckdb(loaded, tmp_path / "x.duckdb")
    assert limits == {("190.7 MiB",)}


def test_every_model_table_says_what_it_is(trace: Trace) -> None:
    for table in model_tables(trace):
        assert table.meaning
        assert all(table.columns.values()), f"a column of {table.name} has no meaning"


def test_export_command_writes_each_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(next((FIXTURES / "decode_tp2").glob("*.sqlite")))
    for name in ("x.json", "x.json.gz", "x.duckdb", "x.parquet"):
        assert run(["export", source, "-o", str(tmp_path / name), "--no-cache"]) == 0
        assert (tmp_path / name).stat().st_size > 1000
    assert json.loads((tmp_path / "x.json").read_bytes())["displayTimeUnit"] == "ns"
    assert pq.read_schema(tmp_path / "x.parquet").metadata[b"comment"].startswith(b"One row per execution")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert run(["export", source, "-o", str(tmp_path / "x.json")]) == 2
    assert run(["export", source, "-o", str(tmp_path / "x.txt")]) == 2
    assert run(["export", source]) == 2
    assert "Use --force" in capsys.readouterr().err
