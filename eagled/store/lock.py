"""The lock that makes one daemon the owner of a state directory.

Guarantee: an exclusive flock is held before anything else in the directory is touched; the kernel
drops it when the process ends, however it ends, so there is no stale lock to reason about.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from eagled.artifacts import disk_error
from eagled.errors import LockedError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MODE = 0o600
_READ_BYTES = 200


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


class StateLock:
    """The flock on one lock file; a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise at once.

        Raises:
            LockedError: naming the process that holds it.
            DiskError: if the lock file cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        except OSError as exc:
            raise disk_error(exc, self.path) or exc from exc
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = os.pread(fd, _READ_BYTES, 0).decode("ascii", "replace").split("\n")[0]
            os.close(fd)
            raise LockedError(
                f"{self.path.parent} is held by another eagled process "
                f"({holder or 'pid unknown'}); stop it first"
            ) from exc
        self._fd = fd
        self._sign(fd)

    def _sign(self, fd: int) -> None:
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"pid {os.getpid()}\nboot {_boot_id()}\n".encode(), 0)
        except OSError as exc:
            self.release()
            raise disk_error(exc, self.path) or exc from exc

    def release(self) -> None:
        """Give the lock back; the file stays, because removing it would race with a waiter."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
