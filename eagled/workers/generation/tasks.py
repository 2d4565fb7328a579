"""Tasks that nobody awaits one by one: kept, logged when they fail, and cancelled together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from eagled.errors import EagledError

_log = logging.getLogger(__name__)


class TaskSet:
    """Holds running tasks; `on_error` is told of each exception, once."""

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._tasks: dict[asyncio.Task[None], Callable[[], None] | None] = {}
        self._on_error = on_error
        self._told = False

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
            self._tell(task.get_name(), error)
            self._on_error(error)

    def _tell(self, name: str, error: BaseException) -> None:
        """Log a failure: an error of ours ends everything, so its first line is enough."""
        if not isinstance(error, EagledError):
            _log.error("task failed name=%s", name, exc_info=error)
            return
        level = logging.DEBUG if self._told else logging.ERROR
        self._told = True
        _log.log(level, "task failed name=%s error=%s", name, error)

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
