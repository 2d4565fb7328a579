"""What the daemon does when a worker starts, dies or falls silent, and when results are committed.

Guarantee: what a dead or silent worker held is handed out again; a sample over which workers keep
dying is given up as `quarantined` (see `control.suspects`), so that it does not end the run.
"""

from __future__ import annotations

import logging

from eagled.daemon_runtime import Runtime
from eagled.printable import printable
from eagled.supervise import WorkerExit
from eagled.types import EventKind

logger = logging.getLogger(__name__)


async def worker_started(runtime: Runtime, name: str, pid: int) -> None:
    """Write that a worker process was started."""
    await runtime.store.add_event(EventKind.WORKER_STARTED, name, f"pid {pid}")


async def worker_ended(runtime: Runtime, ended: WorkerExit) -> None:
    """Take back what a dead worker held, and say why it died."""
    runtime.roll.forget(ended.pid)
    runtime.text.release(ended.pid, died=ended.code != 0)
    await runtime.extract.release(ended.pid, died=ended.code != 0)
    last = ended.tail.splitlines()[-1] if ended.tail else "no output"
    detail = f"exit code {ended.code}: {last}"
    await runtime.store.add_event(EventKind.WORKER_DIED, ended.name, printable(detail))
    log = runtime.paths.logs / f"{ended.name}.log"
    text = f"worker {ended.name} ended with {ended.code}: {last} (see {log}); it is started again"
    runtime.board.raise_(f"worker:{ended.name}", text, "error")


async def end_silent_workers(runtime: Runtime) -> None:
    """Kill our own workers that have fallen silent; take the work of others away from them."""
    for member in runtime.roll.look(runtime.clock.monotonic()):
        pid, why = member.pid, f"no sign of life for {member.silent_s:.0f} s"
        logger.error("worker stands still name=%s pid=%d: %s", member.worker, pid, why)
        if runtime.supervisor is not None and runtime.supervisor.kill(pid, f"{why}: killed"):
            runtime.roll.forget(pid)
            continue  # its end is noticed as any other's
        runtime.roll.lose(pid)
        runtime.text.release(pid, died=True)
        await runtime.extract.release(pid, died=True)
        text = f"worker {member.worker} (pid {pid}) stands still: {why}; "
        text += "its work is handed out again, restart it"
        runtime.board.raise_(f"silent:{pid}", text, "error")
    for pid in runtime.roll.found():
        runtime.board.clear(f"silent:{pid}")


async def ring_on_results(runtime: Runtime) -> None:
    """Wake the workers when something was committed that may be work for them."""
    while True:
        with runtime.store.subscribe() as results:
            async for _ in results:
                runtime.doorbell.ring()
            if not results.dropped:
                return
