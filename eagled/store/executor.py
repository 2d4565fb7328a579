"""How the store talks to one SQLite connection: named statements, nothing else.

The operations see only `Executor`, so that the power-cut simulation (`bench/powercut.py`) runs the
same statements over another SQLite binding. Pragmas are set on every connection and read back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from eagled.errors import DiskError, StoreError
from eagled.sql import QUERIES

APPLICATION_ID: Final = 0x6561676C  # "eagl"
PAGE_BYTES: Final = 4096
_INCREMENTAL: Final = 2
BUSY_MS: Final = 5000  # only offline tools can hold the lock; with one writer BUSY is a bug

Params = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]

# journal_mode comes first: some file systems refuse WAL silently, so what is read back counts
WRITER_PRAGMAS: Final[Mapping[str, int | str]] = {
    "journal_mode": "wal",
    "synchronous": 2,  # FULL: an acknowledged answer survives a power cut
    "secure_delete": 0,  # Debian builds it on; it rewrites every freed page
    "wal_autocheckpoint": 1000,
    "journal_size_limit": 64 << 20,
    "cell_size_check": 1,
    "foreign_keys": 1,
    "busy_timeout": BUSY_MS,
    "trusted_schema": 0,
    "temp_store": 2,
    "cache_size": -65536,
}
READER_PRAGMAS: Final[Mapping[str, int | str]] = {
    "secure_delete": 0,
    "cell_size_check": 1,
    "busy_timeout": BUSY_MS,
    "trusted_schema": 0,
    "temp_store": 2,
    "query_only": 1,
}
CREATE_PRAGMAS: Final[Mapping[str, int | str]] = {
    "page_size": PAGE_BYTES,
    "auto_vacuum": _INCREMENTAL,  # cannot be switched on later without a VACUUM
    "application_id": APPLICATION_ID,
}


class Executor(Protocol):
    """One connection, statements by the names in `eagled/sql`."""

    def rows(self, name: str, params: Params = ()) -> list[Row]:
        """Return all rows of a statement; it is finished when this returns."""

    def run(self, name: str, params: Params = ()) -> int:
        """Return how many rows a statement changed, triggers not counted."""

    def many(self, name: str, rows: Iterable[Params]) -> None:
        """Run a statement once a row."""

    def sql(self, text: str) -> list[Row]:
        """Run one literal statement: BEGIN, COMMIT, SAVEPOINT, PRAGMA, migrations."""

    def total_changes(self) -> int:
        """Return rows changed since the connection was opened."""


class SqliteExecutor:
    """`Executor` over the standard library's binding."""

    def __init__(self, conn: sqlite3.Connection) -> None:
        self.conn = conn

    def rows(self, name: str, params: Params = ()) -> list[Row]:
        """Return all rows of a statement."""
        return self.conn.execute(QUERIES[name], params).fetchall()

    def run(self, name: str, params: Params = ()) -> int:
        """Return how many rows a statement changed."""
        return self.conn.execute(QUERIES[name], params).rowcount

    def many(self, name: str, rows: Iterable[Params]) -> None:
        """Run a statement once a row."""
        self.conn.executemany(QUERIES[name], rows)

    def sql(self, text: str) -> list[Row]:
        """Run one literal statement."""
        return self.conn.execute(text).fetchall()

    def total_changes(self) -> int:
        """Return rows changed since the connection was opened."""
        return self.conn.total_changes


def set_pragmas(db: Executor, wanted: Mapping[str, int | str]) -> None:
    """Set pragmas and read each back.

    Raises:
        StoreError: naming what this SQLite or file system did not accept.
    """
    for name, value in wanted.items():
        db.sql(f"PRAGMA {name} = {value}")
        found = db.sql(f"PRAGMA {name}")
        if found[0][0] != value:
            raise StoreError(
                f"SQLite did not accept PRAGMA {name} = {value}: it is {found[0][0]!r} "
                "(network and some virtual file systems cannot hold the database)"
            )


def database_uri(path: Path, mode: str) -> str:
    """Return the URI that opens `path` with `mode` ro, rw or rwc; never creates by accident."""
    return f"file:{quote(str(path.absolute()))}?mode={mode}"


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a connection in autocommit mode, without pragmas; the caller closes it.

    Raises:
        StoreError: if there is no such database.
        DiskError: if it cannot be opened for a reason of the disk.
    """
    try:
        return sqlite3.connect(
            database_uri(path, mode), uri=True, isolation_level=None, timeout=BUSY_MS / 1000
        )
    except sqlite3.Error as exc:
        raise store_error(exc, path) from exc


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open a connection that can neither write nor checkpoint; the caller closes it."""
    conn = connect(path, "ro")
    try:
        set_pragmas(SqliteExecutor(conn), READER_PRAGMAS)
    except sqlite3.Error as exc:
        conn.close()
        raise store_error(exc, path) from exc
    except BaseException:
        conn.close()
        raise
    return conn


_DISK_NAMES = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")
_LOST_SYNC = ("SQLITE_IOERR_FSYNC", "SQLITE_IOERR_DIR_FSYNC")


def error_name(exc: BaseException) -> str:
    """Return SQLite's own name of an error, for example SQLITE_IOERR_WRITE, or ""."""
    return getattr(exc, "sqlite_errorname", "") or ""


def is_disk_trouble(exc: BaseException) -> bool:
    """Return whether the disk refused a write and the transaction can simply be given up.

    A failed sync is not among these: what the kernel dropped cannot be known, so it is fatal.
    """
    name = error_name(exc)
    return name.startswith(_DISK_NAMES) and name not in _LOST_SYNC


def is_busy(exc: BaseException) -> bool:
    """Return whether another process holds the write lock."""
    return error_name(exc).startswith("SQLITE_BUSY")


def store_error(exc: sqlite3.Error, path: Path) -> DiskError | StoreError:
    """Return what `exc` means to whoever started this: the disk, or the database."""
    name = error_name(exc)
    if name.startswith("SQLITE_FULL"):
        return DiskError(f"{path}: the disk is full; make room, nothing acknowledged is lost")
    if is_disk_trouble(exc) or name in _LOST_SYNC:
        return DiskError(f"{path}: {exc} ({name}); check the disk and the directory's permissions")
    if name in {"SQLITE_CORRUPT", "SQLITE_NOTADB"} or "malformed" in str(exc):
        return StoreError(
            f"{path} is damaged: {exc}; `eagled db restore` puts a backup in its place"
        )
    return StoreError(f"{path}: {exc} ({name or type(exc).__name__})")
