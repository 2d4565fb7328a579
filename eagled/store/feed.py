"""The live feed of acknowledged results.

A subscriber that does not keep up is dropped, never waited for: its `dropped` turns true and its
iteration ends, and it asks for a new snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Self

from eagled.store.records import Ack

BACKLOG = 4096  # acknowledgements a reader may be behind


class Subscription:
    """An asynchronous iterator of acknowledgements, each after its COMMIT."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._queue: asyncio.Queue[Ack | None] = asyncio.Queue(BACKLOG + 1)
        self._open = True
        self.dropped = False

    def offer(self, ack: Ack) -> None:
        """Hand over one acknowledgement, or drop this reader."""
        if not self._open:
            return
        if self._queue.qsize() >= BACKLOG:
            self.dropped = True
            self.close()
            return
        self._queue.put_nowait(ack)

    def close(self) -> None:
        """End the iteration after what was handed over; safe to call twice."""
        if self._open:
            self._open = False
            self._queue.put_nowait(None)
            self._feed.forget(self)

    def __aiter__(self) -> AsyncIterator[Ack]:
        return self

    async def __anext__(self) -> Ack:
        if not self._open and self._queue.empty():
            raise StopAsyncIteration
        ack = await self._queue.get()
        if ack is None:
            raise StopAsyncIteration
        return ack

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Feed:
    """Everyone who listens to acknowledgements."""

    def __init__(self) -> None:
        self._readers: set[Subscription] = set()

    def subscribe(self) -> Subscription:
        """Add a reader; it closes itself, or is closed with the store."""
        reader = Subscription(self)
        self._readers.add(reader)
        return reader

    def publish(self, acks: Iterable[Ack]) -> None:
        """Tell everyone."""
        for ack in acks:
            for reader in tuple(self._readers):
                reader.offer(ack)

    def forget(self, reader: Subscription) -> None:
        """Stop telling a reader."""
        self._readers.discard(reader)

    def close(self) -> None:
        """End all iterations."""
        for reader in tuple(self._readers):
            reader.close()
