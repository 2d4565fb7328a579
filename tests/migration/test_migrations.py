"""Schema versions: forward only, with a backup, never a newer one."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagled.cli import app
from eagled.clock import FakeClock
from eagled.errors import StoreError
from eagled.paths import StatePaths
from eagled.sql import load_migrations
from eagled.store import Store
from eagled.store.executor import SqliteExecutor, connect
from eagled.store.migrate import migrate, statements
from eagled.store.tools import backup, migration_backup
from eagled.tokens import unpack_ids
from eagled.types import Claim, SampleState
from tests.daemon_kit import write_config
from tests.unit.store.helpers import filled, opened, problems, state_counts

DATA = Path(__file__).parent / "data"
KEPT = ("sample", "prompt", "answer", "conversation", "failure", "setting")
FROZEN = sorted(int(path.stem[1:]) for path in DATA.glob("v*.sql"))
SECOND = "ALTER TABLE setting ADD COLUMN note TEXT;\nCREATE TABLE extra (x INTEGER) STRICT;\n"


def make_old(root: Path, version: int) -> Path:
    """Make a database as a version wrote it then."""
    path = StatePaths(root).database
    with closing(sqlite3.connect(path)) as conn:
        conn.executescript((DATA / f"v{version}.sql").read_text(encoding="utf-8"))
        conn.execute("PRAGMA journal_mode = WAL").fetchall()
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A database of version 1 as it was written then, with one sample in it."""
    return make_old(tmp_path, 1)


async def test_version_1_opens_with_what_it_held(old: Path) -> None:
    """A database written by version 1 is brought up to date and keeps its rows."""
    store = await Store.open(StatePaths(old.parent), clock=FakeClock())
    (row,) = await store.samples()
    await store.close()
    with closing(sqlite3.connect(old)) as conn:
        version = conn.execute("PRAGMA user_version").fetchone()[0]

    assert ("0" * 31 + "1", 2) == (row.uid, row.attempt)
    assert version == len(load_migrations())


async def test_version_2_opens_with_what_it_held(tmp_path: Path) -> None:
    """Half an answer, limits and shares, a change that can be undone: all of it goes on."""
    make_old(tmp_path, 2)
    async with opened(tmp_path) as store:
        lanes = {row.name: (row.limit, row.share) for row in await store.lanes()}
        datasets = {row.name: (row.limit, row.share) for row in await store.datasets()}
        before = await state_counts(store)
        undone = [await store.undo(0), await store.undo(0)]
        after = await state_counts(store)
        held = {claim.fence.sample_id: claim for claim in await store.claim("long", 8)}

    assert {"short": (200, None), "long": (9, 0.25)} == lanes
    assert {"a": (4, 3), "b": (None, 1)} == datasets
    assert [(1, 4), (0, 5)] == [
        (states.get(SampleState.REJECTED, 0), states[SampleState.QUEUED])
        for states in (before, after)
    ]
    assert ["hold:", "6:"] == [str(word).split(" ")[0] for word in undone]
    assert [4, 5, 6, 7] == _kept(held[1])
    assert () == problems(tmp_path)


def _kept(claim: Claim) -> list[int]:
    assert claim.partial is not None
    return [int(i) for i in unpack_ids(claim.partial.z, claim.partial.crc)]


@pytest.mark.parametrize("version", FROZEN)
async def test_every_released_version_is_brought_up_to_date(tmp_path: Path, version: int) -> None:
    """Its rows stay as many as they were, and a full check finds nothing."""
    path = make_old(tmp_path, version)
    held = [_rows(path, table) for table in KEPT]
    async with await Store.open(StatePaths(tmp_path), clock=FakeClock()):
        pass
    now = [_rows(path, table) for table in KEPT]

    known = ["1 samples have missing or altered token ids: 1"] if version == 1 else []  # made so

    assert held == now
    assert known == list(problems(tmp_path))


def _rows(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as conn:
        return int(conn.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - our own names


def test_every_version_before_the_newest_is_frozen() -> None:
    """Whoever adds a migration keeps a database of the version before it."""
    assert set(range(1, len(load_migrations()))) <= set(FROZEN)


@pytest.mark.parametrize("version", FROZEN)
def test_a_fixture_is_what_its_version_makes(tmp_path: Path, version: int) -> None:
    """Kept fixtures and migrations agree: a published migration is never edited."""
    fresh = tmp_path / "fresh.db"
    with closing(sqlite3.connect(fresh)) as conn:
        for script in load_migrations()[:version]:
            conn.executescript(script)
    found = []
    for path in (make_old(tmp_path, version), fresh):
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


def test_a_downgrade_is_refused_in_words_by_the_commands(tmp_path: Path) -> None:
    """Whoever goes back to an older eagled reads what to do instead."""
    config = write_config(tmp_path)
    (tmp_path / "state").mkdir()
    with closing(sqlite3.connect(make_old(tmp_path / "state", 2))) as conn:
        conn.execute("PRAGMA user_version = 99")
    done = [
        CliRunner().invoke(app, [*command, "--config", str(config)]).exception
        for command in (("db", "check"), ("db", "backup"), ("events",))
    ]
    told = "version 99, this eagled knows .* run the eagled that wrote it, or a newer one"

    assert [StoreError] * 3 == [type(exc) for exc in done]
    assert [True] * 3 == [re.search(told, str(exc)) is not None for exc in done]


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
