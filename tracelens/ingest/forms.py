"""What repeats in a batch of events, told once: the form of each row.

    start | end | correlation | form          form | device | stream | pid | name | shape ...
      100 | 140 |         771 |    0             0 |      0 |      7 |  4 |  812 | 132 x 1 ...
      150 | 160 |         772 |    1             1 |      0 |      7 |  4 |   33 | 264 x 1 ...
      200 | 240 |         773 |    0

A batch with forms is an Arrow batch whose last column is a dictionary of them. Two forms may be equal; each is some
row's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

FORM = "form"
Codes = NDArray[np.int32]


def with_forms(
    own: Sequence[pa.Array], codes: Codes, forms: Sequence[pa.Array], names: Sequence[str]
) -> pa.RecordBatch:
    """A batch of the rows' own columns and their forms; `names` are those of the own columns, then of the forms'."""
    struct = pa.StructArray.from_arrays(list(forms), list(names[len(own) :]))
    form = pa.DictionaryArray.from_arrays(pa.array(codes), struct)
    return pa.RecordBatch.from_arrays([*own, form], [*names[: len(own)], FORM])


def numbered(batch: pa.RecordBatch, own: int) -> pa.RecordBatch:
    """A batch of plain columns as one with forms: those behind the first `own` repeat together."""
    together = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns[own:]:
        coded = column.dictionary_encode(null_encoding="encode")
        mixed = together * max(len(coded.dictionary), 1) + coded.indices.to_numpy(zero_copy_only=False)
        together = pa.array(mixed).dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    firsts = np.zeros(int(together.max()) + 1 if len(together) else 0, np.int64)
    firsts[together[::-1]] = np.arange(len(together) - 1, -1, -1)
    forms = [column.take(pa.array(firsts)) for column in batch.columns[own:]]
    return with_forms(batch.columns[:own], together.astype(np.int32), forms, batch.schema.names)


def forms_of(batch: pa.RecordBatch) -> tuple[Codes, dict[str, pa.Array]]:
    """The number of each row's form, and the columns of the forms."""
    form = batch.column(batch.num_columns - 1)
    columns = dict(zip([field.name for field in form.type.value_type], form.dictionary.flatten(), strict=True))
    return form.indices.to_numpy(), columns


def only_used(codes: Codes, forms: Sequence[pa.Array]) -> tuple[Codes, list[pa.Array]]:
    """The same without the forms that no row has."""
    used = np.bincount(codes, minlength=len(forms[0])) > 0
    kept = pa.array(used)
    return (np.cumsum(used) - 1).astype(np.int32)[codes], [one.filter(kept) for one in forms]
