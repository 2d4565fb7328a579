"""Automatic copies of the database: when, how many, and what they hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eagled.clock import SystemClock
from eagled.daemon_backup import BackupKeeper
from eagled.errors import DiskError
from eagled.paths import StatePaths
from eagled.store import Store
from eagled.store.tools import check_database, restore
from eagled.types import EventKind

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
