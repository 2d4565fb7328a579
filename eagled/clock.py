"""Time as an argument, so that tests can move it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What code that needs the time asks for."""

    def monotonic(self) -> float:
        """Return seconds that never jump; for durations, leases and back-off."""

    def now_ms(self) -> int:
        """Return UTC milliseconds since 1970; for what is stored and shown."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds."""
        return time.time_ns() // 1_000_000


class FakeClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, start_ms: int = 1_800_000_000_000) -> None:
        self._ms = start_ms

    def monotonic(self) -> float:
        """Return the fake time in seconds."""
        return self._ms / 1000

    def now_ms(self) -> int:
        """Return the fake time in milliseconds."""
        return self._ms

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._ms += round(seconds * 1000)


def iso_utc(ms: int) -> str:
    """Return `ms` as ISO 8601 UTC with milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
