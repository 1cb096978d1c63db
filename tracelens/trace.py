"""A loaded capture: the model tables of all its ranks in one DuckDB, and what was asked of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import duckdb
import polars as pl

from tracelens.array_room import ArrayRoom
from tracelens.errors import RankError
from tracelens.frames import Notice
from tracelens.ingest import discover, raw
from tracelens.loading import LOCAL, Loaded, Means, connect, open_captures
from tracelens.memory import bytes_of
from tracelens.model import build
from tracelens.ruleset import (
    Detection,
    RuleSet,
    check_asked,
    detect_engine,
    load_collectives,
    load_ruleset,
    shipped_for,
)
from tracelens.sqlfiles import queries

Part = Literal["launch", "nvtx"]
T = TypeVar("T")
Opened = TypeVar("Opened", bound="LoadedTrace")


@dataclass(frozen=True)
class Options:
    """What is asked of a capture; every analysis honours all of it.

    Attributes:
        ranks: ranks to look at; None: all.
        steps: first and last step to look at; None: all.
        phase: prefill, decode, mixed or other; None: all.
        time_s: (from, to) in seconds from the capture's first event; either may be None.
        skip: number of leading steps to count as warm-up; None: found by themselves.
        step_marker: a regex for NVTX texts that begin a step.
        steps_by: which marker to use.
        attribution: who owns an instant that several events share.
        clock: whether GPU clocks are aligned on the ends of collectives.
        rank_map: rank -> (path, device or None).
        expect_ranks: number of ranks that the job has.
        rules, engine, model: the bucket map; None: the default.
        expect_ms: duration of a step without the profiler; only told, nothing is scaled.
        threads: None: as many as the machine has.
        memory: limit, e.g. `2GB`; None: half the machine's, at most 4 GB.
        loader: `sqlite` forces the plain reading path.
        use_cache: whether stored loads are used.
        executor: who reads the captures: `local`, or `dask://HOST:PORT` for the workers of a dask scheduler.
    """

    ranks: tuple[int, ...] | None = None
    steps: tuple[int, int] | None = None
    phase: str | None = None
    time_s: tuple[float | None, float | None] | None = None
    skip: int | None = None
    step_marker: str | None = None
    steps_by: Literal["auto", "nvtx", "graph", "anchor", "period"] = "auto"
    attribution: Literal["first", "compute-first"] = "first"
    clock: Literal["auto", "trust", "ends"] = "auto"
    rank_map: Mapping[int, tuple[str, int | None]] | None = None
    expect_ranks: int | None = None
    rules: str | None = None
    engine: str | None = None
    model: str | None = None
    expect_ms: float | None = None
    threads: int | None = None
    memory: str | None = None
    loader: Literal["auto", "sqlite"] = "auto"
    use_cache: bool = True
    executor: str = "local"


class LoadedTrace:
    """The model tables of one run, in DuckDB.

    Attributes:
        db: the connection; tables are documented by their comments (`tracelens sql --schema`).
        options: what is asked of the capture.
        ruleset: the bucket map in use.
        detection: the engine and model that the capture shows, with the evidence.
    """

    def __init__(
        self,
        loaded: Loaded,
        options: Options,
        ruleset: RuleSet,
        detection: Detection,
    ) -> None:
        self.db: duckdb.DuckDBPyConnection = loaded.db
        self.options = options
        self.ruleset = ruleset
        self.detection = detection
        self._loaded = loaded
        self._parts: set[Part] = set()
        self._memo: dict[Hashable, Any] = {}

    def ensure(self, part: Part) -> None:
        """Loads `launch` or `nvtx`, which not every question needs, unless they are there."""
        if part in self._parts:
            return
        self._loaded.ensure(part)
        self._parts.add(part)

    def document(self) -> None:
        """Writes the meaning of every model table and column into DuckDB's comments; few questions need them."""
        build.write_comments(self.db, self._parts)

    def rows(self, path: Path, name: str, **parameters: Any) -> pl.DataFrame:
        """Runs the query `name` of an SQL file; `parameters` are bound as `$name`."""
        frame = pl.from_arrow(self.db.sql(queries(path)[name], params=parameters or None).to_arrow_table())
        assert isinstance(frame, pl.DataFrame)  # a table of DuckDB has columns
        return frame

    def run(self, path: Path, name: str, **parameters: Any) -> None:
        """Runs the statements `name` of an SQL file, for the tables that they make."""
        self.db.execute(queries(path)[name], parameters or None)

    def memo(self, key: Hashable, compute: Callable[[], T]) -> T:
        """`compute()`, done once per trace and key."""
        if key not in self._memo:
            self._memo[key] = compute()
        value: T = self._memo[key]
        return value

    @contextmanager
    def briefly(self) -> Iterator[Self]:
        """The same question, with all that is known so far; what is worked out on it is given back at the end."""
        other = self.with_options()
        other._memo = dict(self._memo)
        try:
            yield other
        finally:
            # Much of it refers to the trace in turn, and would only go when Python looks for such circles.
            other._memo.clear()

    def known(self, key: Hashable) -> Any:
        """What `memo` keeps under a key; None where nothing has been asked for it."""
        return self._memo.get(key)

    @property
    def ranks(self) -> list[int]:
        """The ranks in the answer, ascending: all of the capture, or those that were asked for.

        Raises:
            RankError: a rank that was asked for is not in the capture.
        """
        present = [int(rank) for (rank,) in self.db.execute("SELECT rank FROM rank ORDER BY rank").fetchall()]
        if self.options.ranks is None:
            return present
        missing = [rank for rank in self.options.ranks if rank not in present]
        if missing:
            raise RankError(
                f"rank {', '.join(map(str, missing[:8]))} is not in the capture, which has {_spans(present)}",
                "Choose from those, or pass the files of all ranks.",
            )
        return sorted(set(self.options.ranks))

    @property
    def remarks(self) -> tuple[Notice, ...]:
        """What slowed the work down on this machine so far; it changes no answer, so no answer holds it."""
        return (*self._loaded.remarks, *self._loaded.room_remarks)

    @property
    def room(self) -> ArrayRoom:
        """Where arrays with an element for each event, or each call, are made."""
        return self._loaded.room

    @property
    def threads(self) -> int:
        """How many threads may work at once."""
        return self.options.threads or self._loaded.means.thread_count

    @property
    def limit_bytes(self) -> int:
        """How much memory may be used."""
        return self._loaded.means.limit_bytes

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What was noticed so far, warnings first."""
        rows = self.db.execute(
            "SELECT DISTINCT code, severity, message, hint, count FROM notice ORDER BY severity = 'info', code, message"
        ).fetchall()
        return tuple(Notice(*row) for row in rows)

    def provenance(self) -> dict[str, Any]:
        """Where an answer comes from: exports, versions, ranks, rule set. Analyses add marker, window and clock."""
        exports = self.db.execute("SELECT path, nsys_version FROM export ORDER BY export").fetchall()
        return {
            "exports": [path for path, _ in exports],
            "nsys_versions": [version for _, version in exports],
            "ranks": self.ranks,
            "rules": self.ruleset.name,
            "rules_sha256": self.ruleset.sha256,
            "engine": self.detection.engine,
            "model": self.detection.model,
            "engine_evidence": self.detection.evidence,
            "attribution": self.options.attribution,
            "time_s": list(self.options.time_s) if self.options.time_s else None,
        }

    def with_options(self, **changes: Any) -> Self:
        """The same capture, asked differently; shares the tables, not the intermediate results.

        Raises:
            ValueError: an option that only loading can honour is changed.
        """
        fixed = {"rank_map", "expect_ranks", "rules", "engine", "model", "loader", "use_cache", "executor"} & set(
            changes
        )
        if fixed:
            raise ValueError(f"{', '.join(sorted(fixed))} can only be chosen when a capture is loaded")
        other = type(self)(self._loaded, replace(self.options, **changes), self.ruleset, self.detection)
        other._parts = self._parts
        return other

    def close(self) -> None:
        """Gives the files and the memory back."""
        self._loaded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_trace(
    traces: Sequence[str],
    options: Options | None = None,
    progress: raw.Progress | None = None,
    kind: type[Opened] = LoadedTrace,  # type: ignore[assignment]
) -> Opened:
    """Loads the captures of one run.

    Args:
        traces: files, folders or globs; empty: the current directory.
        options: what will be asked.
        progress: called with (file, rows read, rows in all).
        kind: the class to make: `LoadedTrace`, or one with methods on top.

    Raises:
        InputError, RankError, RuleError: see `tracelens.errors`.
    """
    options = options or Options()
    chosen = _asked_map(options)
    means = _means(options)
    found = discover.find_captures(list(traces))
    loaded = open_captures(found, means, options.rank_map, options.expect_ranks, progress)
    try:
        names = build.known_names(loaded.db)
        detection = _detect(loaded.db, names)
        ruleset = chosen or _found_map(options, detection)
        build.write_kernel_names(loaded.db, _classified(names, ruleset))
    except BaseException:
        loaded.close()
        raise
    return kind(loaded, options, ruleset, detection)


def _means(options: Options) -> Means:
    limit = bytes_of(options.memory) if options.memory is not None else None
    if options.executor != LOCAL:
        from tracelens.executors.cluster import address_of

        address_of(options.executor)
    return Means(options.loader, options.use_cache, options.threads, limit, options.executor)


def empty_trace() -> LoadedTrace:
    """A capture without events: its model tables exist, documented, and hold no rows."""
    options = Options()
    db = connect(_means(options))
    loaded = Loaded(db, raw.load_events([], db), _means(options))
    build.write_kernel_names(db, _classified(build.build_names(db), load_ruleset()))
    build.build_empty(db)
    return LoadedTrace(loaded, options, load_ruleset(), detect_engine([], [], []))


def _asked_map(options: Options) -> RuleSet | None:
    """The map that was asked for by name, file, or engine and model together; read before any capture is."""
    if options.rules is not None or (options.engine and options.model):
        return load_ruleset(options.rules, options.engine, options.model)
    return None


def _found_map(options: Options, detection: Detection) -> RuleSet:
    """The shipped map of the engine and model that the capture shows; what was asked for goes before."""
    check_asked(options.engine, options.model, found_engine=detection.engine)
    return load_ruleset(shipped_for(options.engine or detection.engine, options.model or detection.model))


def _detect(db: duckdb.DuckDBPyConnection, names: list[str]) -> Detection:
    words = db.execute("SELECT words FROM raw_export WHERE words IS NOT NULL ORDER BY export").fetchall()
    return detect_engine([], names, [word for (listed,) in words for word in listed.split(",")])


def _classified(names: list[str], ruleset: RuleSet) -> pl.DataFrame:
    """One row per name: its bucket by the map, and its operation by the collective table."""
    table = load_collectives()
    taken = ruleset.classify(names)
    rows = []
    for name_id, (name, position) in enumerate(zip(names, taken, strict=True)):
        graph = name.startswith("[CUDA graph ")
        collective = None if graph or name.startswith("[CUDA ") else table.classify(name)
        rows.append(
            {
                "name_id": name_id,
                "name": name,
                # Whatever the map: the kernels inside are unknown, so no rule can place them.
                "bucket": "graph_opaque" if graph else ruleset.bucket(position),
                "rule": None if graph else position,
                "pattern": None if graph or position is None else ruleset.rules[position].pattern,
                "operation": collective.operation if collective else None,
                "implementation": collective.implementation if collective else None,
                "synchronising": collective.synchronising if collective else None,
                "fused": collective.fused if collective else None,
                "barrier_end": collective.barrier_end if collective else None,
                "ranks_in_name": collective.ranks if collective else None,
            }
        )
    schema = {
        "name_id": pl.Int32,
        "name": pl.String,
        "bucket": pl.String,
        "rule": pl.Int32,
        "pattern": pl.String,
        "operation": pl.String,
        "implementation": pl.String,
        "synchronising": pl.Boolean,
        "fused": pl.Boolean,
        "barrier_end": pl.Boolean,
        "ranks_in_name": pl.Int32,
    }
    return pl.DataFrame(rows, schema=schema)


def _spans(ranks: list[int]) -> str:
    """`0-3, 7` for [0, 1, 2, 3, 7]."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return "ranks " + ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
