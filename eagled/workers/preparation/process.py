"""What runs in a tokenising process: takes chunks from a pipe, gives back what became of them.

Guarantee: never writes a file, never imports torch; ends when the pipe closes, so it does not
outlive the prep process. A thread empties the pipe, so neither side ever waits for the other to
read; screening comes before rendering, because the other processes wait for its result.
Coupled: `crew.py` is the other end.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from eagled.errors import EagledError
from eagled.workers.preparation.messages import Chunk, Job, Verdict

if TYPE_CHECKING:
    from eagled.text.render import Renderer
    from eagled.workers.preparation.workbench import Workbench

JOB, SCREEN, RENDER, FORGET = "job", "screen", "render", "forget"  # words from the prep process
FACTS, SCREENED, RENDERED, ERROR = "facts", "screened", "rendered", "error"  # and the answers
_END = "end"
_URGENT, _LATER = 0, 1


def main(pipe: Connection) -> None:
    """Work until the pipe closes."""
    from eagled.text.tokenizer import keep_torch_out

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the prep process ends us by closing the pipe
    keep_torch_out()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the prep process is gone
        _Process(pipe).run()


class _Process:
    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._inbox: queue.PriorityQueue[tuple[int, int, tuple[object, ...]]]
        self._inbox = queue.PriorityQueue()  # bounded by what the prep process has in flight
        self._serial = 0
        self._bench: Workbench | None = None
        self._renderer: Renderer | None = None

    def run(self) -> None:
        threading.Thread(target=self._receive, daemon=True).start()
        while True:
            word, serial, *rest = self._inbox.get()[2]
            if word == _END:
                return
            try:
                self._do(str(word), serial, rest)
            except EagledError as exc:
                self._pipe.send((ERROR, serial, exc))

    def _receive(self) -> None:
        """Move messages from the pipe into the inbox until the pipe closes."""
        order = 0
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self._pipe.recv()
                urgent = message[0] in (SCREEN, JOB)
                self._inbox.put((_URGENT if urgent else _LATER, order, message))
                order += 1
        self._inbox.put((_URGENT, -1, (_END, 0)))

    def _do(self, word: str, serial: object, rest: list[object]) -> None:
        match word, rest:
            case "job", [Job() as job]:
                self._serial = int(str(serial))
                self._pipe.send((FACTS, serial, self._open(job).facts))
            case _ if serial != self._serial or self._bench is None:
                pass  # of a dataset that ended early
            case "screen", [Chunk() as chunk]:
                self._pipe.send((SCREENED, serial, self._bench.screen(chunk)))
            case "render", [int() as number, Verdict() as verdict]:
                self._pipe.send((RENDERED, serial, self._bench.render(number, verdict)))
            case "forget", [int() as number]:
                self._bench.forget(number)
            case _:
                raise AssertionError(f"unknown message {word!r}")

    def _open(self, job: Job) -> Workbench:
        from eagled.workers.preparation.workbench import Workbench, load_renderer

        self._bench = None
        self._renderer = self._renderer or load_renderer(job)
        self._bench = Workbench(job, self._renderer)
        return self._bench
