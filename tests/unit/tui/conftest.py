"""Animations are off before Textual is imported; the local time is UTC; pauses are short.

A pilot's pause waits for a stretch without work. Textual takes 20 ms for that, three times a key,
which is most of what these tests would take. Nothing here moves with time, so a shorter stretch
tells the same; what comes about by a timer is waited for with `wait_for`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

os.environ["TEXTUAL_ANIMATIONS"] = "none"

from textual import _wait

_wait.SLEEP_GRANULARITY = 1 / 250
_wait.SLEEP_IDLE = _wait.SLEEP_GRANULARITY / 20


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clocks on the screen show UTC, wherever the tests run."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
