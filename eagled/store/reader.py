"""Long reads of the store: merge, export and checks, beside a running daemon.

Guarantee: the connection can neither write nor checkpoint, and no statement outlives a chunk of 500
rows, so the write-ahead log stays small however long the reader lives. Price: no snapshot; a member
that changed since it was frozen is seen by its attempt or CRC, never mixed in silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import orjson

from eagled.errors import StoreError
from eagled.store import queries
from eagled.store.executor import SqliteExecutor, connect_reader
from eagled.store.migrate import require_ours
from eagled.store.opening import Meta, read_meta, told
from eagled.store.records import Body, DatasetRow, Frozen, ShardRow, StoredMember
from eagled.tokens import PackedIds
from eagled.types import Finish

_STEPS = 10_000  # of SQLite's machine between two questions whether to stop; about a millisecond
CHUNK = 500  # rows of one read; larger ones were measured slower and hold the log


class StoreReader:
    """A read-only view for the calling thread; a context manager.

    Every statement asks `stop` now and then, and ends with a `StoreError` once that says True.
    """

    def __init__(self, database: Path, stop: Callable[[], bool] | None = None) -> None:
        self._path = database
        self._conn = connect_reader(database)
        if stop is not None:
            self._conn.set_progress_handler(stop, _STEPS)
        self.db = SqliteExecutor(self._conn)
        try:
            with told(database):
                require_ours(self.db)
        except BaseException:
            self._conn.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._conn.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def meta(self) -> Meta:
        """Return lineage, sequence and epoch."""
        with told(self._path):
            return read_meta(self.db)

    def datasets(self) -> list[DatasetRow]:
        """Return all datasets."""
        with told(self._path):
            return queries.datasets(self.db)

    def shards(self) -> list[ShardRow]:
        """Return all shards, dropped ones included."""
        with told(self._path):
            return queries.shards(self.db)

    def shard_members(self, name: str) -> list[StoredMember]:
        """Return the samples of one shard in file order."""
        with told(self._path):
            return queries.shard_members(self.db, name)

    def freeze(self) -> list[Frozen]:
        """Return every accepted answer, by dataset and then id."""
        return [member for dataset in self.datasets() for member in self._freeze(dataset.id)]

    def _freeze(self, dataset_id: int) -> Iterator[Frozen]:
        after = 0
        while True:
            with told(self._path):
                rows = self.db.rows("freeze", {"dataset_id": dataset_id, "after": after})
            yield from (Frozen(number, attempt, crc, dataset_id) for number, attempt, crc in rows)
            if len(rows) < CHUNK:
                return
            after = rows[-1][0]

    def waiting_extraction(self) -> Iterator[tuple[int, bytes]]:
        """Yield number and uid of every accepted answer without hidden states."""
        after = 0
        while True:
            with told(self._path):
                rows = self.db.rows("extract_waiting", {"after": after, "n": CHUNK})
            yield from rows
            if len(rows) < CHUNK:
                return
            after = rows[-1][0]

    def lengths(self) -> Iterator[tuple[str, str | None, int, int | None, int | None]]:
        """Yield dataset, lane, state code, prompt and answer tokens of every sample."""
        after = 0
        while True:
            with told(self._path):
                rows = self.db.rows("lengths", {"after": after})
            yield from (tuple(row[1:]) for row in rows)
            if len(rows) < CHUNK:
                return
            after = rows[-1][0]

    def some_lengths(
        self, last: int, most: int
    ) -> Iterator[tuple[str, str | None, int | None, int | None]]:
        """Yield dataset, lane, prompt and answer tokens of at most `most` samples, evenly spread.

        Args:
            last: the highest number of a sample.
            most: samples to read.
        """
        if last <= most:
            yield from ((dataset, lane, p, o) for dataset, lane, _, p, o in self.lengths())
            return
        parts = max(1, most // CHUNK)
        for part in range(parts):
            with told(self._path):
                rows = self.db.rows("lengths", {"after": part * last // parts})
            yield from ((dataset, lane, p, o) for _, dataset, lane, _, p, o in rows)

    def bodies(self, ids: Sequence[int]) -> Iterator[Body]:
        """Yield the accepted answers among `ids`, in their order; those that are gone are left out.

        Raises:
            StoreError: if a sample's stored ids are missing.
        """
        for start in range(0, len(ids), CHUNK):
            part = ids[start : start + CHUNK]
            with told(self._path):
                rows = self.db.rows("bodies", {"ids": orjson.dumps(list(part)).decode()})
            found = {row[0]: row for row in rows}
            for number in part:
                if number in found:
                    yield _body(found[number])


def _body(row: tuple[object, ...]) -> Body:
    number, attempt, uid, dataset, talk, turn, finish, p, p_crc, n_p, a, a_crc, n_a = row
    if p is None or a is None:
        raise StoreError(f"the stored ids of sample {number} are missing: `eagled db check`")
    prompt = PackedIds(p, p_crc, n_p)  # type: ignore[arg-type]  # STRICT columns give these types
    output = PackedIds(a, a_crc, n_a)  # type: ignore[arg-type]  # STRICT columns give these types
    return Body(number, attempt, uid, dataset, talk, turn, Finish(finish), prompt, output)  # type: ignore[arg-type]  # STRICT columns give these types
