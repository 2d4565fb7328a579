"""Runs the operator's command when an alarm is raised or taken back.

Guarantee: the daemon never waits for the command: one runs at a time, what comes meanwhile waits in
a bounded line, each run has `COMMAND_S` seconds and is then killed with its children. The alarm
goes to it as one JSON object on standard input, never as part of a command line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterable, Sequence

import orjson

from eagled.children import foreign_env
from eagled.daemon_runtime import AlarmBoard
from eagled.printable import printable
from eagled.status import Alarm

logger = logging.getLogger(__name__)
LOOK_S = 1.0
COMMAND_S = 30.0
MAX_WAITING = 64
_SHOWN_CHARS = 500


class AlarmCommand:
    """Compares the alarms with those of the last look, and tells the command what changed.

    Args:
        command: program and arguments; empty runs nothing.
        run: name of the run, in each message.
    """

    def __init__(self, command: Sequence[str], run: str) -> None:
        self._command = tuple(command)
        self._run_name = run
        self._known: dict[str, Alarm] = {}
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)

    def look(self, alarms: Iterable[Alarm]) -> None:
        """Note what was raised and what was taken back since the last call."""
        now = {alarm.kind: alarm for alarm in alarms}
        before, self._known = self._known, now
        for kind in now.keys() - before.keys():
            self._tell("raised", now[kind])
        for kind in before.keys() - now.keys():
            self._tell("cleared", before[kind])

    def _tell(self, change: str, alarm: Alarm) -> None:
        if not self._command:
            return
        message = {
            "run": self._run_name,
            "change": change,
            "kind": alarm.kind,
            "level": alarm.level,
            "text": alarm.text,
            "since_ms": alarm.since_ms,
        }
        try:
            self._waiting.put_nowait(orjson.dumps(message))
        except asyncio.QueueFull:
            logger.error("the alarm command is too slow; not told kind=%s", alarm.kind)  # noqa: TRY400 - nothing failed here

    async def serve(self) -> None:
        """Run the command for what waits, until cancelled."""
        while True:
            await self._run(await self._waiting.get())

    async def watch(self, board: AlarmBoard) -> None:
        """Look at a board every second and run the command, until cancelled."""
        serving = asyncio.create_task(self.serve(), name="alarm command")
        try:
            while not serving.done():
                self.look(board.all())
                await asyncio.sleep(LOOK_S)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def _run(self, message: bytes) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env=foreign_env(),
            )
        except OSError as exc:
            logger.error("daemon.on_alarm: cannot run %s: %s", self._command[0], exc)  # noqa: TRY400 - the cause is outside
            return
        try:
            async with asyncio.timeout(COMMAND_S):
                output, _ = await process.communicate(message)
        except TimeoutError:
            logger.error("daemon.on_alarm: killed after %g s", COMMAND_S)  # noqa: TRY400 - the traceback is that of the timer
        else:
            if process.returncode:
                shown = printable(output.decode("utf-8", "replace"), _SHOWN_CHARS)
                logger.error("daemon.on_alarm: exit code %s: %s", process.returncode, shown)
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of the command and its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
    if process.returncode is None:
        await process.wait()
