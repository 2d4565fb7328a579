"""Parquet, one row group at a time.

Guarantee: memory is bounded by one batch of one row group. Parquet gives every struct the keys of
all rows, so keys whose value is null are dropped: a key that a row never had does not appear. (An
explicit null in a struct cannot be told from an absent key; JSON text in a column keeps it.)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from eagled.errors import ArtifactError
from eagled.readers.sources.base import SourceRow, without_nulls

_BATCH_ROWS = 256  # a row may be 100 kB


def read_parquet(path: Path, file: str) -> Iterator[SourceRow]:
    """Yield the rows of a Parquet file.

    Raises:
        ArtifactError: if the file is not readable Parquet.
    """
    try:
        with pq.ParquetFile(path) as parquet:
            number = 0
            for batch in parquet.iter_batches(batch_size=_BATCH_ROWS):
                for value in batch.to_pylist():
                    yield SourceRow(file, number, without_nulls(value))
                    number += 1
    except (pa.ArrowException, OSError) as exc:
        raise ArtifactError(f"{path} cannot be read as Parquet: {exc}") from exc
