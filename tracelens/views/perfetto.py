"""A Chrome JSON trace for Perfetto: ranks as processes, streams as threads, waits drawn apart from transfers.

Every rank is a process with these threads, in this order:

    steps         one slice a step
    collectives   for each matched operation `wait` (own arrival to last arrival), then `transfer`
    buckets       runs of exclusive time, as in the budget
    gaps          by cause
    stream N      the events themselves; `stream N (2)` takes what overlaps on one stream, since slices of one
                  thread may nest but never cross

A flow arrow runs from the transfer of the rank that arrived last to the transfer of each rank that waited for it.
Times are microseconds with three digits, so no nanosecond is lost; they are counted from the earliest event of the
file, which keeps them within what a double holds exactly. The file is written rank by rank and never held whole.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from tracelens.views.output import write_atomically

_STEPS, _COLLECTIVES, _BUCKETS, _GAPS, _STREAMS = 1, 2, 3, 4, 10
_THREADS = {_STEPS: "steps", _COLLECTIVES: "collectives", _BUCKETS: "buckets", _GAPS: "gaps"}
_TIDS_PER_RANK = 100_000
_ROWS_PER_WRITE = 50_000
_BETWEEN = ",\n"
_OF_WAITS = ("communicator", "instance", "implementation")


@dataclass(frozen=True)
class TraceFrames:
    """What the file is made of. All times are int64 ns on the aligned clock.

    Attributes:
        ranks: rank, label (what stands beside the rank's number; may be null).
        events: frames of rank, stream, kind, bucket, name, start_ns, duration_ns, sorted by start within a rank and
            stream; further columns become arguments of the slice. A rank may come in several frames.
        origin_ns: the time that the file calls 0; nothing begins before it.
        steps: rank, step, phase, rung, start_ns, duration_ns.
        waits: frames of rank, communicator, instance, operation, implementation, arrival_ns, last_arrival_ns, end_ns by
            rank, arrival; only operations whose last arrival is known. They are gone through twice.
        arrows: frames of from_rank (which arrived last), to_rank (which waited for it), at_ns.
        buckets: frames of rank, bucket, start_ns, duration_ns; runs of exclusive time.
        gaps: frames of rank, cause, start_ns, duration_ns.
        metadata: put into the file's head.
    """

    ranks: pl.DataFrame
    events: Iterable[pl.DataFrame]
    origin_ns: int
    steps: pl.DataFrame | None = None
    waits: Iterable[pl.DataFrame] = ()
    arrows: Iterable[pl.DataFrame] = ()
    buckets: Iterable[pl.DataFrame] = ()
    gaps: Iterable[pl.DataFrame] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


def write_trace(frames: TraceFrames, path: Path | str, *, force: bool = False) -> None:
    """Write `x.json` or, by its suffix, `x.json.gz`; whole or not at all.

    Raises:
        OutputError: the file exists or cannot be written.
    """
    target = Path(path)

    def writer(stream: BinaryIO) -> None:
        if target.suffix.lower() != ".gz":
            _write(frames, stream)
            return
        # No name and no time in the gzip head: the same trace is the same bytes.
        with gzip.GzipFile(filename="", fileobj=stream, mode="wb", mtime=0, compresslevel=4) as packed:
            _write(frames, packed)

    write_atomically(target, writer, force=force)


def lines(frames: TraceFrames) -> Iterator[str]:
    """The file's `traceEvents`, one JSON object a line."""
    for part in _parts(frames):
        # A line break inside a name is written as an escape, so the separator occurs nowhere else.
        yield from part.split(_BETWEEN)


def _parts(frames: TraceFrames) -> Iterator[str]:
    """The same, many lines at once: a call a line would cost more than the lines."""
    numbers = {int(rank): index for index, rank in enumerate(frames.ranks["rank"])}
    threads = _Threads(numbers)
    yield from threads.processes(frames.ranks)
    if frames.steps is not None:
        words = pl.format("{} {}", pl.col("phase").fill_null("step"), pl.col("step"))
        rows = frames.steps.with_columns(words.alias("name"), pl.lit("step").alias("cat"))
        yield from threads.slices(rows, _STEPS, frames.origin_ns, ("step", "rung"))
    for pieces in (_waiting, _moving):
        for part in frames.waits:
            yield from threads.slices(pieces(part), _COLLECTIVES, frames.origin_ns, _OF_WAITS)
    yield from threads.flows(frames.arrows, frames.origin_ns)
    for part in frames.buckets:
        rows = part.with_columns(pl.col("bucket").alias("name"), pl.lit("bucket").alias("cat"))
        yield from threads.slices(rows, _BUCKETS, frames.origin_ns, ())
    for part in frames.gaps:
        rows = part.with_columns(pl.col("cause").alias("name"), pl.lit("gap").alias("cat"))
        yield from threads.slices(rows, _GAPS, frames.origin_ns, ())
    known = {"rank", "stream", "bucket", "name", "start_ns", "duration_ns"}
    for part in frames.events:
        rows = threads.on_streams(part.with_columns(pl.col("bucket").alias("cat"), pl.col("stream").fill_null(-1)))
        extras = tuple(name for name in part.columns if name not in known)
        yield from threads.slices(rows, None, frames.origin_ns, extras)
    yield from threads.names()


def _write(frames: TraceFrames, stream: BinaryIO | gzip.GzipFile) -> None:
    head = {"displayTimeUnit": "ns", "otherData": {key: _argument(value) for key, value in frames.metadata.items()}}
    stream.write(json.dumps(head, allow_nan=False)[:-1].encode() + b', "traceEvents": [')
    for position, part in enumerate(_parts(frames)):
        stream.write((_BETWEEN if position else "\n").encode() + part.encode())
    stream.write(b"\n]}\n")


class _Threads:
    """Process and thread numbers, and which lane of a stream is free."""

    def __init__(self, numbers: Mapping[int, int]) -> None:
        self._numbers = numbers
        self._lanes: dict[tuple[int, int], list[int]] = {}
        self._streams: dict[tuple[int, int, int], int] = {}
        self._used: set[tuple[int, int]] = set()

    def pid(self, rank: int) -> int:
        """Perfetto keeps 0 for the idle task, so ranks begin at 1."""
        return self._numbers[rank] + 1

    def processes(self, ranks: pl.DataFrame) -> Iterator[str]:
        for rank, label in ranks.select("rank", "label").iter_rows():
            name = f"rank {rank}" + (f" ({label})" if label else "")
            pid = self.pid(rank)
            yield _dump({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
            yield _dump({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}})

    def on_streams(self, rows: pl.DataFrame) -> pl.DataFrame:
        """`rows` with a column `tid`: the stream's thread, or a further lane where slices would cross."""
        parts = []
        for (rank, stream), part in rows.group_by("rank", "stream", maintain_order=True):
            key = (int(str(rank)), int(str(stream)))
            ends = part["start_ns"] + part["duration_ns"]
            latest = ends.cum_max()
            free = self._lanes.setdefault(key, [])
            crossing = bool((part["start_ns"].slice(1) < latest.slice(0, part.height - 1)).any())
            if not crossing and all(end <= int(part["start_ns"][0]) for end in free[:1]):
                free[:1] = [int(latest[-1])]
                tids = [self._stream_tid(*key, 0)] * part.height
            else:
                tids = [
                    self._stream_tid(*key, _take_lane(free, *one)) for one in zip(part["start_ns"], ends, strict=True)
                ]
            parts.append(part.with_columns(pl.Series("tid", tids, dtype=pl.Int64)))
        return pl.concat(parts) if parts else rows.with_columns(pl.lit(0, pl.Int64).alias("tid"))

    def _stream_tid(self, rank: int, stream: int, lane: int) -> int:
        return self._streams.setdefault((rank, stream, lane), _STREAMS + len(self._streams))

    def slices(self, rows: pl.DataFrame, tid: int | None, origin_ns: int, extras: tuple[str, ...]) -> Iterator[str]:
        """One complete event a row; `tid` null means the column of that name."""
        for offset in range(0, rows.height, _ROWS_PER_WRITE):
            yield self._slices(rows.slice(offset, _ROWS_PER_WRITE), tid, origin_ns, extras)

    def _slices(self, rows: pl.DataFrame, tid: int | None, origin_ns: int, extras: tuple[str, ...]) -> str:
        whole = rows if tid is None else rows.with_columns(pl.lit(tid, pl.Int64).alias("tid"))
        self._used.update(whole.select("rank", "tid").unique().iter_rows())
        pid = self._pid("rank")
        fields = [
            pl.lit('{"ph": "X", "name": ') + _quoted(whole["name"].fill_null("")),
            pl.lit(', "cat": ') + _quoted(whole["cat"].fill_null("")),
            pl.lit(', "pid": ') + pid.cast(pl.String),
            pl.lit(', "tid": ') + (pid * _TIDS_PER_RANK + pl.col("tid")).cast(pl.String),
            pl.lit(', "ts": ') + _us_of(pl.col("start_ns") - origin_ns),
            pl.lit(', "dur": ') + _us_of(pl.col("duration_ns")),
        ]
        if extras:
            texts = [
                pl.lit(f"{json.dumps(name)}: ")
                + (_quoted(whole[name]) if whole[name].dtype == pl.String else pl.col(name).cast(pl.String))
                for name in extras
            ]
            joined = pl.concat_str(texts, separator=", ", ignore_nulls=True)
            fields.append(
                pl.when(joined != "").then(pl.lit(', "args": {') + joined + pl.lit("}")).otherwise(pl.lit(""))
            )
        return _joined(whole, [*fields, pl.lit("}")])

    def flows(self, arrows: Iterable[pl.DataFrame], origin_ns: int) -> Iterator[str]:
        """Arrows between the transfers of two ranks that begin at the same time.

        Args:
            arrows: frames of from_rank, to_rank, at_ns.
            origin_ns: the file's time 0.
        """
        first = 1
        for part in _evenly(arrows):
            rows = part.with_row_index("number", offset=first)
            first += part.height
            for phase, rank, binding in (("s", "from_rank", ""), ("f", "to_rank", ', "bp": "e"')):
                pid = self._pid(rank)
                yield _joined(
                    rows,
                    [
                        pl.lit(f'{{"ph": "{phase}", "id": ') + pl.col("number").cast(pl.String),
                        pl.lit(', "name": "last arrival", "cat": "wait", "pid": ') + pid.cast(pl.String),
                        pl.lit(', "tid": ') + (pid * _TIDS_PER_RANK + _COLLECTIVES).cast(pl.String),
                        pl.lit(', "ts": ') + _us_of(pl.col("at_ns") - origin_ns),
                        pl.lit(f"{binding}}}"),
                    ],
                )

    def _pid(self, column: str) -> pl.Expr:
        return pl.col(column).replace_strict(self._numbers, return_dtype=pl.Int64) + 1

    def names(self) -> Iterator[str]:
        """The threads' names and order, for those that have slices."""
        streams = {number: (stream, lane) for (_, stream, lane), number in self._streams.items()}
        ordered = sorted(streams, key=lambda number: streams[number])
        places = {number: _STREAMS + place for place, number in enumerate(ordered)}
        for rank, thread in sorted(self._used):
            if thread in streams:
                stream, lane = streams[thread]
                name = ("no stream" if stream < 0 else f"stream {stream}") + (f" ({lane + 1})" if lane else "")
            else:
                name = _THREADS[thread]
            place = {"pid": self.pid(rank), "tid": self._tid(self.pid(rank), thread)}
            yield _dump({"ph": "M", "name": "thread_name", **place, "args": {"name": name}})
            order = places.get(thread, thread)
            yield _dump({"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": order}})

    @staticmethod
    def _tid(pid: int, thread: int) -> int:
        return pid * _TIDS_PER_RANK + thread


def _waiting(waits: pl.DataFrame) -> pl.DataFrame:
    """The part of each operation, if any, in which its rank waited."""
    wait_end = pl.min_horizontal("last_arrival_ns", "end_ns")
    return waits.filter(wait_end > pl.col("arrival_ns")).with_columns(
        pl.format("wait: {}", pl.col("operation")).alias("name"),
        pl.lit("wait").alias("cat"),
        pl.col("arrival_ns").alias("start_ns"),
        (wait_end - pl.col("arrival_ns")).alias("duration_ns"),
    )


def _moving(waits: pl.DataFrame) -> pl.DataFrame:
    """The part of each operation in which data moved."""
    wait_end = pl.min_horizontal("last_arrival_ns", "end_ns")
    return waits.with_columns(
        pl.format("transfer: {}", pl.col("operation")).alias("name"),
        pl.lit("transfer").alias("cat"),
        wait_end.alias("start_ns"),
        (pl.col("end_ns") - wait_end).alias("duration_ns"),
    )


def _evenly(parts: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """The same rows in frames of as many as are written at once, so that the file does not depend on the parts."""
    waiting: pl.DataFrame | None = None
    for part in parts:
        waiting = part if waiting is None else pl.concat([waiting, part])
        while waiting.height >= _ROWS_PER_WRITE:
            yield waiting.head(_ROWS_PER_WRITE)
            waiting = waiting.slice(_ROWS_PER_WRITE)
    if waiting is not None and waiting.height:
        yield waiting


def _joined(rows: pl.DataFrame, fields: list[pl.Expr]) -> str:
    """The rows as JSON objects, one a line."""
    text: str = rows.select(pl.concat_str(fields).str.join(_BETWEEN).alias("text"))["text"][0]
    return text


def _take_lane(free: list[int], start_ns: int, end_ns: int) -> int:
    """The first lane that is free at `start_ns`, taken until `end_ns`; a new one if none is."""
    lane = next((place for place, end in enumerate(free) if end <= start_ns), len(free))
    free[lane : lane + 1] = [end_ns]
    return lane


def _quoted(texts: pl.Series) -> pl.Expr:
    """Each text as a JSON string; quoted once per distinct text, since names repeat by the thousand."""
    distinct = texts.drop_nulls().unique(maintain_order=True)
    quoted = pl.Series([json.dumps(text) for text in distinct], dtype=pl.String)
    return pl.lit(texts).replace_strict(distinct, quoted, default=None, return_dtype=pl.String)


def _us_of(ns: pl.Expr) -> pl.Expr:
    """Nanoseconds, not negative, as microseconds, exactly."""
    return (ns // 1000).cast(pl.String) + pl.lit(".") + (ns % 1000).cast(pl.String).str.zfill(3)


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, allow_nan=False)


def _argument(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
