"""The event stream: NDJSON, resumable by number, never waiting for a slow reader.

Guarantee: every event after `after` comes once and in order. With `acks=1` each acknowledgement
that happens while the stream is open comes as `{"ack": …}`, after its COMMIT and not delayed by
events. A reader that does not take a line within `WRITE_TIMEOUT_S`, or falls too far behind in
acknowledgements, is cut off; it resumes with the last number that it saw.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from eagled.control.calls import number_in
from eagled.control.context import CONTROL
from eagled.control.protocol import API_HEADER, API_VERSION
from eagled.event_log import event_json

if TYPE_CHECKING:
    from eagled.store import Store
    from eagled.store.feed import Subscription
    from eagled.store.records import Ack

WRITE_TIMEOUT_S = 10.0
POLL_S = 0.5  # how late an event may be
_PAGE = 500
_MAX_SEQ = (1 << 63) - 1


async def stream_events(request: web.Request) -> web.StreamResponse:
    """GET /v1/events?after=N[&last=N][&follow=1][&acks=1]: events, one JSON object a line."""
    after = number_in(request, "after", 0, _MAX_SEQ)
    follow = bool(number_in(request, "follow", 0, 1))
    acks = bool(number_in(request, "acks", 0, 1))
    last = number_in(request, "last", 0, _MAX_SEQ)
    store = request.app[CONTROL].store
    if last:
        after = max(after, await _newest(store) - last)
    response = web.StreamResponse(
        headers={"Content-Type": "application/x-ndjson", API_HEADER: str(API_VERSION)}
    )
    reader = store.subscribe() if acks else None
    try:
        await response.prepare(request)
        await _stream(response, store, after, follow=follow, reader=reader)
    except (ConnectionError, TimeoutError):
        if request.transport is not None:
            request.transport.abort()  # what it did not take is not kept for it
    finally:
        if reader is not None:
            reader.close()
    return response


async def _newest(store: Store) -> int:
    """Return the number of the newest event by halving: some forty reads of one row, no scan."""
    low, high = 0, 1
    while await store.events(high, 1):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if await store.events(middle, 1):
            low = middle
        else:
            high = middle
    return high


async def _stream(
    response: web.StreamResponse,
    store: Store,
    after: int,
    *,
    follow: bool,
    reader: Subscription | None,
) -> None:
    writing = asyncio.Lock()
    async with _beside(_send_acks(response, reader, writing) if reader else None) as acks:
        while True:
            rows = await store.events(after, _PAGE)
            if rows:
                after = rows[-1].seq
                await _write(response, map(event_json, rows), writing)
            elif not follow or (acks is not None and acks.done()):
                return
            else:
                await asyncio.sleep(POLL_S)


@asynccontextmanager
async def _beside(work: Any) -> AsyncIterator[asyncio.Task[None] | None]:  # noqa: ANN401 - a coroutine or None
    """Run `work` while the block runs."""
    task = asyncio.create_task(work) if work is not None else None
    try:
        yield task
    finally:
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError, TimeoutError):
                await task


async def _send_acks(
    response: web.StreamResponse, reader: Subscription, writing: asyncio.Lock
) -> None:
    async for ack in reader:
        await _write(response, [_ack(ack)], writing)


async def _write(
    response: web.StreamResponse, records: Iterable[dict[str, Any]], writing: asyncio.Lock
) -> None:
    data = b"".join(orjson.dumps(r, option=orjson.OPT_APPEND_NEWLINE) for r in records)
    async with writing, asyncio.timeout(WRITE_TIMEOUT_S):
        await response.write(data)


def _ack(ack: Ack) -> dict[str, Any]:
    return {"ack": {"kind": ack.kind, "uid": ack.uid, "attempt": ack.attempt, "crc": ack.crc}}
