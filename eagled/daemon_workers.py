"""What the daemon does when a worker starts or dies, and when results are committed."""

from __future__ import annotations

from eagled.daemon_runtime import Runtime
from eagled.printable import printable
from eagled.supervise import WorkerExit
from eagled.types import EventKind


async def worker_started(runtime: Runtime, name: str, pid: int) -> None:
    """Write that a worker process was started."""
    await runtime.store.add_event(EventKind.WORKER_STARTED, name, f"pid {pid}")


async def worker_ended(runtime: Runtime, ended: WorkerExit) -> None:
    """Take back what a dead worker held, and say why it died."""
    runtime.text.release(ended.pid)
    await runtime.extract.release(ended.pid)
    last = ended.tail.splitlines()[-1] if ended.tail else "no output"
    detail = f"exit code {ended.code}: {last}"
    await runtime.store.add_event(EventKind.WORKER_DIED, ended.name, printable(detail))
    log = runtime.paths.logs / f"{ended.name}.log"
    text = f"worker {ended.name} ended with {ended.code}: {last} (see {log}); it is started again"
    runtime.board.raise_(f"worker:{ended.name}", text, "error")


async def ring_on_results(runtime: Runtime) -> None:
    """Wake the workers when something was committed that may be work for them."""
    while True:
        with runtime.store.subscribe() as results:
            async for _ in results:
                runtime.doorbell.ring()
            if not results.dropped:
                return
