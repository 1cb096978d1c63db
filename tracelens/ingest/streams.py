"""Arrow batches of our own handed to DuckDB, which takes them while it runs a statement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa

NAME = "incoming"


@contextmanager
def incoming(db: duckdb.DuckDBPyConnection, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[None]:
    """Registers a stream as the table `incoming` while the block runs.

    What goes wrong while a batch is made - a damaged file, ctrl-C - would reach the block as an error of DuckDB that
    only quotes it; it leaves the block as what it was.
    """
    caught: list[BaseException] = []

    def relayed() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except BaseException as error:
            caught.append(error)
            raise

    reader = pa.RecordBatchReader.from_batches(schema, relayed())
    db.register(NAME, reader)
    try:
        yield
    except BaseException as error:
        if caught and error is not caught[0] and not isinstance(caught[0], GeneratorExit):
            raise caught[0] from None
        raise
    finally:
        db.unregister(NAME)
        reader.close()
