"""Copies of the database that the daemon makes by itself, and how many it keeps.

Guarantee: a copy has its name only when it is whole, checked and on disk; an older one goes only
after a newer one is there; copies made by hand or before a migration are never touched. Nothing is
copied while nothing has changed. A daemon that stops gives a copy up and closes the database after
it: the last to close folds the log in, and a reader cannot.
Price: one read of the database from one snapshot, in a thread; the log grows meanwhile by what is
written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from eagled.artifacts import disk_error
from eagled.daemon_runtime import Runtime
from eagled.daemon_thread import until_cancelled
from eagled.errors import DiskError, EagledError
from eagled.paths import StatePaths
from eagled.store.tools import backup
from eagled.types import EventKind

logger = logging.getLogger(__name__)
FOLDER = "auto"
LOOK_S = 60.0
_MS_PER_H = 3_600_000


class BackupKeeper:
    """Makes a copy when one is due and removes the oldest ones.

    Args:
        paths: the state directory.
        every_h: hours between copies; 0 makes none.
        keep: copies that stay.
    """

    def __init__(self, paths: StatePaths, every_h: float, keep: int) -> None:
        self._paths = paths
        self._every_ms = every_h * _MS_PER_H
        self._keep = keep
        self._seq: int | None = None

    @property
    def folder(self) -> Path:
        """Where the copies are."""
        return self._paths.backups / FOLDER

    def due(self, now_ms: int, seq: int) -> bool:
        """Return whether the newest copy is too old, and something changed since."""
        if not self._every_ms or seq == self._seq:
            return False
        copies = self._copies()
        if not copies:
            return True
        age_ms = now_ms - copies[-1].stat().st_mtime * 1000
        return age_ms >= self._every_ms or age_ms < -self._every_ms  # a clock that was set back

    def settled(self, seq: int) -> None:
        """Note that the newest copy has all up to `seq`, but for the event about itself."""
        self._seq = seq

    def make(self, stop: Callable[[], bool] = lambda: False) -> Path:
        """Make a copy, then remove what is over the limit, oldest first; blocks.

        Raises:
            BackupStoppedError: if `stop` turned true meanwhile.
            DiskError: if there is no room; older copies stay.
            StoreError: if the copy does not pass its check.
        """
        try:
            self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as exc:
            problem = DiskError(f"cannot use {self.folder}: {exc.strerror}")
            raise disk_error(exc, self.folder) or problem from exc
        made = backup(self._paths, self.folder, stop)
        for old in self._copies()[: -self._keep]:
            old.unlink(missing_ok=True)
            logger.info("removed an old backup file=%s", old)
        return made

    def _copies(self) -> list[Path]:
        """Return the copies, oldest first."""
        found = [p for p in self.folder.glob("q-v*.db") if p.is_file()]
        return sorted(found, key=lambda p: (p.stat().st_mtime_ns, p.name))


async def keep_backups(runtime: Runtime) -> None:
    """Look once a minute whether a copy is due, until cancelled; a failure raises an alarm."""
    settings = runtime.config.daemon
    keeper = BackupKeeper(runtime.paths, settings.backup_every_h, settings.backup_keep)
    while True:
        await _back_up(runtime, keeper)
        await asyncio.sleep(LOOK_S)


async def _back_up(runtime: Runtime, keeper: BackupKeeper) -> None:
    seq = runtime.store.last_seq
    try:
        if not await asyncio.to_thread(keeper.due, runtime.clock.now_ms(), seq):
            return
        made = await until_cancelled(keeper.make, "backup")
    except (EagledError, OSError) as exc:  # also: no open file is left; next time there may be
        logger.error("no backup was made error=%s", exc)  # noqa: TRY400 - the cause is outside
        runtime.board.raise_("backup", f"no backup was made: {exc}")
        return
    runtime.board.clear("backup")
    try:
        await runtime.store.add_event(EventKind.BACKUP_MADE, made.name, str(made))
    except EagledError as exc:  # the copy is there; its event found no room
        logger.error("a backup has no event file=%s error=%s", made, exc)  # noqa: TRY400 - the cause is outside
    keeper.settled(runtime.store.last_seq)
