"""The connections of a running store, each in its own aiosqlite thread.

`WriteBackend` runs a whole transaction in one call into the connection's thread, so that nothing
else can come between its statements and the event loop pays one hop a transaction.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import aiosqlite

from eagled.clock import Clock
from eagled.crashpoints import crash_point
from eagled.errors import StoreError
from eagled.paths import StatePaths
from eagled.store.executor import SqliteExecutor, connect, connect_reader, store_error
from eagled.store.opening import (
    Inspection,
    Opened,
    inspect,
    open_database,
    require_present,
)
from eagled.store.ops.base import Tx
from eagled.store.ops.generation import RETRY_CLAMP_MS
from eagled.store.stamp import StampState
from eagled.store.transaction import AnyOp, Batch, roll_back, run_batch

log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")
_CHUNK = 64  # aiosqlite's cursor iteration, which nothing here uses


async def in_thread(
    conn: aiosqlite.Connection, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Run `work` in the thread that owns `conn`."""
    execute: Callable[..., Awaitable[R]] = conn._execute  # noqa: SLF001 - the one way into its thread
    return await execute(work, *args, **kwargs)


async def open_connection(
    stack: AsyncExitStack, connector: Callable[[], sqlite3.Connection]
) -> aiosqlite.Connection:
    """Open a connection that `stack` closes on every path."""
    conn = aiosqlite.Connection(connector, _CHUNK)
    await conn
    stack.push_async_callback(conn.close)
    return conn


class ReadBackend:
    """A read-only connection; requests queue up in its thread, each short."""

    def __init__(self, conn: aiosqlite.Connection, path: Path) -> None:
        self._conn = conn
        self._path = path
        self._raw = conn._conn  # noqa: SLF001 - used in its own thread only
        self._db = SqliteExecutor(self._raw)

    @classmethod
    async def open(cls, stack: AsyncExitStack, path: Path) -> ReadBackend:
        """Open the connection; `stack` closes it."""
        return cls(await open_connection(stack, lambda: connect_reader(path)), path)

    async def read(
        self,
        query: Callable[Concatenate[SqliteExecutor, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run one query function.

        Raises:
            StoreError: if the store is closed or the database damaged.
        """
        try:
            return await in_thread(self._conn, query, self._db, *args, **kwargs)
        except sqlite3.Error as exc:
            raise store_error(exc, self._path) from exc
        except ValueError as exc:
            if "closed" in str(exc) or "no active connection" in str(exc):
                raise StoreError("the store is closed") from exc
            raise


class WriteBackend:
    """The one connection that writes, with the stamp file beside it."""

    def __init__(
        self, conn: aiosqlite.Connection, opened: Opened, clock: Clock, path: Path
    ) -> None:
        self._conn = conn
        self._clock = clock
        self._path = path
        self._db = opened.db
        self._stamp = opened.stamp
        self._lineage = opened.lineage
        self._turns: dict[str, int] = {}
        self._start_ms = clock.now_ms()
        self._start_s = clock.monotonic()
        self.epoch = opened.epoch
        self.last_seq = 0
        self.commits = 0

    @property
    def stamp_error(self) -> str | None:
        """What keeps the stamp from being written, None if nothing does."""
        return self._stamp.error

    async def run(self, ops: Sequence[AnyOp]) -> Batch:
        """Run one transaction and record it in the stamp."""
        return await in_thread(self._conn, self._run, ops)

    async def idle(self) -> None:
        """Make the last stamp durable."""
        await in_thread(self._conn, self._stamp.sync)

    async def vacuum(self, pages: int) -> None:
        """Give up to `pages` free pages back to the file system."""
        await in_thread(self._conn, self._vacuum, pages)

    async def shut(self) -> None:
        """Record the orderly stop and fold the log into the database.

        Raises:
            DiskError: if the disk refuses; the next start then checks the database.
        """
        await in_thread(self._conn, self._shut)

    def _tx(self) -> Tx:
        passed_ms = round((self._clock.monotonic() - self._start_s) * 1000)
        return Tx(
            db=self._db,
            now_ms=self._clock.now_ms(),
            due_ms=self._start_ms + passed_ms,
            epoch=self.epoch,
            turns=self._turns,
        )

    def _run(self, ops: Sequence[AnyOp]) -> Batch:
        batch = run_batch(self._db, ops, self._tx)
        if batch.seq is not None:
            self.last_seq = batch.seq
            self.commits += 1
            self._write_stamp(batch.seq)
            crash_point("after_stamp")
        return batch

    def _write_stamp(self, seq: int) -> None:
        self._stamp.write(StampState(self._lineage, seq, self.epoch, self._clock.now_ms()))

    def _vacuum(self, pages: int) -> None:
        # executescript steps to the end; execute() of a statement without columns frees one page
        self._db.conn.executescript(f"PRAGMA incremental_vacuum({int(pages)})")

    def _shut(self) -> None:
        try:
            self._write_stamp(self._record_stop())
        except sqlite3.Error as exc:
            raise store_error(exc, self._path) from exc
        try:
            self._db.sql("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as exc:  # nothing is lost: the next start reads the log
            log.warning("the log stays as it is: %s", store_error(exc, self._path))

    def _record_stop(self) -> int:
        db = self._db
        db.sql("BEGIN IMMEDIATE")
        try:
            db.run("set_clean")
            seq = int(db.rows("bump_seq")[0][0])
            db.sql("COMMIT")
        except BaseException:
            roll_back(db)
            raise
        return seq

    def close_stamp(self) -> None:
        """Sync and close the stamp file."""
        self._stamp.close()


async def open_writer(
    stack: AsyncExitStack,
    paths: StatePaths,
    clock: Clock,
    backup: Callable[[int], None],
    *,
    create: bool,
    longest_wait_s: float,
) -> tuple[WriteBackend, Opened]:
    """Inspect, open and recover the database; `stack` closes what was opened.

    Raises:
        StoreError: if the database must not be used as it is.
        DiskError: if the disk refuses.
    """
    await asyncio.to_thread(require_present, paths, create=create)
    found: Inspection = await asyncio.to_thread(inspect, paths)
    conn = await open_connection(stack, lambda: connect(paths.database, "rw"))
    raw = conn._conn  # noqa: SLF001 - used in its own thread only
    now_ms = clock.now_ms()
    latest_ms = now_ms + min(RETRY_CLAMP_MS, round(longest_wait_s * 1000))
    opened = await in_thread(conn, open_database, paths, raw, found, now_ms, latest_ms, backup)
    backend = WriteBackend(conn, opened, clock, paths.database)
    stack.callback(backend.close_stamp)
    return backend, opened
