"""Where the screen gets its numbers from, and where its keys send what they change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from eagled.control.talk import Talk
from eagled.errors import UnreachableError, UsageError

_EVENTS_AT_ONCE = 1000  # of a long log only its end is shown


class StatusSource(Protocol):
    """What the screen asks of a daemon."""

    async def status(self) -> Mapping[str, object]:
        """Return the status document.

        Raises:
            UnreachableError: if the daemon does not answer.
        """

    async def events(self, after: int) -> Sequence[Mapping[str, object]]:
        """Return the newest events with a number above `after`, in order.

        Raises:
            EagledError: if the daemon refuses or does not answer.
        """

    async def get(self, path: str, query: Mapping[str, str | int]) -> object:
        """Return the answer of another read-only call.

        Raises:
            EagledError: if the daemon refuses or does not answer.
        """

    async def post(self, path: str, body: Mapping[str, object], *, key: str = "") -> object:
        """Change something; return the daemon's answer. What has the same `key` counts once.

        Raises:
            EagledError: if the daemon refuses or does not answer.
        """

    async def close(self) -> None:
        """Let go of the connection."""


class SocketSource:
    """A `StatusSource` over the control socket; connects when asked, again after a failure."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._talk: Talk | None = None

    def _talking(self) -> Talk:
        if self._talk is None:
            self._talk = Talk(self._socket)
        return self._talk

    async def status(self) -> Mapping[str, object]:
        """Return the daemon's status; broken connections are thrown away."""
        try:
            return dict(await self._talking().get("/v1/status"))
        except BaseException:
            await self.close()
            raise

    async def events(self, after: int) -> Sequence[Mapping[str, object]]:
        """Return the end of the event log."""
        return await self._talking().events(after, last=_EVENTS_AT_ONCE)

    async def get(self, path: str, query: Mapping[str, str | int]) -> object:
        """Ask one thing."""
        return await self._talking().get(path, **query)

    async def post(self, path: str, body: Mapping[str, object], *, key: str = "") -> object:
        """Send one change."""
        return await self._talking().post(path, body, key=key or None)

    async def close(self) -> None:
        """Close the connections, if there are any."""
        if self._talk is not None:
            await self._talk.close()


def last_snapshot(path: Path) -> Mapping[str, object] | None:
    """Return the status that the daemon wrote last, or None when there is none to be read."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def reason_of(error: BaseException) -> str:
    """Return why a request failed, in words for the screen (not yet printable)."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, UnreachableError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def kind_of(error: BaseException) -> Literal["", "DENIED", "VERSION"]:
    """Return whether a failed request means no permission or another version."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(getattr(seen, "os_error", seen), PermissionError):
            return "DENIED"
        seen = seen.__cause__
    return "VERSION" if isinstance(error, UsageError) and "control API" in str(error) else ""
