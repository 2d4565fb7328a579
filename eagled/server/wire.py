"""HTTP/1.1 for one address and one kind of request: POST bytes, get the whole reply.

Guarantee: a reply is returned only when its end has been seen; every other outcome is an error
that says how far it came: no connection, dead kept-alive connection, lost before a byte, cut,
garbled, out of time. Bodies have no size limit short of `MAX_BODY_BYTES`, lines none at all.
Nothing here limits how many requests run at once, and time counts from sending.
The grammar is llhttp's (`httptools`); ours are the connections and what their ends mean.
Price: measured by `bench/generation_cpu.py`: with aiohttp for the requests a sample cost half as
much again. Not here because never needed: redirects, cookies, compression, proxies.

Decision: a kept-alive connection counts as dead from before if it gave no byte of this reply and
ended within `STALE_S` of sending. Later than that the server had the request, and died over it.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Mapping
from typing import cast

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpResponseParser,
)
from yarl import URL

from eagled.errors import (
    ReplyBrokenError,
    ServerTimeoutError,
    ServerUnavailableError,
    StaleConnectionError,
)
from eagled.printable import printable
from eagled.record import record

KEEPALIVE_S = 4.0  # SGLang closes an idle connection after 5 s; ours must be let go first
STALE_S = 1.0  # a connection that was dead already says so within one round trip
TICK_S = 1.0  # how late a time-out may be noticed
ROOM_BYTES = 1 << 18  # taken in at once; asyncio's own size
MAX_HEAD_BYTES = 1 << 16
MAX_BODY_BYTES = 1 << 30
_FINAL = 200  # statuses below are interim: the real one follows


class NoConnectionError(ServerUnavailableError):
    """Nothing answers at the address; the request was not sent."""


class ConnectionLostError(ServerUnavailableError):
    """The connection ended after the request was sent and before its reply began."""


class ReplyCutError(ReplyBrokenError):
    """The connection ended in the middle of a reply."""


@record
class WireReply:
    """A whole reply; header names are lower case, `connected_at` is monotonic seconds."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    connected_at: float


class Connection(asyncio.BufferedProtocol):
    """One connection that carries one exchange at a time.

    Args:
        room: where the bytes that come are put; shared, since each piece is taken in at once.
    """

    def __init__(self, room: memoryview) -> None:
        self._room = room
        self.opened_at = time.monotonic()
        self.idle_since = self.opened_at
        self.alive = True
        self.sent_at = self.opened_at
        self._transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[WireReply] | None = None
        self._parser = _Parser()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # TCP gives no other

    async def exchange(self, request: bytes, *, reused: bool) -> WireReply:
        """Send one request and return its whole reply; ends the connection on any error."""
        self._parser = _Parser()
        reply: asyncio.Future[WireReply] = asyncio.get_running_loop().create_future()
        self._reply = reply
        self.sent_at = time.monotonic()
        try:
            self._write(request)
            return await reply
        except ConnectionLostError as exc:
            if reused and time.monotonic() - self.sent_at < STALE_S:
                raise StaleConnectionError from exc
            raise
        finally:
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

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return where the next bytes go."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Take in a piece of the reply."""
        if self._reply is None or self._reply.done():
            self.close()  # bytes that nobody asked for: what follows cannot be trusted
            return
        try:
            complete = self._parser.feed(self._room[:nbytes])
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

    def out_of_time(self, timeout_s: float) -> None:
        """Give up on the reply."""
        if self._reply is not None and not self._reply.done():
            error = ServerTimeoutError(f"no complete reply within {timeout_s:g} s")
            self._reply.set_exception(error)


class _Parser:
    """Takes the bytes of one reply; `feed` returns True at its end. The grammar is llhttp's."""

    __slots__ = ("_fed", "_http", "_in_body", "_size", "body", "done", "headers", "keep_alive")

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.keep_alive = False
        self.body: list[bytes] = []
        self.done = False
        self._http = HttpResponseParser(self)
        self._fed = 0
        self._size = 0
        self._in_body = False

    @property
    def status(self) -> int:
        """Return the status code; valid at the end."""
        return self._http.get_status_code()

    @property
    def began(self) -> bool:
        """Return whether any byte came."""
        return self._fed > 0

    @property
    def ends_with_connection(self) -> bool:
        """Return whether the end of the connection is the end of the body."""
        framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        return self._in_body and not framed

    def feed(self, data: bytes | memoryview) -> bool:
        """Take in a piece; return whether the reply is whole."""
        self._fed += len(data)
        try:
            self._http.feed_data(data)
        except HttpParserCallbackError as exc:
            raise ReplyBrokenError(printable(exc.__context__ or exc)) from exc
        except (HttpParserError, HttpParserUpgrade) as exc:
            if not self.done:  # after the end: the connection is not kept, the reply stands
                raise ReplyBrokenError(f"the reply is not HTTP: {printable(exc)}") from exc
            self.keep_alive = False
        if not self._in_body and self._fed > MAX_HEAD_BYTES:
            raise ReplyBrokenError(f"the reply's head is over {MAX_HEAD_BYTES} bytes")
        return self.done

    # -- called by the parser

    def on_message_begin(self) -> None:
        """Begin the reply, or notice that more came than was asked for."""
        if self.done:
            self.keep_alive = False
        self.headers = {} if not self.done else self.headers

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; the last one of a name counts."""
        if not self.done:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        """Refuse a body that is larger than any reply."""
        self._in_body = self.status >= _FINAL
        length = self.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            raise ReplyBrokenError(f"the reply names an impossible size: {length}")

    def on_body(self, data: bytes) -> None:
        """Keep a piece of the body."""
        self._size += len(data)
        if self._size > MAX_BODY_BYTES:
            raise ReplyBrokenError(f"the reply is over {MAX_BODY_BYTES} bytes")
        if not self.done:
            self.body.append(data)

    def on_message_complete(self) -> None:
        """Note the end; an interim reply is followed by the real one."""
        if self.status >= _FINAL and not self.done:
            self.done = True
            self.keep_alive = self._http.should_keep_alive()


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
        self._room = memoryview(bytearray(ROOM_BYTES))
        self._timer: asyncio.TimerHandle | None = None
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
            self._watch()
            return await connection.exchange(request, reused=reused)
        finally:
            self._busy.discard(connection)
            if connection.alive:
                self._idle.append(connection)

    def _watch(self) -> None:
        """Look at what is late, once a tick for all: a timer a request costs a tenth of it."""
        if self._timer is None and self._busy:
            tick_s = min(TICK_S, self._timeout_s / 4)
            self._timer = asyncio.get_running_loop().call_later(tick_s, self._end_late)

    def _end_late(self) -> None:
        self._timer = None
        oldest = time.monotonic() - self._timeout_s
        for connection in tuple(self._busy):
            if connection.sent_at <= oldest:
                connection.out_of_time(self._timeout_s)
        self._watch()

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
                    lambda: Connection(self._room), self._host, self._port, ssl=self._tls
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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()
