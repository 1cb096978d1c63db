"""Parquet files of the model tables: the same rows are the same bytes, however they come."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet as pq
import pytest

from tracelens.errors import OutputError
from tracelens.views import tables_file
from tracelens.views.tables_file import Described, write_parquet


def described(name: str, *sizes: int) -> Described:
    """`sum(sizes)` rows of x = 0, 1, 2 ... in batches of those sizes."""

    def rows() -> pyarrow.RecordBatchReader:
        schema = pyarrow.schema([("x", pyarrow.int64()), ("text", pyarrow.string())])
        starts = [sum(sizes[:place]) for place in range(len(sizes))]
        batches = [
            pyarrow.record_batch([list(range(start, start + size)), ["a"] * size], schema=schema)
            for start, size in zip(starts, sizes, strict=True)
        ]
        return pyarrow.RecordBatchReader.from_batches(schema, batches)

    return Described(name, f"one row of {name}", {"x": "a number", "text": "a word"}, rows)


def test_bytes_do_not_depend_on_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_file, "_ROWS_PER_GROUP", 4)
    contents = set()
    for place, sizes in enumerate(((10,), (1, 9), (3, 3, 4), (5, 0, 5), (1,) * 10)):
        path = tmp_path / f"{place}.parquet"
        write_parquet([described("event", *sizes)], path, main="event")
        contents.add(path.read_bytes())
        assert [pq.ParquetFile(path).metadata.row_group(group).num_rows for group in range(3)] == [4, 4, 2]
        assert pq.read_table(path)["x"].to_pylist() == list(range(10))
    assert len(contents) == 1


def test_one_file_a_table_with_meanings(tmp_path: Path) -> None:
    written = write_parquet(
        [described("rank", 2), described("event", 3), described("nvtx")], tmp_path / "x.parquet", main="event"
    )
    assert [path.name for path in written] == ["x.parquet", "x.nvtx.parquet", "x.rank.parquet"]
    schema = pq.read_schema(tmp_path / "x.rank.parquet")
    assert schema.metadata[b"comment"] == b"one row of rank"
    assert schema.field("x").metadata[b"comment"] == b"a number"
    assert pq.read_table(tmp_path / "x.nvtx.parquet").num_rows == 0
    with pytest.raises(OutputError, match="exists"):
        write_parquet([described("event", 1)], tmp_path / "x.parquet", main="event")
