"""Servers that eagled starts: one process group each, kept running, taken over, ended whole.

Guarantee: of one server there is one at a time: what an earlier daemon started is found by its
record (process id, start time, boot), taken over if it is what is wanted now and ended otherwise.
When the leading process is gone, what is left of its group is killed, so no orphan holds a GPU.
One that dies, does not answer in time or is given up on starts again after a wait that doubles up
to `BACKOFF_MAX_S`. What it prints is in its log. The daemon's own death ends nothing: a model that
took half an hour to load is still there for the next daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from eagled.children import foreign_env, rotate, tail_of
from eagled.clock import Clock
from eagled.printable import printable

_log = logging.getLogger(__name__)
BACKOFF_FIRST_S = 2.0
BACKOFF_MAX_S = 300.0
HEALTHY_S = 600.0  # one that answered for so long starts with the first back-off again
STOP_S = 20.0  # to end in order; then SIGKILL to the group
STUCK_STOP_S = 5.0  # the same for one that hangs: it rarely hears
KILLED_S = 5.0
LOG_BYTES = 64 << 20  # a log beyond this is moved aside at the next start
_LOOK_S = 1.0
_TAIL_BYTES = 4000
_STAT_START = 19  # field 22 of /proc/PID/stat, counted after the command's closing parenthesis
_STAT_GROUP = 2  # field 5
_DEAD = ("Z", "X", "x")


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start.

    Attributes:
        name: name of its files.
        url: its address.
        argv: the command line.
        env: variables on top of ours.
        folder: where its record is.
        log: where its output goes.
        timeout_s: longest time until its first answer.
        keep: whether it outlives the daemon's orderly stop.
    """

    name: str
    url: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    folder: Path
    log: Path
    timeout_s: float
    keep: bool

    @property
    def record(self) -> Path:
        """Return the file that names the running process."""
        return self.folder / f"{self.name}.json"

    @property
    def digest(self) -> str:
        """Return what tells this command from another."""
        plain = orjson.dumps([self.argv, dict(self.env)], option=orjson.OPT_SORT_KEYS)
        return hashlib.blake2b(plain, digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Running:
    """A process as its record names it; `started` is in ticks since boot."""

    pid: int
    started: int
    boot: str
    digest: str

    @property
    def alive(self) -> bool:
        """Return whether this very process still runs."""
        return self.boot == boot_id() and start_ticks(self.pid) == self.started

    @property
    def leaderless(self) -> bool:
        """Return whether it ended in this boot and its number is free: its group may live on.

        A number is not given out again while a group has it.
        """
        return self.boot == boot_id() and not Path(f"/proc/{self.pid}").exists()


def boot_id() -> str:
    """Return the identity of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_ticks(pid: int) -> int | None:
    """Return when a process started; None if it is gone or only waits to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in _DEAD else int(fields[_STAT_START])


def name_of(url: str) -> str:
    """Return the name of an address as a file can have it."""
    plain = "".join(c if c.isalnum() else "-" for c in url.split("//", 1)[-1])
    return f"sglang-{plain.strip('-')}"[:100]


def read_record(path: Path) -> Running | None:
    """Return the process that a record names; None if there is none or it is torn."""
    try:
        return Running(**orjson.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


Told = Callable[[str, str, str], Awaitable[None]]  # "launched" or "ended", address, detail


class Launcher:
    """Keeps one server running between `start` and `stop`.

    Args:
        launch: what to start.
        clock: time.
        answers: whether the server answers.
        told: called with what happened.
    """

    def __init__(
        self, launch: Launch, clock: Clock, answers: Callable[[], Awaitable[bool]], told: Told
    ) -> None:
        self.launch = launch
        self.starts = 0
        self._clock = clock
        self._answers = answers
        self._told = told
        self._running: Running | None = None
        self._child: asyncio.subprocess.Process | None = None
        self._given_up = ""
        self._poke = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Return the process id of the server; None while it does not run."""
        return self._running.pid if self._running is not None else None

    def start(self) -> None:
        """Take over what runs, or start it, and keep it running."""
        self._task = asyncio.create_task(self._keep(), name=f"launch {self.launch.url}")

    def restart(self, reason: str) -> None:
        """End the server and start it anew."""
        self._given_up = reason
        self._poke.set()

    async def stop(self) -> None:
        """End the server, unless it is to be kept, and stop watching it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        running = self._running
        if running is None or self.launch.keep:
            return
        await end_group(running)
        self.launch.record.unlink(missing_ok=True)
        await self._told("ended", self.launch.url, "stopped with the daemon")

    # -- keeping it running

    async def _keep(self) -> None:
        wait_s = BACKOFF_FIRST_S
        while True:
            began_at = self._clock.monotonic()
            self._running = running = await self._take_over() or await self._spawn()
            why = await self._watch(running)
            await end_group(running, STUCK_STOP_S if self._given_up else None)
            self._running = None
            self.launch.record.unlink(missing_ok=True)
            if self._clock.monotonic() - began_at > HEALTHY_S:
                wait_s = BACKOFF_FIRST_S
            text = f"{why}; started again in {wait_s:g} s (log: {self.launch.log})"
            await self._told("ended", self.launch.url, text)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, BACKOFF_MAX_S)

    async def _take_over(self) -> Running | None:
        """Return what an earlier daemon left running, if it is what is wanted now."""
        found = read_record(self.launch.record)
        if found is not None and found.leaderless:
            await end_group(found)
        if found is None or not found.alive:
            return None
        if found.digest != self.launch.digest:
            await end_group(found)
            text = f"pid {found.pid} was started by another command: ended"
            await self._told("ended", self.launch.url, text)
            return None
        self._child = None
        await self._told("launched", self.launch.url, f"pid {found.pid} taken over")
        return found

    async def _spawn(self) -> Running:
        launch = self.launch
        launch.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        rotate(launch.log, LOG_BYTES)
        self._given_up = ""
        with launch.log.open("ab") as out:
            self._child = await asyncio.create_subprocess_exec(
                *launch.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=asyncio.subprocess.STDOUT,
                env={**foreign_env(), **launch.env},
                start_new_session=True,
            )
        self.starts += 1
        pid = self._child.pid
        running = Running(pid, start_ticks(pid) or 0, boot_id(), launch.digest)
        _write(launch.record, orjson.dumps(asdict(running)))
        await self._told("launched", launch.url, f"pid {pid}: {printable(' '.join(launch.argv))}")
        return running

    async def _watch(self, running: Running) -> str:
        """Wait until the server has to be started anew; return why."""
        began_at, answered = self._clock.monotonic(), False
        while not self._given_up:
            if not running.alive:
                return await self._last_words()
            if not answered:
                answered = await self._answers()
                late_s = self._clock.monotonic() - began_at
                if not answered and late_s > self.launch.timeout_s:
                    return f"no answer within {self.launch.timeout_s:g} s"
            await self._rest(running)
        return self._given_up

    async def _rest(self, running: Running) -> None:
        """Wait a moment, or until the child has ended or was given up."""
        waits: set[asyncio.Future[bool]] = {asyncio.ensure_future(_poked(self._poke))}
        if self._child is not None and self._child.pid == running.pid:
            waits.add(asyncio.ensure_future(_ended(self._child)))
        try:
            await asyncio.wait(waits, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._poke.clear()

    async def _last_words(self) -> str:
        code = "unknown"
        if self._child is not None:
            code = str(await self._child.wait())
        tail = await asyncio.to_thread(tail_of, self.launch.log, _TAIL_BYTES)
        last = tail.splitlines()[-1] if tail else "no output"
        return f"exit code {code}: {printable(last)}"


async def _poked(event: asyncio.Event) -> bool:
    return await event.wait()


async def _ended(child: asyncio.subprocess.Process) -> bool:
    return await child.wait() is not None


async def end_group(running: Running, grace_s: float | None = None) -> None:
    """End a process and everything in its group: SIGTERM to the leader, then SIGKILL to all.

    A stopped process is let go on, so that it can hear. A caller who is cancelled kills at once.
    """
    try:
        if running.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.pid, signal.SIGTERM)
                os.kill(running.pid, signal.SIGCONT)
            await _until(lambda: not running.alive, STOP_S if grace_s is None else grace_s)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(running.pid, signal.SIGKILL)
    await _until(lambda: not group_lives(running.pid), KILLED_S)


async def _until(done: Callable[[], bool], timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while not done():  # noqa: ASYNC110 - another process's end sets no event
                await asyncio.sleep(0.05)


def group_lives(group: int) -> bool:
    """Return whether a process group has a member that is not only waiting to be reaped."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[_STAT_GROUP]) == group and fields[0] not in _DEAD:
            return True
    return False


def records_in(folder: Path) -> list[Path]:
    """Return the records of launched servers in a folder."""
    return sorted(folder.glob("sglang-*.json"))


async def end_strays(folder: Path, wanted: frozenset[str]) -> list[str]:
    """End servers of an earlier daemon that nobody wants any more; return what was ended."""
    ended = []
    for path in records_in(folder):
        if path.stem in wanted:
            continue
        found = read_record(path)
        if found is not None and (found.alive or found.leaderless):
            await end_group(found)
            ended.append(f"{path.stem}: pid {found.pid}")
        path.unlink(missing_ok=True)
    return ended


def _write(path: Path, data: bytes) -> None:
    tmp = path.with_name(path.name + ".tmp")
    tmp.write_bytes(data)
    tmp.replace(path)
