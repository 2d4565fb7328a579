"""What every process that eagled starts shares: a clean environment, and a log of bounded size."""

from __future__ import annotations

import os
from pathlib import Path

_OURS = frozenset(
    {
        "NOTIFY_SOCKET",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
        "LISTEN_PID",
        "LISTEN_FDS",
        "CREDENTIALS_DIRECTORY",
    }
)


def foreign_env() -> dict[str, str]:
    """Return our environment for a program that is not ours.

    It lacks what speaks of us to systemd, names our secrets, or sets eagled.
    """
    return {
        key: value
        for key, value in os.environ.items()
        if key not in _OURS and not key.startswith("EAGLED_")
    }


def rotate(log: Path, max_bytes: int) -> None:
    """Make the log's folder, and move a log that has grown beyond `max_bytes` aside."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > max_bytes:
        log.replace(log.with_suffix(".log.1"))


def tail_of(log: Path, max_bytes: int) -> str:
    """Return the end of a log, for the message about its process's end; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - max_bytes))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""
