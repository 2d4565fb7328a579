"""Long work in a thread: left behind at the end, or told to let go of the database.

The last connection that closes folds the log into the database, and one that only reads cannot: so
whoever reads beside the writer has to be through before the daemon closes it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from eagled.errors import UnreachableError

T = TypeVar("T")
Stop = Callable[[], bool]  # asked every few milliseconds; True: give up
STOP_S = 10.0  # a disk may hold a thread longer than its next question


async def in_thread(work: Callable[[], T], name: str) -> T:
    """Return the result of `work`, run in a daemon thread of its own.

    Unlike `asyncio.to_thread`, a caller that gives up leaves the thread behind, and neither the
    event loop nor the interpreter waits for it: `work` must leave only temporary files half done.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(call: Callable[[], None]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(call)

    def run() -> None:
        try:
            result = work()
        except BaseException as exc:  # noqa: BLE001 - it is raised where it is awaited
            error = exc
            tell(lambda: None if future.done() else future.set_exception(error))
        else:
            tell(lambda: None if future.done() else future.set_result(result))

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future


async def until_cancelled(work: Callable[[Stop], T], name: str) -> T:
    """Run `work` in a thread; when cancelled, tell it and wait until it has let go."""
    stop = threading.Event()
    thread = asyncio.ensure_future(in_thread(partial(work, stop.is_set), name))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait({thread}, timeout=STOP_S)
        thread.cancel()
        raise


class Readers:
    """Threads that read the database on request; all are ended together when the daemon stops."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._closed = False

    def close(self) -> list[asyncio.Task[object]]:
        """Take nothing more; return what runs, to be cancelled and waited for."""
        self._closed = True
        return list(self._tasks)

    async def run(self, work: Callable[[Stop], T], name: str) -> T:
        """Return the result of `work`, run in a thread; a caller that is cancelled leaves it.

        Raises:
            UnreachableError: if the daemon stops meanwhile.
        """
        if self._closed:
            raise UnreachableError(f"the daemon is stopping: no {name} is begun")
        task = asyncio.create_task(until_cancelled(work, name), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise UnreachableError(f"the daemon is stopping: the {name} was given up") from None
            raise
