"""Schema versions: forward only, with a backup, never a newer one."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from eagled.clock import FakeClock
from eagled.errors import StoreError
from eagled.paths import StatePaths
from eagled.sql import load_migrations
from eagled.store import Store
from eagled.store.executor import SqliteExecutor, connect
from eagled.store.migrate import migrate, statements
from eagled.store.tools import backup, migration_backup
from tests.unit.store.helpers import filled, opened

FIXTURE = Path(__file__).parent / "data" / "v1.sql"
SECOND = "ALTER TABLE setting ADD COLUMN note TEXT;\nCREATE TABLE extra (x INTEGER) STRICT;\n"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A database of version 1 as it was written then, with one sample in it."""
    path = StatePaths(tmp_path).database
    with closing(sqlite3.connect(path)) as conn:
        conn.executescript(FIXTURE.read_text(encoding="utf-8"))
        conn.execute("PRAGMA journal_mode = WAL").fetchall()
    return path


async def test_version_1_opens_with_what_it_held(old: Path) -> None:
    """A database written by version 1 is brought up to date and keeps its rows."""
    store = await Store.open(StatePaths(old.parent), clock=FakeClock())
    (row,) = await store.samples()
    await store.close()
    with closing(sqlite3.connect(old)) as conn:
        version = conn.execute("PRAGMA user_version").fetchone()[0]

    assert ("0" * 31 + "1", 2) == (row.uid, row.attempt)
    assert version == len(load_migrations())


def test_fixture_is_what_version_1_makes(old: Path, tmp_path: Path) -> None:
    """The kept fixture and the first migration agree: a published migration is never edited."""
    fresh = tmp_path / "fresh.db"
    with closing(sqlite3.connect(fresh)) as conn:
        conn.executescript(load_migrations()[0])
    found = []
    for path in (old, fresh):
        with closing(sqlite3.connect(path)) as conn:
            rows = conn.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
            found.append([(name, " ".join((sql or "").split())) for name, sql in rows])

    assert found[0] == found[1]


def test_migration_backs_up_first_and_once(old: Path) -> None:
    """The copy holds the old version; running again changes nothing."""
    paths = StatePaths(old.parent)
    scripts = (*load_migrations(), SECOND)
    with closing(connect(old, "rw")) as conn:
        db = SqliteExecutor(conn)
        before = migration_backup(paths)
        ran = migrate(db, before=before, migrations=scripts)
        again = migrate(db, before=before, migrations=scripts)
    (copy,) = paths.backups.iterdir()
    with closing(sqlite3.connect(copy)) as conn:
        old_version = conn.execute("PRAGMA user_version").fetchone()[0]

    assert (len(scripts) - 1, 0) == (ran, again)
    assert old_version == 1


def test_failing_migration_changes_nothing(old: Path) -> None:
    """A migration that breaks in the middle leaves version and tables as they were."""
    scripts = (*load_migrations(), SECOND + "CREATE TABLE extra (x INTEGER);\n")
    with closing(connect(old, "rw")) as conn:
        db = SqliteExecutor(conn)
        with pytest.raises(sqlite3.Error, match="extra"):
            migrate(db, migrations=scripts)
        version = db.sql("PRAGMA user_version")[0][0]
        extra = db.sql("SELECT name FROM sqlite_master WHERE name = 'extra'")

    assert (len(load_migrations()), []) == (version, extra)


def test_newer_database_is_refused_untouched(old: Path) -> None:
    """A database of a later eagled is named as such and not written to."""
    with closing(sqlite3.connect(old)) as conn:
        conn.execute(f"PRAGMA user_version = {len(load_migrations()) + 1}")
    before = old.read_bytes()
    with pytest.raises(StoreError, match="has schema version"):
        asyncio.run(Store.open(StatePaths(old.parent), clock=FakeClock()))

    assert before == old.read_bytes()


def test_scripts_are_split_at_statements() -> None:
    """A trigger's body stays one statement; a script that ends inside one is refused."""
    script = (
        "-- c\nCREATE TABLE t (x);\nCREATE TRIGGER g AFTER INSERT ON t\nBEGIN\nSELECT 1;\nEND;\n"
    )

    assert len(list(statements(script))) == 2
    with pytest.raises(ValueError, match="inside a statement"):
        list(statements("CREATE TABLE t (\n"))


async def test_backup_of_a_running_store_is_whole(tmp_path: Path) -> None:
    """A copy made while the store writes passes its check and opens as a database of its own."""
    async with opened(tmp_path) as store:
        await filled(store, 50)
        copy = backup(StatePaths(tmp_path))
        await filled(store, 5, name="later")
    other = StatePaths(tmp_path / "other")
    other.root.mkdir()
    copy.rename(other.database)
    async with opened(other.root) as store:
        total = sum(row.n for row in await store.counters())

    assert total == 50
