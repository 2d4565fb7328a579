"""The HTTP client over TLS: whole replies side by side, and no word to a server it cannot trust.

`tests/data/tls/localhost.pem` is a key and its own certificate for localhost, good until 2126:
`openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500 \
-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from yarl import URL

from eagled.server.wire import NoConnectionError, Wire

PEM = Path(__file__).parents[2] / "data/tls/localhost.pem"
SIZE = 1_000_000


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request with its one-byte body, a million times, in pieces."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"Content-Length: 1" in head
            body = await reader.readexactly(1)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE)
            for _ in range(10):
                writer.write(body * (SIZE // 10))
                await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


@asynccontextmanager
async def tls_server() -> AsyncIterator[URL]:
    """Run the server with the test's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=context)
    try:
        port = server.sockets[0].getsockname()[1]
        yield URL(f"https://localhost:{port}/generate")
    finally:
        server.close()


async def test_replies_side_by_side_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large replies of many connections at once arrive each with its own bytes, twice over."""
    monkeypatch.setenv("SSL_CERT_FILE", str(PEM))
    bodies = [bytes([65 + i]) for i in range(8)]
    async with tls_server() as url:
        wire = Wire(url, {}, connect_timeout_s=60, timeout_s=60)
        for _ in range(2):
            replies = await asyncio.gather(*(wire.post(body) for body in bodies))
            assert [body * SIZE for body in bodies] == [reply.body for reply in replies]
        wire.close()


async def test_certificate_of_nobody_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose certificate no authority signed gets no request; the error says why."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    async with tls_server() as url:
        wire = Wire(url, {}, connect_timeout_s=60, timeout_s=60)
        with pytest.raises(NoConnectionError, match=r"(?i)certificate"):
            await wire.post(b"x")
        wire.close()
