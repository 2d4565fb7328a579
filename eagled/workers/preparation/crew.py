"""Tokenising processes, fed with chunks, answering in the order of the source.

Guarantee: whatever the number of processes, the judge sees the chunks in their order and the
results come out in their order; a killed process raises `WorkerLostError` and nothing is returned
for its chunks. A process has at most `_LEAST` chunks in flight, or `_MOST` light ones, so memory is
bounded, and there is work for it while a finished part is written and synced.
Processes start when `begin` says so, all at the same time, or when there is work for them: a small
dataset has one.
`LocalCrew` does the same in this process, for a caller that has the renderer already.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol

from eagled.errors import WorkerLostError
from eagled.workers.preparation import process
from eagled.workers.preparation.messages import (
    Chunk,
    Job,
    Rendered,
    Screened,
    TargetFacts,
    Verdict,
)

if TYPE_CHECKING:
    from eagled.text.render import Renderer
    from eagled.workers.preparation.workbench import Workbench

_LEAST = 3  # one being rendered, one screened ahead, one on its way
_MOST, _LIGHT_CHARS = 8, 1 << 21  # of short rows: half a second of work
_END_S = 5.0  # a process that does not end when its pipe closes is terminated
Judge = Callable[[Chunk, Screened], Verdict | None]


@dataclass(frozen=True, slots=True)
class Done:
    """A finished chunk; `rendered` None where the judge wanted no rendering."""

    chunk: Chunk
    screened: Screened
    rendered: Rendered | None


class Crew(Protocol):
    """Whoever screens and renders chunks."""

    def begin(self, job: Job, processes: int) -> None:
        """Start so many processes, which load the tokenizer while the caller does other things."""

    def facts(self, job: Job) -> TargetFacts:
        """Return what is known of the target; checks the job's settings against it."""

    def work(self, job: Job, chunks: Iterator[Chunk], judge: Judge) -> Iterator[Done]:
        """Yield every chunk in order; closing the iterator drops what is in flight."""

    def close(self) -> None:
        """End the processes."""


class LocalCrew:
    """Does the work where it is called, with the caller's renderer."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def begin(self, job: Job, processes: int) -> None:
        """Do nothing."""

    def facts(self, job: Job) -> TargetFacts:
        """Return what is known of the target."""
        return self._bench(job).facts

    def work(self, job: Job, chunks: Iterator[Chunk], judge: Judge) -> Iterator[Done]:
        """Yield every chunk in order."""
        bench = self._bench(job)
        for chunk in chunks:
            screened = bench.screen(chunk)
            verdict = judge(chunk, screened)
            if verdict is None:
                bench.forget(chunk.number)
                yield Done(chunk, screened, None)
            else:
                yield Done(chunk, screened, bench.render(chunk.number, verdict))

    def close(self) -> None:
        """Do nothing."""

    def _bench(self, job: Job) -> Workbench:
        from eagled.workers.preparation.workbench import Workbench

        return Workbench(job, self._renderer)


@dataclass(slots=True)
class _InFlight:
    chunk: Chunk
    worker: _Worker
    screened: Screened | None = None
    judged: bool = False
    rendered: Rendered | None = None
    finished: bool = False


@dataclass(slots=True, eq=False)
class _Worker:
    """One process, its pipe, and the dataset that it knows."""

    process: multiprocessing.process.BaseProcess
    pipe: Connection
    serial: int = 0
    open: dict[int, _InFlight] = field(default_factory=dict)

    def send(self, *message: object) -> None:
        try:
            self.pipe.send(message)
        except (BrokenPipeError, ConnectionResetError) as exc:
            raise self.lost() from exc

    @property
    def has_room(self) -> bool:
        """Whether another chunk may be sent."""
        if len(self.open) < _LEAST:
            return True
        weight = sum(item.chunk.weight for item in self.open.values())
        return len(self.open) < _MOST and weight < _LIGHT_CHARS

    def receive(self) -> tuple[str, int, Any]:
        try:
            word, serial, value = self.pipe.recv()
        except (EOFError, ConnectionResetError) as exc:
            raise self.lost() from exc
        return word, serial, value

    def lost(self) -> WorkerLostError:
        """Return what to say of a process that is gone."""
        self.process.join(_END_S)
        code = self.process.exitcode
        how = f"ended with code {code}"
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            how = f"was killed by {name}"
            if -code == signal.SIGKILL:
                how += " (out of memory? `dmesg` tells)"
        at = min(self.open.values(), key=lambda item: item.chunk.number, default=None)
        where = f" while it worked on {at.chunk}" if at is not None else ""
        return WorkerLostError(
            f"a tokenising process (pid {self.process.pid}) {how}{where}; finished parts are kept: "
            "run the same `eagled prep` again to go on (`--set prep.workers=1` needs less memory)"
        )


class ProcessCrew:
    """Up to `size` processes, started by spawn; 0 is one a core."""

    def __init__(self, size: int = 0) -> None:
        self._size = size or len(os.sched_getaffinity(0))
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        self._serial = 0

    @property
    def pids(self) -> list[int]:
        """The processes that were started."""
        return [worker.process.pid or 0 for worker in self._workers]

    def begin(self, job: Job, processes: int) -> None:
        """Start so many processes, at most the crew's size; what is wrong is said by `facts`."""
        self._serial += 1
        while len(self._workers) < min(processes, self._size):
            self._introduce(self._start(), job)

    def facts(self, job: Job) -> TargetFacts:
        """Return what is known of the target, from the first process."""
        self._serial += 1
        worker = self._workers[0] if self._workers else self._start()
        self._introduce(worker, job)
        while True:
            word, serial, value = worker.receive()
            if serial == self._serial and word == process.ERROR:
                raise value
            if serial == self._serial and word == process.FACTS:
                return value  # type: ignore[no-any-return] # the words say which record it is

    def work(self, job: Job, chunks: Iterator[Chunk], judge: Judge) -> Iterator[Done]:
        """Yield every chunk in order."""
        self._serial += 1
        flight: deque[_InFlight] = deque()
        try:
            more = True
            while more or flight:
                more = more and self._feed(job, chunks, flight)
                if flight:
                    self._collect()
                    self._judge(flight, judge)
                while flight and flight[0].finished:
                    item = flight.popleft()
                    assert item.screened is not None  # noqa: S101 - finished after it was judged
                    yield Done(item.chunk, item.screened, item.rendered)
        finally:
            for worker in self._workers:
                worker.open.clear()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(_END_S)
            if worker.process.is_alive():
                worker.process.terminate()
                worker.process.join(_END_S)
            worker.process.close()
        self._workers.clear()

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        child = self._context.Process(
            target=process.main, args=(theirs,), daemon=True, name="eagled-prep"
        )
        child.start()
        theirs.close()  # else the end of the process could not be seen
        self._workers.append(_Worker(child, ours))
        return self._workers[-1]

    def _introduce(self, worker: _Worker, job: Job) -> None:
        worker.serial = self._serial
        worker.send(process.JOB, self._serial, job)

    def _feed(self, job: Job, chunks: Iterator[Chunk], flight: deque[_InFlight]) -> bool:
        """Send chunks to whoever has room; False when there are no more."""
        while (worker := self._with_room()) is not None:
            chunk = next(chunks, None)
            if chunk is None:
                return False
            if worker.serial != self._serial:
                self._introduce(worker, job)
            item = worker.open[chunk.number] = _InFlight(chunk, worker)
            flight.append(item)
            worker.send(process.SCREEN, self._serial, chunk)
        return True

    def _with_room(self) -> _Worker | None:
        """Return the least busy process with room; a new one when all have enough."""
        least = min(self._workers, key=lambda worker: len(worker.open), default=None)
        if least is not None and len(least.open) < _LEAST:
            return least
        if len(self._workers) < self._size:
            return self._start()
        return least if least is not None and least.has_room else None

    def _collect(self) -> None:
        """Wait for at least one message and take all that are there."""
        by_pipe = {worker.pipe: worker for worker in self._workers}
        for pipe in multiprocessing.connection.wait(list(by_pipe)):
            worker = by_pipe[pipe]  # type: ignore[index] # it gives back what it was given
            word, serial, value = worker.receive()
            if serial != self._serial:
                continue
            if word == process.ERROR:
                raise value
            if word == process.SCREENED:
                worker.open[value.number].screened = value
            elif word == process.RENDERED:
                item = worker.open.pop(value.number)
                item.rendered, item.finished = value, True

    def _judge(self, flight: deque[_InFlight], judge: Judge) -> None:
        """Have chunks judged in their order, as far as they are screened."""
        for item in flight:
            if item.judged:
                continue
            if item.screened is None:
                return
            number = item.chunk.number
            verdict = judge(item.chunk, item.screened)
            item.judged = True
            if verdict is None:
                item.worker.send(process.FORGET, self._serial, number)
                del item.worker.open[number]
                item.finished = True
            else:
                item.worker.send(process.RENDER, self._serial, number, verdict)
