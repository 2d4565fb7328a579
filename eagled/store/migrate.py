"""Numbered, forward-only migrations.

Guarantee: each runs in one exclusive transaction together with its `user_version`, so a crash
leaves the version before or after it; a copy of the database is made before the first one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence

from eagled.crashpoints import crash_point
from eagled.errors import StoreError
from eagled.sql import load_migrations
from eagled.store.executor import APPLICATION_ID, Executor
from eagled.store.transaction import roll_back


def statements(script: str) -> Iterator[str]:
    """Yield the statements of a script; a trigger's body stays whole."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if any(line.strip() and not line.startswith("--") for line in pending.splitlines()):
        raise ValueError(f"a migration ends inside a statement: {pending!r}")


def require_ours(db: Executor, *, latest: int | None = None) -> int:
    """Return the schema version of a database that this eagled can use.

    Raises:
        StoreError: if it is another program's, or of a newer eagled.
    """
    newest = len(load_migrations()) if latest is None else latest
    application = db.sql("PRAGMA application_id")[0][0]
    version = int(db.sql("PRAGMA user_version")[0][0])
    if application != APPLICATION_ID:
        raise StoreError(f"this is not a database of eagled (application_id {application:#x})")
    if version > newest:
        raise StoreError(
            f"the database has schema version {version}, this eagled knows {newest}: "
            "run the eagled that wrote it, or a newer one"
        )
    return version


def migrate(
    db: Executor,
    *,
    before: Callable[[int], None] | None = None,
    migrations: Sequence[str] | None = None,
) -> int:
    """Bring the schema to the newest version and return how many migrations ran.

    Args:
        db: a connection in autocommit mode with its pragmas set.
        before: called once with the old version before anything changes, to make a backup.
        migrations: the scripts; the package's own by default.
    """
    scripts = load_migrations() if migrations is None else migrations
    version = require_ours(db, latest=len(scripts))
    if version < len(scripts) and version > 0 and before is not None:
        before(version)
    for number in range(version + 1, len(scripts) + 1):
        _apply(db, number, scripts[number - 1])
    return len(scripts) - version


def _apply(db: Executor, number: int, script: str) -> None:
    db.sql("BEGIN EXCLUSIVE")
    try:
        for statement in statements(script):
            db.sql(statement)
        crash_point("during_migration")
        db.sql(f"PRAGMA user_version = {number}")
        db.sql("COMMIT")
    except BaseException:
        roll_back(db)
        raise
