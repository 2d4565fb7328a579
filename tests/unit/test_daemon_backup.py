"""Automatic copies of the database: when, how many, and what they hold."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eagled.clock import SystemClock
from eagled.daemon_backup import BackupKeeper, keep_backups
from eagled.daemon_runtime import AlarmBoard, Runtime
from eagled.daemon_thread import until_cancelled
from eagled.errors import DiskError, EagledError
from eagled.paths import StatePaths
from eagled.store import Store
from eagled.store.opening import wal_of
from eagled.store.tools import BackupStoppedError, backup, check_database, restore
from eagled.types import EventKind
from tests.servers.kit import until
from tests.unit.store.helpers import filled, opened

HOUR_MS = 3_600_000


async def _store(root: Path) -> Store:
    return await Store.open(StatePaths(root), clock=SystemClock(), create=True)


async def test_a_copy_is_due_at_first_and_when_the_newest_is_too_old(tmp_path: Path) -> None:
    """None yet: due. Young: not due. Old and changed: due. Old and unchanged: not due."""
    store = await _store(tmp_path)
    keeper = BackupKeeper(StatePaths(tmp_path), 24, 3)
    seq = store.last_seq
    assert keeper.due(0, seq)

    made = keeper.make()
    at_ms = made.stat().st_mtime_ns // 1_000_000
    assert not keeper.due(at_ms + 23 * HOUR_MS, seq + 1)
    assert keeper.due(at_ms + 25 * HOUR_MS, seq + 1)
    keeper.settled(seq)
    assert not keeper.due(at_ms + 25 * HOUR_MS, seq)
    await store.close()


async def test_a_clock_set_back_does_not_end_the_copies(tmp_path: Path) -> None:
    """A newest copy from far in the future counts as none."""
    store = await _store(tmp_path)
    keeper = BackupKeeper(StatePaths(tmp_path), 24, 3)
    made = keeper.make()
    at_ms = made.stat().st_mtime_ns // 1_000_000

    assert keeper.due(at_ms - 48 * HOUR_MS, store.last_seq + 1)
    await store.close()


def test_zero_hours_makes_none(tmp_path: Path) -> None:
    """Who has a backup of their own turns this one off."""
    assert not BackupKeeper(StatePaths(tmp_path), 0, 3).due(0, 5)


async def test_the_newest_copies_stay_and_nothing_else_is_touched(tmp_path: Path) -> None:
    """Of five copies the last two stay; one made by hand stays too; each can be restored."""
    store = await _store(tmp_path)
    paths = StatePaths(tmp_path)
    keeper = BackupKeeper(paths, 24, 2)
    by_hand = paths.backups / "q-v1-000000000000.db"
    made = []
    for number in range(5):
        await store.add_event(EventKind.ALARM, "x", str(number))
        made.append(keeper.make())
        os.utime(made[-1], ns=(number * 10**9, number * 10**9))
    by_hand.write_bytes(b"mine")

    assert made[-2:] == sorted(keeper.folder.glob("*.db"))
    assert by_hand.read_bytes() == b"mine"
    await store.close()
    restore(paths, made[-1])
    assert check_database(paths).ok


def test_no_room_is_said_and_older_copies_stay(tmp_path: Path) -> None:
    """The folder cannot be made: DiskError names it."""
    (tmp_path / "backups").write_bytes(b"")

    with pytest.raises(DiskError, match="backups"):
        BackupKeeper(StatePaths(tmp_path), 24, 2).make()


def _ran_out(left: Iterator[int]) -> bool:
    return next(left, None) is None


async def test_a_copy_that_is_given_up_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the word to stop comes, no file stays and the database can be closed in order."""
    monkeypatch.setattr("eagled.store.tools._COPY_PAGES", 8)
    monkeypatch.setattr("eagled.store.tools._STOP_STEPS", 50)
    paths = StatePaths(tmp_path)
    async with opened(tmp_path) as store:
        await filled(store, 100)
        asked = count()
        backup(paths, None, lambda: next(asked) < 0).unlink()
        n = next(asked)
        assert n > 10
        for last in (0, 1, n // 2, n - 2, n - 1):
            with pytest.raises(BackupStoppedError, match="given up"):
                backup(paths, None, partial(_ran_out, iter(range(last))))
            assert [] == list(paths.backups.iterdir())

    assert not wal_of(paths.database).exists()
    assert check_database(paths).ok


async def test_a_copy_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is not kept full by half a copy; the error is told as it is."""

    def full(*_args: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("eagled.store.tools.quick_check", full)
    paths = StatePaths(tmp_path)
    async with opened(tmp_path):
        with pytest.raises(EagledError, match="full"):
            backup(paths)

    assert [] == list(paths.backups.iterdir())


async def test_a_copy_under_writes_is_one_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is committed while pages are copied is not in the copy, and does not start it over."""
    monkeypatch.setattr("eagled.store.tools._COPY_PAGES", 8)
    paths = StatePaths(tmp_path)
    async with opened(tmp_path) as store:
        await filled(store, 200)
        loop, before = asyncio.get_running_loop(), store.last_seq
        steps: list[int] = []

        def write() -> bool:
            steps.append(len(steps))
            if len(steps) < 3:
                event = store.add_event(EventKind.ALARM, "x", "written meanwhile")
                asyncio.run_coroutine_threadsafe(event, loop).result()
            return False

        made = await asyncio.to_thread(backup, paths, None, write)
        assert store.last_seq == before + 2
        assert 3 < len(steps) < 100

    restore(paths, made)
    assert f"{before:012d}" in made.name
    assert check_database(paths).ok


async def test_cancelling_waits_until_the_thread_has_let_go() -> None:
    """The daemon closes its database only after the copy's own connection is closed."""
    begun, let_go = threading.Event(), threading.Event()

    def make(stop: Callable[[], bool]) -> Path:
        begun.set()
        while not stop():
            pass
        let_go.set()
        raise BackupStoppedError

    task = asyncio.create_task(until_cancelled(make, "backup"))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert let_go.is_set()


def _once(owner: type, name: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first call of a method fail; later ones, and the test's own, are the real thing."""
    real, calls = getattr(owner, name), count()

    def failing(*args: Any, **named: Any) -> Any:
        if EventKind.ALARM not in args and next(calls) == 0:
            raise error
        return real(*args, **named)

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize(
    ("owner", "name", "error", "alarm"),
    [
        (BackupKeeper, "due", OSError(errno.EMFILE, "Too many open files"), True),
        (BackupKeeper, "make", OSError(errno.EMFILE, "Too many open files"), True),
        (BackupKeeper, "make", DiskError("the disk is full"), True),
        (Store, "add_event", DiskError("the disk is full"), False),
    ],
    ids=["no file to look with", "no file to copy with", "full while copying", "full at the event"],
)
async def test_a_failure_does_not_end_the_copies(
    owner: type, name: str, error: Exception, alarm: bool,  # noqa: FBT001 - a table of cases
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It is an alarm, or a line where the copy is there; the next look makes a copy as ever."""
    monkeypatch.setattr("eagled.daemon_backup.LOOK_S", 0.01)
    store, clock = await _store(tmp_path), SystemClock()
    raised: list[str] = []
    monkeypatch.setattr(AlarmBoard, "raise_", lambda _self, kind, _text: raised.append(kind))
    daemon = SimpleNamespace(backup_every_h=1e-9, backup_keep=2)
    runtime = SimpleNamespace(
        config=SimpleNamespace(daemon=daemon), paths=StatePaths(tmp_path), store=store,
        clock=clock, board=AlarmBoard(clock),
    )  # fmt: skip
    _once(owner, name, error, monkeypatch)

    async def told() -> bool:
        """Change something, so that a copy is due, and return whether one has its event."""
        assert not task.done(), task
        await store.add_event(EventKind.ALARM, "x", "something changed")
        return any(e.kind is EventKind.BACKUP_MADE for e in await store.events(0, 10_000))

    task = asyncio.create_task(keep_backups(cast("Runtime", runtime)))
    try:
        await until(told)
    finally:
        task.cancel()
        await asyncio.wait({task})
        await store.close()

    assert alarm == ("backup" in raised)
    assert list((tmp_path / "backups/auto").glob("q-v*.db"))
