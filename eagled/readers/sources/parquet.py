"""Parquet, a few rows at a time.

Guarantee: memory is bounded by one column chunk and one batch; large rows make small batches.
Parquet gives every struct the keys of all rows, so keys whose value is null are dropped: a key that
a row never had does not appear. (An explicit null in a struct cannot be told from an absent key;
JSON text in a column keeps it.)
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from eagled.errors import ArtifactError
from eagled.readers.sources.base import SourceRow, without_nulls
from eagled.types import RowReason

_BUFFER_BYTES = 1 << 20
_BATCH_ROWS = 256  # a row may be 100 kB
_BATCH_BYTES = 64 << 20
_SLICE_BYTES = 16 << 20  # Python objects take a few times the bytes of the columns


def read_parquet(
    source: Path | BinaryIO, file: str, skip: int = 0
) -> Generator[SourceRow, None, int]:
    """Yield the rows of a Parquet file behind the first `skip`.

    Args:
        source: a path, or an open file that can seek.
        file: its name, for the rows.
        skip: rows to leave out; row groups that they fill are not read.

    Returns:
        How many rows there are in all.

    Raises:
        ArtifactError: if the file is not readable Parquet.
    """
    # a remote file is read a column chunk at a time: small reads would jump between its columns
    local = isinstance(source, Path)
    try:
        with pq.ParquetFile(source, buffer_size=_BUFFER_BYTES * local) as parquet:
            number = skip
            for value in _values(parquet, skip):
                yield _row(value, file, number)
                number += 1
            return int(parquet.metadata.num_rows)
    except (pa.ArrowException, OSError) as exc:
        raise ArtifactError(f"{file} cannot be read as Parquet: {exc}") from exc


def _row(value: Any, file: str, number: int) -> SourceRow:  # noqa: ANN401 - a row, or what is wrong
    if isinstance(value, UnicodeDecodeError):
        detail = f"byte 0x{value.object[value.start]:02x} at {value.start} is not UTF-8"
        return SourceRow(file, number, None, RowReason.BAD_ENCODING, detail)
    return SourceRow(file, number, without_nulls(value))


def _values(parquet: Any, skip: int) -> Iterator[Any]:  # noqa: ANN401 - pyarrow has no types
    groups: list[int] = []
    before = 0
    for index in range(parquet.metadata.num_row_groups):
        rows = parquet.metadata.row_group(index).num_rows
        if before + rows <= skip and not groups:
            before += rows
        else:
            groups.append(index)
    left = skip - before
    for group in groups:
        for batch in parquet.iter_batches(_batch_rows(parquet, group), row_groups=[group]):
            drop = min(left, batch.num_rows)
            left -= drop
            yield from _objects(batch.slice(drop))


def _batch_rows(parquet: Any, group: int) -> int:  # noqa: ANN401 - pyarrow has no types
    meta = parquet.metadata.row_group(group)
    mean = max(1, meta.total_byte_size // max(1, meta.num_rows))
    return int(max(1, min(_BATCH_ROWS, _BATCH_BYTES // mean)))


def _objects(batch: Any) -> Iterator[Any]:  # noqa: ANN401 - pyarrow has no types
    """Yield rows as Python values; the error for one that is not text where text belongs."""
    if not batch.num_rows:
        return
    step = max(1, _SLICE_BYTES * batch.num_rows // max(1, batch.nbytes))
    for at in range(0, batch.num_rows, step):
        some = batch.slice(at, step)
        try:
            yield from some.to_pylist()
        except UnicodeDecodeError as exc:
            if some.num_rows == 1:
                yield exc
            else:
                for i in range(some.num_rows):
                    yield from _objects(some.slice(i, 1))
