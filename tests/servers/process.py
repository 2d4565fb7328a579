"""Start a test server as a process, talk to it, end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Self

_ROOT = Path(__file__).resolve().parents[2]


class ServerProcess:
    """A running test server; a context manager that ends it."""

    def __init__(self, module: str = "tests.servers.misbehaving", *arguments: str) -> None:
        self._module = module
        self._arguments = arguments
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Return its base address."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()

    def start(self, **settings: Any) -> None:
        """Start it; a second start takes the same port."""
        arguments = [str(self.port), *(self._arguments or [json.dumps(settings)])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module, *arguments],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def pin(self, core: int) -> None:
        """Keep it on one core, so that a measured process has another to itself."""
        assert self._process is not None
        os.sched_setaffinity(self._process.pid, {core})

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def freeze(self) -> None:
        """Stop the process where it stands; its sockets stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def ended(self) -> bool:
        """Return whether the process is gone by itself."""
        return self._process is not None and self._process.poll() is not None

    def set(self, **settings: Any) -> None:
        """Change settings."""
        self._call("/_set", json.dumps(settings).encode())

    def steps(self, *steps: dict[str, Any]) -> None:
        """Set what /generate does, step by step."""
        self.set(generate=list(steps))

    def seen(self) -> dict[str, Any]:
        """Return what it saw."""
        seen: dict[str, Any] = json.loads(self._call("/_seen"))
        return seen

    def _call(self, path: str, data: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.url + path, data=data)  # noqa: S310 - our own address
        with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310 - our own address
            body: bytes = reply.read()
        return body
