"""Tasks that nobody awaits one by one: kept, logged when they fail, and cancelled together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

_log = logging.getLogger(__name__)


class TaskSet:
    """Holds running tasks; `on_error` is told of each exception, once."""

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._tasks: dict[asyncio.Task[None], Callable[[], None] | None] = {}
        self._on_error = on_error

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(
        self,
        work: Coroutine[None, None, None],
        name: str,
        at_end: Callable[[], None] | None = None,
    ) -> asyncio.Task[None]:
        """Start `work` and keep it until it ends.

        `at_end` is called then, also for a task that is cancelled before its first step and so
        never runs a `finally` of its own.
        """
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = at_end
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        at_end = self._tasks.pop(task, None)
        if at_end is not None:
            at_end()
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("task failed name=%s", task.get_name(), exc_info=error)
            self._on_error(error)

    async def drained(self, timeout_s: float) -> bool:
        """Wait until none is left; return whether that came about in time."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        return not self._tasks

    async def cancel_all(self, timeout_s: float) -> None:
        """Cancel what is left and wait for its end."""
        for task in self._tasks:
            task.cancel()
        await self.drained(timeout_s)
