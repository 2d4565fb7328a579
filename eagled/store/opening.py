"""Opening a database: existence, stamp, checks, migrations, recovery.

Guarantee: nothing that is foreign, damaged or older than its stamp is written to; what an earlier
daemon had in flight is queued again before anyone can claim. Running it twice changes nothing but
the epoch. Price: after an unclean stop one sequential read of the file and one `quick_check`
(measured: 9 s at 4 GB).

Everything here is synchronous and runs in the thread that owns the connection. The files are read
before the first connection is opened: closing a descriptor of q.db later would drop SQLite's locks.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from eagled.artifacts import disk_error, fsync_dir
from eagled.clock import iso_utc
from eagled.crashpoints import crash_point
from eagled.errors import DiskError, StoreError
from eagled.paths import StatePaths
from eagled.store.executor import (
    CREATE_PRAGMAS,
    WRITER_PRAGMAS,
    Executor,
    SqliteExecutor,
    connect,
    connect_reader,
    set_pragmas,
    store_error,
)
from eagled.store.migrate import migrate, require_ours
from eagled.store.ops.base import Tx, write_event
from eagled.store.records import Recovery
from eagled.store.stamp import Stamp, StampState, read_stamp
from eagled.store.transaction import roll_back
from eagled.types import EventKind, Fence

log = logging.getLogger(__name__)
_READ_BYTES = 1 << 20
_NEW_SUFFIX = ".new"


@dataclass(frozen=True, slots=True)
class Meta:
    """The single row of `meta`."""

    lineage: bytes
    seq: int
    epoch: int
    clean: bool


@dataclass(slots=True)
class Opened:
    """A database that is ready for the writer."""

    db: SqliteExecutor
    stamp: Stamp
    lineage: bytes
    epoch: int
    recovery: Recovery


def rid(lineage: bytes, fence: Fence) -> str:
    """Return the request id of a claim: always 63 characters, so that none is a prefix of another.

    SGLang aborts by prefix; the epoch keeps ids of a store that went back from being used twice.
    """
    return f"{lineage.hex()}-{fence.epoch:08x}-{fence.sample_id:012x}-{fence.attempt:08x}"


def wal_of(database: Path) -> Path:
    """Return the path of a database's write-ahead log."""
    return database.with_name(database.name + "-wal")


def shm_of(database: Path) -> Path:
    """Return the path of a database's shared-memory index."""
    return database.with_name(database.name + "-shm")


def size_of(path: Path) -> int:
    """Return a file's size by stat, 0 if it is absent; never opens it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def read_meta(db: Executor) -> Meta:
    """Return the row that says which history this is.

    Raises:
        StoreError: if the row is gone or its values are not what was ever written there.
    """
    rows = db.rows("meta")
    lineage, seq, epoch, clean = rows[0] if rows else (None, None, None, None)
    if not (isinstance(lineage, bytes) and isinstance(seq, int) and isinstance(epoch, int)):
        raise StoreError(
            "the database is damaged: its own description cannot be read; "
            "`eagled db restore FILE` puts a backup in its place"
        )
    return Meta(lineage, seq, epoch, bool(clean))


def create_database(database: Path) -> None:
    """Make an empty database under a temporary name and rename it into place.

    Raises:
        DiskError: if the disk refuses.
    """
    new = database.with_name(database.name + _NEW_SUFFIX)
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        for path in (new, wal_of(new), shm_of(new)):
            path.unlink(missing_ok=True)
        conn = connect(new, "rwc")
        try:
            db = SqliteExecutor(conn)
            set_pragmas(db, CREATE_PRAGMAS)
            set_pragmas(db, WRITER_PRAGMAS)
            migrate(db)
            db.sql("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            conn.close()
        new.chmod(0o600)
        new.replace(database)
        fsync_dir(database.parent)
    except sqlite3.Error as exc:
        raise store_error(exc, database) from exc
    except OSError as exc:
        raise disk_error(exc, database) or exc from exc


def require_present(paths: StatePaths, *, create: bool) -> None:
    """Make sure there is a database to open; create one only where nothing ever was.

    Raises:
        StoreError: if it is absent and may not be created, or is gone while its stamp or log stay.
    """
    database = paths.database
    if size_of(database):
        return
    left = [p for p in (paths.stamp, wal_of(database)) if size_of(p)]
    if left:
        raise StoreError(
            f"{database} is {'empty' if database.exists() else 'missing'} although "
            f"{left[0].name} is there: put the database back with `eagled db restore FILE`"
        )
    if not create:
        raise StoreError(f"{database} does not exist; `eagled init` makes a state directory")
    create_database(database)
    write_first_stamp(paths)


def write_first_stamp(paths: StatePaths) -> None:
    """Give a database that was just made its stamp."""
    with closing(connect_reader(paths.database)) as conn, told(paths.database):
        meta = read_meta(SqliteExecutor(conn))
    open_stamp(paths, meta, 0, both=True).close()


def check_stamp(meta: Meta, stamp: StampState | None) -> str | None:
    """Return a warning if there is no stamp to compare with.

    Raises:
        StoreError: if the database is another one, or an earlier state of this one.
    """
    if stamp is None:
        return "the stamp file is missing or unreadable; the database was checked in full"
    if stamp.lineage != meta.lineage:
        raise StoreError(
            f"the database (lineage {meta.lineage.hex()}) is not the one this directory ran with "
            f"(lineage {stamp.lineage.hex()}, sequence {stamp.seq}, {iso_utc(stamp.at_ms)}): put "
            f"the right file back, or go on with `eagled db accept --seq {meta.seq}`"
        )
    if meta.seq < stamp.seq:
        raise StoreError(
            f"the database went back in time: it is at sequence {meta.seq}, it was at {stamp.seq} "
            f"on {iso_utc(stamp.at_ms)}; {stamp.seq - meta.seq} transactions are missing. Put the "
            f"newer file (with its -wal) back, or go on with `eagled db accept --seq {meta.seq}`"
        )
    return None


def quick_check(db: Executor, database: Path) -> None:
    """Check the structure of the whole file.

    Raises:
        StoreError: with the first problem found.
    """
    try:
        found = db.sql("PRAGMA quick_check(5)")
    except sqlite3.DatabaseError as exc:
        raise store_error(exc, database) from exc
    if found != [("ok",)]:
        raise StoreError(
            f"{database} is damaged: {found[0][0]}; `eagled db restore FILE` puts a backup in its "
            "place"
        )


def read_through(database: Path) -> None:
    """Read the file once in order, so that the check after it finds it in the page cache."""
    with database.open("rb", buffering=0) as file:
        while file.read(_READ_BYTES):
            pass


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found without writing anything."""

    meta: Meta
    stamp: StampState | None
    checked: bool
    warning: str | None


def inspect(paths: StatePaths) -> Inspection:
    """Look at the database with connections that can neither write nor checkpoint.

    A refusal leaves every file as it was: a connection that may write would fold the -wal into the
    database at its close, and with it the evidence.

    Raises:
        StoreError: if the database is foreign, newer, damaged or behind its stamp.
    """
    old = read_stamp(paths.stamp)
    unclean = size_of(wal_of(paths.database)) > 0
    with closing(connect_reader(paths.database)) as conn, told(paths.database):
        db = SqliteExecutor(conn)
        require_ours(db)
        meta = read_meta(db)
        warning = check_stamp(meta, old)
    checked = unclean or not meta.clean or warning is not None
    if checked:
        read_through(paths.database)
        with closing(connect_reader(paths.database)) as conn, told(paths.database):
            quick_check(SqliteExecutor(conn), paths.database)
    return Inspection(meta, old, checked, warning)


@contextmanager
def told(database: Path) -> Iterator[None]:
    """Turn SQLite's errors into what they mean to whoever started this."""
    try:
        yield
    except sqlite3.Error as exc:
        raise store_error(exc, database) from exc


def open_database(
    paths: StatePaths,
    conn: sqlite3.Connection,
    found: Inspection,
    now_ms: int,
    latest_ms: int,
    backup: Callable[[int], None],
) -> Opened:
    """Make a fresh connection ready: pragmas, migrations, new epoch, recovery, stamp.

    Args:
        paths: the state directory, whose lock the caller holds.
        conn: a connection of this thread; the caller closes it, also on errors.
        found: what `inspect` said.
        now_ms: wall clock, UTC milliseconds.
        latest_ms: when the last retry that waits is due at the latest.
        backup: called with the old schema version before a migration.

    Raises:
        StoreError: if the database must not be used as it is.
        DiskError: if the disk refuses.
    """
    db = SqliteExecutor(conn)
    old = found.stamp
    with told(paths.database):
        set_pragmas(db, WRITER_PRAGMAS)
        migrate(db, before=backup)
        epoch = max(found.meta.epoch, old.epoch if old else 0) + 1
        recovery = _recover(db, found, epoch, now_ms, latest_ms)
        stamp = open_stamp(paths, read_meta(db), now_ms, both=old is None)
    return Opened(db, stamp, found.meta.lineage, epoch, recovery)


def open_stamp(paths: StatePaths, meta: Meta, now_ms: int, *, both: bool) -> Stamp:
    """Open the stamp file and record where the database is now."""
    try:
        stamp = Stamp(paths.stamp)
    except OSError as exc:
        raise disk_error(exc, paths.stamp) or DiskError(f"{paths.stamp}: {exc}") from exc
    state = StampState(meta.lineage, meta.seq, meta.epoch, now_ms)
    if both:
        stamp.write_both(state)
    else:
        stamp.write(state)
        stamp.sync()
    return stamp


def _recover(db: Executor, found: Inspection, epoch: int, now_ms: int, latest_ms: int) -> Recovery:
    """Start a new epoch and queue again what was in flight, in one transaction."""
    clean = not found.checked
    db.sql("BEGIN IMMEDIATE")
    try:
        in_flight = [Fence(*row) for row in db.rows("in_flight")]
        requeued = db.run("recover_generating", {"now": now_ms})
        released = db.run("recover_extracting", {"now": now_ms})
        db.run("clamp_retries", {"latest": latest_ms})
        db.run("new_epoch", {"epoch": epoch})
        crash_point("during_recovery")
        if requeued or released or not clean:
            detail = f"{requeued} queued again, {released} back to extraction"
            detail += f"; {found.warning}" if found.warning else ""
            tx = Tx(db, now_ms, now_ms, epoch, {})
            write_event(tx, EventKind.RECOVERED, "store", detail, -1)
        db.rows("bump_seq")
        db.sql("COMMIT")
    except BaseException:
        roll_back(db)
        raise
    rids = tuple(rid(found.meta.lineage, fence) for fence in in_flight)
    warnings = (found.warning,) if found.warning else ()
    return Recovery(clean, requeued, released, found.checked, warnings, rids)
