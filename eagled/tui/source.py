"""Where the screen gets its numbers from, and where its keys send what they change."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from eagled.errors import UnreachableError, UsageError

if TYPE_CHECKING:
    from eagled.control.client import ControlClient

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
        self._stack: AsyncExitStack | None = None
        self._client: ControlClient | None = None
        self._connecting = asyncio.Lock()

    async def _connected(self) -> ControlClient:
        async with self._connecting:
            if self._client is None:
                # its libraries take longer to load than a frame may wait
                await asyncio.to_thread(import_module, "eagled.control.client")
                from eagled.control.client import ControlClient

                stack = AsyncExitStack()
                self._client = await stack.enter_async_context(ControlClient(self._socket))
                self._stack = stack
            return self._client

    async def status(self) -> Mapping[str, object]:
        """Return the daemon's status; a broken connection is thrown away."""
        try:
            return await (await self._connected()).status()
        except BaseException:
            await self.close()
            raise

    async def events(self, after: int) -> Sequence[Mapping[str, object]]:
        """Return the end of the event log."""
        newest: deque[Mapping[str, object]] = deque(maxlen=_EVENTS_AT_ONCE)
        async for row in (await self._connected()).events(after, last=_EVENTS_AT_ONCE):
            newest.append(row)
        return tuple(newest)

    async def get(self, path: str, query: Mapping[str, str | int]) -> object:
        """Ask one thing."""
        return await (await self._connected()).get(path, **query)

    async def post(self, path: str, body: Mapping[str, object], *, key: str = "") -> object:
        """Send one change."""
        return await (await self._connected()).post(path, body, key=key or None)

    async def close(self) -> None:
        """Close the connection, if there is one."""
        stack, self._stack, self._client = self._stack, None, None
        if stack is not None:
            await stack.aclose()


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
