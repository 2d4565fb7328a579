"""Asynchronous client of the control socket for the terminal UI: asyncio and orjson only.

Guarantee: the same errors as `control.client.ControlClient`; a connection is kept for the next call
and never shared by two at once; an answer that was cut short is an error, never half an answer.
Price: HTTP/1.1 by hand, as far as the daemon speaks it (a length or chunks, no compression).
aiohttp takes longer to load than a first frame may, and three times the CPU of a call.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from eagled.control.protocol import (
    API_HEADER,
    API_VERSION,
    CALL_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    IDEMPOTENCY_HEADER,
    check_socket_path,
    error_from_wire,
    unreachable,
)

_HEAD_BYTES = 1 << 16  # of an answer's head; the daemon's are below 1 KiB
_END = b"\r\n\r\n"
_PATH_SAFE = "/%"  # what callers have quoted stays as it is


class _BadAnswerError(OSError):
    """The daemon's answer is no HTTP that this client reads."""


@dataclass(frozen=True, slots=True)
class _Wire:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def usable(self) -> bool:
        return not (self.reader.at_eof() or self.writer.is_closing())


class Talk:
    """Calls the daemon behind `socket`; may be shared by the tasks of one event loop."""

    def __init__(self, socket: Path, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._socket = check_socket_path(socket)
        self._timeout_s = timeout_s
        self._idle: list[_Wire] = []

    async def get(self, path: str, **query: str | int) -> Any:  # noqa: ANN401 - JSON
        """Return the JSON answer of a read-only call.

        Raises:
            UnreachableError: if no daemon answers in time.
            EagledError: whatever the daemon raised.
        """
        return _json(await self._call("GET", path, query))

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> Any:  # noqa: ANN401 - JSON
        """Return the JSON answer of a call that changes something.

        `key` makes a repeated call count once; without one each call is its own.

        Raises:
            UnreachableError: if no daemon answers in time.
            EagledError: whatever the daemon raised.
        """
        key = key or uuid.uuid4().hex
        return _json(await self._call("POST", path, {}, orjson.dumps(body or {}), key))

    async def events(self, after: int = 0, *, last: int = 0) -> list[dict[str, Any]]:
        """Return events with a sequence number above `after`; only the newest `last`, 0: all.

        Raises:
            UnreachableError: if no daemon answers.
        """
        query = {"after": after, "follow": 0, "acks": 0, "last": last}
        raw = await self._call("GET", "/v1/events", query)
        return [orjson.loads(line) for line in raw.splitlines() if line.strip()]

    async def close(self) -> None:
        """Close the connections; calling it twice is fine."""
        while self._idle:
            wire = self._idle.pop()
            wire.writer.close()
            with suppress(OSError):
                await wire.writer.wait_closed()

    async def _call(
        self, method: str, path: str, query: Mapping[str, str | int], body: bytes = b"",
        key: str = "",
    ) -> bytes:  # fmt: skip
        target = quote(path, safe=_PATH_SAFE) + ("?" + urlencode(query) if query else "")
        head = _head(method, target, len(body), key)
        try:
            async with asyncio.timeout(self._timeout_s), self._wire() as wire:
                wire.writer.write(head + body)
                await wire.writer.drain()
                status, raw = await _answer(wire)
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, ValueError) as exc:
            raise unreachable(self._socket, exc) from exc
        if status >= 400:  # noqa: PLR2004 - HTTP: errors start here
            raise error_from_wire(_json(raw), status)
        return raw

    @asynccontextmanager
    async def _wire(self) -> AsyncIterator[_Wire]:
        """Give a connection that nobody else uses; one that failed is not kept."""
        while self._idle:
            wire = self._idle.pop()
            if wire.usable:
                break
            wire.writer.close()
        else:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                wire = _Wire(*await asyncio.open_unix_connection(self._socket, limit=_HEAD_BYTES))
        try:
            yield wire
        except BaseException:
            wire.writer.close()
            raise
        self._idle.append(wire)


def _head(method: str, target: str, length: int, key: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: eagled", f"{API_HEADER}: {API_VERSION}"]
    if method == "POST":
        lines += [f"{IDEMPOTENCY_HEADER}: {key}", "Content-Type: application/json"]
        lines += [f"Content-Length: {length}"]
    return "\r\n".join(lines).encode("latin-1") + _END


async def _answer(wire: _Wire) -> tuple[int, bytes]:
    """Return the status and the body of an answer."""
    lines = (await wire.reader.readuntil(_END)).decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    if not version.startswith("HTTP/1."):
        raise _BadAnswerError(lines[0][:80])
    pairs = (line.partition(":") for line in lines[1:])
    fields = {name.strip().lower(): value.strip().lower() for name, _, value in pairs}
    if fields.get("transfer-encoding") == "chunked":
        body = await _chunks(wire.reader)
    elif "content-length" in fields:
        body = await wire.reader.readexactly(int(fields["content-length"]))
    else:
        body = await wire.reader.read()
    if fields.get("connection") == "close":
        wire.writer.close()
    return int(rest[:3]), body


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")  # no trailers
    return b"".join(parts)


def _json(raw: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
