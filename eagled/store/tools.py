"""`eagled db`: check, back up, restore and accept a database, with or without a daemon.

Guarantee: a backup is complete, checked and durable before it has its name; a restore removes the
write-ahead log of the file it replaces (an older database with a newer log is the one damage that
no stamp can see) and starts a new lineage. What is replaced goes to quarantine, never away.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from eagled.artifacts import disk_error, fsync_dir
from eagled.clock import Clock, SystemClock
from eagled.errors import ArtifactError, DiskError, StoreError, UsageError
from eagled.paths import StatePaths
from eagled.store.executor import (
    WRITER_PRAGMAS,
    Executor,
    SqliteExecutor,
    connect,
    connect_reader,
    set_pragmas,
)
from eagled.store.migrate import require_ours
from eagled.store.opening import (
    Meta,
    open_stamp,
    quick_check,
    read_meta,
    shm_of,
    size_of,
    told,
    wal_of,
)
from eagled.store.ops.base import Tx, write_event
from eagled.store.stamp import read_stamp
from eagled.store.transaction import roll_back
from eagled.tokens import unpack_ids
from eagled.types import STATE_CODE, EventKind, SampleState

_HEADROOM_BYTES = 200 << 20  # the log may grow this far while a backup runs
_TMP_SUFFIX = ".tmp"
_COPY_PAGES = 2048  # 8 MiB
_STOP_STEPS = 100_000  # instructions of SQLite's machine, some milliseconds
_LINEAGE_BYTES = 16
_NAMED = 20  # damaged samples that a report lists by number
_WITH_ANSWER = {
    STATE_CODE[s] for s in (SampleState.GENERATED, SampleState.EXTRACTING, SampleState.EXTRACTED)
}


class BackupStoppedError(StoreError):
    """A copy was given up because whoever ordered it stops."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `db check` found; `problems` is empty if all is well.

    Attributes:
        samples: rows whose stored ids were read and compared with their checksums.
        damaged: numbers of samples whose ids are missing or altered, at most 20.
        problems: one line each.
        seq: sequence number of the database.
    """

    samples: int
    damaged: tuple[int, ...]
    problems: tuple[str, ...]
    seq: int

    @property
    def ok(self) -> bool:
        """Return whether nothing is wrong."""
        return not self.problems


def check_database(paths: StatePaths) -> CheckReport:
    """Read everything and compare: structure, foreign keys, counters, checksums of all ids.

    Works beside a running daemon; counters are then compared within one read.

    Raises:
        StoreError: if the database is absent, foreign or so damaged that it cannot be read.
    """
    with closing(connect_reader(paths.database)) as conn, told(paths.database):
        db = SqliteExecutor(conn)
        require_ours(db)
        meta = read_meta(db)
        problems = [f"structure: {r[0]}" for r in db.sql("PRAGMA quick_check") if r[0] != "ok"]
        problems += [
            f"{table} row {row} points at nothing in {parent}"
            for table, row, parent, _ in db.sql("PRAGMA foreign_key_check")
        ]
        problems += _counter_problems(db)
        count, damaged = _payload_problems(db)
    if damaged:
        shown = ", ".join(str(n) for n in damaged[:_NAMED])
        problems.append(f"{len(damaged)} samples have missing or altered token ids: {shown}")
    problems += _stamp_problems(paths, meta)
    return CheckReport(count, tuple(damaged[:_NAMED]), tuple(problems), meta.seq)


def _stamp_problems(paths: StatePaths, meta: Meta) -> Iterator[str]:
    stamp = read_stamp(paths.stamp)
    if stamp is None:
        yield "the stamp file is missing or unreadable"
    elif stamp.lineage != meta.lineage:
        yield "the stamp is of another database"
    elif stamp.seq > meta.seq and read_meta_again(paths).seq < stamp.seq:
        yield f"the database is at sequence {meta.seq}, its stamp at {stamp.seq}"


def read_meta_again(paths: StatePaths) -> Meta:
    """Return the meta row now: a running daemon moves it while a check reads."""
    with closing(connect_reader(paths.database)) as conn:
        return read_meta(SqliteExecutor(conn))


def _counter_problems(db: Executor) -> list[str]:
    db.sql("BEGIN")
    try:
        counted = {row[:3]: row[3] for row in db.rows("count_really")}
        kept = {row[:3]: row[3] for row in db.rows("counters_raw")}
    finally:
        roll_back(db)
    return [
        f"counter of lane {key[0]}, state {key[1]}, dataset {key[2]} says {kept.get(key, 0)}, "
        f"there are {counted.get(key, 0)}"
        for key in sorted(counted.keys() | kept.keys())
        if counted.get(key, 0) != kept.get(key, 0)
    ]


def _payload_problems(db: Executor) -> tuple[int, list[int]]:
    after = count = 0
    damaged = []
    while rows := db.rows("check_chunk", {"after": after}):
        for number, state, prompt, prompt_crc, answer, answer_crc in rows:
            whole = _whole(prompt, prompt_crc) and _whole(answer, answer_crc)
            if not whole or (state in _WITH_ANSWER and answer is None):
                damaged.append(number)
        count += len(rows)
        after = rows[-1][0]
    return count, damaged


def _whole(z: bytes | None, crc: int | None) -> bool:
    if z is None or crc is None:
        return z is None and crc is None
    try:
        unpack_ids(z, crc)
    except ArtifactError:
        return False
    return True


def backup(
    paths: StatePaths, dest: Path | None = None, stop: Callable[[], bool] = lambda: False
) -> Path:
    """Copy the database, also while a daemon runs, and return where the copy is.

    Args:
        paths: the state directory.
        dest: file to make, or a folder for it; by default one in `backups/`.
        stop: asked every few milliseconds; once it is true the copy is given up.

    Raises:
        BackupStoppedError: if `stop` said so; no file stays.
        DiskError: if there is no room for it.
        StoreError: if the copy does not pass its check.
    """
    with closing(connect_reader(paths.database)) as source, told(paths.database):
        db = SqliteExecutor(source)
        version = require_ours(db)
        seq = read_meta(db).seq
        name = f"q-v{version}-{seq:012d}.db"
        place = dest or paths.backups
        final = place / name if dest is None or place.is_dir() else place
        _copy(source, final, size_of(paths.database) + size_of(wal_of(paths.database)), stop)
    return final


def migration_backup(paths: StatePaths) -> Callable[[int], None]:
    """Return what copies the database before its schema changes."""

    def before(version: int) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        backup(paths, paths.backups / f"q-before-migration-from-v{version}-{stamp}.db")

    return before


def _copy(
    source: sqlite3.Connection,
    final: Path,
    needed_bytes: int,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    tmp = final.with_name(final.name + _TMP_SUFFIX)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(final.parent).free
        if free < needed_bytes + _HEADROOM_BYTES:
            raise DiskError(
                f"a backup needs {needed_bytes + _HEADROOM_BYTES} bytes in {final.parent}, "
                f"{free} are free"
            )
        _remove(tmp)
        with closing(sqlite3.connect(tmp, isolation_level=None)) as target:
            _copy_pages(source, target, stop)
            target.set_progress_handler(stop, _STOP_STEPS)
            target.execute("PRAGMA journal_mode = DELETE").fetchall()
            quick_check(SqliteExecutor(target), tmp)
        _fsync(tmp)
        tmp.replace(final)
        fsync_dir(final.parent)
    except OSError as exc:
        _remove(tmp)
        raise disk_error(exc, final) or exc from exc
    except (StoreError, sqlite3.Error):
        _remove(tmp)  # on a full disk above all
        if not stop():
            raise
        raise BackupStoppedError(f"the copy {final} was given up half-way") from None


def _copy_pages(
    source: sqlite3.Connection, target: sqlite3.Connection, stop: Callable[[], bool]
) -> None:
    """Copy one snapshot of `source`, in steps between which it can be given up.

    The open read transaction pins the snapshot: without it SQLite starts the copy over at every
    commit, and under load never ends.
    """

    def between(_status: int, _left: int, _total: int) -> None:
        if stop():
            raise BackupStoppedError

    source.execute("BEGIN").fetchall()
    try:
        source.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        source.backup(target, pages=_COPY_PAGES, progress=between)
    finally:
        source.execute("ROLLBACK").fetchall()


def _remove(tmp: Path) -> None:
    for path in (tmp, wal_of(tmp), shm_of(tmp)):
        path.unlink(missing_ok=True)


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def restore(paths: StatePaths, file: Path, *, clock: Clock | None = None) -> Path | None:
    """Put a backup in the database's place, as a new lineage; the caller holds the `StateLock`.

    Returns:
        Where the replaced database went, None if there was none.

    Raises:
        StoreError: if `file` is not a whole database of eagled.
        DiskError: if the disk refuses.
    """
    if file.resolve() == paths.database.resolve():
        raise UsageError(f"{file} is the database itself; name a backup")
    new = paths.database.with_name(paths.database.name + ".restored")
    _take_copy(file, new)
    old = _set_aside(paths)
    try:
        new.replace(paths.database)
        fsync_dir(paths.root)
    except OSError as exc:
        raise disk_error(exc, paths.database) or exc from exc
    _new_lineage(paths, f"restored from {file.name}", clock or SystemClock())
    return old


def _take_copy(file: Path, new: Path) -> None:
    with closing(connect(file, "ro")) as source, told(file):
        require_ours(SqliteExecutor(source))
        quick_check(SqliteExecutor(source), file)
        _copy(source, new, size_of(file))


def _set_aside(paths: StatePaths) -> Path | None:
    """Move the database with its log to quarantine; the shared-memory index is only a cache."""
    database = paths.database
    if not database.exists() and not wal_of(database).exists():
        return None
    paths.quarantine.mkdir(parents=True, exist_ok=True)
    number = 1
    while (aside := paths.quarantine / f"q-{number:04d}.db").exists() or wal_of(aside).exists():
        number += 1
    try:
        if wal_of(database).exists():
            wal_of(database).replace(wal_of(aside))
        if database.exists():
            database.replace(aside)
        shm_of(database).unlink(missing_ok=True)
        fsync_dir(paths.root)
        fsync_dir(paths.quarantine)
    except OSError as exc:
        raise disk_error(exc, database) or exc from exc
    return aside


def accept(paths: StatePaths, seq: int, *, clock: Clock | None = None) -> None:
    """Go on with the database as it is although its stamp says otherwise, as a new lineage.

    The caller holds the `StateLock`.

    Args:
        paths: the state directory.
        seq: the sequence number that the refusal named; proves that its message was read.
        clock: wall clock of the event.

    Raises:
        StoreError: if the number is not the database's, or the database is damaged.
    """
    with closing(connect_reader(paths.database)) as conn, told(paths.database):
        db = SqliteExecutor(conn)
        require_ours(db)
        found = read_meta(db).seq
        if found != seq:
            raise StoreError(f"the database is at sequence {found}, not {seq}")
        quick_check(db, paths.database)
    _new_lineage(paths, f"accepted at sequence {seq}", clock or SystemClock())


def _new_lineage(paths: StatePaths, why: str, clock: Clock) -> None:
    """Start another history: lineage and event in one commit, then both stamp slots."""
    old = read_stamp(paths.stamp)
    with closing(connect(paths.database, "rw")) as conn, told(paths.database):
        db = SqliteExecutor(conn)
        set_pragmas(db, WRITER_PRAGMAS)
        meta = read_meta(db)
        epoch = max(meta.epoch, old.epoch if old else 0) + 1
        now = clock.now_ms()
        db.sql("BEGIN IMMEDIATE")
        try:
            db.run("new_lineage", {"lineage": os.urandom(_LINEAGE_BYTES), "epoch": epoch})
            tx = Tx(db, now, now, epoch, {})
            write_event(tx, EventKind.STORE_ACCEPTED, "store", why, os.getuid())
            db.rows("bump_seq")
            db.sql("COMMIT")
        except BaseException:
            roll_back(db)
            raise
        stamp = open_stamp(paths, read_meta(db), now, both=True)
        stamp.close()
