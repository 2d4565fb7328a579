"""The stamp file and what start-up does about damage (every row of the damage table)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from eagled.clock import FakeClock
from eagled.errors import StoreError
from eagled.paths import StatePaths
from eagled.store import Store, tools
from eagled.store.backend import in_thread
from eagled.store.opening import inspect, read_meta, shm_of, wal_of
from eagled.store.reader import StoreReader
from eagled.store.stamp import SLOT_BYTES, Stamp, StampState, pack_slot, read_stamp, unpack_slot
from eagled.types import EventKind
from tests.unit.store.helpers import conversations, filled, generate, opened, record

STATE = StampState(b"L" * 16, 7, 2, 1_800_000_000_000)
OTHER = StampState(b"M" * 16, 7, 2, 1_800_000_000_000)


def test_slot_roundtrip_and_any_flip_is_noticed() -> None:
    """A slot comes back as written; one changed byte of its content makes it invalid."""
    raw = pack_slot(STATE)

    assert len(raw) == SLOT_BYTES
    assert unpack_slot(raw) == STATE
    for place in range(0, 56, 5):
        bad = bytearray(raw)
        bad[place] ^= 1
        assert unpack_slot(bytes(bad)) is None, place


def test_highest_valid_slot_wins(tmp_path: Path) -> None:
    """Slots are used in turn; a torn one leaves the other."""
    path = tmp_path / "q.stamp"
    stamp = Stamp(path)
    for seq in (8, 9):
        stamp.write(StampState(b"L" * 16, seq, 2, 0))
    stamp.close()
    both = read_stamp(path)
    raw = bytearray(path.read_bytes())
    raw[SLOT_BYTES : 2 * SLOT_BYTES] = b"x" * SLOT_BYTES
    path.write_bytes(raw)
    one = read_stamp(path)

    assert both is not None
    assert one is not None
    assert (9, 8) == (both.seq, one.seq)


def test_failing_stamp_is_an_alarm_not_an_error(tmp_path: Path) -> None:
    """A stamp that cannot be written is said, and nothing else happens."""
    stamp = Stamp(tmp_path / "q.stamp")
    stamp.close()
    stamp.write(STATE)

    assert stamp.error is not None


@dataclass(frozen=True)
class Crashed:
    """A state directory as kill -9 left it, and an older copy of its database."""

    paths: StatePaths
    older: Path
    seq: int


async def crash(root: Path, folder: Path) -> Crashed:
    """Run a store, copy its files while it runs (what kill -9 leaves), and return the copy."""
    live = StatePaths(root)
    paths = StatePaths(folder)
    async with opened(root) as store:
        number = await filled(store, 400)
        older = tools.backup(live, folder / "older.db")
        for part in range(20):
            if part == 15:  # from here on the log lacks what the older copy lacks
                backend = store._backend
                checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)"
                await in_thread(backend._conn, backend._db.sql, checkpoint)
            await store.add_conversations(number, conversations(f"more{part}", 20))
            await generate(store, 2)
        for source, target in (
            (live.database, paths.database),
            (wal_of(live.database), wal_of(paths.database)),
            (live.stamp, paths.stamp),
        ):
            shutil.copy(source, target)
        seq = store._backend.last_seq
    return Crashed(paths, older, seq)


def flip(path: Path, place: int) -> None:
    """Change one bit."""
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)


def cut(path: Path, size: int) -> None:
    """Shorten a file."""
    with path.open("r+b") as file:
        file.truncate(size)


def _wal(c: Crashed) -> Path:
    return wal_of(c.paths.database)


def _copy_older(c: Crashed) -> None:
    shutil.copy(c.older, c.paths.database)


def _older_without_wal(c: Crashed) -> None:
    _copy_older(c)
    _wal(c).unlink()


WENT_BACK = "went back in time"
DAMAGE: dict[str, tuple[Callable[[Crashed], object], str]] = {
    "wal deleted": (lambda c: _wal(c).unlink(), WENT_BACK),
    "wal emptied": (lambda c: cut(_wal(c), 0), WENT_BACK),
    "wal header flipped": (lambda c: flip(_wal(c), 9), WENT_BACK),
    "wal cut at half": (lambda c: cut(_wal(c), _wal(c).stat().st_size // 2), WENT_BACK),
    "wal flipped at half": (lambda c: flip(_wal(c), _wal(c).stat().st_size // 2), WENT_BACK),
    "last frame cut": (lambda c: cut(_wal(c), _wal(c).stat().st_size - 100), WENT_BACK),
    "last frame flipped": (lambda c: flip(_wal(c), _wal(c).stat().st_size - 100), WENT_BACK),
    "older backup": (_older_without_wal, WENT_BACK),
    "older backup, newer wal": (_copy_older, "damaged"),
    "database deleted": (lambda c: c.paths.database.unlink(), "missing although"),
    "database emptied": (lambda c: cut(c.paths.database, 0), "empty although"),
    "other lineage": (lambda c: c.paths.stamp.write_bytes(pack_slot(OTHER) * 2), "not the one"),
}


@pytest.mark.parametrize("name", DAMAGE)
async def test_damage_is_refused(tmp_path: Path, name: str) -> None:
    """Each damage is named at start and leaves every file as it was."""
    damage, message = DAMAGE[name]
    folder = tmp_path / "copy"
    folder.mkdir()
    crashed = await crash(tmp_path / "live", folder)
    damage(crashed)
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "q.db-shm"}
    with pytest.raises(StoreError, match=message):
        await Store.open(crashed.paths, clock=FakeClock(), create=True)
    after = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "q.db-shm"}

    assert before.keys() <= after.keys()
    assert before == {name: after[name] for name in before}


def _nothing(_: Crashed) -> None:
    return None


MENDED: dict[str, tuple[Callable[[Crashed], object], int]] = {
    "none": (_nothing, 0),
    "stamp deleted": (lambda c: c.paths.stamp.unlink(), 1),
    "stamp emptied": (lambda c: cut(c.paths.stamp, 0), 1),
    "older slot garbage": (
        lambda c: c.paths.stamp.write_bytes(_keep_newest(c.paths.stamp.read_bytes())),
        0,
    ),
    "shm garbage": (lambda c: shm_of(c.paths.database).write_bytes(b"x" * 32768), 0),
}


def _keep_newest(raw: bytes) -> bytes:
    slots = [raw[:SLOT_BYTES], raw[SLOT_BYTES : 2 * SLOT_BYTES]]
    states = [unpack_slot(slot) for slot in slots]
    newest = max(range(2), key=lambda i: states[i].seq if states[i] else -1)  # type: ignore[union-attr]  # tested just before
    slots[1 - newest] = b"?" * SLOT_BYTES
    return b"".join(slots)


@pytest.mark.parametrize("name", MENDED)
async def test_harmless_damage_is_mended(tmp_path: Path, name: str) -> None:
    """A crash, a lost stamp or a garbled slot loses nothing; a lost stamp is said."""
    damage, warnings = MENDED[name]
    folder = tmp_path / "copy"
    folder.mkdir()
    crashed = await crash(tmp_path / "live", folder)
    damage(crashed)
    store = await Store.open(crashed.paths, clock=FakeClock())
    recovery, total = store.recovery, sum(row.n for row in await store.counters())
    await store.close()

    assert warnings == len(recovery.warnings)
    assert (False, True) == (recovery.clean, recovery.checked)
    assert total == 800
    assert tools.check_database(crashed.paths).ok


async def test_accept_starts_a_new_lineage(tmp_path: Path) -> None:
    """After an accept with the right number the store opens; the old stamp is gone, both slots."""
    folder = tmp_path / "copy"
    folder.mkdir()
    crashed = await crash(tmp_path / "live", folder)
    old = read_stamp(crashed.paths.stamp)
    _older_without_wal(crashed)
    with StoreReader(crashed.paths.database) as reader:
        seq = reader.meta().seq
    with pytest.raises(StoreError, match=f"sequence {seq}, not {seq + 1}"):
        tools.accept(crashed.paths, seq + 1)
    tools.accept(crashed.paths, seq)
    store = await Store.open(crashed.paths, clock=FakeClock())
    kinds = [event.kind for event in await store.events(0, 100)]
    lineage, epoch = store.lineage, store.epoch
    await store.close()
    raw = crashed.paths.stamp.read_bytes()
    slots = [unpack_slot(raw[i : i + SLOT_BYTES]) for i in (0, SLOT_BYTES)]

    assert old is not None
    assert lineage != old.lineage
    assert epoch > old.epoch
    assert EventKind.STORE_ACCEPTED in kinds
    assert {lineage} == {slot.lineage for slot in slots if slot}


async def test_crash_during_accept_only_raises_the_alarm_again(tmp_path: Path) -> None:
    """A new lineage whose stamp was not written yet is refused, and can be accepted again."""
    folder = tmp_path / "copy"
    folder.mkdir()
    crashed = await crash(tmp_path / "live", folder)
    stamp = crashed.paths.stamp.read_bytes()
    _older_without_wal(crashed)
    with StoreReader(crashed.paths.database) as reader:
        tools.accept(crashed.paths, reader.meta().seq)
    crashed.paths.stamp.write_bytes(stamp)
    with pytest.raises(StoreError, match="not the one"):
        inspect(crashed.paths)
    with StoreReader(crashed.paths.database) as reader:
        seq = reader.meta().seq
    tools.accept(crashed.paths, seq)

    assert inspect(crashed.paths).warning is None


async def test_restore_removes_the_log_and_keeps_what_was_there(tmp_path: Path) -> None:
    """No newer -wal stays beside an older database; the replaced pair is in quarantine."""
    folder = tmp_path / "copy"
    folder.mkdir()
    crashed = await crash(tmp_path / "live", folder)
    old = crashed.paths.database.read_bytes()
    aside = tools.restore(crashed.paths, crashed.older)
    store = await Store.open(crashed.paths, clock=FakeClock())
    total = sum(row.n for row in await store.counters())
    await store.close()

    assert aside is not None
    assert aside.read_bytes() == old
    assert wal_of(aside).stat().st_size > 0
    assert total == 400
    assert tools.check_database(crashed.paths).ok


def test_restore_refuses_what_is_not_a_database(tmp_path: Path) -> None:
    """A foreign or garbled file is refused before anything is moved."""
    paths = StatePaths(tmp_path)
    paths.database.write_bytes(b"precious")
    bad = tmp_path / "bad.db"
    bad.write_bytes(b"not a database at all" * 400)
    with pytest.raises(StoreError):
        tools.restore(paths, bad)

    assert paths.database.read_bytes() == b"precious"


async def test_epochs_are_never_used_twice(tmp_path: Path) -> None:
    """The epoch is above the database's and the stamp's, so request ids never come back."""
    async with opened(tmp_path) as store:
        first = store.epoch
        state = StampState(store.lineage, 0, 50, 0)
    StatePaths(tmp_path).stamp.write_bytes(pack_slot(state) * 2)
    async with opened(tmp_path) as store:
        second = store.epoch

    assert (1, 51) == (first, second)


async def test_opening_nothing_needs_permission(tmp_path: Path) -> None:
    """Only `create` makes a database, and only where neither a stamp nor a log is left."""
    paths = StatePaths(tmp_path)
    with pytest.raises(StoreError, match="does not exist"):
        await Store.open(paths, clock=FakeClock())

    assert not paths.database.exists()


async def test_foreign_database_is_refused(tmp_path: Path) -> None:
    """Another program's SQLite file is not touched."""
    import sqlite3

    paths = StatePaths(tmp_path)
    conn = sqlite3.connect(paths.database)
    conn.execute("CREATE TABLE t (x)")
    conn.close()
    with pytest.raises(StoreError, match="not a database of eagled"):
        await Store.open(paths, clock=FakeClock())


async def test_stamp_follows_every_commit(tmp_path: Path) -> None:
    """After each operation the stamp says the database's sequence number."""
    async with opened(tmp_path) as store:
        for name in ("a", "b"):
            await store.add_dataset(record(name))
            stamp = read_stamp(StatePaths(tmp_path).stamp)
            with StoreReader(StatePaths(tmp_path).database) as reader:
                meta = read_meta(reader.db)

            assert stamp is not None
            assert (meta.seq, meta.epoch, meta.lineage) == (stamp.seq, stamp.epoch, stamp.lineage)
