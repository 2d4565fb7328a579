"""Asynchronous client of the control socket for the terminal UI: asyncio, llhttp and orjson only.

Guarantee: the same errors as `control.client.ControlClient`; a connection is kept for the next call
and never shared by two at once; an answer that was cut short is an error, never half an answer.
Price: no compression, one answer a call. aiohttp takes longer to load than a first frame may, and
three times the CPU of a call.
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
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

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

_PIECE_BYTES = 1 << 18
_PATH_SAFE = "/%"  # what callers have quoted stays as it is


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
        except (OSError, EOFError, TimeoutError, HttpParserError, HttpParserUpgrade) as exc:
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
                wire = _Wire(*await asyncio.open_unix_connection(self._socket))
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
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


async def _answer(wire: _Wire) -> tuple[int, bytes]:
    """Return the status and the body of an answer."""
    reply = _Reply()
    try:
        while not reply.whole:
            piece = await wire.reader.read(_PIECE_BYTES)
            if not piece:
                raise EOFError("the answer was cut short")
            reply.http.feed_data(piece)
        if not reply.keep_alive:
            wire.writer.close()
        return reply.http.get_status_code(), b"".join(reply.body)
    finally:
        del reply.http


class _Reply:
    """What llhttp tells of one answer.

    It and its parser hold each other until `http` is deleted. That has to be done: the screen looks
    for garbage so rarely that an answer a tick would add up to tens of megabytes.
    """

    def __init__(self) -> None:
        self.body: list[bytes] = []
        self.whole = self.keep_alive = False
        self.http = HttpResponseParser(self)

    def on_body(self, piece: bytes) -> None:
        """Keep a piece of the body."""
        self.body.append(piece)

    def on_message_complete(self) -> None:
        """Note the end, and whether the connection is kept: llhttp knows it only now."""
        self.whole, self.keep_alive = True, self.http.should_keep_alive()


def _json(raw: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
