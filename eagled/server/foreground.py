"""One server as a child of this process, from its start to its end.

Guarantee: the server and everything it started end with this process: in order on SIGTERM, SIGINT
or a closed terminal, and by the kernel's parent-death signal if this process is killed. `came_up`
runs once, when the server answers; a False of it ends the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from eagled.children import foreign_env
from eagled.server.launch import Running, boot_id, end_group, start_ticks

REFUSED = 78  # it came up, and is not what was asked for
_LOOK_S = 1.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Watched:
    """What is asked of a server while it starts."""

    answers: Callable[[], Awaitable[bool]]
    came_up: Callable[[], Awaitable[bool]]


async def run_server(argv: Sequence[str], env: Mapping[str, str], watched: Watched) -> int:
    """Run a server until it ends or a signal ends it; return the exit code.

    0 after a signal, `REFUSED` if `came_up` said no, else the server's own (128 + n for signals).
    """
    libc = ctypes.CDLL(None, use_errno=True)  # loaded before the fork: the child only calls
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        env={**foreign_env(), **env},
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
    )
    running = Running(child.pid, start_ticks(child.pid) or 0, boot_id(), "")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    ended = asyncio.ensure_future(child.wait())
    stopped = asyncio.ensure_future(stop.wait())
    looking = asyncio.ensure_future(_look(watched))
    try:
        waits: set[asyncio.Future[object]] = {ended, stopped, looking}  # type: ignore[arg-type] # three kinds of result, only their end matters
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        refused = looking.done() and not looking.result()
        if looking.done() and not refused:
            await asyncio.wait(waits - {looking}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (stopped, looking):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await end_group(running)
    code = await ended
    if refused:
        return REFUSED
    return 0 if stop.is_set() else code if code >= 0 else 128 - code


async def _look(watched: Watched) -> bool:
    while not await watched.answers():  # noqa: ASYNC110 - a server's start sets no event
        await asyncio.sleep(_LOOK_S)
    return await watched.came_up()


def shell_line(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Return a command line that a shell takes, variables first."""
    import shlex

    parts = [f"{key}={shlex.quote(value)}" for key, value in sorted(env.items())]
    return " ".join([*parts, *map(shlex.quote, argv)])


def can_run(python: str) -> bool:
    """Return whether a command can be found and run."""
    import shutil

    return shutil.which(python) is not None or os.access(python, os.X_OK)
