"""What the handlers of the control API work with.

The daemon implements `Actions`; the store does the rest. Handlers hold no state of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from eagled.control.desks import ExtractDesk, TextDesk
from eagled.control.doorbell import Doorbell
from eagled.control.reading import ReadDesk
from eagled.control.roll import Roll
from eagled.store import Store


class Actions(Protocol):
    """What the daemon does on request beyond what the store does by itself."""

    async def status(self) -> dict[str, Any]:
        """Return the status document."""

    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format."""

    async def pause_all(self, uid: int) -> str:
        """Pause every lane and extraction; return what was done in words."""

    async def resume_all(self, uid: int) -> str:
        """Take back `pause_all` and `drain`."""

    async def drain(self, uid: int) -> str:
        """Pause everything and let what runs finish."""

    async def enqueue(self, folder: Path | None, uid: int) -> str:
        """Put a prepared folder, or all configured ones, into the queue."""

    async def merge(self, uid: int) -> dict[str, Any]:
        """Freeze a corpus version; return its path, version and counts."""

    async def pause_extraction(self, *, paused: bool, uid: int) -> str:
        """Start or pause extraction."""

    async def disk_plan(self, asked: dict[str, str]) -> dict[str, Any]:
        """Return what states take under each storage policy, and under what is asked."""

    async def choose_storage(self, name: str, uid: int) -> str:
        """Store states by an option of the plan from now on."""

    async def training(self, *, brief: bool = False) -> dict[str, Any]:
        """Return the newest training run, thinned for a screen; `brief`: without its steps."""

    async def report(self) -> dict[str, Any]:
        """Return what `eagled report` draws."""

    async def acknowledge(self, kind: str, uid: int) -> str:
        """Note that somebody has seen an alarm."""

    def work_added(self) -> None:
        """Look for samples that were queued."""

    async def changed(self) -> None:
        """Take over lanes, priorities and limits that were changed in the store."""


class RingActions(Protocol):
    """The ring of shards in stream mode."""

    def view(self) -> dict[str, Any]:
        """Return shards and consumers."""

    def wait_reason(self, desk: ExtractDesk) -> str:
        """Return why there is no room for another claim; empty if there is."""

    async def register(self, name: str) -> None:
        """A consumer begins."""

    async def lease(self, name: str, n: int, wait_s: float) -> list[dict[str, Any]]:
        """Hand out shards."""

    async def release(self, name: str, shards: list[str]) -> int:
        """Take shards back."""

    async def leave(self, name: str) -> None:
        """A consumer ends."""


class ServerActions(Protocol):
    """The servers in use; each call returns what was done in words."""

    async def add(self, fields: Mapping[str, Any], uid: int) -> str:
        """Use one more."""

    async def drain(self, url: str, uid: int) -> str:
        """Send nothing new to one."""

    async def remove(self, url: str, uid: int) -> str:
        """Drain one and forget it."""


@dataclass
class Control:
    """Everything that a handler may reach."""

    store: Store
    actions: Actions
    text: TextDesk
    extract: ExtractDesk
    doorbell: Doorbell
    ring: RingActions | None = None
    servers: ServerActions | None = None
    reading: ReadDesk = field(default_factory=ReadDesk)
    roll: Roll = field(default_factory=Roll)
    tasks: set[asyncio.Task[web.Response]] = field(default_factory=set)


CONTROL: web.AppKey[Control] = web.AppKey("control", Control)
