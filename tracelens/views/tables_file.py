"""Model tables as Parquet files, with each table's and column's meaning as metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tracelens.views.output import Writer, write_files

if TYPE_CHECKING:
    import pyarrow


_ROWS_PER_GROUP = 250_000


@dataclass(frozen=True)
class Described:
    """One table to write.

    Attributes:
        name: of the table; becomes part of the file's name.
        meaning: what one row is.
        columns: column -> meaning.
        rows: opens the rows, as Arrow batches.
    """

    name: str
    meaning: str
    columns: Mapping[str, str]
    rows: Callable[[], pyarrow.RecordBatchReader]


def write_parquet(tables: Iterable[Described], path: Path | str, *, main: str, force: bool = False) -> list[Path]:
    """Write `main` to `path` and every other table to `<stem>.<table>.parquet` beside it; all of them or none.

    Returns:
        the files, the main table's first.

    Raises:
        OutputError: one exists (without `force`) or cannot be written.
    """
    target = Path(path)
    ordered = sorted(tables, key=lambda table: (table.name != main, table.name))
    writers = {
        target if table.name == main else target.with_suffix(f".{table.name}{target.suffix}"): _writer(table)
        for table in ordered
    }
    write_files(writers, force=force)
    return list(writers)


def _writer(table: Described) -> Writer:
    def write(stream: BinaryIO) -> None:
        import pyarrow
        import pyarrow.parquet

        rows = table.rows()
        fields = [field.with_metadata({"comment": table.columns.get(field.name, "")}) for field in rows.schema]
        schema = pyarrow.schema(fields, metadata={"comment": table.meaning})
        with pyarrow.parquet.ParquetWriter(stream, schema, compression="zstd") as writer:
            # Batches come as the engine's threads make them; groups of one size make the bytes depend on rows alone.
            held: list[pyarrow.RecordBatch] = []
            count = 0
            for batch in rows:
                held.append(pyarrow.RecordBatch.from_arrays(batch.columns, schema=schema))
                count += batch.num_rows
                while count >= _ROWS_PER_GROUP:
                    whole = pyarrow.Table.from_batches(held, schema=schema)
                    writer.write_table(whole.slice(0, _ROWS_PER_GROUP).combine_chunks(), row_group_size=_ROWS_PER_GROUP)
                    held = whole.slice(_ROWS_PER_GROUP).to_batches()
                    count -= _ROWS_PER_GROUP
            if count:
                writer.write_table(
                    pyarrow.Table.from_batches(held, schema=schema).combine_chunks(), row_group_size=_ROWS_PER_GROUP
                )

    return write
