"""Acknowledgements as an outsider sees them: what the daemon said is durable, as it said it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from eagled.control.client import ControlClient
from eagled.errors import EagledError

_NO_EVENTS = 1 << 60  # only the live feed is wanted, no events of the past


class Witness:
    """Follows the acknowledgements of one daemon at a time."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client
        self._task: asyncio.Task[None] | None = None
        self.acks: list[Mapping[str, Any]] = []

    def follow(self) -> None:
        """Start to listen, with an empty list."""
        self.acks = []
        self._task = asyncio.create_task(self._listen())

    async def stop(self) -> list[Mapping[str, Any]]:
        """Stop listening and return what was acknowledged since `follow`."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        return list(self.acks)

    async def _listen(self) -> None:
        with contextlib.suppress(EagledError, ValueError):  # the daemon dies: no ack was given
            async for event in self._client.events(_NO_EVENTS, follow=True, acks=True):
                if "ack" in event:
                    self.acks.append(event["ack"])
