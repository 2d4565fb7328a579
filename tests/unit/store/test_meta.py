"""The row that says which history a database is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from eagled.errors import StoreError
from eagled.paths import StatePaths
from eagled.store.executor import SqliteExecutor
from eagled.store.opening import create_database, read_meta


@pytest.mark.parametrize("damage", ["DELETE FROM meta", "UPDATE meta SET lineage = NULL"])
def test_an_unreadable_description_is_a_damaged_database(tmp_path: Path, damage: str) -> None:
    """Values that a torn page left are named as damage, not met as a bug further on."""
    database = StatePaths(tmp_path).database
    create_database(database)
    with closing(sqlite3.connect(database)) as conn, conn:
        conn.execute("CREATE TABLE loose AS SELECT * FROM meta")  # without the constraints
        conn.execute("DROP TABLE meta")
        conn.execute("ALTER TABLE loose RENAME TO meta")
        conn.execute(damage)
    with closing(sqlite3.connect(database)) as conn, pytest.raises(StoreError, match="damaged"):
        read_meta(SqliteExecutor(conn))
