"""Programs that the demo starts: each with a log file, never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from eagled.errors import EagledError
from eagled.printable import printable

_POLL_S = 0.1
_LOG_LINES = 12
_TERM_S = 45.0  # the daemon's own stop timeout in the demo is 20 s


class DemoError(EagledError):
    """A step of the demo did not do what it must."""


def child_env(threads: int) -> dict[str, str]:
    """Return the environment of a child that may run torch on `threads` threads."""
    calm = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **calm}


def eagled_command(*args: str) -> list[str]:
    """Return the command line of an eagled command in this very environment."""
    return [sys.executable, "-m", "eagled", *args]


class Child:
    """One program in a session of its own, its output appended to a log file."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, *, threads: int = 1) -> None:
        self.name = name
        self.log = log
        self._seen = log.stat().st_size if log.exists() else 0
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                argv, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=child_env(threads), start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def returncode(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """Return what it has printed since it was started."""
        return self.log.read_bytes()[self._seen :].decode("utf-8", "replace")

    def tail(self) -> str:
        """Return its last lines, safe to print."""
        lines = self.output().splitlines()[-_LOG_LINES:]
        return "\n".join("    " + printable(line) for line in lines)

    def wait_for(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until `ready()`; an early end or the deadline is an error with the log's tail.

        Raises:
            DemoError: if it does not come to that.
        """
        deadline = time.monotonic() + timeout_s
        while not ready():
            if self.returncode() is not None:
                raise DemoError(
                    f"{self.name} ended with {self.returncode()} instead of {what}; "
                    f"its log is {self.log}:\n{self.tail()}"
                )
            if time.monotonic() > deadline:
                raise DemoError(
                    f"{self.name}: no {what} within {timeout_s:.0f} s; its log is "
                    f"{self.log}:\n{self.tail()}"
                )
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """Send SIGKILL and collect it."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Send SIGTERM, wait, and return the exit code; SIGKILL if it does not end."""
        if self.returncode() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(_TERM_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DemoError(f"{self.name} did not end within {_TERM_S:.0f} s of SIGTERM") from None


def run_command(args: Sequence[str], log: Path, *, threads: int = 1) -> str:
    """Run an eagled command to its end and return what it printed.

    Raises:
        DemoError: if it fails; with its output.
    """
    done = subprocess.run(
        eagled_command(*args), capture_output=True, text=True, check=False, errors="replace",
        env=child_env(threads), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    with log.open("a") as out:
        out.write(f"$ eagled {' '.join(args)}\n{done.stdout}{done.stderr}")
    if done.returncode:
        shown = printable(done.stderr.strip() or done.stdout.strip(), 2000, lines=True)
        raise DemoError(f"`eagled {' '.join(args)}` failed with {done.returncode}:\n{shown}")
    return done.stdout
