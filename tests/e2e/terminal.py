"""`eagled top` in a real terminal: a daemon with one canned status, and a tmux of our own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

ROOT = Path(__file__).parents[2]
STATUS: dict[str, Any] = json.loads((ROOT / "tests/unit/tui/status.json").read_bytes())
DEADLINE_S = 180.0  # the machine may be busy; a healthy run needs about two


def wait_until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait for a condition.

    Raises:
        AssertionError: with `what()` if it did not come about in time.
    """
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(what())
        time.sleep(0.05)


class CannedDaemon:
    """Serves one status over a unix socket in a thread of its own, and keeps what is posted.

    `change` is done to the status before each answer; `answers` makes those of other paths.
    """

    def __init__(
        self,
        socket: Path,
        change: Callable[[dict[str, Any]], None] | None = None,
        *,
        document: dict[str, Any] | None = None,
        answers: Mapping[str, Callable[[], object]] | None = None,
    ) -> None:
        self.socket = socket
        self.posts: list[tuple[str, Any]] = []
        self.n_status = 0
        self._change = change
        self._document = json.loads(json.dumps(document or STATUS))
        self._answers = dict(answers or {})
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="canned-daemon")

    async def _status(self, _: web.Request) -> web.Response:
        self.n_status += 1
        self._document["at_ms"] = time.time_ns() // 1_000_000
        if self._change is not None:
            self._change(self._document)
        return web.json_response(self._document)

    async def _events(self, _: web.Request) -> web.Response:
        row = {
            "seq": 1,
            "at_ms": STATUS["at_ms"],
            "kind": "server_up",
            "subject": "s",
            "detail": "",
        }
        return web.Response(text=json.dumps(row) + "\n", content_type="application/x-ndjson")

    async def _get(self, request: web.Request) -> web.Response:
        answer = self._answers.get(request.path)
        return web.json_response(answer() if answer is not None else {})

    async def _post(self, request: web.Request) -> web.Response:
        self.posts.append((request.path, await request.json()))
        return web.json_response({})

    async def _serve(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/v1/status", self._status)
        app.router.add_get("/v1/events", self._events)
        app.router.add_get("/{path:.*}", self._get)
        app.router.add_post("/{path:.*}", self._post)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(self.socket)).start()
        return runner

    def _run(self) -> None:
        runner = self._loop.run_until_complete(self._serve())
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(DEADLINE_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)


class Tmux:
    """One tmux server under its own socket, with one window that runs a command."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "tmux.sock"
        self._exit = folder / "exit-code"
        self._config = folder / "tmux.conf"
        self._config.write_text("set -g remain-on-exit off\n")

    def run(self, *words: str) -> str:
        """Run a tmux command; return what it prints."""
        command = ["tmux", "-S", str(self._socket), "-f", str(self._config), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        return done.stdout

    def start(self, command: str, *, size: tuple[int, int], environ: dict[str, str]) -> None:
        """Start `command` in a terminal of `size`; its exit code is kept."""
        self.run("new-session", "-d", "-s", "keeper", "sh")  # or the last window ends the server
        settings = " ".join(f"{key}='{value}'" for key, value in environ.items())
        line = f"cd {ROOT} && env {settings} {command}; echo $? > {self._exit}"
        width, height = map(str, size)
        self.run("new-session", "-d", "-s", "top", "-x", width, "-y", height, "sh", "-c", line)

    def screen(self) -> str:
        """Return the characters in the window."""
        return self.run("capture-pane", "-p", "-t", "top")

    def press(self, *keys: str) -> None:
        """Press keys."""
        self.run("send-keys", "-t", "top", *keys)

    def wait_for(self, text: str) -> str:
        """Wait until the window shows `text`; return the window."""
        wait_until(lambda: text in self.screen(), lambda: f"no {text!r} in\n{self.screen()}")
        return self.screen()

    def exit_code(self) -> int:
        """Wait for the command's end; return its exit code."""
        wait_until(self._exit.exists, lambda: f"still running\n{self.screen()}")
        wait_until(lambda: bool(self._exit.read_text().strip()), lambda: "no exit code")
        return int(self._exit.read_text())


@contextmanager
def tmux(folder: Path) -> Iterator[Tmux]:
    """Give a tmux server; nothing of it is left."""
    server = Tmux(folder)
    try:
        yield server
    finally:
        server.run("kill-server")


def top_command(socket: Path, *options: str) -> str:
    """Return the shell command that runs the screen."""
    return " ".join([sys.executable, "-m", "eagled.tui", "--socket", str(socket), *options])


def process_of(*words: str) -> int:
    """Return the id of the Python process whose command line has all `words`.

    Raises:
        AssertionError: if there is none.
    """
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            found = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if Path(found[0]).name.startswith("python") and set(words) <= set(found):
                return int(entry.name)
    raise AssertionError(f"no process runs {words}")


def clean_environ(**more: str) -> dict[str, str]:
    """Return what the screen's behaviour depends on, set to known values."""
    known = {
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "NO_COLOR": "",
        "PYTHONPATH": str(ROOT),
    }
    return {**known, "PATH": os.environ["PATH"], **more}
