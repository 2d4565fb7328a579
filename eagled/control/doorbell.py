"""Wake those who wait for work, without anyone polling."""

from __future__ import annotations

import asyncio
import contextlib


class Doorbell:
    """Wakes those who wait for work; missing a ring costs them at most their own timeout."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake everyone who waits now."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Wait for a ring, at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
