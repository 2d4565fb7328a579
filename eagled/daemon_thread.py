"""Long work in a thread that nobody has to wait for at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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
