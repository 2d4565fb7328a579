"""Worker processes of the daemon: started, restarted with back-off, ended with it.

Guarantee: a worker never outlives the daemon, even one that was killed (the kernel's
parent-death signal plus a look at the parent); one that dies is started again after a wait that
doubles up to `BACKOFF_MAX_S`; what it printed is in `<state>/logs/NAME.log`. Threads are handed
out so that all workers together never exceed the cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eagled.children import rotate, tail_of
from eagled.config import Config

logger = logging.getLogger(__name__)
PROGRAM: tuple[str, ...] = ("-m", "eagled")  # after the interpreter
PARENT_ENV = "EAGLED_PARENT_PID"
NAME_ENV = "EAGLED_WORKER"
BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 60.0
HEALTHY_S = 60.0  # a worker that lived this long starts with the first back-off again
STOP_S = 10.0  # to hand over what it holds; then SIGKILL
KILLED_S = 2.0  # until the kernel has taken a killed process away
LOG_BYTES = 8 << 20  # a log beyond this is moved aside when its worker starts
_TAIL_BYTES = 2000
_PR_SET_PDEATHSIG = 1
_ORPHANED = 1


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker process: its name, its command line, and its environment on top of ours."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """A worker that ended by itself; `code` is negative for a signal."""

    name: str
    pid: int
    code: int
    tail: str


OnStart = Callable[[str, int], Awaitable[None]]
OnExit = Callable[[WorkerExit], Awaitable[None]]


def die_with_parent() -> None:
    """End this process when the daemon that started it ends; does nothing without one."""
    parent = os.environ.pop(PARENT_ENV, "")
    if not parent:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if str(os.getppid()) != parent:
        sys.exit(_ORPHANED)  # it ended before the line above


def worker_specs(config: Config, config_path: Path, socket: Path, logs: Path) -> list[WorkerSpec]:
    """Return the workers that a configuration asks for."""
    if config.daemon.workers != "spawn":
        return []
    names = [f"text-{i}" for i in range(config.daemon.text_workers)]
    specs = [_spec(name, "text", 1, config_path, socket, logs) for name in names]
    if config.extract.backend != "off":
        threads = extract_threads(config, len(os.sched_getaffinity(0)))
        specs.append(_spec("extract-0", "extract", threads, config_path, socket, logs))
    return specs


def extract_threads(config: Config, cores: int) -> int:
    """Return the torch threads of the extraction worker: what is set, within the free cores.

    A core is left to each text worker, as `workers.extract.set_threads` does it.
    """
    free = max(1, cores - config.daemon.text_workers)
    return min(config.extract.threads, cores) if config.extract.threads else free


def _spec(
    name: str, kind: str, threads: int, config_path: Path, socket: Path, logs: Path
) -> WorkerSpec:
    env = {
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "RAYON_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "EAGLED_SOCKET": str(socket),
        NAME_ENV: name,
        PARENT_ENV: str(os.getpid()),
    }
    argv = (sys.executable, *PROGRAM, "worker", kind, "--config", str(config_path))
    return WorkerSpec(name, argv, env, logs / f"{name}.log")


@dataclass
class Supervisor:
    """Keeps the workers of `specs` running between `start` and `stop`."""

    specs: list[WorkerSpec]
    on_start: OnStart
    on_exit: OnExit
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    _began: dict[str, float] = field(default_factory=dict)
    _why: dict[int, str] = field(default_factory=dict)
    _stopping: bool = False

    def start(self) -> None:
        """Start every worker."""
        for spec in self.specs:
            self._tasks.append(asyncio.create_task(self._keep(spec), name=f"worker {spec.name}"))

    def pids(self) -> dict[str, int]:
        """Return the process ids of the workers that run, by name."""
        return {name: process.pid for name, process in self._running.items()}

    def healthy(self) -> list[str]:
        """Return the workers that have lived for `HEALTHY_S`."""
        now = asyncio.get_running_loop().time()
        return [name for name in self._running if now - self._began[name] > HEALTHY_S]

    def kill(self, pid: int, why: str) -> bool:
        """End a worker; it is started again. False: it is none of ours.

        `why` stands for its last words when its end is reported.
        """
        mine = [process for process in self._running.values() if process.pid == pid]
        for process in mine:
            self._why[pid] = why
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        return bool(mine)

    async def stop(self, timeout_s: float = STOP_S) -> None:
        """End every worker: SIGTERM, then SIGKILL after `timeout_s`."""
        self._stopping = True
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        try:
            await self._wait_for_all(timeout_s)
        finally:  # also when the caller waits no longer
            for process in list(self._running.values()):
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        await self._wait_for_all(KILLED_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait_for_all(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(p.wait() for p in list(self._running.values())))

    async def _keep(self, spec: WorkerSpec) -> None:
        loop, wait_s = asyncio.get_running_loop(), BACKOFF_FIRST_S
        while not self._stopping:
            began = loop.time()
            code, pid = await self._run_once(spec)
            if self._is_stopping():
                return
            if loop.time() - began > HEALTHY_S:
                wait_s = BACKOFF_FIRST_S
            tail = self._why.pop(pid, "") or tail_of(spec.log, _TAIL_BYTES)
            await self._report(WorkerExit(spec.name, pid, code, tail))
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, BACKOFF_MAX_S)

    def _is_stopping(self) -> bool:
        return self._stopping

    async def _run_once(self, spec: WorkerSpec) -> tuple[int, int]:
        rotate(spec.log, LOG_BYTES)
        with spec.log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **spec.env},
                start_new_session=True,  # ctrl-C in the daemon's terminal is the daemon's to handle
            )
        self._running[spec.name] = process
        self._began[spec.name] = asyncio.get_running_loop().time()
        try:
            await self.on_start(spec.name, process.pid)
            return await process.wait(), process.pid
        finally:
            self._running.pop(spec.name, None)

    async def _report(self, ended: WorkerExit) -> None:
        logger.warning("worker ended name=%s code=%s", ended.name, ended.code)
        try:
            await self.on_exit(ended)
        except Exception:
            logger.exception("cannot record the end of a worker name=%s", ended.name)
