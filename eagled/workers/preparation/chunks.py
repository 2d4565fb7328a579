"""Cut a source into chunks, always at the same places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from eagled.readers.sources import SourceRow
from eagled.workers.preparation.messages import Chunk

CHUNK_ROWS = 128
CHUNK_CHARS = 1 << 19  # a process holds three chunks; a row of 50 MB is a chunk of its own


def chunks_of(rows: Iterable[SourceRow], first: int = 0) -> Iterator[Chunk]:
    """Yield chunks, numbered from `first`; where they end depends on the rows alone."""
    batch: list[SourceRow] = []
    chars = 0
    for row in rows:
        batch.append(row)
        chars += weight_of(row.value)
        if len(batch) >= CHUNK_ROWS or chars >= CHUNK_CHARS:
            yield Chunk(first, tuple(batch), chars)
            first, batch, chars = first + 1, [], 0
    if batch:
        yield Chunk(first, tuple(batch), chars)


def weight_of(value: object) -> int:
    """Return about the characters of text in a JSON value."""
    total, todo = 0, [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, Mapping):
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)
        else:
            total += 8
    return total
