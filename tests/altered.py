"""Changes of a daemon under test, made before it starts: see `tests/patched.py`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from eagled import daemon
from eagled.clock import SystemClock
from eagled.workers import merge

OFFSET_ENV = "TEST_CLOCK_OFFSET"  # file with seconds that the wall clock is off by


def slow_merge() -> None:
    """Make a merge last for a twentieth of a second a sample."""
    spool = merge._spool

    def slowly(*given: object) -> object:
        time.sleep(0.05)
        return spool(*given)  # type: ignore[arg-type] # passed on as it came

    merge.CHUNK = 1
    merge._spool = slowly  # type: ignore[assignment] # the same function, later


class MovedClock(SystemClock):
    """A wall clock that is off by what a file says; the monotonic one goes on, as the kernel's."""

    def now_ms(self) -> int:
        """Return the wrong time."""
        return super().now_ms() + round(float(Path(os.environ[OFFSET_ENV]).read_text()) * 1000)


def move_clock(offset: Path, seconds: float) -> None:
    """Set by how much the clock of a daemon is off; it may read the file at any moment."""
    new = offset.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(offset)


def moved_clock() -> None:
    """Give the daemon a clock that the test sets."""
    vars(daemon)["SystemClock"] = MovedClock
