"""The one task that writes.

Guarantee: a future is resolved only after COMMIT returned at synchronous=FULL. Operations that wait
together share a transaction; callers may be cancelled, the task never is. A full disk fails the
waiting operations with `DiskError` and the next ones are tried again. Anything the writer cannot
explain ends it: every later call raises `StoreError` (fail-stop), and `failed` says so.
Price: one fsync a transaction; the fsync itself is the window in which operations gather.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from eagled.errors import DiskError, StoreError
from eagled.store.executor import is_busy, is_disk_trouble, store_error
from eagled.store.ops.base import Op
from eagled.store.records import Ack
from eagled.store.transaction import AnyOp, Batch, Failed

log = logging.getLogger(__name__)

R = TypeVar("R")
HIGH_WATER = 4096  # waiting operations at which callers wait for room
LOW_WATER = 2048  # and at which they go on
MAX_WEIGHT = 512  # rows of one transaction
BUSY_TRIES = 6  # of 5 s each: an offline tool that holds the lock longer is a fault
IDLE_SYNC_S = 1.0  # the last stamp of a burst is synced after this
TROUBLE_S = 60.0  # a refusal older than this says nothing of the disk now; outcomes try each 5 s

Item = tuple[AnyOp, "asyncio.Future[Any]"]


class Backend(Protocol):
    """What the writer runs transactions on, in the connection's own thread."""

    async def run(self, ops: Sequence[AnyOp]) -> Batch:
        """Run one transaction and record it in the stamp."""

    async def idle(self) -> None:
        """Do what waits for a quiet moment: sync the stamp."""


class Writer:
    """Gathers operations, runs them in groups, resolves their callers."""

    def __init__(
        self, backend: Backend, path: Path, publish: Callable[[Sequence[Ack]], None]
    ) -> None:
        self._backend = backend
        self._path = path
        self._publish = publish
        self._waiting: deque[Item] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closing = False
        self._idle = True
        self._task: asyncio.Task[None] | None = None
        self._in_hand = 0
        self._refusal = ""
        self._refused_at = 0.0
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Start the task."""
        self._task = asyncio.create_task(self._guarded(), name="store-writer")

    @property
    def depth(self) -> int:
        """Operations that wait, or are being written now."""
        return len(self._waiting) + self._in_hand

    @property
    def trouble(self) -> str:
        """What the disk said to the last transaction, if it refused it lately; else empty."""
        now = asyncio.get_running_loop().time()
        return self._refusal if now - self._refused_at < TROUBLE_S else ""

    async def submit(self, op: Op[R]) -> R:
        """Return the result of `op` after it is durable.

        A caller that is cancelled leaves its operation in the queue: it still happens.

        Raises:
            StoreError: if the store has failed or is closed.
            DiskError: if the disk refused the transaction.
        """
        while not self._room.is_set():
            self._require_open()
            await self._room.wait()
        future = self.post(op)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._take_back(op, future.result())  # resolved, but the caller never woke
            raise

    def post(self, op: Op[R]) -> asyncio.Future[R]:
        """Queue `op` without waiting for room, and return the future of its result."""
        self._require_open()
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((op, future))
        if len(self._waiting) >= HIGH_WATER:
            self._room.clear()
        self._wake.set()
        return future

    async def close(self) -> None:
        """Work off what waits and end the task."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait({self._task})
        self._room.set()

    def _require_open(self) -> None:
        if self.failed.done():
            raise StoreError(f"the store has failed: {self.failed.result()}")
        if self._closing:
            raise StoreError("the store is closed")

    async def _guarded(self) -> None:
        try:
            await self._loop()
        except asyncio.CancelledError as exc:
            self._fail(exc)
            raise
        except BaseException as exc:
            cause = store_error(exc, self._path) if isinstance(exc, sqlite3.Error) else exc
            trace = None if isinstance(cause, DiskError) else exc  # of a disk it says nothing
            log.critical("the writer died; the store takes nothing more: %s", cause, exc_info=trace)
            self._fail(cause)

    def _fail(self, exc: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_result(exc)
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(StoreError(f"the store has failed: {exc}"))
        self._room.set()

    async def _loop(self) -> None:
        while True:
            if not self._waiting:
                if self._closing:
                    return
                await self._rest()
                continue
            items = self._take()
            self._in_hand = len(items)
            try:
                await self._write(items)
            except BaseException as exc:
                for _, future in items:
                    if not future.done():
                        future.set_exception(StoreError(f"the store has failed: {exc}"))
                raise
            finally:
                self._in_hand = 0

    async def _rest(self) -> None:
        self._wake.clear()
        if self._idle:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(IDLE_SYNC_S):
                await self._wake.wait()
        except TimeoutError:
            await self._backend.idle()
            self._idle = True

    def _take(self) -> list[Item]:
        items: list[Item] = []
        weight = 0
        while self._waiting and (not items or weight + self._waiting[0][0].weight <= MAX_WEIGHT):
            item = self._waiting.popleft()
            weight += item[0].weight
            items.append(item)
        if len(self._waiting) <= LOW_WATER:
            self._room.set()
        return items

    async def _write(self, items: Sequence[Item]) -> None:
        ops = [op for op, _ in items]
        try:
            batch = await self._run(ops)
        except DiskError as exc:
            log.error("transaction given up, %d operations: %s", len(ops), exc)  # noqa: TRY400 - the cause is the disk, not a line of code
            self._refusal, self._refused_at = str(exc), asyncio.get_running_loop().time()
            for _, future in items:
                if not future.done():
                    future.set_exception(DiskError(str(exc)))
            return
        self._idle, self._refusal = False, ""
        for (op, future), result in zip(items, batch.results, strict=True):
            if future.cancelled():
                self._take_back(op, result)
            else:
                _resolve(future, result)
        self._publish(batch.acks)

    def _take_back(self, op: Op[R], result: R) -> None:
        """Undo what a caller who is gone was given."""
        undo = op.orphaned(result) if not isinstance(result, Failed) else None
        if undo is not None and not self.failed.done():
            nobody = asyncio.get_running_loop().create_future()
            nobody.cancel()
            self._waiting.append((undo, nobody))
            self._wake.set()

    async def _run(self, ops: Sequence[AnyOp]) -> Batch:
        for attempt in range(1, BUSY_TRIES + 1):
            try:
                return await self._backend.run(ops)
            except sqlite3.Error as exc:
                if is_disk_trouble(exc):
                    raise store_error(exc, self._path) from exc
                if not is_busy(exc) or attempt == BUSY_TRIES:
                    raise
                log.error("another process holds %s for writing; trying again", self._path)  # noqa: TRY400 - not a fault of this line
        raise AssertionError


def _resolve(future: asyncio.Future[Any], result: object) -> None:
    if isinstance(result, Failed):
        future.set_exception(result.error)
    else:
        future.set_result(result)
