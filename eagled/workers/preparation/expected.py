"""About how large a source is, without reading it."""

from __future__ import annotations

from pathlib import Path

from eagled.config import DatasetConfig
from eagled.readers.sources import Source

_HEAD_BYTES = 1 << 20
_PARQUET = ".parquet"
_LINES = (".jsonl", ".ndjson")


def rows_expected(source: Source) -> int | None:
    """Return the rows of a source: counted for Parquet, estimated for JSON Lines.

    The estimate comes from the first megabyte. None for compressed files, JSON arrays and the hub.
    """
    total = 0
    for _, file in source.files:
        rows = _rows_of(file) if isinstance(file, Path) else None
        if rows is None:
            return None
        total += rows
    return total or None


def size_of(dataset: DatasetConfig) -> int | None:
    """Return the bytes of a local file or folder; None for the hub."""
    path = Path(dataset.source)
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size if path.is_file() else None


def _rows_of(path: Path) -> int | None:
    if path.name.endswith(_PARQUET):
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return int(pq.read_metadata(path).num_rows)
        except (pa.ArrowException, OSError):
            return None  # reading it will say what is wrong
    if not path.name.endswith(_LINES):
        return None
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    size, lines = path.stat().st_size, head.count(b"\n")
    return lines if size <= len(head) else round(size * lines / len(head)) if lines else None
