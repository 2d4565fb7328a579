"""The HTTP reader, fed in pieces of every size."""

from __future__ import annotations

import asyncio
import time

import pytest
from yarl import URL

from eagled.errors import ReplyBrokenError, ServerTimeoutError
from eagled.server import wire
from eagled.server.wire import NoConnectionError, Wire

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;ext=1\r\nlo\r\n0\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH
EMPTY = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: 7\r\n\r\n"


def feed(data: bytes, size: int) -> tuple[wire._Parser, bool]:
    """Feed `data` in pieces of `size`; return the parser and whether it saw the end."""
    parser = wire._Parser()
    done = False
    for at in range(0, len(data), size):
        assert not done
        done = parser.feed(data[at : at + size])
    return parser, done


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("data", [LENGTH, INTERIM])
def test_a_counted_body_is_whole_at_any_cut(data: bytes, size: int) -> None:
    """Status, headers and body do not depend on how the bytes arrive."""
    parser, done = feed(data, size)

    assert done
    assert (parser.status, b"".join(parser.body), parser.keep_alive) == (200, b"hello", True)
    assert parser.headers["x-a"] == "b"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 11])
def test_chunks_are_whole_at_any_cut(size: int) -> None:
    """The body of a chunked reply is its chunks; its end is the empty chunk."""
    parser = wire._Parser()
    done = [parser.feed(CHUNKED[at : at + size]) for at in range(0, len(CHUNKED), size)]

    assert done[-1]
    assert not any(done[:-1])
    assert b"".join(parser.body) == b"hello"


def test_bytes_after_the_end_leave_the_reply_whole() -> None:
    """What comes unasked after a reply ends its connection and changes nothing of it."""
    for more in (b"junk", LENGTH):
        parser, done = feed(LENGTH + more, 1000)

        assert (done, parser.status, b"".join(parser.body)) == (True, 200, b"hello")
        assert (parser.headers["x-a"], parser.keep_alive) == ("b", False)


def test_chunks_in_one_piece_keep_the_connection() -> None:
    """A chunked reply that ends cleanly leaves its connection usable."""
    parser, done = feed(CHUNKED, 1000)

    assert (done, parser.keep_alive, b"".join(parser.body)) == (True, True, b"hello")


def test_many_small_chunks_cost_no_quadratic_time() -> None:
    """A hundred thousand chunks in one piece are read in well under a second of CPU."""
    body = b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n"
    began = time.process_time()
    parser, done = feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body, 1 << 30)

    assert done
    assert b"".join(parser.body) == b"x" * 100_000
    assert time.process_time() - began < 5


def test_an_empty_body_is_complete_with_its_head() -> None:
    """Content-Length 0 needs no further byte."""
    parser, done = feed(EMPTY, 1000)

    assert (done, parser.status, parser.headers["retry-after"]) == (True, 503, "7")


def test_a_body_without_length_ends_with_its_connection() -> None:
    """Without a length the end of the connection is the end, and it is never reused."""
    parser, done = feed(b"HTTP/1.0 200 OK\r\n\r\nhello", 1000)

    assert (done, parser.ends_with_connection, parser.keep_alive) == (False, True, False)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0 x\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbroken header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 2000,
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000,
    ],
)
def test_garbage_is_broken_not_a_crash(data: bytes) -> None:
    """Whatever is no HTTP raises ReplyBrokenError."""
    with pytest.raises(ReplyBrokenError):
        feed(data, 10_000)


async def test_nothing_listens() -> None:
    """A refused connection says that nothing was sent."""
    door = Wire(URL("http://127.0.0.1:9"), {}, connect_timeout_s=1, timeout_s=1)

    with pytest.raises(NoConnectionError):
        await door.post(b"{}")


async def test_time_counts_from_sending() -> None:
    """A server that takes the request and says nothing: ServerTimeoutError, connection closed."""
    gone = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        gone.set()

    listener = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    door = Wire(URL(f"http://127.0.0.1:{port}/x"), {}, connect_timeout_s=1, timeout_s=0.05)

    with pytest.raises(ServerTimeoutError):
        await door.post(b"{}")
    await asyncio.wait_for(gone.wait(), 60)
    listener.close()
    await listener.wait_closed()
