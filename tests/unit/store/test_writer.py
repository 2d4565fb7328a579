"""The writer when things go wrong: full disks, broken databases, closed stores."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from eagled.clock import FakeClock
from eagled.errors import DiskError, StoreError
from eagled.paths import StatePaths
from eagled.store import Store, StoreReader
from eagled.store.executor import WRITER_PRAGMAS, SqliteExecutor, connect, connect_reader
from eagled.store.transaction import AnyOp, Batch
from eagled.types import SampleState
from tests.unit.store.helpers import (
    ANSWER,
    LANES,
    conversations,
    filled,
    generate,
    opened,
    problems,
    record,
    state_counts,
)


async def limit_pages(store: Store, pages: int) -> None:
    """Make SQLite refuse to grow the file: the same SQLITE_FULL that a full disk gives."""
    backend = store._backend
    await backend._conn.execute(f"PRAGMA max_page_count = {pages}")


async def test_full_disk_fails_the_callers_and_heals(tmp_path: Path) -> None:
    """Operations that find no room get DiskError; nothing acknowledged is lost; work goes on."""
    async with opened(tmp_path) as store:
        number = await filled(store, 20)
        acked = await generate(store, 10)
        await limit_pages(store, 1)
        with pytest.raises(DiskError, match="full"):
            await store.add_conversations(number, conversations("more", 200))
        assert not store.failed.done()
        await limit_pages(store, 1_000_000)
        result = await store.add_conversations(number, conversations("more", 200))
        counts = await state_counts(store)

    assert result.added == 200
    assert {SampleState.GENERATED: len(acked), SampleState.QUEUED: 210} == counts
    assert [] == list(problems(tmp_path))


def _raise(error: Exception) -> Batch:
    raise error


async def test_writer_that_dies_stops_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error it cannot explain the store takes nothing more, and says so at once."""
    async with opened(tmp_path) as store:
        await filled(store, 3)

        async def broken(_: Sequence[AnyOp]) -> Batch:
            return _raise(RuntimeError("boom"))

        monkeypatch.setattr(store._backend, "run", broken)
        results = await asyncio.gather(
            *(store.claim("short", 1) for _ in range(3)), return_exceptions=True
        )
        cause = await asyncio.wait_for(store.failed, 5)
        with pytest.raises(StoreError, match="boom"):
            await store.claim("short", 1)
        alarms = store.alarms
    async with opened(tmp_path) as store:
        recovery = store.recovery

    assert [StoreError] * 3 == [type(r) for r in results]
    assert "boom" in str(cause)
    assert "boom" in alarms[0]
    assert not recovery.clean


async def test_failed_sync_is_fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed fsync is never tried again: what the kernel dropped cannot be known."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
    async with opened(tmp_path) as store:

        async def broken(_: Sequence[AnyOp]) -> Batch:
            return _raise(error)

        monkeypatch.setattr(store._backend, "run", broken)
        with pytest.raises(StoreError):
            await store.add_dataset(record())

        assert store.failed.done()


async def test_closed_store_says_so(tmp_path: Path) -> None:
    """Every call after close is a StoreError, reading included; closing twice is fine."""
    async with opened(tmp_path) as store:
        pass
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.claim("short", 1)
    with pytest.raises(StoreError, match="closed"):
        await store.counters()


def _refusing(statement: str) -> Callable[[SqliteExecutor, str], list[Any]]:
    """Return an `SqliteExecutor.sql` for which the disk is full at one statement."""
    real = SqliteExecutor.sql

    def sql(self: SqliteExecutor, text: str) -> list[Any]:
        if text.startswith(statement):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = "SQLITE_IOERR_WRITE"
            raise error
        return list(real(self, text))

    return sql


@pytest.mark.parametrize(
    ("statement", "refused"), [("COMMIT", True), ("PRAGMA wal_checkpoint", False)]
)
async def test_a_disk_that_refuses_the_last_words_is_a_disk_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, *, refused: bool
) -> None:
    """The stop is not recorded: DiskError. Only the log is not folded: closed in order."""
    async with opened(tmp_path) as store:
        await filled(store, 3)
    store = await Store.open(StatePaths(tmp_path), clock=FakeClock())
    with monkeypatch.context() as patch:
        patch.setattr(SqliteExecutor, "sql", _refusing(statement))
        if refused:
            with pytest.raises(DiskError, match="check the disk"):
                await store.close()
        else:
            await store.close()

    async with await Store.open(StatePaths(tmp_path), clock=FakeClock()) as again:
        assert (not refused, {SampleState.QUEUED: 3}) == (
            again.recovery.clean, {row.state: row.n for row in await again.counters()},
        )  # fmt: skip


async def test_close_works_off_what_waits(tmp_path: Path) -> None:
    """Operations queued before close are written and acknowledged."""
    async with opened(tmp_path) as store:
        await filled(store, 50)
        claims = await store.claim("short", 50)
        waiting = [asyncio.create_task(store.complete(c.fence, ANSWER)) for c in claims]
        await asyncio.sleep(0)  # let them reach the queue
        await store.close()
        done = await asyncio.gather(*waiting)

    assert [True] * 50 == done


@pytest.mark.fault("F95")
async def test_f95_connections_are_closed_on_every_path(tmp_path: Path) -> None:
    """No thread of a connection outlives a close, a refused start, or a failed store."""
    before = threading.active_count()
    async with opened(tmp_path / "a") as store:
        await filled(store, 1)
    (tmp_path / "b").mkdir()
    with pytest.raises(StoreError):
        await Store.open(StatePaths(tmp_path / "b"), clock=FakeClock())
    StatePaths(tmp_path / "a").stamp.write_bytes(b"")
    (tmp_path / "a" / "q.db-wal").write_bytes(b"")
    async with opened(tmp_path / "a") as store:
        store.failed.set_result(RuntimeError("found later"))
    loop = asyncio.get_running_loop()
    await loop.shutdown_default_executor()

    assert before >= threading.active_count()


@pytest.mark.fault("F96")
async def test_f96_no_sample_ever_meets_a_locked_database(tmp_path: Path) -> None:
    """200 workers write while another connection reads all the time: no call fails."""
    stop = threading.Event()
    reads = []

    def read() -> None:
        with StoreReader(StatePaths(tmp_path).database) as reader:
            while not stop.is_set():
                reads.append(len(reader.freeze()))

    async def work(store: Store) -> None:
        while claims := await store.claim("short", 1):
            assert await store.complete(claims[0].fence, ANSWER)

    async with opened(tmp_path) as store:
        await filled(store, 1000)
        reader = asyncio.create_task(asyncio.to_thread(read))
        await asyncio.gather(*(work(store) for _ in range(200)))
        stop.set()
        await reader
        counts = await state_counts(store)

    assert {SampleState.GENERATED: 1000} == counts
    assert reads


@pytest.mark.fault("F96")
def test_f96_every_connection_waits_and_readers_cannot_write(tmp_path: Path) -> None:
    """WAL and a busy wait are set and read back; a reader neither writes nor checkpoints."""
    asyncio.run(_make(tmp_path))
    path = StatePaths(tmp_path).database
    reader = connect_reader(path)
    try:
        db = SqliteExecutor(reader)
        found = [db.sql(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "busy_timeout")]
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            db.run("set_clean")
    finally:
        reader.close()

    assert ["wal", 5000] == found


async def test_pragmas_hold_on_the_writer(tmp_path: Path) -> None:
    """What durability rests on is what the writer's connection really has."""
    async with opened(tmp_path) as store:
        raw = store._backend._conn
        found = {}
        for name in (*WRITER_PRAGMAS, "page_size", "auto_vacuum"):
            rows = list(await raw.execute_fetchall(f"PRAGMA {name}"))
            found[name] = rows[0][0]

    assert dict(WRITER_PRAGMAS) | {"page_size": 4096, "auto_vacuum": 2} == found


async def test_foreign_writer_is_waited_for(tmp_path: Path) -> None:
    """A tool that holds the write lock for a moment delays a claim, it does not fail it.

    Meanwhile the claim counts as undone, although nothing waits behind it.
    """
    async with opened(tmp_path) as store:
        await filled(store, 1)
        other = connect(StatePaths(tmp_path).database, "rw")
        other.execute("BEGIN IMMEDIATE")
        task = asyncio.create_task(store.claim("short", 1))
        done, _ = await asyncio.wait({task}, timeout=0.2)
        depth = store.queue_depth
        other.execute("ROLLBACK")
        other.close()
        claims = await task

    assert (set(), 1, 0) == (done, depth, store.queue_depth)
    assert len(claims) == 1


async def _make(root: Path) -> None:
    async with opened(root) as store:
        await store.sync_lanes(LANES)
