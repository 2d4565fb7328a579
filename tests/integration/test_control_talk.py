"""The terminal UI's own client: what it reads, what it keeps, and what it calls an error."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from eagled.control.client import ControlClient
from eagled.control.talk import Talk, _Reply
from eagled.errors import EagledError, UnreachableError, UsageError
from eagled.types import EventKind
from tests.integration.test_control_api import serving
from tests.servers.kit import until

_HEAD_END = b"\r\n\r\n"


@asynccontextmanager
async def talking(socket: Path) -> AsyncIterator[Talk]:
    """Give a client that is closed at the end."""
    talk = Talk(socket)
    try:
        yield talk
    finally:
        await talk.close()


@asynccontextmanager
async def answering(
    socket: Path, answers: list[bytes], *, hang_up: Callable[[int], bool] = lambda _: False
) -> AsyncIterator[list[int]]:
    """Serve raw answers in order; give the number of the connection that each request came by.

    After an answer for which `hang_up` of its place holds the connection is closed.
    """
    came: list[int] = []
    opened = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        me = opened
        try:
            while await reader.readuntil(_HEAD_END):
                came.append(me)
                writer.write(answers[len(came) - 1])
                await writer.drain()
                if hang_up(len(came)):
                    break
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, socket)
    async with server:
        yield came


async def test_it_hears_what_the_other_client_hears(tmp_path: Path) -> None:
    """Answers, queries and events are the same, whichever of the two clients asks."""
    async with serving(tmp_path) as rig, ControlClient(rig.socket) as other:
        for i in range(30):
            await rig.store.add_event(EventKind.SERVER_UP, f"s{i}", "up")
        async with talking(rig.socket) as talk:
            for path, query in (("/v1/status", {}), ("/v1/samples", {"limit": 3, "after": 1})):
                assert await other.get(path, **query) == await talk.get(path, **query)
            events = [e async for e in other.events(5, last=10)]

            assert events == await talk.events(5, last=10)
            assert 10 == len(events)


async def test_a_change_is_made_once_by_its_key(tmp_path: Path) -> None:
    """The same key twice is one change; another key is another one."""
    async with serving(tmp_path) as rig, talking(rig.socket) as talk:
        for key in ("a", "a", "b"):
            await talk.post("/v1/pause", key=key)

    assert 2 == sum(name.startswith("pause") for name in rig.actions.called)


async def test_the_daemons_errors_arrive_as_their_own_class(tmp_path: Path) -> None:
    """What the daemon raised is raised here, with its words."""
    async with serving(tmp_path) as rig, talking(rig.socket) as talk:
        rig.actions.error = UsageError("no such folder")
        with pytest.raises(UsageError, match="no such folder"):
            await talk.post("/v1/enqueue", {"folder": "/x"})
        with pytest.raises(EagledError):
            await talk.get("/v1/samples/nobody?state=failed")

        assert {"api": 1, "phase": "idle"} == await talk.get("/v1/status")


async def test_nobody_there_is_unreachable(tmp_path: Path) -> None:
    """A socket that is not there and one that nobody serves say how to start a daemon."""
    async with talking(tmp_path / "c.sock") as talk:
        with pytest.raises(UnreachableError, match="no daemon answers"):
            await talk.get("/v1/status")


def _ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


async def test_a_connection_is_kept_and_never_shared(tmp_path: Path) -> None:
    """Calls one after the other come by one connection, two at once by two."""
    async with answering(tmp_path / "s", [_ok(b"1")] * 4) as came, talking(tmp_path / "s") as talk:
        one_by_one = [await talk.get("/a"), await talk.get("/b")]
        at_once = list(await asyncio.gather(talk.get("/c"), talk.get("/d")))

    assert [1, 1] == one_by_one == at_once
    assert [1, 1] == came[:2]
    assert {1, 2} == set(came[2:])


async def test_a_connection_that_was_closed_is_not_used_again(tmp_path: Path) -> None:
    """A daemon that hangs up between two calls is called anew, and no call fails for it."""
    socket = tmp_path / "s"
    hang_up = answering(socket, [_ok(b"1")] * 3, hang_up=lambda n: n == 1)
    async with hang_up as came, talking(socket) as talk:
        await talk.get("/a")
        await until(lambda: not talk._idle[0].usable)
        await talk.get("/b")

    assert [1, 2] == came


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200",
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n{}",
        b"",
    ],
)
async def test_half_an_answer_is_none(tmp_path: Path, raw: bytes) -> None:
    """An answer that was cut short or is no HTTP is an error, and its connection is not kept."""
    socket = tmp_path / "s"
    cut = answering(socket, [raw, _ok(b"1")], hang_up=lambda n: n == 1)
    async with cut as came, talking(socket) as talk:
        with pytest.raises(UnreachableError):
            await talk.get("/a")

        assert 1 == await talk.get("/b")
    assert [1, 2] == came


async def test_a_body_may_be_large_and_in_chunks(tmp_path: Path) -> None:
    """A megabyte comes whole, by length and in chunks, and the connection can be used again."""
    text = b'"%s"' % (b"x" * 1_000_000)
    half = len(text) // 2
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (text[:half], text[half:], b""))
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    socket = tmp_path / "s"
    async with answering(socket, [_ok(text), chunked, _ok(b"1")]) as came, talking(socket) as talk:
        got = [await talk.get("/a"), await talk.get("/b"), await talk.get("/c")]

    assert ["x" * 1_000_000, "x" * 1_000_000, 1] == got
    assert [1, 1, 1] == came


async def test_an_answer_leaves_no_garbage(tmp_path: Path) -> None:
    """The screen looks for garbage rarely: an answer must be gone when it was read, or failed."""
    socket, text = tmp_path / "s.sock", b'"' + b"x" * 17_000 + b'"'
    gc.collect()  # what other tests left
    gc.disable()
    try:
        async with answering(socket, [_ok(text)] * 8 + [b"nonsense"]) as _, talking(socket) as talk:
            for _ in range(8):
                await talk.get("/a")
            with pytest.raises(UnreachableError):
                await talk.get("/a")
            assert not [o for o in gc.get_objects() if type(o) is _Reply]
    finally:
        gc.enable()


async def test_a_call_that_was_given_up_leaves_no_connection(tmp_path: Path) -> None:
    """The next call does not read the answer of one that was not waited for."""
    socket = tmp_path / "s"
    async with answering(socket, [b"HTTP/1.1 200", _ok(b"1")]) as came, talking(socket) as talk:
        given_up = asyncio.create_task(talk.get("/a"))
        await until(lambda: bool(came))
        given_up.cancel()
        await asyncio.wait([given_up])

        assert 1 == await talk.get("/b")
    assert [1, 2] == came


async def test_a_path_cannot_break_out(tmp_path: Path) -> None:
    """Line breaks and question marks in a name stay inside the path."""
    socket = tmp_path / "s"
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(_HEAD_END))
        writer.write(_ok(b"1"))
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(serve, socket), talking(socket) as talk:
        await talk.get("/v1/lanes/a b?c\r\nX: y/d%20e", q="1&2")

    assert (
        b"GET /v1/lanes/a%20b%3Fc%0D%0AX%3A%20y/d%20e?q=1%262 HTTP/1.1" == seen[0].split(b"\r\n")[0]
    )
