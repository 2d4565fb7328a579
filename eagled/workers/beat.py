"""Signs of life of a worker process: its event loop turns, whatever its threads compute."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from eagled.control.client import ControlClient
from eagled.errors import EagledError

_log = logging.getLogger(__name__)
BEAT_S = 10.0  # the daemon gives a worker up after `eagled.control.roll.SILENT_S`


@asynccontextmanager
async def beating(client: ControlClient, worker: str) -> AsyncIterator[None]:
    """Tell the daemon every `BEAT_S` that this process lives, while the block runs."""
    task = asyncio.create_task(_beat(client, worker), name="signs of life")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _beat(client: ControlClient, worker: str) -> None:
    while True:
        try:
            await client.alive(worker)
        except EagledError as exc:  # a daemon that is away, or an older one
            _log.debug("no sign of life was taken: %s", exc)
        await asyncio.sleep(BEAT_S)
