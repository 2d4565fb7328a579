"""The server identity that a run is bound to, kept in the store's settings."""

from __future__ import annotations

import asyncio
from typing import Protocol

from eagled.server.fingerprint import Fingerprint, from_json, refuse_other

SETTING = "server_fingerprint"
_DAEMON_UID = -1


class SettingsStore(Protocol):
    """What is needed of the store here."""

    async def settings(self) -> dict[str, str]:
        """Return all settings."""

    async def set_setting(self, key: str, value: str, uid: int) -> None:
        """Store one setting."""


class RunIdentity:
    """The first server that answers binds the run; every other must agree with it."""

    def __init__(self, store: SettingsStore) -> None:
        self._store = store
        self._bound: Fingerprint | None = None
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Read what an earlier start stored."""
        text = (await self._store.settings()).get(SETTING)
        self._bound = from_json(text) if text else None

    async def admit(self, found: Fingerprint, url: str) -> None:
        """Check a server against the run, or bind the run to it if it is the first.

        Raises:
            FingerprintError: if it is another one.
        """
        async with self._lock:
            if self._bound is None:
                text = found.to_json().decode()
                await self._store.set_setting(SETTING, text, _DAEMON_UID)
                self._bound = found
        refuse_other(self._bound, found, url)
