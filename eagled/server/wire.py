"""HTTP/1.1 for one address and one kind of request: POST bytes, get the whole reply.

Guarantee: a reply is returned only when its end has been seen; every other outcome is an error
that says how far it came: no connection, dead kept-alive connection, lost before a byte, cut,
garbled, out of time. Bodies have no size limit short of `MAX_BODY_BYTES`, lines none at all.
Nothing here limits how many requests run at once, and time counts from sending.
Price: measured by `bench/generation_cpu.py` beside a bare aiohttp loop, which costs about twice as
much. Not here because never needed: redirects, cookies, compression, proxies.

Decision: a kept-alive connection counts as dead from before if it gave no byte of this reply and
ended within `STALE_S` of sending. Later than that the server had the request, and died over it.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from yarl import URL

from eagled.errors import (
    ReplyBrokenError,
    ServerTimeoutError,
    ServerUnavailableError,
    StaleConnectionError,
)
from eagled.printable import printable

KEEPALIVE_S = 4.0  # SGLang closes an idle connection after 5 s; ours must be let go first
STALE_S = 1.0  # a connection that was dead already says so within one round trip
MAX_HEAD_BYTES = 1 << 16
MAX_BODY_BYTES = 1 << 30
_MAX_CHUNK_LINE = 1 << 10
_NO_BODY = frozenset({204, 304})
_CONTINUE = 200  # statuses below are interim: the real one follows


class NoConnectionError(ServerUnavailableError):
    """Nothing answers at the address; the request was not sent."""


class ConnectionLostError(ServerUnavailableError):
    """The connection ended after the request was sent and before its reply began."""


class ReplyCutError(ReplyBrokenError):
    """The connection ended in the middle of a reply."""


@dataclass(frozen=True, slots=True)
class WireReply:
    """A whole reply; header names are lower case, `connected_at` is monotonic seconds."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    connected_at: float


class Connection(asyncio.Protocol):
    """One connection that carries one exchange at a time."""

    def __init__(self) -> None:
        self.opened_at = time.monotonic()
        self.idle_since = self.opened_at
        self.alive = True
        self._transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[WireReply] | None = None
        self._parser = _Parser()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - TCP gives no other
        self._transport = transport

    async def exchange(self, request: bytes, timeout_s: float, *, reused: bool) -> WireReply:
        """Send one request and return its whole reply; ends the connection on any error."""
        loop = asyncio.get_running_loop()
        self._parser = _Parser()
        reply: asyncio.Future[WireReply] = loop.create_future()
        self._reply = reply
        sent_at = time.monotonic()
        timer = loop.call_later(timeout_s, self._out_of_time, timeout_s)
        try:
            self._write(request)
            return await reply
        except ConnectionLostError as exc:
            if reused and time.monotonic() - sent_at < STALE_S:
                raise StaleConnectionError from exc
            raise
        finally:
            timer.cancel()
            self._reply = None
            if not reply.done() or reply.cancelled() or reply.exception() is not None:
                self.close()

    def _write(self, request: bytes) -> None:
        if not self.alive or self._transport is None:
            raise ConnectionLostError
        self._transport.write(request)

    def close(self) -> None:
        """End the connection."""
        self.alive = False
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take in a piece of the reply."""
        if self._reply is None or self._reply.done():
            self.close()  # bytes that nobody asked for: what follows cannot be trusted
            return
        try:
            complete = self._parser.feed(data)
        except ReplyBrokenError as exc:
            self._reply.set_exception(exc)
            return
        if complete:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        """Say how far the reply came."""
        self.alive = False
        if self._reply is None or self._reply.done():
            return
        why = printable(exc or "closed by the server")
        if not self._parser.began:
            self._reply.set_exception(ConnectionLostError(f"the connection was lost: {why}"))
        elif self._parser.ends_with_connection and exc is None:
            self._finish()
        else:
            self._reply.set_exception(ReplyCutError(f"the reply was cut: {why}"))

    def _finish(self) -> None:
        assert self._reply is not None  # noqa: S101 - both callers have looked
        parser = self._parser
        if not parser.keep_alive:
            self.close()
        self.idle_since = time.monotonic()
        body = b"".join(parser.body)
        reply = WireReply(parser.status, parser.headers, body, self.opened_at)
        self._reply.set_result(reply)

    def _out_of_time(self, timeout_s: float) -> None:
        if self._reply is not None and not self._reply.done():
            error = ServerTimeoutError(f"no complete reply within {timeout_s:g} s")
            self._reply.set_exception(error)


class _Parser:
    """Takes the bytes of one reply; `feed` returns True at its end."""

    __slots__ = ("_left", "_mode", "_pending", "_size", "body", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.keep_alive = False
        self.body: list[bytes] = []
        self._pending = b""
        self._mode = "head"
        self._left = 0
        self._size = 0

    @property
    def began(self) -> bool:
        """Return whether any byte came."""
        return self._mode != "head" or bool(self._pending)

    @property
    def ends_with_connection(self) -> bool:
        """Return whether the end of the connection is the end of the body."""
        return self._mode == "eof"

    def feed(self, data: bytes) -> bool:
        if self._mode == "head":
            rest = self._head(self._pending + data)
            if rest is None:
                return False
            data = rest
        if self._mode == "length":
            return self._counted(data)
        if self._mode == "chunked":
            return self._chunked(data)
        self._take(data)
        return False

    def _head(self, data: bytes) -> bytes | None:
        """Read status and headers; return what follows them, None while they are not whole."""
        while (end := data.find(b"\r\n\r\n")) >= 0:
            self.status, self.headers = _read_head(data[:end])
            data = data[end + 4 :]
            if self.status >= _CONTINUE:
                self._pending = b""
                self._choose_mode()
                return data
        if len(data) > MAX_HEAD_BYTES:
            raise ReplyBrokenError(f"the reply's head is over {MAX_HEAD_BYTES} bytes")
        if not data.startswith(b"HTTP/1."[: len(data)]):
            raise ReplyBrokenError(f"the reply is not HTTP: {printable(data[:40])}")
        self._pending = data
        return None

    def _choose_mode(self) -> None:
        connection = self.headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._mode = "chunked"
            return
        length = self.headers.get("content-length")
        if length is None and self.status not in _NO_BODY:
            self._mode, self.keep_alive = "eof", False
            return
        self._mode = "length"
        self._left = _number(length or "0", 10)

    def _take(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_BODY_BYTES:
            raise ReplyBrokenError(f"the reply is over {MAX_BODY_BYTES} bytes")
        self.body.append(data)

    def _counted(self, data: bytes) -> bool:
        if len(data) > self._left:
            self.keep_alive = False
            data = data[: self._left]
        self._left -= len(data)
        self._take(data)
        return self._left == 0

    def _chunked(self, data: bytes) -> bool:
        """Take the chunks out; `_left` is what the current one lacks, its line end included."""
        data, self._pending = self._pending + data, b""
        at = 0
        while at < len(data):
            if self._left:
                piece = min(self._left, len(data) - at)
                self._take(data[at : at + min(piece, max(0, self._left - 2))])
                self._left -= piece
                at += piece
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._pending = data[at:]
                break
            size = _number(data[at:end].split(b";", 1)[0].decode("latin-1"), 16)
            at = end + 2
            if size == 0:
                # trailers are never used; a connection whose end of body is unclear is not kept
                self.keep_alive = self.keep_alive and data[at:] == b"\r\n"
                return True
            self._left = size + 2
        if len(self._pending) > _MAX_CHUNK_LINE:
            raise ReplyBrokenError("a chunk's size line has no end")
        return False


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Return status and headers."""
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ", 2)
    if not first.startswith("HTTP/1.") or len(parts) < 2 or not parts[1].isdigit():  # noqa: PLR2004 - version and status
        raise ReplyBrokenError(f"the reply is not HTTP: {printable(first, 80)}")
    headers = {}
    for line in lines:
        name, found, value = line.partition(":")
        if not found:
            raise ReplyBrokenError(f"the reply has a broken header: {printable(line, 80)}")
        headers[name.strip().lower()] = value.strip()
    return int(parts[1]), headers


def _number(text: str, base: int) -> int:
    try:
        value = int(text.strip(), base)
    except ValueError:
        raise ReplyBrokenError(f"the reply names no size but {printable(text, 40)!r}") from None
    if not 0 <= value <= MAX_BODY_BYTES:
        raise ReplyBrokenError(f"the reply names an impossible size: {value}")
    return value


class Wire:
    """Connections to one address, kept alive between requests.

    Args:
        url: full address of the requests.
        headers: sent with each.
        connect_timeout_s: longest wait for a connection.
        timeout_s: longest wait for a whole reply, from sending.
    """

    def __init__(
        self, url: URL, headers: Mapping[str, str], *, connect_timeout_s: float, timeout_s: float
    ) -> None:
        self._host, self._port = url.host or "", url.port or 80
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._idle: deque[Connection] = deque()
        self._busy: set[Connection] = set()
        lines = [f"POST {url.raw_path_qs} HTTP/1.1", f"Host: {url.host_port_subcomponent}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._head = ("\r\n".join(lines) + "\r\nContent-Length: ").encode("latin-1")

    async def post(self, payload: bytes, *, fresh: bool = False) -> WireReply:
        """Send `payload`; with `fresh` on a connection of its own.

        Raises:
            RetryableError: of the class that says how far it came.
        """
        connection = None if fresh else self._kept()
        reused = connection is not None
        if connection is None:
            connection = await self._connect()
        self._busy.add(connection)
        request = b"%b%d\r\n\r\n%b" % (self._head, len(payload), payload)
        try:
            reply = await connection.exchange(request, self._timeout_s, reused=reused)
        finally:
            self._busy.discard(connection)
            if connection.alive:
                self._idle.append(connection)
        return reply

    def _kept(self) -> Connection | None:
        """Return the connection that was used last, if it is fit; older ones are let go."""
        oldest = time.monotonic() - KEEPALIVE_S
        while self._idle and (not self._idle[0].alive or self._idle[0].idle_since < oldest):
            self._idle.popleft().close()
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                return connection
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    Connection, self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            raise NoConnectionError(
                f"no connection to {self._host}:{self._port} in {self._connect_timeout_s:g} s"
            ) from None
        except OSError as exc:
            raise NoConnectionError(f"no connection: {printable(exc)}") from None
        return connection

    def close(self) -> None:
        """End all connections."""
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()
